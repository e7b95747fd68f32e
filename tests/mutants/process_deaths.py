"""Mutants of deaths with children, the rows A of the checklist. Each removes the fix of one finding."""

from __future__ import annotations

from mutants.mutant import Edit, Mutant

DEATHS = (
    Mutant(
        "A1-message-without-incarnation",
        "a message about a worker means one incarnation, not the slot",
        (
            Edit(
                "pgworkers/supervisor/worker_pool.py",
                r"return found if found is not None and found\.incarnation == incarnation else None",
                "return found",
            ),
        ),
        ("tests/process/test_dying_worker.py::test_every_message_about_a_worker_names_its_incarnation",),
        r"At index 0 diff: 2 != 1",
    ),
    Mutant(
        "A1-slots-instead-of-incarnations",
        "the death of an earlier occupant of a slot is not that of the next",
        (
            Edit(
                "pgworkers/master/supervisors.py",
                r"gone = supervisor\.workers\.pop\(message\.incarnation, None\)",
                "gone = [one for one in supervisor.workers.values() if one.slot == message.slot][-1]",
            ),
        ),
        (
            "tests/unit/test_worker_channel_one_job.py::test_the_death_of_an_earlier_occupant_is_not_that_of_the_next",
        ),
        r"expected 1, got 0",
    ),
    Mutant(
        "A1-no-fork-budget",
        "workers that leave at once and without a job meet a budget",
        (
            Edit(
                "pgworkers/supervisor/worker_pool.py",
                r"            elif useless:\n",
                "            elif False:\n",
            ),
        ),
        ("tests/process/test_dying_worker.py::test_workers_that_leave_at_once_meet_the_fork_budget",),
        r"waited in vain for: the fourth pause",
    ),
    Mutant(
        "A1-lost-death-stays-unnoticed",
        "a running row whose worker is gone is noticed by the host itself",
        (
            Edit(
                "pgworkers/master/supervisors.py",
                r"supervisor\.workers\.keys\(\) - set\(message\.incarnations\)",
                "set[int]()",
            ),
        ),
        (
            "tests/unit/test_worker_channel_one_job.py::test_a_worker_that_its_supervisor_no_longer_lists_is_gone_and_its_job_crashed",
        ),
        r"expected 1, got 0",
    ),
    Mutant(
        "A1-worker-of-no-supervisor",
        "a busy worker that no supervisor has is gone",
        (Edit("pgworkers/master/supervisors.py", r"if id\(worker\) not in known:", "if False:"),),
        (
            "tests/unit/test_worker_channel_one_job.py::test_a_busy_worker_that_no_supervisor_has_is_gone_and_its_job_crashed",
        ),
        r"expected 1, got 0",
    ),
    Mutant(
        "A2-kill-without-freezing",
        "strays are frozen before any of them is killed",
        (Edit("pgworkers/linux/sweep.py", r"if self\._freeze\(found\):", "if False:"),),
        ("tests/process/test_orphan_sweep.py::test_nothing_is_killed_before_everything_is_frozen",),
        r"when the first was killed",
        note="a sweep that does not freeze also catches sixty children that respawn every few milliseconds",
    ),
    Mutant(
        "A3-hook-acts-in-grandchildren",
        "our after-fork hook acts only in direct children of the worker, and only on what is ours",
        (
            Edit("pgworkers/worker/main.py", r"if self\._is_forked:", "if False:"),
            Edit(
                "pgworkers/linux/descriptors.py",
                r"        if self\.size\(\) is not None:\n            os\.close",
                "        if True:\n            os.close",
            ),
        ),
        ("tests/process/test_descriptors.py::test_a_grandchild_keeps_the_files_of_its_parent",),
        r"OSError\.\.\.riptor",
    ),
    Mutant(
        "A3-signals-of-grandchildren",
        "a grandchild keeps the signal handlers of its parent",
        (
            Edit("pgworkers/worker/main.py", r"if self\._is_forked:", "if False:"),
            Edit("pgworkers/worker/main.py", r"if signal\.getsignal\(signum\) == handler:", "if True:"),
        ),
        ("tests/process/test_descriptors.py::test_a_grandchild_keeps_the_signal_handlers_of_its_parent",),
        r"'SIG_IGN' in .*SIG_DFL",
    ),
    Mutant(
        "A4-write-without-a-look",
        "nothing of ours is written to a descriptor that is not ours any more",
        (
            Edit(
                "pgworkers/linux/descriptors.py",
                r"return found\.st_size if \(found\.st_ino, found\.st_dev\) == self\._identity else None",
                "return found.st_size",
            ),
            Edit(
                "pgworkers/linux/descriptors.py",
                r"    soft, _ = resource",
                "    return fd\n    soft, _ = resource",
            ),
        ),
        (
            "tests/process/test_descriptors.py::test_sockets_of_a_handler_that_closed_descriptors_get_none_of_our_frames[sockets]",
        ),
        r"null,0\.0\]'\]. == '\[\]'",
    ),
    Mutant(
        "A5-orphans-stay",
        "the next master of the machine ends an orphan before it serves",
        (
            Edit(
                "pgworkers/master/host.py",
                r"await orphan_processes\.kill_former_hosts\(self\._id\)",
                "(0, 0)",
            ),
        ),
        ("tests/tree/test_orphans.py::test_the_next_master_ends_an_orphan_before_it_serves",),
        r"1 process left by a former host of this machine killed",
    ),
    Mutant(
        "A6-supervisor-death-is-a-crash",
        "the death of a supervisor costs its jobs no crash",
        (
            Edit("pgworkers/master/verdict.py", r"elif died\.is_lost:", "elif False:"),
            Edit(
                "pgworkers/master/verdict.py",
                r"is_supervisor_lost=died\.is_lost,",
                "is_supervisor_lost=False,",
            ),
        ),
        ("tests/tree/test_deaths.py::test_kills_of_a_supervisor_cost_its_jobs_nothing",),
        r"not within [\d.]+ s: start 3",
    ),
    Mutant(
        "A6-lost-host-is-a-crash",
        "a lost host costs its jobs no crash",
        (
            Edit(
                "pgworkers/job/rescue.sql",
                r"consecutive_losses = l\.consecutive_losses,",
                "consecutive_losses = l.consecutive_losses, crashes = j.crashes + 1,",
            ),
        ),
        ("tests/database/test_job_rescue.py::test_a_lost_host_costs_its_job_an_attempt_and_no_crash",),
        r"At index 1 diff: 1 != 0",
    ),
    Mutant(
        "A6-killers-are-never-found",
        "a job that kills supervisors is found",
        (
            Edit(
                "pgworkers/job/retry_policy.py",
                r"EndJob\(\)\s+if consecutive_losses \+ 1 >= MAX_CONSECUTIVE_LOSSES\s+else RetryAfter",
                "RetryAfter",
            ),
        ),
        (
            "tests/unit/test_retry_policy.py::test_a_lost_supervisor_costs_nothing_until_it_happened_too_often_in_a_row",
        ),
        r"RetryAfter\(delay_seconds=[\d.]+, is_free=True\) == EndJob",
    ),
    Mutant(
        "A7-leader-forgets-that-it-leads",
        "a leader whose row was deleted goes on saying that it leads",
        (
            Edit(
                "pgworkers/job/leader_renew.sql",
                r"WHERE EXISTS \(SELECT FROM renewed\) AND",
                "WHERE false AND",
            ),
        ),
        ("tests/tree/test_leadership.py::test_a_leader_whose_row_was_deleted_still_says_that_it_leads",),
        r"not within [\d.]+ s: its new row says so",
    ),
    Mutant(
        "A7-stranger-is-a-former-leader",
        "a session that holds the leader's lock is reported as what it is",
        (
            Edit(
                "pgworkers/master/leadership.py",
                r"LeaderLockTaken\(self\.lock_holder\.pid, self\.lock_holder\.user, self\.lock_holder\.application\)",
                'LeadershipChanged(False, "a leader that stopped renewing was deposed")',
            ),
        ),
        (
            "tests/tree/test_leadership.py::test_a_session_of_the_same_role_that_holds_the_lock_is_reported_as_what_it_is",
        ),
        r"not within [\d.]+ s: the session is named in the log",
    ),
    Mutant(
        "A7-doctor-says-nothing-of-it",
        "doctor names a session that holds the leader's lock and does not lead",
        (Edit("pgworkers/doctor/cluster.py", r"        for one in holders\n", "        for one in ()\n"),),
        (
            "tests/database/test_doctor.py::test_a_session_that_holds_the_leaders_lock_and_does_not_lead_is_named",
        ),
        r"\[<Level.OK: 'ok'>\] == \[<Level.WARN",
    ),
    Mutant(
        "L6-dump-that-crashes-is-not-told",
        "a stop says that its dump crashed the interpreter",
        (
            Edit(
                "pgworkers/supervisor/reaper.py",
                r"Rung\.DUMP in request\.rung_times and Rung\.KILL not in request\.rung_times",
                "Rung.DUMP not in request.rung_times and Rung.KILL in request.rung_times",
            ),
        ),
        ("tests/process/test_dump_crash.py::test_a_stop_keeps_its_reason_and_says_that_the_dump_crashed",),
        r"'SIGABRT', False\)|GABRT', False\)",
    ),
    Mutant(
        "cleanup-trust-is-kept",
        "a task that changes its process loses its trust",
        (
            Edit(
                "pgworkers/worker/cleanup.py",
                r"0 if has_changed else self\._clean_jobs",
                "self._clean_jobs",
            ),
        ),
        (
            "tests/process/test_worker_cleanup.py"
            "::test_what_a_trusted_task_changes_is_put_back_before_the_worker_waits_and_costs_it_its_trust",
        ),
        r"saw what \d+ did",
    ),
    Mutant(
        "cleanup-not-before-a-wait",
        "what a trusted task changed is put back before the worker waits",
        (
            Edit(
                "pgworkers/worker/cleanup.py",
                r"return not self\._unchecked_tasks or self\._check_everything\(0\)",
                "return True",
            ),
        ),
        (
            "tests/process/test_worker_cleanup.py"
            "::test_what_a_trusted_task_changes_is_put_back_before_the_worker_waits_and_costs_it_its_trust",
        ),
        r"waited in vain for: the check before the wait",
    ),
)
