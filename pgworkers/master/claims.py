"""The claimer: keeps the desks supplied, on the claim connection, while earlier jobs run and finish.

It claims when it is told of work or of room for it, and by itself as `Wakes` says; where it looks, `Positions` says.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import psycopg

from pgworkers.clock import monotonic
from pgworkers.events import Claimed as ClaimedFact
from pgworkers.facts import Facts
from pgworkers.job.asleep import asleep
from pgworkers.job.claim import Claimed, Wants, claim
from pgworkers.master.dispatch import Dispatch
from pgworkers.master.line import Line, LineDown
from pgworkers.master.positions import OUT_OF_TURN, Positions
from pgworkers.master.wakes import Wakes
from pgworkers.settings import Settings

#: After so many jobs, and so many seconds, that are handed over the loop has another turn.
PIECE = 16
TURN = 0.001


class Claims:
    def __init__(
        self,
        host: str,
        line: Line,
        dispatch: Dispatch,
        facts: Facts,
        settings: Settings,
        may_begin: Callable[[], bool],
    ) -> None:
        self._host = host
        self._line = line
        self._dispatch = dispatch
        self._facts = facts
        self._settings = settings
        self._may_begin = may_begin  # else nobody here would begin what we claim: the leases have lapsed
        self._wake = asyncio.Event()
        self._wakes = Wakes()
        self._positions = Positions(settings.statement_timeout)
        self._in_turn = OUT_OF_TURN - 1  # claims since the last one out of turn
        self._hungry = False  # the last claim did not bring all that there was room for
        self._more = False  # a queue gave all that there was room for: it may have more
        self.polls = 0

    def poke(self) -> None:
        """There may be work in any queue that was known to have none."""
        self._wakes.stir()
        self._wake.set()

    def room(self, queue: str) -> None:
        """There may be room for more jobs of this queue."""
        if not self._wakes.dry(queue, monotonic()):
            self._wake.set()

    def heard(self, queue: str) -> None:
        """A notification: there are jobs in this queue; without a name, in any."""
        if queue:
            self._wakes.heard(queue, monotonic())
        else:
            self._wakes.stir()
        self._wake.set()

    def forgotten(self) -> None:
        """The database may have forgotten that this host wants to be told, and notifications may have been missed."""
        self._wakes.forget()
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._woken()
            try:
                await self._tell()
                wants = self._wants()
                if not wants:
                    self._hungry = False
                    continue
                self.polls += 1
                claimed = await self._claim(wants)
            except LineDown:
                await self._line.rest()
                self._wake.set()
                continue
            except psycopg.Error:
                await asyncio.sleep(self._settings.poll)
                continue
            if claimed:
                self._facts.tell(ClaimedFact(len(claimed)))
                await self._hand_over(claimed)
                if self._more:
                    self._wake.set()  # the next claim finds out while these run

    async def _woken(self) -> None:
        """Until somebody says so, or it is time by itself."""
        if not self._wake.is_set():
            timer = asyncio.get_running_loop().call_later(self._pause(), self._wake.set)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()
        self._wake.clear()

    async def _hand_over(self, claimed: list[Claimed]) -> None:
        """Each piece wakes workers who take the core from us, so whoever else waits for the loop has his turn in between."""
        began = monotonic()
        for start in range(0, len(claimed), PIECE):
            if monotonic() - began > TURN:
                await asyncio.sleep(0)
                began = monotonic()
            self._dispatch.take(claimed[start : start + PIECE])

    def _pause(self) -> float:
        return self._wakes.pause(monotonic(), self._settings.poll, self._hungry)

    def _wants(self) -> list[Wants]:
        """What there is room for, of queues that may have something."""
        if not self._may_begin():
            return []
        now, dry = monotonic(), self._wakes.dry
        return [want for want in self._dispatch.wants() if not dry(want.queue, now)]

    async def _tell(self) -> None:
        """Before the claim, so that whatever is enqueued unheard until then is found by it."""
        wanted = self._wakes.to_tell(self._dispatch.desks)
        if wanted is not None and self._dispatch.claiming:
            await self._line.ask(asleep(self._host, wanted))
            self._wakes.told(wanted, monotonic())

    async def _claim(self, wants: list[Wants]) -> list[Claimed]:
        began = monotonic()
        positions = self._positions
        head, gates = positions.head_is_due(began), positions.gates_are_due(began)
        aged = self._aged(began) if head else None
        room = {want.queue: want.count for want in wants}
        places = None if aged is not None else positions.places(room, head=head)
        tasks = list(self._dispatch.tasks)
        self._wakes.sent()
        claimed = await self._line.ask(claim(self._host, wants, tasks, aged, places=places, gates=gates))
        now = monotonic()
        whole = head and (aged is not None or positions.stepped(claimed, room, now))
        positions.found(claimed)
        positions.took(now - began, now, head=head, gates=gates, jobs=len(claimed), aged=aged is not None)
        found = Counter(job.queue for job in claimed)
        again = now + self._settings.poll if whole and gates else positions.whole_at()
        self._wakes.looked(room, found, now, again)
        if self._wakes.to_tell(self._dispatch.desks) is not None:
            self._wake.set()  # it falls asleep, and until the database knows that nobody looks
        self._more = any(found[queue] >= count for queue, count in room.items())
        self._hungry = len(claimed) < sum(room.values())
        self._in_turn = 0 if aged is not None else self._in_turn + 1
        return claimed

    def _aged(self, now: float) -> float | None:
        """Low priority never starves: now and then the oldest go first."""
        due = (
            self._settings.ageing > 0
            and self._in_turn >= OUT_OF_TURN - 1
            and self._positions.aged_is_due(now)
        )
        return self._settings.ageing if due else None
