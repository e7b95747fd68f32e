"""A database session of one host: the verbs of `job/` on real rows, and a second session to race against."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psycopg
import pytest

from pgworkers.job import claim, enqueue, finish, hosts, maintenance, model, queries
from pgworkers.job.finish import JobFinish, JobRetry
from pgworkers.job.model import JobState, NewJob, Verdict
from pgworkers.postgres.pooler import is_pooled
from pgworkers.postgres.statements import Query, run

T = TypeVar("T")
#: Every job with the state of its row; the view `jobs` shows some running rows as claimed.
STORED = "SELECT id, state FROM pgworkers.job UNION ALL SELECT id, state FROM pgworkers.history"
STEP = 0.01
PATIENCE = 60.0


def until(fact: Callable[[], T]) -> T:
    """Wait for a fact, not for seconds."""
    give_up = time.monotonic() + PATIENCE
    while not (found := fact()):
        assert time.monotonic() < give_up, "waited too long"
        time.sleep(STEP)
    return found


@dataclass
class DatabaseHost:
    """One host's view of the database."""

    conn: psycopg.Connection[Any]
    schema: str
    id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def execute(self, query: Query[T]) -> T:
        return run(self.conn, self.schema, query)

    def register(self, lease: float = 30.0) -> None:
        self.execute(hosts.register_host(self.id, "box", 4711, "", "app.py", "1", ["a"], ["t"], lease))

    def enqueue(self, task: str = "t", args: str = "{}", **more: Any) -> int:
        """Enqueue a job. With `after`, do what the leader does then: link it to its parents."""
        made = self.execute(enqueue.enqueue(NewJob(task, args, **{"queue": "a", **more}))).id
        if more.get("after"):
            self.execute(maintenance.link_dependencies(1000))
        return made

    def claim(
        self, count: int = 1, queue: str = "a", tasks: tuple[str, ...] = ("t",)
    ) -> list[model.ClaimedJob]:
        return self.execute(claim.claim(self.id, [claim.QueueCapacity(queue, count)], list(tasks)))

    def enqueue_and_claim(self, **more: Any) -> model.ClaimedJob:
        """Enqueue a job and claim it."""
        self.enqueue(**more)
        (claimed,) = self.claim()
        return claimed

    def finish_job(self, job: model.ClaimedJob, state: JobState = JobState.SUCCEEDED, **more: Any) -> str:
        verdict = more.pop("verdict", Verdict.SUCCEEDED if state is JobState.SUCCEEDED else Verdict.ERROR)
        one = JobFinish(**job.fence._asdict(), state=state, verdict=verdict, **more)
        return self.finish([one])[job.fence]

    def finish(self, ends: list[JobFinish], host: str | None = None) -> dict[model.Fence, str]:
        """Write these ends as the master does: "written", "already", "lost" or "again" for each."""
        host = host or self.id
        answers = self.execute(finish.finish(host, ends))
        missing = [end for end in ends if answers.get(end.fence) == "missing"]
        answers |= self.execute(finish.check_unwritten_finishes(host, missing)) if missing else {}
        return {end.fence: answers.get(end.fence, "written") for end in ends}

    def retry_job(self, job: model.ClaimedJob, delay_seconds: float = 60.0, **more: Any) -> str:
        verdict = more.pop("verdict", Verdict.ERROR)
        one = JobRetry(**job.fence._asdict(), verdict=verdict, delay_seconds=delay_seconds, **more)
        return self.retry([one])[job.fence]

    def retry(self, agains: list[JobRetry], host: str | None = None) -> dict[model.Fence, str]:
        """Write these attempts as the master does: "written", "already" or "lost" for each."""
        host = host or self.id
        answers = self.execute(finish.retry(host, agains))
        missing = [again for again in agains if again.fence in answers]
        answers |= self.execute(finish.check_unwritten_retries(host, missing)) if missing else {}
        return {again.fence: answers.get(again.fence, "written") for again in agains}

    def job_view(self, job_id: int) -> queries.JobView:
        found = self.execute(queries.get_job(job_id))
        assert found is not None
        return found

    def states(self) -> list[tuple[int, str]]:
        """As they are stored: running from the claim on."""
        return self.conn.execute(f"SELECT id, state::text FROM ({STORED}) s ORDER BY id").fetchall()

    def notifications(self) -> list[tuple[str, str]]:
        """The notifications since the last call; call `listen` first."""
        self.conn.execute("SELECT")
        return [(note.channel, note.payload) for note in self.conn.notifies(timeout=0)]

    def listen(self) -> None:
        if is_pooled(self.conn):
            pytest.skip(
                "NOT TESTED through a pooler: it listens, and the next statement meets another session"
            )
        self.conn.execute("LISTEN pgworkers")
        self.conn.execute("LISTEN pgworkers_done")
        self.conn.execute(f'LISTEN "{self.id}"')

    def in_thread(self, query: Query[T]) -> Future[T]:
        """Run a query meanwhile, and wait until it is blocked by a lock (or done)."""
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(self.execute(query))
            except BaseException as exc:
                future.set_exception(exc)

        threading.Thread(target=work, daemon=True).start()
        return future


def blocked(watcher: psycopg.Connection[Any], conn: psycopg.Connection[Any]) -> bool:
    pid = conn.info.backend_pid
    row = watcher.execute(
        "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s", [pid]
    ).fetchone()
    return bool(row and row[0])
