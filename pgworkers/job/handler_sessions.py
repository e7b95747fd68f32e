"""The database sessions that handlers open with `ctx.connect()`, and how they end with their attempt.

A session is named after job and lease. A worker that stops its handler cancels the statement and closes the session itself.
A worker that was killed cannot, and a server that is busy with a statement does not notice that its client is gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from pgworkers.postgres.statements import Query, Statement

_HANDLER_SESSION_END = Statement.from_file(__file__, "handler_session_end")
#: What the server keeps of an application_name.
MAX_APPLICATION_NAME_BYTES = 63


def session_name(schema: str, job: int, lease: int) -> str:
    """The application_name of a handler's session.

    The schema is part of it: two installs may share a database.
    """
    return f"{schema} job {job} lease {lease}"[:MAX_APPLICATION_NAME_BYTES]


def end_handler_sessions(keys: Sequence[tuple[int, int]]) -> Query[int]:
    """Terminate the sessions of these executions (job, lease). Answers how many there were."""
    params = {"ids": [job for job, _ in keys], "leases": [lease for _, lease in keys]}
    return Query(_HANDLER_SESSION_END, params, len)
