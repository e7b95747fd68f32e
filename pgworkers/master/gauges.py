"""What a host measures for its gauges, besides what happens by itself.

The leader looks at schedules and tables, as duties; every host looks at the memory of its workers. Each look is rare,
bounded, and away from the loop where it could block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from pgworkers.clock import monotonic
from pgworkers.events import (
    EventBus,
    MemoryMeasured,
    QueueDepth,
    QueuesMeasured,
    SchedulesMeasured,
    UnknownTaskFound,
)
from pgworkers.job import gauges
from pgworkers.job.gauges import QUEUES_PER_STATEMENT, UnknownTask, unknown_tasks
from pgworkers.linux import proc
from pgworkers.master.assignment import QueueBuffer
from pgworkers.master.connection import QueryExecutor
from pgworkers.master.dispatcher import Dispatcher
from pgworkers.master.duties import Duty
from pgworkers.master.process_usage import RemeasurePolicy
from pgworkers.observe.statistics import table_sizes
from pgworkers.schedule.definitions import schedule_times
from pgworkers.settings import Settings

#: Schedules with gauges of their own.
MAX_SCHEDULES_MEASURED = 500
#: Tables grow slowly.
STORAGE_INTERVAL_SECONDS = 30.0
#: Queue depths are measured this many times as often as schedule times.
SCHEDULE_TIMES_PER_DEPTH_INTERVALS = 3
MEMORY_INTERVAL_SECONDS = 10.0
#: Of each queue, when a duty is performed by hand.
MAX_JOBS_COUNTED_PER_QUEUE = 1000
#: The most unknown tasks that one leader reports: any login that may enqueue can make up names.
MAX_UNKNOWN_TASKS_REPORTED = 1000
#: A look at memory walks page tables: it rests at least this many times as long as it took.
MEMORY_REST_FACTOR = 20


def make_gauge_duties(
    executor: QueryExecutor, events: EventBus, settings: Settings, buffers: Mapping[str, QueueBuffer] | None
) -> list[Duty]:
    """Periodic measurements of the leader.

    `buffers`: of its host; None: no host, so every queue with ready jobs counts.
    """
    depths: list[QueueDepth] = []  # of the last snapshot
    known: set[tuple[str, str]] = set()  # unknown tasks that were reported

    def remember(seen: QueuesMeasured) -> None:
        depths[:] = seen.queues

    async def tasks() -> int:
        if buffers is None:
            queues_to_check = [
                one.queue
                for one in await executor.execute(gauges.count_depth(MAX_JOBS_COUNTED_PER_QUEUE))
                if one.ready
            ]
        else:
            queues_to_check = queues_left_waiting(
                depths, buffers, settings.poll_interval + settings.statement_timeout
            )
        found: list[UnknownTask] = []
        for start in range(0, len(queues_to_check), QUEUES_PER_STATEMENT):
            seen = await executor.execute(
                unknown_tasks(queues_to_check[start : start + QUEUES_PER_STATEMENT])
            )
            found += seen
        fresh = [one for one in found if (one.queue, one.task) not in known]
        del fresh[max(0, MAX_UNKNOWN_TASKS_REPORTED - len(known)) :]
        known.update((one.queue, one.task) for one in fresh)
        for one in fresh:
            events.emit(UnknownTaskFound(one.queue, one.task, one.jobs))
        return len(fresh)

    events.subscribe(remember, QueuesMeasured)

    async def measure_schedules() -> int:
        seen = await executor.execute(schedule_times(MAX_SCHEDULES_MEASURED))
        events.emit(SchedulesMeasured(seen))
        return len(seen)

    async def tables() -> int:
        seen = await executor.execute(table_sizes())
        events.emit(seen)
        return len(seen.tables)

    return [
        Duty(
            "schedule_times",
            SCHEDULE_TIMES_PER_DEPTH_INTERVALS * settings.queue_depth_interval,
            measure_schedules,
            "read when schedules fire next, for the gauges",
            is_due_on_election=True,
            is_read_only=True,
        ),
        Duty(
            "unknown_tasks",
            SCHEDULE_TIMES_PER_DEPTH_INTERVALS * settings.queue_depth_interval,
            tasks,
            "report ready jobs of tasks that no host knows",
            is_read_only=True,
        ),
        Duty(
            "storage",
            STORAGE_INTERVAL_SECONDS,
            tables,
            "measure tables and the oldest transaction",
            is_due_on_election=True,
            is_read_only=True,
        ),
    ]


def queues_left_waiting(
    depths: Sequence[QueueDepth], buffers: Mapping[str, QueueBuffer], min_wait_seconds: float
) -> list[str]:
    """Queues of this host with an idle worker whose oldest job still waits: perhaps no host knows its task."""
    return [
        one.queue
        for one in depths
        if one.ready and one.oldest > min_wait_seconds
        if not (one.is_paused or one.is_throttled)
        and one.queue in buffers
        and buffers[one.queue].idle_workers
    ]


async def measure_worker_memory(dispatcher: Dispatcher, events: EventBus) -> None:
    """The memory of all workers, for as long as the host lives."""
    resting = RemeasurePolicy()
    memory_by_pid: dict[int, int] = {}  # pid -> bytes
    while True:
        began = monotonic()
        workers_by_queue = {name: list(buffer.workers) for name, buffer in dispatcher.buffers.items()}
        idle_marks = {
            worker.pid: worker.idle_mark for workers in workers_by_queue.values() for worker in workers
        }
        due = resting.due(idle_marks, began)
        if due:
            memory_by_pid.update(await asyncio.to_thread(_memory_of, due))
        memory_by_pid = {pid: memory_by_pid[pid] for pid in idle_marks}
        each = {
            name: [memory_by_pid[worker.pid] for worker in workers]
            for name, workers in workers_by_queue.items()
        }
        events.emit(
            MemoryMeasured(
                {queue: sum(sizes) for queue, sizes in each.items()},
                {queue: max(sizes, default=0) for queue, sizes in each.items()},
            )
        )
        await asyncio.sleep(max(MEMORY_INTERVAL_SECONDS, (monotonic() - began) * MEMORY_REST_FACTOR))


def _memory_of(pids: list[int]) -> dict[int, int]:
    return {pid: sum(map(proc.proportional_bytes, proc.process_with_descendants(pid))) for pid in pids}
