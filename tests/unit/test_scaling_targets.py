"""How many workers a queue has on a host, and how a total is split: the pure parts."""

from __future__ import annotations

from pgworkers.job.queues import QueueConfig
from pgworkers.limits.cluster_slots import split_evenly
from pgworkers.master.scaling import initial_workers, target_workers
from pgworkers.specs import QueueSpec

SPECS = {"a": QueueSpec("a", workers=2), "shared": QueueSpec("shared", cluster_workers=6)}


def config(name: str, workers: int | None = None, total: int | None = None) -> QueueConfig:
    return QueueConfig(name, False, workers, None, 0.0, 0, total)


def test_the_app_says_unless_an_operator_does() -> None:
    assert target_workers({"a": SPECS["a"]}, {"a": config("a")}, {}, {}, 64) == {"a": 2}
    assert target_workers({"a": SPECS["a"]}, {"a": config("a", workers=5)}, {}, {}, 64) == {"a": 5}
    assert target_workers({"a": SPECS["a"]}, {"a": config("a", workers=0)}, {}, {}, 64) == {"a": 0}


def test_never_more_than_the_cap() -> None:
    assert target_workers({"a": SPECS["a"]}, {"a": config("a", workers=500)}, {}, {}, 64) == {"a": 64}
    assert target_workers({"a": SPECS["a"]}, {"a": config("a", total=500)}, {"a": 250}, {}, 64) == {"a": 64}


def test_a_row_that_is_missing_changes_nothing() -> None:
    assert target_workers(SPECS, {}, {}, {"a": 7, "shared": 3}, 64) == {"a": 7, "shared": 3}
    assert target_workers(SPECS, {}, {}, {}, 64) == {"a": 2, "shared": 0}


def test_of_a_shared_queue_a_host_has_its_grant_and_without_one_nothing() -> None:
    configs = {"a": config("a"), "shared": config("shared", total=6)}
    assert target_workers(SPECS, configs, {"shared": 2}, {}, 64) == {"a": 2, "shared": 2}
    assert target_workers(SPECS, configs, {}, {"shared": 6}, 64) == {"a": 2, "shared": 0}
    assert initial_workers(SPECS["shared"]) == 0


def test_a_total_is_split_evenly_and_the_rest_goes_by_the_order_of_ids() -> None:
    assert split_evenly(6, ["c", "a", "b"]) == {"a": 2, "b": 2, "c": 2}
    assert split_evenly(7, ["c", "a", "b"]) == {"a": 3, "b": 2, "c": 2}
    assert split_evenly(1, ["b", "a"]) == {"a": 1, "b": 0}
    assert split_evenly(0, ["a"]) == {"a": 0}
    assert split_evenly(5, []) == {}


def test_the_split_is_the_same_in_whatever_order_hosts_are_named_and_adds_up() -> None:
    hosts = [f"h{n}" for n in range(9)]
    for total in range(30):
        there, back = split_evenly(total, hosts), split_evenly(total, hosts[::-1])
        assert there == back
        assert sum(there.values()) == total
        assert max(there.values()) - min(there.values()) <= 1
