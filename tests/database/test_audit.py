"""The audit's broken twins: sound tables and a sound ledger, and then one thing wrong at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.database_host import DatabaseHost
from support.ledger import audit

from pgworkers.job.model import ClaimedJob, JobState, Verdict


@dataclass
class JobsAndLedger:
    """Jobs that ended in several ways and one that runs, and a ledger as their handlers would have written it."""

    host: DatabaseHost
    ledger: Path
    ids: list[int] = field(default_factory=list)
    clock: int = 0

    def note(self, kind: str, job: int, lease: int = 1) -> None:
        self.clock += 1
        with self.ledger.open("a") as file:
            file.write(f"{kind} {job} {lease} 1 4711 {self.clock}\n")

    def unwrite(self, line: str) -> None:
        """A line that begins like this was never written."""
        lines = self.ledger.read_text().splitlines(keepends=True)
        kept = [one for one in lines if not one.startswith(f"{line} ")]
        assert len(kept) == len(lines) - 1, "one line was to go"
        self.ledger.write_text("".join(kept))

    def begin(self, **more: object) -> ClaimedJob:
        job = self.host.enqueue_and_claim(**more)
        self.ids.append(job.id)
        self.note("START", job.id, job.lease)
        return job

    def end(self, job: ClaimedJob, state: JobState = JobState.SUCCEEDED, **more: object) -> int:
        self.note("END", job.id, job.lease)
        assert self.host.finish_job(job, state, **more) == "written"
        return job.id

    def sql(self, statement: str, *params: object) -> None:
        done = self.host.conn.execute(statement.encode(), params)
        assert done.rowcount != 0, "nothing was broken"

    def audit(self, **more: object) -> list[str]:
        return audit(self.host.conn, self.ledger, self.ids, **more)  # type: ignore[arg-type]


@dataclass
class ConsistentJobs(JobsAndLedger):
    """Which job is which."""

    plain: int = 0
    again: int = 0
    first: int = 0
    second: int = 0
    poison: int = 0
    running: int = 0


@pytest.fixture
def books(host: DatabaseHost, tmp_path: Path) -> Iterator[ConsistentJobs]:
    made = ConsistentJobs(host, tmp_path / "ledger")
    made.plain = made.end(made.begin())
    failing = made.begin(max_attempts=2)
    made.note("END", failing.id)
    assert host.retry_job(failing, delay_seconds=0.0) == "written"
    (failing,) = host.claim()
    made.note("START", failing.id, failing.lease)
    made.again = made.end(failing)
    made.first = made.end(made.begin(unique_key="k"))
    made.second = made.end(made.begin(unique_key="k"))
    made.poison = made.end(
        made.begin(max_crashes=1), JobState.DEAD, verdict=Verdict.CRASH, is_crash=True, error="it died"
    )
    made.running = made.begin().id
    with host.conn.transaction(force_rollback=True):  # the database is shared: not even an index stays broken
        yield made


def test_nothing_is_wrong_with_sound_books(books: ConsistentJobs) -> None:
    assert books.audit() == []


def lost(books: ConsistentJobs) -> str:
    books.sql("DELETE FROM pgworkers.history WHERE id = %s", books.first)
    return f"I1 job {books.first} is lost"


def invented(books: ConsistentJobs) -> str:
    books.ids.remove(books.first)
    return f"I2 job {books.first} ran and was never enqueued"


def never_ran(books: ConsistentJobs) -> str:
    books.unwrite(f"START {books.plain}")
    return f"I2 job {books.plain} succeeded and never ran"


def never_ended(books: ConsistentJobs) -> str:
    books.unwrite(f"END {books.plain}")
    return f"I3 job {books.plain} succeeded under lease 1, which never ended in the ledger"


def ran_after_success(books: ConsistentJobs) -> str:
    books.note("START", books.plain, 2)
    return f"I3 job {books.plain} succeeded under lease 1, but lease 2 ran after it"


def live_and_finished(books: ConsistentJobs) -> str:
    books.sql(
        "INSERT INTO pgworkers.job (id, queue, task, lease) VALUES (%s, 'a', 't', 1)",
        books.plain,
    )
    return f"I4 job {books.plain} is live and finished"


def ended_twice(books: ConsistentJobs) -> str:
    books.sql(
        "INSERT INTO pgworkers.history (id, state, verdict, priority, queue, task, args, lease, attempt, crashes,"
        " max_attempts, max_crashes, created_at, run_at, finished_at, errors)"
        " SELECT id, 'cancelled', 'cancelled', priority, queue, task, args, lease, attempt, crashes, max_attempts,"
        " max_crashes, created_at, run_at, finished_at + interval '1 s', errors FROM pgworkers.history WHERE id = %s",
        books.plain,
    )
    return f"I4 job {books.plain} ended 2 times"


def two_attempts_of_a_lease(books: ConsistentJobs) -> str:
    books.sql("UPDATE pgworkers.job SET max_attempts = 9 WHERE id = %s", books.running)
    for _ in range(2):
        books.sql(
            "INSERT INTO pgworkers.attempt (job_id, attempt, lease, queue, task, verdict)"
            " VALUES (%s, 1, 1, 'a', 't', 'error')",
            books.running,
        )
    return f"I5 job {books.running}: lease 1 ended twice"


def succeeded_and_failed(books: ConsistentJobs) -> str:
    books.sql(
        "INSERT INTO pgworkers.attempt (job_id, attempt, lease, queue, task, verdict)"
        " VALUES (%s, 1, 1, 'a', 't', 'error')",
        books.plain,
    )
    return f"I5 job {books.plain}: lease 1 ended twice"


def ran_off_the_record(books: ConsistentJobs) -> str:
    books.sql("DELETE FROM pgworkers.attempt WHERE job_id = %s", books.again)
    return f"I5 job {books.again}: lease 1 ran and left no attempt"


def failed_without_running(books: ConsistentJobs) -> str:
    books.unwrite(f"START {books.again} 1")
    return f"I5 job {books.again}: lease 1 ended with error and never ran"


def twice_under_a_lease(books: ConsistentJobs) -> str:
    books.note("START", books.poison)
    books.sql("UPDATE pgworkers.history SET max_attempts = 9 WHERE id = %s", books.poison)
    return f"I6 job {books.poison} ran twice under one lease: [1, 1]"


def two_at_once(books: ConsistentJobs) -> str:
    books.unwrite(f"END {books.again} 1")
    books.note("END", books.again)
    return f"I6 job {books.again}: lease 2 started before lease 1 ended"


def given_too_early(books: ConsistentJobs) -> str:
    books.sql(
        "UPDATE pgworkers.history SET started_at = started_at - interval '5 s' WHERE id = %s", books.again
    )
    return f"I6 job {books.again}: lease 2 was given before lease 1 was over"


def two_with_one_key(books: ConsistentJobs) -> str:
    books.sql(
        "UPDATE pgworkers.history SET created_at = created_at - interval '5 s' WHERE id IN (%s, %s)",
        books.first,
        books.second,
    )
    return f"I8 t: the jobs {books.first} and {books.second} lived at once with the unique key k"


def two_live_with_one_key(books: ConsistentJobs) -> str:
    books.sql("DROP INDEX pgworkers.job_unique")
    for job in (9001, 9002):
        books.sql(
            "INSERT INTO pgworkers.job (id, queue, task, unique_key) VALUES (%s, 'a', 't', 'live')", job
        )
    return "I8 t: the jobs 9001 and 9002 lived at once with the unique key live"


def too_many_attempts(books: ConsistentJobs) -> str:
    books.sql("UPDATE pgworkers.history SET attempt = 3 WHERE id = %s", books.again)
    return f"I10 job {books.again}: 3 attempts, allowed 2"


def too_many_failures(books: ConsistentJobs) -> str:
    books.sql("UPDATE pgworkers.history SET max_attempts = 1, attempt = 1 WHERE id = %s", books.again)
    return f"I10 job {books.again}: 2 attempts, allowed 1"


def too_many_crashes(books: ConsistentJobs) -> str:
    books.sql("UPDATE pgworkers.history SET crashes = 2 WHERE id = %s", books.poison)
    return f"I10 job {books.poison}: 2 crashes, allowed 1"


def uncounted_crashes(books: ConsistentJobs) -> str:
    books.sql("UPDATE pgworkers.history SET crashes = 0 WHERE id = %s", books.poison)
    books.sql(
        "INSERT INTO pgworkers.attempt (job_id, attempt, lease, queue, task, verdict)"
        " VALUES (%s, 2, 2, 'a', 't', 'crash')",
        books.poison,
    )
    return f"I10 job {books.poison}: 2 crashes, allowed 1"


def left_on_a_gone_host(books: ConsistentJobs) -> str:
    books.sql("DELETE FROM pgworkers.host")
    return f"I11 job {books.running} is running on the gone host {books.host.id}"


BREAKS: list[Callable[[ConsistentJobs], str]] = [
    lost,
    invented,
    never_ran,
    never_ended,
    ran_after_success,
    live_and_finished,
    ended_twice,
    two_attempts_of_a_lease,
    succeeded_and_failed,
    ran_off_the_record,
    failed_without_running,
    twice_under_a_lease,
    two_at_once,
    given_too_early,
    two_with_one_key,
    two_live_with_one_key,
    too_many_attempts,
    too_many_failures,
    too_many_crashes,
    uncounted_crashes,
    left_on_a_gone_host,
]


@pytest.mark.parametrize("wrong", BREAKS)
def test_one_thing_wrong_is_one_sentence(
    books: ConsistentJobs, wrong: Callable[[ConsistentJobs], str]
) -> None:
    assert books.audit() == []
    sentence = wrong(books)
    assert books.audit() == [sentence]


def test_a_requeued_job_has_fresh_budgets_and_its_old_creation_time(books: ConsistentJobs) -> None:
    too_many_failures(books)
    two_with_one_key(books)
    assert len(books.audit()) == 2
    assert books.audit(requeued={books.again, books.second}) == []


def test_a_task_that_writes_no_ledger_is_not_asked_for_lines(books: ConsistentJobs) -> None:
    never_ran(books)
    assert books.audit(silent={"t"}) == []


def test_a_test_that_leaves_hosts_behind_is_not_at_rest(books: ConsistentJobs) -> None:
    left_on_a_gone_host(books)
    assert books.audit(at_rest=False) == []
