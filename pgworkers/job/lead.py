"""Leadership: one session-level advisory lock per schema, and how a leader that froze is deposed.

Correctness never rests on the lock: every duty is idempotent. It only keeps hosts from doing the same work.
"""

from __future__ import annotations

from datetime import datetime

from pgworkers.postgres.statements import Query, Statement

_TRY = Statement.beside(__file__, "lead_try")
_RESIGN = Statement.beside(__file__, "lead_resign")
_DEPOSE = Statement.beside(__file__, "lead_depose")


def try_to_lead(host: str) -> Query[bool]:
    """Take the lock of this schema without waiting; True: this session holds it now, and the host's row says so."""
    return Query(_TRY, {"host": host}, lambda rows: bool(rows[0][0]))


def resign(host: str) -> Query[bool]:
    """Give the lock back. The row says first that this host no longer leads."""
    return Query(_RESIGN, {"host": host}, lambda rows: bool(rows[0][0]))


def depose(silence: float, *, clock: datetime | None = None) -> Query[int]:
    """End the session that holds the lock if its host has not renewed for `silence` seconds. Answers how many.

    `clock`: the database's time as the host reckons it; the earlier of the two counts.
    """
    return Query(_DEPOSE, {"silence": silence, "clock": clock}, len)
