"""Mutants for upgrades: the oldest version that a schema serves, and locks that migrations wait for."""

from __future__ import annotations

from mutants.mutant import Edit, Mutant

MIGRATE = "pgworkers/postgres/migrate.py"
TESTS = "tests/database/test_migrate.py"

UPGRADES = (
    Mutant(
        "upgrade-serves-every-version",
        "code that a newer schema does not serve is refused",
        (Edit(MIGRATE, r" and row\.serves <= newest\n", "\n"),),
        (
            f"{TESTS}::test_a_schema_newer_than_the_code_is_refused_and_not_touched",
            f"{TESTS}::test_code_goes_on_with_a_newer_schema_that_serves_it",
        ),
        r"DID NOT RAISE SchemaOutOfDate",
    ),
    Mutant(
        "upgrade-serves-no-version",
        "code goes on with a newer schema that serves it",
        (Edit(MIGRATE, r" and row\.serves <= newest\n", " and False\n"),),
        (
            f"{TESTS}::test_code_goes_on_with_a_newer_schema_that_serves_it",
            "tests/tree/test_upgrade.py::test_row_88_two_versions_side_by_side_and_the_way_back",
        ),
        r"is newer than this pgworkers, which does not know",
    ),
    Mutant(
        "upgrade-of-another-branch",
        "a schema that has a newer migration and lacks one of ours is refused",
        (Edit(MIGRATE, r"    if newer and missing:\n", "    if False:\n"),),
        (f"{TESTS}::test_a_schema_of_another_branch_is_refused",),
        r"DID NOT RAISE SchemaOutOfDate|is older than this pgworkers",
    ),
    Mutant(
        "upgrade-breaks-running-hosts",
        "a migration that does not serve running hosts is not applied",
        (Edit(MIGRATE, r"            _refuse_older_hosts\(conn, schema, migration\)\n", ""),),
        (f"{TESTS}::test_a_migration_that_would_break_running_hosts_is_refused",),
        r"DID NOT RAISE SchemaOutOfDate",
    ),
    Mutant(
        "upgrade-waits-for-locks-without-end",
        "a migration waits for a lock only a second at a time",
        (
            Edit(
                MIGRATE,
                r"SET LOCAL lock_timeout = '\{session_settings\.milliseconds\(lock_wait\.LOCK_TIMEOUT_SECONDS\)\}ms'",
                "SET LOCAL lock_timeout = 0",
            ),
        ),
        (f"{TESTS}::test_a_migration_that_waits_for_a_lock_holds_up_no_other_session",),
        r"not within 60\.0 s: a line that names the reader",
    ),
    Mutant(
        "upgrade-masters-take-turns",
        "a master keeps the lock on `migration` between two attempts",
        (
            Edit(
                MIGRATE,
                r'        retry\.pause\(f"migration \{migration\.name\}", error\)\n        return False\n',
                "        raise\n",
            ),
        ),
        (f"{TESTS}::test_a_migration_that_waits_for_a_lock_holds_up_no_other_session",),
        r"where False = .*startswith|IndexError",
    ),
    Mutant(
        "upgrade-retries-without-end",
        "a migration that never gets its lock gives up",
        (
            Edit(
                "pgworkers/postgres/lock_wait.py",
                r"        if self\._seconds_left <= 0:\n",
                "        if False:\n",
            ),
        ),
        (f"{TESTS}::test_a_migration_that_never_gets_its_lock_gives_up",),
        r"sleep length must be non-negative",
    ),
    Mutant(
        "upgrade-script-for-any-schema",
        "the script of what is pending changes nothing in another state of the schema",
        (
            Edit(
                MIGRATE,
                r"_lock_migration_table\(schema\),\s+_check_script_state\(schema, before, migration\),",
                "_lock_migration_table(schema),",
            ),
        ),
        (f"{TESTS}::test_the_pending_script_does_what_up_does[1]",),
        r"this script was made for another state' in 'ERROR",
    ),
)
