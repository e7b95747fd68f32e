"""How the command line reads words and says times, arguments and secrets. Pure."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from inspect import signature
from typing import Any, Literal

import click
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis.strategies import text

from pgworkers.cli import output
from pgworkers.cli.enqueue_job import read_typed_argument, split_arguments
from pgworkers.cli.error_report import (
    escape_to_one_line,
    explain_error,
    redact_connection_strings,
    report_error,
    run_command_line,
)
from pgworkers.cli.formatting import (
    plural,
    relative_time,
    shorten,
    show_arguments,
    show_progress_value,
    terminal_safe,
)
from pgworkers.cli.invocation import Invocation
from pgworkers.cli.output import align_columns, fit_columns
from pgworkers.cli.parameters import (
    expand_bare_wait,
    parse_job_id,
    parse_json_object,
    parse_moment,
    parse_named_arguments,
    parse_scalar,
    parse_wait_duration,
)
from pgworkers.cli.run import parse_queues, parse_workers
from pgworkers.errors import UsageError
from pgworkers.options.values import read_cli_name
from pgworkers.units import format_duration, parse_duration, parse_size

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("away", "told"),
    [(0, "now"), (-42, "42s ago"), (-125, "2m ago"), (-7300, "2h ago"), (-200000, "2d ago"), (90, "in 1m")],
)
def test_times_are_relative(away: int, told: str) -> None:
    assert relative_time(NOW + timedelta(seconds=away), NOW) == told


def test_arguments_read_like_a_call() -> None:
    assert (
        show_arguments({"report_id": 7, "fmt": "png", "tags": ["ä", None]})
        == 'report_id=7, fmt="png", tags=["ä",null]'
    )


def test_text_from_a_job_cannot_steer_a_terminal() -> None:
    assert terminal_safe("a\x1b[2Jb\r\n") == "a\\x1b[2Jb\\r\\n"
    assert terminal_safe("one\n\ttwo\x07", should_keep_lines=True) == "one\n\ttwo\\x07"
    assert terminal_safe("\u202eevil") == "\\u202eevil"


def test_long_text_is_cut_visibly() -> None:
    assert shorten("x" * 300, 10) == "x" * 9 + "…"
    assert shorten("first\nsecond") == "first …"
    assert (plural(1, "job"), plural(12000, "job")) == ("1 job", "12,000 jobs")


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://bob:s3cret@db/app refused",
        'invalid dsn: missing "=" after "postgres//bob:s3cret@db" x://a:s3cret@h',
        "host=db password=s3cret user=bob",
        "password = 's3cret with \\' blank' host=db",
        "postgresql://db/app?password=s3cret&user=bob",
        "postgresql://bob:s3c@s3cret@db/app",
    ],
)
def test_passwords_are_scrubbed(text: str) -> None:
    assert "s3cret" not in redact_connection_strings(text)


def test_an_error_is_one_line() -> None:
    assert escape_to_one_line("first\n  second\x1b[0m\n") == "first second\\x1b[0m"
    assert explain_error(UsageError("no")) == ("no", 2)


def test_plain_tables_are_aligned_and_never_cut() -> None:
    wide = "x" * 300
    table = align_columns(["id", "task"], [["7", "日本"], ["1042", wide]])
    assert table == ["  ID  TASK", "   7  日本", f"1042  {wide}"]


def test_only_free_text_is_shortened_on_a_narrow_terminal() -> None:
    (row,) = fit_columns(["id", "task", "arguments", "error"], [["1042", "t" * 30, "a" * 300, "日" * 40]], 80)
    assert row[:2] == ["1042", "t" * 30]
    assert row[2].endswith("a…")
    assert row[3].endswith("日…")
    assert fit_columns(["id", "error"], [["1042", "e" * 20]], 80) == [["1042", "e" * 20]]


def test_values_are_json_where_they_are() -> None:
    assert [parse_scalar(text) for text in ("7", "true", "[1]", "null", "png", "NaN", "")] == [
        7,
        True,
        [1],
        None,
        "png",
        "NaN",
        "",
    ]


def _task(a: str, b: int, c: str | None = None, d: Literal["1", "2"] = "1", e: Any = None) -> None: ...


def test_values_follow_the_annotation() -> None:
    declared = signature(_task, eval_str=True)
    read = parse_named_arguments(
        ["a=7", "b=7", "c=null", "d=2", "e=[1]", "f=8"],
        lambda name, text: read_typed_argument(declared, name, text),
    )
    assert read == {"a": "7", "b": 7, "c": "null", "d": "2", "e": [1], "f": 8}


@pytest.mark.parametrize("word", ["seven", "=7", "a b=7", "--x=1"])
def test_a_word_that_is_not_an_argument_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="name=value"):
        parse_named_arguments([word], lambda name, text: text)


def test_an_argument_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="twice"):
        parse_named_arguments(["a=1", "a=2"], lambda name, text: text)


def test_parameters_by_position_can_be_named() -> None:
    def fn(a: int, /, b: int, *rest: int, c: int = 0) -> None: ...

    assert split_arguments(signature(fn), {"a": 1, "b": 2, "rest": [3, 4], "c": 5}) == (
        [1, 2, 3, 4],
        {"c": 5},
    )


@pytest.mark.parametrize("text", ["", "[1]", "{", "NaN", '{"a": NaN}', "[" * 100_000])
def test_json_that_is_not_an_object_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="nothing was enqueued"):
        parse_json_object(text, "--json")


def test_job_ids() -> None:
    assert parse_job_id("#1042") == parse_job_id("1042") == 1042
    for wrong in ("x", "-1", "0", "9" * 30, "1.5", "٣"):
        with pytest.raises(click.UsageError, match="not a job's number"):
            parse_job_id(wrong)


def test_moments_without_an_offset_are_local() -> None:
    assert parse_moment("2026-03-01T08:00+01:00") == datetime(2026, 3, 1, 7, 0, tzinfo=UTC)
    assert parse_moment("2026-03-01 08:00").tzinfo is not None
    with pytest.raises(click.UsageError, match="write 2026"):
        parse_moment("tomorrow")


def test_wait_takes_a_time_only_if_one_follows() -> None:
    assert expand_bare_wait(["--wait", "render", "a=1"]) == ["--wait=", "render", "a=1"]
    assert expand_bare_wait(["render", "--wait", "30s"]) == ["render", "--wait=30s"]
    assert expand_bare_wait(["--wait=1m", "render"]) == ["--wait=1m", "render"]
    assert math.isinf(parse_wait_duration(""))
    assert parse_wait_duration("1m30s") == 90


def test_workers_and_queues() -> None:
    assert parse_workers("4", 64) == 4
    assert 1 <= parse_workers("auto", 64) <= 64
    assert parse_workers("auto", 1) == 1
    assert parse_queues("a, b:4,", 64) == {"a": None, "b": 4}


@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(text(min_size=1, max_size=20), text(min_size=1, max_size=20))
def test_every_queue_that_may_be_declared_can_be_named(a: str, b: str) -> None:
    try:
        names = [read_cli_name(name, what="queue", limit=200) for name in (a, b)]
    except UsageError:
        assume(False)
    assume(a != b)
    assert parse_queues(f"{names[0]},{names[1]}:4", 64) == {a: None, b: 4}


def test_queues_that_cannot_be_meant() -> None:
    for wrong in ("0", "65", "many", "1.5"):
        with pytest.raises(UsageError, match="--workers"):
            parse_workers(wrong, 64)
    for wrong in ("", ",", "a:", ":4", "a:x"):
        with pytest.raises(UsageError, match="--queues"):
            parse_queues(wrong, 64)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0s"),
        (0.0042, "4.2ms"),
        (0.4, "0.4s"),
        (42, "42s"),
        (60, "1m"),
        (192, "3m12s"),
        (3600, "1h"),
        (7500, "2h05m"),
        (14 * 86400, "14d"),
        (273600, "3d4h"),
    ],
)
def test_durations_have_no_superfluous_zeros(seconds: float, told: str) -> None:
    assert format_duration(seconds) == told


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (None, ""),
        ({"done": 86499, "total": 199998}, "43% (86499 of 199998)"),
        ({"done": 3, "note": "page 3"}, "3, page 3"),
        ({"done": 3, "total": 0}, "3"),
        ({"done": 3, "other": 1}, '{"done":3,"other":1}'),
        ([1], "[1]"),
    ],
)
def test_progress_reads_like_a_sentence(said: Any, told: str) -> None:
    assert show_progress_value(said) == told


NASTY = "a\x1b[2J\x9b31m\u202e\u2028\r\npgworkers: error: forged"


def _forges(text: str) -> bool:
    return any(not c.isprintable() and c != "\n" for c in text) or "\npgworkers: error: forged" in text


@pytest.mark.parametrize(
    "words",
    [
        ["export", "systemd", "--user", NASTY],
        ["export", "systemd", "--directory", NASTY],
        ["export", "systemd", "--environment-file", NASTY],
        ["export", "docker", "--python", NASTY],
        ["export", "procfile", "-c", NASTY],
        ["export", "systemd", "-c", NASTY],
        ["-v", "jobs", "show", NASTY],
    ],
)
def test_a_word_that_cannot_stand_in_a_line_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(words) == 2
    out, err = capsys.readouterr()
    assert not out
    assert not _forges(err), "the traceback of -v cannot be painted on either"


@pytest.mark.parametrize(
    "words", [["config", "show", "--dsn", "\udcff"], ["export", "docker", "--python", "\udcff"]]
)
def test_undecodable_bytes_are_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(words) == 2
    assert "traceback" not in capsys.readouterr().err


def test_notes_and_json_cannot_be_forged(capsys: pytest.CaptureFixture[str]) -> None:
    """What an app is called, what a job returned: on a terminal too JSON is only text, and says the same."""
    output.print_warning(Invocation(), f"{NASTY} cannot be loaded")
    output.print_json({"value": NASTY})
    output.print_json_line({"value": NASTY})
    out, err = capsys.readouterr()
    assert not _forges(out)
    assert not _forges(err)
    document, _, line = out.strip().rpartition("\n")
    assert json.loads(document) == json.loads(line) == {"value": NASTY}


def test_messages_cannot_be_forged(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_text(NASTY)
    output.print_text(f" one\n\ttwo{NASTY[:6]}", should_keep_lines=True, head=NASTY)
    output.print_json_value(NASTY)
    output.print_script(f"a: {NASTY[:6]}\n")
    said = capsys.readouterr().out
    assert not _forges(said.replace("\t", ""))
    assert [line[:5] for line in said.splitlines()] == ["a\\x1b", "a\\x1b", "\ttwoa", '"a\\u0', "a: a\\"]


def test_a_name_that_is_half_a_character_is_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    """A file's name in Latin-1, say: the directory is there, and the message about it must not fail."""
    output.print_json([{"file": "caf\udce9", "at": NOW}])
    assert json.loads(capsys.readouterr().out) == [{"file": "caf\ufffd", "at": "2026-03-01T12:00:00Z"}]


LONG = 100_000  # less than an argv may hold; what is tried twice for each of them takes for ever


@pytest.mark.parametrize("word", ["1" * LONG + "x", "1s" * LONG + "!", "1." * LONG, "9" * LONG, "x" * LONG])
def test_a_word_is_read_in_a_time_that_grows_with_it(word: str) -> None:
    assert expand_bare_wait(["--wait", word]) in (["--wait=", word], [f"--wait={word}"])
    with pytest.raises(UsageError):
        parse_duration(word)
    with pytest.raises(UsageError):
        parse_size(word)


def test_an_error_about_a_long_word_begins_and_ends_as_others_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["jobs", "show", "x" * LONG]) == 2
    said = capsys.readouterr().err
    assert len(said) < 2100
    assert said.startswith("pgworkers: error: Invalid value for 'ID': 'xxx")
    assert said.endswith("try `pgworkers jobs show --help`\n")


@pytest.mark.parametrize("slot", ["²", "٣", "-1", "1e3", "", "9" * 10, "9" * 5000])
def test_a_slot_is_a_number_that_a_worker_may_have(slot: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["workers", "stop", f"render/{slot}"]) == 2
    assert "is not a worker; write QUEUE or QUEUE/SLOT" in capsys.readouterr().err


def test_a_traceback_cannot_be_forged(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_error(ValueError(NASTY), should_show_traceback=True) == 1
    said = capsys.readouterr().err
    assert not any(not c.isprintable() and c != "\n" for c in said)
