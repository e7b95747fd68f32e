"""Escape texts of jobs, so that they cannot forge a log line or a command, or control a terminal. Pure."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable
from typing import Any

_SURROGATES = re.compile("[\ud800-\udfff]")


def printable(text: str, keep: str = "") -> str:
    """Control characters, escape sequences, line ends and marks that turn the direction of writing: shown, not sent."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape", "backslashreplace").decode()
        for c in text
    )


def escape_line(text: str, limit: int = 300) -> str:
    """One printable line of at most `limit` characters, whatever a job put into it."""
    if len(text) <= limit:
        return printable(text)
    return printable(text[:limit]) + "…"


def shell_command(verb: str, *operands: object, **options: object) -> str:
    """A pgworkers command that is safe to paste into a shell, whatever characters its names contain.

    `command("jobs list", queue="a b", state="ready")` is `pgworkers jobs list --queue 'a b' --state ready`.
    An option whose value is True is a flag. Operands that look like options are put behind `--`. This is
    where every command with a name or an id is written: names of queues, tasks and schedules come from any client.
    """
    flags = []
    for name, value in options.items():
        flags.append(f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}")
        if value is not True:
            flags.append(str(value))
    words = [str(operand) for operand in operands]
    if any(word.startswith("-") for word in words):
        words = [*flags, "--", *words]
    else:
        words += flags
    return printable(shlex.join(["pgworkers", *verb.split(), *words]))


def encode_json_line(record: dict[str, Any]) -> str:
    """A record as one line of JSON in which everything that cannot be printed is escaped."""
    return escape_json(encode_json(record).decode())


def encode_json(value: Any) -> bytes:
    """Encode any value as JSON. A lone surrogate, which decoders reject, is replaced."""
    try:
        return _encoder()(value)
    except UnicodeEncodeError:
        import msgspec

        return _encoder()(_replace_surrogates(msgspec.to_builtins(value, enc_hook=str)))


@functools.cache
def _encoder() -> Callable[[Any], bytes]:
    import msgspec  # not for `pgworkers --help`, which escapes as well

    return msgspec.json.Encoder(enc_hook=str).encode


def escape_json(text: str, keep: str = "") -> str:
    """The same JSON with every character that cannot be printed escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _json_escape(c) for c in text)


def _json_escape(char: str) -> str:
    """The same character as JSON writes it in ASCII; above the basic plane as two halves."""
    data = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{data[at]:02x}{data[at + 1]:02x}" for at in range(0, len(data), 2))


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATES.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_replace_surrogates(str(key)): _replace_surrogates(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_replace_surrogates(one) for one in value]
    if isinstance(value, (int, float, type(None))):
        return value
    return _replace_surrogates(str(value))
