"""How many workers each queue has here: what the app says, what operators tuned, what the cluster leaves to this host.

`targets` decides and is pure; `Scaling` reads the rows when it is told of a change (and now and then without), and acts.
What cannot be read changes nothing: the workers that run go on.

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
from pgworkers.events import Fact, HostChanged, JobEnded, QueueThrottled
from pgworkers.facts import Hearing, each
from pgworkers.flow import slots
from pgworkers.job import queue as queues
from pgworkers.job.notifications import HINT_PAUSE_SECONDS
from pgworkers.job.queue import Cooling, QueueConfig
from pgworkers.job.state import Verdict
from pgworkers.lives import WorkerDied
from pgworkers.master.duties import Duty
from pgworkers.master.line import Asker, LineDown
from pgworkers.specs import QueueSpec

if TYPE_CHECKING:
    from pgworkers.master.host import Host
    from pgworkers.settings import Settings


#: A throttle whose end moved by less is not announced again.
ANNOUNCE_AGAIN_SECONDS = 0.5


def first(spec: QueueSpec) -> int:
    """Before anything was read. Of a queue that is shared out: none, until there is a grant."""
    return spec.workers if spec.cluster_workers is None else 0


def targets(
    specs: Mapping[str, QueueSpec],
    configs: Mapping[str, QueueConfig],
    grants: Mapping[str, int],
    current: Mapping[str, int],
    most: int,
) -> dict[str, int]:
    """How many workers each queue of this host should have; never more than `most`."""
    wanted = {}
    for name, spec in specs.items():
        config = configs.get(name)
        if config is None:  # its row is missing: keep what runs
            count = current.get(name, first(spec))
        elif config.total is not None:
            count = grants.get(name, 0)
        else:
            count = spec.workers if config.workers is None else config.workers
        wanted[name] = min(count, most)
    return wanted


def cooling(settings: Settings) -> Cooling:
    return Cooling(
        settings.throttle, settings.throttle_growth, settings.throttle_max, settings.throttle_grace
    )


class Scaling:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._line = host.lines["claim"]
        self._wake = asyncio.Event()
        self._targets: dict[str, int] = {}
        self._granted: dict[str, int] = {}  # of the queues that are shared out,
        self._taken: dict[str, int] = {}  # and as last acknowledged
        self._calm_at: dict[str, float] = {}  # when a success forgives the throttles of a queue
        self._calmed: set[str] = set()
        self._throttled_until: dict[str, float] = {}  # as announced
        host.facts.listen(self, JobEnded, WorkerDied, HostChanged)

    def poke(self) -> None:
        self._wake.set()

    def forget(self) -> None:
        """Other code runs: whatever was decided is decided and acted on again."""
        self._targets.clear()
        self.poke()

    def workers(self, queue: str, spec: QueueSpec) -> int:
        """What a supervisor of this queue should begin with."""
        return self._targets.get(queue, first(spec))

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._period()):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            began = monotonic()
            await self.once()
            # Any login can notify. A change that came meanwhile waits for no longer than this.
            await asyncio.sleep(max(0.0, began + HINT_PAUSE_SECONDS - monotonic()))

    def _period(self) -> float:
        """A change is notified, so a look without one may be rare; but a share is acknowledged well within its lease."""
        return self._host.settings.renew * (1 if self._granted else 3)

    async def once(self) -> None:
        """Read, decide, act; what cannot be read changes nothing."""
        try:
            await self._calm()
            names = list(self._host.plan.queues)
            configs = {config.name: config for config in await self._line.ask(queues.configs(names))}
            self._note_throttles(configs)
            grants = await self._grants(configs)
        except LineDown:
            await self._line.rest()
            self._wake.set()
        except psycopg.Error:
            pass  # told by the line; the next round tries again
        else:
            self._act(configs, grants)

    # -- the share in queues that are counted over all hosts ------------------------------------------------------------

    async def _grants(self, configs: Mapping[str, QueueConfig]) -> dict[str, int]:
        totals = {name: config.total for name, config in configs.items() if config.total is not None}
        if not totals:
            self._granted = self._taken = {}
            return {}
        grants = await self._take(totals)
        without = [name for name in totals if name not in grants]
        if without and not self._host.leaving:
            clock = self._host.reckoned()
            seen = await self._line.ask(slots.facts(clock=clock))
            live = {shared.queue: len(shared.hosts) for shared in seen}
            for name in without:
                share = ceil(totals[name] / max(1, live.get(name, 1)))
                await self._line.ask(slots.grant(name, totals[name], {self._host.id: share}, clock=clock))
            grants = await self._take(totals)
        return grants

    async def _take(self, totals: Mapping[str, int]) -> dict[str, int]:
        sent = monotonic()
        held = {}
        for name in totals:
            desk = self._host.dispatch.desks[name]
            # What may begin while the statement is on its way counts as well.
            held[name] = max(desk.running, 0 if desk.cap == sys.maxsize else desk.cap)
        grants = await self._line.ask(slots.take(self._host.id, held, leaving=self._host.leaving))
        self._granted = grants
        self._taken = {name: max(held[name], grant) for name, grant in grants.items()}
        for name in grants:
            self._host.dispatch.desks[name].trusted_until = sent + self._host.settings.lease
        return grants

    # -- acting ---------------------------------------------------------------------------------------------------------

    def _act(self, configs: Mapping[str, QueueConfig], grants: Mapping[str, int]) -> None:
        host = self._host
        if host.leaving:
            for name in grants:
                host.dispatch.desks[name].cap = 0
            return
        before_all = dict(self._targets), _caps(host)
        wanted = targets(host.plan.queues, configs, grants, self._targets, host.settings.max_workers)
        for name, count in wanted.items():
            if not host.supervisors.knows(name):
                continue  # newer code is just being brought in
            desk = host.dispatch.desks[name]
            config = configs.get(name)
            if config is not None:
                shared = config.total is not None
                desk.cap = count if shared else sys.maxsize
                desk.trusted_until = desk.trusted_until if shared else inf
            before = self._targets.get(name)
            if before != count:  # else whoever changed it since (a signal) keeps his way
                self._targets[name] = count
                host.supervisors.scale(name, count)
                host.dispatch.shrink(name, count)
                if before is not None:
                    host.facts.tell(
                        HostChanged(host.state, f"queue {name}: {before} -> {count} workers on this host")
                    )
        if any(self._beyond(name) for name in self._taken):
            self._wake.set()  # a grant was lowered: acknowledge it at once
        if self._granted or before_all != (self._targets, _caps(host)):
            host.claims.poke()  # there may be more room

    def _beyond(self, queue: str) -> bool:
        """Does this host still count for more than it has?"""
        desk = self._host.dispatch.desks[queue]
        return self._taken.get(queue, 0) > max(self._granted.get(queue, 0), desk.cap, desk.running)

    # -- what others tell -------------------------------------------------------------------------------------------------

    def __call__(self, fact: Fact) -> None:
        match fact:
            case WorkerDied() if fact.queue in self._taken and self._beyond(fact.queue):
                self.poke()  # one less runs beyond the grant
            case HostChanged(state="draining"):
                self.poke()  # the others may have what this host no longer needs

    def hears(self, kind: type) -> Hearing | None:
        return self._ended if kind is JobEnded else each(self)

    def _ended(self, facts: Iterator[JobEnded]) -> None:
        if not self._taken and not self._calm_at:
            return  # nothing is shared out and nothing cools down: any number of jobs may end
        for fact in facts:
            if fact.queue in self._taken and self._beyond(fact.queue):
                self.poke()
            calm_at = self._calm_at.get(fact.queue)
            if calm_at is not None and fact.verdict == Verdict.SUCCEEDED and monotonic() >= calm_at:
                self._calmed.add(fact.queue)
                self.poke()

    # -- throttles ----------------------------------------------------------------------------------------------------------

    def _note_throttles(self, configs: Mapping[str, QueueConfig]) -> None:
        now, grace = monotonic(), self._host.settings.throttle_grace
        for config in configs.values():
            until = now + config.throttled
            if (
                config.throttled > 0
                and until > self._throttled_until.get(config.name, 0.0) + ANNOUNCE_AGAIN_SECONDS
            ):
                self._throttled_until[config.name] = until
                self._host.facts.tell(QueueThrottled(config.name, config.throttled, config.throttles))
        self._calm_at = {
            config.name: now + grace - (config.cooled or 0.0)
            for config in configs.values()
            if config.throttles
        }

    async def _calm(self) -> None:
        for name in list(self._calmed):
            await self._line.ask(queues.calm(name, self._host.settings.throttle_grace))
            self._calmed.discard(name)


def _caps(host: Host) -> dict[str, int]:
    return {name: desk.cap for name, desk in host.dispatch.desks.items()}


def split_duty(asker: Asker, every: float, reckoned: Callable[[], datetime | None]) -> Duty:
    """The leader's part: shares out each total anew when hosts come and go."""

    async def perform() -> int:
        changed = 0
        for shared in await asker.ask(slots.facts(clock=reckoned())):
            wanted = slots.split(shared.total, shared.hosts)
            changed += await asker.ask(slots.grant(shared.queue, shared.total, wanted, clock=reckoned()))
        return changed

    return Duty("split", every, perform, "share out workers that are counted over all hosts", seen=True)
