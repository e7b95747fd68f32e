"""SIGTERM at a drawn moment: the load that is drawn with it, what the host did just then, and what it must not do after.

What a host did is not taken from the host itself: the server shows which of its statements was under way (`pg_stat_activity`
keeps begin and end of the last one), the ledger which handlers had begun and ended, the tables when their ends were written.
A statement that the host sent between the signal and our look hides the one before: a phase can be missed, but not invented.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import psycopg
from support.cluster import UNHURRIED, Cluster, Master
from support.ledger import Entry, read

BOOT, IDLE, CLAIMING, HANDLER, FINALISE = "at boot", "idle", "claiming", "in handler", "in finalise"
PHASES = (BOOT, IDLE, CLAIMING, HANDLER, FINALISE)
#: And how often each is drawn. `slow server`: no-ops, and nothing is claimed or written from before the signal on.
LOADS = {"boot": 3, "nothing": 4, "no-ops": 4, "all kinds": 4, "slow server": 4, "stubborn": 1}
QUEUES = "default:2,slow:2"
#: Ignores every stop under its first lease, until the gate is open.
STUBBORN = """
@app.task
def stubborn(ctx: Ctx) -> None:
    note(ctx, "START")
    while ctx.lease == 1 and not os.path.exists(os.environ["PGWORKERS_LEDGER"] + ".open"):
        try:
            time.sleep(0.1)
        except BaseException:
            pass
    note(ctx, "END")
"""
SESSIONS = """
SELECT application_name, state, (extract(epoch FROM query_start) * 1e9)::bigint,
       (extract(epoch FROM state_change) * 1e9)::bigint
  FROM pg_stat_activity
 WHERE datname = current_database() AND application_name IN ('pgworkers claim', 'pgworkers finish')
"""
#: Of the leases that a host has had: claimed and written; of what it gave back unbegun there is no trace.
LEASES = """
SELECT id, lease, verdict, (extract(epoch FROM started_at) * 1e9)::bigint, (extract(epoch FROM finished_at) * 1e9)::bigint
  FROM (SELECT id, lease, verdict, started_at, finished_at, host FROM pgworkers.history WHERE state = 'succeeded'
        UNION ALL SELECT job_id, lease, verdict, started_at, finished_at, host FROM pgworkers.attempt) leases
 WHERE host = %s
"""


@dataclass(frozen=True)
class DrawnMoment:
    """One moment: `begun` handlers have been begun by this host, and `after` seconds have passed since.

    At boot the seconds count from the start of the process, with nothing to do from when it says that it runs."""

    seed: int
    number: int
    load: str
    begun: int
    after: float
    queues: str
    environ: dict[str, str]

    def __str__(self) -> str:
        told = f"FAULT_SEED={self.seed}, moment {self.number}: {self.load}, {self.queues}"
        return f"{told}, SIGTERM {self.after:.3f} s after the start of handler {self.begun}"


def draw(seed: int, number: int) -> DrawnMoment:
    """Always the same for the same numbers."""
    chance = random.Random(f"{seed}/{number}")
    [load] = chance.choices(list(LOADS), list(LOADS.values()))
    environ = dict(UNHURRIED)
    if load == "stubborn" and chance.random() < 0.7:
        environ["PGWORKERS_DRAIN_TIMEOUT"] = "1s"
    elif load == "stubborn":  # the drain is longer than the lease
        environ = {"PGWORKERS_LEASE_DURATION": "5s", "PGWORKERS_DRAIN_TIMEOUT": "6s"}
    queues = QUEUES if load == "boot" or chance.random() < 0.4 else "default:3"
    most, later = {
        "boot": (0, 3.0),
        "nothing": (0, 1.0),
        "no-ops": (250, 0.01),
        "slow server": (150, 0.3),
    }.get(load, (60, 0.1))
    return DrawnMoment(seed, number, load, chance.randint(0, most), chance.uniform(0, later), queues, environ)


def enqueue(cluster: Cluster, drawn: DrawnMoment) -> list[int]:
    """Enqueue what the host has to do when SIGTERM comes. Returns the ids."""
    chance = random.Random(f"load {drawn.seed}/{drawn.number}")
    other = "slow" if drawn.queues == QUEUES else "default"
    match drawn.load:
        case "no-ops" | "slow server":
            return [*cluster.enqueue("work", 200), *cluster.enqueue("work", 200, queue=other)]
        case "all kinds" | "stubborn":
            jobs = cluster.enqueue("stubborn", queue=other) if drawn.load == "stubborn" else []
            for _ in range(10):
                jobs += cluster.enqueue("work", 8)
                jobs += cluster.enqueue("breathe", args={"seconds": chance.uniform(0, 0.03)})
                jobs += cluster.enqueue("work", 2, queue=other, args={"seconds": chance.uniform(0, 0.03)})
            return [
                *jobs,
                *cluster.enqueue("work", 3, queue=other, args={"seconds": chance.uniform(0.1, 0.4)}),
            ]
        case _:
            return []


@dataclass
class ObservedMoment:
    """What is known of one SIGTERM. All times are of the wall clock, nanoseconds."""

    drawn: DrawnMoment
    before: int = 0  # the signal was sent between these
    after: int = 0
    running: bool = False
    statements: set[str] = field(default_factory=set)  # that were under way: claim, finish
    phases: set[str] = field(default_factory=set)


def send_sigterm(cluster: Cluster, master: Master, drawn: DrawnMoment, number: int) -> ObservedMoment:
    """Send the signal, and look at once at what was under way."""
    moment = ObservedMoment(drawn, running=bool(state_change(master, "running")))
    cluster.db.execute("SELECT 1")
    moment.before = time.time_ns()
    master.signal(number)
    moment.after = time.time_ns()
    for who, state, begun, changed in cluster.db.execute(SESSIONS):
        # a session that has asked nothing yet has no begin
        if begun is not None and begun <= moment.before and (state != "idle" or changed >= moment.after):
            moment.statements.add(who.split()[-1])
    return moment


def state_change(master: Master, state: str) -> tuple[int, str] | None:
    """When the host became that (to the millisecond, rounded up) and why."""
    for line in master.log().splitlines():
        record = json.loads(line) if '"HostStateChanged"' in line else None
        if record is not None and record["data"]["state"] == state:
            at = datetime.strptime(record["at"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
            return int(at.timestamp() * 1000 + 1) * 1_000_000, record["data"]["why"]
    return None


def judge(cluster: Cluster, master: Master, moment: ObservedMoment) -> Iterator[str]:
    """Name the phases; say what is wrong. For a host that has gone."""
    if not moment.running:
        moment.phases.add(BOOT)
    told = state_change(master, "running")
    host = told[1].split()[1].rstrip(",") if told else None
    wall = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    ledger: dict[tuple[int, int, str], Entry] = {(e.job, e.lease, e.kind): e for e in read(cluster.ledger)}
    if moment.running:
        moment.phases |= set(_phases(moment, cluster, host, ledger, wall)) or {IDLE}
    draining = state_change(master, "draining")
    if told and not draining:
        yield "it never state_change that it drains"
    for job, lease, verdict, claimed, _ in cluster.db.execute(LEASES, [host]):
        if draining and claimed > draining[0] and (job, lease, "START") in ledger:
            yield f"I12 job {job} was claimed {(claimed - draining[0]) / 1e6:.1f} ms after the drain began, and ran"
        if verdict not in ("succeeded", "interrupted"):
            yield f"job {job}: a drain made it {verdict}"
        if verdict == "interrupted" and moment.drawn.environ == UNHURRIED and not _is_stubborn(cluster, job):
            yield f"job {job} was interrupted and had time"


def _phases(
    moment: ObservedMoment,
    cluster: Cluster,
    host: str | None,
    ledger: dict[tuple[int, int, str], Entry],
    wall: int,
) -> Iterator[str]:
    if "claim" in moment.statements:
        yield CLAIMING
    if "finish" in moment.statements:
        yield FINALISE
    for job, lease, _, _, written in cluster.db.execute(LEASES, [host]):
        begun, ended = ledger.get((job, lease, "START")), ledger.get((job, lease, "END"))
        if begun is None or begun.at + wall > moment.before:
            continue
        if ended is None or ended.at + wall > moment.after:
            yield HANDLER
        elif written > moment.after:
            yield FINALISE


def _is_stubborn(cluster: Cluster, job: int) -> bool:
    return bool(cluster.row(job)["task"] == "stubborn")


@contextmanager
def slow_server(cluster: Cluster, drawn: DrawnMoment) -> Iterator[None]:
    """If that was drawn: statements that change jobs wait, until some time after the signal."""
    if drawn.load != "slow server":
        yield
        return
    with psycopg.connect(cluster.dsn) as conn:
        conn.execute("LOCK TABLE pgworkers.job IN SHARE MODE")
        yield
        time.sleep(random.Random(f"wait {drawn.seed}/{drawn.number}").uniform(0, 0.3))
        conn.rollback()


def left_behind(cluster: Cluster) -> dict[str, Any]:
    """Of a host that has gone there must be nothing in the tables: one host at a time lives here."""
    row = cluster.db.execute(
        "SELECT (SELECT count(*) FROM pgworkers.job WHERE host IS NOT NULL), (SELECT count(*) FROM pgworkers.host)"
    ).fetchone()
    assert row is not None
    found = {"owned rows": row[0], "hosts": row[1]}
    return {what: count for what, count in found.items() if count}
