"""Mutants of daily use, the rows C of the checklist. Each removes the fix of one finding."""

from __future__ import annotations

from mutants.mutant import Edit, Mutant

DAILY_USE = (
    Mutant(
        "C1-jit",
        "every session of ours switches JIT off",
        (Edit("pgworkers/postgres/session_settings.py", r'    "jit": "off",[^\n]*\n', ""),),
        ("tests/database/test_session_settings.py::test_nothing_is_compiled",),
        r"a server that was built without LLVM",
    ),
    Mutant(
        "C2-code-wins",
        "the environment wins over App(dsn=)",
        (
            Edit(
                "pgworkers/settings.py",
                r'(        \{name: \("app", value\)[^\n]*\n)(        _from_environment\(environ\),\n)',
                r"\2\1",
            ),
        ),
        (
            "tests/database/test_connect.py::test_the_environment_wins_over_the_dsn_of_the_app[environ1-DATABASE_URL-c]",
        ),
        r"the app's dsn",
    ),
    Mutant(
        "C2-prepare-freezes-settings",
        "preparing a job decides on no setting",
        (
            Edit(
                "pgworkers/client/database.py",
                r'limit: int = declared\.load_one_setting\("payload_limit", self\._app_settings\)',
                "limit: int = self.settings.payload_limit",
            ),
        ),
        ("tests/database/test_api_connection.py::test_preparing_a_job_decides_on_no_database",),
        r"more than 100B",
    ),
    Mutant(
        "C3-bad-result-is-retried",
        "a result that cannot be kept is the end of its job",
        (Edit("pgworkers/job/retry_policy.py", r"Verdict\.UNFIT, Verdict\.BAD_RESULT\)", "Verdict.UNFIT)"),),
        ("tests/unit/test_verdict.py::test_a_result_that_cannot_be_kept_is_the_end_at_once",),
        r"isinstance\(JobRetry\(",
    ),
    Mutant(
        "C3-bad-result-is-an-error",
        "a result that cannot be kept has a verdict of its own",
        (
            Edit(
                "pgworkers/worker/outcome.py",
                r"return ExceptionReport\(outcome=Outcome\.BAD_RESULT, error=sanitize\.one_line\(_text_of\(error\)\)\)",
                "return ExceptionReport(outcome=Outcome.ERROR, error=error_line(error))",
            ),
        ),
        ("tests/process/test_worker_outcomes.py::test_invalid_results_are_clear_errors",),
        r"'error'>? == 'bad_result'",
    ),
    Mutant(
        "C4-threads-of-numpy-stay",
        "threads of numeric libraries are ended before the fork",
        (Edit("pgworkers/supervisor/fork_safety.py", r"    stop_library_threads\(\)\n", ""),),
        ("tests/tree/test_numpy_and_core_dumps.py::test_numpy_at_the_top_of_the_app_with_threads",),
        r"queue many: .* starts threads while it is imported",
    ),
    Mutant(
        "C4-check-imports-once",
        "run --check imports the app as the supervisor of each queue does",
        (
            Edit(
                "pgworkers/master/boot.py",
                r"    if options\.is_check:\n        check_imports",
                "    if False:\n        check_imports",
            ),
        ),
        ("tests/tree/test_numpy_and_core_dumps.py::test_a_check_refuses_what_a_start_would",),
        r"check\s+ok",
    ),
    Mutant(
        "C4-library-is-not-named",
        "the message names the library whose threads forbid the fork",
        (
            Edit(
                "pgworkers/supervisor/fork_safety.py",
                r"if any\(name\.startswith\(NATIVE_THREAD_PREFIX\) for name in found\) and",
                "if False and",
            ),
        ),
        ("tests/tree/test_numpy_and_core_dumps.py::test_the_message_names_the_library",),
        r"'openblas' in 'app\.py starts threads",
    ),
    Mutant(
        "C5-start-hooks-only-in-the-log",
        "a start hook that fails is named wherever an operator looks",
        (
            Edit(
                "pgworkers/master/dispatcher.py",
                r"buffer\.start_problem = StartProblem\(failure\.error, failure\.traceback\)",
                "pass",
            ),
            Edit(
                "pgworkers/master/dispatcher.py",
                r"if not died\.was_ready and died\.status",
                "if False and died.status",
            ),
        ),
        ("tests/tree/test_start_hooks.py::test_a_start_hook_that_fails_is_named_everywhere",),
        r"not within [\d.]+ s: /readyz names the hook",
    ),
    Mutant(
        "C6-list-of-extension-modules",
        "the list of extension modules is cut from a stack",
        (Edit("pgworkers/supervisor/stack_dump.py", r'dump = _EXTENSIONS\.sub\("", dump\)', "pass"),),
        ("tests/unit/test_stack_texts.py::test_only_the_users_frames_are_shown",),
        r"re \(total: 1\)",
    ),
    Mutant(
        "C6-memory-verdict-without-numbers",
        "a memory verdict names limit and peak",
        (
            Edit(
                "pgworkers/master/verdict.py",
                r'return f"stopped over its memory limit: peak \{format_size\(peak\)\}\{allowed\}"',
                'return "stopped over its memory limit"',
            ),
        ),
        ("tests/unit/test_verdict.py::test_a_memory_verdict_names_limit_and_peak",),
        r"'stopped over... memory limit' == ",
    ),
    Mutant(
        "C6-children-without-names",
        "what was killed with a job is named",
        (
            Edit(
                "pgworkers/linux/proc.py",
                r"    found = \[child for child in children\(os\.getpid\(\)\) if child not in spared\]",
                "    found: list[int] = []",
            ),
        ),
        ("tests/process/test_stop_ladder.py::test_what_was_killed_with_a_job_is_named",),
        r"\[\] == \['sleep', 'sleep'\]",
    ),
    Mutant(
        "C7-retention-only-shorter",
        "a queue keeps its jobs for longer than the setting says",
        (
            Edit(
                "pgworkers/job/history_prune.sql",
                r"now\(\) - coalesce\(t\.term, e\.retention\)",
                "now() - least(t.term, e.retention)",
            ),
        ),
        (
            "tests/database/test_job_archive.py::test_a_queue_keeps_its_jobs_longer_or_shorter_than_the_setting",
        ),
        r"and their attempts with them",
    ),
    Mutant(
        "C7-partition-dropped-by-the-setting",
        "a partition stays as long as the longest retention of a queue",
        (
            Edit(
                "pgworkers/job/partition_old.sql",
                r"max\(coalesce\(q\.retention, q\.declared_retention\)\)\)",
                "NULL)",
            ),
        ),
        ("tests/database/test_job_archive.py::test_a_partition_stays_as_long_as_the_longest_retention",),
        r"\['history_\d{8}'\] == \[\]",
    ),
    Mutant(
        "C7-app-cannot-say-it",
        "a retention that an app declares reaches its queue",
        (Edit("pgworkers/job/history_prune.sql", r"q\.declared_retention", "NULL"),),
        (
            "tests/database/test_job_archive.py::test_a_queue_keeps_its_jobs_longer_or_shorter_than_the_setting[app]",
        ),
        r"and their attempts with them",
    ),
    Mutant(
        "C8-names-with-commas",
        "names that -Q a,b:4 cannot say are refused where they are declared",
        (
            Edit(
                "pgworkers/options/values.py",
                r"    if found:\n        where = ",
                "    if False:\n        where = ",
            ),
        ),
        (
            "tests/unit/test_app.py::test_names_that_no_command_line_can_say_are_refused_wherever_they_are_declared",
        ),
        r"DID NOT RAISE UsageError",
    ),
    Mutant(
        "C8-names-with-commas-in-sql",
        "names that -Q a,b:4 cannot say are refused by SQL",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"CHECK \(VALUE !~ '\^\[\\s-\]\|\\s\$\|\[,:",
                r"CHECK (VALUE !~ '^\\s|\\s$|[",
                2,
            ),
        ),
        ("tests/database/test_row_bounds.py::test_names_that_no_command_line_can_say_are_refused",),
        r"DID NOT RAISE CheckViolation",
    ),
    Mutant(
        "C9-deadline-without-a-word",
        "the host of a running job hears of its new deadline as of a cancel",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"PERFORM pgworkers\.notify\('deadline:' \|\| set_deadline\.job_id\);",
                "NULL;",
            ),
        ),
        ("tests/database/test_job_deadline.py::test_a_live_job_gets_it_and_a_running_one_is_notified",),
        r"\('pgworkers', 'deadline:1'\) in \[\]",
    ),
    Mutant(
        "C9-update-without-effect",
        "a plain UPDATE of deadline_at is found by the next renewal",
        (
            Edit(
                "pgworkers/job/hosts.py",
                r"deadlines = \[ChangedDeadline\(",
                "deadlines: list[ChangedDeadline] = [] and [ChangedDeadline(",
            ),
        ),
        (
            "tests/database/test_job_deadline.py::test_a_renewal_returns_deadlines_that_the_host_does_not_know",
        ),
        r"expected 1, got 0",
    ),
    Mutant(
        "C9-supervisor-keeps-the-old-one",
        "a running job gets the deadline that its host has read",
        (
            Edit(
                "pgworkers/master/dispatcher.py",
                r"            worker\.send_to_supervisor\(\n +SetDeadline\([^)]*\(\),\n +\)\n +\)\n",
                "            pass\n",
            ),
        ),
        ("tests/tree/test_deadlines.py::test_a_job_that_gets_more_time_outlives_its_timeout",),
        r"not within [\d.]+ s: it has run for six seconds",
    ),
    Mutant(
        "C10-throttle-in-silence",
        "a throttled queue is announced in a line",
        (
            Edit(
                "pgworkers/master/scaling.py",
                r"self\._events\.emit\(\s+QueueThrottled\([^\n]*\)\s+\)",
                "pass",
            ),
        ),
        ("tests/tree/test_scaling.py::test_a_throttled_queue_cools_down_as_a_whole_and_goes_on",),
        r"not within [\d.]+ s: the line of the throttle",
    ),
    Mutant(
        "C10-throttled-again-at-once",
        "a throttled job does not say that it runs again at once",
        (
            Edit(
                "pgworkers/observe/log_messages.py",
                r'if verdict == "throttled" and seconds <= 0:',
                "if False:",
            ),
        ),
        ("tests/unit/test_log.py::test_what_became_of_a_lost_lease_and_of_missed_ticks_and_purges",),
        r"\(again at once\)",
    ),
    Mutant(
        "C10-missed-ticks-in-silence",
        "missed ticks are logged",
        (
            Edit(
                "pgworkers/observe/log.py",
                r"(        events\.TickFired,\n)",
                r"\1        events.TicksMissed,\n",
            ),
        ),
        ("tests/unit/test_log.py::test_what_became_of_a_lost_lease_and_of_missed_ticks_and_purges",),
        r"TicksMissed",
    ),
    Mutant(
        "C10-purges-in-silence",
        "purges are logged",
        (
            Edit(
                "pgworkers/master/duties.py",
                r"self\._events\.emit\(RowsPurged\(purged, int\(count\)\)\)",
                "pass",
            ),
        ),
        ("tests/database/test_leader_duties.py::test_purged_rows_are_reported",),
        r"\[\] == \[RowsPurged",
    ),
    Mutant(
        "C10-rescued-is-another-hosts",
        "a lost lease says that the job was rescued when it was",
        (
            Edit(
                "pgworkers/job/hosts.py",
                r"frozenset\(row\[0\] for row in jobs if row\[7\]\)",
                "frozenset()",
            ),
        ),
        ("tests/database/test_job_renew.py::test_it_learns_that_a_job_was_rescued",),
        r"frozenset\(\) == \{Fence\(id=1",
    ),
    Mutant(
        "C10-duties-by-hand-are-some",
        "duties run knows every duty",
        (
            Edit(
                "pgworkers/cli/duties.py",
                r"from pgworkers\.master\.duty_assembly import make_duties",
                "from pgworkers.master.duties import DutyRunner as make_duties",
            ),
            Edit("pgworkers/cli/duties.py", r", buffers=None", ""),
        ),
        ("tests/tree/test_leadership.py::test_each_duty_can_be_performed_by_hand",),
        r"Extra items in the left set",
    ),
    Mutant(
        "C11-reason-of-a-cancel-is-missing",
        "jobs show says why a dependent job was cancelled",
        (
            Edit(
                "pgworkers/cli/jobs/story.py",
                r'if \(job\.error or ""\)\.startswith\(CANCELLED_PREFIX\):',
                "if False:",
            ),
        ),
        ("tests/database/test_cli_jobs.py::test_show_says_why_a_dependent_job_was_cancelled",),
        r"somebody cancelle",
    ),
    Mutant(
        "C11-waits-for-its-time",
        "jobs show says which job a dependent job waits for",
        (Edit("pgworkers/cli/jobs/story.py", r"return reason_scheduled\(around\) or f", "return f"),),
        ("tests/database/test_cli_jobs.py::test_show_says_what_a_dependent_job_waits_for",),
        r"scheduled: waits for its time",
    ),
    Mutant(
        "C11-year-9999",
        "a job that waits for others has no time, not the year 9999",
        (Edit("pgworkers/job/query_job.sql", r"nullif\(run_at, pgworkers\.far_future\(\)\)", "run_at"),),
        ("tests/database/test_cli_jobs.py::test_show_says_what_a_dependent_job_waits_for",),
        r"'9999' is contained here",
    ),
    Mutant(
        "C11-login-of-a-cancel-is-missing",
        "jobs show says which login cancelled it and why",
        (
            Edit(
                "pgworkers/cli/jobs/story.py",
                r"return VERDICT_MEANINGS\[Verdict\.CANCELLED\] if asked is None else _operator_sentence\(asked\)",
                "return VERDICT_MEANINGS[Verdict.CANCELLED]",
            ),
        ),
        ("tests/database/test_cli_jobs.py::test_show_says_which_login_and_user_cancelled_it_and_why",),
        r"a cancel was requested",
    ),
    Mutant(
        "C12-claimed-is-running",
        "a job that was claimed and not begun is not called running",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"THEN 'claimed' ELSE state END",
                "THEN 'running' ELSE state END",
            ),
        ),
        ("tests/database/test_cli_jobs.py::test_a_job_that_waits_in_its_hosts_buffer_does_not_run",),
        r"\(2, 'running', None\)",
    ),
    Mutant(
        "C12-leases-churn",
        "a host whose workers all wait does not claim the same jobs again and again",
        (
            Edit(
                "pgworkers/master/assignment.py",
                r"2 \* \(LOOK_AHEAD_ONLY_HOST_SECONDS if self\._cluster\.is_only_host else CLAIM_AHEAD_SECONDS\)",
                "2 * CLAIM_AHEAD_SECONDS",
            ),
        ),
        ("tests/tree/test_lookahead.py::test_jobs_that_no_worker_here_can_begin_are_left_alone",),
        r"'running'\} == \{'ready'\}|claimed and given back again",
    ),
    Mutant(
        "C13-errors-of-the-driver-leak",
        "no error of the driver leaks from the Python API",
        (
            Edit(
                "pgworkers/client/client.py",
                r"return translate_error\(error, role=",
                "return error or translate_error(error, role=",
            ),
            Edit(
                "pgworkers/client/client.py",
                r"explained = enqueue_error\(error, ",
                "explained = error or enqueue_error(error, ",
            ),
        ),
        (
            "tests/security/test_permission_errors.py::test_a_login_without_rights_gets_a_pgworkers_error[newest-direct]",
        ),
        r"InsufficientPrivilege: permission denied",
    ),
    Mutant(
        "C13-refused-schema-without-its-grant",
        "a refused CREATE SCHEMA says what was tried and the missing GRANT",
        (
            Edit(
                "pgworkers/postgres/migrate.py",
                r"raise _explain_missing_grant\(conn, schema, error\) from error",
                "raise",
            ),
        ),
        (
            "tests/security/test_permission_errors.py::test_a_refused_migration_says_what_was_tried_and_the_missing_grant",
        ),
        r"the login stranger may not create the schema other",
    ),
    Mutant(
        "C13-roles-lock-out-in-silence",
        "migrate roles warns of each login that it locks out",
        (Edit("pgworkers/schema/roles.sql", r"RAISE WARNING 'the login", "RAISE DEBUG 'the login"),),
        (
            "tests/security/test_permission_errors.py::test_the_roles_script_warns_of_each_login_that_it_locks_out",
        ),
        r"\[\] == \['the login",
    ),
    Mutant(
        "C13-permission-is-absence",
        "doctor tells permission from absence",
        (
            Edit(
                "pgworkers/postgres/migrate.py",
                r"    except InsufficientPrivilege as error:\n        grants = ",
                "    except InsufficientPrivilege as error:\n        return {}\n        grants = ",
            ),
        ),
        (
            "tests/security/test_permission_errors.py::test_doctor_distinguishes_missing_rights_from_missing_objects",
        ),
        r"the login stranger may not use it",
    ),
    Mutant(
        "C14-both-versions-at-once",
        "after SIGHUP a queue runs no more jobs than it has workers",
        (Edit("pgworkers/master/assignment.py", r"if not self\.spec\.reload_overlap:", "if False:"),),
        (
            "tests/tree/test_reload.py::test_two_versions_together_run_no_more_jobs_than_the_queue_has_workers",
        ),
        r"'(succeeded|running)' != 'ready'",
    ),
    Mutant(
        "C15-raised-although-it-was-not",
        "JobStopped raised is recorded only if it was",
        (
            Edit(
                "pgworkers/supervisor/reaper.py",
                r"was_raised=worker\.slot\.job_stopped_raised_at >= worker\.slot\.stop_requested_at",
                "was_raised=True",
            ),
        ),
        ("tests/process/test_stop_ladder.py::test_a_raise_is_recorded_only_if_jobstopped_was_raised",),
        r"'raise' != 'signal'",
    ),
    Mutant(
        "C15-second-host-without-metrics",
        "a second host of a machine listens for metrics on the next free port",
        (
            Edit(
                "pgworkers/master/main.py",
                r"(?<=    return \(\n        )listen_on_next_free\(address\)(?=\n        if)",
                "listen(address)",
            ),
        ),
        (
            "tests/tree/test_regressions.py::test_two_hosts_on_one_machine_have_separate_metrics_and_are_distinguished",
        ),
        r"where False = all\(",
    ),
    Mutant(
        "C15-check-makes-a-database",
        "run --check makes no database",
        (
            Edit(
                "pgworkers/master/boot.py",
                r"if options\.is_check and not server\.status\(\)\.has_data:",
                "if False:",
            ),
        ),
        ("tests/tree/test_regressions.py::test_check_makes_no_database",),
        r"'embedded, would be made in .* in 'pgworkers",
    ),
    Mutant(
        "C15-workers-of-some-host",
        "workers tells two hosts of one machine apart",
        (Edit("pgworkers/job/query_workers.sql", r"h\.label, h\.pid", "h.label, 0"),),
        (
            "tests/tree/test_regressions.py::test_two_hosts_on_one_machine_have_separate_metrics_and_are_distinguished",
        ),
        r"\{0\} == \{",
    ),
    Mutant(
        "C16-two-connections-for-each-worker",
        "blocking and async handlers of a worker share one connection",
        (
            Edit(
                "pgworkers/client/client.py",
                r"        if self\.has_single_connection:\n",
                "        if False:\n",
                2,
            ),
        ),
        (
            "tests/tree/test_connection_counts.py::test_handlers_that_enqueue_share_one_connection_which_closes_when_idle",
        ),
        r"not within [\d.]+ s: one session after",
    ),
    Mutant(
        "C16-connection-stays-open",
        "the connection of a worker closes when it is idle",
        (Edit("pgworkers/worker/heartbeat.py", r"self\._setup\.app\.client\.close_unused\(\)", "pass"),),
        (
            "tests/tree/test_connection_counts.py::test_handlers_that_enqueue_share_one_connection_which_closes_when_idle",
        ),
        r"not within [\d.]+ s: the worker has rested",
    ),
    Mutant(
        "C17-settings-of-the-database",
        "our sessions set what they need, whatever the database has",
        (
            Edit(
                "pgworkers/postgres/session_settings.py",
                r"return STATEMENT_SETTINGS \| transactions \| timeouts\(settings\)",
                'return {"search_path": STATEMENT_SETTINGS["search_path"]} | timeouts(settings)',
            ),
            Edit(
                "pgworkers/postgres/session_settings.py",
                r"in \(STATEMENT_SETTINGS \| timeouts\(settings\)\)\.items\(\)",
                'in ({"search_path": STATEMENT_SETTINGS["search_path"]} | timeouts(settings)).items()',
            ),
        ),
        ("tests/database/test_session_settings.py::test_each_setting_is_what_we_rely_on",),
        r"'German,DMY' == 'ISO,MDY'",
    ),
    Mutant(
        "C18-missing-programs-in-silence",
        "in CI a test that is skipped because a program is missing is red",
        (
            Edit(
                "tests/conftest.py",
                r'if report\.skipped and os\.environ\.get\("CI"\)',
                "if False and report.skipped",
            ),
        ),
        ("tests/unit/test_missing_programs.py::test_a_missing_program_is_red_in_ci[true-outcome0]",),
        r"test session starts",
    ),
    Mutant(
        "C18-killed-pytest-leaves-masters",
        "a killed pytest leaves no masters",
        (
            Edit(
                "tests/support/watchdog.py",
                r"    clean_up\(run, root\)\n\n\ndef",
                "    time.sleep(150)\n    clean_up(run, root)\n\n\ndef",
            ),
        ),
        (
            "tests/tree/test_killed_pytest.py::test_a_killed_pytest_leaves_no_process_and_no_file[hanging0-pytest]",
        ),
        r"not within [\d.]+ s: everything is gone",
        note="they live for 150 s, longer than the test waits, and then end: nothing is left of the mutant either",
    ),
)
