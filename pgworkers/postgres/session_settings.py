"""The settings that our statements rely on, declared once, and how each kind of session gets them.

A database or a role may have any defaults (ALTER DATABASE ... SET, ALTER ROLE ... SET). Our direct sessions begin with
their own: they travel in `options`, so they hold from the first statement and survive RESET ALL. A transaction pooler
takes no `options` and keeps nothing between two transactions. There every statement travels together with SET LOCAL, in
one message, which the server runs as one transaction. A database that is read-only by default is refused: an operator or
a provider may have fenced it so. Connections of users' code (`ctx.connect()`, `using(conn=)`) keep their settings.
"""

from __future__ import annotations

from typing import Any

from pgworkers.settings import Settings

#: The sessions of a host, and that of `pgworkers duties run`. Their statements are planned once and must not be led astray
#: by statistics (docs/adr/05): every plan is for any values, by index and by nested loops.
HOST_ROLES = frozenset({"claim", "finish", "listen", "leadership", "duties"})
HOST_PLANNER_SETTINGS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

#: How values are written and read, and which names and operators are meant.
STATEMENT_SETTINGS = {
    "search_path": "pg_catalog,pg_temp",
    "DateStyle": "ISO,MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "row_security": "on",
    "transform_null_equals": "off",
    "jit": "off",  # our statements are short: compiling one takes a thousand times as long as running it
}
#: Timeouts of the server that would end our idle sessions. 0 switches them off. Not every server has them.
IDLE_TIMEOUT_SETTINGS = ("idle_session_timeout", "transaction_timeout")


def timeouts(settings: Settings) -> dict[str, str]:
    """The timeouts of a session."""
    return {
        "statement_timeout": milliseconds(settings.statement_timeout),
        "lock_timeout": milliseconds(settings.statement_timeout),
        "idle_in_transaction_session_timeout": milliseconds(
            max(settings.tcp_timeout, settings.statement_timeout)
        ),
    }


def direct_settings(settings: Settings) -> dict[str, str]:
    """The settings of a direct session."""
    transactions = {
        "default_transaction_isolation": "read committed",
        "default_transaction_deferrable": "off",
    }
    return STATEMENT_SETTINGS | transactions | timeouts(settings)


def local_settings(settings: Settings) -> str:
    """The same settings as statements at the start of one transaction."""
    parts = ["SET TRANSACTION ISOLATION LEVEL READ COMMITTED, NOT DEFERRABLE"]
    for name, value in (STATEMENT_SETTINGS | timeouts(settings)).items():
        values = ", ".join(f"'{one}'" for one in value.split(","))
        parts.append(f"SET LOCAL {name} = {values}")
    return "; ".join(parts) + ";\n"


def milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def disable_idle_timeouts(row: tuple[Any, ...]) -> str:
    """Statements that switch off the timeouts in the answer to SESSION_CHECK, or '' if none is set."""
    found = zip(IDLE_TIMEOUT_SETTINGS, row[2:], strict=True)
    return "; ".join(f"SET {name} = 0" for name, value in found if value not in (None, "0"))
