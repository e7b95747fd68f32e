"""A quiet phase: faults have stopped, so every live job must end within a bound that follows from the settings."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import psutil
from support.time_bounds import BUSY

from chaos.environment import QUEUES, SoakEnvironment, boottime
from chaos.load import UNKNOWN, Load
from chaos.phase_memory import Memory
from pgworkers.settings import Settings

PROBES_PER_QUEUE = 3
#: Seconds of work that one job of the load takes at most: `polite`, `stuck`, a long one, all their attempts.
LONGEST_JOB_SECONDS = 6.0
#: The largest sum of back-offs of a job that uses its budget up: `die` and `fail`, 2 s and 4 s, a tenth more.
BACKOFF_SECONDS = 6.6
BOOT_SECONDS = 8.0  # a master and its workers need this long to start on a busy machine; no setting bounds it


@dataclass
class Phase:
    """What one quiet phase found."""

    at: float
    bound: float
    took: float = 0.0
    alive: int = 0
    wrong: list[str] = field(default_factory=list)


def bound(s: Settings, alive: int, workers: int) -> float:
    """A host is lost at the last moment: its lease expires, its jobs are rescued, they run, fail and run again."""
    lost = s.lease_duration + s.rescue_interval + s.statement_timeout
    deposed = s.lease_duration + s.leadership_interval + s.statement_timeout  # if that host led
    reached = (
        max(2.0, math.ceil(s.connect_timeout)) + s.reconnect_max_delay + s.poll_interval + s.promote_interval
    )
    ladder = s.ask_grace + s.raise_grace + 1.0
    work = alive * 0.3 / workers + LONGEST_JOB_SECONDS
    return lost + deposed + reached + s.supervisor_timeout + ladder + BACKOFF_SECONDS + BOOT_SECONDS + work


def run_quiet_phase(soak: SoakEnvironment, load: Load, began: float, memory: Memory) -> Phase:
    """Run one quiet phase. The load must be paused, and no fault open."""
    soak.heal()
    soak.cluster.open_gate()
    started = time.monotonic()
    probes = [load.probe(queue) for queue in QUEUES for _ in range(PROBES_PER_QUEUE)]
    # `beat` goes on for ever; its jobs must end too, those that are here now. Jobs of an unknown task stay.
    live = {row[0] for row in soak.rows("SELECT id FROM pgworkers.job WHERE task <> %s", UNKNOWN)}
    live |= {job for job in probes if job is not None}
    workers = sum(QUEUES.values()) * len(soak.hosts)
    phase = Phase(
        round(started - began, 1), round(bound(soak.settings, len(live), workers), 1), alive=len(live)
    )
    left = live
    while left and time.monotonic() - started < phase.bound:
        time.sleep(0.1)
        left = {row[0] for row in soak.rows("SELECT id FROM pgworkers.job WHERE id = ANY(%s)", list(live))}
    phase.took = round(time.monotonic() - started, 1)
    if left:
        phase.wrong += [
            f"I16 not ended within {phase.bound} s of quiet: {row}"
            for row in soak.rows(
                "SELECT id, state::text, task, queue, lease, attempt, host::text, cancel_at, run_at - now(), errors"
                " FROM pgworkers.job WHERE id = ANY(%s) LIMIT 5",
                list(left),
            )
        ]
    if None in probes:
        phase.wrong.append("an enqueue in the quiet was not acknowledged")
    phase.wrong += _at_rest(soak)
    phase.wrong += memory.look(soak)
    if not phase.wrong:
        phase.wrong += _picked_up(soak, load)
    soak.cluster.close_gate()
    return phase


def _picked_up(soak: SoakEnvironment, load: Load) -> list[str]:
    """I16: while workers of every queue are idle, a job begins within a poll and a statement."""
    patience = soak.settings.poll_interval + soak.settings.statement_timeout + BUSY
    asked = {}
    for queue in QUEUES:
        at = boottime()
        job = load.probe(queue)
        if job is None:
            return ["an enqueue in the quiet was not acknowledged"]
        asked[job] = (queue, at)
    until = time.monotonic() + patience
    begun: dict[int, int] = {}
    while len(begun) < len(asked) and time.monotonic() < until:
        time.sleep(0.05)
        begun = {one.job: one.at for one in soak.recent() if one.kind == "START" and one.job in asked}
    return [
        f"I16 job {job} of the idle queue {queue} had not begun {patience} s after it was enqueued"
        for job, (queue, at) in asked.items()
        if begun.get(job, at + (1 << 62)) - at > patience * 1e9
    ]


def _at_rest(soak: SoakEnvironment) -> list[str]:
    """I11, I14, I22: hosts, zombies, connections, transactions."""
    wrong = []
    hosts = {row[0] for row in soak.rows("SELECT id FROM pgworkers.host")}
    for job, host in soak.rows("SELECT id, host FROM pgworkers.job WHERE state = 'running'"):
        if host not in hosts:
            wrong.append(f"I11 job {job} runs on the gone host {host}")
    for host in soak.hosts:
        wrong += [f"I14 zombie {pid} in the tree of {host.name}" for pid in _zombies(host.master.pid)]
    wrong += _sessions(soak)
    old = soak.rows(
        "SELECT application_name, now() - xact_start, left(query, 60) FROM pg_stat_activity"
        " WHERE application_name LIKE 'pgworkers %%' AND now() - xact_start > %s * interval '1 second'",
        soak.settings.statement_timeout + 1.0,
    )
    wrong += [f"I22 an old transaction: {row}" for row in old]
    return wrong


def _sessions(soak: SoakEnvironment) -> list[str]:
    """Sessions that stay. After a timeout a host opens a new session before the server has closed the old one."""
    most = 4 * len(soak.hosts)
    first = _sessions_now(soak)
    if len(first) <= most:
        return []
    time.sleep(soak.settings.statement_timeout + 1.0)
    both = [row for row in _sessions_now(soak) if row[0] in {pid for pid, *_ in first}]
    return [f"I22 {len(both)} sessions of {len(soak.hosts)} hosts: {both}"] if len(both) > most else []


def _sessions_now(soak: SoakEnvironment) -> list[tuple[Any, ...]]:
    return soak.rows(
        "SELECT pid, application_name, state, (now() - backend_start)::text, left(query, 40) FROM pg_stat_activity"
        " WHERE application_name IN"
        " ('pgworkers claim', 'pgworkers finish', 'pgworkers listen', 'pgworkers leadership')"
    )


def _zombies(pid: int) -> list[int]:
    """Zombies that stay. One that is about to be reaped does not count."""
    first = _zombies_now(pid)
    if not first:
        return []
    time.sleep(2.0)
    return sorted(first & _zombies_now(pid))


def _zombies_now(pid: int) -> set[int]:
    found = set()
    try:
        for child in psutil.Process(pid).children(recursive=True):
            try:
                if child.status() == psutil.STATUS_ZOMBIE:
                    found.add(child.pid)
            except psutil.Error:
                continue
    except psutil.Error:
        pass
    return found
