"""The heartbeat thread: a beat in the slot, news to the master, a true title, a look for parents, leftovers and orphans.

What threads that jobs left behind use, seen while there is no job. Pure.
"""

from __future__ import annotations

import _thread
import os
import select
import signal
import time

import msgspec

from pgworkers import clock
from pgworkers.ipc import frames
from pgworkers.ipc.scoreboard import SlotState
from pgworkers.linux import proc, signals, titles
from pgworkers.linux.sweep import AdoptedChildReaper
from pgworkers.units import format_duration
from pgworkers.worker.attempt import Attempt
from pgworkers.worker.channel import ReportOutbox
from pgworkers.worker.messages import FrameKind, Progress
from pgworkers.worker.startup import WorkerSetup, disable_stack_dumps, ignore_dump_signal, restore_dump_signal

#: Seconds without a heartbeat, where lives are brief (`WorkerSetup.has_deferred_heartbeat`): most are over by then.
DEFERRED_START_SECONDS = 0.1
#: Beats without a job after which a worker rests, and how many times longer its beats take then.
IDLE_BEATS_BEFORE_REST = 3
REST_FACTOR = 5
#: A worker that has had no job for this long closes the database connection that its handlers enqueue with.
SESSION_IDLE_SECONDS = 10.0
#: Seconds by which a sleep may be too long on a busy machine; and how long a beat waits after a longer one.
LATE_WAKEUP_SECONDS = 0.05
_BLOCKED = signals.BlockedSignals(except_for=signal.SIGUSR2)
_BUSY_THREADS_FRAME = frames.encode(FrameKind.BUSY_THREADS, 0, 0)
_encode = msgspec.json.Encoder().encode
_progress_decoder: msgspec.json.Decoder[dict[str, float | str | None]] = msgspec.json.Decoder(
    dict[str, float | str | None]
)


class Heartbeat:
    """A bare thread: an object of `threading` would cost each worker ninety pages, and its first job a wait.

    Even so it costs as much as a short job. So where lives are brief it begins when somebody has reason to ask for it: the
    wait for an order, a job that may not stand still, or the supervisor, by a signal.
    """

    def __init__(self, setup: WorkerSetup, outbox: ReportOutbox) -> None:
        self._setup = setup
        self._slot = setup.slot
        self._outbox = outbox
        self._extended = 0  # as the master was told last
        self._poll = select.poll()
        self._idle_beats = 0  # beats since the last job
        self.is_resting = False  # does the next job have to `wake` it?
        self._alarm = _thread.allocate_lock()  # ends a rest when it is let go
        self._alarm.acquire()
        self._has_started = False
        self._idle_cpu_monitor = IdleCpuMonitor(setup.settings.heartbeat_interval)
        self._adopted_reaper = AdoptedChildReaper()
        self._has_reported_busy_threads = False  # that we burn
        self.start_hook_threads: list[int] = []  # threads that start hooks made
        #: The running job; read and cleared under the outbox's lock, so that no progress of a job follows its report.
        self.attempt: Attempt | None = None

    def start(self) -> None:
        """If it did not begin before. With all signals but SIGUSR2 blocked in it: they belong to the main thread."""
        if not self._has_started:
            with _BLOCKED:
                _thread.start_new_thread(self.run, ())
            self._has_started = True

    def start_on_request(self) -> None:
        """By a signal, in the middle of anything: the supervisor misses the beat."""
        try:
            self.start()
        except RuntimeError:
            pass  # no thread can be had now; it will ask again

    def wait_readable(self, fd: int) -> None:
        """Until there is something to read; a wait that takes long has a heartbeat."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if self._has_started or not poll.poll(DEFERRED_START_SECONDS * 1000):
            self.start()
            if not poll.poll(SESSION_IDLE_SECONDS * 1000):
                self._setup.app.client.close_unused()  # what handlers enqueue with
                poll.poll()

    def run(self) -> None:
        self._poll.register(self._setup.socket, select.POLLRDHUP)
        while True:
            self._slot.beat_count += 1
            try:
                self._check_parents()
                self._send_progress()
                self._check_idle_cpu()
                if not self._setup.dump.is_still_ours():
                    disable_stack_dumps()
                elif signal.getsignal(signal.SIGUSR2) is not ignore_dump_signal:
                    # the handler ignores all signals: its stack is ours all the same
                    restore_dump_signal(self._setup.dump)
                titles.set_title(self._title())
                is_behind = self._adopted_reaper.reap(self._setup.settings.heartbeat_interval)
            except Exception as error:  # a broken note must not stop the beat
                self._log_error(error)
                is_behind = False
            if not is_behind:
                self._sleep(self._setup.settings.heartbeat_interval)

    def _sleep(self, period: float) -> None:
        """Until the next beat. Whoever has had no job for a while beats less often, and is woken by the next one."""
        self._idle_beats = (
            self._idle_beats + 1 if self.attempt is None and self._slot.state == SlotState.IDLE else 0
        )
        began = time.monotonic()
        if self._idle_beats <= IDLE_BEATS_BEFORE_REST:
            time.sleep(period)
        else:
            period *= REST_FACTOR
            self.is_resting = True
            if self.attempt is None:  # a job that begins after this line sees that we rest
                self._alarm.acquire(timeout=period)
            self.is_resting = False
        if time.monotonic() - began > period + LATE_WAKEUP_SECONDS:
            # This process stood still. If it goes on for the sake of a dump, the main thread walks through our frames just
            # now, without the GIL: one that came or went meanwhile would be its death.
            time.sleep(LATE_WAKEUP_SECONDS)

    def wake(self) -> None:
        """By the main thread, when a job begins while it rests: its title and its progress are not to wait."""
        if self.is_resting:
            self.is_resting = False
            try:
                self._alarm.release()
            except RuntimeError:
                pass  # it was about to wake up anyway

    def _check_parents(self) -> None:
        """No supervisor, or no master while a job runs: whatever this process does, nobody will hear of it."""
        gone = os.getppid() != self._setup.supervisor_pid
        if not gone and self._slot.state == SlotState.RUNNING:
            if not self._setup.socket.is_still_ours():
                self._slot.has_closed_channel = 1
                gone = True
            else:
                gone = bool(self._poll.poll(0))
        if gone:
            os.killpg(os.getpgrp(), signal.SIGKILL)

    def _send_progress(self) -> None:
        with self._outbox.lock:
            ctx = self.attempt.ctx if self.attempt is not None else None
            if ctx is None or not self._outbox.is_clear():
                return
            said = ctx.take_metrics()
            if said is not None:
                self._outbox.offer(frames.encode(FrameKind.METRICS, ctx.job, ctx.lease, said))
                if not self._outbox.is_clear():
                    return
            progress, checkpoint = ctx.take_progress(), ctx.take_checkpoint()
            extended = self._slot.deadline_extension
            if progress is None and checkpoint is None and extended == self._extended:
                return
            self._extended = extended
            news = Progress(
                msgspec.Raw(progress or b"null"), msgspec.Raw(checkpoint or b"null"), extended / 1e9
            )
            body = _encode(news)
            self._outbox.offer(frames.encode(FrameKind.PROGRESS, ctx.job, ctx.lease, body))
        if progress is not None:
            self._slot.progress_permille = _permille(progress)

    def _check_idle_cpu(self) -> None:
        """Whoever burns CPU without a job is of no use to the next one: the master lets it go as it would anybody."""
        slot = self._slot
        mark = slot.started_at if self.attempt is None and slot.state == SlotState.IDLE else 0
        cpu = proc.own_cpu_ns_without(self.start_hook_threads) if mark else 0
        if (
            not self._idle_cpu_monitor.is_over_limit(mark, time.monotonic_ns(), cpu)
            or self._has_reported_busy_threads
        ):
            return
        with self._outbox.lock:
            if self._outbox.is_clear():
                self._outbox.offer(_BUSY_THREADS_FRAME)
                self._has_reported_busy_threads = True

    def _title(self) -> str:
        name = f"pgworkers: worker {self._setup.queue.name}/{self._setup.index}"
        attempt, slot = self.attempt, self._slot
        if attempt is None:
            state = slot.state
            return f"{name} {'idle' if state in (SlotState.IDLE, SlotState.REPORTING) else SlotState(state).name.lower()}"
        done = f" {slot.progress_permille // 10}%" if slot.progress_permille >= 0 else ""
        took = format_duration((clock.boottime_ns() - slot.started_at) / 1e9)
        return f"{name} #{attempt.job} {attempt.template.order.task}{done} {took}"

    def _log_error(self, error: Exception) -> None:
        """Into the capture file itself: what stderr is, the handler decides."""
        self._setup.output.write(f"[pgworkers: heartbeat: {type(error).__name__}: {error}]\n")


def _permille(progress: bytes) -> int:
    try:
        said = _progress_decoder.decode(progress)
        done, total = said.get("done"), said.get("total")
        return max(0, min(1000, int(1000 * float(done or 0) / float(total)))) if total else -1
    except (msgspec.DecodeError, ValueError, TypeError, OverflowError):
        return -1


#: Share of a core over all the time that is looked at. A thread that wakes up to push metrics uses a hundredth of it. A
#: thread that burns gets far less than a whole core on an overloaded machine, so this is closer to the former.
MAX_IDLE_CPU_SHARE = 0.1
#: How many beats' worth of time without a job is looked at before it is judged.
JUDGED_IDLE_BEATS = 10


class IdleCpuMonitor:
    """CPU time between two looks without a job between them, added up: also of a worker that never idles for long."""

    def __init__(self, heartbeat: float) -> None:
        self._enough = int(JUDGED_IDLE_BEATS * heartbeat * 1e9)
        self._mark = 0
        self._now = self._cpu = 0  # at the last look
        self._time = self._used = 0  # nanoseconds, of all looks since the last judgement

    def is_over_limit(self, mark: int, now: int, cpu: int) -> bool:
        """`mark`: the number of the job before, 0 while there is one or before the first. Times in nanoseconds."""
        if mark and mark == self._mark:
            self._time += now - self._now
            self._used += cpu - self._cpu
        self._mark, self._now, self._cpu = mark, now, cpu
        if self._time < self._enough:
            return False
        burns = self._used >= MAX_IDLE_CPU_SHARE * self._time
        self._time = self._used = 0
        return burns
