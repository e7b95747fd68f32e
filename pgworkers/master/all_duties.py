"""Every duty of a leader, in one place: for the host that leads, and for an operator who performs one by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from pgworkers.facts import Facts
from pgworkers.master import sights
from pgworkers.master.desk import QueueDesk
from pgworkers.master.duties import Duties
from pgworkers.master.line import Asker
from pgworkers.master.scaling import split_duty
from pgworkers.settings import Settings


def all_duties(
    host_id: str,
    asker: Asker,
    facts: Facts,
    settings: Settings,
    *,
    may_rescue: Callable[[], bool],
    reckoned: Callable[[], datetime | None],
    desks: Mapping[str, QueueDesk] | None,
) -> Duties:
    """`desks`: of the host that leads; None: an operator performs a duty, without a host of his own."""
    duties = Duties(host_id, asker, facts, settings, may_rescue, reckoned)
    duties.add(split_duty(asker, settings.leader_retry, reckoned))
    for look in sights.duties(asker, facts, settings, desks):
        duties.add(look)
    return duties
