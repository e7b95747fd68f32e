"""Compare the ledger, the tables, the answers that the enqueuer got and the injected faults."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any

from support.ledger import Entry, audit
from support.time_bounds import BUSY

from chaos.environment import SoakEnvironment
from chaos.load import EXCLUSIVE, EXPECTED_STATES, RETURNING_LEASE, UNKNOWN, WRITING_END, Load
from chaos.nemesis import Nemesis
from pgworkers.settings import Settings

EXPLAINED = {"host_lost", "lease_lost"}
#: Seconds that an enqueue of the load may wait for a lock. The job that it returns may be older than the enqueue.
ENQUEUER = Settings().statement_timeout
#: Kinds after which jobs run elsewhere while their host goes on; and how many of them make a run in which that must be seen.
HOST_LOSING_KINDS = ("network.hole", "master.freeze", "leader.freeze")
MIN_LOSING_FAULTS = 40
#: Of the task `limited`, see chaos/app.py.
TASK_SLOTS, KEY_SLOTS = 3, 2


@dataclass
class Judgement:
    wrong: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


def judge(soak: SoakEnvironment, load: Load, nemesis: Nemesis, least: int) -> Judgement:
    """All hosts have left; the server runs. `least`: how often each kind must have hit."""
    found = Judgement()
    entries = soak.entries()
    tables = _Tables(soak)
    ids = _enqueued(soak, load, tables, found)
    found.wrong += [
        text
        for text in soak.asking(
            lambda conn: audit(conn, soak.ledger, ids, requeued=soak.requeued, late=ENQUEUER)
        )
        if not _overlap(text)
    ]
    _overlaps(soak, entries, tables, found)
    _ends(soak, load, tables, found)
    _poison(soak, found)
    _deadlines(soak, found)
    _cancels(soak, entries, found)
    _limits(soak, entries, tables, found)
    _unknown(entries, tables, found)
    _idempotency_keys(load, tables, found)
    _batches(soak, load, entries, found)
    _ticks(soak, found)
    _vacuity(nemesis, entries, load, least, found)
    _figures(entries, tables, load, nemesis, found)
    return found


class _Tables:
    def __init__(self, soak: SoakEnvironment) -> None:
        self.live = {
            row[0]: row for row in soak.rows("SELECT id, task, meta->>'t', state::text FROM pgworkers.job")
        }
        self.ended = {
            row[0]: row
            for row in soak.rows(
                "SELECT id, task, meta->>'t', state::text, verdict, lease, errors, result"
                " FROM pgworkers.history"
            )
        }
        self.attempts = {
            (job, lease): verdict
            for job, lease, verdict in soak.rows("SELECT job_id, lease, verdict FROM pgworkers.attempt")
        }


def _enqueued(soak: SoakEnvironment, load: Load, tables: _Tables, found: Judgement) -> set[int]:
    """I1 and I2 by token: every acknowledged job exists, and every job was enqueued, once."""
    answers = load.answers
    by_token: dict[str, list[int]] = defaultdict(list)
    ticked = {row[0] for row in soak.rows("SELECT job_id FROM pgworkers.tick WHERE job_id IS NOT NULL")}
    for job, task, token, *_ in (*tables.live.values(), *tables.ended.values()):
        if token is not None:
            by_token[token].append(job)
        elif job not in ticked:
            found.wrong.append(f"I2 job {job} ({task}) was never enqueued")
    for token, jobs in by_token.items():
        if len(jobs) > 1:
            found.wrong.append(f"I2 one enqueue ({token}) made the jobs {jobs}")
        if token not in answers.acknowledged and token not in answers.unknown:
            found.wrong.append(f"I2 job {jobs[0]} has a token that was never sent: {token}")
    for token, job in answers.acknowledged.items():
        if job not in tables.live and job not in tables.ended:
            found.wrong.append(f"I1 job {job} ({token}) was acknowledged and is lost")
    found.figures["enqueues of unknown outcome"] = sum("." not in token for token in answers.unknown)
    return ticked | {jobs[0] for jobs in by_token.values()} | set(answers.acknowledged.values())


def _overlap(text: str) -> bool:
    return text.startswith("I6") and "started before" in text


def _overlaps(soak: SoakEnvironment, entries: list[Entry], tables: _Tables, found: Judgement) -> None:
    """I6: executions under two leases overlap only if the host of the earlier was lost; never of an exclusive task."""
    ends = soak.executions.ends(entries)
    wrote = {(one.job, one.lease): one.kind for one in entries if one.kind != "START"}
    runs: dict[int, list[Entry]] = defaultdict(list)
    for one in entries:
        if one.kind == "START":
            runs[one.job].append(one)
    overlaps = stood = fenced = 0
    for job, starts in runs.items():
        task = (tables.ended.get(job) or tables.live.get(job) or (0, ""))[1]
        for earlier, later in pairwise(sorted(starts, key=lambda one: one.lease)):
            run = (job, earlier.lease)
            ended = ends.get(run, 0) if run in wrote or task in WRITING_END else 0
            verdict = tables.attempts.get(run)
            if ended <= later.at:
                fenced += task in EXCLUSIVE and verdict in EXPLAINED and wrote.get(run) == "LEFT"
                continue
            overlaps += 1
            if verdict not in EXPLAINED:
                found.wrong.append(
                    f"I6 job {job}: leases {earlier.lease} ({verdict}) and {later.lease} ran at once"
                )
            if task in EXCLUSIVE and earlier.pid in soak.frozen:
                stood += 1
            elif task in EXCLUSIVE:
                found.wrong.append(
                    f"P3 job {job} is exclusive, and leases {earlier.lease} and {later.lease} ran at once"
                )
    found.figures["overlaps after a lost host"] = overlaps
    found.figures["of exclusive jobs that were frozen with their host"] = stood
    found.figures["exclusive jobs stopped by the fence"] = fenced


def _ends(soak: SoakEnvironment, load: Load, tables: _Tables, found: Judgement) -> None:
    """Every job ended as its task must, unless it was cancelled."""
    for job, task, _token, state, *_ in tables.live.values():
        if task not in ("beat", UNKNOWN):
            found.wrong.append(f"I16 job {job} ({task}) is {state} at the end")
    for job, task, _token, state, verdict, lease, errors, result in tables.ended.values():
        fine = EXPECTED_STATES.get(task)
        if state == "succeeded" and task in RETURNING_LEASE and result != lease:
            found.wrong.append(
                f"I3 job {job} ({task}) succeeded under lease {lease} by the end of lease {result}"
            )
        if state == "cancelled" and job in soak.cancelled_maybe:
            continue
        if fine is not None and state not in fine:
            found.wrong.append(f"job {job} ({task}) is {state} ({verdict}): {errors[-1:]}")


def _poison(soak: SoakEnvironment, found: Judgement) -> None:
    """P6: a job that always kills its worker is dead after exactly `max_crashes` crashes."""
    poisoned = 0
    for job, state, crashes, allowed, always in soak.rows(
        "SELECT id, state::text, crashes, max_crashes, NOT args ? 'times' FROM pgworkers.history WHERE task = 'die'"
    ):
        poisoned += always
        if (always or state == "dead") and (state, crashes) != ("dead", allowed):
            found.wrong.append(f"P6 job {job} is {state} after {crashes} crashes, allowed {allowed}")
        elif state not in ("succeeded", "dead"):
            found.wrong.append(f"P6 job {job} (die) is {state}, and was not cancelled")
    found.figures["poison"] = poisoned


def _deadlines(soak: SoakEnvironment, found: Judgement) -> None:
    """I19 and P7: `stuck` ignores every stop, and is killed within the graces and a second after its timeout of 1 s."""
    s = soak.settings
    limit = 1.0 + s.ask_grace + s.raise_grace + 1.0 + BUSY
    longest = 0.0
    for job, lease, duration in soak.rows(
        "SELECT job_id, lease, duration FROM pgworkers.attempt WHERE task = 'stuck' AND verdict = 'timeout'"
    ):
        longest = max(longest, duration)
        if duration > limit:
            found.wrong.append(f"I19 job {job} (stuck), lease {lease}: {duration:.1f} s, bound {limit} s")
    if not longest:
        found.wrong.append("vacuous: no job met its deadline")
    found.figures["longest that a stuck job ran"] = f"{longest:.1f} s"


def _cancels(soak: SoakEnvironment, entries: list[Entry], found: Judgement) -> None:
    """I18: nothing starts after an acknowledged cancel, unless an operator requeued it."""
    for one in entries:
        if one.kind != "START" or one.job not in soak.cancelled or one.job in soak.requeued:
            continue
        answer, at, lease = soak.cancelled[one.job]
        if one.lease > lease or (answer == "cancelled" and one.at > at):
            found.wrong.append(
                f"I18 job {one.job} was cancelled ({answer}, lease {lease}) and began under {one.lease}"
            )
    found.figures["cancels acknowledged"] = len(soak.cancelled)


def _limits(soak: SoakEnvironment, entries: list[Entry], tables: _Tables, found: Judgement) -> None:
    """I7: jobs of the task `limited`, and of each of its keys, never take more slots than allowed.

    Executions whose host was lost are left out: their slot is free when their lease has expired.
    """
    ends = soak.executions.ends(entries)
    keys = dict(soak.rows("SELECT id, concurrency_key FROM pgworkers.history WHERE task = 'limited'"))
    moments: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for one in entries:
        run = (one.job, one.lease)
        if (
            one.kind != "START"
            or one.job not in keys
            or run not in ends
            or tables.attempts.get(run) in EXPLAINED
        ):
            continue
        for limit in ("task", f"key {keys[one.job]}"):
            moments[limit] += [(one.at, 1), (ends[run], -1)]
    for limit, changes in moments.items():
        running = most = 0
        for _, change in sorted(changes):
            running += change
            most = max(most, running)
        slots = TASK_SLOTS if limit == "task" else KEY_SLOTS
        if most > slots:
            found.wrong.append(f"I7 {most} jobs of the {limit} ran at once, allowed {slots}")
        if limit == "task":
            found.figures["most limited jobs at once"] = f"{most} of {slots}"
    if not moments:
        found.wrong.append("vacuous: no limited job ran")


def _unknown(entries: list[Entry], tables: _Tables, found: Judgement) -> None:
    """Jobs of a task that no host has stay ready and untouched."""
    jobs = {job: row[3] for job, row in (tables.live | tables.ended).items() if row[1] == UNKNOWN}
    found.wrong += [
        f"job {job} of an unknown task is {state}" for job, state in jobs.items() if state != "ready"
    ]
    found.wrong += [f"job {one.job} of an unknown task ran" for one in entries if one.job in jobs]
    if not jobs:
        found.wrong.append("vacuous: no job of an unknown task")


def _idempotency_keys(load: Load, tables: _Tables, found: Judgement) -> None:
    """All enqueues with one idempotency key made one job, and all answers name it."""
    made = {row[2]: job for job, row in (tables.live | tables.ended).items()}
    for key, tokens in load.answers.idempotent.items():
        jobs = {made[token] for token in tokens if token in made}
        jobs |= {load.answers.acknowledged[token] for token in tokens if token in load.answers.acknowledged}
        if len(jobs) > 1:
            found.wrong.append(f"I8 the idempotency key {key} has the jobs {sorted(jobs)}")
    if not any(len(tokens) > 1 for tokens in load.answers.idempotent.values()):
        found.wrong.append("vacuous: no idempotency key was used twice")


def _batches(soak: SoakEnvironment, load: Load, entries: list[Entry], found: Judgement) -> None:
    """The job that follows a batch begins after the last job of the batch has ended."""
    first_start: dict[int, int] = {}
    for one in entries:
        if one.kind == "START":
            first_start.setdefault(one.job, one.at)
    members: dict[int, list[int]] = defaultdict(list)
    for job, batch in soak.rows("SELECT id, batch_id FROM pgworkers.history WHERE batch_id IS NOT NULL"):
        members[batch].append(job)
    for batch, then, total, finished in soak.rows(
        "SELECT id, then_id, total, finished_at FROM pgworkers.batch"
    ):
        if finished is None:
            found.wrong.append(f"batch {batch} never finished")
        if len(members[batch]) != total:
            found.wrong.append(f"batch {batch} has {len(members[batch])} ended jobs of {total}")
        late = [job for job in members[batch] if first_start.get(job, 0) > first_start.get(then, 1 << 62)]
        if late:
            found.wrong.append(f"batch {batch}: {late} began after the job that follows the batch")
    found.figures["batches"] = len(load.answers.batches)


def _ticks(soak: SoakEnvironment, found: Judgement) -> None:
    """I9: each second one job."""
    ticks = soak.rows("SELECT at, job_id FROM pgworkers.tick WHERE schedule = 'beat' ORDER BY at")
    for (before, _), (after, _) in pairwise(ticks):
        if after - before != timedelta(seconds=1):
            found.wrong.append(f"I9 no tick between {before:%H:%M:%S} and {after:%H:%M:%S}")
    found.wrong += [f"I9 the tick {at:%H:%M:%S} made no job" for at, job in ticks if job is None]
    if not ticks:
        found.wrong.append("I9 the schedule never ticked")
    found.figures["ticks"] = len(ticks)


def _vacuity(nemesis: Nemesis, entries: list[Entry], load: Load, least: int, found: Judgement) -> None:
    """A green run that tried nothing is red."""
    hits = nemesis.hits()
    found.wrong += [
        f"vacuous: {name} hit {hits[name]} times, {least} wanted" for name in nemesis.missing(least)
    ]
    if nemesis.without:
        found.figures["not tried"] = ", ".join(f"{name} ({why})" for name, why in nemesis.without.items())
    found.wrong += [f"the enqueuer: {text}" for text in load.answers.errors if text.startswith("UsageError")]
    found.wrong += [f"the fault {one.kind} broke: {one.error}" for one in nemesis.injected if one.error]
    found.wrong += [f"{one.kind}: {one.hit}" for one in nemesis.injected if one.hit and "WRONG" in one.hit]
    killed = sum(
        "job" in (one.hit or "") for one in nemesis.injected if one.kind in ("worker.kill", "worker.segv")
    )
    if not killed:
        found.wrong.append("vacuous: no kill hit a running job")
    if sum(one.kind == "START" for one in entries) < 100:
        found.wrong.append("vacuous: fewer than 100 executions")
    if not load.answers.batches or not load.answers.acknowledged:
        found.wrong.append("vacuous: no batch, or no job")
    if sum(hits[name] for name in HOST_LOSING_KINDS) >= MIN_LOSING_FAULTS:
        for figure in ("overlaps after a lost host", "exclusive jobs stopped by the fence"):
            if not found.figures[figure]:
                found.wrong.append(f"vacuous: no {figure}")
    found.figures["kills of running jobs"] = killed


def _figures(entries: list[Entry], tables: _Tables, load: Load, nemesis: Nemesis, found: Judgement) -> None:
    states = Counter(row[3] for row in tables.ended.values())
    hits = nemesis.hits()
    starts = Counter(one.job for one in entries if one.kind == "START")
    succeeded = {job: row[5] for job, row in tables.ended.items() if row[3] == "succeeded"}
    repeated = sum(
        one.kind == "START" and one.job in succeeded and one.lease > succeeded[one.job] for one in entries
    )
    moments = sorted(one.at for one in entries if one.kind == "END")
    stall = max((b - a for a, b in pairwise(moments)), default=0) / 1e9
    found.figures |= {
        "jobs": len(tables.ended) + len(tables.live),
        "states": dict(states),
        "executions": sum(starts.values()),
        "jobs executed more than once": sum(count > 1 for count in starts.values()),
        "repeated after success": repeated,
        "lost": sum(text.startswith("I1 ") for text in found.wrong),
        "orphans": sum(text.startswith("I13") for text in found.wrong),
        "faults": sum(hits.values()),
        "kinds of fault": len(hits),
        "longest stall (no job ended)": f"{stall:.1f} s",
        "attempts by verdict": dict(Counter(tables.attempts.values())),
        "errors of enqueues": dict(load.answers.errors),
        "kinds of jobs": dict(load.answers.kinds),
        "hits": dict(sorted(hits.items())),
    }
