"""What must be done once for the whole cluster: the leader's duties.

Each skips what others have locked, and runs on the leading session. Its statements touch a bounded number of rows. It loops
until nothing is left or until its slice of time is over; then the other duties come in between, and it goes on where it
stopped. A duty that fails is told and counted, and never stops the others. `perform_whole` runs one by hand.

Most have nothing to do most of the time. One look (job/look) says for which of them there is something, and when; only the
others have a period of their own. Who schedules something for the next seconds notifies `due:`; the leader looks at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from math import inf
from typing import Any

import psycopg

from pgworkers.clock import monotonic
from pgworkers.errors import NotFound
from pgworkers.events import DutyDone, DutyFailed, Purged
from pgworkers.facts import Facts
from pgworkers.flow import batch
from pgworkers.job import archive, depth, host, idempotency, limit_mark, link, operation, promote, request
from pgworkers.job.look import look
from pgworkers.job.walk import Step
from pgworkers.master import ticks
from pgworkers.master.leadership import Leadership
from pgworkers.master.line import Asker, LineDown
from pgworkers.master.rescuing import rescue_all
from pgworkers.observe import statistics
from pgworkers.postgres.statements import Query
from pgworkers.schedule import fire
from pgworkers.settings import Settings
from pgworkers.sightings import QueuesSeen

BATCH = 1000
DAYS_AHEAD = 3
#: Seconds of one performance of a duty. With more to do it rests as long as it worked, so that the others come in between.
SLICE_SECONDS = 1.0
#: How many open batches one statement looks at; it locks those that it completes until its end.
SWEEP_BATCHES = 200
#: How many rows of a partition one statement reads to find those that outlive it.
KEEP_PORTION_ROWS = 5000
#: Seconds until a partition that could not be locked is tried again.
PARTITION_RETRY_SECONDS = 60.0
#: Seconds; the least pause between two looks for what is due.
SOONEST = 0.02
#: Seconds; a schedule that is due and cannot fire (another session holds its row) is not tried more often.
BETWEEN_TICKS = 0.1
#: Where nothing is scheduled, expires or waits for its batch, a look is so many times rarer: what comes is notified.
NOTHING = 2
#: What only looks rests at least this many times as long as it took.
SHARE = 50
#: Seconds; but not longer, for it may have been slow because the database was away.
STALE = 60.0
#: Seconds; a count of the depth that is not whole by then is told as it is: at least so many.
WHOLE = 30.0


@dataclass(slots=True)
class Duty:
    name: str
    every: float
    perform: Callable[[], Awaitable[int]]
    doc: str
    at_once: bool = False  # on becoming leader; others start a full period later
    only_looks: bool = False  # changes nothing, so it rests longer after a slow look
    seen: bool = False  # performed when a look says so, and then not more often than `every`
    due: float = 0.0
    done: float = -inf
    unfinished: bool = False  # its slice of time was over before its work was


class Duties:
    def __init__(
        self,
        host_id: str,
        asker: Asker,
        facts: Facts,
        settings: Settings,
        may_rescue: Callable[[], bool],
        reckoned: Callable[[], datetime | None],
    ) -> None:
        self._host = host_id
        self._asker = asker
        self._facts = facts
        self._settings = settings
        self._may_rescue = may_rescue
        self._reckoned = reckoned  # the database's time, as this host reckons it
        every = settings
        self.all = {
            duty.name: duty
            for duty in (
                Duty("look", every.promote, self._look, "find out what is due", True),
                Duty("promote", SOONEST, self._promote, "make scheduled jobs that are due ready", seen=True),
                Duty(
                    "expire", every.rescue, self._expire, "end jobs that were not started in time", seen=True
                ),
                Duty("link", SOONEST, self._link, "tie new dependent jobs to their parents", seen=True),
                Duty("rescue", every.rescue, self._rescue, "take jobs back from hosts that stopped renewing"),
                Duty("sweep", every.rescue * 6, self._sweep, "forget hosts that are long gone"),
                Duty(
                    "partitions", every.upkeep, self._partitions, "make partitions ahead, drop old ones", True
                ),
                Duty("prune", every.prune, self._prune, "delete finished jobs past their queue's retention"),
                Duty("ticks", BETWEEN_TICKS, self._ticks, "fire the schedules that are due", seen=True),
                Duty(
                    "batches",
                    every.rescue,
                    self._batches,
                    "complete batches whose jobs have all ended",
                    seen=True,
                ),
                Duty(
                    "depth", every.depth, self._depth, "count what waits in each queue, for the gauges", True
                ),
            )
        }

        self._wake = asyncio.Event()
        self._slice_end = inf
        self._places: dict[str, Any] = {}  # of walks that have not come to their end: where to go on
        self._to_drop: set[str] = set()  # partitions of which everything was moved that outlives them
        self._refused: set[str] = set()  # partitions that could not be locked
        self._tally: depth.Tally | None = None  # of the depth: the count under way
        self._counting = 0.0  # since when
        self._queues = 10  # how many it found the last time, or may find

    def add(self, duty: Duty) -> None:
        self.all[duty.name] = duty

    def heard(self) -> None:
        """A notification: something is due soon."""
        duty = self.all["look"]
        duty.due = min(duty.due, max(monotonic(), duty.done + SOONEST))
        self._wake.set()

    async def run(self, leadership: Leadership) -> None:
        """Perform what is due, for as long as this host leads; then wait to lead again."""
        while True:
            await leadership.until_leading()
            term, self._tally = leadership.since, None
            self._places.clear()
            self._to_drop.clear()
            self._refused.clear()
            for duty in self.all.values():
                duty.due = inf if duty.seen else term + (0.0 if duty.at_once else duty.every)
            while leadership.leads and leadership.since == term:
                self._wake.clear()
                for duty in self.all.values():
                    if duty.due <= monotonic() and leadership.leads:
                        duty.done = monotonic()
                        duty.due = inf if duty.seen else duty.done + duty.every
                        changed = await self.perform(duty.name)
                        if duty.unfinished:
                            duty.due = min(duty.due, self._next_slice(duty, changed))
                        elif duty.only_looks:
                            now = monotonic()
                            duty.due = max(duty.due, now + min(SHARE * (now - duty.done), STALE))
                pause = min(duty.due for duty in self.all.values()) - monotonic()
                try:
                    async with asyncio.timeout(max(0.005, pause)):
                        await self._wake.wait()
                except TimeoutError:
                    pass

    def _next_slice(self, duty: Duty, changed: int) -> float:
        """When a duty that is not finished goes on: after as long as it worked; after a longer rest if it only looked."""
        now = monotonic()
        took = max(SOONEST, now - duty.done)
        return now + (took if changed else max(took, min(SHARE * took, duty.every)))

    async def perform_whole(self, name: str) -> int:
        """One duty, now, until nothing is left. How many rows it touched."""
        total = await self.perform(name)
        while self.all[name].unfinished:
            total += await self.perform(name)
        return total

    async def perform(self, name: str) -> int:
        """One duty, now, for one slice of time. How many rows it touched."""
        duty = self.all.get(name)
        if duty is None:
            raise NotFound(f"there is no duty {name!r}; there are {', '.join(self.all)}")
        began = monotonic()
        self._slice_end, duty.unfinished = began + SLICE_SECONDS, False
        try:
            count = await duty.perform()
        except (LineDown, psycopg.Error) as error:
            duty.unfinished = False
            self._facts.tell(
                DutyFailed(name, f"{type(error).__name__}: {error}", isinstance(error, LineDown))
            )
            return 0
        self._facts.tell(DutyDone(name, count, monotonic() - began))
        return count

    def _is_over(self, duty: str) -> bool:
        """True if the slice of this duty is over. It goes on with what is left in its next slice."""
        if monotonic() < self._slice_end:
            return False
        self.all[duty].unfinished = True
        return True

    async def _until_empty(self, duty: str, query: Callable[[], Query[Any]], batch: int) -> int:
        total = 0
        while True:
            done = await self._asker.ask(query())
            count = done if isinstance(done, int) else len(done)
            total += count
            if count < batch or self._is_over(duty):
                return total

    async def _walk(self, duty: str, walk: str, step: Callable[[Any], Query[Step[Any]]]) -> tuple[int, bool]:
        """Go on with a walk where its last slice ended. How many rows were changed, and whether it came to its end."""
        total = 0
        while True:
            done = await self._asker.ask(step(self._places.get(walk)))
            total += done.count
            if done.is_blocked:
                return total, False
            if done.next is None:
                self._places.pop(walk, None)
                return total, True
            self._places[walk] = done.next
            if self._is_over(duty):
                return total, False

    async def _look(self) -> int:
        """When each of the duties that a look speaks of is performed next. Answers how many of them have something to do."""
        seen = await self._asker.ask(look())
        now = monotonic()
        for name, within in seen.items():
            if name in self.all:
                duty = self.all[name]
                duty.due = inf if within is None else max(now + within, duty.done + duty.every)
        some = sum(within is not None for within in seen.values())
        if not some:
            self.all["look"].due = now + NOTHING * self.all["look"].every
        return some

    async def _promote(self) -> int:
        total = 0
        while True:
            promoted = await self._asker.ask(promote.promote(BATCH))
            total += promoted.count
            if promoted.count < BATCH:
                if promoted.next_in is not None:
                    self.all["promote"].due = monotonic() + max(SOONEST, promoted.next_in)
                return total
            if self._is_over("promote"):
                return total

    async def _expire(self) -> int:
        return await self._until_empty("expire", lambda: promote.expire(BATCH), BATCH)

    async def _link(self) -> int:
        return await self._until_empty("link", lambda: link.link(BATCH), BATCH)

    async def _rescue(self) -> int:
        """Only a host that has itself renewed without a gap may call others lost: an outage must not be a mass rescue."""

        def may() -> bool:
            return self._may_rescue() and not self._is_over("rescue")

        rescued = await rescue_all(self._asker, self._host, self._facts, may, self._reckoned)
        if rescued:
            self.heard()  # they are scheduled now
        return rescued

    async def _sweep(self) -> int:
        if not self._may_rescue():
            return 0
        return await self._walked("sweep", "hosts", partial(host.sweep, BATCH, clock=self._reckoned()))

    async def _partitions(self) -> int:
        """Empty the default partitions, make those of the next days, and retire the old ones: each by itself."""
        total = 0
        for name in archive.DEFAULT_PARTITIONS:
            total += await self._alone("partitions", name, partial(self._empty, name), None)
        total += await self._asker.ask(archive.make_partitions(DAYS_AHEAD))
        for name in await self._asker.ask(archive.old_partitions(self._settings.retention)):
            total += await self._alone("partitions", name, partial(self._retire, name), f"partition {name}")
        return total

    async def _empty(self, name: str) -> int:
        return await self._walked("partitions", name, self._keep_rows(name))

    async def _retire(self, name: str) -> int:
        """Move what outlives this partition, then drop it. 0: not yet."""
        if name not in self._to_drop:
            _, is_whole = await self._walk("partitions", name, self._keep_rows(name))
            if is_whole:
                self._to_drop.add(name)
        dropped = await self._asker.ask(archive.drop(name)) if name in self._to_drop else None
        if dropped is not None:
            self._to_drop.discard(name)
            self._refused.discard(name)
        elif not self.all["partitions"].unfinished:
            self._refuse(name)
        return int(bool(dropped))

    def _refuse(self, name: str) -> None:
        """Try this partition again soon. Its refusal is reported once."""
        duty = self.all["partitions"]
        duty.due = min(duty.due, monotonic() + PARTITION_RETRY_SECONDS)
        if name not in self._refused:
            self._refused.add(name)
            why = f"{name} is not dropped yet: a session holds a lock on the table; it is tried again every minute"
            self._facts.tell(DutyFailed("partitions", why))

    def _keep_rows(self, name: str) -> Callable[[int | None], Query[Step[int]]]:
        return partial(archive.keep_rows, name, self._settings.retention_dead, KEEP_PORTION_ROWS)

    async def _prune(self) -> int:
        keep, dead = self._settings.retention, self._settings.retention_dead
        walks: dict[str, Callable[[Any], Query[Step[Any]]]] = {
            "ticks": partial(fire.prune, keep, BATCH),
            "finished jobs": partial(archive.prune, keep, dead, BATCH),
            "finished jobs that were kept": partial(archive.prune, keep, dead, BATCH, kept=True),
            "attempts": partial(archive.prune_attempts, keep, BATCH),
        }
        bounded: dict[str, Callable[[], Query[int]]] = {
            "operations": lambda: operation.prune(max(keep, dead), BATCH),
            "idempotency keys": lambda: idempotency.prune(BATCH),
            "marks of limits": lambda: limit_mark.prune(limit_mark.MARK_AGE_SECONDS, BATCH),
            "marks of lanes": lambda: limit_mark.prune_lanes(limit_mark.MARK_AGE_SECONDS, BATCH),
            "requests of operators": lambda: request.forget(BATCH),
            "batches": lambda: batch.prune(keep, BATCH),
            "rows of statistics": lambda: statistics.prune(statistics.KEEP, BATCH),
        }
        total = 0
        for what, step in walks.items():
            total += await self._alone("prune", what, partial(self._walked, "prune", what, step), what)
        for what, query in bounded.items():
            total += await self._alone("prune", what, partial(self._until_empty, "prune", query, BATCH), what)
        return total

    async def _walked(self, duty: str, walk: str, step: Callable[[Any], Query[Step[Any]]]) -> int:
        changed, _ = await self._walk(duty, walk, step)
        return changed

    async def _alone(
        self, duty: str, what: str, perform: Callable[[], Awaitable[int | None]], purged: str | None
    ) -> int:
        """One of several items of a duty. If it fails, that is told and the others go on. `purged`: what it deletes."""
        try:
            count = await perform()
        except (LineDown, psycopg.Error) as error:
            cause = error.__cause__ if isinstance(error, LineDown) else error
            if not (isinstance(cause, psycopg.Error) and cause.sqlstate):
                raise  # the session is lost, for the other items, too
            why = f"{what}: {type(error).__name__}: {error}"
            self._facts.tell(DutyFailed(duty, why, isinstance(error, LineDown)))
            return 0
        if count and purged is not None:
            self._facts.tell(Purged(purged, int(count)))
        return int(count or 0)

    async def _batches(self) -> int:
        return await self._walked("batches", "open batches", partial(batch.sweep, SWEEP_BATCHES))

    async def _depth(self) -> int:
        """One statement of a count; the next after a rest: the other duties come in between, and neither a long backlog nor
        a vacuum held back nor a hundred queues take a large share. Told when everything is counted, or has been for long."""
        began, duty = monotonic(), self.all["depth"]
        tally, self._tally = self._tally, None  # whatever fails begins anew
        if tally is None:
            tally, self._counting = await self._asker.ask(depth.tally(self._queues)), began
            found = len(tally.queues)
        elif more := tally.more():
            await self._asker.ask(more)
            found = 0
        now = monotonic()
        rest = (now - began) * SHARE
        if tally.more() and now < self._counting + WHOLE:
            self._tally, duty.due = tally, now + min(rest, duty.every)
        else:
            duty.due = max(duty.due, now + min(rest, STALE))
            self._queues = len(tally.queues)
            self._facts.tell(QueuesSeen(tally.queues))
            if not all(one.is_exact for one in tally.queues):
                why = (
                    "a session locks the table host, so jobs that hosts claimed ahead were counted as running"
                )
                self._facts.tell(DutyFailed("depth", why))
        return found

    async def _ticks(self) -> int:
        made = await ticks.fire(self._asker, self._facts)
        self.heard()  # each has another time now
        return made
