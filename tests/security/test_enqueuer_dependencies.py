"""S-09: `after` takes no lock on another job, has a bound, and names only jobs that the role enqueued itself."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from support.cluster import Cluster, Master
from support.database_host import DatabaseHost
from support.logins import NEWEST_ONLY, LoginDatabase

from pgworkers.job import maintenance
from pgworkers.job.model import JobState

Session = psycopg.Connection[Any]


@pytest.fixture
def host(worker: Session) -> DatabaseHost:
    """A host's verbs as the login `worker`; a statement that waits for a lock fails after two seconds."""
    host = DatabaseHost(worker, "pgworkers")
    host.register()
    return host


def enqueue(conn: Session, task: str = "t", **more: Any) -> int:
    named = "".join(f", {name} => %({name})s" for name in more)
    row = conn.execute(
        f"SELECT id FROM pgworkers.enqueue(%(task)s, queue => 'a'{named})", {"task": task, **more}
    ).fetchone()
    assert row is not None
    return int(row[0])


def impatient(host: DatabaseHost) -> DatabaseHost:
    """In a transaction, so that the setting holds behind a pooler as well."""
    host.conn.execute("SET LOCAL statement_timeout = '2s'")
    return host


def state(admin: Session, job: int) -> str:
    row = admin.execute("SELECT state::text FROM pgworkers.jobs WHERE id = %s", [job]).fetchone()
    assert row is not None
    return str(row[0])


def test_an_open_transaction_of_an_enqueuer_keeps_no_end_unwritten(
    web: Session, host: DatabaseHost, admin: Session
) -> None:
    parent = enqueue(web)
    (job,) = host.claim()
    with web.transaction():
        child = enqueue(web, "child", after=[parent])
        with host.conn.transaction():
            assert impatient(host).finish_job(job) == "written"
        assert state(admin, parent) == "succeeded"
    assert state(admin, child) == "scheduled", "nobody has looked yet"
    assert host.execute(maintenance.link_dependencies(100)) == 1
    assert state(admin, child) == "ready"


def test_an_enqueuer_that_holds_the_child_keeps_no_end_of_the_parent_unwritten(
    web: Session, host: DatabaseHost, admin: Session
) -> None:
    parent = enqueue(web)
    (job,) = host.claim()
    child = enqueue(web, "child", after=[parent], unique_key="k")
    host.execute(maintenance.link_dependencies(100))
    with web.transaction():
        enqueue(web, "child", unique_key="k", on_conflict="replace")
        with host.conn.transaction():
            assert impatient(host).finish_job(job) == "written"
        host.execute(maintenance.link_dependencies(100))
        assert state(admin, child) == "scheduled", "its row is held"
    assert host.execute(maintenance.link_dependencies(100)) == 1
    assert state(admin, child) == "ready"
    assert admin.execute("SELECT count(*) FROM pgworkers.dependency").fetchone() == (0,)


def test_an_enqueuer_that_holds_one_child_of_a_failed_parent_keeps_no_other_from_its_end(
    web: Session, host: DatabaseHost, admin: Session
) -> None:
    parent = enqueue(web)
    (job,) = host.claim()
    held = enqueue(web, "child", after=[parent], unique_key="k")
    behind = enqueue(web, "child", after=[held])
    free = enqueue(web, "child", after=[parent])
    host.execute(maintenance.link_dependencies(100))
    with web.transaction():
        enqueue(web, "child", unique_key="k", on_conflict="replace")
        with host.conn.transaction():
            assert impatient(host).finish_job(job, JobState.DEAD) == "written"
        assert [state(admin, one) for one in (held, behind, free)] == ["scheduled", "scheduled", "cancelled"]
    host.execute(maintenance.link_dependencies(100))
    assert [state(admin, one) for one in (held, behind)] == ["cancelled", "cancelled"]


def test_a_job_of_another_role_is_answered_as_one_that_does_not_exist(
    web: Session, operator: Session, host: DatabaseHost
) -> None:
    theirs = enqueue(operator)
    said = []
    for job in (theirs, 4711):
        with pytest.raises(psycopg.errors.NoDataFound) as caught:
            enqueue(web, "child", after=[job])
        said.append(str(caught.value.diag.message_primary).replace(str(job), "N"))
    assert said[0] == said[1]
    mine = enqueue(web)
    assert enqueue(web, "child", after=[mine]) > mine
    assert enqueue(operator, "child", after=[mine]) > mine, "who may read the jobs may follow each of them"


def test_after_has_a_bound(web: Session) -> None:
    mine = enqueue(web)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="at most 1000 jobs"):
        web.execute("SELECT pgworkers.enqueue('t', after => array_fill(%s::bigint, ARRAY[1001]))", [mine])


def test_the_leader_settles_as_many_links_at_once_as_it_asks_for(web: Session, host: DatabaseHost) -> None:
    parents = [enqueue(web) for _ in range(30)]
    for _ in range(3):
        enqueue(web, "child", after=parents)
    assert [host.execute(maintenance.link_dependencies(40)) for _ in range(4)] == [40, 40, 10, 0]


def test_a_job_has_a_bounded_number_of_followers_of_web(
    web: Session, operator: Session, admin: Session
) -> None:
    parent = enqueue(web)
    admin.execute(
        "INSERT INTO pgworkers.dependency SELECT %s, 1000000 + i, 'cancel' FROM generate_series(1, 4998) i",
        [parent],
    )
    enqueue(web, "child", after=[parent])
    both = "SELECT pgworkers.enqueue('child', after => ARRAY[%s::bigint]) FROM generate_series(1, 2)"
    with pytest.raises(
        psycopg.errors.ConfigurationLimitExceeded, match=f"5000 jobs come after job #{parent}"
    ):
        web.execute(both, [parent])
    enqueue(web, "child", after=[parent])
    with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
        enqueue(web, "child", after=[parent])
    assert enqueue(operator, "child", after=[parent]) > parent, "who may insert jobs is not bound"


@pytest.mark.parametrize("policy", ["cancel", "wait", "run"])
def test_a_parent_that_is_gone_when_it_is_linked_is_called_unknown(
    web: Session, host: DatabaseHost, admin: Session, policy: str
) -> None:
    parent = enqueue(web)
    child = enqueue(web, "child", after=[parent], on_failed=policy)
    admin.execute("DELETE FROM pgworkers.job WHERE id = %s", [parent])
    assert host.execute(maintenance.link_dependencies(100)) == 1
    assert state(admin, child) == ("ready" if policy == "run" else "cancelled")
    said = admin.execute("SELECT error FROM pgworkers.jobs WHERE id = %s", [child]).fetchone()
    unknown = f"cancelled: job #{parent}, which it waited for, is unknown"
    assert said == (None if policy == "run" else unknown,)
    assert admin.execute("SELECT count(*) FROM pgworkers.dependency").fetchone() == (0,)


@NEWEST_ONLY
def test_a_living_host_lets_the_child_begin_after_its_parent_ended_meanwhile(
    web: Session, running_host: Master, cluster: Cluster, database: LoginDatabase, age: str
) -> None:
    parent = web.execute("SELECT id FROM pgworkers.enqueue('work')").fetchone()
    assert parent is not None
    with web.transaction():
        child = web.execute("SELECT id FROM pgworkers.enqueue('work', after => %s)", [[parent[0]]]).fetchone()
        cluster.until(parent[0], "succeeded")
    assert child is not None
    cluster.until(child[0], "succeeded")
