"""Faults of the database and of the network to it."""

from __future__ import annotations

import os
import random
import signal
import time

import psycopg
from support.proxy import PACKAGE, Proxy, Rule, mark

from chaos.environment import Host, SoakEnvironment
from chaos.nemesis import kind

DISK_FULL, TOO_MANY_CONNECTIONS = "53100", "53300"
OURS = "application_name LIKE 'pgworkers %' AND datname = current_database()"


@kind("postgres.crash", "server")
def crash(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    """The server is stopped at once, sometimes for longer than a lease."""
    away = draw.choice([0.0, 0.5, 2.0, soak.settings.lease_duration + 1.0])
    soak.postgres.crash()
    time.sleep(away)
    soak.postgres.start()
    return f"away for {away:.1f} s"


@kind("postgres.backend.kill", "server")
def kill_backend(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    """SIGKILL of one backend: the server restarts them all."""
    pids = [row[0] for row in soak.rows(f"SELECT pid FROM pg_stat_activity WHERE {OURS}")]
    if not pids:
        return None
    pid = draw.choice(pids)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return None
    soak.one("SELECT 1")
    return f"backend {pid}"


@kind("postgres.backend.stop", "server")
def stop_backend(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    """One backend is stopped for longer than a statement may take."""
    pids = [row[0] for row in soak.rows(f"SELECT pid FROM pg_stat_activity WHERE {OURS}")]
    if not pids:
        return None
    pid = draw.choice(pids)
    try:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(soak.settings.statement_timeout + draw.uniform(0.5, 2.0))
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return None
    return f"backend {pid}"


@kind("postgres.terminate")
def terminate(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    ended = soak.one(f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {OURS}")
    return f"{ended} sessions" if ended else None


def _terminate(soak: SoakEnvironment, role: str) -> str | None:
    ended = soak.one(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = %s",
        f"pgworkers {role}",
    )
    return f"{ended} sessions" if ended else None


@kind("session.listen")
def listen(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    return _terminate(soak, "listen")


@kind("session.leadership")
def leadership(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    return _terminate(soak, "leadership")


@kind("session.finish")
def finish(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    return _terminate(soak, "finish")


@kind("statements.cancelled")
def cancelled(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    """pg_cancel_backend on every running statement, for two seconds."""
    total = 0
    until = time.monotonic() + 2.0
    while time.monotonic() < until:
        total += soak.one(
            f"SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE {OURS} AND state = 'active'"
        )
        time.sleep(0.02)
    return f"{total} statements" if total else None


# -- the way to it -----------------------------------------------------------------------------------------------------


@kind("network.slow", "host")
def slow(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    """Each answer takes longer than a statement may."""
    assert host is not None
    host.proxy.delay = soak.settings.statement_timeout * draw.choice([0.3, 1.5])
    before = host.proxy.counts["delay"]
    time.sleep(draw.uniform(2.0, 5.0))
    host.proxy.heal()
    late = host.proxy.counts["delay"] - before
    return f"{host.name}, {late} answers" if late else None


@kind("network.hole", "host")
def hole(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    """All packets are dropped without an error, for longer than the lease."""
    assert host is not None
    before = _stopped_packets(host.proxy)
    host.proxy.hole()
    time.sleep(soak.settings.lease_duration + draw.uniform(2.0, 5.0))
    host.proxy.heal()
    swallowed = _stopped_packets(host.proxy) - before
    return f"{host.name}, {swallowed} messages" if swallowed else None


@kind("network.half", "host")
def half(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    """Queries of a host arrive at the server, answers do not come back."""
    assert host is not None
    before = _stopped_packets(host.proxy)
    host.proxy.stop_down = True
    time.sleep(draw.uniform(1.0, soak.settings.lease_duration + 1.0))
    host.proxy.heal()
    swallowed = _stopped_packets(host.proxy) - before
    return f"{host.name}, {swallowed} messages" if swallowed else None


def _stopped_packets(proxy: Proxy) -> int:
    return proxy.counts["stop_up"] + proxy.counts["stop_down"]


@kind("network.cut", "host")
def cut(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    """Several connection resets in a row."""
    assert host is not None
    total = 0
    for _ in range(draw.randint(3, 12)):
        total += host.proxy.cut()
        time.sleep(0.2)
    return f"{total} connections of {host.name}" if total else None


@kind("network.refuse", "host")
def refuse(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    assert host is not None
    host.proxy.refuse = True
    total = host.proxy.cut()
    time.sleep(draw.uniform(0.5, 3.0))
    host.proxy.heal()
    return f"{total} connections of {host.name}" if total else None


@kind("network.torn", "host")
def torn(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    """A connection breaks in the middle of an answer."""
    assert host is not None
    before = host.proxy.counts["cut_after"]
    host.proxy.cut_after(draw.randint(1, 3000))
    _until(lambda: host.proxy.counts["cut_after"] > before)
    return host.name if host.proxy.counts["cut_after"] > before else None


@kind("ack.finish", "host")
def ack_finish(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    assert host is not None
    return _lose(host.proxy, host.name, "job/finish", "pgworkers finish")


@kind("ack.claim", "host")
def ack_claim(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    assert host is not None
    return _lose(host.proxy, host.name, "job/claim", "pgworkers claim", filled=True)


@kind("ack.retry", "host")
def ack_retry(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    assert host is not None
    return _lose(host.proxy, host.name, "job/retry", "pgworkers finish")


@kind("ack.renew", "host")
def ack_renew(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    assert host is not None
    return _lose(host.proxy, host.name, "job/host_renew", "pgworkers listen")


@kind("ack.tick", "leader")
def ack_tick(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    assert host is not None
    return _lose(host.proxy, host.name, "schedule/fire", "pgworkers leadership")


@kind("ack.enqueue")
def ack_enqueue(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    rules = [soak.client.lose_reply("enqueue", who="pgworkers client", times=draw.randint(1, 3))]
    return _lost("the enqueuer", rules)


@kind("query.lost", "host")
def query_lost(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    """A statement that never reached the server, of any session."""
    assert host is not None
    return _lost(
        host.name, [host.proxy.lose_query("", who=f"pgworkers {draw.choice(['claim', 'finish', 'listen'])}")]
    )


def _lose(proxy: Proxy, name: str, statement: str, who: str, *, filled: bool = False) -> str | None:
    room, file = statement.split("/")
    # If the statement has been renamed: any answer to that session.
    text = mark(statement) if (PACKAGE / room / f"{file}.sql").exists() else ""
    return _lost(name, [proxy.lose_reply(text, who=who, filled=filled)])


def _lost(name: str, rules: list[Rule]) -> str | None:
    _until(lambda: any(rule.done.is_set() for rule in rules))
    for rule in rules:
        rule.times = 0
    hits = sum(rule.hits for rule in rules if rule.done.is_set())
    return f"{name}, {hits} answers" if hits else None


def _until(fact: object, seconds: float = 4.0) -> None:
    assert callable(fact)
    until = time.monotonic() + seconds
    while not fact() and time.monotonic() < until:
        time.sleep(0.02)


# -- what it runs out of -----------------------------------------------------------------------------------------------


@kind("postgres.full", "server")
def full(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    """The server has no connection slot left, and every host has to reconnect."""
    held: list[psycopg.Connection[object]] = []
    before = _count_answers(soak, TOO_MANY_CONNECTIONS)
    try:
        for _ in range(4):
            try:
                while len(held) < 200:
                    held.append(soak.connect())
            except psycopg.OperationalError:
                pass
            for host in soak.hosts:
                host.proxy.cut()
            time.sleep(0.5)
        refused = _count_answers(soak, TOO_MANY_CONNECTIONS) - before
        return f"{len(held)} connections held, {refused} refused" if refused else None
    finally:
        for conn in held:
            conn.close()


def _count_answers(soak: SoakEnvironment, sqlstate: str) -> int:
    """How often the server has answered a client with this. (Its own log is on the full disk.)"""
    return sum(proxy.counts[sqlstate] for proxy in (soak.client, *(host.proxy for host in soak.hosts)))


@kind("disk.full", "server")
def disk_full(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    disk = soak.postgres.disk
    if disk is None:
        return None
    ballast = disk / "ballast"
    before = _count_answers(soak, DISK_FULL)
    try:
        with ballast.open("wb", buffering=0) as file:
            room = os.statvfs(disk)
            os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize - (1 << 20))
            file.seek(0, os.SEEK_END)
            until = time.monotonic() + draw.uniform(1.0, 3.0)
            while time.monotonic() < until:  # what the server frees meanwhile is taken again
                try:
                    file.write(b"x" * 8192)
                except OSError:
                    time.sleep(0.02)
    finally:
        ballast.unlink(missing_ok=True)
    soak.postgres.start()  # a server that could not write its log has ended itself
    failed = _count_answers(soak, DISK_FULL) - before
    return f"the server's disk, {failed} statements" if failed else None


# -- clocks ------------------------------------------------------------------------------------------------------------


@kind("host.clock", "host")
def clock(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    """The wall clock of a host jumps by up to a day and stays wrong for longer than a lease: nothing may depend on it."""
    assert host is not None
    if host.wall is None or not host.wall.moves(host.master.pid):
        return None
    shift = draw.choice([-86400.0, -3600.0, 3600.0, 86400.0])
    host.wall.move(shift)
    time.sleep(soak.settings.lease_duration + draw.uniform(0.5, 2.0))
    host.wall.move(0.0)
    return f"{host.name}, {shift:+.0f} s"
