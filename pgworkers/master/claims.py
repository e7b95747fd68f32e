"""The claimer: keeps the desks supplied, on the claim connection, while earlier jobs run and finish.

It claims when it is told of work or of room for it, and by itself as `Wakes` says; where it looks, `Positions` says.

A new job wakes one host. If that host has no room, it passes the notification on to another one. If it does not come,
because it was killed or stopped, the poll of another host finds the job, and that host lets all be notified for a while.
(docs/adr/2911)
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf

import psycopg

from pgworkers.clock import monotonic
from pgworkers.events import Claimed as ClaimedFact
from pgworkers.events import ClaimTooSlow, JobEnded, JobsParked
from pgworkers.facts import Facts
from pgworkers.job.asleep import asleep, notify_all, pass_on
from pgworkers.job.claim import Claimed, Range, Wants, claim
from pgworkers.job.notifications import HINT_PAUSE_SECONDS
from pgworkers.job.park import park
from pgworkers.job.set_aside import may_be_data, set_aside, set_loud_aside
from pgworkers.job.state import State, Verdict
from pgworkers.master.bell import Bell
from pgworkers.master.crowds import SLOW_CLAIM, Crowds
from pgworkers.master.dispatch import Dispatch
from pgworkers.master.line import Line, LineDown, timed_out
from pgworkers.master.positions import OUT_OF_TURN, Positions
from pgworkers.master.wakes import Wakes
from pgworkers.postgres.statements import Query
from pgworkers.postgres.wording import NoAnswer
from pgworkers.settings import Settings

#: After so many jobs, and so many seconds, that are handed over the loop has another turn.
PIECE = 16
TURN = 0.001

#: A job that the poll finds after this long was missed by the host that was notified of it: hosts come within milliseconds.
MISSED_AFTER_SECONDS = 0.1


class _Late(psycopg.errors.QueryCanceled):
    """A claim of these queues took longer than a statement may."""

    def __init__(self, queues: tuple[str, ...], seconds: float) -> None:
        super().__init__(f"a claim of {', '.join(queues)} timed out")
        self.queues = queues
        self.seconds = seconds


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
        # Else nothing would be won: the leases have lapsed, or the database does not take the ends of what runs.
        self._may_begin = may_begin
        self._bell = Bell()
        self._wakes = Wakes()
        self._positions = Positions(settings.statement_timeout)
        self._crowds = Crowds(settings.statement_timeout)
        self._parked: Counter[tuple[str, str]] = Counter()  # jobs of each crowded queue and task
        self._in_turn = OUT_OF_TURN - 1  # claims since the last one out of turn
        self._handing = 0.0  # since when jobs are handed over
        self._chosen_for: dict[str, float] = {}  # queue -> jobs this host was chosen for; inf: any number
        self._may_pass_on_at = 0.0
        self._notifies_all_until = 0.0
        self._hungry = False  # the last claim did not bring all that there was room for
        self._asked: tuple[list[Wants], list[str], bool] | None = None
        self._at_hand: Query[list[Claimed]]  # that asks for it

    def poke(self) -> None:
        """There may be work in any queue that was known to have none."""
        self._wakes.stir()
        self._bell.ring()

    def room(self, queue: str) -> None:
        """There may be room for more jobs of this queue."""
        if not self._wakes.dry(queue, monotonic()):
            self._bell.ring()

    def heard(self, queue: str) -> None:
        """A notification: there may be jobs in this queue; without a name, in any. Others may have come with it.

        Of queues that this host does not serve nothing is kept. Of a queue that is awake a notification changes nothing: the
        host looks at it every few milliseconds as long as it has room.
        """
        now = monotonic()
        for name in [queue] if queue else list(self._dispatch.desks):
            if name in self._dispatch.desks:
                looks_anyway = self._hungry and self._wakes.awake(name)
                self._wakes.heard(name, now)
                if not looks_anyway:
                    self._bell.touch()

    def chosen(self, queue: str, *, is_one_job: bool) -> None:
        """A notification that is for this host only: it claims the job, or passes the notification on."""
        if queue in self._dispatch.desks:
            jobs = 1 if is_one_job else inf
            self._chosen_for[queue] = self._chosen_for.get(queue, 0) + jobs
            self.heard(queue)

    def all_heard(self) -> None:
        """Jobs wait for what follows: it is done at once."""
        self._bell.ring_now()

    def forgotten(self) -> None:
        """The database may have forgotten that this host wants to be told, and notifications may have been missed."""
        self._wakes.forget()
        self._bell.ring()

    async def run(self) -> None:
        while True:
            await self._bell.rung(self._pause)
            try:
                await self._tell()
                await self._park()
                if wants := self._wants():
                    if self._crowds.waiting(monotonic()):
                        self._bell.ring()
                    await self._claim(wants)
                else:
                    self._hungry = False
                    if self._crowds.is_parking(monotonic()) and self._may_begin():
                        self._bell.ring()
                    await asyncio.sleep(0)  # nothing here may keep the other tasks of the host from running
                await self._pass_on()
            except LineDown as down:
                if not await self._set_aside(down.__cause__):
                    await self._line.rest()
                self._bell.ring()
            except psycopg.Error as error:
                if not await self._set_aside(error):
                    await asyncio.sleep(self._settings.poll)
                self._bell.ring()

    async def _set_aside(self, error: BaseException | None) -> bool:
        """End the jobs whose data made a claim fail. False: there were none, or it had another reason."""
        if isinstance(error, _Late) and await self._make_way(error):
            return True
        too_late = isinstance(error, (psycopg.errors.QueryCanceled, NoAnswer))
        if not isinstance(error, psycopg.Error) or not (too_late or may_be_data(error.sqlstate)):
            return False
        queues = [want.queue for want in self._dispatch.wants()]
        try:
            found = await self._line.ask(set_loud_aside(queues, self._dispatch.tasks), timeouts=True)
            if not found and not too_late:  # a timeout is no evidence of bad data
                found = await self._line.ask(set_aside(queues, self._dispatch.tasks))
        except (LineDown, psycopg.Error):
            return False
        for job in found:
            self._facts.tell(
                JobEnded(
                    job=job.id,
                    lease=job.lease,
                    queue=job.queue,
                    task=job.task,
                    args="{}",
                    attempt=job.attempt,
                    max_attempts=job.max_attempts,
                    verdict=Verdict.UNFIT.value,
                    state=State.DEAD,
                    duration=0.0,
                    cpu=0.0,
                    peak_rss=0,
                    error=job.reason,
                    again_in=None,
                )
            )
        return bool(found)

    async def _make_way(self, late: _Late) -> bool:
        """A claim timed out: what it should pass by is parked. False: there is nothing to park, or it failed, too."""
        now = monotonic()
        self._facts.tell(ClaimTooSlow(late.queues, late.seconds))
        self._crowds.close(late.queues)
        if not self._crowds.slow(late.queues, now):
            self._crowds.apart(late.queues, late.seconds, now)
            return False
        try:
            return any([await self._park() for _ in late.queues])
        except (LineDown, psycopg.Error):
            return False

    async def _park(self) -> int:
        """One portion of one crowded queue; how many jobs it moved."""
        began = monotonic()
        queue = self._crowds.next(began)
        if queue is None:
            return 0
        try:
            portion = park(queue, self._dispatch.tasks, self._crowds.portion(queue))
            found = await self._line.ask(portion, timeouts=True)
        except psycopg.Error as error:
            if not timed_out(error):
                raise
            now = monotonic()
            self._facts.tell(ClaimTooSlow((queue,), now - began))
            self._crowds.not_parked(queue, now - began, now)
            return 0
        for task, jobs in found.tasks.items():
            if not self._parked[queue, task]:
                self._facts.tell(JobsParked(queue, task, jobs, done=False))
            self._parked[queue, task] += jobs
        jobs = sum(found.tasks.values())
        now = monotonic()
        if not self._crowds.parked(queue, jobs, found.place, found.newest, now, now - began):
            for key in [key for key in self._parked if key[0] == queue]:
                self._facts.tell(JobsParked(*key, self._parked.pop(key), done=True))
        return jobs

    def _hand_first(self, claimed: list[Claimed]) -> None:
        """The first piece, before anything else is done with the answer."""
        self._handing = monotonic()
        if claimed:
            self._dispatch.take(claimed[:PIECE])

    async def _hand_over(self, claimed: list[Claimed]) -> None:
        """Each piece wakes workers who take the core from us, so whoever else waits for the loop has his turn in between."""
        began = self._handing
        for start in range(PIECE, len(claimed), PIECE):
            if monotonic() - began > TURN:
                await asyncio.sleep(0)
                began = monotonic()
            self._dispatch.take(claimed[start : start + PIECE])

    def _pause(self) -> float:
        now = monotonic()
        self._wakes.hosts = 1 + self._dispatch.sharing_hosts
        pause = self._wakes.pause(now, self._settings.poll, self._hungry)
        return min(pause, max(0.0, self._may_pass_on_at - now)) if self._chosen_for else pause

    def _wants(self) -> list[Wants]:
        """What there is room for, of queues that may have something."""
        if not self._may_begin():
            return []
        now, dry = monotonic(), self._wakes.dry
        wants = [want for want in self._dispatch.wants() if not dry(want.queue, now)]
        return self._crowds.allowed(wants, now)

    async def _tell(self) -> None:
        """Before the claim, so that whatever is enqueued unheard until then is found by it."""
        wanted = self._wakes.to_tell(self._dispatch.desks)
        if wanted is not None and self._dispatch.claiming:
            unattended = await self._line.ask(asleep(self._host, wanted))
            self._wakes.told(wanted, monotonic(), unattended)

    async def _pass_on(self) -> None:
        """Let another host be notified of jobs that this one was chosen for and cannot claim now.

        However many hints come, this causes no more than one statement per `HINT_PAUSE_SECONDS`.
        """
        if not self._chosen_for:
            return
        has_room = {want.queue for want in self._dispatch.wants()} if self._may_begin() else set()
        full = self._chosen_for.keys() - (has_room - self._crowds.closed(monotonic()))
        if not full:
            self._bell.ring()
        elif self._dispatch.sharing_hosts == 0:
            self._chosen_for.clear()
        elif monotonic() >= self._may_pass_on_at:
            for queue in full:
                del self._chosen_for[queue]
            await self._line.ask(pass_on(self._host, full, self._dispatch.tasks))
            self._wakes.full(full)
            self._may_pass_on_at = monotonic() + HINT_PAUSE_SECONDS

    async def _claim(self, wants: list[Wants]) -> None:
        """Everything that can wait is done when the jobs are handed over."""
        began = monotonic()
        positions = self._positions
        aged = self._aged(began)
        oldest = aged is not None
        head, gates = not oldest and positions.head_is_due(began), positions.gates_are_due(began)
        room = {want.queue: want.count for want in wants}
        places = positions.places(room, head=head, aged=oldest) | self._crowds.ranges(room)
        self._wakes.sent()
        chosen_for = {queue: self._chosen_for.pop(queue) for queue in room if queue in self._chosen_for}
        try:
            query = self._query(wants, aged, places, gates)
            claimed = await self._line.ask(query, timeouts=True, then=self._hand_first)
        except psycopg.Error as error:
            if timed_out(error):
                raise _Late(tuple(room), monotonic() - began) from error
            raise
        now = monotonic()
        if now - began > SLOW_CLAIM:
            self._crowds.slow(room, now)
        if claimed:
            await self._hand_over(claimed)
            self._facts.tell(ClaimedFact(len(claimed)))
        # The oldest first is no whole look: it leaves jobs whose task has become limited to the ordinary one.
        whole = (head or oldest) and positions.stepped(claimed, room, now, aged=oldest) and head
        positions.found(claimed)
        limited = sum(job.limited for job in claimed)
        positions.took(
            now - began, now, head=head, gates=gates, jobs=len(claimed), limited=limited, aged=oldest
        )
        found = Counter([job.queue for job in claimed])
        again = min(now + self._settings.poll, positions.again_at(whole=whole, gates=gates))
        self._wakes.looked(room, found, now, again)
        if self._wakes.to_tell(self._dispatch.desks) is not None:
            self._bell.ring()  # it falls asleep, and until the database knows that nobody looks
        if any(found[queue] >= count for queue, count in room.items()):
            self._bell.ring()  # there may be more: the next claim finds out while these run
        self._hungry = len(claimed) < sum(room.values())
        self._in_turn = 0 if oldest else self._in_turn + 1
        for queue, jobs in chosen_for.items():
            if room[queue] <= found[queue] < jobs:  # there may be more than there was room for
                self._chosen_for[queue] = self._chosen_for.get(queue, 0) + jobs - found[queue]
        await self._report_missed(claimed, now)

    async def _report_missed(self, claimed: list[Claimed], now: float) -> None:
        """Let every sleeping host be notified for a while, if the host that was notified of these jobs did not come."""
        missed = {
            job.queue
            for job in claimed
            if job.waited > MISSED_AFTER_SECONDS and self._wakes.polled(job.queue)
        }
        if missed and self._dispatch.sharing_hosts > 0 and now >= self._notifies_all_until:
            self._notifies_all_until = now + self._settings.lease / 3
            await self._line.ask(notify_all(self._host, missed))

    def _query(
        self,
        wants: list[Wants],
        aged: float | None,
        places: dict[str, Sequence[Range]],
        gates: bool,
    ) -> Query[list[Claimed]]:
        """An idle host asks the same whenever it is woken: it has the question at hand."""
        tasks = list(self._dispatch.tasks)
        if aged is not None or places:
            return claim(self._host, wants, tasks, aged, places=places, gates=gates)
        asked = wants, tasks, gates
        if asked != self._asked:
            self._asked, self._at_hand = asked, claim(self._host, wants, tasks, gates=gates)
        return self._at_hand

    def _aged(self, now: float) -> float | None:
        """Low priority never starves: now and then the oldest go first."""
        due = (
            self._settings.ageing > 0
            and self._in_turn >= OUT_OF_TURN - 1
            and self._positions.aged_is_due(now)
        )
        return self._settings.ageing if due else None
