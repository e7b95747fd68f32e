"""The row "low": values of a schedule's row that SQL would accept and that would stop a leader. Each is refused."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.errors import CheckViolation, InsufficientPrivilege
from support.attacked_host import not_refused

from pgworkers.errors import UsageError
from pgworkers.schedule import cron

Session = psycopg.Connection[Any]
TIMES = ("infinity", "-infinity", "12345-01-01", "0044-03-15 BC")
TIME_COLUMNS = ("starts_at", "ends_at", "planned_until", "next_at", "last_at")
OTHERS = (
    ("every", "NaN"),
    ("every", "Infinity"),
    ("every", "1e-9"),
    ("jitter", "Infinity"),
    ("jitter", "NaN"),
    ("missed_window", "Infinity"),
    ("due_at", "infinity"),
    ("tz", "x" * 101),
)


def test_no_login_writes_a_value_that_no_host_could_use(
    admin: Session, worker: Session, operator: Session, web: Session
) -> None:
    admin.execute("INSERT INTO pgworkers.schedule (name, task, every) VALUES ('tidy', 't', 60)")
    odd = [(column, value) for column in TIME_COLUMNS for value in TIMES] + list(OTHERS)
    changes = [f"UPDATE pgworkers.schedule SET {column} = '{value}'" for column, value in odd]
    assert not_refused(admin, changes, CheckViolation) == []
    assert not_refused(worker, changes, CheckViolation) == []
    assert not_refused(operator, changes, CheckViolation, InsufficientPrivilege) == []
    assert not_refused(web, changes, InsufficientPrivilege) == []


def test_a_cron_expression_of_a_million_items(worker: Session) -> None:
    long = ",".join(["0"] * 1_000_000) + " * * * *"
    with pytest.raises(CheckViolation):
        worker.execute("INSERT INTO pgworkers.schedule (name, task, cron) VALUES ('tidy', 't', %s)", [long])
    with pytest.raises(UsageError, match=r"1000 bytes are allowed"):
        cron.parse_cron(long)
    assert cron.parse_cron(",".join(map(str, range(60))) + " * * * *").minutes == tuple(range(60))
