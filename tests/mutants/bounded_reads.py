"""Mutants of bounded reads: readers are bounded, and the checks of JSON are cheap and sound."""

from __future__ import annotations

from mutants.mutant import Edit, Mutant

READ_PLANS = "tests/database/test_query_plans_of_reads.py"
SHOW = "tests/database/test_job_queries.py"
LIMITS = "tests/database/test_row_bounds.py"

READS = (
    Mutant(
        "reads-view-with-domains",
        "both halves of the view `jobs` have the same types",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"queue::text AS queue, task::text AS task,",
                "queue, task,",
            ),
        ),
        (f"{READ_PLANS}::test_the_view_is_read_by_its_indexes",),
        r"AssertionError: list",
    ),
    Mutant(
        "reads-search-without-a-bound",
        "a step of a search looks at a bounded number of jobs",
        (
            Edit(
                "pgworkers/job/queries.py",
                r"\{\*\*_search_params\(where\), \"max_rows\": max_rows\}",
                '{**_search_params(where), "max_rows": 1 << 40}',
            ),
        ),
        (f"{SHOW}::test_a_search_goes_on_in_steps_and_says_where_it_ended",),
        r"assert 41 == 8",
    ),
    Mutant(
        "reads-held-by-null-test",
        "what hosts hold is found by job_running, also without statistics",
        (
            Edit(
                "pgworkers/job/query_search.sql",
                r"j\.host BETWEEN '0[0-9a-f-]+' AND 'f[0-9a-f-]+'",
                "j.host IS NOT NULL",
            ),
        ),
        (f"{READ_PLANS}::test_every_reader_is_bounded[untouched]",),
        r"\('running', 21, ",
    ),
    Mutant(
        "reads-queues-without-a-cap",
        "a count of a queue ends at its cap",
        (Edit("pgworkers/job/queries.py", r'\{"max_count": MAX_COUNTED_JOBS\}', '{"max_count": 1 << 40}'),),
        (f"{SHOW}::test_counts_of_queues_end_at_their_cap",),
        r"assert \(3, 3, \[\]\) == \(2, 2, ",
    ),
    Mutant(
        "reads-batch-counted-whole",
        "one statement counts a portion of a batch",
        (Edit("pgworkers/job/batch_count.sql", r" AND j\.id <= r\.id\)", ")"),),
        (
            f"{READ_PLANS}::test_a_batch_is_counted_and_the_end_of_a_burst_is_found_in_portions[analysed]",
            "tests/database/test_batches.py::test_a_large_batch_is_counted_in_portions",
        ),
        r"assert \d+(\.0)? <= ",
    ),
    Mutant(
        "reads-burst-ends-after-a-portion",
        "a burst does not end before it has looked at every job that waits for a retry",
        (
            Edit(
                "pgworkers/job/burst.py",
                r" and not self\.crowded_queues and self\.next_place is None",
                "",
            ),
        ),
        (
            f"{SHOW}::test_a_burst_finds_one_retry_behind_many_jobs_for_later_in_portions",
            f"{SHOW}::test_a_burst_does_not_end_before_it_has_passed_all_jobs_of_other_tasks",
        ),
        r"assert not True|\(0, \['a'\], True\)",
    ),
    Mutant(
        "reads-held-silently-incomplete",
        "a search that did not look at all that hosts hold says so",
        (
            Edit(
                "pgworkers/job/query_search.sql",
                r"\(SELECT count\(\*\) FROM held\) >= %\(held\)s::bigint",
                "false",
            ),
        ),
        (f"{SHOW}::test_a_search_says_if_hosts_hold_more_jobs_than_it_looked_at",),
        r"\(2, False\) == \(2, True\)",
    ),
    Mutant(
        "json-size-of-the-compressed-value",
        "a compressed value is checked as it will be read",
        (
            Edit(
                "pgworkers/schema/0001_initial.sql",
                r"job_args_fit CHECK \(pg_column_size\(VALUE #> '\{\}'\)",
                "job_args_fit CHECK (pg_column_size(VALUE)",
            ),
        ),
        (f"{LIMITS}::test_a_compressed_value_is_checked_as_it_will_be_read[numbers]",),
        r"DID NOT RAISE",
    ),
)
