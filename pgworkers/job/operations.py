"""Operations: which login cancelled, discarded, purged or retried a job, or changed its deadline or a retention, and why.

The SQL functions that do it write the table `operation`. Operators cannot write it themselves.
"""

from __future__ import annotations

import getpass
import socket
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from pgworkers.errors import UsageError
from pgworkers.postgres.statements import Query, Statement

_OPERATION_LIST = Statement.from_file(__file__, "operation_list")
_OPERATION_PRUNE = Statement.from_file(__file__, "operation_prune")

MAX_REASON_BYTES = 2000
MAX_OS_USER_BYTES = 400


@dataclass(frozen=True, slots=True)
class OperationNote:
    """What the caller says of itself. The server records the login."""

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
NO_NOTE = OperationNote()


def make_note(reason: str | None = None) -> OperationNote:
    """The note of this process: the name of its OS user and of its machine, and the reason."""
    if reason is not None and (
        not reason.strip() or "\0" in reason or len(reason.encode()) > MAX_REASON_BYTES
    ):
        raise UsageError(f"reason: give a text of 1 to {MAX_REASON_BYTES} bytes; nothing was changed")
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container whose uid has no name
        user = "unknown"
    name = f"{user}@{socket.gethostname()}".replace("\0", "")
    return OperationNote(reason, name.encode()[:MAX_OS_USER_BYTES].decode(errors="ignore"))


def operations_of_job(job_id: int) -> Query[list[Operation]]:
    """What was done to a job, the first one first; of very many the last hundred."""
    return Query(_OPERATION_LIST, {"id": job_id}, lambda rows: [Operation(*row) for row in reversed(rows)])


def prune_operations(older: float, limit: int) -> Query[int]:
    """Delete operations that are more than `older` seconds old, at most `limit` of them.

    Returns how many.
    """
    return Query(_OPERATION_PRUNE, {"older": older, "limit": limit}, len)
