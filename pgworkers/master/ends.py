"""The ends of jobs on their way into the database, in batches, on the finish connection.

Whatever waits here is kept through any outage: it is sent again until the database answers. Sending twice is
harmless, because each write names its lease. What cannot be written now waits beside (`aside`) and holds up no other;
`writing` is one batch, `batch_size` how large it is: a batch that took too long, or was refused, is halved.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from math import inf

import psycopg
from msgspec.structs import replace

from pgworkers.clock import monotonic
from pgworkers.events import DatabaseSlow, JobsReleased
from pgworkers.facts import Facts
from pgworkers.job.backend import end_backends
from pgworkers.job.claim import Fence
from pgworkers.job.finish import End
from pgworkers.job.progress import Saved, save
from pgworkers.job.queue import Cooling, throttle
from pgworkers.job.release import release
from pgworkers.job.retry import Again
from pgworkers.master.aside import LOCKED_MOST
from pgworkers.master.batch_size import BatchSize
from pgworkers.master.held import Held
from pgworkers.master.line import Line, LineDown, timed_out
from pgworkers.master.writing import Pending, Writing
from pgworkers.postgres.wording import NoAnswer

#: After a batch of so many ends the next one waits for so many seconds, unless it is full.
MANY = 16
GATHER = 0.004
#: Of jobs that have a process each: a batch begins no sooner than so many seconds after the one before it.
STEP = 0.02
#: No jobs are claimed while more batches than these wait or are set aside; or while more than one waits, and a write takes
#: this long.
MAX_BATCHES_PENDING = 2
SLOW_WRITE_SECONDS = 0.25
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
        self._size = BatchSize(batch, line.time_limit)
        self._cooling = cooling
        self._pending: deque[Pending] = deque()
        self._sending: list[Pending] = []
        self._writing = Writing(host, line, facts, self._pending.appendleft, log_args=log_args)
        self._releases: list[Fence] = []
        self._locked: list[
            Fence
        ] = []  # releases that the database did not take, because of a lock or a refusal
        self._locked_due = 0.0  # when they are sent again
        self._saves: dict[Fence, Saved] = {}
        self._throttles: dict[str, float | None] = {}
        self._silences: list[tuple[int, int]] = []
        self._together = 0  # in the last batch
        self._holds_claims = False  # too many ends wait
        self._began = -inf  # when it was sent
        self._wake = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        #: Called when ends of jobs behind a limit were written, so that what waited for their places may begin; and when
        #: jobs may be claimed again.
        self.on_written: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        ends = len(self._pending) + len(self._sending) + len(self._writing.aside)
        return ends + len(self._releases) + len(self._locked)

    @property
    def is_writing(self) -> bool:
        """True while ends wait for nothing but their turn, and the database answers."""
        return self._line.up and bool(self._pending or self._sending)

    def may_claim(self) -> bool:
        """False while jobs end faster than the database takes their ends; `on_written` says when that has changed.

        What has run and is not written runs again if this host is lost. A database that keeps up is allowed some batches:
        ends come in bursts. What was set aside counts, too, but by the full size of a batch: a few ends that are refused
        make batches small, and nothing but other ends makes them large again.
        """
        is_slow = self._size.is_slow or (self._sending and monotonic() - self._began > SLOW_WRITE_SECONDS)
        most = self._size.now if is_slow else MAX_BATCHES_PENDING * self._size.now
        unwritten = len(self._pending) + len(self._writing.aside)
        self._holds_claims = len(self._pending) > most or unwritten > MAX_BATCHES_PENDING * self._size.most
        return not self._holds_claims

    def fences(self) -> list[Fence]:
        """Whose ends are on their way."""
        ends = (*self._pending, *self._sending)
        return [held.fence for held, _ in ends] + self._writing.aside.fences() + self._releases + self._locked

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
                    # The answer was handled at once: reports of the same turn go with the next batch.
                    await asyncio.sleep(0)
                except LineDown:
                    await self._line.rest()
                self._take_back()
            if not self._writing.aside and not self._locked:
                self.idle.set()

    async def _something(self) -> None:
        """Wait until there is something to send, or to look at again."""
        due = self._writing.aside.due_in()
        if self._locked:
            locked = max(0.0, self._locked_due - monotonic())
            due = min(locked, due) if due is not None else locked
        try:
            async with asyncio.timeout(due):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()
        self._take_back()

    def _take_back(self) -> None:
        """Send what was set aside and is due with the next batch, also while a busy host has always something to send."""
        if self._writing.aside:
            self._pending.extend(self._writing.aside.back())
        if self._locked and monotonic() >= self._locked_due:
            self._releases, self._locked = self._releases + self._locked, []

    async def _gather(self) -> None:
        """When many ends came together, more are on their way: a few milliseconds later half as many statements do."""
        if self._together >= MANY and not self._sending and len(self._pending) < self._size.now:
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
            self._choose()
        if self._sending:
            await self._write()
        if self._releases:
            await self._release()
        if self._saves:
            await self._save()

    def _choose(self) -> None:
        """The next batch."""
        room = CHILDREN
        pending, sending = self._pending, self._sending
        while pending and len(sending) < self._size.now and room > 0:
            sending.append(pending.popleft())
            end = sending[-1][1]
            if isinstance(end, End) and end.children is not None:
                room -= len(end.children)
        self._together = len(sending)

    async def _write(self) -> None:
        batch, began = self._sending, monotonic()
        try:
            await self._writing.write(batch)
        except LineDown as down:
            if isinstance(down.__cause__, NoAnswer):  # slow, or cut off: a smaller one is not worse
                self._halve(batch, slow=False)
            raise
        except psycopg.Error as error:
            await self._not_written(batch, error)
            return
        self._sending = []
        self._size.written(len(batch), monotonic() - began)
        self._tell_claimer(batch)

    async def _not_written(self, batch: list[Pending], error: psycopg.Error) -> None:
        """What is refused or too slow is halved, until one end stands alone."""
        if len(batch) > 1:
            self._halve(batch, slow=timed_out(error))
            return
        await self._writing.write_alone(*batch[0], error)
        self._sending = []
        self._tell_claimer(batch)

    def _tell_claimer(self, batch: list[Pending]) -> None:
        limited = any(held.claimed.limited for held, _ in batch)
        if limited or (self._holds_claims and self.may_claim()):
            self.on_written()

    def _halve(self, batch: list[Pending], *, slow: bool) -> None:
        self._pending.extendleft(reversed(batch))
        self._sending = []
        if self._size.failed(len(batch), slow=slow):
            self._facts.tell(DatabaseSlow(len(batch), self._line.time_limit))

    async def _release(self) -> None:
        """Give jobs back. What is refused or too slow is halved, until one stands alone and is sent again later."""
        releases = self._releases[: self._size.now]
        try:
            locked = (await self._line.ask(release(self._host, releases), refusable=True)).locked
        except psycopg.Error as error:
            self._size.failed(len(releases), slow=timed_out(error))
            if len(releases) > 1:
                return
            locked = releases
        del self._releases[: len(releases)]
        if locked:
            self._locked += locked
            self._locked_due = monotonic() + LOCKED_MOST

    async def _save(self) -> None:
        saves = dict(islice(self._saves.items(), self._size.now))
        for fence in saves:
            del self._saves[fence]
        try:
            await self._line.ask(save(self._host, list(saves.values())), refusable=True)
        except LineDown:
            self._saves = saves | self._saves
            raise
        except psycopg.Error as error:
            if timed_out(error) and len(saves) > 1:
                self._size.failed(len(saves), slow=True)
                self._saves = saves | self._saves
            # else: progress that cannot be stored is not worth a job
