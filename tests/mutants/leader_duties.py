"""Mutants of the leader's duties: what they lock, read and rely on."""

from __future__ import annotations

from mutants.mutant import Edit, Mutant

RETENTION = "tests/database/test_retention.py"
BOUNDED = "tests/database/test_bounded_duties.py"

UPKEEP = (
    Mutant(
        "D6-copies-under-the-lock",
        "rows that outlive a partition are moved without an exclusive lock on the table",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"    moved := 0;\n    EXECUTE format\('SELECT max",
                "    moved := 0;\n    EXECUTE format('LOCK TABLE ONLY pgworkers.%I IN ACCESS EXCLUSIVE MODE', parent);\n"
                "    EXECUTE format('SELECT max",
            ),
        ),
        (f"{RETENTION}::test_kept_rows_are_moved_without_an_exclusive_lock_on_the_table",),
        r"rows were copied while finishes had to wait",
    ),
    Mutant(
        "D6-one-bad-partition-stops-the-others",
        "a partition that cannot be dropped stops no other",
        (
            Edit(
                "pgworkers/master/duties.py",
                r"            total \+= await self\._perform_item\(\n +"
                r'"partitions", name, partial\(self\._drop_partition, name\), f"partition \{name\}"\n +\)',
                "            retired = await self._drop_partition(name)\n"
                "            total += retired\n"
                "            if not retired:\n"
                "                break",
            ),
        ),
        (f"{RETENTION}::test_a_row_that_a_session_holds_delays_its_own_partition_and_no_other",),
        r"Extra items in the left set",
    ),
    Mutant(
        "D6-new-partitions-lock-the-table",
        "a new partition is attached without an exclusive lock on the table",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"                EXECUTE format\('ALTER TABLE pgworkers\.%I ATTACH",
                "                EXECUTE format('LOCK TABLE ONLY pgworkers.%I IN ACCESS EXCLUSIVE MODE', parent);\n"
                "                EXECUTE format('ALTER TABLE pgworkers.%I ATTACH",
            ),
        ),
        (f"{RETENTION}::test_new_partitions_are_attached_without_stopping_finishes",),
        r"Extra items in the left set",
    ),
    Mutant(
        "D13-sweep-of-all-batches",
        "a statement of a duty reads a portion, however much it has to pass by",
        (
            Edit(
                "pgworkers/job/batch_settle_open.sql",
                r"b\.finished_at IS NULL AND",
                "b.finished_at IS NULL AND pgworkers.newest_live_state(b.id) IS NULL AND",
            ),
        ),
        (f"{BOUNDED}::test_a_statement_of_a_duty_reads_no_more_with_many_rows[batches]",),
        r"it reads more where there is more to pass by",
    ),
    Mutant(
        "D13-prune-of-all-history",
        "pruning history reads a portion, however much it has to pass by",
        (
            Edit(
                "pgworkers/job/history_prune.sql",
                r"     ORDER BY h\.id\n     LIMIT %\(portion\)s::bigint\n",
                "     ORDER BY h.id\n",
            ),
        ),
        (f"{BOUNDED}::test_a_statement_of_a_duty_reads_no_more_with_many_rows[finished jobs]",),
        r"it reads more where there is more to pass by",
    ),
    Mutant(
        "D13-duty-without-a-slice",
        "a duty with more to do lets the others come in between",
        (Edit("pgworkers/master/duties.py", r"if monotonic\(\) < self\._slice_end:", "if True:"),),
        (f"{BOUNDED}::test_a_duty_that_is_not_finished_lets_the_others_come_in_between",),
        r"one statement a slice",
    ),
    Mutant(
        "D13-walk-begins-again",
        "a walk goes on where its last slice ended",
        (
            Edit(
                "pgworkers/master/duties.py",
                r"            self\._walk_positions\[walk\] = done\.next_key\n"
                r"            if self\._is_slice_over\(duty\):\n",
                "            self._walk_positions[walk] = done.next_key\n            if self._is_slice_over(duty):\n"
                "                del self._walk_positions[walk]\n",
            ),
        ),
        (f"{BOUNDED}::test_a_walk_goes_on_where_its_last_slice_ended",),
        r"\(0, True\)\] == \[",
    ),
    Mutant(
        "D14-idle-sessions-are-ended",
        "a session of ours switches off timeouts that would end it",
        (
            Edit(
                "pgworkers/postgres/connect.py",
                r"if statements := session_settings\.disable_idle_timeouts\(row\):",
                "if False and (statements := session_settings.disable_idle_timeouts(row)):",
            ),
        ),
        (
            "tests/tree/test_connection_counts.py::test_a_running_host_reconnects_whatever_its_role_and_database_say",
        ),
        r"the server ended a session that was idle|not within [\d.]+ s: the host is back",
    ),
    Mutant(
        "D14-bounds-by-the-session",
        "the bounds of a partition are written in full, whatever the session says",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"to_char\(day, 'YYYY-MM-DD'\) \|\| ' 00:00:00\+00'",
                "day::timestamptz",
            ),
        ),
        (
            f"{RETENTION}::test_the_bounds_of_a_partition_are_days_of_utc_whatever_the_session_says[Pacific/Chatham]",
        ),
        r"AssertionError: FOR VALUES FROM|would overlap partition|assert \d+ == 9",
    ),
    Mutant(
        "L5-forget-looks-once",
        "a job that is forgotten while retention moves it leaves nothing behind",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"FOR round IN 1 \.\. 2 LOOP",
                "FOR round IN 1 .. 1 LOOP",
                2,
            ),
        ),
        (
            "tests/database/test_retention.py::test_a_job_that_is_forgotten_while_it_is_moved_leaves_nothing_behind",
        ),
        r"assert \[2\] == \[1, 2\]|assert \(0, 1\) == \(0, 0\)",
    ),
)
