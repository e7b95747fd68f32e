"""The workers of one queue: as many as are wanted, each in its slot, each death told."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator

from pgworkers.process import tree
from pgworkers.process.budget import Budget
from pgworkers.process.oom import Witness
from pgworkers.process.scoreboard import Scoreboard
from pgworkers.process.sweep import Sweep
from pgworkers.settings import Settings
from pgworkers.supervisor import climb, fork, reap
from pgworkers.supervisor.capture import Capture
from pgworkers.supervisor.member import Worker
from pgworkers.supervisor.messages import Died, Dropped, Forked, Resting
from pgworkers.supervisor.screen import Screen

_STEP = 0.005
#: Where jobs with a process of their own take less than so many seconds, workers begin without a heartbeat.
BRIEF = 0.1
#: Who leaves looks as often as this, however late it is: while we did not run, those we killed may not have run either.
_LOOKS = 40
#: Of how many dead workers output may wait for the screen; of more, the oldest is dropped and counted.
LEFT = 8
#: How long a supervisor that leaves tries to show what its workers printed.
LAST_WORDS = 0.2


#: A worker that leaves by itself, without ever having had a job and within this time, counts for the fork budget.
USELESS_SECONDS = 1.0


class Crew:
    def __init__(self, nursery: fork.Nursery, wanted: int, tell: Callable[..., None]) -> None:
        self._nursery = nursery
        self._settings: Settings = nursery.settings
        self._tell = tell
        self._board = Scoreboard(max(self._settings.max_workers, wanted))
        self._workers: dict[int, Worker] = {}
        self._dying: dict[int, reap.Death] = {}  # by slot
        self._sweep = Sweep(alone=True)
        self._forks = 0  # in the life of this supervisor; the number of the last is its worker's incarnation
        self._swept = 0
        self._typical: float | None = None  # seconds from the beginning of a job to the death of its worker
        self._budget = Budget(
            self._settings.restart_intensity, self._settings.restart_period, self._settings.restart_cap
        )
        self._next_start = 0.0
        self._witness = Witness()
        self._screen = Screen()
        # what the import of the app started is the app's own business until we leave
        self._spared = set(tree.children(os.getpid()))
        self.wanted = wanted
        self._left: list[Capture] = []  # of dead workers, with output that the screen has not taken yet
        self.echo_waits = False  # there is more to show at once
        self.echo_blocked = False  # there is more to show as soon as the screen has room

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def __len__(self) -> int:
        return len(self._workers)

    def get(self, slot: int, incarnation: int) -> Worker | None:
        """The worker of this incarnation. None: it is gone, whatever is in the slot now."""
        found = self._workers.get(slot)
        return found if found is not None and found.incarnation == incarnation else None

    def incarnations(self) -> list[int]:
        """Of all workers whose death has not been sent."""
        dying = [death.fact.incarnation for death in self._dying.values() if not death.told]
        return [*(worker.incarnation for worker in self), *dying]

    @property
    def dying(self) -> bool:
        """True while the death of a worker has not been told."""
        return any(not death.told for death in self._dying.values())

    def scale(self, wanted: int) -> None:
        self.wanted = min(wanted, len(self._board))

    def bury(self, now: float, *, look: bool = False) -> None:
        """Reap the dead, sweep what they left, and tell when nothing of them is alive.

        Workers keep their own orphans: there is something to sweep only after a death. `look` all the same.
        """
        for worker in [worker for worker in self if climb.is_gone(worker) or _hangs(worker, now)]:
            self._learn(worker, now)
            useless = _is_useless(worker, now)
            death = reap.bury(worker, self._witness, self._settings.output_limit, now)
            death.fact.left = tree.names_of_children(self._spared | {one.pid for one in self})
            self._bequeath(worker.capture)
            del self._workers[worker.index]
            self._dying[worker.index] = death
            if not _left_as_planned(death.fact):
                self._rest(now, death.fact.ready)
            elif useless:
                self._rest_after_useless(now)
        if not self._dying and not look:
            return
        alive = {worker.pid for worker in self}
        # A worker that dies between the look above and this sweep has its group killed at the next tick: what is in
        # its group is not a stray, whoever comes first.
        groups = alive | {death.fact.pid for death in self._dying.values()}
        stuck = {pid for death in self._dying.values() for pid in death.stuck}
        killed, left = reap.sweep(self._sweep, self._spared | alive | stuck, groups)
        self._swept += killed
        self._tell_deaths(left, groups, now)

    def _tell_deaths(self, left: list[int], groups: set[int], now: float) -> None:
        """Tell deaths when nothing of the workers is left, or only what SIGKILL does not end; then free their slots.

        The kernel does not name the former owner of an orphan. So what is left counts for every worker that is dying.
        Processes that we may not signal are named, and from then on left alone: they keep no slot.
        """
        limit = reap.KERNEL_HANG_SECONDS if self._sweep.is_waiting else reap.SWEEP_GIVE_UP_SECONDS
        untold = [death for death in self._dying.values() if not death.told]
        if left and all(now - death.since < limit for death in untold):
            untold = []
        stuck = self._sweep.killed(left) if untold else set()
        foreign = self._sweep.refused(left) if untold else set()
        if untold and left and not self._sweep.is_waiting:  # some are frozen and would stay so
            self._swept += self._sweep.kill(left, groups)
        if untold:
            self._spared |= foreign
        for death in untold:
            death.stuck |= stuck
            death.fact.stuck = reap.described_all(death.stuck)
            death.fact.foreign = reap.described_all(foreign)
            death.fact.left = _without(death.fact.left, foreign)
            death.fact.swept, self._swept = self._swept, 0
            death.told = True
            self._tell(death.fact)
        for slot, death in list(self._dying.items()):
            death.stuck = {pid for pid in death.stuck if not tree.reap(pid)}
            if death.told and not death.stuck and not left:
                del self._dying[slot]

    def replenish(self, now: float, not_theirs: Callable[[], list[int]]) -> None:
        """Fork what is missing, as the budget allows. `not_theirs()`: descriptors a child must not have."""
        if now < self._next_start:
            return
        if self._budget.deaths:
            self.note_ready()
        while len(self._workers) + len(self._dying) < self.wanted:
            if self._budget.deaths and any(not worker.ready for worker in self):
                return  # starts fail: try one at a time
            taken = self._workers.keys() | self._dying.keys()
            index = next((i for i in range(len(self._board)) if i not in taken), None)
            if index is None:
                return
            siblings = [fd for worker in self for fd in worker.capture.descriptors]
            hidden = [*not_theirs(), *siblings, *self._screen.descriptors]
            brief = self._lives_are_brief()
            try:
                worker, fds = fork.make(
                    self._nursery, index, self._forks + 1, self._board[index], hidden, brief=brief
                )
            except OSError:  # no memory, no process, no descriptor left: nor will there be in a moment
                self._rest(now, False)
                return
            self._forks += 1
            worker.forked_at = now
            self._workers[index] = worker
            self._tell(Forked(index, worker.pid, worker.incarnation, ready=brief), *fds)

    def _learn(self, worker: Worker, now: float) -> None:
        if worker.slot.started:
            lived = now - worker.slot.started / 1e9
            self._typical = lived if self._typical is None else self._typical + 0.2 * (lived - self._typical)

    def _lives_are_brief(self) -> bool:
        alone = self._nursery.queue.max_jobs == 1 and not self._nursery.app.start_hooks
        return alone and self._typical is not None and self._typical < BRIEF

    def _rest(self, now: float, was_ready: bool) -> None:
        pause = self._budget.died(now, was_ready)
        self._next_start = max(self._next_start, now + pause)
        if not was_ready:
            self._tell(Resting(round(pause, 3), self._budget.deaths))

    def _rest_after_useless(self, now: float) -> None:
        """Workers that leave at once and without a job: whatever sends them away does so with the next ones, too."""
        before = self._budget.unused
        pause = self._budget.left_unused(now)
        self._next_start = max(self._next_start, now + pause)
        if pause and self._budget.unused != before:
            self._tell(Resting(round(pause, 3), self._budget.unused, ready=True))

    def note_ready(self) -> None:
        for worker in self:
            if worker.ready and not worker.seen_ready:
                worker.seen_ready = True
                self._budget.ready()

    @property
    def screen(self) -> list[int]:
        """Where there may be room again."""
        return self._screen.descriptors

    def echo(self, *, everything: bool = False) -> None:
        """Pass on what workers printed. Lines that are not complete wait for a second."""
        captures = [*self._left, *(worker.capture for worker in self)]
        more = self._screen.pass_on(captures, everything)
        self.echo_waits, self.echo_blocked = more and not self._screen.full, more and self._screen.full
        for capture in [capture for capture in self._left if not capture.behind]:
            self._left.remove(capture)
            capture.close()

    def _bequeath(self, capture: Capture) -> None:
        """What a dead worker printed and nobody has seen yet is still shown, or named."""
        capture.over = True
        if not capture.behind:
            capture.close()
            return
        self._left.append(capture)
        self.echo()
        while len(self._left) > LEFT:
            self._left[0].drop(self._screen)
            self._left.pop(0).close()

    def _last_words(self) -> None:
        give_up = time.monotonic() + LAST_WORDS
        self.echo()
        while self._left and time.monotonic() < give_up:
            time.sleep(_STEP)
            self.echo()
        for capture in self._left:
            capture.drop(self._screen)
        self.echo()
        self._tell_dropped()

    def _tell_dropped(self) -> None:
        dropped = self._screen.take_dropped()
        if dropped:
            self._tell(Dropped(dropped))

    def each_second(self, now: float) -> None:
        self._witness.refresh()
        self.bury(now, look=True)
        self._spared = {pid for pid in self._spared if not tree.reap(pid)}
        self.echo(everything=True)
        self._tell_dropped()
        for worker in self:
            stalled = climb.feel(worker, self._settings, now)
            if stalled is not None:
                self._tell(stalled)

    def end(self, why: str, seconds: float) -> bool:
        """Kill every group, then everything that is still our child. True: nothing is left."""
        give_up = time.monotonic() + seconds
        self._spared = set()
        for worker in self:
            climb.kill_group(worker, why)
        clean = False
        for look in itertools.count(1):
            self.bury(0.0, look=True)
            clean = not self._workers and not self._dying and not tree.children(os.getpid())
            if clean or (look >= _LOOKS and time.monotonic() > give_up):
                break
            time.sleep(_STEP)
        self._last_words()
        return clean


def _without(names: list[str], pids: set[int]) -> list[str]:
    """Names of children (`ffmpeg (pid 812)`) without those of these processes."""
    return [name for name in names if not any(name.endswith(f" (pid {pid})") for pid in pids)]


def _hangs(worker: Worker, now: float) -> bool:
    """True if it was sent SIGKILL long ago and is still there: a call into the kernel does not end."""
    return bool(worker.killed_at) and now - worker.killed_at > reap.KERNEL_HANG_SECONDS


def _is_useless(worker: Worker, now: float) -> bool:
    """True if it had no job in its short life."""
    return not worker.slot.started and now - worker.forked_at < USELESS_SECONDS


def _left_as_planned(died: Died) -> bool:
    """After its last job (max_jobs, max_rss) or because the master let it go: no reason to hesitate with the next one."""
    return died.ready and died.job == 0 and died.status == "exit 0"
