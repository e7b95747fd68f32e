"""Handing jobs to workers, and taking back what has not begun.

Whoever is taken back was not begun: the kernel says so, not the worker (process/tickets). It goes to the front of its
queue's buffer, and costs nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import inf

from pgworkers.clock import monotonic
from pgworkers.events import JobStarted
from pgworkers.facts import Facts
from pgworkers.job.claim import Claimed, Fence
from pgworkers.job.state import Verdict
from pgworkers.master import orders, verdict
from pgworkers.master.crew import Worker
from pgworkers.master.desk import ALONE, DEEP, PATIENCE, QueueDesk
from pgworkers.master.ends import Ends
from pgworkers.master.held import Held
from pgworkers.master.lookout import GRACE, Seen, Step, due
from pgworkers.master.pace import AHEAD, GRAIN, Pace, fits, room, worth_waking
from pgworkers.process.frames import FrameError
from pgworkers.specs import QueueSpec, TaskSpec
from pgworkers.worker.messages import Report

#: How often workers are looked at that have not reported for a while.
LOOK_EVERY = 0.005
UNKNOWN = "the task is not in this version of the app"
GIVEN_TWICE = "after a failover the number of an earlier claim was given again"
#: How many orders that were taken back are remembered: a worker's socket may hold them for as long as its job takes.
MAX_TAKEN_BACK = 4096


class Handing:
    def __init__(
        self,
        facts: Facts,
        tasks: dict[str, TaskSpec],
        queues: Mapping[str, QueueSpec],
        ends: Ends,
        want_claim: Callable[[str], None],
    ) -> None:
        self.tasks = tasks
        self.desks = {name: QueueDesk(spec) for name, spec in queues.items()}
        self.held: dict[int, Held] = {}  # every job of this host that has no end yet
        self.claiming = True
        self.alone = False  # no other host lives, as far as this one knows
        self.sharing_hosts = 0  # other hosts that serve a queue of this one, as of the last renewal
        self._taken_back: dict[
            tuple[int, int], None
        ] = {}  # orders that a worker may still have in its socket
        self._watching = False
        self._looking = False
        self._pace = Pace()
        self._facts = facts
        self._ends = ends
        self._want_claim = want_claim

    def all_workers(self) -> list[Worker]:
        return [w for desk in self.desks.values() for w in desk.workers]

    def held_fences(self) -> list[Fence]:
        return [held.fence for held in self.held.values()]

    def held_deadlines(self) -> list[float | None]:
        """Of the jobs of `held_fences`, in its order: the deadlines as they were last read."""
        return [held.claimed.deadline_epoch for held in self.held.values()]

    def take(self, claimed: Iterable[Claimed]) -> None:
        """What a claim has brought."""
        fed: dict[str, QueueDesk] = {}
        now = monotonic()
        for job in claimed:
            spec = self.tasks.get(job.task)
            if spec is None:  # the code was replaced while the claim was on its way
                self._ends.release([job.fence], UNKNOWN)
                continue
            held = Held(job, spec, now)
            if job.cancelled:
                self._end_unstarted(held, "cancel")
            elif not self.claiming:
                self._ends.release([held.fence], "the host is draining")
            else:
                desk = fed[job.queue] = self.desks[job.queue]
                desk.put(held)
                self.held[job.id] = held
        for desk in fed.values():
            self.feed(desk)
        self._watch_buffers()

    def adopt(self, tasks: dict[str, TaskSpec], queues: Mapping[str, QueueSpec]) -> None:
        """A newer version of the app: other tasks, perhaps other queues."""
        self.tasks = tasks
        for name, spec in queues.items():
            self.desks.setdefault(name, QueueDesk(spec)).spec = spec
        for desk in self.desks.values():
            strange = [held for held in desk.buffer if held.claimed.task not in tasks]
            if strange:
                desk.buffer = deque(held for held in desk.buffer if held.claimed.task in tasks)
                self._release(strange, UNKNOWN)

    # -- giving ------------------------------------------------------------------------------------------------------

    def feed(self, desk: QueueDesk) -> None:
        """Share the buffer out among the workers that can have more, the idle ones first.

        Of very short jobs, whoever is woken gets as many as that is worth, and whoever has not as many yet comes first.
        """
        buffer = desk.buffer
        if not buffer:
            return
        grain = worth_waking(self._pace.of(buffer[0].claimed.task))
        busy: list[Worker] = []
        if (grain > 1 or len(buffer) > desk.may_begin()) and desk.looks_ahead():
            busy = [worker for worker in desk.busy() if self._may_have_more(worker)]
        if grain > 1:
            for worker in busy:
                if worker.load < GRAIN:
                    self._fill(desk, worker, grain)
        able = desk.wake(-(-len(buffer) // grain)) + busy
        for number, worker in enumerate(able):
            if worker.open:
                self._fill(desk, worker, max(grain, -(-len(buffer) // (len(able) - number))))
                if worker.open and not worker.orders:
                    desk.idle.append(worker)

    def _may_have_more(self, worker: Worker) -> bool:
        if worker.state != "busy" or not worker.open or worker.retiring or worker.behind:
            return False
        late = monotonic() - worker.since > worker.orders[0].expected + GRACE
        return not late and room(worker.load, len(worker.orders))

    def _fill(self, desk: QueueDesk, worker: Worker, most: int) -> None:
        """Send at most so many orders, in one piece."""
        given: list[Held] = []
        data: list[bytes] = []
        load, count = worker.load if worker.orders else 0.0, len(worker.orders)
        deep, buffer, frame = desk.looks_ahead(), desk.buffer, orders.frame
        while buffer and len(given) < most:
            held = buffer[0]
            job = held.claimed
            held.expected = expected = self._pace.of(job.task)
            if count and not (deep and not held.spec.exclusive and fits(load, count, expected)):
                break
            buffer.popleft()
            if job.remaining is not None and held.past_deadline():
                self._end_unstarted(held, "deadline")
                continue
            try:
                data.append(frame(held))
            except (FrameError, OverflowError) as error:
                self._end_unfit(held, str(error))
                continue
            given.append(held)
            load += expected
            count += 1
        if given:
            self._give(desk, worker, given, partial(worker.give, given, b"".join(data)))

    def _give(self, desk: QueueDesk, worker: Worker, given: list[Held], how: Callable[[], bool]) -> None:
        was_free = not worker.orders
        if not how():
            desk.buffer.extendleft(reversed(given))
            return
        desk.running += len(given)
        if was_free:
            desk.occupied += 1
            worker.state = "busy"
            self._foresee(worker)
        self._look_soon()

    def _foresee(self, worker: Worker) -> None:
        """The next job is claimed just before the end of this one, if that can be foreseen."""
        expected = self._pace.foreseen(worker.orders[0].claimed.task) if len(worker.orders) == 1 else None
        worker.ends_at = inf if expected is None else worker.since + expected
        if expected is not None and not (self.alone and expected <= DEEP):  # else it is in stock
            asyncio.get_running_loop().call_later(expected - AHEAD, self._want_claim, worker.queue)

    # -- taking back -------------------------------------------------------------------------------------------------

    def reclaim(self, worker: Worker) -> None:
        """Everything that this worker has not begun goes to the front of the buffer."""
        desk = self.desks[worker.queue]
        kept = []
        for held in self._take_back(desk, worker):
            if held.wish is not None:
                self._end_wished(held)
            elif held.claimed.task not in self.tasks:
                self._release([held], UNKNOWN)
            else:
                kept.append(held)
        desk.buffer.extendleft(reversed(kept))
        if kept and not self.claiming:
            self._release_buffer(desk, "the host is draining")
        self._watch_buffers()

    def withdraw(self, held: Held) -> bool:
        """Take one job away from where it waits; the others stay where they are. False: it has begun."""
        desk, worker = self.desks[held.claimed.queue], held.worker
        if worker is None:
            desk.buffer.remove(held)
            return True
        back = self._take_back(desk, worker)
        others = [one for one in back if one is not held]
        if others:
            self._give(desk, worker, others, partial(worker.give_again, others))
        return len(others) < len(back)

    def _take_back(self, desk: QueueDesk, worker: Worker) -> list[Held]:
        back = worker.take_back()
        self._taken_back |= dict.fromkeys([held.key for held in back])
        while len(self._taken_back) > MAX_TAKEN_BACK:
            del self._taken_back[next(iter(self._taken_back))]
        desk.running -= len(back)
        if back and not worker.orders:
            desk.occupied -= 1
        return back

    def _watch_buffers(self) -> None:
        if not self._watching and any(desk.buffer for desk in self.desks.values()):
            self._watching = True
            asyncio.get_running_loop().call_later(self._patience(), self._give_back_waiting)

    def _patience(self) -> float:
        return ALONE if self.alone else PATIENCE

    def _give_back_waiting(self) -> None:
        """Release buffered jobs that no worker took in time; another host may have an idle one."""
        self._watching = False
        now = monotonic()
        for desk in self.desks.values():
            if desk.buffer and now - desk.buffer[0].since > self._patience():
                self._release_buffer(desk, "no worker was free")
                # It was not short after all: nothing is claimed ahead until jobs have been short for a while. Beyond what
                # counts as short here, or the same jobs would be claimed again at once.
                desk.typical = max(desk.typical or 0.0, 2 * (DEEP if self.alone else AHEAD))
        self._watch_buffers()

    def _release_buffer(self, desk: QueueDesk, why: str) -> None:
        if desk.buffer:
            self._release(list(desk.buffer), why)
            desk.buffer.clear()

    def _release(self, jobs: list[Held], why: str) -> None:
        self._forget(jobs)
        self._ends.release([held.fence for held in jobs], why)

    # -- looking after what has not reported -------------------------------------------------------------------------

    def _look_soon(self) -> None:
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_later(LOOK_EVERY, self._look)

    def _look(self) -> None:
        """Which jobs have begun, who waits behind a long one, who does not even take what it was given?"""
        self._looking = False
        now = monotonic()
        for desk in self.desks.values():
            if desk.occupied:
                for worker in desk.workers:
                    if worker.orders and not (worker.orders[0].told and len(worker.orders) == 1):
                        self._look_at(desk, worker, now)
                        self._look_soon()

    def _look_at(self, desk: QueueDesk, worker: Worker, now: float) -> None:
        ran = now - worker.since
        if ran < LOOK_EVERY:
            return
        worker.catch_up()
        if worker.since > now or not worker.orders:
            return  # it was busy, not silent
        head = worker.orders[0]
        unbegun = worker.unbegun()
        if unbegun < len(worker.orders):
            self._begun(head, worker.since)
        match due(Seen(ran, head.expected, len(worker.orders), unbegun, bool(desk.idle))):
            case Step.TAKE_BACK:
                self.reclaim(worker)
                self.feed(desk)
            case Step.CALL:
                self.reclaim(worker)
                if not worker.orders:
                    worker.call()
                self.feed(desk)

    # -- what becomes of a job ---------------------------------------------------------------------------------------

    def _learn(self, desk: QueueDesk, worker: Worker, first: Held, took: dict[str, list[float]]) -> None:
        """How long jobs took, by task, now that they are reported; `first` was the first of them."""
        count = sum(map(len, took.values()))
        desk.learn((worker.since - (first.began or first.since)) / count, count)
        for task, durations in took.items():
            self._pace.learn(task, *durations)

    def _begun(self, held: Held, at: float) -> None:
        """Tell, once, that its handler has the process."""
        if not held.told:
            self._facts.tell(self._start_of(held, at))

    def _start_of(self, held: Held, at: float) -> JobStarted:
        """To be told, once."""
        held.told = True
        job = held.claimed
        late = at - held.since
        waited = job.waited + late if late > 0.0 else job.waited
        return JobStarted(job.id, job.lease, job.queue, job.task, job.attempt, waited)

    def _end_unstarted(self, held: Held, reason: str) -> None:
        self._forget([held])
        ending = verdict.of_report(Report("stopped", 0.0, 0.0, 0, reason=reason, started=False), held)
        held.wish = reason if reason == "cancel" else held.wish
        self._ends.put(held, verdict.settle(held, ending, random.random(), "", ""))

    def _end_unfit(self, held: Held, reason: str) -> None:
        """No worker can be sent this job: it ends here, and the others go on."""
        self._forget([held])
        ending = verdict.Ending(
            Verdict.UNFIT, 0.0, 0.0, 0, error=f"no worker can have it: {reason}", started=False
        )
        self._ends.put(held, verdict.settle(held, ending, random.random(), "", ""))

    def _end_wished(self, held: Held) -> None:
        """Somebody wanted it stopped, and it had not begun."""
        if held.wish == "cancel":
            self._end_unstarted(held, "cancel")
            return
        self._forget([held])
        if held.wish != "lease":  # else not ours to write
            self._ends.release([held.fence], "stopped before it began")

    def _forget(self, jobs: list[Held]) -> None:
        """They are no longer this host's, or their ends are on their way."""
        known = self.held
        for held in jobs:
            job = held.claimed.id
            if known.get(job) is held:
                del known[job]
