"""Mutants of clients: behind a pooler, idempotency keys, and engines that are not Postgres."""

from __future__ import annotations

from mutants.mutant import Edit, Mutant

POOLED = "tests/database/test_pooled_clients.py"
KEYS = "tests/database/test_idempotency_key.py"
SCHEMA = "pgworkers/schema/0001_initial.sql"

CLIENTS = (
    Mutant(
        "pooler-is-not-recognised",
        "a client finds out that a pooler is in between when its session begins",
        (
            Edit(
                "pgworkers/postgres/pooler.py",
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
                "pgworkers/client/connections.py",
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
                r"if row != \(conn\.info\.backend_pid,\):",
                "if False:",
            ),
        ),
        (f"{POOLED}::test_a_connection_of_a_handler_prepares_nothing_through_a_pooler[options-refused]",),
        r"prepared statement .*_pg3_",
    ),
    Mutant(
        "key-without-a-window",
        "after its window an idempotency key makes another job",
        (
            Edit(
                SCHEMA,
                r"k\.key = reserve_idempotency_key\.key AND k\.expires_at > now\(\);",
                "k.key = reserve_idempotency_key.key;",
            ),
        ),
        (f"{KEYS}::test_after_its_window_a_key_makes_another_job",),
        r"Enqueued\(id=\d+, is_new=False\)\.is_new",
    ),
    Mutant(
        "key-taken-twice",
        "a transaction that finds an idempotency key taken gets the first job",
        (Edit(SCHEMA, r"\n          WHERE k\.expires_at <= now\(\) OR k\.job_id IS NULL;", ";"),),
        (f"{KEYS}::test_a_second_enqueue_waits_for_the_transaction_of_the_first",),
        r"is_new=True\) == Enqueued",
    ),
    Mutant(
        "key-shared-by-all-logins",
        "an enqueue-only login has idempotency keys of its own",
        (Edit(SCHEMA, r"CASE WHEN is_trusted THEN '' ELSE session_user END", "''"),),
        (
            "tests/security/test_idempotency_keys.py"
            "::test_enqueuers_do_not_meet_the_keys_of_other_logins[newest-direct]",
        ),
        r"\(False, False\) == \(True, True\)",
    ),
    Mutant(
        "key-by-a-scan",
        "a key is found by index, also when the table was empty at the time of planning",
        (Edit(SCHEMA, r" SET enable_seqscan = off SET enable_bitmapscan = off AS", " AS"),),
        (f"{KEYS}::test_keys_are_found_by_index_whatever_the_statistics_say",),
        r"assert \(\d+, True\) == \(0, True\)",
    ),
    Mutant(
        "foreign-engine-is-taken",
        "an engine that cannot work is refused before anything is asked of it",
        (
            Edit(
                "pgworkers/postgres/connect.py",
                r'    if parameter_status\("crdb_version"\):',
                "    if False:",
            ),
        ),
        (
            "tests/unit/test_refused_engines.py"
            "::test_an_engine_that_cannot_work_is_refused_before_anything_is_asked[cockroach-False]",
        ),
        r"server closed the connection unexpectedly",
    ),
)
