"""How the command line behaves before it touches a database: help, usage, start-up files, signals, pipes."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.command import Command

from pgworkers.cli import database
from pgworkers.cli.invocation import Invocation
from pgworkers.cli.root import COMMANDS

Db = psycopg.Connection[Any]


@pytest.fixture
def cli(tmp_path: Path) -> Command:
    return Command(tmp_path)


def test_help_needs_nothing_and_teaches(cli: Command) -> None:
    for words in (["--help"], ["-h"], []):
        shown_database = cli(*words).out
        assert "pgworkers enqueue render report_id=7" in shown_database
        for name in COMMANDS:
            assert f"  {name} " in shown_database
    assert cli("--version").out.startswith("pgworkers ")


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help(cli: Command, name: str) -> None:
    assert cli(name, "--help", PGWORKERS_CONFIG="broken.py").out.startswith(f"Usage: pgworkers {name}")


@pytest.mark.parametrize(
    ("words", "shown_database"),
    [
        (["jbos"], "there is no command 'jbos'; did you mean jobs? try `pgworkers --help`"),
        (["jobs", "lst"], "did you mean list"),
        (["jobs", "list", "--sate", "dead"], "--sate"),
        (["jobs", "list", "-o", "xml"], "'xml' is not one of"),
        (["jobs", "show"], "Missing argument 'ID'"),
        (["run", "-w", "0"], "--workers: 0 is out of range"),
        (["run", "-w", "many"], "auto"),
        (["run", "-Q", "a:"], "write a,b:4"),
        (["run", "--drain", "soon"], "drain_timeout: 'soon' is not a duration"),
        (["run", "--log", "xml"], "log_format='xml': use text or json"),
    ],
)
def test_wrong_words_are_one_line_that_says_what_to_do(
    cli: Command, words: list[str], shown_database: str
) -> None:
    (cli.cwd / "app.py").write_text("")
    assert shown_database in cli.fails(*words, code=2)


def test_run_without_an_app_says_how_to_get_one(cli: Command) -> None:
    assert "pgworkers init" in cli.fails("run", code=6)
    assert "no such file" in cli.fails("run", "--config", "nosuch.py", code=6)


def test_a_setting_that_cannot_hold_is_refused(cli: Command) -> None:
    assert "is too short" in cli.fails("config", "show", code=2, PGWORKERS_LEASE_DURATION="3s")


def test_init_writes_once_and_never_overwrites(cli: Command) -> None:
    (cli.cwd / "Procfile").write_text("web: mine\n")
    said = cli("init")
    assert said.lines() == ["wrote   app.py", "skipped Procfile (it exists)", "wrote   .env.example"]
    assert (cli.cwd / "Procfile").read_text() == "web: mine\n"
    assert all(line.startswith("skipped") for line in cli("init").lines())
    assert [row["written"] for row in cli("init", "sub/dir", "-o", "json").json()] == [True, True, True]


def test_the_app_that_init_writes_can_be_used(cli: Command, dsn: str, db: Db) -> None:
    cli("init")
    cli("enqueue", "count_primes", "below=100", DATABASE_URL=dsn)
    assert db.execute("SELECT task, args FROM pgworkers.job").fetchall() == [("count_primes", {"below": 100})]


def test_config_show_prints_the_source_of_each_value(cli: Command) -> None:
    (cli.cwd / "app.py").write_text(
        'from pgworkers import App\napp = App(drain_timeout="1m", poll_interval="2s", dsn="postgresql://bob:s3cret@db/app")\napp.queue("a")\n'
    )
    said = cli("config", "show", "-o", "json", "--schema", "jobs", PGWORKERS_POLL_INTERVAL="3s")
    found = {row["name"]: (row["value"], row["source"]) for row in said.json()}
    assert found["schema"] == ("jobs", "command line")
    assert found["poll_interval"] == ("3s", "PGWORKERS_POLL_INTERVAL")
    assert found["drain_timeout"] == ("1m", "app")
    assert found["lease_duration"] == ("30s", "default")
    assert found["dsn"] == ("postgresql://bob@db/app", "app")
    assert "s3cret" not in said.out + said.err


def test_config_show_prints_which_database_would_be_used_and_why(cli: Command) -> None:
    def shown_database(*words: str, **variables: str) -> tuple[str, str]:
        row = cli("config", "show", "-o", "json", *words, **variables).json()[0]
        assert row["name"] == "database"
        return row["value"], row["source"]

    home = cli.cwd / ".pgworkers"
    assert shown_database() == (f"embedded, in {home}", "no dsn, DATABASE_URL or PG* variable")
    assert shown_database(PGHOST="db", PGUSER="bob") == ("postgresql://bob@db/", "PG* variables")
    assert shown_database(DATABASE_URL="postgresql://u:s3cret@db/x") == (
        "postgresql://u@db/x",
        "DATABASE_URL",
    )
    assert shown_database("--dsn", "postgresql://db/y", DATABASE_URL="postgresql://db/x")[1] == "--dsn"
    (cli.cwd / "dsn").write_text("postgresql://db/z\n")
    assert shown_database("--dsn-file", "dsn", DATABASE_URL="postgresql://db/x")[0] == "postgresql://db/z"
    assert (
        shown_database(PGWORKERS_DSN_FILE="dsn", DATABASE_URL="postgresql://db/x")[0] == "postgresql://db/z"
    )
    assert "exclude each other" in cli.fails("--dsn", "x", "config", "show", "--dsn-file", "dsn", code=2)
    assert "exclude each other" in cli.fails("--dsn-file", "dsn", "config", "show", "--dsn", "x", code=2)
    (cli.cwd / "app.py").write_text(
        "from pgworkers import App\napp = App(dsn='postgresql://db/app')\napp.queue('a')\n"
    )
    assert shown_database() == ("postgresql://db/app", "the app's dsn")
    assert shown_database(PGHOST="elsewhere") == ("postgresql://db/app", "the app's dsn")
    assert shown_database(DATABASE_URL="postgresql://db/x") == ("postgresql://db/x", "DATABASE_URL")
    assert not home.exists()


def test_variables_that_mean_nothing_are_named(cli: Command) -> None:
    (cli.cwd / "app.py").write_text("1 / 0\n")
    fine = {"PGWORKERS_JOBS_LIST_LIMIT": "4", "PGWORKERS_WORKERS": "2", "PGWORKERS_DRAIN_TIMEOUT": "3s"}
    for words, code in ((["config", "show"], 0), (["run", "--check"], 6)):
        said = cli(*words, code=code, PGWORKERS_DRIAN_TIMEOUT="3s", PGWORKERS_XYZ="1", **fine)
        warned = [line for line in said.err.splitlines() if "no setting or option" in line]
        assert warned == [
            "pgworkers: warning: PGWORKERS_DRIAN_TIMEOUT is set, but no setting or option has this name; "
            "did you mean PGWORKERS_DRAIN_TIMEOUT?",
            "pgworkers: warning: PGWORKERS_XYZ is set, but no setting or option has this name; "
            "pgworkers config show --defaults lists the settings",
        ]


def closed(cli: Command, *words: str) -> int:
    """Run with stdin, stdout and stderr closed; the exit code."""
    argv = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *cli.argv(*words)]
    return subprocess.run(argv, cwd=cli.cwd, env=cli.environ, timeout=60, check=False).returncode


def test_closed_streams_cause_no_error(cli: Command, dsn: str, db: Db) -> None:
    """Without care the connection to the database becomes descriptor 1, and what is printed goes there."""
    cli("init")
    cli.environ["DATABASE_URL"] = dsn
    db.execute("SELECT pgworkers.enqueue('count_primes', '{\"below\": 10}')")
    assert closed(cli, "jobs", "list") == 0
    assert closed(cli, "run", "--check") == 0
    assert closed(cli, "run", "--burst", "--metrics", "off") == 0
    assert db.execute("SELECT state::text, result FROM pgworkers.jobs").fetchall() == [
        ("succeeded", {"primes": 4})
    ]


def test_threads_that_an_app_leaves_behind_do_not_keep_the_command(cli: Command, dsn: str) -> None:
    (cli.cwd / "app.py").write_text(
        "import threading\nfrom pgworkers import App\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "app = App()\napp.queue('default')\n@app.task\ndef f() -> None: ...\n"
    )
    assert "did you mean f?" in cli.fails("enqueue", "ff", code=3, DATABASE_URL=dsn)
    assert cli("enqueue", "f", "-q", DATABASE_URL=dsn).lines() == ["1"]


def test_config_show_survives_a_broken_app(cli: Command) -> None:
    (cli.cwd / "app.py").write_text("1 / 0\n")
    said = cli("config", "show")
    assert "ZeroDivisionError" in said.err
    assert "drain" in said.out
    assert "drain" in cli("config", "show", "--defaults").out


def test_a_broken_app_only_matters_when_it_must_be_asked(cli: Command, dsn: str) -> None:
    (cli.cwd / "app.py").write_text("x = 1\n1 / 0\n")
    shown_database = cli.fails("jobs", "list", code=6)
    assert "ZeroDivisionError" in shown_database
    assert "app.py" in shown_database
    said = cli("jobs", "list", DATABASE_URL=dsn)
    assert "warning" in said.err
    assert cli("jobs", "list", DATABASE_URL=dsn, PGWORKERS_SCHEMA="pgworkers").err == "no jobs\n"


def test_the_apps_own_database_is_found(cli: Command, dsn: str, db: Db) -> None:
    (cli.cwd / "shop.py").write_text(f"from pgworkers import App\napp = App(dsn={dsn!r})\napp.queue('a')\n")
    db.execute("SELECT pgworkers.enqueue('render')")
    assert len(cli("jobs", "-c", "shop.py", "list", "-o", "json").json()) == 1
    assert len(cli("jobs", "list", "-o", "json", PGWORKERS_CONFIG="shop:app").json()) == 1


def test_without_a_database_the_embedded_server_next_to_the_app_is_used(cli: Command) -> None:
    shop = cli.cwd / "shop"
    cli("init", str(shop))
    words = ["-c", str(shop / "app.py")]
    assert "no embedded server" in cli.fails("jobs", "list", *words, code=4)
    cli("migrate", "up", *words)
    number = cli("enqueue", "count_primes", "-q", *words).out.strip()
    assert cli("jobs", "list", "-q", *words).lines() == [number]
    assert (shop / ".pgworkers").is_dir()
    assert not (cli.cwd / ".pgworkers").exists()


def test_the_environment_loses_to_what_was_typed(cli: Command) -> None:
    assert cli("version", PGWORKERS_OUTPUT="json").out.startswith("{")
    assert not cli("version", "-o", "table", PGWORKERS_OUTPUT="json").out.startswith("{")


def test_an_unexpected_error_is_one_line_unless_asked(cli: Command) -> None:
    (cli.cwd / "rows").mkdir()
    os.symlink("loop", cli.cwd / "loop")
    shown_database = cli.fails("init", "loop/deeper", code=1)
    assert "loop" in shown_database
    assert "Traceback" in cli("-v", "init", "loop/deeper", code=1).err
    assert "Traceback" in cli("init", "loop/deeper", code=1, PGWORKERS_DEBUG="1").err


def test_ctrl_c_is_quiet(cli: Command, dsn: str, db: Db) -> None:
    job = db.execute("SELECT id FROM pgworkers.enqueue('render')").fetchone()
    assert job is not None
    argv = cli.argv("jobs", "wait", str(job[0]), "--dsn", dsn, "--schema", "pgworkers")
    # A shell's background job has SIGINT ignored, and would pass that on.
    reset = "import os, signal, sys; signal.signal(2, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    foreground = [sys.executable, "-c", reset]
    with subprocess.Popen(
        [*foreground, *argv], cwd=cli.cwd, env=cli.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as waiting:
        listening = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgworkers cli' AND state = 'idle'"
        while db.execute(listening).fetchone() != (1,):
            assert waiting.poll() is None
        waiting.send_signal(signal.SIGINT)
        out, err = waiting.communicate(timeout=30)
    assert (waiting.returncode, out, err) == (130, b"", b"")


def test_a_ctrl_c_between_a_query_and_its_answer_is_quiet(
    dsn: str, db: Db, caplog: pytest.LogCaptureFixture
) -> None:
    """psycopg would warn of a rollback that it cannot do; without a handler that is a line on stderr."""
    said = Invocation(dsn=dsn, schema="pgworkers")
    opened = database.open_database(said)
    conn = opened.__enter__().conn
    conn.pgconn.send_query(b"SELECT pg_sleep(30)")
    assert not opened.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert conn.closed
    assert caplog.records == []


def test_a_reader_that_closes_the_pipe_causes_no_error(cli: Command, dsn: str, db: Db) -> None:
    db.execute(
        "SELECT pgworkers.enqueue('render', jsonb_build_object('n', n)) FROM generate_series(1, 5000) n"
    )
    argv = cli.argv("jobs", "list", "-o", "ndjson", "--limit", "5000", "--dsn", dsn, "--schema", "pgworkers")
    with subprocess.Popen(
        argv, cwd=cli.cwd, env=cli.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.readline()
        listing.stdout.close()
        assert listing.stderr.read() == b""
        assert listing.wait(timeout=30) in (0, 1)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)


def test_a_terminal_gets_a_drawn_table_that_fits(
    cli: Command, dsn: str, db: Db, terminal: tuple[int, int]
) -> None:
    db.execute(
        "SELECT pgworkers.enqueue('render', jsonb_build_object('text', repeat('x', 500), 'evil', E'\\x1b[2J'))"
    )
    ours, theirs = terminal
    argv = cli.argv("jobs", "list", "--dsn", dsn, "--schema", "pgworkers")
    environ = {**cli.environ, "TERM": "xterm", "COLUMNS": "90"}
    with subprocess.Popen(argv, cwd=cli.cwd, env=environ, stdout=theirs, stderr=theirs) as listing:
        os.close(theirs)
        shown_database = b"".join(_until_closed(ours)).decode()
    assert listing.returncode == 0
    assert "…" in shown_database
    assert "\x1b[2J" not in shown_database
    assert "ready" in shown_database


def _until_closed(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(descriptor, 65536)
        except OSError:  # the other end is closed
            return
        if not data:
            return
        yield data


def test_python_m_and_the_script_are_the_same(cli: Command) -> None:
    script = Path(sys.executable).with_name("pgworkers")
    out = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert out == cli("--version").out
