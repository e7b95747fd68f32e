"""The heartbeat thread of a worker.

With each beat it increments the counter in the slot, sends progress to the master, updates the process title, reaps adopted
orphans, and checks that supervisor and master still live and that no thread of an earlier job uses CPU.

In the master, progress goes to `Dispatcher._on_progress`, `Finisher.save_progress` and job/progress.sql.
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
from pgworkers.worker.startup import (
    WorkerHandles,
    WorkerSetup,
    disable_stack_dumps,
    ignore_dump_signal,
    restore_dump_signal,
)

#: Time without a heartbeat where workers end soon (`WorkerHandles.is_short_lived`): most have ended by then.
DEFERRED_START_SECONDS = 0.1
#: Beats without a job after which a worker rests, and the factor by which its beats are longer then.
IDLE_BEATS_BEFORE_REST = 3
IDLE_BEAT_FACTOR = 5
#: A worker that has had no job for this long closes the database connection that its handlers enqueue with.
SESSION_IDLE_SECONDS = 10.0
#: How much longer a sleep may take on a busy machine. After a longer one the next beat waits this time.
LATE_WAKEUP_SECONDS = 0.05
_BLOCKED_SIGNALS = signals.BlockedSignals(except_for=signal.SIGUSR2)
_BUSY_THREADS_FRAME = frames.encode(FrameKind.BUSY_THREADS, 0, 0)
_encode = msgspec.json.Encoder().encode
_progress_decoder: msgspec.json.Decoder[dict[str, float | str | None]] = msgspec.json.Decoder(
    dict[str, float | str | None]
)


class Heartbeat:
    """A thread of `_thread`: one of `threading` would be seen by the user's code, and costs each worker more memory.

    Starting it takes as long as a short job. Where workers end soon, only three events start it: a wait for an order, a job
    with a stall timeout, a signal of the supervisor.
    """

    handles: WorkerHandles  # set by the worker before `start`

    def __init__(self, setup: WorkerSetup, outbox: ReportOutbox) -> None:
        self._setup = setup
        self._slot = setup.slot
        self._outbox = outbox
        self._extended = 0  # as it was last sent to the master
        self._poll = select.poll()
        self._idle_beats = 0  # beats since the last job
        self.is_resting = False  # the next job must `wake` it
        self._alarm = _thread.allocate_lock()  # released to end a rest
        self._alarm.acquire()
        self._has_started = False
        self._idle_cpu_monitor = IdleCpuMonitor(setup.settings.heartbeat_interval)
        self._adopted_reaper = AdoptedChildReaper()
        self._has_reported_busy_threads = False  # BUSY_THREADS was sent
        self.start_hook_threads: list[int] = []  # threads that start hooks made
        #: The running job; read and cleared under the outbox's lock, so that no progress of a job follows its report.
        self.attempt: Attempt | None = None

    def start(self) -> None:
        """Start the thread, once.

        All signals but SIGUSR2 are blocked in it: they belong to the main thread.
        """
        if not self._has_started:
            with _BLOCKED_SIGNALS:
                _thread.start_new_thread(self.run, ())
            self._has_started = True

    def start_on_request(self) -> None:
        """In a signal handler: start because the supervisor misses the heartbeat."""
        try:
            self.start()
        except RuntimeError:
            pass  # no thread can be started now; the supervisor asks again

    def wait_readable(self, fd: int) -> None:
        """Wait until there is something to read. A long wait has a heartbeat."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if self._has_started or not poll.poll(DEFERRED_START_SECONDS * 1000):
            self.start()
            if not poll.poll(SESSION_IDLE_SECONDS * 1000):
                self._setup.app.client.close_unused()  # what handlers enqueue with
                poll.poll()

    def run(self) -> None:
        self._poll.register(self.handles.socket, select.POLLRDHUP)
        while True:
            self._slot.beat_count += 1
            try:
                self._check_parents()
                self._send_progress()
                self._check_idle_cpu()
                if not self.handles.dump.is_still_ours():
                    disable_stack_dumps()
                elif signal.getsignal(signal.SIGUSR2) is not ignore_dump_signal:
                    # the handler replaced all signal handlers: stacks must still be written
                    restore_dump_signal(self.handles.dump)
                titles.set_title(self._title())
                is_behind = self._adopted_reaper.reap(self._setup.settings.heartbeat_interval)
            except Exception as error:  # an error must not stop the beat
                self._log_error(error)
                is_behind = False
            if not is_behind:
                self._sleep(self._setup.settings.heartbeat_interval)

    def _sleep(self, period: float) -> None:
        """Sleep until the next beat.

        A worker without a job for a while beats less often, and its next job wakes it.
        """
        self._idle_beats = (
            self._idle_beats + 1 if self.attempt is None and self._slot.state == SlotState.IDLE else 0
        )
        began = time.monotonic()
        if self._idle_beats <= IDLE_BEATS_BEFORE_REST:
            time.sleep(period)
        else:
            period *= IDLE_BEAT_FACTOR
            self.is_resting = True
            if self.attempt is None:  # a job that begins after this line sees that we rest
                self._alarm.acquire(timeout=period)
            self.is_resting = False
        if time.monotonic() - began > period + LATE_WAKEUP_SECONDS:
            # This process was stopped. If it was continued for a dump, the main thread reads our frames just now, without
            # the GIL: a frame that came or went meanwhile would crash the process.
            time.sleep(LATE_WAKEUP_SECONDS)

    def wake(self) -> None:
        """By the main thread, when a job begins: end a rest, so that title and progress do not wait."""
        if self.is_resting:
            self.is_resting = False
            try:
                self._alarm.release()
            except RuntimeError:
                pass  # it was about to wake up anyway

    def _check_parents(self) -> None:
        """Kill this process group if the supervisor is gone, or the master while a job runs: no result could be reported."""
        gone = os.getppid() != self._setup.supervisor_pid
        if not gone and self._slot.state == SlotState.RUNNING:
            if not self.handles.socket.is_still_ours():
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
            body = ctx.take_metrics()
            if body is not None:
                self._outbox.offer(frames.encode(FrameKind.METRICS, ctx.job, ctx.lease, body))
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
        """Report threads that use CPU without a job. The master then replaces this worker."""
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
        """Write to the capture file. sys.stderr may be anything by now."""
        self.handles.output.write(f"[pgworkers: heartbeat: {type(error).__name__}: {error}]\n")


def _permille(progress: bytes) -> int:
    try:
        value = _progress_decoder.decode(progress)
        done, total = value.get("done"), value.get("total")
        return max(0, min(1000, int(1000 * float(done or 0) / float(total)))) if total else -1
    except (msgspec.DecodeError, ValueError, TypeError, OverflowError):
        return -1


#: Share of a core that threads may use without a job. A thread that wakes up to push metrics uses a hundredth of it. A busy
#: thread gets far less than a whole core on an overloaded machine, so the limit is low.
MAX_IDLE_CPU_SHARE = 0.1
#: Idle time, in beats, over which the share is measured.
JUDGED_IDLE_BEATS = 10


class IdleCpuMonitor:
    """CPU time while there is no job, added up over beats: also of a worker that is never idle for long. Pure."""

    def __init__(self, heartbeat: float) -> None:
        self._enough = int(JUDGED_IDLE_BEATS * heartbeat * 1e9)
        self._mark = 0
        self._now = self._cpu = 0  # at the last beat
        self._time = self._used = 0  # nanoseconds since the last decision

    def is_over_limit(self, mark: int, now: int, cpu: int) -> bool:
        """`mark`: start time of the last job, 0 while one runs or before the first.

        Times in nanoseconds.
        """
        if mark and mark == self._mark:
            self._time += now - self._now
            self._used += cpu - self._cpu
        self._mark, self._now, self._cpu = mark, now, cpu
        if self._time < self._enough:
            return False
        burns = self._used >= MAX_IDLE_CPU_SHARE * self._time
        self._time = self._used = 0
        return burns
