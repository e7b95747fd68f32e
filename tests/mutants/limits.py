"""Mutants of issue 19, rows 1, 2, 3 and 8: what a claim reads where jobs stand behind limits."""

from __future__ import annotations

from mutants.mutant import Edit, Mutant

FLAT = "tests/database/test_limits_flat.py"

LIMITS = (
    Mutant(
        "D1-wrapped-walk-without-a-bound",
        "the walk over lanes that began in the middle ends where it began by a bound of the index",
        (
            Edit(
                "pgworkers/schema/0004_limits.sql",
                r"AND pgworkers\.lane\(j\.concurrency_key, j\.task\)\s+<= CASE WHEN l\.wrapped THEN start ELSE 9223372036854775807 END",
                "AND (NOT l.wrapped OR pgworkers.lane(j.concurrency_key, j.task) <= start)",
            ),
        ),
        (
            f"{FLAT}::test_a_claim_of_jobs_with_few_keys_reads_the_same_beside_ten_times_as_many[7]",
        ),
        r"assert \d+ < \(\(1\.5 \* \d+\)",
    ),
)
