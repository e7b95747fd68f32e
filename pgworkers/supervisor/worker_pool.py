"""The workers of one queue: as many as are wanted, each in its slot, each death told."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator

from pgworkers.ipc.scoreboard import Scoreboard, SlotState
from pgworkers.linux import limits, proc, signals
from pgworkers.linux.oom import OomKillCounter
from pgworkers.linux.sweep import KERNEL_HANG_SECONDS, SWEEP_TIMEOUT_SECONDS, ProcessSweep
from pgworkers.settings import Settings
from pgworkers.supervisor import fork, reaper, stall_detector, stopper
from pgworkers.supervisor.messages import (
    BytesDropped,
    Died,
    Forked,
    StartDelayed,
)
from pgworkers.supervisor.output import OutputCapture, OutputScreen
from pgworkers.supervisor.restart_budget import RestartBudget
from pgworkers.supervisor.worker_record import WorkerRecord
from pgworkers.worker.heartbeat import DEFERRED_START_SECONDS

HEARTBEAT_REQUEST_INTERVAL_SECONDS = 1.0


def look_after_young(worker: WorkerRecord, now: float) -> None:
    """What only a worker needs that lives until somebody looks: the kernel's preference for it, and a heartbeat."""
    if not worker.has_been_checked:
        worker.has_been_checked = True
        limits.raise_oom_score(worker.pid)
    slot = worker.slot
    if slot.beat_count or slot.state != SlotState.RUNNING or worker.suspended_at:
        return
    if (
        now - slot.started_at / 1e9 >= DEFERRED_START_SECONDS
        and now - worker.heartbeat_requested_at >= HEARTBEAT_REQUEST_INTERVAL_SECONDS
    ):
        worker.heartbeat_requested_at = now
        signals.send(worker.pid, signal.SIGUSR1)


REAP_POLL_SECONDS = 0.005
#: Where jobs with a process of their own take less than so many seconds, workers begin without a heartbeat.
SHORT_LIFETIME_SECONDS = 0.1
#: Who leaves looks as often as this, however late it is: while we did not run, those we killed may not have run either.
MIN_EXIT_REAP_ATTEMPTS = 40
#: Of how many dead workers output may wait for the screen; of more, the oldest is dropped and counted.
MAX_CAPTURES_OF_DEAD = 8
#: How long a supervisor that leaves tries to show what its workers printed.
EXIT_OUTPUT_SECONDS = 0.2


#: A worker that leaves by itself, without ever having had a job and within this time, counts for the fork budget.
USELESS_LIFETIME_SECONDS = 1.0


class WorkerPool:
    def __init__(self, template: fork.WorkerTemplate, wanted: int, emit: Callable[..., None]) -> None:
        self._template = template
        self._settings: Settings = template.settings
        self._emit = emit
        self._board = Scoreboard(max(self._settings.max_workers, wanted))
        self._workers: dict[int, WorkerRecord] = {}
        self._dying: dict[int, reaper.Death] = {}  # by slot
        self._sweep = ProcessSweep(is_single_threaded=True)
        self._forks = 0  # in the life of this supervisor; the number of the last is its worker's incarnation
        self._swept_count = 0
        self._typical_lifetime: float | None = (
            None  # seconds from the beginning of a job to the death of its worker
        )
        self._budget = RestartBudget(
            self._settings.restart_limit, self._settings.restart_period, self._settings.restart_max_delay
        )
        self._next_start = 0.0
        self._oom_counter = OomKillCounter()
        self._screen = OutputScreen()
        # what the import of the app started is the app's own business until we leave
        self._spared = set(proc.children(os.getpid()))
        self.wanted = wanted
        self._captures_of_dead: list[
            OutputCapture
        ] = []  # of dead workers, with output that the screen has not taken yet
        self.has_more_output = False  # there is more to show at once
        self.is_output_blocked = False  # there is more to show as soon as the screen has room

    def __iter__(self) -> Iterator[WorkerRecord]:
        return iter(self._workers.values())

    def __len__(self) -> int:
        return len(self._workers)

    def get(self, slot: int, incarnation: int) -> WorkerRecord | None:
        """The worker of this incarnation. None: it is gone, whatever is in the slot now."""
        found = self._workers.get(slot)
        return found if found is not None and found.incarnation == incarnation else None

    def incarnations(self) -> list[int]:
        """Of all workers whose death has not been sent."""
        dying = [death.fact.incarnation for death in self._dying.values() if not death.is_emitted]
        return [*(worker.incarnation for worker in self), *dying]

    @property
    def is_reaping(self) -> bool:
        """True while the death of a worker has not been told."""
        return any(not death.is_emitted for death in self._dying.values())

    def scale(self, wanted: int) -> None:
        self.wanted = min(wanted, len(self._board))

    def reap_dead(self, now: float, *, should_sweep: bool = False) -> None:
        """Reap the dead, sweep what they left, and tell when nothing of them is alive.

        Workers keep their own orphans: there is something to sweep only after a death. `should_sweep` all the same.
        """
        for worker in [
            worker for worker in self if reaper.is_dead(worker) or _is_stuck_in_kernel(worker, now)
        ]:
            self._record_lifetime(worker, now)
            useless = _is_useless(worker, now)
            death = reaper.reap_worker(worker, self._oom_counter, self._settings.output_limit, now)
            death.fact.killed_children = proc.describe_children(self._spared | {one.pid for one in self})
            self._keep_output_after_death(worker.capture)
            del self._workers[worker.index]
            self._dying[worker.index] = death
            if not _left_as_planned(death.fact):
                self._delay_start(now, death.fact.was_ready)
            elif useless:
                self._delay_start_after_useless(now)
        if not self._dying and not should_sweep:
            return
        alive = {worker.pid for worker in self}
        # A worker that dies between the look above and this sweep has its group killed at the next tick: what is in
        # its group is not a stray, whoever comes first.
        groups = alive | {death.fact.pid for death in self._dying.values()}
        stuck = {pid for death in self._dying.values() for pid in death.stuck}
        killed, left = reaper.sweep_slice(self._sweep, self._spared | alive | stuck, groups)
        self._swept_count += killed
        self._emit_deaths(left, groups, now)

    def _emit_deaths(self, left: list[int], groups: set[int], now: float) -> None:
        """Tell deaths when nothing of the workers is left, or only what SIGKILL does not end; then free their slots.

        The kernel does not name the former owner of an orphan. So what is left counts for every worker that is dying.
        Processes that we may not signal are named, and from then on left alone: they keep no slot.
        """
        limit = KERNEL_HANG_SECONDS if self._sweep.is_waiting_for_kernel else SWEEP_TIMEOUT_SECONDS
        untold = [death for death in self._dying.values() if not death.is_emitted]
        if left and all(now - death.died_at < limit for death in untold):
            untold = []
        stuck = self._sweep.unkillable(left) if untold else set()
        foreign = self._sweep.not_permitted(left) if untold else set()
        if untold and left and not self._sweep.is_waiting_for_kernel:  # some are frozen and would stay so
            self._swept_count += self._sweep.kill(left, groups)
        if untold:
            self._spared |= foreign
        for death in untold:
            death.stuck |= stuck
            death.fact.stuck = reaper.describe_processes(death.stuck)
            death.fact.foreign = reaper.describe_processes(foreign)
            death.fact.killed_children = _without_pids(death.fact.killed_children, foreign)
            death.fact.swept, self._swept_count = self._swept_count, 0
            death.is_emitted = True
            self._emit(death.fact)
        for slot, death in list(self._dying.items()):
            death.stuck = {pid for pid in death.stuck if not proc.reap(pid)}
            if death.is_emitted and not death.stuck and not left:
                del self._dying[slot]

    def fork_missing(self, now: float, private_descriptors: Callable[[], list[int]]) -> None:
        """Fork what is missing, as the budget allows. `private_descriptors()`: those a child must not have."""
        if now < self._next_start:
            return
        if self._budget.failed_starts:
            self.note_ready()
        while len(self._workers) + len(self._dying) < self.wanted:
            if self._budget.failed_starts and any(not worker.is_ready for worker in self):
                return  # starts fail: try one at a time
            taken = self._workers.keys() | self._dying.keys()
            index = next((i for i in range(len(self._board)) if i not in taken), None)
            if index is None:
                return
            siblings = [fd for worker in self for fd in worker.capture.descriptors]
            hidden = [*private_descriptors(), *siblings, *self._screen.descriptors]
            brief = self._expects_short_lives()
            try:
                worker, fds = fork.fork_worker(
                    self._template,
                    index,
                    self._forks + 1,
                    self._board[index],
                    hidden,
                    has_deferred_heartbeat=brief,
                )
            except OSError:  # no memory, no process, no descriptor left: nor will there be in a moment
                self._delay_start(now, False)
                return
            self._forks += 1
            worker.forked_at = now
            self._workers[index] = worker
            self._emit(Forked(index, worker.pid, worker.incarnation, is_ready=brief), *fds)

    def _record_lifetime(self, worker: WorkerRecord, now: float) -> None:
        if worker.slot.started_at:
            lived = now - worker.slot.started_at / 1e9
            self._typical_lifetime = (
                lived
                if self._typical_lifetime is None
                else self._typical_lifetime + 0.2 * (lived - self._typical_lifetime)
            )

    def _expects_short_lives(self) -> bool:
        alone = self._template.queue.max_jobs == 1 and not self._template.app.start_hooks
        return (
            alone and self._typical_lifetime is not None and self._typical_lifetime < SHORT_LIFETIME_SECONDS
        )

    def _delay_start(self, now: float, was_ready: bool) -> None:
        pause = self._budget.record_death(now, was_ready)
        self._next_start = max(self._next_start, now + pause)
        if not was_ready:
            self._emit(StartDelayed(round(pause, 3), self._budget.failed_starts))

    def _delay_start_after_useless(self, now: float) -> None:
        """Workers that leave at once and without a job: whatever sends them away does so with the next ones, too."""
        before = self._budget.unused_rounds
        pause = self._budget.record_unused(now)
        self._next_start = max(self._next_start, now + pause)
        if pause and self._budget.unused_rounds != before:
            self._emit(StartDelayed(round(pause, 3), self._budget.unused_rounds, ready=True))

    def note_ready(self) -> None:
        for worker in self:
            if worker.is_ready and not worker.was_seen_ready:
                worker.was_seen_ready = True
                self._budget.record_ready()

    @property
    def screen_descriptors(self) -> list[int]:
        """Where there may be room again."""
        return self._screen.descriptors

    def relay_output(self, *, include_partial_lines: bool = False) -> None:
        """Pass on what workers printed. Lines that are not complete wait for a second."""
        captures = [*self._captures_of_dead, *(worker.capture for worker in self)]
        more = self._screen.relay(captures, include_partial_lines)
        self.has_more_output, self.is_output_blocked = (
            more and not self._screen.is_full,
            more and self._screen.is_full,
        )
        for capture in [capture for capture in self._captures_of_dead if not capture.unrelayed_bytes]:
            self._captures_of_dead.remove(capture)
            capture.close()

    def _keep_output_after_death(self, capture: OutputCapture) -> None:
        """What a dead worker printed and nobody has seen yet is still shown, or named."""
        capture.is_complete = True
        if not capture.unrelayed_bytes:
            capture.close()
            return
        self._captures_of_dead.append(capture)
        self.relay_output()
        while len(self._captures_of_dead) > MAX_CAPTURES_OF_DEAD:
            self._captures_of_dead[0].drop(self._screen)
            self._captures_of_dead.pop(0).close()

    def _flush_output_at_exit(self) -> None:
        give_up = time.monotonic() + EXIT_OUTPUT_SECONDS
        self.relay_output()
        while self._captures_of_dead and time.monotonic() < give_up:
            time.sleep(REAP_POLL_SECONDS)
            self.relay_output()
        for capture in self._captures_of_dead:
            capture.drop(self._screen)
        self.relay_output()
        self._emit_dropped()

    def _emit_dropped(self) -> None:
        dropped = self._screen.take_dropped_count()
        if dropped:
            self._emit(BytesDropped(dropped))

    def every_round(self, now: float) -> None:
        self._oom_counter.refresh()
        self.reap_dead(now, should_sweep=True)
        self._spared = {pid for pid in self._spared if not proc.reap(pid)}
        self.relay_output(include_partial_lines=True)
        self._emit_dropped()
        for worker in self:
            stalled = stall_detector.check_worker(worker, self._settings, now)
            if stalled is not None:
                self._emit(stalled)

    def kill_everything(self, reason: str, timeout: float) -> bool:
        """Kill every group, then everything that is still our child. True: nothing is left."""
        give_up = time.monotonic() + timeout
        self._spared = set()
        for worker in self:
            stopper.kill_group(worker, reason)
        clean = False
        for look in itertools.count(1):
            self.reap_dead(0.0, should_sweep=True)
            clean = not self._workers and not self._dying and not proc.children(os.getpid())
            if clean or (look >= MIN_EXIT_REAP_ATTEMPTS and time.monotonic() > give_up):
                break
            time.sleep(REAP_POLL_SECONDS)
        self._flush_output_at_exit()
        return clean


def _without_pids(names: list[str], pids: set[int]) -> list[str]:
    """Names of children (`ffmpeg (pid 812)`) without those of these processes."""
    return [name for name in names if not any(name.endswith(f" (pid {pid})") for pid in pids)]


def _is_stuck_in_kernel(worker: WorkerRecord, now: float) -> bool:
    """True if it was sent SIGKILL long ago and is still there: a call into the kernel does not end."""
    return bool(worker.killed_at) and now - worker.killed_at > KERNEL_HANG_SECONDS


def _is_useless(worker: WorkerRecord, now: float) -> bool:
    """True if it had no job in its short life."""
    return not worker.slot.started_at and now - worker.forked_at < USELESS_LIFETIME_SECONDS


def _left_as_planned(died: Died) -> bool:
    """After its last job (max_jobs, max_rss) or because the master let it go: no reason to hesitate with the next one."""
    return died.was_ready and died.job == 0 and died.status == "exit 0"
