"""The worker process: start hooks, one order after another, stop hooks."""

from __future__ import annotations

import errno
import os
import random
import signal
import sys
import traceback
from collections.abc import Coroutine, Iterable, Sequence

import msgspec

from pgworkers.clock import boottime_ns
from pgworkers.hooks import WorkerHook
from pgworkers.ipc import frames, tickets
from pgworkers.ipc.frames import Frame
from pgworkers.linux import fault_points, proc
from pgworkers.observe import handler_prometheus, python_logging, tracing
from pgworkers.worker import meter, outcome
from pgworkers.worker.attempt import Attempt, OrderTemplates
from pgworkers.worker.channel import OrderInbox, ReportOutbox
from pgworkers.worker.cleanup import ProcessCleanup, stop_timers, sweep_children
from pgworkers.worker.event_loop import WorkerEventLoop
from pgworkers.worker.heartbeat import Heartbeat
from pgworkers.worker.messages import FrameKind, Outcome, Report, StartFailed, encode_success
from pgworkers.worker.meter import JobMeter, Usage
from pgworkers.worker.signal_window import SignalWindow
from pgworkers.worker.startup import (
    WorkerHandles,
    WorkerSetup,
    apply_queue_limits,
    disable_stack_dumps,
    has_queue_limits,
    ignore_dump_signal,
    take_over_process,
)

#: A job that made the process grow by more than this is followed by `release_memory`.
RELEASE_MEMORY_AFTER_BYTES = 16 << 20
#: A job that takes less is short: its report may wait for those of the jobs after it.
SHORT_JOB_NS = 100_000
_encode = msgspec.json.Encoder().encode
_READY = frames.encode(FrameKind.READY, 0, 0)


class WorkerProcess:
    """Worker state built in the supervisor before fork(), once per slot, so that children share it copy-on-write."""

    _handles: WorkerHandles  # set by `run`

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        self._slot = setup.slot
        self._outbox = ReportOutbox()
        self._loop = WorkerEventLoop()
        self._heartbeat = Heartbeat(setup, self._outbox)
        self._inbox = OrderInbox(self._before_wait, self._heartbeat.wait_readable)
        self._window = SignalWindow(setup.slot, self._loop, self._heartbeat.start_on_request)
        self._meter = JobMeter()
        self._templates = OrderTemplates(setup.app.tasks, setup.queue.memory)
        self._cleanup: ProcessCleanup | None = None  # None: this process runs one job
        self._spared_children: set[int] = set()  # children that start hooks made
        self._pid = 0
        self._jobs_left = setup.queue.max_jobs or sys.maxsize
        self._short_tasks: set[str] = set()  # tasks whose last job was short
        self._is_forked = False  # True in a child that a handler forked, and in its children

    def run(self, handles: WorkerHandles) -> int:
        """Everything a worker does, from its fork to its exit status."""
        self._accept(handles)
        take_over_process(handles, self._setup.signals_to_reset, self._window.on_signal)
        try:
            self._start()
        except BaseException as error:
            self._report_start_failure(error)
            return 1
        self._serve()
        return self._shut_down()

    def _accept(self, handles: WorkerHandles) -> None:
        self._handles = self._heartbeat.handles = handles
        self._outbox.socket, self._outbox.report_page = handles.socket, handles.report_page
        self._inbox.socket, self._inbox.ticket_pipe = handles.socket, handles.tickets
        self._window.dump = handles.dump
        self._slot.dump_fd = handles.dump.fd
        self._pid = os.getpid()

    def _start(self) -> None:
        """Limits, heartbeat, start hooks, and the snapshot of the process that cleanup restores."""
        setup, handles = self._setup, self._handles
        start_hooks = setup.app.hooks.start_hooks_of(setup.queue.name)
        has_start_hooks = bool(start_hooks)
        os.register_at_fork(after_in_child=self._after_fork_in_child)
        handler_prometheus.enter_worker(setup.index)
        if has_queue_limits(setup):
            apply_queue_limits(setup)
        if not handles.is_short_lived:
            self._heartbeat.start()
        if has_start_hooks or self._jobs_left > 1:
            self._meter.open()
        if has_start_hooks:
            self._run_hooks(start_hooks)
            self._heartbeat.start_hook_threads = proc.own_thread_ids()
        python_logging.set_current_job_source(self._current_job)
        python_logging.set_secret_source(self._current_secrets)
        if has_start_hooks:  # otherwise the supervisor has done it
            python_logging.configure_root_logger(setup.settings.log_format, setup.settings.log_level)
        if has_start_hooks or self._jobs_left > 1:
            self._spared_children = set(proc.children(self._pid))
        if self._jobs_left > 1:
            self._jobs_left = _with_jitter(self._jobs_left)
            self._cleanup = ProcessCleanup(handles.output, handles.dump, self._spared_children)
        if fault_points.IS_ARMED:
            fault_points.fault_point("before_ready")
        if not handles.is_short_lived:
            _flush()

    def _serve(self) -> None:
        """Run orders until the master closes the ticket pipe or this process must not take another job."""
        self._slot.set_idle()
        try:
            if not self._handles.is_short_lived:  # otherwise the supervisor has reported it ready
                self._outbox.send(_READY)
            while (key := self._inbox.next_ticket()) is not None:
                if key == tickets.READY_REQUEST:
                    self._outbox.send(_READY)
                    continue
                frame = self._inbox.order_for(key)
                if frame is None or not self._run_order(frame):
                    return
        except OSError as error:  # the master has closed its end, or a handler has closed ours
            if error.errno in (errno.EBADF, errno.ENOTSOCK):
                self._slot.has_closed_channel = 1

    def _run_order(self, frame: Frame) -> bool:
        """Run one job and report its outcome. False: this process must not take another job."""
        try:
            attempt = self._begin(frame)
        except Exception as error:
            self._reject(frame, error)
            return True
        self._send_waiting_reports(attempt)
        self._attach_heartbeat(attempt)
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
        report.is_last = not self._clean_up(attempt, report, ended_at) or self._count_job()
        with self._outbox.lock:  # no progress of a job may follow its report
            self._heartbeat.attempt = None
        usage = self._meter.stop()  # after the sweep: the CPU time of children counts
        attempt.complete(report)
        self._send_report(attempt, report, usage, ended_at)
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
        attempt = Attempt(
            setup=self._setup,
            output=self._handles.output,
            template=template,
            args=args,
            job=frame.job,
            lease=frame.lease,
            started_at=started_at,
        )
        cpu = self._meter.start(started_at, has_waited)
        if self._cleanup is None or has_waited:
            output_start = self._handles.output.size() or 0
        else:
            output_start = self._cleanup.output_end
        attempt.begin(cpu, output_start)
        return attempt

    def _send_waiting_reports(self, attempt: Attempt) -> None:
        """Send the reports that wait on the report page, unless the next job is likely short, too."""
        if attempt.template.order.task not in self._short_tasks or attempt.ctx is not None:
            self._outbox.flush()

    def _attach_heartbeat(self, attempt: Attempt) -> None:
        """Make the heartbeat report this job."""
        if attempt.template.order.stall_timeout:
            self._heartbeat.start()  # the supervisor watches its beat
        self._heartbeat.attempt = attempt
        if self._heartbeat.is_resting:
            self._heartbeat.wake()

    def _clean_up(self, attempt: Attempt, report: Report, ended_at: int) -> bool:
        """Undo what the handler changed. False: this process is not fit for another job."""
        if not report.is_success:
            report.killed_children = proc.describe_children(self._spared_children)
        if self._cleanup is None:  # this was the only job of this process
            stop_timers()
            sweep_children(self._spared_children)  # the CPU time of its children counts
            return False
        return self._cleanup.after_job(
            attempt.template.order.task,
            started_at=attempt.started_at,
            ended_at=ended_at,
            has_succeeded=report.is_success,
        )

    def _count_job(self) -> bool:
        """Count the job. True if this process must be replaced.

        It must be if its event loop is stuck, or if it has reached max_jobs or max_rss.
        """
        self._jobs_left -= 1
        return self._loop.is_stuck or self._jobs_left == 0 or self._is_over_max_rss()

    def _send_report(self, attempt: Attempt, report: Report, usage: Usage, ended_at: int) -> None:
        """Send a report. The success of a very short job may wait on the report page."""
        metrics = attempt.ctx.take_metrics() if attempt.ctx is not None else None
        if metrics is not None:
            self._outbox.send(frames.encode(FrameKind.METRICS, attempt.job, attempt.lease, metrics))
        if not report.is_plain_success():
            report.duration, report.cpu, report.peak_rss = usage.wall / 1e6, usage.cpu / 1e6, usage.peak_rss
            self._outbox.send(frames.encode(FrameKind.REPORT, attempt.job, attempt.lease, _encode(report)))
            return
        frame = encode_success(
            attempt.job,
            attempt.lease,
            duration=usage.wall,
            cpu=usage.cpu,
            peak_rss=usage.peak_rss,
            result=attempt.result or b"null",
        )
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

    def _current_secrets(self) -> Sequence[str]:
        """The texts of the secret arguments of the job whose handler runs now."""
        attempt = self._heartbeat.attempt
        return () if attempt is None else attempt.secret_texts()

    def _reject(self, frame: Frame, error: Exception) -> None:
        """Report a job whose order or arguments cannot be read: no attempt can do better."""
        text = f"the job cannot be read, so its handler was not run: {outcome.error_line(error)}"
        report = Report(
            outcome=Outcome.DISCARD, duration=0.0, cpu=0.0, peak_rss=0, error=text, has_started=False
        )
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
        """Run the stop hooks.

        The supervisor kills a process whose hooks take longer than the graces of the ladder.
        """
        settings = self._setup.settings
        self._slot.set_leaving(boottime_ns() + int((settings.ask_grace + settings.raise_grace) * 1e9))
        try:
            self._run_hooks(self._setup.app.hooks.stop_hooks_of(self._setup.queue.name))
            self._loop.close()
        except BaseException:
            self.write_traceback()
        if tracing.is_enabled():
            tracing.flush()
        _flush()
        return 0

    def _run_hooks(self, hooks: Iterable[WorkerHook]) -> None:
        for hook in hooks:
            value = hook.call(self._setup.queue.name, self._setup.index)
            if isinstance(value, Coroutine):
                self._loop.run(value, keep=True)

    def _report_start_failure(self, error: BaseException) -> None:
        """Write the failure to the output and send it to the master, which shows it to operators."""
        self.write_traceback()
        self._handles.output.write("[pgworkers: a start hook failed; this worker has taken no job]\n")
        trace = outcome.traceback_text(error, self._setup.settings.error_limit)
        body = _encode(StartFailed(f"a start hook failed: {outcome.error_line(error)}", trace))
        try:
            self._outbox.send(frames.encode(FrameKind.START_FAILED, 0, 0, body))
        except OSError:
            pass  # the master is gone, or the hook has closed the channel

    def write_traceback(self) -> None:
        """Write the current exception to the capture file. sys.stderr may be anything by now."""
        _flush()
        self._handles.output.write(traceback.format_exc())

    def _after_fork_in_child(self) -> None:
        """Take the channel and the signals from a process that a handler forked: it is not a worker.

        Its own children have nothing of ours any more. There the same descriptor numbers and signals are their own.
        """
        if self._is_forked:
            return
        self._is_forked = True
        self._outbox.close_in_child()
        self._inbox.close_in_child()
        disable_stack_dumps()
        for signum, handler in (
            (signal.SIGUSR1, self._window.on_signal),
            (signal.SIGUSR2, ignore_dump_signal),
        ):
            if signal.getsignal(signum) == handler:
                signal.signal(signum, signal.SIG_DFL)


def _with_jitter(jobs: int) -> int:
    """Vary max_jobs by a tenth, so that workers that started together are not replaced together."""
    return jobs if jobs == sys.maxsize else max(1, round(jobs * random.uniform(0.9, 1.1)))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
