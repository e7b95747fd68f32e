"""Random sequences of verbs, with leases that are held and leases that are stale, against a model and one real Postgres."""

from __future__ import annotations

import os
import time
import uuid
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.database_host import DatabaseHost
from support.model import Job, Model

from pgworkers.job import cancel, claim, enqueue, finish, hosts, maintenance, model, requeue
from pgworkers.job.finish import JobFinish, JobRetry, ProgressUpdate
from pgworkers.job.model import JobState, Verdict

#: Derandomized: the same examples in every run of the suite. scripts/faults model searches on.
SUITE = settings(
    max_examples=30,
    stateful_step_count=30,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
EMPTY = "DELETE FROM pgworkers.{}"
TABLES = ("dependency", "job", "history", "attempt", "host")
SEEN = """
SELECT id, state::text, lease, attempt, crashes, unique_key, host::text, cancel_at IS NOT NULL, NULL FROM pgworkers.job
UNION ALL
SELECT id, state::text, lease, attempt, crashes, unique_key, NULL, false, verdict FROM pgworkers.history
"""
ENDS = {
    "succeeded": (JobState.SUCCEEDED, Verdict.SUCCEEDED, False),
    "dead": (JobState.DEAD, Verdict.ERROR, False),
    "crashed": (JobState.DEAD, Verdict.CRASH, True),
    "cancelled": (JobState.CANCELLED, Verdict.CANCELLED, False),
}
AGAINS = {
    "error": (Verdict.ERROR, False, False),
    "crash": (Verdict.CRASH, False, True),
    "interrupted": (Verdict.INTERRUPTED, True, False),
}
DELAYS = {"now": 0.0, "soon": 0.001, "later": 3600.0}


class Machine(RuleBasedStateMachine):
    """Two hosts and an operator. `keys` are all leases that ever were: most of them are stale."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        super().__init__()
        self.host = DatabaseHost(conn, "pgworkers")
        for table in TABLES:
            conn.execute(EMPTY.format(table))
        conn.execute(
            "INSERT INTO pgworkers.task (name, queue, priority, max_attempts, max_crashes, lost_delay)"
            " VALUES ('t', 'a', 0, 3, 2, 3600) ON CONFLICT DO NOTHING"
        )
        self.model = Model()
        self.hosts = [self._new_host(), self._new_host()]
        self.keys: list[tuple[int, int, str]] = []
        self.moments: dict[tuple[int, int], int] = {}  # when each lease was claimed

    def _new_host(self) -> str:
        made = str(uuid.uuid4())
        self.host.execute(hosts.register_host(made, "box", 1, "", "app.py", "1", ["a"], [], 600.0))
        self.model.hosts.add(made)
        return made

    def _id(self, pick: int) -> int:
        ids = sorted(self.model.jobs)
        return ids[-1 - pick % len(ids)] if ids else 0  # the newest first

    def _key(self, pick: int) -> tuple[int, int, str]:
        """A lease and who writes by it: its owner, or from 8 on another host (a lost commit gives a number again)."""
        id, lease, owner = self.keys[-1 - pick % len(self.keys)]
        return id, lease, owner if pick < 8 else next(one for one in self.hosts if one != owner)

    def _fence(self, id: int, lease: int) -> model.Fence:
        return model.Fence(id, lease, self.moments[id, lease])

    # -- the world ----------------------------------------------------------------------------------------------------

    @rule(
        unique=st.sampled_from([None, None, "x", "y"]),
        when=st.sampled_from(["now", "now", "soon", "later"]),
        expires=st.sampled_from([None, None, None, 0.0, 3600.0]),
        after=st.lists(st.integers(0, 5), max_size=2),
        on_failed=st.sampled_from(["cancel", "run", "wait"]),
        priority=st.integers(0, 1),
    )
    def enqueue(
        self,
        unique: str | None,
        when: str,
        expires: float | None,
        after: list[int],
        on_failed: Any,
        priority: int,
    ) -> None:
        ids = sorted(self.model.jobs)
        parents = sorted({ids[-1 - n % len(ids)] for n in after}) if ids else []
        if parents:
            when = "now"
        new = model.NewJob(
            "t",
            queue="a",
            priority=priority,
            delay=None if when == "now" else DELAYS[when],
            unique_key=unique,
            max_attempts=3,
            max_crashes=2,
            expires=expires,
            after=tuple(parents),
            on_failed=on_failed,
        )
        answer = self.host.execute(enqueue.enqueue(new))
        holder = self.model.live_with(unique)
        if holder is not None:
            assert (answer.id, answer.is_new) == (holder.id, False)
            return
        assert answer.is_new
        state = "ready" if when == "now" else "scheduled"
        expired = expires == 0.0 and when != "later"
        job = Job(answer.id, state, priority, unique, when, expired)
        self.model.enqueue(job, parents, on_failed)

    @rule()
    def link(self) -> None:
        """What the leader does at some moment after an enqueue with `after`."""
        self.host.execute(maintenance.link_dependencies(100))
        self.model.link()

    @rule(who=st.integers(0, 1), count=st.integers(1, 3))
    def claim(self, who: int, count: int) -> None:
        expected = self.model.claimable(count)
        claimed = self.host.execute(claim.claim(self.hosts[who], [claim.QueueCapacity("a", count)], ["t"]))
        assert [c.id for c in claimed] == [j.id for j in expected]
        for got, job in zip(claimed, expected, strict=True):
            self.model.claim(job, self.hosts[who])
            assert (got.lease, got.attempt) == (job.lease, job.attempt)
            self.keys.append((job.id, job.lease, self.hosts[who]))
            self.moments[job.id, job.lease] = got.claimed_at_us

    @precondition(lambda self: self.keys)
    @rule(pick=st.integers(0, 9), how=st.sampled_from(sorted(ENDS)))
    def finish(self, pick: int, how: str) -> None:
        id, lease, owner = self._key(pick)
        state, verdict, crash = ENDS[how]
        end = JobFinish(**self._fence(id, lease)._asdict(), state=state, verdict=verdict, is_crash=crash)
        answer = self.host.finish([end], owner)[end.fence]
        assert answer == self.model.finish(id, lease, owner, str(state), str(verdict), crash)

    @precondition(lambda self: self.keys)
    @rule(pick=st.integers(0, 9), how=st.sampled_from(sorted(AGAINS)), when=st.sampled_from(sorted(DELAYS)))
    def retry(self, pick: int, how: str, when: str) -> None:
        id, lease, owner = self._key(pick)
        verdict, free, crash = AGAINS[how]
        again = JobRetry(
            **self._fence(id, lease)._asdict(),
            verdict=verdict,
            delay_seconds=DELAYS[when],
            is_free=free,
            is_crash=crash,
        )
        answer = self.host.retry([again], owner)[again.fence]
        assert answer == self.model.retry(id, lease, owner, str(verdict), when, free, crash)

    @precondition(lambda self: self.keys)
    @rule(pick=st.integers(0, 9))
    def release(self, pick: int) -> None:
        id, lease, owner = self._key(pick)
        released = self.host.execute(finish.release(owner, [self._fence(id, lease)]))
        assert released.released_count == self.model.release(id, lease, owner)

    @precondition(lambda self: self.keys)
    @rule(pick=st.integers(0, 9))
    def progress(self, pick: int) -> None:
        id, lease, owner = self._key(pick)
        saved = self.host.execute(
            finish.save_progress(owner, [ProgressUpdate(*self._fence(id, lease), "1", '{"n": 1}')])
        )
        assert bool(saved) == (self.model.held(id, lease, owner) is not None)

    @rule(who=st.integers(0, 1))
    def renew(self, who: int) -> None:
        own = [
            self._fence(id, lease) for id, lease, _ in self.keys
        ]  # also those of others: to this host they are lost
        renewed = self.host.execute(hosts.renew_lease(self.hosts[who], own, "running", "[]"))
        assert renewed.is_known
        held = {
            key: job
            for key in own
            if (job := self.model.held(key.id, key.lease, self.hosts[who])) is not None
        }
        assert set(renewed.lost_leases) == set(own) - set(held)
        assert set(renewed.cancel_requests) == {key for key, job in held.items() if job.wished}
        mine_now = {
            self._fence(j.id, j.lease)
            for j in self.model.jobs.values()
            if j.host == self.hosts[who] and j.state == "running"
        }
        assert set(self.host.execute(hosts.jobs_of_host(self.hosts[who], 0.0)).fences) == mine_now

    @rule(pick=st.integers(0, 9))
    def cancel(self, pick: int) -> None:
        id = self._id(pick)
        assert self.host.execute(cancel.cancel(id)) == self.model.cancel(id)

    @rule(pick=st.integers(0, 9))
    def discard(self, pick: int) -> None:
        id = self._id(pick)
        assert self.host.execute(cancel.discard(id)) == self.model.discard(id)

    @rule(pick=st.integers(0, 9))
    def requeue(self, pick: int) -> None:
        id = self._id(pick)
        [answer] = self.host.execute(requeue.requeue([id]))
        assert answer.outcome == self.model.requeue(id)

    @rule(who=st.integers(0, 1))
    def lose_a_host(self, who: int) -> None:
        self.host.execute(hosts.remove_host(self.hosts[who]))
        self.model.hosts.discard(self.hosts[who])
        self.hosts[who] = self._new_host()

    @rule(who=st.integers(0, 1))
    def rescue(self, who: int) -> None:
        rescued = self.host.execute(maintenance.rescue_jobs(self.hosts[who], 100))
        assert {job.id: str(job.state) for job in rescued} == self.model.rescue(self.hosts[who])

    @rule()
    def promote(self) -> None:
        time.sleep(0.002)  # what is due soon, is due
        assert self.host.execute(maintenance.promote_due(100)).count == self.model.promote()

    @rule()
    def expire(self) -> None:
        time.sleep(0.002)
        assert self.host.execute(maintenance.expire_jobs(100)) == self.model.expire()

    # -- what must hold -------------------------------------------------------------------------------------------------

    @invariant()
    def the_tables_are_what_the_model_says(self) -> None:
        rows = self.host.conn.execute(SEEN).fetchall()
        assert len({row[0] for row in rows}) == len(rows), "I4: a job is there twice"
        assert {row[0]: row[1:] for row in rows} == {j.id: j.seen() for j in self.model.jobs.values()}
        attempts = self.host.conn.execute(
            "SELECT job_id, lease, host::text, verdict FROM pgworkers.attempt"
        ).fetchall()
        assert len(attempts) == len(self.model.attempts), "I5: one post-mortem for each lease"
        assert {row[:2]: row[2:] for row in attempts} == self.model.attempts


def search(conn: psycopg.Connection[Any], how: settings) -> None:
    run_state_machine_as_test(lambda: Machine(conn), settings=how)


@pytest.mark.timeout(900)
def test_every_sequence_of_verbs_does_what_the_model_does(host: DatabaseHost) -> None:
    search(host.conn, SUITE)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_long_search(host: DatabaseHost) -> None:
    examples = int(os.environ.get("MODEL_EXAMPLES", "400"))
    search(host.conn, settings(SUITE, max_examples=examples, stateful_step_count=60, derandomize=False))
