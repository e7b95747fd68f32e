"""Renew: one row keeps all leases, and the same round trip returns stop requests and lost leases."""

from __future__ import annotations

from support.database_host import DatabaseHost, until

from pgworkers.job import cancel, hosts, maintenance, queries
from pgworkers.job.hosts import renew_lease

WORKERS = '[{"queue": "a", "slot": 0, "pid": 7, "state": "busy", "job_id": 1, "task": "t", "since": 0.5, "jobs": 3}]'


def test_renewing_moves_the_clock_of_the_host_and_shows_its_workers(host: DatabaseHost) -> None:
    (before,) = host.execute(queries.list_hosts())
    renewed = host.execute(renew_lease(host.id, [], "draining", WORKERS))
    assert (renewed.is_known, renewed.cancel_requests, renewed.lost_leases) == (True, [], [])
    (after,) = host.execute(queries.list_hosts())
    assert after.renewed_at > before.renewed_at
    assert (after.state, after.workers, after.is_stale) == ("draining", 1, False)
    (worker,) = host.execute(queries.list_workers())
    assert (worker.queue, worker.pid, worker.job_id, worker.since) == ("a", 7, 1, 0.5)


def test_a_renewal_returns_stop_requests_and_lost_leases(host: DatabaseHost, other: DatabaseHost) -> None:
    for _ in range(5):
        host.enqueue()
    kept, wished, ended, taken, gone = host.claim(5)
    other.execute(cancel.cancel(wished.id))
    host.finish_job(ended)
    host.retry_job(taken, delay_seconds=0.0)
    other.claim()
    held = [job.fence for job in (kept, wished, ended, taken, gone)]
    host.conn.execute("DELETE FROM pgworkers.job WHERE id = %s", [gone.id])
    renewed = host.execute(renew_lease(host.id, held, "running", "[]"))
    assert renewed.cancel_requests == [wished.fence]
    assert sorted(renewed.lost_leases) == [job.fence for job in (ended, taken, gone)]


def test_it_learns_that_a_job_was_rescued(host: DatabaseHost, other: DatabaseHost) -> None:
    rescued, taken = [host.enqueue_and_claim() for _ in range(2)]
    host.retry_job(taken, delay_seconds=0.0)
    host.conn.execute(
        "UPDATE pgworkers.host SET renewed_at = now() - interval '1 h' WHERE id = %s", [host.id]
    )
    other.register()
    assert [job.id for job in other.execute(maintenance.rescue_jobs(other.id, 10))] == [rescued.id]
    held = [job.fence for job in (rescued, taken)]
    renewed = host.execute(renew_lease(host.id, held, "running", "[]"))
    assert sorted(renewed.lost_leases) == held
    assert renewed.rescued_leases == {held[0]}


def test_a_renewal_without_a_row_returns_that_the_host_is_lost(host: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    host.execute(hosts.remove_host(host.id))
    renewed = host.execute(renew_lease(host.id, [job.fence], "running", "[]"))
    assert not renewed.is_known
    assert renewed.lost_leases == []  # no leader has rescued it yet
    host.register()
    assert host.execute(renew_lease(host.id, [], "running", "[]")).is_known


def test_renewing_does_not_wait_for_a_row_lock_on_a_job(host: DatabaseHost, other: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    with other.conn.transaction():
        other.conn.execute("SELECT FROM pgworkers.job WHERE id = %s FOR UPDATE", [job.id])
        assert host.execute(renew_lease(host.id, [job.fence], "running", "[]")).is_known


def test_an_invalid_list_of_workers_never_costs_the_lease(host: DatabaseHost) -> None:
    assert host.execute(renew_lease(host.id, [], "odd\x00\nstate", "{")).is_known
    assert host.execute(queries.list_workers()) == []


def test_it_learns_whether_other_hosts_live(host: DatabaseHost) -> None:
    assert host.execute(renew_lease(host.id, [], "running", "[]")).is_alone
    second = DatabaseHost(host.conn, host.schema)
    second.register()
    assert not host.execute(renew_lease(host.id, [], "running", "[]")).is_alone
    second.register(lease=0.05)
    until(lambda: host.execute(renew_lease(host.id, [], "running", "[]")).is_alone)
