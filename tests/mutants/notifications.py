"""Mutants of notifications: a new job wakes one host, and another host replaces it if it does not come."""

from __future__ import annotations

from mutants.mutant import Edit, Mutant

WAKES = "tests/database/test_notified_hosts.py"
TREE = "tests/tree/test_wake_one_host.py"

WAKING = (
    Mutant(
        "all-hosts-are-woken",
        "a new job wakes one host",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"IF chosen_host IS NULL OR notify_all THEN",
                "IF true THEN",
            ),
        ),
        (f"{TREE}::test_a_job_is_claimed_by_one_host_and_the_others_do_not_look",),
        r"\d+ claims of 4 hosts for 30 jobs",
    ),
    Mutant(
        "full-host-keeps-a-notification",
        "a host without room passes a notification on",
        (
            Edit(
                "pgworkers/master/claimer.py",
                r"elif self\._dispatcher\.cluster\.other_hosts_sharing == 0:",
                "else:",
            ),
            Edit(
                "pgworkers/master/claimer.py",
                r"elif monotonic\(\) >= self\._pass_on_at:",
                "if False:",
            ),
        ),
        (
            f"{TREE}::test_if_the_chosen_host_is_full_it_passes_the_notification_on",
            "tests/unit/test_claim_policy.py::test_a_chosen_host_passes_on_what_it_has_no_room_for[no room]",
        ),
        r"not within [\d.]+ s: job \d+ succeeded|'host_pass_on'",
    ),
    Mutant(
        "lost-host-is-chosen-again",
        "a host that finds a missed job lets all be notified",
        (
            Edit(
                "pgworkers/master/claimer.py",
                r"if missed and self\._dispatcher\.cluster\.other_hosts_sharing > 0 and now >= self\._notify_all_until:",
                "if False:",
            ),
        ),
        (
            f"{TREE}::test_if_the_chosen_host_does_not_come_another_polls_and_then_all_are_notified",
            "tests/unit/test_claim_policy.py::test_a_host_that_finds_a_missed_job_says_so_once",
        ),
        r"the lost host is chosen again and again|assert 0 == 1",
    ),
    Mutant(
        "stale-host-is-chosen",
        "a host that has not renewed lately is not chosen",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"h\.lease OPERATOR\(pg_catalog\./\) 3::pg_catalog\.float8",
                "h.lease OPERATOR(pg_catalog.*) 3::pg_catalog.float8",
            ),
        ),
        (f"{WAKES}::test_a_host_that_may_not_come_is_not_chosen[has not renewed lately]",),
        r"no host fits: all are notified",
    ),
    Mutant(
        "host-name-of-any-text",
        "the host in a notification is named by its id or not at all",
        (
            Edit(
                "pgworkers/job/notification_payloads.py",
                r"_HOST_ID\.fullmatch\(host\) is None",
                "not host",
            ),
        ),
        (
            "tests/unit/test_notifications.py::test_a_host_is_named_by_its_id_as_postgres_prints_it_or_not_at_all[ready:a:b]",
        ),
        r"assert JobsReady\(queue=.* is None",
    ),
)
