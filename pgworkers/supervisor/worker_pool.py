"""The workers of one queue: as many as are wanted, each in its slot, and each death reported once."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator

from pgworkers.ipc.scoreboard import Scoreboard, SlotState, StopReason
from pgworkers.linux import proc, process_limits, signals
from pgworkers.linux.oom import OomKillCounter
from pgworkers.linux.sweep import KERNEL_HANG_SECONDS
from pgworkers.observe import handler_prometheus
from pgworkers.settings import Settings
from pgworkers.supervisor import fork, reaper, stall_detector, stopper
from pgworkers.supervisor.messages import (
    BytesDropped,
    Died,
    Forked,
    StartDelayed,
)
from pgworkers.supervisor.output import OutputCapture, OutputRelay
from pgworkers.supervisor.reaper import Reaper
from pgworkers.supervisor.restart_budget import RestartBudget
from pgworkers.supervisor.worker_record import WorkerRecord
from pgworkers.worker.heartbeat import DEFERRED_START_SECONDS

#: Time between two requests for the heartbeat of a worker that has none.
HEARTBEAT_REQUEST_INTERVAL_SECONDS = 1.0
REAP_POLL_SECONDS = 0.005
#: Where workers die sooner than this after the start of their only job, new ones begin without a heartbeat.
SHORT_LIFETIME_SECONDS = 0.1
#: Minimum number of reap attempts during shutdown. Counted as well as timed, because on a starved machine the killed
#: children may not have been scheduled either.
MIN_EXIT_REAP_ATTEMPTS = 40
#: A worker that leaves by itself within this time and without a job counts for the restart budget.
USELESS_LIFETIME_SECONDS = 1.0


class WorkerPool:
    """The living workers of a queue by slot.

    The slots of dead ones are the reaper's until nothing of them is left.
    """

    def __init__(self, template: fork.WorkerTemplate, wanted: int, emit: Callable[..., None]) -> None:
        self._template = template
        self._settings: Settings = template.settings
        self._emit = emit
        self._board = Scoreboard(max(self._settings.max_workers, wanted))
        self._workers: dict[int, WorkerRecord] = {}
        self._reaper = Reaper(emit)
        self._oom_counter = OomKillCounter()
        self._forks = 0  # in the life of this supervisor; the number of the last is its worker's incarnation
        self._typical_lifetime: float | None = (
            None  # seconds from the start of a job to the death of its worker
        )
        self._budget = RestartBudget(
            self._settings.restart_limit, self._settings.restart_period, self._settings.restart_max_delay
        )
        self._next_start = 0.0
        self.wanted = wanted
        self.output = OutputRelay()

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
        dying = [death.event.incarnation for death in self._reaper.unreported]
        return [*(worker.incarnation for worker in self), *dying]

    @property
    def is_reaping(self) -> bool:
        """True while the death of a worker has not been reported."""
        return bool(self._reaper.unreported)

    def scale(self, wanted: int) -> None:
        self.wanted = min(wanted, len(self._board))

    def reap_dead(self, now: float, *, should_sweep: bool = False) -> None:
        """Reap dead workers, sweep what they left, and report each death when nothing of the worker is alive.

        Workers keep their own orphans, so there is something to sweep only after a death. `should_sweep`: sweep anyway.
        """
        dead = [worker for worker in self if reaper.is_dead(worker) or _is_stuck_in_kernel(worker, now)]
        for worker in dead:
            self._record_lifetime(worker, now)
            useless = _is_useless(worker, now)
            death = reaper.reap_worker(worker, self._oom_counter, self._settings.output_limit, now)
            self._reaper.add(death, self._pids())
            del self._workers[worker.index]
            worker.dump.close()
            handler_prometheus.forget_gauges(worker.index)
            self.output.keep_after_death(worker.capture, self._captures())
            if not _left_as_planned(death.event):
                self._delay_start(now, death.event.was_ready)
            elif useless:
                self._delay_start_after_useless(now)
        if self._reaper.dying or should_sweep:
            self._reaper.sweep(self._pids(), now)

    def _pids(self) -> set[int]:
        return {worker.pid for worker in self}

    def _captures(self) -> list[OutputCapture]:
        return [worker.capture for worker in self]

    def fork_missing(self, now: float, private_descriptors: Callable[[], list[int]]) -> None:
        """Fork missing workers, as the restart budget allows.

        `private_descriptors()`: those that a child must not have.
        """
        if now < self._next_start:
            return
        if self._budget.failed_starts:
            self.note_ready()
        while len(self._workers) + len(self._reaper.dying) < self.wanted:
            if self._budget.failed_starts and any(not worker.is_ready for worker in self):
                return  # starts fail: try one at a time
            taken = self._workers.keys() | self._reaper.dying.keys()
            index = next((i for i in range(len(self._board)) if i not in taken), None)
            if index is None:
                return
            files = [fd for worker in self for fd in (worker.capture.output, worker.dump.fd)]
            private = [*private_descriptors(), *files, *self.output.descriptors]
            is_short_lived = self._expects_short_lives()
            try:
                forked = fork.fork_worker(
                    self._template,
                    index=index,
                    incarnation=self._forks + 1,
                    slot=self._board[index],
                    private_descriptors=private,
                    is_short_lived=is_short_lived,
                )
            except OSError:  # no memory, process or descriptor is left
                self._delay_start(now, False)
                return
            self._forks += 1
            worker = self._workers[index] = forked.record
            worker.forked_at = now
            self._emit(
                Forked(slot=index, pid=worker.pid, incarnation=worker.incarnation, is_ready=is_short_lived),
                *forked.master_descriptors,
            )

    def _record_lifetime(self, worker: WorkerRecord, now: float) -> None:
        if worker.slot.started_at:
            lived = now - worker.slot.started_at / 1e9
            self._typical_lifetime = (
                lived
                if self._typical_lifetime is None
                else self._typical_lifetime + 0.2 * (lived - self._typical_lifetime)
            )

    def _expects_short_lives(self) -> bool:
        queue = self._template.queue
        alone = queue.max_jobs == 1 and not self._template.app.hooks.start_hooks_of(queue.name)
        return (
            alone and self._typical_lifetime is not None and self._typical_lifetime < SHORT_LIFETIME_SECONDS
        )

    def _delay_start(self, now: float, was_ready: bool) -> None:
        pause = self._budget.record_death(now, was_ready)
        self._next_start = max(self._next_start, now + pause)
        if not was_ready:
            self._emit(StartDelayed(round(pause, 3), self._budget.failed_starts))

    def _delay_start_after_useless(self, now: float) -> None:
        """Delay the next start after workers that left at once and without a job.

        The next ones would do the same.
        """
        before = self._budget.unused_rounds
        pause = self._budget.record_unused(now)
        self._next_start = max(self._next_start, now + pause)
        if pause and self._budget.unused_rounds != before:
            self._emit(StartDelayed(round(pause, 3), self._budget.unused_rounds, has_been_ready=True))

    def note_ready(self) -> None:
        for worker in self:
            if worker.is_ready and not worker.was_seen_ready:
                worker.was_seen_ready = True
                self._budget.record_ready()

    def relay_output(self, *, include_partial_lines: bool = False) -> None:
        """Pass on what workers printed. Lines that are not complete wait for the next round."""
        self.output.relay(self._captures(), include_partial_lines=include_partial_lines)

    def _emit_dropped(self) -> None:
        dropped = self.output.take_dropped_count()
        if dropped:
            self._emit(BytesDropped(dropped))

    def do_round_work(self, now: float) -> None:
        """Do the work of a round, every one to two seconds."""
        self._oom_counter.refresh()
        self.reap_dead(now, should_sweep=True)
        self._reaper.reap_spared()
        self.relay_output(include_partial_lines=True)
        self._emit_dropped()
        for worker in self:
            stalled = stall_detector.check_worker(worker, self._settings, now)
            if stalled is not None:
                self._emit(stalled)

    def kill_everything(self, reason: StopReason, timeout: float) -> bool:
        """Kill every group, then everything that is still our child. True: nothing is left."""
        give_up = time.monotonic() + timeout
        self._reaper.spared = set()
        for worker in self:
            stopper.kill_group(worker, reason)
        clean = False
        for look in itertools.count(1):
            self.reap_dead(0.0, should_sweep=True)
            clean = not self._workers and not self._reaper.dying and not proc.children(os.getpid())
            if clean or (look >= MIN_EXIT_REAP_ATTEMPTS and time.monotonic() > give_up):
                break
            time.sleep(REAP_POLL_SECONDS)
        self.output.flush_at_exit()
        self._emit_dropped()
        return clean


def _is_stuck_in_kernel(worker: WorkerRecord, now: float) -> bool:
    """True if it was sent SIGKILL long ago and is still there: a call into the kernel does not end."""
    return bool(worker.killed_at) and now - worker.killed_at > KERNEL_HANG_SECONDS


def _is_useless(worker: WorkerRecord, now: float) -> bool:
    """True if it had no job in its short life."""
    return not worker.slot.started_at and now - worker.forked_at < USELESS_LIFETIME_SECONDS


def _left_as_planned(died: Died) -> bool:
    """True if it left after its last job (max_jobs, max_rss) or because the master closed its channel."""
    return died.was_ready and died.job == 0 and died.has_exited_cleanly


def prefer_for_oom_kill(worker: WorkerRecord) -> None:
    """Raise the OOM score of a new worker, once."""
    if not worker.has_been_checked:
        worker.has_been_checked = True
        process_limits.raise_oom_score(worker.pid)


def request_deferred_heartbeat(worker: WorkerRecord, now: float) -> None:
    """Ask a worker whose job takes long to start its heartbeat, if it has none."""
    slot = worker.slot
    if slot.beat_count or slot.state != SlotState.RUNNING or worker.suspended_at:
        return
    if (
        now - slot.started_at / 1e9 >= DEFERRED_START_SECONDS
        and now - worker.heartbeat_requested_at >= HEARTBEAT_REQUEST_INTERVAL_SECONDS
    ):
        worker.heartbeat_requested_at = now
        signals.send(worker.pid, signal.SIGUSR1)
