"""`pgworkers enqueue` on a real database: what is checked, what is inserted, and what is not."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.command import Command, CommandResult, ForkedCommand

Db = psycopg.Connection[Any]

APP = """
from datetime import datetime
from pgworkers import App, Ctx

print("imported")
app = App()
app.queue("default")
app.queue("reports")

@app.task(queue="reports", retries=4, priority=7)
def render(ctx: Ctx, report_id: int, *, fmt: str = "pdf", at: datetime | None = None) -> dict[str, str]:
    return {}

@app.task
def tag(**names: str) -> None: ...

@app.task
def gather(*parts: int) -> int:
    return sum(parts)
"""


@pytest.fixture
def cli(tmp_path: Path, dsn: str) -> Command:
    (tmp_path / "app.py").write_text(APP)
    return ForkedCommand(tmp_path, DATABASE_URL=dsn)


def jobs(db: Db) -> list[dict[str, Any]]:
    columns = "id, queue, task, args, priority, max_attempts, state::text, unique_key, meta, run_at > now() AS later"
    with db.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        return cursor.execute(f"SELECT {columns} FROM pgworkers.job ORDER BY id").fetchall()


def test_arguments_are_typed_and_the_task_gives_the_rest(cli: Command, db: Db) -> None:
    said = cli("enqueue", "render", "report_id=7", "fmt=12", "at=2026-03-01T08:00:00Z")
    (job,) = jobs(db)
    assert (
        said.out
        == f'#{job["id"]} render(report_id=7, fmt="12", at="2026-03-01T08:00:00Z") enqueued on reports\n'
    )
    assert job["args"] == {"report_id": 7, "fmt": "12", "at": "2026-03-01T08:00:00Z"}
    assert (job["queue"], job["priority"], job["max_attempts"], job["state"]) == ("reports", 7, 5, "ready")


def test_names_that_only_the_rest_takes_are_read_by_its_annotation(cli: Command, db: Db) -> None:
    cli("enqueue", "tag", "a=1", "b=true")
    assert jobs(db)[0]["args"] == {"a": "1", "b": "true"}


def test_what_the_app_prints_is_not_our_data(cli: Command, db: Db) -> None:
    said = cli("enqueue", "gather", "parts=[1,2]", "-q")
    assert said.lines() == [str(jobs(db)[0]["id"])]
    assert "imported" in said.err
    assert jobs(db)[0]["args"] == {"parts": [1, 2]}


def test_the_options(cli: Command, db: Db) -> None:
    cli(
        "enqueue",
        "render",
        "--json",
        '{"report_id": 8}',
        "--delay",
        "5m",
        "--priority",
        "-3",
        "--meta",
        '{"why": "test"}',
    )
    cli("enqueue", "render", "report_id=9", "--at", "2099-01-01T00:00", "--queue", "default")
    first, second = jobs(db)
    assert (first["state"], first["priority"], first["meta"], first["later"]) == (
        "scheduled",
        -3,
        {"why": "test"},
        True,
    )
    assert (second["state"], second["queue"], second["later"]) == ("scheduled", "default", True)


def test_a_unique_key_leads_to_the_job_that_holds_it(cli: Command, db: Db) -> None:
    words = ["enqueue", "render", "--unique", "report:7"]
    first = cli(*words, "report_id=7", "-o", "json").json()
    assert first == {"id": jobs(db)[0]["id"], "created": True, "task": "render"}
    assert cli(*words, "report_id=8", "-o", "ndjson").json() == {**first, "created": False}
    assert "already holds the unique key report:7" in cli(*words, "report_id=8").out
    assert jobs(db)[0]["args"] == {"report_id": 7}
    replaced = cli(*words, "report_id=8", "--on-conflict", "replace").out
    assert (
        replaced
        == f"#{first['id']} render already holds the unique key report:7; it is render(report_id=8) now\n"
    )
    assert jobs(db)[0]["args"] == {"report_id": 8}
    db.execute("UPDATE pgworkers.job SET state = 'running', host = gen_random_uuid(), lease = 1")
    refused = cli(*words, "report_id=9", "--on-conflict", "replace").out
    assert refused.endswith("holds the unique key report:7 and runs; its arguments were not replaced\n")
    assert "report:7" in cli.fails(*words, "report_id=9", "--on-conflict", "raise", code=1)
    assert [job["args"] for job in jobs(db)] == [{"report_id": 8}]


def test_an_idempotency_key_leads_to_the_first_job(cli: Command, db: Db) -> None:
    words = ["enqueue", "render", "report_id=7", "--idempotency-key", "mail:81"]
    first = cli(*words, "--idempotency-window", "2h", "-o", "json").json()
    assert first["created"]
    db.execute("DELETE FROM pgworkers.job")  # it is no longer live
    assert cli(*words, "-o", "json").json() == {**first, "created": False}
    again = cli(*words, "--no-app").out
    assert again == f"#{first['id']} render was enqueued with the idempotency key mail:81 before\n"
    assert jobs(db) == []


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["rendr", "report_id=7"], 3, "did you mean render?"),
        (["render", "report_id=seven"], 2, "argument report_id: expected `int`, got `str`"),
        (["render"], 2, "report_id"),
        (["render", "report_id=7", "color=red"], 2, "color"),
        (["render", "7"], 2, "write name=value"),
        (["render", "report_id=7", "report_id=8"], 2, "twice"),
        (["render", "--json", "[7]"], 2, "--json is not a JSON object"),
        (["render", "--json", "{nope"], 2, "--json is not JSON"),
        (["render", "--json", '{"report_id": NaN}'], 2, "NaN is not JSON"),
        (["render", "report_id=7", "--json", "{}"], 2, "once"),
        (["render", "report_id=7", "--meta", "why"], 2, "--meta is not JSON"),
        (["render", "report_id=7", "--delay", "soon"], 2, "is not a duration"),
        (["render", "report_id=7", "--at", "soon"], 2, "is not a time"),
        (["render", "report_id=7", "--delay", "1s", "--at", "2099-01-01"], 2, "not both"),
        (["render", "report_id=7", "--queue", "mail"], 2, "'mail' is not declared"),
        (["render", "report_id=7", "--on-conflict", "raise"], 2, "unique"),
        (["render", "report_id=7", "--priority", "99999999999"], 2, "priority"),
        (["render", "--file", "rows.ndjson", "--wait"], 2, "for one"),
        (["render", "--file", "rows.ndjson", "--idempotency-key", "k"], 2, "--idempotency-key are for one"),
        (["render", "report_id=7", "--idempotency-window", "1h"], 2, "without idempotency_key="),
        (["render", "--file", "absent.ndjson"], 2, "no such file"),
        (["render", "--file", "/"], 2, "--file /: it is a directory; nothing was enqueued"),
        (["render", "report_id=7", "--meta", "5"], 2, '--meta is not a JSON object; write e.g. {"why"'),
        (["gather", "parts=1"], 2, "takes a list"),
        (["render", "--no-app", '--json={"a": "\\u0000"}'], 2, "nothing was enqueued"),
    ],
)
def test_wrong_input_inserts_nothing(cli: Command, db: Db, words: list[str], code: int, told: str) -> None:
    assert told in cli.fails("enqueue", *words, code=code)
    assert jobs(db) == []


def test_a_file_is_inserted_as_a_whole(cli: Command, db: Db) -> None:
    rows = "".join(json.dumps({"report_id": n}) + "\n" for n in range(12_000))
    (cli.cwd / "rows.ndjson").write_text("\ufeff" + rows + "\n")
    assert cli("enqueue", "render", "--file", "rows.ndjson").out == "enqueued 12,000 jobs of render\n"
    found = db.execute(
        "SELECT count(*), sum((args->>'report_id')::int), min(priority) FROM pgworkers.job"
    ).fetchone()
    assert found == (12_000, sum(range(12_000)), 7)


@pytest.mark.parametrize(
    ("bad", "told"), [('{"report_id": "x"}', "expected `int`"), ("{", "not JSON"), ("7", "object")]
)
def test_a_bad_line_is_named_and_nothing_is_inserted(cli: Command, db: Db, bad: str, told: str) -> None:
    rows = '{"report_id": 1}\n' * 6000 + bad + "\n"
    said = cli.fails("enqueue", "render", "--file", "-", given=rows, code=2)
    assert said.startswith("stdin line 6001: ")
    assert told in said
    assert jobs(db) == []


def test_a_line_that_is_not_utf8_is_named(cli: Command, db: Db) -> None:
    rows = b'{"report_id": 1}\n{"report_id": 2, "fmt": "\xff"}\n'
    said = cli.fails("enqueue", "render", "--file", "-", given=rows, code=2)
    assert said == "stdin line 2: the line is not UTF-8 (byte 0xff at column 26); nothing was enqueued"
    assert jobs(db) == []


def test_an_empty_file_enqueues_no_jobs(cli: Command, db: Db) -> None:
    assert cli("enqueue", "render", "--file", "-", "-o", "json").json() == {"enqueued": 0, "task": "render"}


def test_without_an_app_it_goes_by_name(cli: Command, db: Db, tmp_path: Path) -> None:
    db.execute("INSERT INTO pgworkers.task VALUES ('known', 'reports', 4, 6, 3)")
    (tmp_path / "app.py").unlink()
    cli("enqueue", "known", "a=1", "b=text")
    cli("enqueue", "unheard", "--no-app", "--queue", "somewhere")
    cli("enqueue", "known", "--file", "-", given='{"n": 1}\n{"n": 2}\n')
    first, second, *rest = jobs(db)
    assert (first["queue"], first["priority"], first["max_attempts"], first["args"]) == (
        "reports",
        4,
        6,
        {"a": 1, "b": "text"},
    )
    assert (second["queue"], second["task"]) == ("somewhere", "unheard")
    assert [(job["queue"], job["args"]) for job in rest] == [("reports", {"n": 1}), ("reports", {"n": 2})]


@pytest.mark.parametrize(
    ("app", "told"),
    [
        ("import nonsense_module", "No module named 'nonsense_module'"),
        ("x = 1\n1 / 0\n", "ZeroDivisionError: division by zero"),
        ("def broken(:\n", "SyntaxError"),
        ("raise SystemExit(0)", "sys.exit()"),
        ("app = None", "no App in it"),
    ],
)
def test_a_broken_app_is_one_line_with_its_place(cli: Command, db: Db, app: str, told: str) -> None:
    (cli.cwd / "app.py").write_text(app)
    said = cli.fails("enqueue", "render", code=6)
    assert told in said
    assert "app.py" in said
    assert jobs(db) == []


def test_the_schema_of_the_app_is_used(cli: Command, db: Db) -> None:
    (cli.cwd / "app.py").write_text(APP.replace("App()", 'App(schema="jobs")'))
    assert "no schema jobs" in cli.fails("enqueue", "render", "report_id=7", code=5)
    assert jobs(db) == []


def waits(cli: Command, db: Db, verdict: str, *words: str, result: str = '{"url":"x"}') -> CommandResult:
    """Enqueue with --wait, and end the job as a host would."""
    found: list[CommandResult] = []
    thread = threading.Thread(
        target=lambda: found.append(cli("enqueue", "render", "report_id=7", *words, code=None))
    )
    thread.start()
    try:
        while (
            alive := thread.is_alive()
        ):  # asked first: with a short --wait it may end right after its job is there
            if jobs(db):
                break
            time.sleep(0.01)
        assert alive or jobs(db)
        if verdict:
            db.execute(
                """WITH gone AS (DELETE FROM pgworkers.job RETURNING *)
                INSERT INTO pgworkers.history (id, state, verdict, priority, queue, task, args, lease, attempt, crashes,
                       max_attempts, max_crashes, created_at, run_at, result, errors)
                SELECT id, %s, 'error', 0, queue, task, args, 1, 1, 0, 1, 3, created_at, run_at, %s, '{boom}'
                  FROM gone""",
                [verdict, result],
            )
            db.execute("SELECT pg_notify('pgworkers_done', '*')")
    finally:
        thread.join(60)
    return found[0]


def test_wait_prints_the_result(cli: Command, db: Db) -> None:
    said = waits(cli, db, "succeeded", "--wait=50s")
    assert (said.code, said.out) == (0, '{"url":"x"}\n')
    assert "enqueued on reports" in said.err


def test_a_result_paints_nothing_and_is_json(cli: Command, db: Db) -> None:
    said = waits(cli, db, "succeeded", "--wait", result='"\\u001b[2J\\u202e\\n"')
    assert (said.code, said.out) == (0, '"\\u001b[2J\\u202e\\n"\n')


def test_wait_fails_with_the_job(cli: Command, db: Db) -> None:
    said = waits(cli, db, "dead", "--wait")
    assert (said.code, said.out) == (1, "")
    assert "is dead: boom" in said.err


def test_wait_gives_up_in_time(cli: Command, db: Db) -> None:
    said = waits(cli, db, "", "--wait", "50ms")
    assert said.code == 1
    assert "the jobs go on" in said.err


def test_an_app_that_never_finishes_importing_is_given_up(tmp_path: Path, dsn: str) -> None:
    cli = Command(tmp_path, DATABASE_URL=dsn)
    (cli.cwd / "app.py").write_text("import time\ntry:\n    time.sleep(600)\nexcept Exception:\n    pass\n")
    told = cli("enqueue", "render", code=6, PGWORKERS_IMPORT_TIMEOUT="2.2s").err
    assert "importing app.py …" in told
    assert "took longer than 2.2s; nothing was enqueued" in told
    assert "--no-app" in told


def test_an_app_that_dies_while_it_is_imported_says_where(tmp_path: Path, dsn: str) -> None:
    cli = Command(tmp_path, DATABASE_URL=dsn)
    (cli.cwd / "app.py").write_text("import ctypes\ndef dies():\n    ctypes.string_at(0)\ndies()\n")
    told = cli("enqueue", "render", code=None)
    assert told.code not in (0, 1)
    assert "Segmentation fault" in told.err
    assert 'app.py", line 3 in dies' in told.err
