"""How many workers each queue has on this host: by the app, by operators, and by cluster-wide limits.

`target_workers` decides and is pure. `Scaler` reads the rows when it is notified of a change, and periodically, and acts. If
the rows cannot be read, nothing changes: the workers continue.

Of a queue whose workers are counted over all hosts, this host has a grant (limits/cluster_slots). It acknowledges each grant
before it uses it, and counts jobs that still run beyond it. A host that has not acknowledged for a lease has lost its grant,
so it claims nothing more from such a queue until it has acknowledged again.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from math import ceil, inf

import psycopg

from pgworkers.clock import monotonic
from pgworkers.events import (
    AttemptEnded,
    BatchHandler,
    DutyFailed,
    Event,
    EventBus,
    HostStateChanged,
    QueueThrottled,
    WorkerDied,
    each,
)
from pgworkers.job import queues
from pgworkers.job.model import Verdict
from pgworkers.job.notification_payloads import MIN_HINT_INTERVAL_SECONDS
from pgworkers.job.queues import CoolDown, QueueConfig
from pgworkers.limits import cluster_slots
from pgworkers.master.boot import ServedApp
from pgworkers.master.connection import ConnectionDown, QueryExecutor, ReconnectingConnection
from pgworkers.master.dispatcher import Dispatcher
from pgworkers.master.duties import Duty
from pgworkers.master.lifecycle import HostLifecycle
from pgworkers.master.supervisors import SupervisorPool
from pgworkers.settings import Settings
from pgworkers.specs import QueueSpec
from pgworkers.states import HostState
from pgworkers.units import format_duration

#: A throttle whose end moved by less is not announced again.
MIN_THROTTLE_CHANGE_SECONDS = 0.5


def initial_workers(spec: QueueSpec) -> int:
    """Workers before any row was read. None under a cluster-wide limit, until there is a grant."""
    return spec.workers if spec.cluster_workers is None else 0


def target_workers(
    specs: Mapping[str, QueueSpec],
    configs: Mapping[str, QueueConfig],
    grants: Mapping[str, int],
    current: Mapping[str, int],
    max_workers: int,
) -> dict[str, int]:
    """How many workers each queue of this host should have; never more than `max_workers`."""
    wanted = {}
    for name, spec in specs.items():
        config = configs.get(name)
        if config is None:  # its row is missing: keep what runs
            count = current.get(name, initial_workers(spec))
        elif config.total_workers is not None:
            count = grants.get(name, 0)
        else:
            count = spec.workers if config.workers is None else config.workers
        wanted[name] = min(count, max_workers)
    return wanted


def cooldown_of(settings: Settings) -> CoolDown:
    return CoolDown(
        settings.throttle_duration,
        settings.throttle_factor,
        settings.throttle_max_duration,
        settings.throttle_quiet_period,
    )


class Scaler:
    """Reads how many workers each queue should have, and makes it so."""

    def __init__(
        self,
        *,
        host_id: str,
        connection: ReconnectingConnection,
        settings: Settings,
        served: ServedApp,
        lifecycle: HostLifecycle,
        dispatcher: Dispatcher,
        supervisors: SupervisorPool,
        database_time: Callable[[], datetime | None],
        wake_claimer: Callable[[], None],
        events: EventBus,
    ) -> None:
        self._host_id = host_id
        self._connection = connection
        self._settings = settings
        self._served = served
        self._lifecycle = lifecycle
        self._dispatcher = dispatcher
        self._supervisors = supervisors
        self._database_time = database_time
        self._wake_claimer = wake_claimer
        self._events = events
        self._changed = asyncio.Event()
        self._targets: dict[str, int] = {}
        self._granted: dict[str, int] = {}  # of the queues that are shared out,
        self._acknowledged: dict[str, int] = {}  # and as last acknowledged
        self._throttle_reset_at: dict[str, float] = {}  # when a success forgives the throttles of a queue
        self._throttles_to_reset: set[str] = set()
        self._announced_throttles: dict[str, float] = {}  # as announced
        events.subscribe(self, AttemptEnded, WorkerDied, HostStateChanged)

    def wake(self) -> None:
        self._changed.set()

    def decide_again(self) -> None:
        """Decide and act again after a reload."""
        self._targets.clear()
        self.wake()

    def starting_workers(self, queue: str, spec: QueueSpec) -> int:
        """How many workers a supervisor of this queue starts with."""
        return self._targets.get(queue, initial_workers(spec))

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._interval_seconds()):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            began = monotonic()
            await self.scale_once()
            # Any login can notify. A change that came meanwhile waits for no longer than this.
            await asyncio.sleep(max(0.0, began + MIN_HINT_INTERVAL_SECONDS - monotonic()))

    def _interval_seconds(self) -> float:
        """Changes are notified, so the interval is long; but a grant is acknowledged well within a lease."""
        return self._settings.renew_interval * (1 if self._granted else 3)

    async def scale_once(self) -> None:
        """Read, decide and act. If the rows cannot be read, nothing changes."""
        try:
            await self._reset_throttles()
            names = list(self._served.queues)
            configs = {
                config.name: config for config in await self._connection.execute(queues.queue_configs(names))
            }
            self._note_throttles(configs)
            grants = await self._grants(configs)
        except ConnectionDown:
            await self._connection.wait_for_backoff()
            self._changed.set()
        except psycopg.Error:
            pass  # the connection has emitted it; the next round tries again
        else:
            self._apply(configs, grants)

    # -- the share in queues that are counted over all hosts ------------------------------------------------------------

    async def _grants(self, configs: Mapping[str, QueueConfig]) -> dict[str, int]:
        totals = {
            name: config.total_workers for name, config in configs.items() if config.total_workers is not None
        }
        if not totals:
            self._granted = self._acknowledged = {}
            return {}
        grants = await self._acknowledge_grants(totals)
        without = [name for name in totals if name not in grants]
        if without and not self._lifecycle.is_leaving:
            clock = self._database_time()
            seen = await self._connection.execute(cluster_slots.shared_queues(host_clock=clock))
            live = {shared.queue: len(shared.hosts) for shared in seen}
            for name in without:
                share = ceil(totals[name] / max(1, live.get(name, 1)))
                await self._connection.execute(
                    cluster_slots.grant_slots(name, totals[name], {self._host_id: share}, host_clock=clock)
                )
            grants = await self._acknowledge_grants(totals)
        return grants

    async def _acknowledge_grants(self, totals: Mapping[str, int]) -> dict[str, int]:
        sent = monotonic()
        held = {}
        for name in totals:
            buffer = self._dispatcher.buffers[name]
            # Jobs that may start while the statement is on its way count as well.
            held[name] = max(
                buffer.assigned_jobs,
                0 if buffer.max_assigned_jobs == sys.maxsize else buffer.max_assigned_jobs,
            )
        grants = await self._connection.execute(
            cluster_slots.acknowledge_slots(self._host_id, held, leaving=self._lifecycle.is_leaving)
        )
        self._granted = grants
        self._acknowledged = {name: max(held[name], grant) for name, grant in grants.items()}
        for name in grants:
            self._dispatcher.buffers[name].grant_valid_until = sent + self._settings.lease_duration
        return grants

    # -- acting ---------------------------------------------------------------------------------------------------------

    def _apply(self, configs: Mapping[str, QueueConfig], grants: Mapping[str, int]) -> None:
        if self._lifecycle.is_leaving:
            for name in grants:
                self._dispatcher.buffers[name].max_assigned_jobs = 0
            return
        before_all = dict(self._targets), self._max_assigned_jobs()
        wanted = target_workers(
            self._served.queues, configs, grants, self._targets, self._settings.max_workers
        )
        for name, count in wanted.items():
            if not self._supervisors.has_queue(name):
                continue  # newer code is just being brought in
            buffer = self._dispatcher.buffers[name]
            config = configs.get(name)
            if config is not None:
                shared = config.total_workers is not None
                buffer.max_assigned_jobs = count if shared else sys.maxsize
                buffer.grant_valid_until = buffer.grant_valid_until if shared else inf
            before = self._targets.get(name)
            if before != count:  # else a change by a signal stays
                self._targets[name] = count
                self._supervisors.scale(name, count)
                self._dispatcher.set_target_workers(name, count)
                if before is not None:
                    self._lifecycle.note(f"queue {name}: {before} -> {count} workers on this host")
        if any(self._exceeds_grant(name) for name in self._acknowledged):
            self._changed.set()  # a grant was lowered: acknowledge it at once
        if self._granted or before_all != (self._targets, self._max_assigned_jobs()):
            self._wake_claimer()  # there may be more room

    def _exceeds_grant(self, queue: str) -> bool:
        """True if this host has acknowledged more than its grant and its jobs need."""
        buffer = self._dispatcher.buffers[queue]
        return self._acknowledged.get(queue, 0) > max(
            self._granted.get(queue, 0), buffer.max_assigned_jobs, buffer.assigned_jobs
        )

    # -- events -------------------------------------------------------------------------------------------------

    def __call__(self, event: Event) -> None:
        match event:
            case WorkerDied() if event.queue in self._acknowledged and self._exceeds_grant(event.queue):
                self.wake()  # one less runs beyond the grant
            case HostStateChanged(state=HostState.DRAINING):
                self.wake()  # the others may have what this host no longer needs

    def handler_for(self, kind: type) -> BatchHandler | None:
        return self.on_attempts_ended if kind is AttemptEnded else each(self)

    def on_attempts_ended(self, events: Iterator[AttemptEnded]) -> None:
        if not self._acknowledged and not self._throttle_reset_at:
            return  # nothing is shared out and nothing cools down: any number of jobs may end
        for event in events:
            if event.queue in self._acknowledged and self._exceeds_grant(event.queue):
                self.wake()
            calm_at = self._throttle_reset_at.get(event.queue)
            if calm_at is not None and event.verdict == Verdict.SUCCEEDED and monotonic() >= calm_at:
                self._throttles_to_reset.add(event.queue)
                self.wake()

    def resize(self, by: int) -> None:
        """Add or remove one worker in every queue.

        An idle worker leaves at once, a busy one after its job.
        """
        if self._lifecycle.is_leaving:
            return
        has_changed = False
        for queue in self._dispatcher.buffers:
            before = self._supervisors.target_workers(queue)
            target = min(self._settings.max_workers, max(1, before + by))
            has_changed = has_changed or target != before
            self._supervisors.scale(queue, target)
            self._dispatcher.set_target_workers(queue, target)
        what = "one worker " + ("more" if by > 0 else "less") + " per queue"
        self._lifecycle.note(what if has_changed else f"not {what}: no queue can have it")

    def _max_assigned_jobs(self) -> dict[str, int]:
        return {name: buffer.max_assigned_jobs for name, buffer in self._dispatcher.buffers.items()}

    # -- throttles ----------------------------------------------------------------------------------------------------------

    def _note_throttles(self, configs: Mapping[str, QueueConfig]) -> None:
        now, grace = monotonic(), self._settings.throttle_quiet_period
        for config in configs.values():
            until = now + config.throttled_seconds
            if (
                config.throttled_seconds > 0
                and until > self._announced_throttles.get(config.name, 0.0) + MIN_THROTTLE_CHANGE_SECONDS
            ):
                self._announced_throttles[config.name] = until
                self._events.emit(
                    QueueThrottled(config.name, config.throttled_seconds, config.throttle_level)
                )
        self._throttle_reset_at = {
            config.name: now + grace - (config.seconds_since_cool_down or 0.0)
            for config in configs.values()
            if config.throttle_level
        }

    async def _reset_throttles(self) -> None:
        for name in list(self._throttles_to_reset):
            await self._connection.execute(queues.reset_throttle(name, self._settings.throttle_quiet_period))
            self._throttles_to_reset.discard(name)


def share_cluster_workers(
    executor: QueryExecutor, events: EventBus, every: float, database_time: Callable[[], datetime | None]
) -> Duty:
    """The leader's duty: share each total out again when hosts come and go.

    A queue whose row another session has locked is left to the next time. That is reported once.
    """
    locked_queues: set[str] = set()

    async def perform() -> int:
        changed = 0
        for shared in await executor.execute(cluster_slots.shared_queues(host_clock=database_time())):
            wanted = cluster_slots.split_evenly(shared.total_workers, shared.hosts)
            grants = await executor.execute(
                cluster_slots.grant_slots(
                    shared.queue, shared.total_workers, wanted, host_clock=database_time()
                )
            )
            if grants is not None:
                changed += grants
                locked_queues.discard(shared.queue)
            elif shared.queue not in locked_queues:
                locked_queues.add(shared.queue)
                why = f"workers of queue {shared.queue} are not shared out: a session holds a lock on its row"
                events.emit(DutyFailed("split", f"{why}; it is tried again every {format_duration(every)}"))
        return changed

    return Duty(
        "share_workers",
        every,
        perform,
        "share out workers that are counted over all hosts",
        is_on_demand=True,
    )
