"""Every mutant: the core rules first, then those of the modules next to this one."""

from __future__ import annotations

from mutants.bounded_reads import READS
from mutants.clients import CLIENTS
from mutants.leader_duties import UPKEEP
from mutants.limits import LIMITS
from mutants.migrations import UPGRADES
from mutants.mutant import Edit, Mutant
from mutants.notifications import WAKING
from mutants.process_deaths import DEATHS
from mutants.security import BOUNDARY
from mutants.user_facing import DAILY_USE

GUARDS = "tests/database/test_lease_guard.py"
PAIRS = "tests/model/test_verb_pairs.py"
FAULT = "tests/fault"
CLAIM = r"\bj\.claimed_at = \(%\(claims\)s::timestamptz\[\]\)\[[^]]+\[\]\)\]"

MUTANTS = (
    Mutant(
        "finish-without-lease",
        "finalise without the lease token in WHERE",
        (
            Edit(
                "pgworkers/job/finish.sql",
                r"\bj\.lease = \(%\(leases\)s::integer\[\]\)\[[^]]+\[\]\)\]",
                "true",
            ),
        ),
        (f"{GUARDS}::test_a_lease_that_is_over_writes_nothing[finish]",),
        r"where False = untouched\(",
    ),
    Mutant(
        "finish-without-lease-and-host",
        "finalise without the lease token in WHERE, nor the host",
        (
            Edit(
                "pgworkers/job/finish.sql",
                r"\bj\.lease = \(%\(leases\)s::integer\[\]\)\[[^]]+\[\]\)\]",
                "true",
            ),
            Edit("pgworkers/job/finish.sql", r"\bj\.host IS NOT DISTINCT FROM %\(host\)s::uuid", "true"),
            Edit("pgworkers/job/finish.sql", CLAIM, "true"),
        ),
        (
            f"{FAULT}/test_workers.py::test_row_10_a_host_stopped_for_more_than_its_lease_writes_nothing",
            "tests/tree/test_deaths.py"
            "::test_a_host_that_was_stopped_longer_than_its_lease_cannot_finish_what_it_lost",
        ),
        "a stale end was written",
        note="between two hosts each of them refuses a stale end, and so does the moment: row 10 sees only the loss of all",
    ),
    Mutant(
        "finish-without-state",
        "finalise without state='running'",
        (
            Edit(
                "pgworkers/job/finish.sql",
                r"\bj\.host IS NOT DISTINCT FROM %\(host\)s::uuid AND j\.state = 'running'",
                "true",
            ),
            Edit("pgworkers/job/finish.sql", CLAIM, "true"),
        ),
        (f"{GUARDS}::test_a_job_that_waits_is_not_written_by_its_last_lease[finish]",),
        r"where False = .*survives.*\(None\)",
        note="a row that waits has no host and no claim, so both say the same: all are taken away",
    ),
    Mutant(
        "finish-without-host",
        "a lease number that a failover lost and gave again is still another host's",
        (Edit("pgworkers/job/finish.sql", r"\bj\.host IS NOT DISTINCT FROM %\(host\)s::uuid", "true"),),
        (f"{GUARDS}::test_a_lease_of_another_host_writes_nothing_even_with_the_same_number[finish]",),
        r"where False = untouched_by_another\(",
    ),
    Mutant(
        "finish-without-claimed-at",
        "an id and a lease that a failover gave again are another job's, though the host is the same",
        (Edit("pgworkers/job/finish.sql", CLAIM, "true"),),
        (f"{GUARDS}::test_a_claim_of_a_lost_timeline_writes_nothing_even_by_the_same_host[finish]",),
        r"where False = untouched_by_the_same_host\(",
    ),
    Mutant(
        "number-given-twice",
        "a claim whose number this host knows from a lost timeline is given back",
        (
            Edit(
                "pgworkers/master/dispatcher.py",
                r"if not \(known is not None and known\.key == key\) and not self\.assigner\.was_reclaimed\(key\):",
                "if True:",
            ),
        ),
        (
            "tests/unit/test_dispatcher.py::test_the_number_of_a_lost_claim_that_is_given_again_is_another_job",
            "tests/unit/test_dispatcher.py::test_an_order_that_a_worker_has_not_read_is_not_confused_with_a_later_one",
        ),
        r"assert \(\(?\[?(HeldJob|Fence)\(",
    ),
    Mutant(
        "rescue-by-id-only",
        "sweep selects first, updates by id only",
        (
            Edit("pgworkers/job/rescue.sql", r"\n\s+FOR UPDATE SKIP LOCKED", ""),
            Edit("pgworkers/job/rescue.sql", r" AND j\.lease = l\.lease AND j\.state = 'running'", "", 2),
        ),
        (f"{PAIRS}::test_row_95_every_ordered_pair_is_one_of_its_two_orders[lost]",),
        r"lost: \w+ \| rescue",
    ),
    Mutant(
        "rescue-all-or-nothing",
        "sweep in one batch statement without per-row fallback",
        (
            Edit(
                "pgworkers/master/duties.py",
                r"rescued = await _rescue_one_by_one\(executor, host_id, database_time\)",
                "raise",
            ),
        ),
        (
            "tests/database/test_leader_duties.py"
            "::test_a_thousand_are_rescued_and_the_one_with_a_conflict_ends_with_its_reason",
        ),
        r"one sweep\s+assert 0 == 1000",
    ),
    Mutant(
        "prune-waits",
        "cleanup without FOR UPDATE SKIP LOCKED",
        (Edit("pgworkers/job/history_prune.sql", r"FOR UPDATE OF h SKIP LOCKED", ""),),
        (f"{PAIRS}::test_duties_skip_locked_rows[prune]",),
        "it waited, or did not see the lock",
        note="live jobs are in another table, so cleanup cannot delete one; without the lock it waits for an operator's",
    ),
    Mutant(
        "drain-without-renewal",
        "heartbeat stops before finalise commits",
        (
            Edit(
                "pgworkers/master/lease_keeper.py",
                r"if monotonic\(\) >= self\._due_at:",
                'if monotonic() >= self._due_at and self._snapshot(False).state != "draining":',
            ),
        ),
        (f"{FAULT}/test_drains.py::test_row_83_a_job_longer_than_the_drain_is_handed_back_when_it_is_dead",),
        "it began elsewhere while the first handler was alive",
        note="the heartbeat that holds leases is the host's renewal",
    ),
    Mutant(
        "log-by-hand",
        "heartbeat thread logs through logging",
        (
            Edit(
                "pgworkers/observe/log_writer.py",
                r"(def put\(self, line: str\) -> None:\n)",
                r'\1        self._write((line + "\\n").encode())\n        return\n',
            ),
        ),
        (f"{FAULT}/test_resources.py::test_row_75_unread_output_blocks_nothing",),
        r"not within [\d.]+ s: the jobs go on",
        note="worker threads never log; the master's lines go through a thread, here they do not",
    ),
    Mutant(
        "no-fence",
        "fence removed from master",
        (
            Edit(
                "pgworkers/master/host.py",
                r"self\._lease_deadline\.extend_to\(sent \+ self\._plan\.settings\.lease_duration\)",
                "self._lease_deadline.extend_to(sent + 1e6)",
            ),
        ),
        (
            "tests/tree/test_operator_requests.py::test_an_exclusive_job_is_dead_before_its_lease_can_be_anothers",
        ),
        "it outlived its lease",
    ),
    Mutant(
        "fence-too-late",
        "exclusive jobs are dead before their lease can be another's",
        (
            Edit(
                "pgworkers/supervisor/main.py",
                r"(exclusive_until = self\._lease_deadline\.expires_at / 1e9) - self\._settings\.lease_duration / 3",
                r"\1 + self._settings.lease_duration * 0.8",
            ),
        ),
        (
            "tests/tree/test_operator_requests.py::test_an_exclusive_job_is_dead_before_its_lease_can_be_anothers",
        ),
        "it outlived its lease",
        note="it still comes, and everybody who only waits for it is content",
    ),
    Mutant(
        "fence-from-reply",
        "fence measured from reply instead of send",
        (
            Edit(
                "pgworkers/master/lease_keeper.py",
                r"self\._on_renewed\(sent_boottime\)",
                "self._on_renewed(boottime())",
            ),
        ),
        (f"{FAULT}/test_drains.py::test_row_40_the_fence_counts_from_the_sending",),
        "the answer came later than that",
    ),
    Mutant(
        "begin-beyond-the-term",
        "a worker begins what a host that stood still had claimed",
        (
            Edit(
                "pgworkers/worker/attempt.py",
                r"if clock\.boottime_ns\(\) >= self\._lease_expires_at:",
                "if False:",
            ),
        ),
        (
            "tests/tree/test_lease_deadline_host.py::test_a_host_that_was_frozen_begins_nothing_that_was_cancelled_meanwhile[worker]",
            "tests/process/test_tickets.py::test_nothing_begins_beyond_the_term_of_its_lease",
        ),
        "a cancelled job began|waited in vain for: the report of job 1",
    ),
    Mutant(
        "release-before-death",
        "release before waitid",
        (
            Edit(
                "pgworkers/master/drain.py",
                r"(        for worker in self\._dispatcher\.busy_workers\(\):\n"
                r"            self\._dispatcher\.request_stop\(worker, StopReason\.DRAIN\))",
                "        jobs = [worker.current_job for worker in self._dispatcher.busy_workers()]\n"
                '        self._finisher.release([job.fence for job in jobs if job], "mutant")\n\\1',
            ),
        ),
        (f"{FAULT}/test_drains.py::test_row_83_a_job_longer_than_the_drain_is_handed_back_when_it_is_dead",),
        "it began elsewhere while the first handler was alive",
    ),
    Mutant(
        "duty-on-any-session",
        "session advisory lock instead of transaction lock",
        (
            Edit(
                "pgworkers/master/leadership.py",
                r"return await self\._connection\.execute\(query, session_number=self\._session_number\)",
                "return await self._connection.execute(query)",
            ),
        ),
        (
            "tests/database/test_leader_duties.py"
            "::test_a_host_that_lost_its_session_performs_no_duty_after_reconnecting[promote]",
        ),
        "it reached the server without the lock",
        note="our lock is the session's, on a direct connection; duties run on that very session, which makes it safe",
    ),
    Mutant(
        "tick-not-unique",
        "cron without unique row",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"PRIMARY KEY \(schedule, scope, at\)",
                "UNIQUE (schedule, scope, at, fired_at)",
            ),
        ),
        (
            "tests/database/test_schedule_fire.py"
            "::test_a_stale_plan_does_nothing_and_neither_would_it_without_the_revision",
        ),
        r"Left contains one more item: InsertedTick\(",
    ),
    Mutant(
        "release-gives-the-lease-back",
        "attempt decremented on release",
        (
            Edit(
                "pgworkers/job/release.sql",
                r"attempt = greatest\(j\.attempt - 1, 0\)",
                "lease = j.lease - 1, attempt = greatest(j.attempt - 1, 0)",
            ),
        ),
        (
            "tests/database/test_job_release.py"
            "::test_a_released_job_is_ready_at_once_and_its_attempt_is_given_back",
        ),
        "the lease must grow",
        note="attempts are given back on purpose: they are for people; the fence is the lease, and that must only grow",
    ),
    Mutant(
        "kill-whatever-runs",
        "os.kill(pid) instead of pidfd",
        (
            Edit(
                "pgworkers/supervisor/stopper.py",
                r"if not ladder\.applies_to\(request, now_seen\):",
                "if False:",
            ),
        ),
        ("tests/process/test_kill_recheck.py::test_a_worker_that_went_on_meanwhile_is_not_killed[GoesOn]",),
        "assert <StopReason.CANCEL: 1> is None|it lives, and goes on",
        note="the supervisor is the parent, so a zombie pins the pid; what can be hit by mistake is the worker's next job",
    ),
    Mutant(
        "no-sweep",
        "no subreaper sweep",
        (Edit("pgworkers/supervisor/reaper.py", r"    total = 0\n", "    return 0, []\n    total = 0\n"),),
        (
            "tests/process/test_worker_death.py::test_nothing_survives_the_death_of_a_worker[own session]",
            "tests/process/test_worker_death.py::test_nothing_survives_the_death_of_a_worker[daemon]",
        ),
        "dead before the death was told",
        note="those without a session of their own may also die with the worker's group",
    ),
    Mutant(
        "fill-dying-slots",
        "a slot is filled while its last occupant is dying",
        (
            Edit(
                "pgworkers/supervisor/worker_pool.py",
                r"len\(self\._workers\) \+ len\(self\._reaper\.dying\) < self\.wanted",
                "len(self._workers) < self.wanted",
            ),
            Edit(
                "pgworkers/supervisor/worker_pool.py",
                r"self\._workers\.keys\(\) \| self\._reaper\.dying\.keys\(\)",
                "self._workers",
            ),
        ),
        (
            "tests/process/test_dying_worker.py"
            "::test_a_slot_is_filled_only_after_its_last_occupant_and_its_children_are_gone",
        ),
        "Forked",
    ),
    Mutant(
        "host-is-its-name",
        "worker identity = hostname",
        (
            Edit(
                "pgworkers/master/boot.py",
                r"return str\(uuid\.uuid4\(\)\)",
                'return str(uuid.uuid5(uuid.NAMESPACE_DNS, __import__("socket").gethostname()))',
            ),
        ),
        (
            "tests/tree/test_deaths.py::test_after_kill_9_of_the_master_nothing_is_left_and_another_host_finishes",
        ),
        "lease 1 ran and left no attempt",
    ),
    Mutant(
        "texts-as-they-come",
        "error text not cleaned",
        (
            Edit(
                "pgworkers/job/sanitize.py",
                r"return _FORBIDDEN_CHARACTERS\.sub\(REPLACEMENT_CHARACTER, value\)",
                "return value",
            ),
        ),
        (
            "tests/database/test_job_finish.py"
            "::test_nothing_a_handler_leaves_behind_stops_its_job_or_its_neighbours[dead-0]",
        ),
        "surrogates not allowed",
    ),
    Mutant(
        "lease-by-wall-clock",
        "wall clock used for lease",
        (
            Edit(
                "pgworkers/job/host_renew.sql",
                r"renewed_at = now\(\)",
                "renewed_at = to_timestamp(%(wall)s::float8)",
            ),
            Edit(
                "pgworkers/job/hosts.py",
                r'"host": host,(?=\n        "deadlines")',
                '"host": host, "wall": __import__("time").time(),',
            ),
        ),
        (f"{FAULT}/test_host_clock.py::test_row_70_the_wall_clock_of_a_host_decides_nothing[-1d]",),
        # A job whose host is lost again and again never ends: that costs no crash.
        r"somebody was rescued because of a wall clock|not within \S+ s: all ended",
    ),
    Mutant(
        "lost-by-the-databases-clock-alone",
        "a database clock that jumps forward is believed at once",
        (
            Edit(
                "pgworkers/master/lease_keeper.py",
                r"if not self\._offsets:\n            return None",
                "if True:\n            return None",
            ),
        ),
        (f"{FAULT}/test_database_clock.py::test_row_72_the_clock_of_the_database_jumps_forward",),
        "because of the database's clock",
    ),
    Mutant(
        "claim-by-a-subquery",
        "claim by id IN (SELECT ... LIMIT) without materialised CTE",
        (
            Edit(
                "pgworkers/job/claim.sql",
                r"WITH unlimited AS MATERIALIZED \((.*?)\n\)\nUPDATE (.*?)= ANY \(\(.*\)::tid\[\]\)\n"
                r"   AND j\.state = 'ready'",
                r"UPDATE \2IN (\1)\n   AND j.state = 'ready'",
            ),
        ),
        (
            "tests/database/test_job_claim.py"
            "::test_never_more_than_asked_with_statistics_of_an_empty_table[{}]",
        ),
        "more were claimed than asked for",
    ),
    Mutant(
        "lost-claims-stay",
        "a claim whose answer was lost is given back (row 34)",
        (Edit("pgworkers/master/lost_claims.py", r"        if unknown:\n", "        if False:\n"),),
        (
            f"{FAULT}/test_lost_answers.py"
            "::test_row_34_a_drained_host_releases_jobs_whose_claim_response_was_lost",
        ),
        "'running' != 'ready'",
    ),
    Mutant(
        "ends-wait-for-locks",
        "a locked row delays no other end (row 53)",
        (
            Edit(
                "pgworkers/job/finish.sql",
                r"FOR UPDATE SKIP LOCKED",
                "FOR UPDATE",
            ),
        ),
        ("tests/database/test_finish_slow.py::test_a_row_that_is_locked_holds_up_no_other",),
        r"no statement waited for it",
    ),
    Mutant(
        "ends-are-not-halved",
        "a batch of ends that takes too long is halved, not sent again as it was",
        (
            Edit(
                "pgworkers/master/batch_size.py",
                r"self\.current = max\(1, count // 2\)",
                "self.current = self.most",
            ),
        ),
        (
            "tests/database/test_finish_slow.py"
            "::test_a_slow_trigger_makes_batches_smaller_and_one_hopeless_row_holds_up_no_other",
        ),
        r"40 statements took too long",
    ),
    Mutant(
        "progress-of-a-locked-row-is-dropped",
        "a checkpoint whose row is locked is sent again",
        (
            Edit(
                "pgworkers/master/finisher.py",
                r"settle\(answer\.locked_fences\)",
                "settle([])",
            ),
        ),
        (
            "tests/database/test_checkpoints_kept.py"
            "::test_a_checkpoint_of_a_locked_row_is_saved_once_the_lock_is_gone",
            "tests/database/test_checkpoints_kept.py"
            "::test_a_retry_carries_the_checkpoint_that_another_session_kept_from_being_saved",
        ),
        r"TimeoutError|assert None == \{'at': 1\}",
    ),
    Mutant(
        "progress-in-flight-is-not-in-the-result",
        "a result carries the checkpoint whose write got no answer",
        (
            Edit(
                "pgworkers/master/unsaved_progress.py",
                r"self\._in_flight\.pop\(fence, None\), ",
                "None, ",
            ),
        ),
        (
            "tests/database/test_checkpoints_kept.py::test_a_retry_carries_the_checkpoint_whose_session_hangs",
            "tests/unit/test_unsaved_progress.py::test_what_is_in_flight_is_written_with_the_result",
        ),
        r"assert (None|ProgressUpdat)",
    ),
    Mutant(
        "one-refused-update-drops-the-batch",
        "progress that a trigger refuses takes no other along",
        (
            Edit(
                "pgworkers/master/finisher.py",
                r"if len\(updates\) > 1:\n\s+self\._progress\.restore\(\)",
                "if len(updates) > 1:\n                self._progress.settle([])",
            ),
        ),
        (
            "tests/database/test_checkpoints_kept.py::test_a_trigger_that_refuses_one_checkpoint_stops_no_other",
        ),
        r"TimeoutError",
    ),
    Mutant(
        "throttle-waits-for-a-locked-queue",
        "a locked row of `queue` delays the throttle and no result",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"(WHERE q\.name = throttle_queue\.name FOR UPDATE) SKIP LOCKED",
                r"\1",
            ),
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"(quiet_seconds double precision\) RETURNS text\nLANGUAGE plpgsql VOLATILE"
                r" SET search_path = pg_catalog, pg_temp) SET lock_timeout = '30ms'",
                r"\1",
            ),
        ),
        ("tests/database/test_checkpoints_kept.py::test_a_locked_queue_delays_a_throttle_and_no_result",),
        r"TimeoutError",
    ),
    Mutant(
        "ends-set-aside-wait-for-a-rest",
        "an end that was set aside is sent again when it is due, also on a host that never rests",
        (
            Edit(
                "pgworkers/master/finisher.py",
                r"(await self\._connection\.wait_for_backoff\(\)\n)                self\._requeue_deferred\(\)\n",
                r"\1",
            ),
        ),
        (
            "tests/database/test_finish_refused.py::test_a_locked_end_is_sent_again_while_other_ends_never_stop",
        ),
        r"TimeoutError",
    ),
    Mutant(
        "falling-through-who-began",
        "who was let begin does not fall with its parent",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"j\.id = ANY \(locked\) AND j\.state = 'scheduled' AND j\.run_at = pgworkers\.far_future\(\)"
                r"(\n\s+AND EXISTS)",
                r"j.id = ANY (locked)\1",
            ),
        ),
        (
            "tests/database/test_dependencies.py"
            "::test_a_child_that_an_operator_released_is_not_cancelled_with_its_parent",
        ),
        r"{3: 'cancelled'} != {3: 'scheduled'}",
    ),
    Mutant(
        "resend-is-lost",
        "an end that was sent twice is one (row 35)",
        (Edit("pgworkers/job/finish_check.sql", r"AND h\.lease = e\.lease", "AND false"),),
        (
            "tests/database/test_job_finish.py::test_a_send_whose_acknowledgement_was_lost_is_answered_already",
        ),
        "assert 'lost' == 'already'",
    ),
    Mutant(
        "children-without-their-end",
        "jobs that come with an end exist only if that very statement wrote it",
        (
            Edit(
                "pgworkers/job/finish.sql",
                r"lease\)\) FROM deleted\)",
                "lease)) FROM unnest(%(ids)s::bigint[], %(leases)s::integer[]) AS e (id, lease))",
            ),
            Edit("pgworkers/job/finish.sql", r"WHERE count > 0", "WHERE true"),
        ),
        ("tests/database/test_job_children.py::test_an_end_that_is_sent_again_has_no_second_children",),
        r"assert \[1, 2, 1, 2\] == \[1, 2\]",
    ),
    Mutant(
        "args-dropped-of-every-end",
        "only a success leaves no arguments in history",
        (
            Edit(
                "pgworkers/job/finish.py",
                r"not end\.should_keep_args and end\.state is _SUCCEEDED_STATE",
                "not end.should_keep_args",
            ),
        ),
        ("tests/database/test_job_finish.py::test_only_a_success_drops_its_arguments",),
        r"\{'page': 7\}, \{\}, \{\}",
    ),
    *DEATHS,
    *BOUNDARY,
    *DAILY_USE,
    *CLIENTS,
    *UPGRADES,
    *UPKEEP,
    *READS,
    *LIMITS,
    *WAKING,
)
