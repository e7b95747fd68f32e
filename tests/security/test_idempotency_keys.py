"""An enqueue-only login has idempotency keys of its own: it neither learns of those of others nor meets them."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.errors import ConfigurationLimitExceeded, InsufficientPrivilege

from pgworkers.job.enqueue import Enqueued, enqueue
from pgworkers.job.model import NewJob
from pgworkers.postgres.statements import run

Session = psycopg.Connection[Any]


def put(conn: Session, key: str = "k") -> Enqueued:
    return run(conn, "pgworkers", enqueue(NewJob("t", queue="a", idempotency_key=key)))


def test_enqueuers_do_not_meet_the_keys_of_other_logins(
    web: Session, stranger: Session, worker: Session, operator: Session, admin: Session
) -> None:
    admin.execute("GRANT pgworkers_enqueue TO stranger")
    try:
        of_host, own, others = put(worker), put(web), put(stranger)
        assert (own.is_new, others.is_new) == (True, True)
        assert len({of_host.id, own.id, others.id}) == 3
        for conn, first in ((web, own), (stranger, others), (worker, of_host), (operator, of_host)):
            assert put(conn) == Enqueued(first.id, False)
        with worker.transaction(), web.transaction():
            put(worker, "open")
            web.execute("SET LOCAL lock_timeout = '10s'")
            assert put(web, "open").is_new, "it waits for no transaction of another login"
    finally:
        admin.execute("REVOKE pgworkers_enqueue FROM stranger")


def test_an_enqueuer_touches_no_key_but_by_enqueue(web: Session, admin: Session) -> None:
    put(web)
    for statement in (
        "SELECT FROM pgworkers.idempotency_key",
        "DELETE FROM pgworkers.idempotency_key",
        "INSERT INTO pgworkers.idempotency_key VALUES ('t', '', 'x', 1, now())",
        "SELECT pgworkers.reserve_idempotency_key('t', '', 'x', interval '1 day')",
    ):
        with pytest.raises(InsufficientPrivilege):
            web.execute(statement)
    assert admin.execute("SELECT login, key FROM pgworkers.idempotency_key").fetchall() == [("web", "k")]


def test_a_repeat_is_answered_although_the_quota_is_used_up(web: Session, operator: Session) -> None:
    operator.execute("INSERT INTO pgworkers.enqueue_grant (role, max_waiting) VALUES ('web', 1)")
    first = put(web)
    with pytest.raises(ConfigurationLimitExceeded):
        put(web, "another")
    assert put(web) == Enqueued(first.id, False)
