"""Operations: which login cancelled, discarded, purged or retried a job, and why.

The SQL functions that do it write `pgworkers.operation`; nothing else does, and operators cannot.
"""

from __future__ import annotations

import getpass
import socket
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from pgworkers.errors import UsageError
from pgworkers.postgres.statements import Query, Statement

_LIST = Statement.beside(__file__, "operation_list")
_PRUNE = Statement.beside(__file__, "operation_prune")

REASON_BYTES = 2000
OS_USER_BYTES = 400


@dataclass(frozen=True, slots=True)
class Note:
    """What the caller says of itself. The login is the server's to know."""

    reason: str | None = None
    os_user: str | None = None

    def params(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Operation:
    """One row. `state`: what the job was when it was taken out of history."""

    at: datetime
    verb: str
    login: str
    os_user: str | None
    reason: str | None
    state: str | None


#: Nothing but the login is known.
UNSAID = Note()


def note(reason: str | None = None) -> Note:
    """The note of this process: the name of its OS user and of its machine, and the reason."""
    if reason is not None and (not reason.strip() or "\0" in reason or len(reason.encode()) > REASON_BYTES):
        raise UsageError(f"reason: give a text of 1 to {REASON_BYTES} bytes; nothing was changed")
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container whose uid has no name
        user = "unknown"
    name = f"{user}@{socket.gethostname()}".replace("\0", "")
    return Note(reason, name.encode()[:OS_USER_BYTES].decode(errors="ignore"))


def operations(job_id: int) -> Query[list[Operation]]:
    """What was done to a job, the first one first; of very many the last hundred."""
    return Query(_LIST, {"id": job_id}, lambda rows: [Operation(*row) for row in reversed(rows)])


def prune(older: float, limit: int) -> Query[int]:
    """Delete operations that are more than `older` seconds old, at most `limit` of them. Returns how many."""
    return Query(_PRUNE, {"older": older, "limit": limit}, len)
