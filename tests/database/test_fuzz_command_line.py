"""Any text at all as a word of the command line: refused in one sentence, or taken; it forges no line and shows no password.

The commands, their arguments and options are taken from the command line itself: a new one is tried with the others, typed
or in its variable. Texts are what an argv can hold: no NUL, but bytes that are no UTF-8 (to Python lone surrogates),
controls, escape sequences, markup, options, format signs. A few in the suite, TEXT_EXAMPLES=1000 for more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb
from support.argv_texts import CANARY, NASTY, judge, texts
from support.command import Command, ForkedCommand, InProcessCommand
from support.server import Server

from pgworkers.cli.invocation import OutputFormat
from pgworkers.cli.parameters import parse_wait_duration
from pgworkers.cli.root import walk_commands
from pgworkers.settings import setting_names

OUTPUTS = st.sampled_from([str(output) for output in OutputFormat])
FEW = settings(
    max_examples=int(os.environ.get("TEXT_EXAMPLES", "3")),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
HOW = settings(FEW, max_examples=int(os.environ.get("TEXT_EXAMPLES", "8")))
WAYS = ["--a=b", "--a b", "variable"]
NOWHERE = "host=127.0.0.1 port=1"
#: Words that a command gets besides, so that it ends; left out where they are what is tried.
BESIDES = {
    "run": ["--check"],
    "top": ["--once"],
    "jobs wait": ["--timeout=0.1s"],
    "queues drain": ["--timeout=0.1s"],
    "bench": ["--dsn", NOWHERE],  # read like any other, but it does not work for a minute
}
#: Commands that start an embedded server once their words are read: here its directory is a file.
STARTS_A_SERVER = {"pg start", "pg psql"}
#: What makes the rest of a command work, when another of its words is tried.
WORKS = {
    "job_ids": ["1"],
    "job": ["1"],
    "when": ["+10m", "now"],
    "number": ["1", "2"],
    "given": ["value=1"],
    "task": ["take"],
    "name": ["default", "nightly", "promote"],
    "names": ["empty"],
    "workers": ["2"],
    "slots": ["2"],
    "role": ["web"],
    "ids": ["1"],
    "keep": ["1d"],
    "state": ["dead", "ready"],
    "queue": ["default"],
    "directory": ["out"],
    "worker": ["default/0", "default"],
}
#: They write a file or a script to stdout, whatever -o says.
WRITES = {"export alerts", "export docker", "export k8s", "export procfile", "export systemd"}
WRITES |= {"migrate sql", "migrate roles"}
ODD = "\x1b[2J\npgworkers: error: forged \udcff\u202e"
#: Addresses whose password is the canary, with texts around it.
DSNS = [
    "postgresql://u:<text>c4nary<text>@127.0.0.1:1/x",
    "postgresql://u:<quoted>c4nary@127.0.0.1:1/x",
    "postgresql://<text>:c4nary@127.0.0.1:1/x",
    "postgresql://u:c4nary@<text>:1/x",
    "postgresql://u:c4nary@127.0.0.1:<text>/x",
    "postgresql://u:c4nary@127.0.0.1:1/<text>",
    "postgresql://u:c4nary@127.0.0.1:1/x?<text>=<text>",
    "postgresql://127.0.0.1:1/x?<text>&password=<text>c4nary",
    "postgresql://127.0.0.1:1/x?user=<quoted>&password=<quoted>c4nary",
    "<text>postgresql://u:c4nary@127.0.0.1:1/x",
    "postgres<text>://u:c4nary@127.0.0.1:1/x",
    "u:c4nary@127.0.0.1:1/<text>",
    "host=127.0.0.1 port=1 password=<text>c4nary",
    "host=127.0.0.1 port=1 password='<text>c4nary<text>'",
    "host=127.0.0.1 port=1 password='c4nary' <text>=<text>",
    "host=127.0.0.1 port=1 password = c4nary user=<text>",
    "password=c4nary<text>",
]
APP = """
from pgworkers import App
app = App()
app.queue("default")

@app.schedule("0 3 * * *", name="nightly", args={"value": 1})
@app.task
def take(value: object) -> object:
    return value
"""


@dataclass(frozen=True)
class Leaf:
    """A command, by the words that name it."""

    name: str
    command: click.Command = field(repr=False)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Word:
    """One argument or option of a command."""

    leaf: Leaf
    parameter: click.Parameter = field(repr=False)

    def __str__(self) -> str:
        return f"{self.leaf} {self.parameter.opts[-1]}"


FOUND = [(name.removeprefix("pgworkers").strip(), command) for name, command, _ in walk_commands()]
LEAVES = [Leaf(name, command) for name, command in FOUND if not isinstance(command, click.Group)]
GROUPS = [name for name, command in FOUND if isinstance(command, click.Group)]
GLOBAL = {"config", "dsn", "schema", "output"}
WORDS = [
    Word(leaf, parameter)
    for leaf in LEAVES
    for parameter in leaf.command.params
    if not getattr(parameter, "is_flag", False) and parameter.name not in GLOBAL
]


@pytest.fixture(scope="module")
def database(server: Server, template: str) -> Iterator[str]:
    """One for all: no word is judged by the rows that others left."""
    name = server.create(template=template)
    yield server.dsn(name)
    server.drop(name)


@pytest.fixture
def pgworkers(database: str, tmp_path: Path) -> InProcessCommand:
    """With rows that say nasty things, as far as the tables let them."""
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "file").touch()
    with psycopg.connect(database, autocommit=True) as conn:
        _fill(conn)
    return InProcessCommand(
        tmp_path,
        PGWORKERS_DSN=make_conninfo(database, password=CANARY),
        PGWORKERS_SCHEMA="pgworkers",
        PGWORKERS_STATEMENT_TIMEOUT="30s",
    )


@pytest.fixture
def forked(pgworkers: InProcessCommand) -> ForkedCommand:
    """The same where a text decides what is imported."""
    return ForkedCommand(pgworkers.cwd, **pgworkers.environ)


def _fill(conn: psycopg.Connection[Any]) -> None:
    """If others have taken them away."""
    jobs = conn.execute("SELECT count(*) FROM pgworkers.job").fetchone()
    if jobs is not None and jobs[0] >= len(NASTY) / 2:
        return
    told = [text.encode(errors="replace").decode() for text in NASTY]
    with conn.cursor() as cursor:
        cursor.executemany(
            "SELECT pgworkers.enqueue('take', %s, 'default')",
            [(Jsonb({"value": text, text or "x": 1}),) for text in told],
        )
        cursor.executemany(
            "INSERT INTO pgworkers.host (id, name, pid, label, app, version, queues, lease)"
            " VALUES (gen_random_uuid(), %s, 1, %s, %s, %s, '{default}', '30s')",
            [[text[:60]] * 4 for text in told],
        )
    conn.execute("SELECT pgworkers.cancel(1)")


def test_what_the_tables_here_name_exists() -> None:
    names = {leaf.name for leaf in LEAVES}
    assert (BESIDES.keys() | STARTS_A_SERVER | WRITES) <= names
    assert {word.parameter.name for word in WORDS} >= WORKS.keys()


@pytest.mark.parametrize("word", WORDS, ids=str)
@HOW
@given(data=st.data())
def test_any_text_as_a_word_is_refused_in_a_sentence_or_taken(
    pgworkers: InProcessCommand, word: Word, data: st.DataObject
) -> None:
    leaf, output = word.leaf, data.draw(OUTPUTS)
    words, variables = [*leaf.name.split(), *besides(leaf, word.parameter)], around(pgworkers, leaf)
    for parameter in leaf.command.params:
        if parameter is word.parameter:
            tried, variable = typed(
                word, data.draw(texts(WORDS.index(word))), data.draw(st.sampled_from(WAYS))
            )
            words += tried
            variables |= variable
        elif parameter.required or (parameter.name in WORKS and data.draw(st.booleans())):
            words += typed(Word(leaf, parameter), data.draw(st.sampled_from(WORKS[parameter.name or ""])))[0]
    judge(pgworkers, "-o", output, *words, data=leaf.name not in WRITES, **variables)


@pytest.mark.parametrize("leaf", LEAVES, ids=str)
def test_what_rows_hosts_and_the_directory_are_called_forges_nothing(
    pgworkers: InProcessCommand, leaf: Leaf
) -> None:
    variables = around(pgworkers, leaf)
    pgworkers.cwd /= ODD
    pgworkers.cwd.mkdir()
    words = [*leaf.name.split(), *besides(leaf)]
    for parameter in leaf.command.params:
        if parameter.required:
            words += typed(Word(leaf, parameter), WORKS[parameter.name or ""][0])[0]
    for output in ("table", "json"):
        judge(pgworkers, "-o", output, *words, data=leaf.name not in WRITES, **variables)


@pytest.mark.parametrize("group", GROUPS, ids=lambda name: f"pgworkers {name}")
@HOW
@given(data=st.data())
def test_any_text_as_a_command_is_refused_in_a_sentence(
    pgworkers: InProcessCommand, group: str, data: st.DataObject
) -> None:
    text = data.draw(texts(GROUPS.index(group)))
    judge(pgworkers, *group.split(), text)
    judge(pgworkers, "-v", *group.split(), text)


@pytest.mark.parametrize(
    "command", ["jobs list", "config show", "run --check", "enqueue take value=1", "migrate sql"]
)
@pytest.mark.parametrize("option", sorted(GLOBAL))
@FEW
@given(data=st.data())
def test_any_text_as_a_global_option_is_refused_in_a_sentence_or_taken(
    forked: ForkedCommand, option: str, command: str, data: st.DataObject
) -> None:
    text = data.draw(texts(5 * len(option) + len(command)))
    if option == "config":
        text = data.draw(st.sampled_from(["{}", "{}.py", "app.py:{}", "app:{}", "{}/app.py"])).replace(
            "{}", text
        )
    # Whatever address a text becomes: no name is resolved, and no port is opened.
    variables = {"PGHOSTADDR": "127.0.0.1", "PGPORT": "1"} if option == "dsn" else {}
    if data.draw(st.booleans()):
        judge(forked, *command.split(), data=False, **variables, **{f"PGWORKERS_{option.upper()}": text})
    else:
        judge(forked, *command.split(), f"--{option}={text}", data=False, **variables)


@pytest.mark.parametrize("command", ["config show", "enqueue take value=1", "export systemd", "pg status"])
@FEW
@given(data=st.data())
def test_an_app_in_a_file_of_any_name_is_found_or_refused(
    forked: ForkedCommand, command: str, data: st.DataObject
) -> None:
    name = inside(data.draw(texts(2 * len(command)))) + ".py"
    (forked.cwd / name).write_text(APP)
    judge(forked, *command.split(), "-c", name, PGWORKERS_SCHEMA="")


@pytest.mark.parametrize("dsn", DSNS)
@HOW
@given(data=st.data())
def test_no_password_is_shown_of_a_dsn_with_any_text(
    pgworkers: InProcessCommand, dsn: str, data: st.DataObject
) -> None:
    text = data.draw(texts(DSNS.index(dsn)))
    address = dsn.replace("<text>", text).replace("<quoted>", quote(text, errors="surrogateescape"))
    command = data.draw(st.sampled_from(["jobs list", "config show", "-v jobs list"]))
    nobody = {"PGHOSTADDR": "127.0.0.1", "PGPORT": "1", "PGPASSWORD": CANARY}
    (pgworkers.cwd / "app.py").unlink(missing_ok=True)
    judge(pgworkers, *command.split(), f"--dsn={address}", **nobody)


@pytest.mark.parametrize("name", setting_names())
@HOW
@given(data=st.data())
def test_any_text_as_a_setting_is_refused_in_a_sentence_or_taken(
    pgworkers: InProcessCommand, name: str, data: st.DataObject
) -> None:
    (pgworkers.cwd / "app.py").unlink(missing_ok=True)
    variable = {f"PGWORKERS_{name.upper()}": data.draw(texts(setting_names().index(name)))}
    judge(
        pgworkers,
        "config",
        "show",
        "-o",
        data.draw(OUTPUTS),
        **variable,
    )


def besides(leaf: Leaf, tried: click.Parameter | None = None) -> list[str]:
    words = BESIDES.get(leaf.name, [])
    return [] if tried and words and words[0].startswith(tried.opts[-1]) else words


def around(pgworkers: Command, leaf: Leaf) -> dict[str, str]:
    return (
        {"PGWORKERS_EMBEDDED_DIRECTORY": str(pgworkers.cwd / "file")} if leaf.name in STARTS_A_SERVER else {}
    )


def typed(word: Word, value: str, way: str = "--a=b") -> tuple[list[str], dict[str, str]]:
    """As a person would type it, or put it into its variable."""
    parameter = word.parameter
    if isinstance(parameter.type, click.Path):  # it is written to: not outside of the test's directory
        value = inside(value)
    if str(word) == "enqueue --wait" and _lasting(value):
        value = "0.1s"  # there is no worker: it would wait for as long as the option says
    if isinstance(parameter, click.Argument):
        return [value], {}
    if way == "variable" and parameter.allow_from_autoenv:
        return [], {re.sub("[ -]", "_", f"PGWORKERS_{word.leaf.name}_{parameter.name}".upper()): value}
    if way == "--a b" and (value or str(word) != "enqueue --wait"):  # which alone waits for ever
        return [parameter.opts[-1], value], {}
    return [f"{parameter.opts[-1]}={value}"], {}


def inside(text: str) -> str:
    return "./" + text.replace("/", "").replace("..", "")[:60]


def _lasting(value: str) -> bool:
    try:
        parse_wait_duration(value)
    except click.ClickException:
        return False
    return True
