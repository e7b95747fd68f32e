"""A worker's life: start hooks, order after order, stop hooks."""

from __future__ import annotations

import errno
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterable
from socket import socket
from typing import Any

import msgspec

from pgworkers.clock import boottime_ns
from pgworkers.ipc import frames, tickets
from pgworkers.ipc.frames import Frame
from pgworkers.ipc.report_page import ReportPage
from pgworkers.linux import fault_points, proc
from pgworkers.linux.descriptors import OwnedDescriptor, OwnedSocket
from pgworkers.observe import python_logging, tracing
from pgworkers.worker import meter, outcome
from pgworkers.worker.attempt import Attempt, OrderTemplates
from pgworkers.worker.channel import OrderInbox, ReportOutbox
from pgworkers.worker.cleanup import ProcessCleanup, stop_timers, sweep_children
from pgworkers.worker.event_loop import WorkerEventLoop
from pgworkers.worker.heartbeat import Heartbeat
from pgworkers.worker.messages import FrameKind, Report, StartFailed, encode_success
from pgworkers.worker.meter import JobMeter
from pgworkers.worker.signal_window import SignalWindow
from pgworkers.worker.startup import (
    WorkerSetup,
    apply_queue_limits,
    disable_stack_dumps,
    has_queue_limits,
    ignore_dump_signal,
    take_over_process,
)

#: After a job that needed so many bytes more than there were before it, memory is given back.
RELEASE_MEMORY_AFTER_BYTES = 16 << 20
#: A job that takes less is short: its report may wait for those of the jobs after it.
SHORT_JOB_NS = 100_000
_encode = msgspec.json.Encoder().encode
_READY = frames.encode(FrameKind.READY, 0, 0)


class WorkerProcess:
    """Made in its supervisor, once for each slot, as the crib of all that will be born there: what a worker makes for itself
    it makes in pages that it has to copy first. So nothing here belongs to a process until `run`."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        self._slot = setup.slot
        self._outbox = ReportOutbox()
        self._loop = WorkerEventLoop()
        self._heartbeat = Heartbeat(setup, self._outbox)
        self._inbox = OrderInbox(self._before_wait, self._heartbeat.wait_readable)
        self._window = SignalWindow(setup.slot, self._loop, self._heartbeat.start_on_request)
        self._cleanup: ProcessCleanup | None = None
        self._spared_children: set[int] = set()  # children that start hooks made
        self._pid = 0
        self._jobs_left = setup.queue.max_jobs or sys.maxsize
        self._hooks = bool(setup.app.start_hooks), bool(setup.app.stop_hooks)
        self._meter = JobMeter()
        self._templates = OrderTemplates(setup)
        self._short_tasks: set[str] = set()  # tasks whose last job was over at once
        self._has_queue_limits = has_queue_limits(setup)
        self._graces = int((setup.settings.ask_grace + setup.settings.raise_grace) * 1e9)
        self._signals = setup.signals_to_reset
        self._on_signal = self._window.on_signal
        self._is_forked = False  # this process is a child of the worker, or a child of one
        self._at_fork = self._after_fork_in_child
        self._at_log = self._current_job

    def run(
        self,
        sock: socket,
        tickets: int,
        report_page: ReportPage | None,
        output: int,
        dump: int,
        has_deferred_heartbeat: bool,
    ) -> int:
        """Everything a worker does, from its fork to its exit status."""
        self._accept(sock, tickets, report_page, output, dump, has_deferred_heartbeat)
        take_over_process(output, dump, self._signals, self._on_signal)
        try:
            self._start(has_deferred_heartbeat)
        except BaseException as error:
            self._report_start_failure(error)
            return 1
        self._serve()
        return self._shut_down()

    def _accept(
        self,
        sock: socket,
        tickets: int,
        report_page: ReportPage | None,
        output: int,
        dump: int,
        has_deferred_heartbeat: bool,
    ) -> None:
        """What comes with its birth."""
        birth, outbox, inbox = self._setup, self._outbox, self._inbox
        birth.socket = outbox.socket = inbox.socket = OwnedSocket(sock)
        birth.tickets = inbox.ticket_pipe = OwnedDescriptor(tickets)
        birth.report_page = outbox.report_page = report_page
        birth.output = OwnedDescriptor(output)
        birth.dump = self._window.dump = OwnedDescriptor(dump)
        self._slot.dump_fd = dump
        birth.has_deferred_heartbeat = has_deferred_heartbeat
        self._pid = os.getpid()

    def _start(self, has_deferred_heartbeat: bool) -> None:
        os.register_at_fork(after_in_child=self._at_fork)
        if self._has_queue_limits:
            apply_queue_limits(self._setup)
        if not has_deferred_heartbeat:
            self._heartbeat.start()
        hooked = self._hooks[0]
        if hooked or self._jobs_left > 1:
            self._meter.open()
        if hooked:
            self._run_hooks(self._setup.app.start_hooks)
            self._heartbeat.start_hook_threads = proc.own_thread_ids()
        python_logging.set_current_job_source(self._at_log)
        if hooked:  # else the supervisor has done it
            python_logging.configure_root_logger(
                self._setup.settings.log_format, self._setup.settings.log_level
            )
        if self._jobs_left > 1:
            self._jobs_left = _with_jitter(self._jobs_left)
            self._spared_children = set(proc.children(self._pid))
            self._cleanup = ProcessCleanup(self._setup.output, self._setup.dump, self._spared_children)
        elif hooked:  # its only job: what that leaves ends with this process
            self._spared_children = set(proc.children(self._pid))
        if fault_points.IS_ARMED:
            fault_points.fault_point("before_ready")
        if not has_deferred_heartbeat:
            _flush()

    def _serve(self) -> None:
        """Orders until the master closes the pipe of tickets or this worker has done enough."""
        self._slot.set_idle()
        try:
            if not self._setup.has_deferred_heartbeat:  # else it is taken for ready as it is
                self._outbox.send(_READY)
            while (key := self._inbox.next_ticket()) is not None:
                if key == tickets.READY_REQUEST:
                    self._outbox.send(_READY)
                    continue
                frame = self._inbox.order_for(key)
                if frame is None or not self._run_order(frame):
                    return
        except OSError as error:  # the master has closed its end, or a handler ours
            if error.errno in (errno.EBADF, errno.ENOTSOCK):
                self._slot.has_closed_channel = 1

    def _run_order(self, frame: Frame) -> bool:
        """Run one job and report its outcome. False: this process must not take another job."""
        try:
            attempt = self._begin(frame)
        except Exception as error:
            self._reject(frame, error)
            return True
        self._follow(attempt)
        attempt.run(self._window)
        ended_at = boottime_ns()
        if os.getpid() != self._pid:
            os._exit(0)  # a child that the handler forked and that returned from it
        attempt.close_sessions()
        if fault_points.IS_ARMED:
            fault_points.fault_point("before_report")
        report = attempt.report()  # reads texts of user code, so a stop request may still interrupt it
        attempt.drop_exception()
        attempt.release_slot()  # a stop request comes too late from here on
        report.is_last = not self._clean_up(attempt, report, ended_at) or self._is_worn_out()
        with self._outbox.lock:  # no progress of a job may follow its report
            self._heartbeat.attempt = None
        duration = boottime_ns() - attempt.started_at
        cpu, peak_rss = self._meter.stop()  # after the sweep: the CPU time of children counts
        attempt.complete(report)
        report.duration, report.cpu, report.peak_rss = duration // 1000 / 1e6, cpu / 1e6, peak_rss
        self._send_report(attempt, report, ended_at)
        if fault_points.IS_ARMED:
            fault_points.fault_point("after_report")
        self._slot.end_job()
        if self._meter.growth_bytes > RELEASE_MEMORY_AFTER_BYTES:
            meter.release_memory()
        return not report.is_last

    def _begin(self, frame: Frame) -> Attempt:
        """Read an order and enter it in the slot. Raises what makes the order unreadable."""
        started_at = boottime_ns()
        has_waited = self._inbox.has_waited
        template, args = self._templates.of(frame.body)
        attempt = Attempt(self._setup, template, args, frame.job, frame.lease, started_at)
        cpu = self._meter.start(started_at, has_waited)
        if self._cleanup is None or has_waited:
            output_start = self._setup.output.size() or 0
        else:
            output_start = self._cleanup.output_end
        attempt.begin(cpu, output_start)
        return attempt

    def _follow(self, attempt: Attempt) -> None:
        """Send what waits, unless the job is likely short, and make the heartbeat report this job."""
        order = attempt.template.order
        if order.task not in self._short_tasks or attempt.ctx is not None:
            self._outbox.flush()
        if order.stall_timeout:
            self._heartbeat.start()  # the supervisor watches its beat
        self._heartbeat.attempt = attempt
        if self._heartbeat.is_resting:
            self._heartbeat.wake()

    def _clean_up(self, attempt: Attempt, report: Report, now: int) -> bool:
        """Undo what the handler changed. False: this process is not fit for another job."""
        if report.outcome != "done":
            report.killed_children = proc.describe_children(self._spared_children)
        if self._cleanup is None:  # this was the only job of this process
            stop_timers()
            sweep_children(self._spared_children)  # the CPU time of its children counts
            return False
        task = attempt.template.order.task
        return self._cleanup.after_job(task, now, has_succeeded=report.outcome == "done")

    def _is_worn_out(self) -> bool:
        """Count the job. True if this process must be replaced: its event loop is stuck, max_jobs or max_rss is reached."""
        self._jobs_left -= 1
        return self._loop.is_stuck or self._jobs_left == 0 or self._is_over_max_rss()

    def _send_report(self, attempt: Attempt, report: Report, ended_at: int) -> None:
        """Send a report. The success of a very short job may wait on the report page."""
        metrics = attempt.ctx.take_metrics() if attempt.ctx is not None else None
        if metrics is not None:
            self._outbox.send(frames.encode(FrameKind.METRICS, attempt.job, attempt.lease, metrics))
        if not report.is_plain_success():
            self._outbox.send(frames.encode(FrameKind.REPORT, attempt.job, attempt.lease, _encode(report)))
            return
        frame = encode_success(attempt.job, attempt.lease, report)
        if ended_at - attempt.started_at < SHORT_JOB_NS:
            self._short_tasks.add(attempt.template.order.task)
            self._outbox.queue(frame, ended_at)
        else:
            self._short_tasks.discard(attempt.template.order.task)
            self._outbox.send(frame)

    def _current_job(self) -> tuple[int, str, str, int] | None:
        """The job whose handler runs now, for the records it logs."""
        attempt = self._heartbeat.attempt
        if attempt is None:
            return None
        order = attempt.template.order
        return attempt.job, order.task, order.queue, order.attempt

    def _reject(self, frame: Frame, error: Exception) -> None:
        """A job that cannot even be read is the job's fault, not this process's."""
        text = f"the job cannot be read, so its handler was not run: {outcome.one_line(error)}"
        report = Report("discard", 0.0, 0.0, 0, error=text, has_started=False)
        self._outbox.send(frames.encode(FrameKind.REPORT, frame.job, frame.lease, _encode(report)))
        self._slot.end_job()

    def _before_wait(self) -> bool:
        self._outbox.flush()
        return self._cleanup is None or self._cleanup.before_wait()

    def _is_over_max_rss(self) -> bool:
        limit = self._setup.queue.max_rss
        if limit is None or proc.resident_bytes(self._pid) <= limit:
            return False
        meter.release_memory()
        return proc.resident_bytes(self._pid) > limit

    def _shut_down(self) -> int:
        """Stop hooks, within the graces of the ladder; the supervisor ends one that hangs."""
        self._slot.set_leaving(boottime_ns() + self._graces)
        try:
            if self._hooks[1]:
                self._run_hooks(self._setup.app.stop_hooks)
            self._loop.close()
        except BaseException:
            self.write_traceback()
        if tracing.is_enabled():
            tracing.flush()
        _flush()
        return 0

    def _run_hooks(self, hooks: Iterable[Callable[[], Any]]) -> None:
        for hook in hooks:
            value = hook()
            if isinstance(value, Coroutine):
                self._loop.run(value, keep=True)

    def _report_start_failure(self, error: BaseException) -> None:
        """Say why: to those who read the output, and to the master, which shows it to operators."""
        self.write_traceback()
        self._setup.output.write("[pgworkers: a start hook failed; this worker has taken no job]\n")
        trace = outcome.traceback_text(error, self._setup.settings.error_limit)
        body = _encode(StartFailed(f"a start hook failed: {outcome.one_line(error)}", trace))
        try:
            self._outbox.send(frames.encode(FrameKind.START_FAILED, 0, 0, body))
        except OSError:
            pass  # the master is gone, or the hook has closed the channel

    def write_traceback(self) -> None:
        """The exception at hand, into the capture file itself: what stderr is, the user's code decides."""
        _flush()
        self._setup.output.write(traceback.format_exc())

    def _after_fork_in_child(self) -> None:
        """A process that a handler forks is not a worker: it neither reports nor keeps our socket open.

        What it forks in turn has nothing of ours any more: there the same numbers and signals are its own.
        """
        if self._is_forked:
            return
        self._is_forked = True
        self._outbox.close_in_child()
        self._inbox.close_in_child()
        disable_stack_dumps()
        for signum, handler in ((signal.SIGUSR1, self._on_signal), (signal.SIGUSR2, ignore_dump_signal)):
            if signal.getsignal(signum) == handler:
                signal.signal(signum, signal.SIG_DFL)


def _with_jitter(jobs: int) -> int:
    """Workers that started together should not be replaced together."""
    return jobs if jobs == sys.maxsize else max(1, round(jobs * random.uniform(0.9, 1.1)))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
