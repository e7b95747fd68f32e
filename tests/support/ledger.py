"""Reading the ledger, and the audit that compares it with the tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg


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
    db: psycopg.Connection[Any], path: Path, enqueued: Iterable[int], *, at_rest: bool = True
) -> list[str]:
    """Everything that is wrong, as sentences. Empty: all invariants hold."""
    wrong: list[str] = []
    ids = set(enqueued)
    entries = read(path)
    live = {r[0]: r[1:] for r in db.execute("SELECT id, state::text, host, lease FROM pgworkers.job")}
    finished: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for row in db.execute(
        "SELECT id, state::text, verdict, lease, attempt, crashes, max_crashes FROM pgworkers.history"
    ):
        finished[row[0]].append(row[1:])
    attempts: dict[int, dict[int, str]] = defaultdict(dict)
    for job, lease, verdict in db.execute("SELECT job_id, lease, verdict FROM pgworkers.attempt"):
        if lease in attempts[job]:
            wrong.append(f"I5 job {job}: two attempt rows for lease {lease}")
        attempts[job][lease] = verdict
    for job in ids:
        if job not in live and job not in finished:
            wrong.append(f"I1 job {job} is lost")
        if job in live and job in finished:
            wrong.append(f"I4 job {job} is live and finished")
        if len(finished[job]) > 1:
            wrong.append(f"I4 job {job} ended {len(finished[job])} times")
    starts: dict[int, list[Entry]] = defaultdict(list)
    stops: dict[tuple[int, int], Entry] = {}
    for entry in entries:
        if entry.job not in ids:
            wrong.append(f"I2 job {entry.job} ran and was never enqueued")
        if entry.kind == "START":
            starts[entry.job].append(entry)
        else:
            stops[entry.job, entry.lease] = entry
    for job, runs in starts.items():
        leases = [run.lease for run in runs]
        if len(set(leases)) != len(leases):
            wrong.append(f"I6 job {job} ran twice under one lease: {leases}")
        runs.sort(key=lambda run: run.lease)
        for earlier, later in pairwise(runs):
            ended = stops.get((job, earlier.lease))
            if ended is not None and ended.at > later.at:
                wrong.append(f"I6 job {job}: lease {later.lease} started before lease {earlier.lease} ended")
            if earlier.lease not in attempts[job]:
                wrong.append(f"I5 job {job}: lease {earlier.lease} ran and left no attempt")
        for state, _verdict, lease, *_ in finished[job]:
            if state == "succeeded" and (job, lease) not in stops:
                wrong.append(f"I3 job {job} succeeded under lease {lease}, which never ended in the ledger")
            if state == "succeeded" and runs[-1].lease != lease:
                wrong.append(
                    f"I3 job {job} succeeded under lease {lease}, but lease {runs[-1].lease} ran after it"
                )
    for job, rows in finished.items():
        for state, _verdict, _lease, _attempt, crashes, max_crashes in rows:
            if state == "succeeded" and job in ids and job not in starts:
                wrong.append(f"I2 job {job} succeeded and never ran")
            if crashes > max_crashes:
                wrong.append(f"I10 job {job}: {crashes} crashes, allowed {max_crashes}")
    unique = db.execute(
        "SELECT task, unique_key FROM pgworkers.job WHERE unique_key IS NOT NULL GROUP BY 1, 2 HAVING count(*) > 1"
    ).fetchall()
    wrong += [f"I8 {task}: two live jobs with the unique key {key}" for task, key in unique]
    hosts = {r[0] for r in db.execute("SELECT id FROM pgworkers.host")}
    if at_rest:
        wrong += [
            f"I11 job {job} is running on the gone host {host}"
            for job, (state, host, _) in live.items()
            if state == "running" and host not in hosts
        ]
    return wrong
