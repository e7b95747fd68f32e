"""Mutants of security, the rows S of the checklist. Each removes the fix of one finding."""

from __future__ import annotations

from mutants.mutant import Edit, Mutant

BOUNDARY = (
    Mutant(
        "S-01-isdigit",
        "a payload is parsed strictly and never raises",
        (
            Edit(
                "pgworkers/job/notification_payloads.py",
                r"if _ID\.fullmatch\(text\) is None:",
                "if not text.isdigit():",
            ),
        ),
        ("tests/unit/test_notifications.py::test_any_payload_becomes_a_bounded_hint_or_none",),
        r"invalid literal for int\(\) with base 10: '²'",
    ),
    Mutant(
        "S-02-notification-is-believed",
        "a cancel stops a job only if the job's row says so",
        (
            Edit(
                "pgworkers/master/notifications.py",
                r"self\._lease_keeper\.renew_after_hint\(\)",
                "self._dispatcher.cancel(self._dispatcher.held_jobs[job_id].fence)",
            ),
        ),
        (
            "tests/security/test_forged_notifications.py::test_s01_s02_no_notification_of_any_login_ends_a_host_or_stops_a_job",
        ),
        r"not within [\d.]+ s: job 1 succeeded|'(cancelled|dead)' == 'running'",
    ),
    Mutant(
        "S-03-key-without-a-bound",
        "a key that no index can hold is refused",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"CONSTRAINT job_concurrency_key_fits CHECK \(octet_length\(VALUE\) BETWEEN 1 AND 1000\)",
                "CONSTRAINT job_concurrency_key_fits CHECK (octet_length(VALUE) >= 1)",
            ),
        ),
        ("tests/security/test_refused_values.py::test_web_cannot_enqueue_it[newest-direct]",),
        r"(one more item|first extra item): .SELECT pgworkers\.enqueue",
    ),
    Mutant(
        "S-04-infinite-times",
        "a time is finite and of a year that every reader can hold",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"CHECK \(VALUE BETWEEN '1970-01-01 00:00:00\+00' AND '9999-01-01 00:00:00\+00'\)",
                "CHECK (VALUE IS NOT NULL OR VALUE IS NULL)",
            ),
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"ELSIF run_at < '1970-01-01 00:00:00\+00' OR run_at >= pgworkers\.far_future\(\) THEN",
                "ELSIF false THEN",
            ),
        ),
        ("tests/security/test_refused_values.py::test_web_cannot_enqueue_it[newest-direct]",),
        r"(one more item|first extra item): .SELECT pgworkers\.enqueue",
    ),
    Mutant(
        "S-05-stored-size",
        "the size of JSON is bounded as it is printed",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"pg_column_size\(VALUE\) <= 4194304 AND octet_length\(VALUE::text\) <= 4194304\)",
                "pg_column_size(VALUE) <= 4194304)",
                2,
            ),
        ),
        ("tests/security/test_refused_values.py::test_web_cannot_enqueue_it[newest-direct]",),
        r"(one more item|first extra item): .SELECT pgworkers\.enqueue",
    ),
    Mutant(
        "S-05-claim-is-not-split",
        "a failing claim is split until the bad row is found and set aside",
        (
            Edit(
                "pgworkers/master/claimer.py",
                r"(?<=    async def _finish_unclaimable_jobs\(self, error: BaseException \| None\) -> bool:\n)",
                "        return False\n",
            ),
        ),
        (
            "tests/security/test_unfit_jobs.py"
            "::test_the_others_run_and_the_bad_row_is_dead_with_the_reason[newest]",
        ),
        r"not within [\d.]+ s: job \d+ succeeded",
    ),
    Mutant(
        "S-06-children-look-here",
        "no child of ours imports a module from the current directory",
        (Edit("pgworkers/supervisor/describe.py", r'                    "-P",\n', ""),),
        ("tests/security/test_module_shadowing.py::test_s06_nothing_is_imported_from_the_current_directory",),
        r"'msgspec\b",
    ),
    Mutant(
        "S-06-command-looks-here",
        "python -m pgworkers imports nothing from the current directory",
        (Edit("pgworkers/__main__.py", r"if not sys\.flags\.safe_path:", "if False:"),),
        ("tests/security/test_module_shadowing.py::test_s06_nothing_is_imported_from_the_current_directory",),
        r"\(\('version',\), ",
    ),
    Mutant(
        "S-07-lock-decides",
        "a term in a row decides who leads, not a lock that any login can hold",
        (
            Edit(
                "pgworkers/job/leader_try.sql",
                r"     WHERE coalesce\(\(SELECT h\.free OR",
                "     WHERE lock.mine AND coalesce((SELECT h.free OR",
            ),
        ),
        (
            "tests/database/test_leader_term.py::test_the_lock_of_a_stranger_stops_neither_taking_nor_renewing",
        ),
        r"\(None, False\) == \(1, False\)",
    ),
    Mutant(
        "S-07-limits-lock-numbers",
        "limits lock rows, not numbers that any login can lock",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"    locked_limits := ARRAY\(",
                "    PERFORM pg_advisory_xact_lock(hashtextextended('task ' || n, 'pgworkers.job'::regclass::oid::bigint))\n"
                "       FROM unnest(chosen_tasks) n;\n    locked_limits := ARRAY(",
            ),
        ),
        (
            "tests/database/test_limits_concurrency.py::test_a_login_that_holds_every_advisory_lock_stops_no_claim",
        ),
        r"statement timeout",
    ),
    Mutant(
        "S-07-claims-wait-for-limits",
        "a claim never waits for a limit that another claim holds",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"ORDER BY m\.id FOR UPDATE SKIP LOCKED\);",
                "ORDER BY m.id FOR UPDATE);",
            ),
        ),
        (
            "tests/database/test_limits_concurrency.py::test_nothing_without_a_limit_or_with_another_waits_for_a_limit",
        ),
        "statement timeout",
    ),
    Mutant(
        "S-08-unknown-queues-are-kept",
        "notifications of unknown queues are ignored, and memory is bounded",
        (
            Edit(
                "pgworkers/master/claimer.py",
                r"if name in self\._dispatcher\.buffers and ",
                "if ",
            ),
            Edit(
                "pgworkers/job/notification_payloads.py",
                r"return 1 <= len\(text\.encode\([^)]*\)\) <= MAX_QUEUE_NAME_BYTES",
                "return bool(text)",
            ),
        ),
        (
            "tests/security/test_forged_notifications.py::test_s08_a_flood_for_queues_that_do_not_exist_leaves_no_memory_behind",
        ),
        r"MB for 158 MB of notifications",
    ),
    Mutant(
        "S-09-after-locks-its-parents",
        "an open transaction that enqueued with after keeps no end unwritten",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"OUT failed bigint\)\nLANGUAGE plpgsql STABLE",
                "OUT failed bigint)\nLANGUAGE plpgsql",
            ),
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"    waiting_for := '\{\}';\n    FOR parent IN",
                "    waiting_for := '{}';\n"
                "    PERFORM FROM pgworkers.job j WHERE j.id = ANY (find_parents.ids) FOR UPDATE;\n"
                "    FOR parent IN",
            ),
        ),
        (
            "tests/security/test_enqueuer_dependencies.py::test_an_open_transaction_of_an_enqueuer_keeps_no_end_unwritten[newest-direct]",
        ),
        r"assert 'locked' == 'written'",
    ),
    Mutant(
        "S-09-after-reveals",
        "after tells an enqueuer nothing of jobs of other logins",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"p ON find_parents\.only_of_login IS NULL OR p\.enqueued_by = find_parents\.only_of_login",
                "p ON true",
            ),
        ),
        (
            "tests/security/test_enqueuer_dependencies.py::test_a_job_of_another_role_is_answered_as_one_that_does_not_exist[newest-direct]",
        ),
        r"DID NOT RAISE NoDataFound",
    ),
    Mutant(
        "S-09-after-without-a-bound",
        "after names at most 1,000 jobs",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"ELSIF cardinality\(find_parents\.ids\) > 1000 THEN",
                "ELSIF false THEN",
            ),
        ),
        ("tests/security/test_enqueuer_dependencies.py::test_after_has_a_bound[newest-direct]",),
        r"DID NOT RAISE InvalidParameterValue",
    ),
    Mutant(
        "S-09-any-number-of-followers",
        "a job has at most 5,000 followers of an enqueue-only login",
        (Edit("pgworkers/schema/0001_initial.sql", r"OFFSET 4999 LIMIT 1", "OFFSET 4999999 LIMIT 1"),),
        (
            "tests/security/test_enqueuer_dependencies.py::test_a_job_has_a_bounded_number_of_followers_of_web[newest-direct]",
        ),
        r"DID NOT RAISE ConfigurationLimitExceeded",
    ),
    Mutant(
        "S-10-bounds-are-overridden",
        "an enqueuer exceeds nothing that the task's row says",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"THEN least\(enqueue\.timeout, declared\.timeout\) END",
                "THEN enqueue.timeout END",
            ),
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"THEN least\(enqueue\.memory, declared\.memory\) END",
                "THEN enqueue.memory END",
            ),
        ),
        (
            "tests/security/test_grants.py::test_an_enqueuer_exceeds_nothing_that_the_task_says[newest-direct-enqueue]",
        ),
        r"timedelta\(seconds=3600\) != datetime",
    ),
    Mutant(
        "S-10-arguments-of-others",
        "an enqueuer replaces only what it enqueued itself",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"AND \(may_replace OR j\.enqueued_by = session_user\)",
                "",
            ),
        ),
        ("tests/security/test_grants.py::test_the_arguments_of_others_are_not_replaced[newest-direct]",),
        r"DID NOT RAISE InsufficientPrivilege",
    ),
    Mutant(
        "S-10-grants-without-effect",
        "a grant bounds queue and task",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"    ELSIF is_restricted THEN\n",
                "    ELSIF false THEN\n",
            ),
        ),
        ("tests/security/test_grants.py::test_a_grant_bounds_queue_and_task[newest-direct-enqueue]",),
        r"DID NOT RAISE InsufficientPrivilege",
    ),
    Mutant(
        "S-10-no-quota",
        "a grant bounds how many jobs wait",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"IF waiting < one\.max_waiting THEN",
                "IF true THEN",
            ),
        ),
        ("tests/security/test_grants.py::test_a_grant_bounds_how_many_wait[newest-direct-enqueue]",),
        r"DID NOT RAISE ConfigurationLimitExceeded",
    ),
    Mutant(
        "S-10-login-is-forgotten",
        "each job keeps the login that enqueued it",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"(    enqueued_by [^\n]*)DEFAULT session_user",
                r"\1DEFAULT current_user",
                2,
            ),
        ),
        ("tests/security/test_grants.py::test_each_job_keeps_the_login_that_enqueued_it[newest-direct]",),
        r"1: 'pgworkers_owner'",
    ),
    Mutant(
        "S-10-held-by-an-enqueuer",
        "an enqueuer cannot hold a job",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"        IF enqueue\.held THEN\n",
                "        IF false THEN\n",
            ),
        ),
        ("tests/security/test_grants.py::test_a_job_is_not_held_by_an_enqueuer[newest-direct]",),
        r"DID NOT RAISE InsufficientPrivilege",
    ),
    Mutant(
        "S-10-priority-of-an-enqueuer",
        "the priority of the task is the highest that an enqueuer gets",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"enqueue\.priority := least\(enqueue\.priority, coalesce\(declared\.priority, 0\)\);",
                "",
            ),
        ),
        (
            "tests/security/test_grants.py::test_the_priority_of_the_task_is_the_highest[newest-direct-enqueue]",
        ),
        r"2000000000 != -5",
    ),
    Mutant(
        "S-10-memory-without-a-limit",
        "a task without a memory limit gives no memory away",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"enqueue\.memory IS NOT NULL AND declared\.memory IS NOT NULL",
                "enqueue.memory IS NOT NULL",
            ),
        ),
        ("tests/security/test_grants.py::test_a_task_without_limits_gives_no_memory_away[newest-direct]",),
        r"1099511627776\) == ",
    ),
    Mutant(
        "S-10-keys-of-schedules",
        "an enqueuer cannot use the concurrency keys of schedules",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"IF starts_with\(enqueue\.concurrency_key, 'schedule:'\) THEN",
                "IF false THEN",
            ),
        ),
        ("tests/security/test_grants.py::test_the_concurrency_keys_of_schedules_are_refused[newest-direct]",),
        r"DID NOT RAISE InsufficientPrivilege",
    ),
    Mutant(
        "S-11-pooled-search-path",
        "through a pooler our statements reach no operator in public",
        (
            Edit(
                "pgworkers/postgres/session_settings.py",
                r"for name, value in \(STATEMENT_SETTINGS \| timeouts\(settings\)\)\.items\(\):",
                'for name, value in (STATEMENT_SETTINGS | timeouts(settings) | {"search_path": "public,pg_catalog"})'
                ".items():",
            ),
        ),
        (
            "tests/security/test_pooled_search_path.py::test_what_we_say_reaches_nothing_in_public[newest-pooled-worker]",
        ),
        r"min is not an aggregate function",
    ),
    Mutant(
        "S-12-domains-stay-with-the-migrator",
        "migrate roles hands over every object of ours",
        (
            Edit(
                "pgworkers/schema/roles.sql",
                r"t\.typtype IN \('e', 'd'\)\n        UNION ALL\n        SELECT CASE p\.prokind",
                "t.typtype IN ('e')\n        UNION ALL\n        SELECT CASE p.prokind",
            ),
        ),
        ("tests/security/test_migrate_roles.py::test_s12_all_our_objects_belong_to_the_owner",),
        r"first extra item: \('queue_name', 'postgres'\)",
    ),
    Mutant(
        "S-13-tables-of-others",
        "migrate roles touches nothing of others",
        (Edit("pgworkers/schema/roles.sql", r"IF others IS NOT NULL THEN", "IF false THEN"),),
        ("tests/security/test_migrate_roles.py::test_s13_nothing_of_others_is_touched",),
        r"DID NOT RAISE RaiseException",
    ),
    Mutant(
        "S-13-schema-public",
        "public and pg_* are refused as schema",
        (
            Edit(
                "pgworkers/settings.py",
                r'if name in \("public", "information_schema"\) or name\.startswith\("pg_"\):',
                "if False:",
            ),
        ),
        (
            "tests/security/test_migrate_roles.py::test_s13_schemas_of_others_are_refused_wherever_one_can_be_named",
        ),
        r"DID NOT RAISE UsageError",
    ),
    Mutant(
        "S-14-unquoted-names",
        "names in commands that are printed to be copied are quoted",
        (
            Edit(
                "pgworkers/observe/escape.py",
                r'shlex\.join\(\["pgworkers", \*verb\.split\(\), \*words\]\)',
                '" ".join(["pgworkers", *verb.split(), *words])',
            ),
        ),
        (
            "tests/unit/test_shell_quoting.py::test_a_pasted_command_runs_nothing_but_pgworkers[$(touch pwned)]",
        ),
        r"touch: unre|== b''|/pwned|where 0 = .*count",
    ),
    Mutant(
        "S-15-slow-clients-stay",
        "slow clients do not keep a probe from its answer",
        (
            Edit(
                "pgworkers/master/http.py",
                r"            HttpConnection\(sock, str\(peer\[0\]\), self\)\.start\(\)\n"
                r"            if len\(self\.connections\) > MAX_CONNECTIONS:\n                self\._evict\(\)\n",
                "            if len(self.connections) >= MAX_CONNECTIONS:\n"
                "                sock.close()\n                continue\n"
                "            HttpConnection(sock, str(peer[0]), self).start()\n",
            ),
        ),
        # Not those that read nothing: where the answer fits into the buffers of the kernel, they are not slow.
        (
            "tests/security/test_http_port.py::test_s15_slow_clients_do_not_keep_a_probe_from_its_answer[silent-newest]",
        ),
        r"ConnectionResetError",
    ),
    Mutant(
        "S-15-any-host-name",
        "the Host of a request is checked",
        (Edit("pgworkers/master/http.py", r"if host and host not in self\._hosts:", "if False:"),),
        (
            "tests/security/test_http_port.py::test_s15_the_host_header_of_another_site_is_refused_with_a_sentence",
        ),
        r"200 == 421",
    ),
    Mutant(
        "S-16-password-in-ps",
        "every command takes the address out of ps",
        (Edit("pgworkers/cli/main.py", r"    if shown != list\(argv\):\n", "    if False:\n"),),
        (
            "tests/security/test_password_in_ps.py::test_s16_no_command_shows_the_password_of_its_command_line",
        ),
        r"'c4n4ry' is contained here",
    ),
    Mutant(
        "S-17-viewer-sees-payload",
        "a viewer sees jobs and no payload",
        (
            Edit(
                "pgworkers/schema/roles.sql",
                r"AND a\.attname NOT IN \('args', 'scope_args', 'result', 'checkpoint', 'meta', 'output'\)",
                "",
            ),
        ),
        ("tests/security/test_payload.py::test_a_viewer_sees_jobs_and_no_payload[newest-direct]",),
        r"where False = all\(",
    ),
    Mutant(
        "S-17-arguments-in-the-log",
        "log_args=false keeps arguments out of the log",
        (
            Edit(
                "pgworkers/master/finisher.py",
                r'hide_secrets_in_json\(job\.args, held\.task\.secret\) if log_args else ""',
                "job.args",
            ),
        ),
        ("tests/security/test_payload.py::test_a_host_logs_arguments_only_if_it_may[false-text-newest]",),
        r"'canary-of-payload' in .*canary-of-payload",
    ),
    Mutant(
        "S-19-secret-argument-in-listings",
        "commands do not show the value of a secret argument",
        (Edit("pgworkers/job/queries.py", r"read\[_ARGS\] = hide_secrets\(read\[_ARGS\]\)", "pass"),),
        ("tests/tree/test_typed_arguments.py::test_types_arrive_and_secrets_are_shown_nowhere",),
        r"expired-token-0815",
    ),
    Mutant(
        "S-19-secret-argument-in-errors",
        "the errors of an attempt do not quote a secret argument",
        (Edit("pgworkers/worker/attempt.py", r"            self\._scrub_secrets\(report\)\n", ""),),
        ("tests/tree/test_typed_arguments.py::test_types_arrive_and_secrets_are_shown_nowhere",),
        r"expired-token-0815",
    ),
    Mutant(
        "S-low-foreign-app",
        "an app.py of another user that was not named is refused",
        (
            Edit(
                "pgworkers/cli/database.py",
                r"why = None if invocation\.config or found is None else reason_to_distrust\(Path\(found\)\.absolute\(\)\)",
                "why = None",
            ),
        ),
        ("tests/security/test_untrusted_files.py::test_a_foreign_app_is_not_loaded_unless_it_is_named",),
        r"loaded it",
    ),
    Mutant(
        "S-low-foreign-home",
        "a .pgworkers of another user is refused",
        (
            Edit(
                "pgworkers/postgres/database_choice.py",
                r"why = reason_to_distrust\(chosen\.home, [^\n]*\)\n",
                "why = None\n",
            ),
        ),
        (
            "tests/security/test_untrusted_files.py::test_a_foreign_directory_is_not_used_as_the_embedded_servers",
        ),
        r"ended with 0: pgworkers",
    ),
    Mutant(
        "S-low-cron-of-a-million-items",
        "a cron expression is bounded",
        (Edit("pgworkers/schema/0001_initial.sql", r"octet_length\(cron\) <= 1000 AND ", ""),),
        ("tests/security/test_schedule_bounds.py::test_a_cron_expression_of_a_million_items",),
        r"DID NOT RAISE CheckViolation",
    ),
    Mutant(
        "S-low-frames-end-the-host",
        "a bad frame is the death of that worker only",
        (
            Edit(
                "pgworkers/master/worker_channel.py",
                r"            self\.protocol_error = self\.protocol_error or str\(error\)\n",
                "            raise\n",
            ),
        ),
        ("tests/security/test_forged_frames.py::test_a_bad_frame_is_the_death_of_that_worker_only",),
        r"not within [\d.]+ s: job 2 dead",
    ),
    Mutant(
        "S-low-operator-writes-history",
        "history is append-only for operators",
        (
            Edit(
                "pgworkers/schema/roles.sql",
                r"GRANT UPDATE \(behind_limit\) ON pgworkers\.job TO pgworkers_operator;",
                "GRANT UPDATE, DELETE ON pgworkers.job, pgworkers.history, pgworkers.operation TO pgworkers_operator;",
            ),
        ),
        ("tests/security/test_history.py::test_an_operator_writes_neither_history_nor_its_trace",),
        r"first extra item: .UPDATE pgworkers\.history SET state",
    ),
    Mutant(
        "S-low-retry-without-a-trace",
        "what an operator does to a job leaves a trace",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"FROM requeued b JOIN picked p ON p\.id = b\.id",
                "FROM requeued b JOIN picked p ON p.id = b.id WHERE false",
            ),
        ),
        (
            "tests/security/test_history.py::test_a_retry_leaves_a_trace_of_the_end_that_it_took_away[newest-direct]",
        ),
        r"\[\] == \[\('retry'",
    ),
    Mutant(
        "S-low-retention-without-a-trace",
        "a change of the retention leaves a trace",
        (Edit("pgworkers/schema/0001_initial.sql", r"CREATE TRIGGER queue_retention_changed.*?;\n", ""),),
        ("tests/security/test_history.py::test_a_change_of_the_retention_leaves_a_trace[newest-direct]",),
        r"\[\] == \[\('retention'",
    ),
    Mutant(
        "S-low-core-dumps",
        "no process of a host writes a core dump unless the setting says so",
        (
            Edit(
                "pgworkers/master/main.py",
                r"        process_limits\.set_core_dump_limit\(plan\.settings\.core_dump_limit\)\n",
                "",
            ),
        ),
        ("tests/tree/test_numpy_and_core_dumps.py::test_no_process_writes_a_core_dump_unless_it_may",),
        r"'unlimited' != '1",
    ),
    Mutant(
        "S-low-nothing-about-tls",
        "doctor warns of a way to another machine that is not encrypted or not verified",
        (Edit("pgworkers/doctor/server.py", r"        if one\.is_local:\n", "        if True:\n"),),
        ("tests/unit/test_doctor_judgements.py::test_each_way_to_the_database_is_judged",),
        r"'10.0.0.6 is not encrypted' in",
    ),
    Mutant(
        "S-low-root-without-a-word",
        "doctor warns of jobs that run as root",
        (Edit("pgworkers/doctor/machine.py", r"if not machine\.is_root:", "if True:"),),
        ("tests/unit/test_doctor_judgements.py::test_jobs_that_run_as_root_are_a_warning",),
        r"'ok' != 'warn'",
    ),
    Mutant(
        "S-low-core-limit-unseen",
        "doctor warns of core dumps",
        (Edit("pgworkers/doctor/machine.py", r"if machine\.max_core_bytes in \(0, 1\):", "if True:"),),
        ("tests/unit/test_doctor_judgements.py::test_core_dumps_are_a_warning",),
        r"'ok'> == 'warn'",
    ),
    Mutant(
        "S-low-grants-of-gone-roles",
        "doctor reports grants of roles that do not exist",
        (
            Edit(
                "pgworkers/doctor/checks.py",
                r"cluster\.check_grants\(p\.query\(cluster\.grants_without_role\(\)\)\)",
                "cluster.check_grants([])",
            ),
        ),
        ("tests/database/test_doctor.py::test_a_grant_of_a_role_that_does_not_exist_is_reported",),
        r"\[<Level.OK: 'ok'>\] == \[",
    ),
    Mutant(
        "S-low-missing-mutexes",
        "doctor reports missing rows of the mutex",
        (
            Edit(
                "pgworkers/doctor/checks.py",
                r"cluster\.check_mutexes\(p\.query\(cluster\.missing_mutexes\(\)\)\)",
                "cluster.check_mutexes(0)",
            ),
        ),
        ("tests/database/test_doctor.py::test_missing_rows_of_the_mutex_are_reported_with_the_fix",),
        r"\[<Level.OK: 'ok'>\] == \[",
    ),
)
