"""Mutants of issue 19, rows 7 and 11: clients behind a pooler, and idempotency keys."""

from __future__ import annotations

from mutants.mutant import Edit, Mutant

POOLED = "tests/database/test_pooled_clients.py"

CLIENTS = (
    Mutant(
        "pooler-is-not-recognised",
        "a client finds out that a pooler is in between when its session begins",
        (
            Edit(
                "pgworkers/postgres/session.py",
                r"return bool\(pid == conn\.info\.backend_pid and path[^\n]*\)",
                "return True",
            ),
        ),
        (f"{POOLED}::test_a_pooler_is_recognised_when_a_session_begins[options-ignored]",),
        r"isinstance\(<psycopg\.Connection",
    ),
    Mutant(
        "pooler-answers-are-not-heeded",
        "a statement that was prepared in another session is sent again without preparing it",
        (
            Edit(
                "pgworkers/client/seats.py",
                r"return isinstance\(exc, \(DuplicatePreparedStatement, InvalidSqlStatementName\)\)",
                "return False",
            ),
        ),
        (f"{POOLED}::test_a_pooler_that_looks_like_a_server_is_recognised_by_its_answers",),
        r"prepared statement .*pgworkers_",
    ),
    Mutant(
        "handler-prepares-through-a-pooler",
        "a connection of a handler prepares nothing through a pooler",
        (
            Edit(
                "pgworkers/postgres/connect.py",
                r"if cursor\.execute\(_BACKEND_PID\)\.fetchone\(\) != \(conn\.info\.backend_pid,\):",
                "if False:",
            ),
        ),
        (f"{POOLED}::test_a_connection_of_a_handler_prepares_nothing_through_a_pooler[options-refused]",),
        r"prepared statement .*_pg3_",
    ),
)
