"""Hosts: rows that stand for one life of a master."""

from __future__ import annotations

from support.database_host import DatabaseHost, until

from pgworkers.job import hosts, queries
from pgworkers.job.hosts import renew_lease


def test_a_registered_host_is_shown_and_a_removed_one_is_not(host: DatabaseHost) -> None:
    (seen,) = host.execute(queries.list_hosts())
    assert (str(seen.id), seen.name, seen.pid, seen.lease, seen.queues) == (
        host.id,
        "box",
        4711,
        30.0,
        ["a"],
    )
    assert (seen.is_stale, seen.running, seen.workers, seen.state) == (False, 0, 0, "running")
    assert host.execute(hosts.remove_host(host.id))
    assert not host.execute(hosts.remove_host(host.id))
    assert host.execute(queries.list_hosts()) == []


def test_registering_again_renews_instead_of_failing(host: DatabaseHost) -> None:
    (before,) = host.execute(queries.list_hosts())
    host.register(lease=7.0)
    (after,) = host.execute(queries.list_hosts())
    assert after.renewed_at > before.renewed_at
    assert (after.lease, after.started_at) == (7.0, before.started_at)


def test_sweeping_spares_the_living_and_those_that_still_own_jobs(
    host: DatabaseHost, other: DatabaseHost
) -> None:
    other.register(lease=0.01)
    other.enqueue()
    (job,) = other.claim()
    until(lambda: any(seen.is_stale for seen in host.execute(queries.list_hosts())))
    until(
        lambda: (
            host.conn.execute("SELECT FROM pgworkers.host WHERE renewed_at < now() - 10 * lease").fetchone()
            is not None
        )
    )
    assert host.execute(hosts.prune_hosts(10)).changed_rows == 0
    other.finish_job(job)
    assert host.execute(hosts.prune_hosts(10)).changed_rows == 1
    assert [str(seen.id) for seen in host.execute(queries.list_hosts())] == [host.id]
    assert not other.execute(renew_lease(other.id, [], "running", "[]")).is_known
