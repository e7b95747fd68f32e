"""Leadership: a term in one row decides which host leads; an advisory lock is the fast path that shows an ended session.

The row can be written by workers only, the lock can be held by any login. Correctness rests on neither: every duty is
idempotent. The term keeps hosts from doing the same work, and keeps a login that holds the lock from stopping it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgworkers.postgres.statements import Query, Statement

_TRY = Statement.beside(__file__, "lead_try")
_RENEW = Statement.beside(__file__, "lead_renew")
_RESIGN = Statement.beside(__file__, "lead_resign")
_DEPOSE = Statement.beside(__file__, "lead_depose")
_HOLDERS = Statement.beside(__file__, "lead_holders")


@dataclass(frozen=True, slots=True)
class Session:
    """A session of the server: its process, and when it began, because process numbers are used again."""

    pid: int
    start: datetime


@dataclass(frozen=True, slots=True)
class Tried:
    """The answer to a try for the term."""

    term: int | None  #: of this host now; None: another host leads
    is_locked: bool  #: this session holds the lock
    leader_is_locked: bool  #: the session that led until now, or still leads, holds the lock
    former: Session | None  #: that led until now, or still leads
    ran_out: bool  #: the former term was taken because it had run out


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A session that holds the leader's lock and does not hold the term."""

    pid: int
    user: str
    application: str


def try_to_lead(
    host: str, seconds: float, *, may_depose: bool, clock: datetime | None = None
) -> Query[Tried]:
    """Take the term for `seconds` if it is free, without waiting. The host's row then says that it leads.

    `may_depose`: also from a leader that has not renewed its term in time. `clock`: the database's time as the host reckons
    it; the earlier of the two counts.
    """
    params = {"host": host, "seconds": seconds, "may_depose": may_depose, "clock": clock}
    return Query(_TRY, params, _read_tried)


def renew(host: str, term: int, seconds: float) -> Query[bool | None]:
    """Renew the term. Returns whether this session holds the lock, too; None: the term is another host's."""
    params = {"host": host, "term": term, "seconds": seconds}
    return Query(_RENEW, params, lambda rows: bool(rows[0][0]) if rows else None)


def resign(host: str, term: int) -> Query[None]:
    """Give up the term, the lock, and the flag on the host's row."""
    return Query(_RESIGN, {"host": host, "term": term}, lambda rows: None)


def depose(session: Session) -> Query[bool]:
    """End the session of a leader whose term was taken. False: it is gone, or of a role that this one may not end."""
    return Query(_DEPOSE, {"pid": session.pid, "session_start": session.start}, bool)


def lock_holders() -> Query[list[LockHolder]]:
    """The sessions that hold the lock without leading."""
    return Query(_HOLDERS, {}, lambda rows: [LockHolder(*row) for row in rows])


def _read_tried(rows: list[tuple[Any, ...]]) -> Tried:
    ((term, is_locked, leader_is_locked, pid, session_start, ran_out, _),) = rows
    former = Session(pid, session_start) if pid is not None else None
    return Tried(term, bool(is_locked), bool(leader_is_locked), former, term is not None and bool(ran_out))
