"""Parse the ids, times, arguments and filters that people type. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import click

from pgworkers import units
from pgworkers.bounds import MAX_BIGINT
from pgworkers.errors import UsageError
from pgworkers.job.model import JobState

F = TypeVar("F", bound=Callable[..., Any])

_DURATION = re.compile(
    r"(?:\d++(?:\.\d++)?(?:ms|s|m|h|d|w)?)++"
)  # ++: nothing is tried twice, however long a word is


def parse_job_id(value: str) -> int:
    """`1042` or `#1042`."""
    text = value.removeprefix("#")
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) <= MAX_BIGINT):
        raise click.BadParameter(f"{value!r} is not a job's number; write 1042 or '#1042'")
    return int(text)


def parse_duration(value: str | float) -> float:
    """`30s`, `5m`, `1h30m` or a number of seconds."""
    try:
        return units.parse_duration(value, what="time")
    except UsageError as exc:
        raise click.BadParameter(str(exc)) from None


def parse_wait_duration(value: str | float) -> float:
    """A duration, or nothing for as long as it takes."""
    return math.inf if value == "" else parse_duration(value)


def parse_moment(value: str | datetime) -> datetime:
    """An ISO date and time; without an offset it is local time."""
    try:
        return value if isinstance(value, datetime) else datetime.fromisoformat(value).astimezone()
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            f"{value!r} is not a time; write 2026-03-01T08:00 or 2026-03-01T08:00+01:00"
        ) from None


def parse_printable(value: str) -> str:
    """A word that becomes part of a line of a file: a line end in it would begin another line there."""
    if not value or not value.isprintable():
        raise click.BadParameter(f"{value!r} cannot stand in a line; leave out what cannot be printed")
    return value


def expand_bare_wait(args: list[str]) -> list[str]:
    """`--wait` alone is `--wait=`; a duration after it belongs to it, anything else does not."""
    found: list[str] = []
    for word in args:
        if found and found[-1] == "--wait=" and _DURATION.fullmatch(word):
            found[-1] += word
        else:
            found.append("--wait=" if word == "--wait" else word)
    return found


def parse_named_arguments(given: Iterable[str], read: Callable[[str, str], Any]) -> dict[str, Any]:
    """`k=v …` as arguments, each value read by `read(name, text)`."""
    found: dict[str, Any] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(
                f"{pair!r} is not an argument; write name=value, e.g. report_id=7; nothing was enqueued"
            )
        if name in found:
            raise UsageError(f"{name} is given twice; nothing was enqueued")
        found[name] = read(name, value)
    return found


def parse_scalar(text: str) -> Any:
    """A JSON value if it is one, else the text itself."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text


def parse_json_object(
    text: str | bytes, what: str, example: str = 'name the arguments, e.g. {"report_id": 7}'
) -> dict[str, Any]:
    """A JSON object, or a UsageError that says where it came from."""
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as exc:
            raise UsageError(
                f"{what} is not UTF-8 (byte 0x{text[exc.start]:02x} at column {exc.start + 1}); nothing was enqueued"
            ) from None
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except ValueError as exc:
        raise UsageError(f"{what} is not JSON: {exc}; nothing was enqueued") from None
    except RecursionError:
        raise UsageError(f"{what} is nested too deeply; nothing was enqueued") from None
    if not isinstance(value, dict):
        raise UsageError(f"{what} is not a JSON object; {example}; nothing was enqueued")
    return value


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def job_filter_options(command: F) -> F:
    """The options that choose jobs."""
    for option in (
        click.option(
            "--task", multiple=True, metavar="TASK", help="Only jobs of this task; may be repeated."
        ),
        click.option(
            "--queue", multiple=True, metavar="QUEUE", help="Only jobs of this queue; may be repeated."
        ),
        click.option(
            "--state",
            multiple=True,
            type=click.Choice([str(state) for state in JobState]),
            help="Only jobs in this state; may be repeated.",
        ),
    ):
        command = option(command)
    return command


def parse_states(given: Sequence[str]) -> list[JobState]:
    return [JobState(name) for name in given]


WAITING_STATES = (JobState.SCHEDULED, JobState.READY)
