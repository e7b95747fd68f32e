"""Turn an exception into one line on stderr and an exit code. No other module does."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Sequence
from enum import IntEnum

import click

from pgworkers.cli.invocation import Invocation
from pgworkers.errors import PgworkersError
from pgworkers.observe.escape import printable


class ExitCode(IntEnum):
    """The exit codes of the command line that have a meaning of their own."""

    OK = 0
    FAILED = 1
    DATABASE_UNREACHABLE = 4
    SCHEMA_OUTDATED = 5
    INTERRUPTED = 130


MAX_SHOWN_ERROR_CHARACTERS = 2000  #: characters of an error

#: A password in a URL or in a keyword/value dsn, wherever a driver may quote one.
_PASSWORD_PATTERNS = (
    (
        re.compile(r"(//[^\s:/@]*)(?!:password@host:5432/)[:@]\S*@"),
        r"\1@",
    ),  # but for our own advice how to write one
    (re.compile(r"(password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&'\"]+)", re.IGNORECASE), r"\1***"),
)


def run_command_line(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    from pgworkers.cli.root import root

    invocation = Invocation()
    try:
        code = root.main(
            args=None if argv is None else list(argv),
            prog_name="pgworkers",
            standalone_mode=False,
            obj=invocation,
        )
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
        return 1
    except SystemExit as exc:  # click: the reader of our pipe has left
        return exc.code if isinstance(exc.code, int) else 1
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except Exception as exc:
        return report_error(
            exc, should_show_traceback=invocation.is_verbose or bool(os.environ.get("PGWORKERS_DEBUG"))
        )
    return code if isinstance(code, int) else 0


def report_error(exc: Exception, *, should_show_traceback: bool = False) -> int:
    """Say what went wrong in one line; the traceback only when it is asked for."""
    text, code = explain_error(exc)
    if should_show_traceback:
        print(
            printable(redact_connection_strings("".join(traceback.format_exception(exc))), "\n\t"),
            file=sys.stderr,
            end="",
        )
    elif code == 1 and not isinstance(exc, (PgworkersError, click.ClickException)):
        text += " (-v shows the traceback)"
    print(
        "pgworkers: error: " + _shorten_middle(redact_connection_strings(escape_to_one_line(text))),
        file=sys.stderr,
    )
    return code


def explain_error(exc: Exception) -> tuple[str, int]:
    """The text for a person and the exit code."""
    if isinstance(exc, PgworkersError):
        return str(exc), exc.exit_code
    if isinstance(exc, click.UsageError):
        path = exc.ctx.command_path if exc.ctx is not None else "pgworkers"
        text = exc.format_message().rstrip(".")
        return f"{text}{'' if text.endswith('?') else ';'} try `{path} --help`", 2
    if isinstance(exc, click.ClickException):
        return exc.format_message(), exc.exit_code
    if type(exc).__module__.partition(".")[0] == "psycopg":
        return _explain_database_error(exc)
    if isinstance(
        exc, UnicodeEncodeError
    ):  # Python shows bytes of an argv that are no UTF-8 as halves of characters
        half = exc.object[exc.start : exc.end][:20]
        return f"{half!r} is not a text: these bytes are not UTF-8; write the word in UTF-8", 2
    if isinstance(exc, OSError):
        return f"{exc.strerror or exc}" + (f": {exc.filename}" if exc.filename else ""), 1
    return f"{type(exc).__name__}: {exc}", 1


def _explain_database_error(exc: Exception) -> tuple[str, int]:
    import psycopg

    text = escape_to_one_line(str(exc)) or type(exc).__name__
    if isinstance(exc, psycopg.errors.QueryCanceled):
        sentence = f"the database did not answer in time ({text}); is it overloaded, or a row locked?"
        return sentence, ExitCode.DATABASE_UNREACHABLE
    if isinstance(
        exc,
        (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName),
    ):
        return (
            f"the schema is not the one this version speaks ({text}); run pgworkers migrate up",
            ExitCode.SCHEMA_OUTDATED,
        )
    if isinstance(exc, psycopg.errors.InsufficientPrivilege):
        return (
            f"the database refused: {text}; GRANT a role that may do this to the login (docs/how-to/separate-logins.md)",
            1,
        )
    if (
        isinstance(exc, psycopg.Error)
        and (exc.sqlstate or "").startswith(("53", "58"))
        and exc.diag.message_primary
    ):
        # It answers, but lacks disk, memory or connections: where in our SQL it noticed says nothing.
        hint = f" ({escape_to_one_line(exc.diag.message_hint).rstrip('.')})" if exc.diag.message_hint else ""
        return (
            f"the database cannot do it now: {escape_to_one_line(exc.diag.message_primary)}{hint}",
            ExitCode.DATABASE_UNREACHABLE,
        )
    if isinstance(exc, (psycopg.OperationalError, psycopg.InterfaceError)):
        return f"the database is not reachable: {text}", ExitCode.DATABASE_UNREACHABLE
    return f"the database refused: {text}", 1


def escape_to_one_line(text: str) -> str:
    """A text as one line without control characters."""
    line = " ".join(part.strip() for part in text.splitlines() if part.strip())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _shorten_middle(line: str) -> str:
    """Shorten a line in the middle, where the typed words are; the error is around them."""
    return (
        line
        if len(line) <= MAX_SHOWN_ERROR_CHARACTERS
        else f"{line[: MAX_SHOWN_ERROR_CHARACTERS // 2]} … {line[-MAX_SHOWN_ERROR_CHARACTERS // 2 :]}"
    )


def redact_connection_strings(text: str) -> str:
    """A text without the passwords of connection strings."""
    for pattern, instead in _PASSWORD_PATTERNS:
        text = pattern.sub(instead, text)
    return text


def _discard_stdout() -> None:
    """Redirect stdout to /dev/null, so that the last flush of the interpreter cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
