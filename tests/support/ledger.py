"""Reading the ledger, and the audit that compares it with the tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

#: Seconds. The times in a row are those at which its statement began; what it found may be from its end, a time-out later.
LATE = 1.0
#: Verdicts that give the attempt back: the job was not to blame.
FREE = {"interrupted", "snoozed", "throttled", "lease_lost"}
CRASHES = {"crash", "oom", "exit"}
#: Verdicts that only a handler that has begun can have.
BEGUN = {"error", "timeout"}


@dataclass(frozen=True)
class Entry:
    kind: str
    job: int
    lease: int
    attempt: int
    pid: int
    at: int


def read(path: Path) -> list[Entry]:
    if not path.exists():
        return []
    entries = []
    text = path.read_text()
    # a line that lies over the edge of a page can be seen before its end is there
    for line in text[: text.rfind("\n") + 1].splitlines():
        kind, *numbers = line.split()
        entries.append(Entry(kind, *map(int, numbers)))
    return entries


def most_at_once(ledger: Path, deaths: dict[int, int], jobs: Iterable[int] | None = None) -> int:
    """The largest number of handlers that ran at one moment. What has no end and was not killed runs for ever."""
    wanted = None if jobs is None else set(jobs)
    entries = [entry for entry in read(ledger) if wanted is None or entry.job in wanted]
    ends = {(entry.job, entry.lease): entry.at for entry in entries if entry.kind == "END"}
    moments: list[tuple[int, int]] = []
    for start in (entry for entry in entries if entry.kind == "START"):
        moments.append((start.at, 1))
        end = ends.get((start.job, start.lease), deaths.get(start.pid))
        if end is not None:
            moments.append((max(end, start.at), -1))
    at_once = most = 0
    for _, step in sorted(moments, key=lambda moment: (moment[0], -moment[1])):
        at_once += step
        most = max(most, at_once)
    return most


def audit(
    db: psycopg.Connection[Any],
    path: Path,
    enqueued: Iterable[int],
    *,
    at_rest: bool = True,
    silent: Container[str] = (),
    requeued: Container[int] = (),
    late: float = LATE,
) -> list[str]:
    """Everything that is wrong, as sentences. Empty: all invariants hold.

    `silent`: tasks whose handlers write no ledger. `requeued`: jobs that an operator brought back, with fresh budgets and
    the creation time of their first life. `late`: how long a statement may have waited before it looked.
    """
    seen = _Seen(db, path)
    ids = set(enqueued)
    return [
        *_lost_or_invented(seen, ids, silent),
        *_ended_twice(seen, ids),
        *_executions(seen, ids, silent),
        *_leases(seen, late),
        *_budgets(seen, requeued),
        *_unique(seen, requeued, late),
        *(_left_running(seen) if at_rest else ()),
    ]


class _Seen:
    """The ledger, by job and lease; the tables."""

    def __init__(self, db: psycopg.Connection[Any], path: Path) -> None:
        self.starts: dict[int, list[Entry]] = defaultdict(list)
        self.stops: dict[tuple[int, int], Entry] = {}
        for entry in read(path):
            if entry.kind == "START":
                self.starts[entry.job].append(entry)
            else:
                self.stops[entry.job, entry.lease] = entry
        for runs in self.starts.values():
            runs.sort(key=lambda run: run.lease)
        asking = db.cursor(row_factory=namedtuple_row)
        self.live = {
            row.id: row
            for row in asking.execute(
                "SELECT id, state::text, task, host, lease, attempt, max_attempts, crashes, max_crashes, created_at,"
                " NULL::timestamptz AS finished_at, unique_key FROM pgworkers.job"
            )
        }
        self.finished: dict[int, list[Any]] = defaultdict(list)
        for row in asking.execute(
            "SELECT id, state::text, task, host, lease, attempt, max_attempts, crashes, max_crashes, created_at,"
            " finished_at, unique_key, started_at FROM pgworkers.history"
        ):
            self.finished[row.id].append(row)
        self.attempts: dict[int, list[Any]] = defaultdict(list)
        for row in asking.execute(
            "SELECT job_id, lease, task, verdict, started_at, finished_at FROM pgworkers.attempt ORDER BY lease"
        ):
            self.attempts[row.job_id].append(row)
        self.hosts = {row.id for row in asking.execute("SELECT id FROM pgworkers.host")}

    def rows(self) -> Iterator[Any]:
        yield from self.live.values()
        for rows in self.finished.values():
            yield from rows


def _lost_or_invented(seen: _Seen, ids: set[int], silent: Container[str]) -> Iterator[str]:
    for job in ids:
        if job not in seen.live and job not in seen.finished:
            yield f"I1 job {job} is lost"
    for job in {*seen.starts, *(job for job, _ in seen.stops)} - ids:
        yield f"I2 job {job} ran and was never enqueued"
    for job, rows in seen.finished.items():
        for row in rows:
            if row.state == "succeeded" and job in ids and job not in seen.starts and row.task not in silent:
                yield f"I2 job {job} succeeded and never ran"


def _ended_twice(seen: _Seen, ids: set[int]) -> Iterator[str]:
    for job in ids & seen.finished.keys():
        if job in seen.live:
            yield f"I4 job {job} is live and finished"
        if len(seen.finished[job]) > 1:
            yield f"I4 job {job} ended {len(seen.finished[job])} times"


def _executions(seen: _Seen, ids: set[int], silent: Container[str]) -> Iterator[str]:
    """Every execution has an attempt and every attempt ran; a job whose last execution ended has succeeded."""
    for job, runs in seen.starts.items():
        recorded = {row.lease for row in seen.attempts[job]}
        recorded |= {row.lease for row in seen.finished.get(job, ()) if row.state == "succeeded"}
        for earlier in runs[:-1]:
            if earlier.lease not in recorded:
                yield f"I5 job {job}: lease {earlier.lease} ran and left no attempt"
        for row in seen.finished.get(job, ()):
            if row.state == "succeeded" and (job, row.lease) not in seen.stops:
                yield f"I3 job {job} succeeded under lease {row.lease}, which never ended in the ledger"
            if row.state == "succeeded" and runs[-1].lease != row.lease:
                yield f"I3 job {job} succeeded under lease {row.lease}, but lease {runs[-1].lease} ran after it"
    for job, rows in seen.attempts.items():
        begun = {run.lease for run in seen.starts.get(job, ())}
        for row in rows:
            if job in ids and row.verdict in BEGUN and row.task not in silent and row.lease not in begun:
                yield f"I5 job {job}: lease {row.lease} ended with {row.verdict} and never ran"


def _leases(seen: _Seen, late: float) -> Iterator[str]:
    """Disjoint for the handlers, who wrote the ledger, and for the database, who wrote the rows."""
    for job, runs in seen.starts.items():
        leases = [run.lease for run in runs]
        if len(set(leases)) != len(leases):
            yield f"I6 job {job} ran twice under one lease: {leases}"
        for earlier, later in pairwise(runs):
            ended = seen.stops.get((job, earlier.lease))
            if ended is not None and ended.at > later.at and earlier.lease != later.lease:
                yield f"I6 job {job}: lease {later.lease} started before lease {earlier.lease} ended"
    for job, rows in seen.attempts.items():
        held = [*rows, *(row for row in seen.finished.get(job, ()) if row.state == "succeeded")]
        for before, after in pairwise(held):
            if before.lease == after.lease:
                yield f"I5 job {job}: lease {after.lease} ended twice"
            elif after.started_at and (before.finished_at - after.started_at).total_seconds() > late:
                yield f"I6 job {job}: lease {after.lease} was given before lease {before.lease} was over"


def _budgets(seen: _Seen, requeued: Container[int]) -> Iterator[str]:
    """By what the row says of itself, and by the attempts on record."""
    for row in seen.rows():
        verdicts = [one.verdict for one in seen.attempts.get(row.id, ()) if row.id not in requeued]
        spent = sum(verdict not in FREE for verdict in verdicts) + (row.state == "succeeded")
        crashes = sum(verdict in CRASHES for verdict in verdicts)
        if max(row.attempt, spent) > row.max_attempts:
            yield f"I10 job {row.id}: {max(row.attempt, spent)} attempts, allowed {row.max_attempts}"
        if max(row.crashes, crashes) > row.max_crashes:
            yield f"I10 job {row.id}: {max(row.crashes, crashes)} crashes, allowed {row.max_crashes}"


def _unique(seen: _Seen, requeued: Container[int], late: float) -> Iterator[str]:
    """Of one task and unique key, each was created after the one before had ended."""
    lives: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for row in seen.rows():
        if row.unique_key is not None and row.id not in requeued:
            lives[row.task, row.unique_key].append(row)
    for (task, key), rows in lives.items():
        rows.sort(key=lambda row: row.created_at)
        for before, after in pairwise(rows):
            over = before.finished_at
            if over is None or (over - after.created_at).total_seconds() > late:
                yield f"I8 {task}: the jobs {before.id} and {after.id} lived at once with the unique key {key}"


def _left_running(seen: _Seen) -> Iterator[str]:
    for row in seen.live.values():
        if row.state == "running" and row.host not in seen.hosts:
            yield f"I11 job {row.id} is running on the gone host {row.host}"
