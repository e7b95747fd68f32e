"""Translate errors of psycopg into our own, so that none reaches the user.

One exception: on a connection that the caller gave, serialization failures and deadlocks are raised as they are, because
the caller must repeat its transaction.
"""

from __future__ import annotations

import psycopg
from psycopg import errors

from pgworkers.errors import (
    DatabaseRefused,
    DatabaseUnreachable,
    PermissionDenied,
    PgworkersError,
    QuotaExceeded,
    SchemaOutOfDate,
)


def translate_error(
    error: psycopg.Error, not_done: str = "nothing was changed", role: str = ""
) -> PgworkersError:
    """The error to raise instead. `not_done`: what was not done. `role`: which of our roles may do it."""
    text = first_line(error)
    hint = (error.diag.message_hint or "").strip().rstrip(".")
    match error:
        case errors.InsufficientPrivilege():
            fix = hint or (f"GRANT {role} to this login" if role else "GRANT one of the roles to this login")
            return PermissionDenied(
                f"the database refused: {text}; {not_done}; {fix} (docs/how-to/separate-logins.md)"
            )
        case errors.ConfigurationLimitExceeded():
            return QuotaExceeded(f"{text}; {not_done}" + (f"; {hint}" if hint else ""))
        case (
            errors.UndefinedFunction()
            | errors.UndefinedTable()
            | errors.UndefinedColumn()
            | errors.InvalidSchemaName()
        ):
            return SchemaOutOfDate(
                f"the database has no tables of pgworkers, or those of another version; {not_done}; "
                "run pgworkers migrate up"
            )
        case errors.QueryCanceled() | errors.LockNotAvailable():
            return DatabaseUnreachable(
                f"the database did not answer in time ({text}); {not_done}; is it overloaded, or a row locked?"
            )
        case psycopg.OperationalError() | psycopg.InterfaceError():
            return DatabaseUnreachable(f"the database cannot do it now: {text}; {not_done}")
    return DatabaseRefused(f"the database refused: {text}; {not_done}")


def is_callers_to_retry(error: psycopg.Error) -> bool:
    """True for an error that the owner of a transaction must see as it is, to run the transaction again."""
    return (error.sqlstate or "").startswith("40")


def first_line(error: BaseException) -> str:
    """The first line of an error's message: the primary message if the server sent one."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    text = (primary or str(error)).strip()
    return text.splitlines()[0] if text else type(error).__name__
