"""What a host measures for its gauges, besides what happens by itself.

The leader looks at schedules and tables, as duties; every host looks at the memory of its workers. Each look is rare,
bounded, and away from the loop where it could block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from pgworkers.clock import monotonic
from pgworkers.events import TaskUnknown
from pgworkers.facts import Facts
from pgworkers.job import depth
from pgworkers.job.strangers import QUEUES_PER_LOOK, Stranger, strangers
from pgworkers.master.desk import QueueDesk
from pgworkers.master.dispatch import Dispatch
from pgworkers.master.duties import Duty
from pgworkers.master.line import Asker
from pgworkers.observe.storage import storage
from pgworkers.process import measure, tree
from pgworkers.process.resting import Resting
from pgworkers.schedule.times import times
from pgworkers.settings import Settings
from pgworkers.sightings import MemorySeen, QueueDepth, QueuesSeen, SchedulesSeen

#: Schedules with gauges of their own.
SCHEDULES = 500
#: Tables grow slowly.
STORAGE_EVERY = 30.0
#: For one look at the calendar so many at the depth of the queues.
CALENDAR = 3
MEMORY_EVERY = 10.0
#: Of each queue, when a duty is performed by hand.
MAX_COUNTED_JOBS = 1000
#: The most unknown tasks that one leader reports: any login that may enqueue can make up names.
MAX_KNOWN_STRANGERS = 1000
#: A look at memory walks page tables: it rests at least this many times as long as it took.
SHARE = 20


def duties(
    asker: Asker, facts: Facts, settings: Settings, desks: Mapping[str, QueueDesk] | None
) -> list[Duty]:
    """The looks of the leader. `desks`: of its host; None: there is no host, so every queue with ready jobs is looked at."""
    depths: list[QueueDepth] = []  # of the last snapshot
    known: set[tuple[str, str]] = set()  # strangers that were told of

    def remember(seen: QueuesSeen) -> None:
        depths[:] = seen.queues

    async def tasks() -> int:
        if desks is None:
            odd = [one.queue for one in await asker.ask(depth.depth(MAX_COUNTED_JOBS)) if one.ready]
        else:
            odd = left_lying(depths, desks, settings.poll + settings.statement_timeout)
        found: list[Stranger] = []
        for start in range(0, len(odd), QUEUES_PER_LOOK):
            seen = await asker.ask(strangers(odd[start : start + QUEUES_PER_LOOK]))
            found += seen
        fresh = [one for one in found if (one.queue, one.task) not in known]
        del fresh[max(0, MAX_KNOWN_STRANGERS - len(known)) :]
        known.update((one.queue, one.task) for one in fresh)
        for one in fresh:
            facts.tell(TaskUnknown(one.queue, one.task, one.jobs))
        return len(fresh)

    facts.listen(remember, QueuesSeen)

    async def calendar() -> int:
        seen = await asker.ask(times(SCHEDULES))
        facts.tell(SchedulesSeen(seen))
        return len(seen)

    async def tables() -> int:
        seen = await asker.ask(storage())
        facts.tell(seen)
        return len(seen.tables)

    return [
        Duty(
            "calendar",
            CALENDAR * settings.depth,
            calendar,
            "read when schedules fire next, for the gauges",
            at_once=True,
            only_looks=True,
        ),
        Duty(
            "strangers",
            CALENDAR * settings.depth,
            tasks,
            "tell of jobs whose task nobody knows, where a worker idles beside them",
            only_looks=True,
        ),
        Duty(
            "storage",
            STORAGE_EVERY,
            tables,
            "measure tables and the oldest transaction",
            at_once=True,
            only_looks=True,
        ),
    ]


def left_lying(depths: Sequence[QueueDepth], desks: Mapping[str, QueueDesk], patience: float) -> list[str]:
    """Queues of this host with an idle worker whose oldest job has waited too long for that: perhaps nobody knows it."""
    return [
        one.queue
        for one in depths
        if one.ready and one.oldest > patience
        if not (one.paused or one.throttled) and one.queue in desks and desks[one.queue].idle
    ]


async def watch_memory(dispatch: Dispatch, facts: Facts) -> None:
    """The memory of all workers, for as long as the host lives."""
    resting = Resting()
    weights: dict[int, int] = {}  # pid -> bytes
    while True:
        began = monotonic()
        crews = {name: list(desk.workers) for name, desk in dispatch.desks.items()}
        marks = {worker.pid: worker.rest for workers in crews.values() for worker in workers}
        due = resting.due(marks, began)
        if due:
            weights.update(await asyncio.to_thread(_weigh, due))
        weights = {pid: weights[pid] for pid in marks}
        each = {name: [weights[worker.pid] for worker in workers] for name, workers in crews.items()}
        facts.tell(
            MemorySeen(
                {queue: sum(sizes) for queue, sizes in each.items()},
                {queue: max(sizes, default=0) for queue, sizes in each.items()},
            )
        )
        await asyncio.sleep(max(MEMORY_EVERY, (monotonic() - began) * SHARE))


def _weigh(pids: list[int]) -> dict[int, int]:
    return {pid: sum(map(measure.proportional, tree.family(pid))) for pid in pids}
