"""`pgworkers jobs` on a real database: what it shows, and what it changes."""

from __future__ import annotations

import getpass
import json
import os
import pty
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.command import Command, ForkedCommand

from pgworkers.cli import job_changes
from pgworkers.cli.database import OpenDatabase
from pgworkers.job import queries
from pgworkers.job.gauges import count_depth
from pgworkers.job.queries import JobFilter
from pgworkers.postgres.database_choice import DatabaseChoice
from pgworkers.postgres.statements import run
from pgworkers.settings import Settings

Db = psycopg.Connection[Any]


@pytest.fixture
def cli(tmp_path: Path, dsn: str) -> Command:
    return ForkedCommand(tmp_path, DATABASE_URL=dsn)


def add(db: Db, task: str = "render", args: str = '{"report_id": 7}', **more: Any) -> int:
    named = "".join(f", {name} => %({name})s" for name in more)
    row = db.execute(
        f"SELECT id FROM pgworkers.enqueue(%(task)s, %(args)s::jsonb{named})",
        {"task": task, "args": args, **more},
    ).fetchone()
    assert row is not None
    return int(row[0])


def end(
    db: Db, job: int, state: str = "dead", verdict: str = "error", errors: tuple[str, ...] = ("boom",)
) -> None:
    """Move a live job to history, as a host would."""
    db.execute(
        """WITH gone AS (DELETE FROM pgworkers.job WHERE id = %s RETURNING *)
        INSERT INTO pgworkers.history (id, state, verdict, priority, queue, task, args, lease, attempt, crashes,
               max_attempts, max_crashes, created_at, run_at, started_at, duration, cpu_seconds, peak_rss, result, errors)
        SELECT id, %s, %s, priority, queue, task, args, 1, 1, 0, 1, max_crashes, created_at, run_at, now(), 4.25, 4.0,
               327155712, '{"url": "x"}', %s FROM gone""",
        [job, state, verdict, list(errors)],
    )


def state(db: Db, job: int) -> str | None:
    row = db.execute("SELECT state::text FROM pgworkers.jobs WHERE id = %s", [job]).fetchone()
    return row[0] if row else None


def test_list_shows_the_newest_first_and_filters(cli: Command, db: Db) -> None:
    first, second, third = add(db), add(db, "thumb", queue="api"), add(db)
    end(db, third)
    assert [row["id"] for row in cli("jobs", "list", "-o", "json").json()] == [third, second, first]
    assert cli("jobs", "list", "--state", "dead", "-q").lines() == [str(third)]
    assert cli("jobs", "list", "--state", "dead", "--state", "ready", "--task", "render", "-q").lines() == [
        str(third),
        str(first),
    ]
    assert cli("-q", "jobs", "list", "--queue", "api").lines() == [str(second)]
    said = cli("jobs", "--limit", "1", code=2)
    assert "--limit" in said.err
    said = cli("jobs", "list", "--limit", "1")
    assert len(said.lines()) == 2
    assert "there are more" in said.err


def test_list_goes_on_before_the_last_one(cli: Command, db: Db) -> None:
    first, second = add(db), add(db)
    said = cli("jobs", "list", "--limit", "1", "-q")
    assert said.lines() == [str(second)]
    assert f"--before {second}" in cli("jobs", "list", "--limit", "1").err
    assert cli("jobs", "list", "--limit", "1", "--before", str(second), "-q").lines() == [str(first)]


def test_a_list_of_what_hosts_hold_says_if_it_is_not_complete(cli: Command, db: Db) -> None:
    db.execute(
        "INSERT INTO pgworkers.job (queue, task, state, host, lease, claimed_at)"
        " SELECT 'a', 't', 'running', gen_random_uuid(), 1, now() FROM generate_series(1, %s)",
        [queries.MAX_HELD_JOBS],
    )
    incomplete = "hosts hold 100,000 jobs or more"
    for words in (["--state", "claimed"], ["--state", "claimed", "-o", "json"]):
        assert incomplete in cli("jobs", "list", *words).err, words
    assert incomplete not in cli("jobs", "list").err


def test_an_unfinished_count_is_shown_as_at_least(cli: Command, db: Db) -> None:
    db.execute("INSERT INTO pgworkers.job (queue, task) SELECT 'many', 't' FROM generate_series(1, 10001)")
    assert "cancel more than 10,000 jobs (ready, queue many)? There is no terminal" in cli.fails(
        "jobs", "cancel", "--state", "ready", "--queue", "many", code=2
    )
    (row,) = [line for line in cli("queues", "list").lines() if line.startswith("many")]
    assert "10000+" in row.split()
    assert cli("queues", "list", "-o", "json").json()[0]["capped"] == ["ready"]


def test_a_table_in_a_pipe_is_plain_and_whole(cli: Command, db: Db) -> None:
    job = add(db, "render", '{"text": "%s", "evil": "\\u001b[2J"}' % ("x" * 150))
    end(db, job, errors=("bad \x1b[31m day",))
    heading, row = cli("jobs", "list", COLUMNS="40").lines()
    assert heading.split() == [
        "ID",
        "STATE",
        "QUEUE",
        "TASK",
        "ARGUMENTS",
        "ATTEMPT",
        "CREATED",
        "RAN",
        "ERROR",
    ]
    assert "x" * 150 in row
    assert "bad \\x1b[31m day" in row
    assert "\x1b" not in row
    assert row.index("render") == heading.index("TASK")


def test_a_group_alone_lists(cli: Command, db: Db) -> None:
    job = add(db)
    assert cli("jobs", "-o", "ndjson").lines() == cli("jobs", "list", "-o", "ndjson").lines()
    assert f'"id":{job},' in cli("-o", "ndjson", "jobs").out


def test_an_empty_list_is_reported_on_stderr(cli: Command) -> None:
    said = cli("jobs", "list")
    assert (said.out, said.err) == ("", "no jobs\n")
    assert cli("jobs", "list", "-o", "json").json() == []


def test_show_prints_the_history_of_a_job(cli: Command, db: Db) -> None:
    job = add(db)
    for attempt, verdict, error in ((1, "error", "ValueError: no such report"), (2, "crash", "SIGSEGV")):
        db.execute(
            """INSERT INTO pgworkers.attempt (job_id, attempt, lease, queue, task, verdict, started_at, duration,
                   cpu_seconds, peak_rss, error, traceback, stack, exit_status, output, rungs, worker, version)
               VALUES (%s, %s, %s, 'default', 'render', %s, now() - interval '125 s', 4.25, 4.0, 327155712, %s,
                   'Traceback: line one\nline two', 'Fatal: in render', 'SIGSEGV', 'last \x1b[1m words',
                   '[{"rung": "ask", "after": 0}, {"rung": "kill", "after": 10}]', 'default/0 pid 7', 'v1')""",
            [job, attempt, attempt, verdict, error],
        )
    end(db, job, verdict="crash")
    db.execute("UPDATE pgworkers.history SET attempt = 2, max_attempts = 2, lease = 2")
    waiting_reason = cli("jobs", "show", f"#{job}").out
    assert waiting_reason.startswith(
        f"#{job} render(report_id=7)\ndead: out of attempts (2 of 2), the last one crash"
    )
    for part in (
        "attempt 1: error (the handler raised)",
        "ValueError: no such report",
        "attempt 2: crash (a signal ended the worker)",
        "    line two",
        "    Fatal: in render",
        "    last \\x1b[1m words",
        "4.25s, cpu 4s, peak 312MB",
        "asked to stop, killed after 10s",
        "(2m ago)",
        "default/0 pid 7",
    ):
        assert part in waiting_reason, part
    assert waiting_reason.index("attempt 1") < waiting_reason.index("attempt 2")
    found = cli("jobs", "show", str(job), "-o", "json").json()
    assert [attempt["verdict"] for attempt in found["attempts"]] == ["error", "crash"]
    assert found["args"] == {"report_id": 7}


def host(db: Db, *queues: str, stale: bool = False, workers: str = "[]") -> str:
    row = db.execute(
        """INSERT INTO pgworkers.host (id, name, pid, app, version, queues, lease, workers, renewed_at)
           VALUES (gen_random_uuid(), 'box-1', 4711, 'app.py', 'v1', %s, '1 h', %s,
                   now() - CASE WHEN %s THEN interval '61 min' ELSE interval '0' END) RETURNING id::text""",
        [list(queues), workers, stale],
    ).fetchone()
    assert row is not None
    return str(row[0])


def test_show_says_what_a_ready_job_waits_for(cli: Command, db: Db) -> None:
    job = add(db)

    def waiting_reason() -> str:
        return cli("jobs", "show", str(job)).lines()[1]

    assert "no host knows the task render" in waiting_reason()
    db.execute("INSERT INTO pgworkers.task VALUES ('render', 'default', 0, 10, 3)")
    assert "no host is running; pgworkers run starts one that serves default" in waiting_reason()
    host(db, "default", stale=True)
    assert "no host is running" in waiting_reason()
    host(db, "other")
    assert "no running host serves the queue default" in waiting_reason()
    host(db, "default")
    assert (
        "no running host of the queue default has the task render any more; deploy an app that has it"
        in waiting_reason()
    )
    db.execute("UPDATE pgworkers.host SET tasks = '{mail,render}' WHERE queues = '{default}'")
    assert waiting_reason().startswith("ready: waits in default for a worker, since ")
    db.execute("INSERT INTO pgworkers.queue (name, paused) VALUES ('default', true)")
    assert "its queue default is paused; pgworkers queues resume default" in waiting_reason()
    db.execute("UPDATE pgworkers.queue SET paused = false, throttled_until = now() + interval '90 min'")
    assert "its queue default was throttled and cools down for 1h" in waiting_reason()
    db.execute("UPDATE pgworkers.queue SET throttled_until = now() - interval '1 h', workers = 0")
    assert "scaled to 0 workers" in waiting_reason()
    db.execute("UPDATE pgworkers.queue SET workers = NULL")
    db.execute("INSERT INTO pgworkers.concurrency (kind, name, slots) VALUES ('task', 'render', 0)")
    assert "as many jobs of render run as may at once" in waiting_reason()


def test_show_says_what_a_dependent_job_waits_for(cli: Command, db: Db) -> None:
    first = add(db)
    child = add(db, after=[first])
    waiting_reason = cli("jobs", "show", str(child)).out
    assert f"scheduled: waits for #{first} render (ready)\n" in waiting_reason
    assert "9999" not in waiting_reason
    found = cli("jobs", "show", str(child), "-o", "json").json()
    assert (found["waits_for"], found["run_at"]) == ([first], None)
    assert "9999" not in cli("jobs", "list", "-o", "json").out


def test_show_names_five_of_many_parents_and_one_that_waits_for_a_retry(cli: Command, db: Db) -> None:
    parents = [add(db) for _ in range(7)]
    waiting_reason = cli("jobs", "show", str(add(db, after=parents))).out
    assert f"#{parents[4]} render (ready) and 2 other jobs\n" in waiting_reason
    end(db, parents[0])
    waiting_reason = cli("jobs", "show", str(add(db, after=parents[:1], on_failed="wait"))).out
    assert (
        f"waits for #{parents[0]} render (dead, until it is retried: pgworkers jobs retry {parents[0]})\n"
        in waiting_reason
    )


def test_show_says_which_batch_a_job_waits_for(cli: Command, db: Db) -> None:
    last = add(db, held=True)
    row = db.execute(
        "INSERT INTO pgworkers.batch (total, then_id) VALUES (3, %s) RETURNING id", [last]
    ).fetchone()
    assert row is not None
    assert f"scheduled: waits for batch #{row[0]} to end\n" in cli("jobs", "show", str(last)).out


def test_show_says_why_a_dependent_job_was_cancelled(cli: Command, db: Db) -> None:
    parent = add(db)
    end(db, parent)
    child = add(db, after=[parent])
    waiting_reason = cli("jobs", "show", str(child)).out
    why = f"before it began, because job #{parent}, which it waited for, did not succeed"
    assert f"cancelled: {why}" in waiting_reason
    assert "9999" not in waiting_reason
    assert "somebody" not in waiting_reason


def test_show_says_which_login_and_user_cancelled_it_and_why(cli: Command, db: Db) -> None:
    login = db.info.user
    job, running = add(db), add(db)
    cli("jobs", "cancel", str(job), "--reason", "wrong input")
    waiting_reason = cli("jobs", "show", str(job)).out
    by = f"by {login} ({getpass.getuser()}@{socket.gethostname()}): wrong input"
    assert f"cancelled: before it began, {by}, " in waiting_reason
    number = host(db, "default")
    db.execute(
        "UPDATE pgworkers.job SET state = 'running', host = %s, lease = 1, attempt = 1, claimed_at = now() WHERE id = %s",
        [number, running],
    )
    cli("jobs", "cancel", str(running), "--reason", "wrong input")
    assert f", and was asked to stop {by}\n" in cli("jobs", "show", str(running)).out
    cli("jobs", "retry", str(job))
    waiting_reason = cli("jobs", "show", str(job), "-o", "json").json()
    assert [(one["verb"], one["login"], one["reason"]) for one in waiting_reason["operations"]] == [
        ("cancel", login, "wrong input"),
        ("retry", login, None),
    ]
    cli("jobs", "cancel", str(job), "--reason", "x" * 2001, code=2)


def test_show_prints_the_worker_and_the_progress(cli: Command, db: Db) -> None:
    job = add(db)
    view = {"queue": "default", "slot": 1, "pid": 815, "state": "busy", "job_id": job, "task": "render"}
    number = host(db, "default", workers=json.dumps([view]))
    db.execute(
        """UPDATE pgworkers.job SET state = 'running', host = %s, lease = 1, attempt = 1, claimed_at = now(),
                  progress = '{"done": 86499, "total": 199998, "note": "page 7"}'""",
        [number],
    )
    waiting_reason = cli("jobs", "show", str(job)).out
    assert f"  host       box-1 ({number})\n" in waiting_reason
    assert "  worker     default/1 pid 815\n" in waiting_reason
    assert "  progress   43% (86499 of 199998), page 7\n" in waiting_reason
    found = cli("jobs", "show", str(job), "-o", "json").json()
    assert (found["host_name"], found["worker"], found["pid"]) == ("box-1", "default/1", 815)


def test_attempts_before_a_retry_are_distinguished(cli: Command, db: Db) -> None:
    job = add(db)
    sql = """INSERT INTO pgworkers.attempt (job_id, attempt, lease, queue, task, verdict)
             VALUES (%s, %s, %s, 'default', 'render', %s)"""
    for lease, (attempt, verdict) in enumerate([(1, "snoozed"), (1, "error"), (2, "error")], 1):
        db.execute(sql, [job, attempt, lease, verdict])
    db.execute("UPDATE pgworkers.job SET lease = 3, attempt = 2")

    def titles() -> list[str]:
        return [
            line.partition(" (the")[0].partition(" (it")[0]
            for line in cli("jobs", "show", str(job)).lines()
            if line.startswith("attempt ")
        ]

    assert titles() == ["attempt 1, run 1: snoozed", "attempt 1, run 2: error", "attempt 2: error"]
    end(db, job)
    db.execute("UPDATE pgworkers.history SET attempt = 2, lease = 3")
    assert titles()[-1] == "attempt 2: error"
    cli("jobs", "retry", str(job))
    closed = [
        "attempt 1, run 1 (before it was retried): snoozed",
        "attempt 1, run 2 (before it was retried): error",
        "attempt 2 (before it was retried): error",
    ]
    assert titles() == closed
    assert "after error" not in cli("jobs", "show", str(job)).lines()[1]
    db.execute(sql, [job, 1, 4, "error"])
    db.execute("UPDATE pgworkers.job SET lease = 4, attempt = 1")
    assert titles() == [*closed, "attempt 1: error"]


def test_one_value_that_python_cannot_read_hides_nothing_else(cli: Command, db: Db) -> None:
    fine = add(db, args='{"report_id": 7}')
    huge = add(db, args='{"x": 1e5000}')
    deep = add(db, args='{"x": %s}' % ("[" * 120 + "]" * 120))
    # What may not be enqueued any more, older rows may hold.
    db.execute("ALTER DOMAIN pgworkers.arguments DROP CONSTRAINT job_args_are_flat")
    db.execute(
        "UPDATE pgworkers.job SET args = %s WHERE id = %s", ['{"x": %s}' % ("[" * 5000 + "]" * 5000), deep]
    )
    rows = {row["id"]: row["args"] for row in cli("jobs", "list", "-o", "json").json()}
    assert rows[fine] == {"report_id": 7}
    assert rows[huge].startswith("(unreadable: it holds a number with too many digits; 5,008 characters: ")
    assert rows[deep].startswith("(unreadable: nested deeper than 200 levels; ")
    listed = cli("jobs", "list").out
    assert "report_id=7" in listed
    assert listed.count("(unreadable: ") == 2
    for job in (huge, deep):
        assert f"#{job} render (unreadable: " in cli("jobs", "show", str(job)).out
        assert cli("jobs", "show", str(job), "-o", "json").json()["args"].startswith("(unreadable: ")


def test_arguments_that_do_not_fit_are_not_blamed_on_the_handler(cli: Command, db: Db) -> None:
    job = add(db)
    end(db, job, errors=("StoredArgumentsError: render: the stored arguments do not fit",))
    waiting_reason = cli("jobs", "show", str(job)).lines()[1]
    assert "its arguments do not fit the task; the handler was not run" in waiting_reason
    assert "handler raised" not in waiting_reason


def test_show_says_how_a_live_job_stands(cli: Command, db: Db) -> None:
    assert "scheduled: waits for its time, in 59m" in cli("jobs", "show", str(add(db, delay="1 hour"))).out
    done = add(db)
    end(db, done, "succeeded", "succeeded", ())
    waiting_reason = cli("jobs", "show", str(done)).out
    assert "succeeded: in 4.25s on attempt 1 of 1" in waiting_reason
    assert 'result: {"url":"x"}' in waiting_reason


@pytest.mark.parametrize("verb", ["show", "retry", "cancel", "discard", "wait"])
def test_an_unknown_id_is_not_found(cli: Command, verb: str) -> None:
    assert "there is no job #999" in cli.fails("jobs", verb, "999", code=3)


@pytest.mark.parametrize("verb", ["show", "retry", "wait"])
def test_an_invalid_id_is_refused(cli: Command, verb: str) -> None:
    assert "is not a job's number" in cli.fails("jobs", verb, "seven", code=2)


def test_changes_by_id(cli: Command, db: Db) -> None:
    dead, waiting, running = add(db), add(db), add(db)
    end(db, dead)
    db.execute(
        "UPDATE pgworkers.job SET state = 'running', host = gen_random_uuid() WHERE id = %s", [running]
    )
    assert cli("jobs", "retry", str(dead)).out == f"#{dead} is ready again\n"
    assert state(db, dead) == "ready"
    assert cli("jobs", "retry", str(waiting), code=1).out == f"#{waiting} was not retried: it is ready\n"
    assert cli("jobs", "discard", str(waiting), "-o", "json").json() == [{"id": waiting, "outcome": "dead"}]
    assert "cancel it first" in cli("jobs", "discard", str(running), code=1).out
    assert cli("jobs", "cancel", str(running), str(dead)).lines() == [
        f"#{running} is cancelling",
        f"#{dead} is cancelled",
    ]
    assert "was not cancelled: it is dead" in cli("jobs", "cancel", str(waiting), code=1).out


def test_known_ids_are_changed_although_one_is_unknown(cli: Command, db: Db) -> None:
    job = add(db)
    assert "#999" in cli.fails("jobs", "cancel", str(job), "999", code=3)
    assert state(db, job) == "cancelled"


def test_a_filter_without_a_terminal_needs_yes(cli: Command, db: Db) -> None:
    job = add(db)
    end(db, job)
    assert "retry 1 job (dead, task render)? There is no terminal" in cli.fails(
        "jobs", "retry", "--task", "render", code=2
    )
    assert state(db, job) == "dead"
    assert cli("jobs", "retry", "--task", "render", "-y").out == "retried 1 job\n"
    assert state(db, job) == "ready"


def test_a_filter_that_is_given_twice_means_both(cli: Command, db: Db) -> None:
    jobs = [add(db, task, queue=queue) for task, queue in (("a", "x"), ("b", "y"), ("c", "y"), ("a", "z"))]
    waiting_reason = cli.fails(
        "jobs", "cancel", "--task", "a", "--task", "b", "--queue", "x", "--queue", "y", code=2
    )
    assert (
        "cancel 2 jobs (scheduled or ready or claimed or running, queue x or y, task a or b)?"
        in waiting_reason
    )
    assert cli("jobs", "cancel", "--task", "a", "--task", "b", "-y").out == "cancelled 3 jobs\n"
    assert [state(db, job) for job in jobs] == ["cancelled", "cancelled", "ready", "cancelled"]


def test_a_filter_is_walked_through_page_by_page_without_a_gap(
    db: Db, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_changes, "JOBS_PER_TRANSACTION", 2)
    monkeypatch.setattr(job_changes, "JOB_IDS_PER_QUERY", 3)
    ids = [add(db) for _ in range(8)]
    here = OpenDatabase(db, "pgworkers", Settings(), DatabaseChoice(dsn, "a test", False, Path()), dsn)
    found = list(job_changes.job_id_batches(here, JobFilter(tasks=["render"])))
    assert [len(some) for some in found] == [2, 1, 2, 1, 2]
    assert [one for some in found for one in some] == ids[::-1]


def test_many_jobs_are_changed_in_batches_and_the_others_passed_by(cli: Command, db: Db) -> None:
    db.execute(
        """INSERT INTO pgworkers.history (id, state, verdict, priority, queue, task, args, lease, attempt, crashes,
               max_attempts, max_crashes, created_at, run_at, errors, unique_key)
           SELECT n, 'dead', 'error', 0, 'bulk', 'render', '{}', 1, 1, 0, 1, 3, now(), now(), '{}',
               CASE WHEN n = 600 THEN 'held' END FROM generate_series(1, 1203) n"""
    )
    db.execute("SELECT setval(pg_get_serial_sequence('pgworkers.job', 'id'), 5000)")
    holder = add(db, queue="bulk", unique_key="held")
    assert (
        cli("jobs", "retry", "--queue", "bulk", "-y").out == "retried 1,202 jobs; not retried: 1 conflict\n"
    )
    assert (state(db, 600), state(db, 1), state(db, 1203)) == ("dead", "ready", "ready")
    said = cli("jobs", "cancel", "--queue", "bulk", "--state", "ready", "-y", "-o", "ndjson")
    assert len(said.lines()) == 1203
    assert state(db, holder) == "cancelled"
    assert cli("jobs", "discard", "--queue", "bulk", "-y").out == "discarded 0 jobs\n"


def test_what_a_filter_cannot_mean_is_refused(cli: Command, db: Db) -> None:
    job = add(db)
    assert "by id, or by" in cli.fails("jobs", "cancel", "-y", code=2)
    assert "by id, or by" in cli.fails("jobs", "cancel", str(job), "--queue", "default", "-y", code=2)
    assert "succeeded jobs cannot be retried" in cli.fails(
        "jobs", "retry", "--state", "succeeded", "-y", code=2
    )
    assert "--state" in cli.fails("jobs", "retry", "--state", "ded", code=2)
    assert state(db, job) == "ready"


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    yield ours, theirs
    for descriptor in (ours, theirs):
        os.close(descriptor)


@pytest.mark.parametrize(("answer", "code", "after"), [(b"y\n", 0, "cancelled"), (b"n\n", 1, "ready")])
def test_on_a_terminal_it_shows_the_count_and_asks(
    cli: Command, db: Db, terminal: tuple[int, int], answer: bytes, code: int, after: str
) -> None:
    job = add(db)
    ours, theirs = terminal
    os.write(ours, answer)
    ended = subprocess.run(
        cli.argv("jobs", "cancel", "--task", "render"),
        stdin=theirs,
        capture_output=True,
        cwd=cli.cwd,
        env=cli.environ,
        timeout=60,
        check=False,
    )
    assert ended.returncode == code
    assert b"cancel 1 job (scheduled or ready or claimed or running, task render)?" in ended.stderr
    assert state(db, job) == after


def test_wait_ends_with_the_jobs(cli: Command, db: Db) -> None:
    good, bad = add(db), add(db)
    end(db, good, "succeeded", "succeeded", ())
    assert cli("jobs", "wait", str(good), "-o", "json").json()[0]["result"] == {"url": "x"}
    waiting: list[Any] = []
    thread = threading.Thread(
        target=lambda: waiting.append(cli("jobs", "wait", str(good), str(bad), code=None))
    )
    thread.start()
    try:
        while not _listening(db):
            assert thread.is_alive()
            time.sleep(0.01)
        end(db, bad)
        db.execute("SELECT pg_notify('pgworkers_done', %s)", [str(bad)])
    finally:
        thread.join(60)
    assert waiting[0].code == 1
    assert [line.split()[1] for line in waiting[0].lines()[1:]] == ["succeeded", "dead"]


def _listening(db: Db) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgworkers cli' AND datname = current_database()"
    row = db.execute(query).fetchone()
    return row is not None and row[0] > 0


def test_wait_gives_up_in_time_and_leaves_the_job(cli: Command, db: Db) -> None:
    job = add(db)
    assert f"#{job} ready; the jobs go on" in cli.fails("jobs", "wait", "--timeout", "50ms", str(job), code=1)
    assert state(db, job) == "ready"


def test_a_job_that_waits_in_its_hosts_buffer_does_not_run(cli: Command, db: Db) -> None:
    """A host claims ahead. What no worker of it can have begun is nowhere called running."""
    begun, waits = add(db), add(db)
    db.execute("INSERT INTO pgworkers.queue (name) VALUES ('default')")
    home = host(db, "default")
    workers = [{"queue": "default", "slot": 0, "pid": 7, "state": "busy", "job_id": begun, "task": "render"}]
    db.execute("UPDATE pgworkers.host SET workers = %s WHERE id = %s", [json.dumps(workers), home])
    db.execute(
        "UPDATE pgworkers.job SET state = 'running', host = %s, lease = 1, attempt = 1, claimed_at = now()",
        [home],
    )
    rows = db.execute("SELECT id, state::text, worker FROM pgworkers.jobs ORDER BY id").fetchall()
    assert rows == [(begun, "running", "default/0"), (waits, "claimed", None)]
    for name, job in (("running", begun), ("claimed", waits)):
        assert [one["id"] for one in cli("jobs", "list", "--state", name, "-o", "json").json()] == [job]
        assert cli("jobs", "show", str(job), "-o", "json").json()["state"] == name
        found = run(db, "pgworkers", queries.get_job(job))
        assert found is not None
        assert found.state == name, "as job.state has it"
    assert cli("jobs", "cancel", "--queue", "default", "-y").out.startswith("cancelled 2 jobs")
    db.execute("UPDATE pgworkers.job SET cancel_at = NULL")
    [queue] = cli("queues", "list", "-o", "json").json()
    assert (queue["running"], queue["ready"]) == (1, 1)
    [seen] = run(db, "pgworkers", count_depth(1000))
    assert (seen.running, seen.ready) == (1, 1)
    [one] = cli("hosts", "list", "-o", "json").json()
    assert one["running"] == 1
    listed = [line.split()[:2] for line in cli("jobs", "list").lines()[1:]]
    assert listed == [[str(waits), "claimed"], [str(begun), "running"]]
    assert cli("jobs", "show", str(begun)).lines()[1].startswith("running: attempt 1 of 20 started")
    waiting_reason = cli("jobs", "show", str(waits)).out
    assert "claimed: its host took it" in waiting_reason
    assert "started" not in waiting_reason
