"""Every duty of a leader, in one place: for the host that leads, and for an operator who performs one by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from pgworkers.events import EventBus
from pgworkers.master import gauges
from pgworkers.master.connection import QueryExecutor
from pgworkers.master.duties import DutyRunner
from pgworkers.master.queue_buffer import QueueBuffer
from pgworkers.master.scaling import share_cluster_workers
from pgworkers.settings import Settings


def make_duties(
    host_id: str,
    asker: QueryExecutor,
    facts: EventBus,
    settings: Settings,
    *,
    may_rescue: Callable[[], bool],
    reckoned: Callable[[], datetime | None],
    desks: Mapping[str, QueueBuffer] | None,
) -> DutyRunner:
    """`desks`: of the host that leads; None: an operator performs a duty, without a host of his own."""
    duties = DutyRunner(host_id, asker, facts, settings, may_rescue, reckoned)
    duties.add(share_cluster_workers(asker, settings.leadership_interval, reckoned))
    for look in gauges.GaugeDuties(asker, facts, settings, desks):
        duties.add(look)
    return duties
