"""Mutants of claims behind limits: what a claim reads when jobs wait for a concurrency limit."""

from __future__ import annotations

from mutants.mutant import Edit, Mutant

FLAT = "tests/database/test_limits_pages_read.py"
PARKED = "tests/database/test_parked_jobs.py"
LIMITED = "tests/database/test_limits_concurrency.py"

LIMITS = (
    Mutant(
        "D1-wrapped-walk-without-a-bound",
        "the walk over lanes that began in the middle ends where it began by a bound of the index",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"AND pgworkers\.concurrency_group\(j\.concurrency_key\) >= CASE WHEN l\.wrapped THEN first_group"
                r" ELSE '-\d+' END",
                "AND (NOT l.wrapped OR pgworkers.concurrency_group(j.concurrency_key) >= first_group)",
            ),
        ),
        (f"{FLAT}::test_a_claim_of_jobs_with_few_keys_reads_no_more_from_a_backlog_ten_times_as_large[7]",),
        r"assert \d+ < \(\(1\.5 \* \d+\)",
    ),
    Mutant(
        "D8-full-task-is-walked",
        "a task without room is passed whole, however many keys wait for it",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"w\.task = ANY \(admit_limited_jobs\.tasks\) AND \(r\.free IS NULL OR r\.free > 0\)",
                "w.task = ANY (admit_limited_jobs.tasks)",
            ),
        ),
        (f"{FLAT}::test_a_full_task_is_passed_whole_however_many_tenants_it_has",),
        r"assert \d+ < \(\d+ \+ 50\)",
    ),
    Mutant(
        "D8-blocked-keys-end-the-walk",
        "a key with room is found behind many keys without",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"CASE WHEN r\.free <= 0 THEN 0 ELSE 1 END",
                "1",
            ),
        ),
        (f"{FLAT}::test_a_key_with_room_is_found_behind_many_without",),
        r"assert \[\] == \[\d+\]",
    ),
    Mutant(
        "D3-slots-counted-from-the-beginning",
        "a count of slots passes by the jobs that ran while a snapshot was held",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"running_entries_read\(\) > 500 THEN",
                "running_entries_read() < 0 THEN",
            ),
        ),
        (f"{FLAT}::test_slots_are_counted_without_reading_all_that_ran_while_a_snapshot_is_held",),
        r"assert \d+ < \(\d+ \+ 60\)",
    ),
    Mutant(
        "D3-mark-forgets-what-runs",
        "what ran before a mark is counted until it ends",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"VALUES \(scanned\.kind, scanned\.name, now\(\), running_ids\)",
                "VALUES (scanned.kind, scanned.name, now(), '{}')",
            ),
        ),
        (f"{FLAT}::test_what_ran_before_a_mark_is_counted_until_it_ends",),
        r"\('key', 'x', 0\)",
    ),
    Mutant(
        "D3-claims-behind-a-mark-are-not-counted",
        "a claim that began before a mark was made takes nothing behind that limit",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"coalesce\((r\.since|max\(r\.since\) OVER of_one_key) > now\(\), false\) AS is_mark_newer",
                "false AS is_mark_newer",
                2,
            ),
        ),
        (f"{FLAT}::test_a_claim_that_began_before_a_mark_leaves_its_limit_to_the_next",),
        r"assert \[ClaimedJob\(",
    ),
    Mutant(
        "D3-lane-without-a-mark",
        "a walk over a lane passes by the jobs that were claimed while a snapshot was held",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"pgworkers\.limited_entries_read\(\) - entries_before <= ",
                "0 <= ",
            ),
        ),
        (f"{FLAT}::test_the_remains_of_what_was_claimed_of_a_lane_are_passed_by_while_a_snapshot_is_held",),
        r"assert \[\] == \[\('a', 't'\)\]",
    ),
    Mutant(
        "D3-lane-mark-for-ever",
        "a job that came back before the mark of its lane is found when the mark is over",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"\(scan\.valid_until > clock_timestamp\(\) OR",
                "(true OR",
            ),
        ),
        (
            f"{FLAT}::test_a_job_that_came_back_before_the_mark_of_its_lane_is_found_when_the_lane_is_looked_at_from_its_head",
        ),
        r"assert \[\d+\] == \[\d+\]",
    ),
    Mutant(
        "D3-lane-mark-stands-still",
        "a mark moves on with the jobs of its lane: a claim does not pass all that was claimed since it was made",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"CONTINUE WHEN pgworkers\.limited_entries_read\(\) - read_before <= 20;",
                "CONTINUE;",
            ),
        ),
        (f"{FLAT}::test_the_mark_of_a_lane_moves_on_with_its_jobs",),
        r"assert \d+ < \(\d+ \+ 60\)",
    ),
    Mutant(
        "D3-empty-mark-waits",
        "a job before the mark is found at once when nothing is ready behind it",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"AND NOT EXISTS \(SELECT FROM heads h",
                "AND false AND NOT EXISTS (SELECT FROM heads h",
            ),
        ),
        (f"{FLAT}::test_a_job_before_the_mark_is_found_at_once_when_nothing_is_ready_behind_it",),
        r"assert \[\] == \['ready:a'\]",
    ),
    Mutant(
        "D3-limits-wait-for-the-head",
        "a host looks behind limits again as soon as it may, also while a look from the head is not due",
        (
            Edit(
                "pgworkers/master/claim_policy.py",
                r"return min\(\n            inf if is_full_scan",
                "return max(\n            inf if is_full_scan",
            ),
        ),
        ("tests/unit/test_claim_policy.py::test_a_host_looks_again_as_soon_as_it_may_look_where_it_did_not",),
        r"assert 15\.0 == ",
    ),
    Mutant(
        "D3-limited-jobs-hide-a-slow-head",
        "what a look from the head takes longer is noticed however many limited jobs it brings",
        (
            Edit(
                "pgworkers/master/claim_policy.py",
                r"self\._seconds_per_limited_job \* limited",
                "0.0003 * limited",
            ),
        ),
        ("tests/unit/test_claim_policy.py::test_a_slow_head_is_noticed_however_many_limited_jobs_it_brings",),
        r"assert \[True, True\] == \[False, True\]",
    ),
    Mutant(
        "D3-lane-mark-hides-higher-priorities",
        "from a mark on the order of a lane is strict: a new job of a higher priority goes first",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"AND j\.priority OPERATOR\(pg_catalog\.>\) \$4 AND",
                "AND false AND",
            ),
        ),
        (f"{FLAT}::test_the_order_of_a_lane_is_strict_from_its_mark_on",),
        r"assert \d+ == \d+",
    ),
    Mutant(
        "D8-first-jobs-are-not-read",
        "the first jobs of a task are claimed in strict order",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"THEN 0 ELSE 10 \+ 3 \* least\(w\.count, r\.free\) / 2 END",
                "THEN 0 ELSE 0 END",
            ),
        ),
        (f"{FLAT}::test_the_first_jobs_of_a_task_are_claimed_in_strict_order_however_many_keys_they_have",),
        r"At index \d+ diff|assert \[\d+",
    ),
    Mutant(
        "D8-blocked-first-jobs-end-the-search",
        "the groups of a task are searched when its first jobs cannot run",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"t\.first_count = 0 OR coalesce",
                "t.first_count = 0 OR false AND coalesce",
            ),
        ),
        (f"{FLAT}::test_jobs_of_keys_without_a_slot_are_passed_by",),
        r"assert \[\] == \[\d+",
    ),
    Mutant(
        "D1-keys-are-compared-in-pairs",
        "a claim of many keys costs in proportion to their number",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"WHERE c\.is_counted OFFSET 0\) r ON true\)?",
                "OFFSET 0) r ON (SELECT count(*) FROM chosen o WHERE o.key >= c.key) > 0",
            ),
        ),
        (f"{FLAT}::test_a_claim_of_many_keys_costs_in_proportion_to_their_number",),
        r"assert \d+\.\d+ < \(20 \*",
    ),
    Mutant(
        "D1-unlimited-task-is-counted",
        "the running jobs of a task without a limit are not counted",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"m ON true\n        WHERE l\.slots IS NOT NULL\n       OFFSET 0\) u ON true",
                "m ON true) u ON l.slots IS NOT NULL",
            ),
        ),
        (f"{FLAT}::test_a_task_without_a_limit_is_not_counted",),
        r"assert \d+ < \(\d+ \+ 60\)",
    ),
    Mutant(
        "D3-task-without-a-mark",
        "what is left of keys that have no job is not read while a snapshot is held",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"dead_entries > 1000 \+ 100 \*",
                "dead_entries > 100000000 *",
            ),
        ),
        (f"{FLAT}::test_the_remains_of_many_keys_are_passed_by_while_a_snapshot_is_held",),
        r"assert \d+ < \(\d+ \+ 60\)",
    ),
    Mutant(
        "D3-task-mark-for-ever",
        "a job that came back before the mark of its task is found by the next scan from the head",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"m\.valid_until <= clock_timestamp\(\) AS is_due",
                "m.valid_until < m.valid_until AS is_due",
            ),
        ),
        (
            f"{FLAT}::test_a_job_that_came_back_before_the_mark_of_its_task_is_found_by_the_next_scan_from_the_head",
        ),
        r"assert \[\d+\] == \[\d+\]",
    ),
    Mutant(
        "D3-task-mark-hides-jobs",
        "a claim that wants more than lies behind the mark of a task searches its groups",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"\(f\.jobs_read >= t\.first_count OR t\.valid_until IS NOT NULL\)",
                "(f.jobs_read >= t.first_count)",
            ),
        ),
        (f"{FLAT}::test_a_job_before_the_mark_of_its_task_is_found_at_once_when_a_claim_wants_more",),
        r"assert \[[\d, ]+\] == \[",
    ),
    Mutant(
        "D3-stuck-job-is-not-passed",
        "a first job that cannot run does not hold up the scans of its task",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"- read_before - jobs_read > 20000",
                "- read_before - jobs_read > 20000000",
            ),
        ),
        (f"{FLAT}::test_a_first_job_that_cannot_run_does_not_hold_up_the_scans_of_its_task",),
        r"assert \[\(0,\)\] == \[\(None,\)\]|assert \[\] == ",
    ),
    Mutant(
        "D2-unknown-tasks-stay",
        "jobs of unknown tasks are moved out of the way of claims",
        (
            Edit(
                "pgworkers/job/claim_park.sql",
                r"WHERE s\.task <> ALL \(%\(tasks\)s::text\[\]\)",
                "WHERE false",
            ),
        ),
        (f"{PARKED}::test_a_claim_passes_unknown_tasks_in_one_probe",),
        r"assert 0 == \(5 \* 2000\)",
    ),
    Mutant(
        "D2-unknown-names-are-walked",
        "unknown tasks are passed in one probe, however many names they have",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"AND j\.task <= w\.next",
                "AND j.task < coalesce(w.task, 'zzz')",
            ),
        ),
        (f"{PARKED}::test_a_claim_passes_unknown_tasks_in_one_probe[many tasks]",),
        r"assert \d+ < \(\d+ \+ 60\)",
    ),
    Mutant(
        "D2-crowded-queue-without-an-end",
        "a claim of a crowded queue ends where the last portion ended",
        (Edit("pgworkers/master/claim_policy.py", r" \| self\.slow_queues\.ranges\(capacity\)", ""),),
        (
            "tests/unit/test_claimer_parking.py::test_a_claim_that_timed_out_goes_on_in_portions_and_the_log_names_the_task",
        ),
        r"both are claimed after the first portion",
    ),
    Mutant(
        "D2-slow-claim-blames-the-database",
        "a claim that timed out is not a lost database",
        (
            Edit(
                "pgworkers/master/connection.py",
                r"slow = \(raise_timeouts or raise_refusals\) and ",
                "slow = False and ",
            ),
        ),
        ("tests/database/test_answer_callback.py::test_a_failed_statement_has_no_answer[slow by itself]",),
        r"ConnectionDown",
    ),
    Mutant(
        "D8-best-lane-is-cut",
        "a lane whose first jobs are all among the best is read further",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"WHERE l\.nth_of_group = l\.read_first AND",
                "WHERE false AND",
            ),
        ),
        (f"{FLAT}::test_the_order_is_strict_although_few_jobs_of_each_lane_are_read_at_first",),
        r"At index \d+ diff",
    ),
    Mutant(
        "D3-old-marks-stay",
        "marks of limits that went quiet are deleted",
        (
            Edit(
                "pgworkers/master/duties.py",
                r" +\"scan starts of limits\": lambda: concurrency\.prune_limit_scan_starts\([^)]+\),\n",
                "",
            ),
        ),
        ("tests/database/test_leader_duties.py::test_old_marks_of_limits_are_deleted_and_young_ones_kept",),
        r"assert 0 == 5",
    ),
    Mutant(
        "L1-new-limit-misses-claims-in-flight",
        "what a claim in flight takes counts when a limit is set",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"array_agg\(pgworkers\.uncounted_running_jobs\(n\.task\)\)",
                "array_agg(0::bigint)",
            ),
        ),
        (f"{LIMITED}::test_what_a_claim_in_flight_takes_counts_when_a_limit_is_set",),
        r"nobody knows what the claim in flight takes",
    ),
    Mutant(
        "L1-locked-job-has-no-slot",
        "a running job that is locked when a limit is set has its slot",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"interval '1 s' THEN uncounted END",
                "interval '1 s' THEN 0 END",
            ),
        ),
        (f"{LIMITED}::test_a_running_job_that_is_locked_counts_when_a_limit_is_set",),
        r"a slot is taken by the one that could not be marked",
    ),
    Mutant(
        "L1-mark-hides-late-jobs",
        "a mark that is younger than a claim in flight hides none of its jobs",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"DELETE FROM pgworkers\.limit_scan_start m WHERE m\.kind = 'task' AND m\.name = set_running_limited\.task;",
                "NULL;",
            ),
        ),
        (f"{LIMITED}::test_a_mark_that_is_younger_than_a_claim_in_flight_hides_none_of_its_jobs",),
        r"assert \[ClaimedJob\(",
    ),
    Mutant(
        "L2-limits-locked-by-name",
        "limits of several tasks are locked in one order",
        (
            Edit(
                "pgworkers/job/task_declare.sql",
                r"ORDER BY pgworkers\.limit_mutex\('task', name\), name",
                "ORDER BY name",
            ),
        ),
        (f"{LIMITED}::test_limits_of_several_tasks_are_locked_in_one_order[True]",),
        r"deadlock detected",
    ),
    Mutant(
        "L3-ends-aside-do-not-count",
        "ends that are set aside count as ends that wait",
        (
            Edit(
                "pgworkers/master/finisher.py",
                r"unwritten = len\(self\._pending\) \+ len\(self\._writer\.deferred\)",
                "unwritten = len(self._pending)",
            ),
        ),
        ("tests/unit/test_claimer_freed_slots.py::test_ends_that_are_set_aside_count_as_ends_that_wait",),
        r"assert not True",
    ),
    Mutant(
        "L4-portion-is-repeated-whole",
        "a portion that timed out is halved",
        (
            Edit(
                "pgworkers/master/claim_policy.py",
                r"self\._sizes\[queue\]\.record_failed\(portion, slow=True\)\n",
                "pass\n",
            ),
        ),
        (
            "tests/unit/test_claimer_parking.py::test_a_portion_that_timed_out_is_halved_and_its_queue_is_claimed_meanwhile",
        ),
        r"\('a', 2000\) == \('a',",
    ),
    Mutant(
        "L4-late-portion-closes-its-queue",
        "a queue is claimed while its portions time out",
        (Edit("pgworkers/master/claim_policy.py", r"self\._open\.add\(queue\)", "pass"),),
        (
            "tests/unit/test_claimer_parking.py::test_a_portion_that_timed_out_is_halved_and_its_queue_is_claimed_meanwhile",
        ),
        r"it does not rest",
    ),
)
