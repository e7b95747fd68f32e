"""All verbs at once on the same rows, from many sessions: no deadlock, no error, nothing lost, nothing twice."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from support.database_host import PATIENCE, DatabaseHost, blocked, until

from pgworkers.job import cancel, finish, hosts, maintenance, requeue
from pgworkers.job.finish import JobFinish, JobRetry, ProgressUpdate
from pgworkers.job.model import ClaimedJob, JobState, Verdict
from pgworkers.postgres.statements import Query

JOBS = 120
ROUNDS = 40


def work(mine: DatabaseHost, rand: random.Random) -> None:
    """A host: claims, and ends what it claimed in every way, in batches of no particular order."""
    for _ in range(ROUNDS):
        jobs = mine.claim(rand.randint(1, 15))
        rand.shuffle(jobs)
        held = [job.fence for job in jobs]
        mine.execute(finish.save_progress(mine.id, [ProgressUpdate(*key, "1", None) for key in held]))
        mine.execute(hosts.renew_lease(mine.id, held, "running", "[]"))
        third = len(jobs) // 3
        ended, again = jobs[:third], jobs[third : 2 * third]
        state = rand.choice([(JobState.SUCCEEDED, Verdict.SUCCEEDED), (JobState.DEAD, Verdict.ERROR)])
        mine.execute(
            finish.finish(
                mine.id,
                [JobFinish(**j.fence._asdict(), state=state[0], verdict=state[1]) for j in ended],
            )
        )
        after = rand.choice([0.0, 0.01])
        mine.execute(
            finish.retry(
                mine.id,
                [
                    JobRetry(
                        **j.fence._asdict(),
                        verdict=Verdict.ERROR,
                        delay_seconds=after,
                        error="x",
                    )
                    for j in again
                ],
            )
        )
        mine.execute(finish.release(mine.id, held[2 * third :]))


def lose(mine: DatabaseHost, rand: random.Random) -> None:
    """A host that claims and is gone."""
    for _ in range(ROUNDS // 2):
        mine.register()
        mine.claim(rand.randint(1, 5))
        mine.execute(hosts.remove_host(mine.id))


def sweep(mine: DatabaseHost, rand: random.Random) -> None:
    for _ in range(ROUNDS):
        mine.execute(maintenance.rescue_jobs(mine.id, rand.randint(1, 20)))
        mine.execute(maintenance.promote_due(rand.randint(1, 20)))
        mine.execute(maintenance.expire_jobs(10))


def meddle(mine: DatabaseHost, rand: random.Random) -> None:
    """An operator."""
    for _ in range(ROUNDS * 2):
        job_id = rand.randint(1, JOBS)
        mine.execute(rand.choice([cancel.cancel(job_id), cancel.discard(job_id)]))
        mine.execute(requeue.requeue([rand.randint(1, JOBS) for _ in range(10)]))


HOSTS_WRITES: dict[str, Callable[[DatabaseHost, list[ClaimedJob]], Query[Any]]] = {
    "finish": lambda host, jobs: finish.finish(
        host.id,
        [JobFinish(**j.fence._asdict(), state=JobState.SUCCEEDED, verdict=Verdict.SUCCEEDED) for j in jobs],
    ),
    "retry": lambda host, jobs: finish.retry(
        host.id, [JobRetry(**j.fence._asdict(), verdict=Verdict.ERROR, delay_seconds=60.0) for j in jobs]
    ),
    "release": lambda host, jobs: finish.release(host.id, [j.fence for j in jobs]),
    "progress": lambda host, jobs: finish.save_progress(
        host.id, [ProgressUpdate(*j.fence, "1", None) for j in jobs]
    ),
}


@pytest.mark.parametrize("name", HOSTS_WRITES)
def test_a_cancel_in_any_order_never_deadlocks_with_a_host(
    session: Callable[[], psycopg.Connection[Any]], schema: str, name: str
) -> None:
    """One transaction cancels the second job and then the first; meanwhile the host writes both."""
    host, other, watcher = DatabaseHost(session(), schema), DatabaseHost(session(), schema), session()
    host.register()
    one, two = host.enqueue_and_claim(), host.enqueue_and_claim()
    with other.conn.transaction():
        assert other.execute(cancel.cancel(two.id)) == "cancelling"
        writing = host.in_thread(HOSTS_WRITES[name](host, [one, two]))
        until(lambda: writing.done() or blocked(watcher, host.conn))
        assert other.execute(cancel.cancel(one.id)) is not None
    writing.result(timeout=PATIENCE)


def test_all_verbs_at_once(session: Callable[[], psycopg.Connection[Any]], schema: str) -> None:
    keeper = DatabaseHost(session(), schema)
    for n in range(JOBS):
        keeper.enqueue(
            unique_key=f"k{n}" if n % 3 else None, delay=0.01 if n % 5 == 0 else None, max_crashes=100
        )
    failed: list[BaseException] = []

    def start(role: Callable[[DatabaseHost, random.Random], None], seed: int) -> threading.Thread:
        mine = DatabaseHost(session(), schema)
        mine.register()

        def run() -> None:
            try:
                role(mine, random.Random(seed))
            except BaseException as exc:
                failed.append(exc)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    threads = [
        start(role, seed) for seed, role in enumerate([work, work, work, lose, sweep, sweep, meddle, meddle])
    ]
    for thread in threads:
        thread.join()
    assert failed == []
    assert [job_id for job_id, _ in keeper.states()] == list(range(1, JOBS + 1)), "each job exactly once"
    row = keeper.conn.execute(
        "SELECT count(*) FROM (SELECT job_id, lease FROM pgworkers.attempt GROUP BY 1, 2 HAVING count(*) > 1) twice"
    ).fetchone()
    assert row == (0,), "one post-mortem per lease"
    row = keeper.conn.execute(
        "SELECT count(*) FROM pgworkers.attempt a JOIN pgworkers.jobs j ON j.id = a.job_id WHERE a.lease > j.lease"
    ).fetchone()
    assert row == (0,), "no lease beyond the row's own"
