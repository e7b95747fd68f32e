"""The ends of jobs on their way into the database, in batches, on the finish connection.

Whatever waits here is kept through any outage: it is sent again until the database answers. Sending twice is
harmless, because each write names its lease. What cannot be written now waits beside (`aside`) and holds up no other;
`writing` is one batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from math import inf

import psycopg
from msgspec.structs import replace

from pgworkers.clock import monotonic
from pgworkers.events import JobsReleased
from pgworkers.facts import Facts
from pgworkers.job.backend import end_backends
from pgworkers.job.claim import Fence
from pgworkers.job.finish import End
from pgworkers.job.progress import Saved, save
from pgworkers.job.queue import Cooling, throttle
from pgworkers.job.release import release
from pgworkers.job.retry import Again
from pgworkers.master.aside import AGAIN, Aside, waited_in_vain
from pgworkers.master.held import Held
from pgworkers.master.line import Line, LineDown
from pgworkers.master.writing import Pending, Writing

#: After a batch of so many ends the next one waits for so many seconds, unless it is full.
MANY = 16
GATHER = 0.004
#: Of jobs that have a process each: a batch begins no sooner than so many seconds after the one before it.
STEP = 0.02
#: So many characters of jobs that begin with an end go into one batch, and the end that reaches it: thousands of rows.
CHILDREN = 256 << 10


class Ends:
    def __init__(
        self,
        host: str,
        line: Line,
        facts: Facts,
        batch: int,
        cooling: Cooling | None = None,
        *,
        log_args: bool = True,
    ) -> None:
        self._host = host
        self._line = line
        self._facts = facts
        self._batch = batch
        self._cooling = cooling
        self._pending: deque[Pending] = deque()
        self._sending: list[Pending] = []
        self._aside: Aside[Held, End | Again] = Aside(line)
        self._writing = Writing(host, line, facts, self._pending.appendleft, log_args=log_args)
        self._releases: list[Fence] = []
        self._saves: dict[Fence, Saved] = {}
        self._throttles: dict[str, float | None] = {}
        self._silences: list[tuple[int, int]] = []
        self._together = 0  # in the last batch
        self._began = -inf  # when it was sent
        self._wake = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        #: Called when ends of jobs behind a limit were written: what waited for their places may begin.
        self.on_written: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        aside = len(self._aside.waiting) + len(self._writing.refused)
        return len(self._pending) + len(self._sending) + aside + len(self._releases)

    def fences(self) -> list[Fence]:
        """Whose ends are on their way."""
        ends = (*self._pending, *self._sending, *self._aside.waiting)
        return [held.fence for held, _ in ends] + self._writing.refused.fences() + self._releases

    def put(self, held: Held, end: End | Again) -> None:
        # What the handler last said travels with its end; an older beat must not overwrite it.
        saved = self._saves.pop(held.fence, None) if self._saves else None
        if saved is not None:
            end = replace(
                end, progress=end.progress or saved.progress, checkpoint=end.checkpoint or saved.checkpoint
            )
        self._pending.append((held, end))
        self._poke()

    def put_all(self, ends: Sequence[Pending]) -> None:
        """Ends that came together, in their order."""
        if self._saves:
            for held, end in ends:
                self.put(held, end)
        elif ends:
            self._pending.extend(ends)
            self._poke()

    def release(self, fences: list[Fence], why: str) -> None:
        self._releases += fences
        self._facts.tell(JobsReleased(len(fences), why))
        self._poke()

    def silence(self, keys: list[tuple[int, int]]) -> None:
        """The workers of these executions are dead: end the sessions that they opened, before anything is written."""
        self._silences += keys
        self._poke()

    def throttle(self, queue: str, after: float | None) -> None:
        """The whole queue cools down, on every host; for `after` seconds, if the handler said so."""
        said = [seconds for seconds in (after, self._throttles.get(queue)) if seconds is not None]
        self._throttles[queue] = max(said, default=None)
        self._poke()

    def save(self, saved: Saved) -> None:
        fence = Fence(saved.id, saved.lease, saved.claimed_at)
        old = self._saves.get(fence)
        if old is not None:
            saved = Saved(*fence, saved.progress or old.progress, saved.checkpoint or old.checkpoint)
        self._saves[fence] = saved
        self._poke()

    async def run(self) -> None:
        """Send for as long as the host lives."""
        while True:
            await self._something()
            while self._has_something():
                await self._gather()
                try:
                    await self._send()
                    await asyncio.sleep(
                        0
                    )  # the answer was heard at once: who reported in the same turn goes with the next
                except LineDown:
                    await self._line.rest()
            if not self._aside.waiting and not self._writing.refused:
                self.idle.set()

    async def _something(self) -> None:
        """Wait until there is something to send, or to look at again."""
        try:
            async with asyncio.timeout(AGAIN if self._aside.waiting or self._writing.refused else None):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()
        self._pending.extend(self._writing.refused.back())
        try:
            self._pending.extend(await self._aside.back())
        except (LineDown, psycopg.Error):
            pass  # the next look finds them

    async def _gather(self) -> None:
        """When many ends came together, more are on their way: a few milliseconds later half as many statements do."""
        if self._together >= MANY and not self._sending and len(self._pending) < self._batch:
            self._together = 0  # once: whoever is the last waits for nobody
            await asyncio.sleep(GATHER)
        elif self._pending and all(held.patient for held, _ in self._pending):
            rest = self._began + STEP - monotonic()
            if rest > 0:
                await asyncio.sleep(rest)
        self._began = monotonic()

    def _has_something(self) -> bool:
        waiting = self._pending or self._sending or self._releases or self._saves
        return bool(waiting or self._throttles or self._silences)

    def _poke(self) -> None:
        self.idle.clear()
        self._wake.set()

    async def _send(self) -> None:
        if self._silences:
            silences = self._silences[:]
            await self._line.ask(end_backends(silences))
            del self._silences[: len(silences)]
        while self._throttles:
            queue, after = next(iter(self._throttles.items()))
            await self._line.ask(throttle(queue, after, self._cooling))
            del self._throttles[queue]
        if not self._sending:
            room = CHILDREN
            pending, sending = self._pending, self._sending
            while pending and len(sending) < self._batch and room > 0:
                sending.append(pending.popleft())
                end = sending[-1][1]
                if isinstance(end, End) and end.children is not None:
                    room -= len(end.children)
            self._together = len(sending)
        if self._sending:
            try:
                await self._writing.write(self._sending)
            except LineDown as down:
                if not waited_in_vain(down):
                    raise
                self._sending = await self._aside.sort(self._sending)
                return
            limited = any(held.claimed.limited for held, _ in self._sending)
            self._sending = []
            if limited:
                self.on_written()
        if self._releases:
            releases = self._releases[: self._batch]
            await self._line.ask(release(self._host, releases))
            del self._releases[: len(releases)]
        if self._saves:
            saves, self._saves = self._saves, {}
            try:
                await self._line.ask(save(self._host, list(saves.values())), refusable=True)
            except LineDown:
                self._saves = saves | self._saves
                raise
            except psycopg.Error:
                pass  # progress that cannot be stored is not worth a job
