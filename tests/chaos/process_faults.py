"""Faults of processes: workers, supervisors, masters, whole trees."""

from __future__ import annotations

import os
import random
import signal
import time

import psutil
from support.cluster import wait_for

from chaos.environment import Host, SoakEnvironment, boottime
from chaos.nemesis import kind


def _send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _signal_busy_worker(soak: SoakEnvironment, draw: random.Random, number: int) -> str | None:
    found = soak.busy_worker(draw)
    if found is None or not _send(found.pid, number):
        return None
    return f"{signal.Signals(number).name} to worker {found.pid}, job {found.job}"


@kind("worker.kill")
def worker_kill(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    return _signal_busy_worker(soak, draw, signal.SIGKILL)


@kind("worker.segv")
def worker_segv(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    return _signal_busy_worker(soak, draw, signal.SIGSEGV)


@kind("worker.term")
def worker_term(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    return _signal_busy_worker(soak, draw, signal.SIGTERM)


@kind("worker.stop")
def worker_stop(soak: SoakEnvironment, _host: Host | None, draw: random.Random) -> str | None:
    hit = _signal_busy_worker(soak, draw, signal.SIGSTOP)
    if hit is None:
        return None
    time.sleep(draw.uniform(0.5, 3.0))
    _send(int(hit.split()[3].rstrip(",")), signal.SIGCONT)
    return hit


@kind("worker.kill_all", "host")
def worker_kill_all(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    """All workers of a host at once: a burst of SIGCHLD."""
    assert host is not None
    pids = host.master.worker_pids()
    busy = len(set(pids) & set(soak.running()))
    killed = sum(_send(pid, signal.SIGKILL) for pid in pids)
    return f"{killed} workers of {host.name}, {busy} busy" if killed else None


@kind("supervisor.kill", "host")
def supervisor_kill(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    assert host is not None
    pids = host.master.supervisor_pids()
    if not pids:
        return None
    pid = draw.choice(pids)
    return f"supervisor {pid} of {host.name}" if _send(pid, signal.SIGKILL) else None


@kind("supervisor.stop", "host")
def supervisor_stop(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    """Sometimes shorter, sometimes longer than `supervisor_timeout`."""
    assert host is not None
    pids = host.master.supervisor_pids()
    if not pids:
        return None
    pid = draw.choice(pids)
    soak.frozen.update(_children(pid))  # no supervisor fences them meanwhile
    if not _send(pid, signal.SIGSTOP):
        return None
    time.sleep(soak.settings.supervisor_timeout * draw.choice([0.5, 1.5]))
    _send(pid, signal.SIGCONT)
    return f"supervisor {pid} of {host.name}"


def _children(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


@kind("master.kill", "host")
def master_kill(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    assert host is not None
    return _kill(host, draw)


@kind("leader.kill", "leader")
def leader_kill(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    assert host is not None
    return _kill(host, draw)


def _kill(host: Host, draw: random.Random) -> str:
    old = host.master
    old.signal(signal.SIGKILL)
    old.wait(10)
    wait_for(lambda: not old.processes(), timeout=10, what=f"the tree of {old.pid} is gone")
    time.sleep(draw.choice([0.0, 0.5, 2.0]))
    host.start()
    return f"master {old.pid} of {host.name}"


@kind("master.pause", "host")
def master_pause(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    """The master is stopped for less than its lease; its supervisors and workers go on."""
    assert host is not None
    return _freeze_master(host, soak.settings.lease_duration * draw.uniform(0.2, 0.6))


@kind("master.freeze", "host")
def master_freeze(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    """Longer than its lease: its jobs run elsewhere, and when it resumes its results are refused."""
    assert host is not None
    return _freeze_master(host, soak.settings.lease_duration + draw.uniform(2.0, 5.0))


@kind("leader.freeze", "leader")
def leader_freeze(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    assert host is not None
    return _freeze_master(host, soak.settings.lease_duration + draw.uniform(2.0, 5.0))


def _freeze_master(host: Host, seconds: float) -> str | None:
    pid = host.master.pid
    if host.master.process.poll() is not None or not _send(pid, signal.SIGSTOP):
        return None
    time.sleep(seconds)
    _send(pid, signal.SIGCONT)
    return f"master {pid} of {host.name} for {seconds:.1f} s"


@kind("host.freeze", "host")
def host_freeze(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    """The whole host is stopped, handlers too, like a paused virtual machine."""
    assert host is not None
    found = [one.pid for one in host.master.processes()]
    soak.frozen.update(found)
    stopped = sum(_send(pid, signal.SIGSTOP) for pid in found)
    time.sleep(soak.settings.lease_duration + draw.uniform(0.5, 2.0))
    host.cont()
    return f"{stopped} processes of {host.name}" if stopped else None


@kind("host.drain", "host")
def host_drain(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    return _leave(soak, host, signal.SIGTERM)


@kind("host.quit", "host")
def host_quit(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    return _leave(soak, host, signal.SIGQUIT)


def _leave(soak: SoakEnvironment, host: Host | None, number: int) -> str | None:
    assert host is not None
    if not host.ready():
        return None  # SIGTERM before it listens to signals is an ordinary end of a process
    old, s = host.master, soak.settings
    tree = {one.pid for one in old.processes()}
    began, signalled_at = time.monotonic(), boottime()
    old.signal(number)
    # Two seconds each for a ladder without graces and for the kill, three for supervisors to leave; see master/drain.py.
    limit = (
        s.drain_timeout
        + s.ask_grace
        + s.raise_grace
        + 2 * (s.statement_timeout + 1)
        + s.statement_timeout
        + 3
        + 4
    )
    code = old.wait(limit + 10)
    took = time.monotonic() - began
    wait_for(lambda: not old.processes(), timeout=5, what=f"the tree of {old.pid} is gone")
    # I12: jobs claimed before the signal may still start, and a claim under way returns within the statement timeout.
    last = (
        max((e.at - signalled_at for e in soak.recent() if e.kind == "START" and e.pid in tree), default=0)
        / 1e9
    )
    host.start()
    wrong = (
        "" if code == 0 and took <= limit else f" WRONG: exit {code} after {took:.1f} s, bound {limit:.1f} s"
    )
    if last > s.statement_timeout + 1.0:
        wrong += f" WRONG: I12 a job began {last:.1f} s after the signal to leave"
    return f"master {old.pid} of {host.name}, {took:.1f} s, last start at {last:+.2f} s{wrong}"


@kind("host.reload", "host")
def host_reload(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    """SIGHUP, sometimes twice: new supervisors, old workers finish."""
    assert host is not None
    if not host.ready():
        return None
    for _ in range(draw.choice([1, 1, 3])):
        host.master.signal(signal.SIGHUP)
        time.sleep(draw.uniform(0.0, 0.3))
    time.sleep(1.0)
    return f"{host.name}"


@kind("master.signals", "host")
def master_signals(soak: SoakEnvironment, host: Host | None, draw: random.Random) -> str | None:
    """Signals that it must ignore."""
    assert host is not None
    if not host.ready():
        return None
    for _ in range(20):
        host.master.signal(draw.choice([signal.SIGPIPE, signal.SIGCHLD, signal.SIGWINCH, signal.SIGCONT]))
    return f"20 signals to {host.name}"
