"""Which values of the result store are still needed (`pgworkers/result_store.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from pgworkers.postgres.statements import Query, Statement

_RESULT_FILES_GONE = Statement.from_file(__file__, "result_files_gone")
_DATABASE_IDENTITY = Statement.from_file(__file__, "database_identity")


def unneeded_result_files(names: Sequence[str], jobs: Sequence[int]) -> Query[list[str]]:
    """The names among these that no job needs. `jobs` are the jobs of the names, in the same order."""
    params = {"names": list(names), "jobs": list(jobs)}
    return Query(_RESULT_FILES_GONE, params, lambda rows: [row[0] for row in rows])


def database_identity() -> Query[str]:
    """A text that no other database has, and that this one keeps. A copy of it has another one."""
    return Query(_DATABASE_IDENTITY, {}, lambda rows: str(rows[0][0]))
