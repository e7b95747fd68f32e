"""Row 95: every ordered pair of verbs on one job, interleaved: the first holds its transaction open while the second comes.

The oracle is the order itself. When the first commits, what the tables show must be what the two verbs do one after the
other, in one of the two orders; a verb that skips what is locked may have found nothing. When the first rolls back, the
second did what it does alone, or found nothing. No job is lost, no verb waits for ever. Answers must fit too, unless a
verb only returns the state that it saw (a snapshot older than the lock it waited for) and did nothing.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from support.database_host import DatabaseHost, blocked, until

from pgworkers.job import cancel, claim, enqueue, finish, hosts, maintenance, model, queues, requeue
from pgworkers.job.finish import JobFinish, JobRetry, ProgressUpdate
from pgworkers.job.model import JobState, Verdict
from pgworkers.postgres.statements import Query

OWNER, OTHER = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))
#: The claim of job 1 by its owner, as `arrange` made it last.
CLAIMED = [model.Fence(1, 1, 0)]


def _end(state: JobState, verdict: Verdict) -> Query[Any]:
    return finish.finish(OWNER, [JobFinish(**CLAIMED[0]._asdict(), state=state, verdict=verdict)])


def _new(**more: Any) -> Query[Any]:
    return enqueue.enqueue(model.NewJob("t", queue="a", **more))


#: Each on job 1, by the lease 1 of the owner where it needs one.
VERBS: dict[str, Callable[[], Query[Any]]] = {
    "claim": lambda: claim.claim(OTHER, [claim.QueueCapacity("a", 5)], ["t"]),
    "finish": lambda: _end(JobState.SUCCEEDED, Verdict.SUCCEEDED),
    "finish dead": lambda: _end(JobState.DEAD, Verdict.ERROR),
    "retry": lambda: finish.retry(
        OWNER, [JobRetry(**CLAIMED[0]._asdict(), verdict=Verdict.ERROR, delay_seconds=3600.0)]
    ),
    "retry now": lambda: finish.retry(
        OWNER, [JobRetry(**CLAIMED[0]._asdict(), verdict=Verdict.CRASH, delay_seconds=0.0, is_crash=True)]
    ),
    "release": lambda: finish.release(OWNER, CLAIMED),
    "progress": lambda: finish.save_progress(OWNER, [ProgressUpdate(*CLAIMED[0], "1", None)]),
    "renew": lambda: hosts.renew_lease(OWNER, CLAIMED, "running", "[]"),
    "cancel": lambda: cancel.cancel(1),
    "discard many": lambda: cancel.discard_many([1]),  # one and many are the same SQL function
    "requeue": lambda: requeue.requeue([1]),
    "rescue": lambda: maintenance.rescue_jobs(OTHER, 10),
    "promote": lambda: maintenance.promote_due(10),
    "expire": lambda: maintenance.expire_jobs(10),
    "prune": lambda: maintenance.prune_history(3600.0, 0.0, 10),
    "enqueue unique": lambda: _new(unique_key="k"),
    "enqueue after": lambda: _new(after=(1,)),
    "pause": lambda: queues.pause_queue("a"),
}
#: Prunes whatever has ended, so also what the other has just made: no order of the two is what happened.
UNRELATED = {"prune", "enqueue after"}

STATES = ("scheduled", "ready", "expired", "held", "lost", "dead", "succeeded")


EMPTY = f"""
DELETE FROM pgworkers.dependency; DELETE FROM pgworkers.job; DELETE FROM pgworkers.history; DELETE FROM pgworkers.attempt;
DELETE FROM pgworkers.host; ALTER TABLE pgworkers.job ALTER COLUMN id RESTART;
INSERT INTO pgworkers.host (id, name, pid, app, version, queues, lease)
SELECT id::uuid, 'box', 1, 'app.py', '1', '{{a}}', '10 min' FROM (VALUES ('{OWNER}'), ('{OTHER}')) AS v (id);
INSERT INTO pgworkers.queue (name, retention) VALUES ('a', '0')
    ON CONFLICT (name) DO UPDATE SET paused = false, retention = '0'
"""


def arrange(host: DatabaseHost, state: str) -> None:
    """Job 1 in this state, under lease 1 if it ever ran."""
    host.conn.execute(EMPTY)
    when = {"scheduled": {"delay": 0.0001}, "expired": {"expires": 0.0}}.get(state, {})
    host.enqueue(unique_key="k", max_crashes=5, **when)
    if state in ("scheduled", "ready", "expired"):
        return
    [claimed] = host.execute(claim.claim(OWNER, [claim.QueueCapacity("a", 1)], ["t"]))
    assert (claimed.id, claimed.lease) == (1, 1)
    CLAIMED[:] = [claimed.fence]
    if state == "lost":
        host.execute(hosts.remove_host(OWNER))
    elif state == "dead":
        host.execute(_end(JobState.DEAD, Verdict.ERROR))
    elif state == "succeeded":
        host.execute(_end(JobState.SUCCEEDED, Verdict.SUCCEEDED))


def number(job: int | None) -> int | None:
    """A second job is 2, whatever a rolled back transaction took from the sequence."""
    return job if job is None else min(job, 2)


def world(host: DatabaseHost) -> Any:
    """Everything that matters, without times."""
    return [
        tuple(
            number(value) if n in (0, 1) and isinstance(value, int) else value for n, value in enumerate(row)
        )
        for row in host.conn.execute(
            "SELECT id, 0, 'live', state::text, lease, attempt, crashes, host::text, cancel_at IS NOT NULL, progress::text"
            " FROM pgworkers.job UNION ALL"
            " SELECT id, 0, 'ended', state::text, lease, attempt, crashes, verdict, NULL, NULL FROM pgworkers.history"
            " UNION ALL SELECT job_id, 0, 'attempt', verdict, lease, 0, 0, NULL, NULL, NULL FROM pgworkers.attempt"
            " UNION ALL SELECT parent_id, job_id, 'edge', NULL, 0, 0, 0, NULL, NULL, NULL FROM pgworkers.dependency"
            " UNION ALL SELECT 0, 0, 'queue', CASE WHEN paused THEN 'paused' END, 0, 0, 0, NULL, NULL, NULL"
            " FROM pgworkers.queue"
            " ORDER BY 3, 1, 5"
        ).fetchall()
    ]


def answer(host: DatabaseHost, verb: str, skipped: threading.Event | None = None) -> Any:
    """What it says, without times; an error by its name. A host's write of a row that is locked is sent again, as hosts do:
    `skipped` says that it was."""
    try:
        if verb == "requeue":
            return requeue.requeue_until_settled(host.execute, [1])[1]  # as the command asks
        said = host.execute(VERBS[verb]())
        while skipped is not None and _locked(host, verb, said):
            skipped.set()
            time.sleep(0.005)
            said = host.execute(VERBS[verb]())
    except psycopg.Error as error:
        return type(error).__name__
    match verb:
        case "prune":
            return said.changed_rows
        case "claim":
            return [(job.id, job.lease) for job in said]
        case "promote":
            return said.count
        case "enqueue unique" | "enqueue after":
            return number(said.id), said.is_new
        case "renew":
            return (
                said.is_known,
                said.is_alone,
                len(said.cancel_requests),
                len(said.lost_leases),
            )  # not when it was
        case "progress":
            return said.saved_count
        case _:
            return next(iter(said.values()), "written") if isinstance(said, dict) else said


def _locked(host: DatabaseHost, verb: str, said: Any) -> bool:
    """True if the row was skipped because another session holds its lock."""
    if verb in ("release", "progress"):
        return bool(said.locked_fences)
    return verb.startswith(("finish", "retry")) and bool(said) and _is_held(host)


def _is_held(host: DatabaseHost) -> bool:
    return CLAIMED[0] in host.execute(hosts.jobs_of_host(OWNER, 0.0)).fences


class VerbPairs:
    def __init__(self, one: DatabaseHost, two: DatabaseHost, watcher: psycopg.Connection[Any]) -> None:
        self.one, self.two, self.watcher = one, two, watcher
        self.pool = ThreadPoolExecutor(1)
        self.waited = 0
        self._alone: dict[tuple[str, ...], tuple[list[Any], Any]] = {}

    def serial(self, state: str, *verbs: str) -> tuple[list[Any], Any]:
        """One after the other: the answers, and the tables."""
        if (state, *verbs) not in self._alone:
            arrange(self.one, state)
            self._alone[(state, *verbs)] = ([answer(self.one, verb) for verb in verbs], world(self.one))
        return self._alone[(state, *verbs)]

    def interleaved(self, state: str, first: str, second: str, *, commit: bool) -> tuple[list[Any], Any]:
        arrange(self.one, state)
        self.one.conn.execute("BEGIN")
        said = answer(self.one, first)
        skipped = threading.Event()
        later = self.pool.submit(answer, self.two, second, skipped)
        until(lambda: later.done() or skipped.is_set() or blocked(self.watcher, self.two.conn))
        self.waited += not later.done()
        self.one.conn.execute("COMMIT" if commit else "ROLLBACK")
        return [said, later.result(timeout=60)], world(self.one)

    def wrong(self, state: str, first: str, second: str, *, commit: bool) -> list[str]:
        said, found = self.interleaved(state, first, second, commit=commit)
        allowed = []
        for verbs in ((first, second), (second, first)) if commit else ((second,),):
            answers, result = self.serial(state, *verbs)
            mine = answers[verbs.index(second)] if first != second else answers[-1]
            if result == found and fits(mine, said[1]):
                return []
            allowed.append((mine, result))
        answers, result = self.serial(state, first) if commit else self.serial(state)
        if result == found and did_nothing(said[1]) and true_of(said[1], found):
            return []
        how = "" if commit else " (rolled back)"
        return [f"{state}: {first}{how} | {second}: {said[1]} {found}; allowed {allowed}"]


def did_nothing(said: Any) -> bool:
    """True if the answer is empty, a refusal, or only the state that the verb saw."""
    return said in ([], 0, "lost") or (isinstance(said, str) and said in TOLD)


def true_of(said: Any, found: Any) -> bool:
    """A verb that only returned the state of the job returned the present one, not the one before the other verb."""
    if said not in STATES_TOLD:
        return True
    return said in {state for id, _, kind, state, *_ in found if id == 1 and kind in ("live", "ended")}


#: What an operator's verb says when it did nothing.
STATES_TOLD = ("scheduled", "ready", "running", "succeeded", "dead", "cancelled")
TOLD = (*STATES_TOLD, "missing", "conflict")


def fits(expected: Any, said: Any) -> bool:
    return bool(expected == said)


def changes(pairs: VerbPairs, state: str, verb: str) -> bool:
    """Does the verb do anything to a job in this state? Who does nothing holds nothing."""
    return bool(pairs.serial(state)[1] != pairs.serial(state, verb)[1])


@pytest.fixture
def pairs(
    host: DatabaseHost, other: DatabaseHost, session: Callable[[], psycopg.Connection[Any]]
) -> VerbPairs:
    return VerbPairs(host, other, session())


def run(pairs: VerbPairs, state: str, *, commit: bool) -> None:
    firsts = [verb for verb in VERBS if changes(pairs, state, verb)]
    assert firsts
    wrong = [
        text
        for one in firsts
        for two in VERBS
        if {one, two} != UNRELATED
        for text in pairs.wrong(state, one, two, commit=commit)
    ]
    assert wrong == []
    assert pairs.waited, "nobody ever waited for anybody: nothing was interleaved"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("state", STATES)
def test_row_95_every_ordered_pair_is_one_of_its_two_orders(pairs: VerbPairs, state: str) -> None:
    run(pairs, state, commit=True)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("state", STATES)
def test_row_95_a_verb_that_is_rolled_back_was_never_there(pairs: VerbPairs, state: str) -> None:
    run(pairs, state, commit=False)


#: A duty, and a state in which it has something to do.
DUTIES = {"claim": "ready", "rescue": "lost", "promote": "scheduled", "expire": "expired", "prune": "dead"}


@pytest.mark.parametrize("verb", DUTIES)
def test_duties_skip_locked_rows(host: DatabaseHost, other: DatabaseHost, verb: str) -> None:
    """Locked rows are skipped and left for the next run, whichever session holds the lock and for however long."""
    arrange(host, DUTIES[verb])
    other.conn.execute("SET statement_timeout = '30s'")
    with host.conn.transaction():
        host.conn.execute("SELECT FROM pgworkers.job FOR UPDATE")
        host.conn.execute("SELECT FROM pgworkers.history FOR UPDATE")
        assert did_nothing(answer(other, verb)), "it waited, or did not see the lock"
    assert not did_nothing(answer(other, verb)), "now there is something to do"
