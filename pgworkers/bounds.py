"""What a value of a job may be: the bounds that the Python API and the tables share.

Python refuses a value where it is written, with an error that explains it. The tables refuse the same value from every other
writer: psql, a trigger, another language. Each bound that a table enforces names its domain or constraint in
`pgworkers/schema`, and tests/law compares the numbers. Sizes of JSON are sizes of its text. Postgres prints JSON with spaces
and numbers in full, so its bound is wider than that of the compact text that Python writes.
"""

from __future__ import annotations

from datetime import UTC, datetime

#: Queues, tasks, schedules, rate scopes, in UTF-8 (`job_names_fit`, `schedule_names_fit`, `rate_bucket_scope_fits`).
MAX_NAME_BYTES = 200
#: One scope of a scoped schedule (`schedule_names_fit`).
MAX_SCOPE_BYTES = 500
#: Keys, which are indexed (`job_unique_fits`, `job_concurrency_key_fits`, `idempotency_key_fits`).
MAX_KEY_BYTES = 1000
#: How long an idempotency key can lead to its first job (`pgworkers.reserve_idempotency_key()`). Enqueue-only logins write
#: keys, so keys must not stay for ever.
MAX_IDEMPOTENCY_WINDOW_DAYS = 31
#: Prefix of the concurrency keys of jobs of schedules with overlap="replace" (`schedule/fire.sql`, `pgworkers.enqueue()`).
SCHEDULE_KEY_PREFIX = "schedule:"

#: The highest value of the setting payload_limit.
MAX_ARGS_BYTES = 4 << 20
#: Arguments as Postgres prints them (`job_args_fit`).
MAX_ARGS_PRINTED_BYTES = 4 << 20
MAX_META_BYTES = 16 << 10
#: (`job_meta_fits`)
MAX_META_PRINTED_BYTES = 32 << 10
MAX_CHECKPOINT_BYTES = 1 << 20
#: Checkpoint and progress (`checkpoint_or_progress_fits`).
MAX_NOTES_PRINTED_BYTES = 4 << 20
#: The highest value of result_limit, as a setting and of a task.
MAX_RESULT_BYTES = 32 << 20
#: (`job_result_fits`)
MAX_RESULT_PRINTED_BYTES = 64 << 20

#: Higher runs first (`job_priority_fits`). The lowest integer is excluded: it cannot be negated.
MIN_PRIORITY = -(1 << 31) + 1
MAX_PRIORITY = (1 << 31) - 1
#: max_attempts and max_crashes (`job_attempts_fit`).
MAX_ATTEMPTS_OR_CRASHES = 10_001
#: Memory of an attempt (`job_memory_fits`).
MIN_MEMORY_BYTES = 1 << 20
MAX_MEMORY_BYTES = (1 << 60) - 1
#: Delays, timeouts, deadlines: 100 years (`job_timeout_fits`, `seconds_fit`).
MAX_DURATION_DAYS = 36_500
MAX_DURATION_SECONDS = MAX_DURATION_DAYS * 86400.0
#: `at=` and what follows from it (`job_timestamps_fit`). The last moment is `pgworkers.far_future()`.
UNIX_EPOCH = MIN_TIMESTAMP = datetime(1970, 1, 1, tzinfo=UTC)
MAX_TIMESTAMP = datetime(9999, 1, 1, tzinfo=UTC)

#: The highest id of a job, and of anything else in a column of type bigint.
MAX_BIGINT = (1 << 63) - 1
