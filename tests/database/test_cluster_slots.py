"""Cluster slots: the total over all hosts is never exceeded, in whatever order they ask."""

from __future__ import annotations

import random

import psycopg
from support.database_host import DatabaseHost

from pgworkers.job import hosts, queues
from pgworkers.limits import cluster_slots


def serve(host: DatabaseHost, lease: float = 30.0) -> str:
    """One more host that serves the queue."""
    one = DatabaseHost(host.conn, host.schema)
    one.register(lease)
    return one.id


def granted(host: DatabaseHost) -> dict[str, int]:
    return dict(
        host.conn.execute(
            "SELECT host::text, granted FROM pgworkers.cluster_slots WHERE queue = 'a'"
        ).fetchall()
    )


def may_run(conn: psycopg.Connection[object]) -> int:
    row = conn.execute(
        "SELECT coalesce(sum(greatest(granted, acknowledged)), 0) FROM pgworkers.cluster_slots"
    ).fetchone()
    assert row is not None
    return int(row[0])  # type: ignore[call-overload]


def test_a_total_is_split_evenly_over_the_live_hosts_that_serve_the_queue(host: DatabaseHost) -> None:
    host.execute(queues.declare_queues(["a", "b"], {"a": 6, "b": None}))
    hosts = sorted([host.id, serve(host), serve(host)])
    (shared,) = host.execute(cluster_slots.shared_queues())
    assert (shared.queue, shared.total_workers, list(shared.hosts)) == ("a", 6, hosts)
    assert host.execute(cluster_slots.grant_slots("a", 6, cluster_slots.split_evenly(6, hosts))) == 3
    assert granted(host) == dict.fromkeys(hosts, 2)
    assert host.execute(cluster_slots.grant_slots("a", 6, cluster_slots.split_evenly(6, hosts))) == 0, (
        "the same again changes nothing"
    )


def test_the_total_of_an_operator_overrides_that_of_the_app(host: DatabaseHost) -> None:
    host.execute(queues.declare_queues(["a"], {"a": 6}))

    def total() -> list[int]:
        return [shared.total_workers for shared in host.execute(cluster_slots.shared_queues())]

    assert total() == [6]
    host.execute(queues.scale_queue("a", cluster=4))
    host.execute(queues.declare_queues(["a"], {"a": 8}))
    assert total() == [4], "a deploy does not undo what was tuned"
    host.execute(queues.scale_queue("a", workers=3))
    assert total() == []
    host.execute(queues.scale_queue("a"))
    assert total() == [8]


def test_a_host_that_gains_waits_until_the_one_that_loses_has_let_go(host: DatabaseHost) -> None:
    host.execute(queues.declare_queues(["a"]))
    old, new = host.id, serve(host)
    host.execute(cluster_slots.grant_slots("a", 6, {old: 6}))
    assert host.execute(cluster_slots.acknowledge_slots(old, {"a": 0})) == {"a": 6}
    host.execute(cluster_slots.grant_slots("a", 6, {old: 3, new: 3}))
    assert granted(host) == {old: 3, new: 0}
    host.execute(
        cluster_slots.acknowledge_slots(old, {"a": 5})
    )  # one worker is gone, the others still run their jobs
    host.execute(cluster_slots.grant_slots("a", 6, {old: 3, new: 3}))
    assert granted(host) == {old: 3, new: 1}
    host.execute(cluster_slots.acknowledge_slots(old, {"a": 0}))
    host.execute(cluster_slots.grant_slots("a", 6, {old: 3, new: 3}))
    assert granted(host) == {old: 3, new: 3}


def test_the_share_of_a_dead_host_is_free_only_when_its_lease_is_over(host: DatabaseHost) -> None:
    host.execute(queues.declare_queues(["a"]))
    dead, alive = serve(host), host.id
    host.execute(cluster_slots.grant_slots("a", 6, {dead: 3, alive: 3}))
    host.execute(cluster_slots.grant_slots("a", 6, {alive: 6}))
    assert granted(host) == {dead: 3, alive: 3}
    host.conn.execute(
        "UPDATE pgworkers.cluster_slots SET acknowledged_at = now() - interval '31 s' WHERE host = %s", [dead]
    )
    host.execute(cluster_slots.grant_slots("a", 6, {alive: 6}))
    assert granted(host) == {alive: 6}
    assert host.execute(cluster_slots.acknowledge_slots(dead, {"a": 3})) == {}, (
        "should it wake up, it has nothing"
    )


def test_a_clock_that_was_set_forward_takes_no_share_from_the_living(host: DatabaseHost) -> None:
    host.execute(queues.declare_queues(["a"], {"a": 6}))
    quiet, alive = serve(host), host.id
    host.execute(cluster_slots.grant_slots("a", 6, {quiet: 3, alive: 3}))
    (clock,) = host.conn.execute("SELECT now() - interval '10 min'").fetchone() or (None,)
    host.conn.execute(
        "UPDATE pgworkers.cluster_slots SET acknowledged_at = acknowledged_at - interval '10 min'"
    )
    host.conn.execute("UPDATE pgworkers.host SET renewed_at = renewed_at - interval '10 min'")
    assert [set(shared.hosts) for shared in host.execute(cluster_slots.shared_queues(host_clock=clock))] == [
        {quiet, alive}
    ]
    host.execute(cluster_slots.grant_slots("a", 6, {alive: 6}, host_clock=clock))
    assert granted(host) == {quiet: 3, alive: 3}


def test_a_host_that_leaves_takes_its_slots_along(host: DatabaseHost) -> None:
    host.execute(queues.declare_queues(["a"]))
    gone = serve(host)
    host.execute(cluster_slots.grant_slots("a", 2, {gone: 2}))
    host.execute(hosts.remove_host(gone))
    host.execute(cluster_slots.grant_slots("a", 2, {host.id: 2}))
    assert granted(host) == {host.id: 2}


def test_grants_of_one_queue_take_turns(host: DatabaseHost, other: DatabaseHost) -> None:
    """Two new hosts ask for themselves at once: the second sees what the first got."""
    host.execute(queues.declare_queues(["a"]))
    with host.conn.transaction():
        host.execute(cluster_slots.grant_slots("a", 6, {host.id: 6}))
        second = other.in_thread(cluster_slots.grant_slots("a", 6, {other.id: 3}))
    if second.result(60) is None:  # it waits for a moment only, and asks again later
        other.execute(cluster_slots.grant_slots("a", 6, {other.id: 3}))
    assert granted(host) == {host.id: 6, other.id: 0}


def test_whatever_happens_in_whatever_order_no_more_than_the_total_may_run(host: DatabaseHost) -> None:
    """A model of hosts that come, acknowledge late, hold workers longer than granted, and go."""
    rand = random.Random(7)
    host.execute(queues.declare_queues(["a"]))
    total = 7
    running: dict[str, int] = {}
    for _ in range(400):
        match rand.randint(0, 5):
            case 0 if len(running) < 5:
                new = serve(host, 3600.0)
                running[new] = 0
                host.execute(cluster_slots.grant_slots("a", total, {new: -(-total // len(running))}))
            case 1 if len(running) > 1:
                gone = rand.choice(list(running))
                host.execute(hosts.remove_host(gone))
                del running[gone]
            case 2:
                host.execute(
                    cluster_slots.grant_slots("a", total, cluster_slots.split_evenly(total, list(running)))
                )
            case _ if running:
                one = rand.choice(list(running))
                may = host.execute(cluster_slots.acknowledge_slots(one, {"a": running[one]})).get("a", 0)
                running[one] = max(may, running[one] - rand.randint(0, 2))
        assert sum(running.values()) <= total
        assert may_run(host.conn) <= total
    assert running
