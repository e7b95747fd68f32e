"""A worker's life: start hooks, order after order, stop hooks."""

from __future__ import annotations

import errno
import os
import random
import signal
import sys
import traceback
from _socket import socket
from collections.abc import Callable, Coroutine, Iterable
from os import getpid
from typing import Any

import msgspec

from pgworkers.clock import boottime_ns
from pgworkers.ipc import frames, tickets
from pgworkers.ipc.frames import Frame
from pgworkers.ipc.report_page import ReportPage
from pgworkers.linux import fault_points, proc
from pgworkers.linux.descriptors import OwnedDescriptor, OwnedSocket
from pgworkers.observe import python_logging, tracing
from pgworkers.worker import meter, noting, outcome
from pgworkers.worker.attempt import Attempt, OrderTemplates
from pgworkers.worker.channel import OrderInbox, ReportOutbox
from pgworkers.worker.cleanup import SHORT_JOB_NS, ProcessCleanup, stop_timers, sweep_children
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
        self._may_grow = setup.queue.max_rss is None
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
        self._pid = getpid()

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
            self._cleanup = ProcessCleanup(self._setup.output, self._setup.dump)
        elif hooked:  # nobody comes after the first job: what it leaves goes with us
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
                if frame is None or self._run_order(frame):
                    return
        except OSError as error:  # the master has closed its end, or a handler ours
            if error.errno in (errno.EBADF, errno.ENOTSOCK):
                self._slot.has_closed_channel = 1

    def _run_order(self, frame: Frame) -> bool:
        """Run one order; True: it was the last."""
        _, job, lease, body = frame
        began = boottime_ns()
        tidy, waited = self._cleanup, self._inbox.has_waited
        try:
            plan, args = self._templates.of(body)
            attempt = Attempt(self._setup, plan, args, job, lease, began)
            cpu = self._meter.start(began, waited)
            output = (self._setup.output.size() or 0) if tidy is None or waited else tidy.output_end
            attempt.begin(cpu, output)
        except Exception as error:  # too deep, not what an order looks like: no attempt can do better
            self._reject(frame, error)
            return False
        is_brief = plan.order.task in self._short_tasks
        if not is_brief or attempt.ctx is not None:
            self._outbox.flush()  # nobody knows how long this one takes
        heartbeat = self._heartbeat
        if plan.order.stall_timeout:
            heartbeat.start()  # who may not stand still must be seen to live
        heartbeat.attempt = attempt
        if heartbeat.is_resting:
            heartbeat.wake()
        attempt.run(self._window)
        took = (ended := boottime_ns()) - began
        if took < SHORT_JOB_NS and attempt.result is not None and tidy is not None and tidy.after_job(ended):
            if is_brief and self._may_grow and self._jobs_left > 1 and attempt.is_plain_success():
                self._finish_short_order(attempt, took, attempt.result)
                return False
            return self._finish_order(attempt, took)
        if getpid() != self._pid:
            os._exit(0)  # a child that the handler forked and that returned from it
        return self._finish_order(attempt, None)

    def _finish_short_order(self, attempt: Attempt, took: int, result: bytes) -> None:
        """What is left to do after most very short jobs: nothing to put back, nothing to tell but the result."""
        if fault_points.IS_ARMED:
            fault_points.fault_point("before_report")
        attempt.release_slot()
        self._jobs_left -= 1
        self._heartbeat.attempt = None
        cpu, peak = self._meter.guess(took)
        self._outbox.queue(encode_success(attempt.job, attempt.lease, took // 1000, cpu, peak, result))
        if fault_points.IS_ARMED:
            fault_points.fault_point("after_report")
        self._slot.end_job()

    def _finish_order(self, attempt: Attempt, short_duration: int | None) -> bool:
        """What may be left to do after a job; True: it was the last.

        `short_duration`: how long it took, if it was so short that a partial check was enough.
        """
        attempt.close_sessions()
        if fault_points.IS_ARMED:
            fault_points.fault_point("before_report")
        report = attempt.report()
        attempt.drop_exception()
        attempt.release_slot()
        self._clean_up(report, short_duration is not None)
        with self._outbox.lock:
            self._heartbeat.attempt = None
        took = boottime_ns() - attempt.started_at if short_duration is None else short_duration
        # after the children were swept: their CPU time counts, too
        cpu, peak = self._meter.stop(took) if short_duration is None else self._meter.guess(took)
        attempt.complete(report)
        said = attempt.ctx.take_metrics() if attempt.ctx is not None else None
        if said is not None:
            self._outbox.send(frames.encode(FrameKind.METRICS, attempt.job, attempt.lease, said))
        if report.is_plain_success():
            self._send_success(attempt, took, cpu, peak, should_queue=short_duration is not None)
        else:
            report.duration, report.cpu, report.peak_rss = took // 1000 / 1e6, cpu / 1e6, peak
            self._outbox.send(frames.encode(FrameKind.REPORT, attempt.job, attempt.lease, _encode(report)))
        if fault_points.IS_ARMED:
            fault_points.fault_point("after_report")
        self._slot.end_job()
        if short_duration is None and self._meter.growth_bytes > RELEASE_MEMORY_AFTER_BYTES:
            meter.release_memory()
        return report.is_last

    def _send_success(self, attempt: Attempt, took: int, cpu: int, peak: int, *, should_queue: bool) -> None:
        """In the short form, since it says it all; `should_queue`: many at once."""
        task = attempt.template.order.task
        if took < SHORT_JOB_NS:
            self._short_tasks.add(task)
        else:
            self._short_tasks.discard(task)
        result = attempt.result or b"null"
        end = encode_success(attempt.job, attempt.lease, took // 1000, cpu, peak, result)
        if should_queue:
            self._outbox.queue(end)
        else:
            self._outbox.send(end)

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

    def _clean_up(self, report: Report, was_short: bool) -> None:
        """Undo what the handler changed, and decide whether this process may have another job."""
        if report.outcome != "done":
            report.killed_children = self._children_left()
        if self._cleanup is None:
            stop_timers()
            sweep_children(self._spared_children)  # its children's CPU time is its own
        fit = was_short or (self._cleanup is not None and self._cleanup.check_everything(boottime_ns()))
        self._jobs_left -= 1
        report.is_last = not fit or self._loop.is_stuck or self._jobs_left == 0 or self._is_over_max_rss()

    def _children_left(self) -> list[str]:
        """Those that are about to be swept."""
        return proc.describe_children(
            self._cleanup.children if self._cleanup is not None else self._spared_children
        )

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
        noting.noted[0] = True  # so that it finds out, should it return from the handler
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
