"""Assembles the leader's duties, for the host that leads and for an operator who performs one by hand.

Most of them are in duties.py. Those that share the workers of the cluster (scaling.py) and those that measure (gauges.py)
are added here, because their modules import duties.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from pgworkers.events import EventBus
from pgworkers.master import gauges
from pgworkers.master.assignment import QueueBuffer
from pgworkers.master.connection import QueryExecutor
from pgworkers.master.duties import DutyRunner
from pgworkers.master.result_files import (
    LEADER_WAIT_SECONDS,
    OPERATOR_WAIT_SECONDS,
    remove_unneeded_results,
)
from pgworkers.master.scaling import share_cluster_workers
from pgworkers.settings import Settings


def make_duties(
    host_id: str,
    executor: QueryExecutor,
    events: EventBus,
    settings: Settings,
    *,
    may_rescue: Callable[[], bool],
    database_time: Callable[[], datetime | None],
    buffers: Mapping[str, QueueBuffer] | None,
) -> DutyRunner:
    """`buffers`: of the host that leads; None: an operator runs a duty without a host."""
    duties = DutyRunner(host_id, executor, events, settings, may_rescue, database_time)
    duties.add(share_cluster_workers(executor, events, settings.leadership_interval, database_time))
    for duty in gauges.make_gauge_duties(executor, events, settings, buffers):
        duties.add(duty)
    if settings.result_store:
        wait = OPERATOR_WAIT_SECONDS if buffers is None else LEADER_WAIT_SECONDS
        duties.add(
            remove_unneeded_results(
                executor, settings.result_store, settings.result_prune_interval, wait_seconds=wait
            )
        )
    return duties
