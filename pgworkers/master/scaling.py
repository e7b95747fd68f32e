"""How many workers each queue has here: what the app says, what operators tuned, what the cluster leaves to this host.

`target_workers` decides and is pure; `Scaler` reads the rows when it is told of a change (and now and then without), and
acts. What cannot be read changes nothing: the workers that run go on.

Of a queue whose workers are counted over all hosts this host has a grant (flow/slots). It acknowledges each grant before it
uses it, and goes on counting as taken whatever still runs beyond it. A host that has not acknowledged for a lease has lost
its grant to others, so it claims nothing more of such a queue until it has heard again.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from math import ceil, inf
from typing import TYPE_CHECKING

import psycopg

from pgworkers.clock import monotonic
from pgworkers.events import (
    AttemptEnded,
    BatchHandler,
    Event,
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
from pgworkers.master.connection import ConnectionDown, QueryExecutor
from pgworkers.master.duties import Duty
from pgworkers.specs import QueueSpec

if TYPE_CHECKING:
    from pgworkers.master.host import Host
    from pgworkers.settings import Settings


#: A throttle whose end moved by less is not announced again.
MIN_THROTTLE_CHANGE_SECONDS = 0.5


def initial_workers(spec: QueueSpec) -> int:
    """Before anything was read. Of a queue that is shared out: none, until there is a grant."""
    return spec.workers if spec.cluster_workers is None else 0


def target_workers(
    specs: Mapping[str, QueueSpec],
    configs: Mapping[str, QueueConfig],
    grants: Mapping[str, int],
    current: Mapping[str, int],
    max_workers: int,
) -> dict[str, int]:
    """How many workers each queue of this host should have; never more than `most`."""
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
    def __init__(self, host: Host) -> None:
        self._host = host
        self._connection = host.connections["claim"]
        self._changed = asyncio.Event()
        self._targets: dict[str, int] = {}
        self._granted: dict[str, int] = {}  # of the queues that are shared out,
        self._acknowledged: dict[str, int] = {}  # and as last acknowledged
        self._throttle_reset_at: dict[str, float] = {}  # when a success forgives the throttles of a queue
        self._throttles_to_reset: set[str] = set()
        self._announced_throttles: dict[str, float] = {}  # as announced
        host.events.subscribe(self, AttemptEnded, WorkerDied, HostStateChanged)

    def wake(self) -> None:
        self._changed.set()

    def decide_again(self) -> None:
        """Other code runs: whatever was decided is decided and acted on again."""
        self._targets.clear()
        self.wake()

    def starting_workers(self, queue: str, spec: QueueSpec) -> int:
        """What a supervisor of this queue should begin with."""
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
        """A change is notified, so a look without one may be rare; but a share is acknowledged well within its lease."""
        return self._host.settings.renew_interval * (1 if self._granted else 3)

    async def scale_once(self) -> None:
        """Read, decide, act; what cannot be read changes nothing."""
        try:
            await self._reset_throttles()
            names = list(self._host.plan.queues)
            configs = {
                config.name: config for config in await self._connection.execute(queues.queue_configs(names))
            }
            self._note_throttles(configs)
            grants = await self._grants(configs)
        except ConnectionDown:
            await self._connection.wait_for_backoff()
            self._changed.set()
        except psycopg.Error:
            pass  # told by the line; the next round tries again
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
        if without and not self._host.is_leaving:
            clock = self._host.database_time()
            seen = await self._connection.execute(cluster_slots.shared_queues(host_clock=clock))
            live = {shared.queue: len(shared.hosts) for shared in seen}
            for name in without:
                share = ceil(totals[name] / max(1, live.get(name, 1)))
                await self._connection.execute(
                    cluster_slots.grant_slots(name, totals[name], {self._host.id: share}, host_clock=clock)
                )
            grants = await self._acknowledge_grants(totals)
        return grants

    async def _acknowledge_grants(self, totals: Mapping[str, int]) -> dict[str, int]:
        sent = monotonic()
        held = {}
        for name in totals:
            buffer = self._host.dispatcher.buffers[name]
            # What may begin while the statement is on its way counts as well.
            held[name] = max(
                buffer.assigned_jobs,
                0 if buffer.max_assigned_jobs == sys.maxsize else buffer.max_assigned_jobs,
            )
        grants = await self._connection.execute(
            cluster_slots.acknowledge_slots(self._host.id, held, leaving=self._host.is_leaving)
        )
        self._granted = grants
        self._acknowledged = {name: max(held[name], grant) for name, grant in grants.items()}
        for name in grants:
            self._host.dispatcher.buffers[name].grant_valid_until = sent + self._host.settings.lease_duration
        return grants

    # -- acting ---------------------------------------------------------------------------------------------------------

    def _apply(self, configs: Mapping[str, QueueConfig], grants: Mapping[str, int]) -> None:
        host = self._host
        if host.is_leaving:
            for name in grants:
                host.dispatcher.buffers[name].max_assigned_jobs = 0
            return
        before_all = dict(self._targets), _max_assigned_jobs(host)
        wanted = target_workers(host.plan.queues, configs, grants, self._targets, host.settings.max_workers)
        for name, count in wanted.items():
            if not host.supervisors.has_queue(name):
                continue  # newer code is just being brought in
            buffer = host.dispatcher.buffers[name]
            config = configs.get(name)
            if config is not None:
                shared = config.total_workers is not None
                buffer.max_assigned_jobs = count if shared else sys.maxsize
                buffer.grant_valid_until = buffer.grant_valid_until if shared else inf
            before = self._targets.get(name)
            if before != count:  # else whoever changed it since (a signal) keeps his way
                self._targets[name] = count
                host.supervisors.scale(name, count)
                host.dispatcher.set_target_workers(name, count)
                if before is not None:
                    host.events.emit(
                        HostStateChanged(
                            host.state, f"queue {name}: {before} -> {count} workers on this host"
                        )
                    )
        if any(self._exceeds_grant(name) for name in self._acknowledged):
            self._changed.set()  # a grant was lowered: acknowledge it at once
        if self._granted or before_all != (self._targets, _max_assigned_jobs(host)):
            host.claimer.wake_for_all_queues()  # there may be more room

    def _exceeds_grant(self, queue: str) -> bool:
        """Does this host still count for more than it has?"""
        buffer = self._host.dispatcher.buffers[queue]
        return self._acknowledged.get(queue, 0) > max(
            self._granted.get(queue, 0), buffer.max_assigned_jobs, buffer.assigned_jobs
        )

    # -- what others tell -------------------------------------------------------------------------------------------------

    def __call__(self, event: Event) -> None:
        match event:
            case WorkerDied() if event.queue in self._acknowledged and self._exceeds_grant(event.queue):
                self.wake()  # one less runs beyond the grant
            case HostStateChanged(state="draining"):
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

    # -- throttles ----------------------------------------------------------------------------------------------------------

    def _note_throttles(self, configs: Mapping[str, QueueConfig]) -> None:
        now, grace = monotonic(), self._host.settings.throttle_quiet_period
        for config in configs.values():
            until = now + config.throttled_seconds
            if (
                config.throttled_seconds > 0
                and until > self._announced_throttles.get(config.name, 0.0) + MIN_THROTTLE_CHANGE_SECONDS
            ):
                self._announced_throttles[config.name] = until
                self._host.events.emit(
                    QueueThrottled(config.name, config.throttled_seconds, config.throttle_level)
                )
        self._throttle_reset_at = {
            config.name: now + grace - (config.seconds_since_cool_down or 0.0)
            for config in configs.values()
            if config.throttle_level
        }

    async def _reset_throttles(self) -> None:
        for name in list(self._throttles_to_reset):
            await self._connection.execute(
                queues.reset_throttle(name, self._host.settings.throttle_quiet_period)
            )
            self._throttles_to_reset.discard(name)


def _max_assigned_jobs(host: Host) -> dict[str, int]:
    return {name: buffer.max_assigned_jobs for name, buffer in host.dispatcher.buffers.items()}


def share_cluster_workers(
    executor: QueryExecutor, every: float, database_time: Callable[[], datetime | None]
) -> Duty:
    """The leader's part: shares out each total anew when hosts come and go."""

    async def perform() -> int:
        changed = 0
        for shared in await executor.execute(cluster_slots.shared_queues(host_clock=database_time())):
            wanted = cluster_slots.split_evenly(shared.total_workers, shared.hosts)
            changed += await executor.execute(
                cluster_slots.grant_slots(
                    shared.queue, shared.total_workers, wanted, host_clock=database_time()
                )
            )
        return changed

    return Duty(
        "split", every, perform, "share out workers that are counted over all hosts", is_on_demand=True
    )


def resize(host: Host, by: int) -> None:
    """One worker more or less in every queue; an idle one goes first, a busy one after its job."""
    if host.is_leaving:
        return
    changed = False
    for queue in host.dispatcher.buffers:
        target = min(host.settings.max_workers, max(1, host.supervisors.target_workers(queue) + by))
        changed = changed or target != host.supervisors.target_workers(queue)
        host.supervisors.scale(queue, target)
        host.dispatcher.set_target_workers(queue, target)
    what = "one worker " + ("more" if by > 0 else "less") + " per queue"
    host.events.emit(HostStateChanged(host.state, what if changed else f"not {what}: no queue can have it"))
