"""Every bound of the Python API is in the tables, too, with the same number (pgworkers/bounds.py)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from pgworkers import bounds
from pgworkers.postgres.migrate import known_migrations

SQL = "\n".join(migration.text for migration in known_migrations())
#: JSON of up to this many stored bytes is not printed to be checked. A number of 16 bytes prints 147,457 characters.
UNPRINTED_BYTES = 256
CONSTRAINTS = dict(re.findall(r"CONSTRAINT (\w+)\s+CHECK (.+)", SQL))


def _numbers(constraint: str) -> set[int]:
    """The numbers of a constraint, without those inside names or texts."""
    text = re.sub(r"'[^']*'", "", CONSTRAINTS[constraint])
    return {int(number) for number in re.findall(r"(?<![\w.])-?\d+(?![\w.])", text)}


def test_texts() -> None:
    assert _numbers("job_names_fit") == {1, bounds.MAX_NAME_BYTES}
    assert (
        SQL.count(
            f"CONSTRAINT job_names_fit CHECK (octet_length(VALUE) BETWEEN 1 AND {bounds.MAX_NAME_BYTES})"
        )
        == 2
    )
    assert _numbers("queue_name_fits") == _numbers("rate_bucket_scope_fits") == {1, bounds.MAX_NAME_BYTES}
    assert {bounds.MAX_NAME_BYTES, bounds.MAX_SCOPE_BYTES} <= _numbers("schedule_names_fit")
    assert _numbers("job_unique_fits") == _numbers("job_concurrency_key_fits") == {1, bounds.MAX_KEY_BYTES}
    assert _numbers("idempotency_key_fits") == {1, bounds.MAX_KEY_BYTES}


def test_json() -> None:
    assert _numbers("job_args_fit") == {UNPRINTED_BYTES, bounds.MAX_ARGS_PRINTED_BYTES}
    assert _numbers("job_meta_fits") == {bounds.MAX_META_PRINTED_BYTES}
    assert _numbers("checkpoint_or_progress_fits") == {UNPRINTED_BYTES, bounds.MAX_NOTES_PRINTED_BYTES}
    assert _numbers("job_result_fits") == {UNPRINTED_BYTES, bounds.MAX_RESULT_PRINTED_BYTES}
    for name in ("job_args_fit", "job_meta_fits", "checkpoint_or_progress_fits", "job_result_fits"):
        assert "octet_length(VALUE::text)" in CONSTRAINTS[name], (
            f"{name} bounds what is stored, not what is printed"
        )
    assert (
        min(bounds.MAX_ARGS_PRINTED_BYTES, bounds.MAX_NOTES_PRINTED_BYTES) > UNPRINTED_BYTES // 16 * 147_457
    )
    # A separator and what it separates are two characters, of which Postgres makes three.
    assert 3 * bounds.MAX_META_BYTES <= 2 * bounds.MAX_META_PRINTED_BYTES
    assert 3 * bounds.MAX_CHECKPOINT_BYTES <= 2 * bounds.MAX_NOTES_PRINTED_BYTES
    assert 3 * bounds.MAX_RESULT_BYTES <= 2 * bounds.MAX_RESULT_PRINTED_BYTES
    assert bounds.MAX_ARGS_BYTES <= bounds.MAX_ARGS_PRINTED_BYTES


def test_numbers_and_times() -> None:
    assert _numbers("job_priority_fits") == {bounds.MIN_PRIORITY}
    assert bounds.MAX_PRIORITY == (1 << 31) - 1, "what an integer can hold"
    assert f"job_attempts_fit CHECK (VALUE BETWEEN 1 AND {bounds.MAX_ATTEMPTS_OR_CRASHES})" in SQL
    assert _numbers("job_memory_fits") == {bounds.MIN_MEMORY_BYTES, bounds.MAX_MEMORY_BYTES}
    assert f"memory NOT BETWEEN {bounds.MIN_MEMORY_BYTES} AND {bounds.MAX_MEMORY_BYTES}" in SQL
    assert f"VALUE <= '{bounds.MAX_DURATION_DAYS} days'" in CONSTRAINTS["job_timeout_fits"]
    assert f"span > interval '{bounds.MAX_DURATION_DAYS} days'" in SQL
    assert f"lifetime > interval '{bounds.MAX_IDEMPOTENCY_WINDOW_DAYS} days'" in SQL
    assert _numbers("seconds_fit") == {0, int(bounds.MAX_DURATION_SECONDS)}
    moments = re.findall(r"'(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\+00'", CONSTRAINTS["job_timestamps_fit"])
    assert [datetime.fromisoformat(one).replace(tzinfo=UTC) for one in moments] == [
        bounds.MIN_TIMESTAMP,
        bounds.MAX_TIMESTAMP,
    ]
    never = re.search(r"SELECT '([^']+)'::pg_catalog.timestamptz", SQL)
    assert never is not None
    assert datetime.fromisoformat(never[1]) == bounds.MAX_TIMESTAMP


def test_no_column_of_a_job_is_without_a_bound() -> None:
    """A new column of `job` has a domain, unless its type bounds it."""
    table = SQL[SQL.index("CREATE TABLE pgworkers.job (") :]
    columns = re.findall(r"^    (\w+)\s+([\w.]+(?:\[\])?)", table[: table.index(") WITH (")], re.MULTILINE)
    plain = {
        name: kind for name, kind in columns if not kind.startswith("pgworkers.") and name != "CONSTRAINT"
    }
    assert set(plain.values()) <= {"bigint", "integer", "boolean", "uuid"}, plain


def test_each_bound_is_used_where_users_write() -> None:
    """The numbers stand once in Python."""
    package = Path(bounds.__file__).parent
    used = "\n".join(
        path.read_text(encoding="utf-8") for path in package.rglob("*.py") if path.name != "bounds.py"
    )
    unused = [
        name
        for name in vars(bounds)
        if name.isupper() and not name.endswith("PRINTED_BYTES") and name not in used and name != "UTC"
    ]
    assert unused == ["MAX_DURATION_DAYS"], "it makes MAX_DURATION_SECONDS"
