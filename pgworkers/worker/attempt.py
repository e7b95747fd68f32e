"""One order from its arrival to its report.

Jobs of one task mostly have the same order header. An `OrderTemplate` is what such orders have in common, parsed once.
"""

from __future__ import annotations

import gc
import inspect
import sys
import traceback
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from pgworkers import clock, result_store
from pgworkers.bounds import MAX_DURATION_SECONDS
from pgworkers.context import Ctx
from pgworkers.errors import AppNotLoaded, UsageError
from pgworkers.hooks import run_handler
from pgworkers.ipc.scoreboard import Slot, StopReason
from pgworkers.job.model import FREE_VERDICTS, Verdict
from pgworkers.linux import fault_points, memfd
from pgworkers.linux.descriptors import OwnedDescriptor
from pgworkers.observe import tracing
from pgworkers.options.retries import RETRY_EVERY_EXCEPTION
from pgworkers.secret_arguments import scrub
from pgworkers.task import Task
from pgworkers.worker import outcome
from pgworkers.worker.event_loop import WorkerEventLoop
from pgworkers.worker.messages import Order, Outcome, Report, decode_order_header, split_order
from pgworkers.worker.signal_window import CarriedStopIteration, SignalWindow
from pgworkers.worker.startup import WorkerSetup

if TYPE_CHECKING:
    import psycopg

    from pgworkers.client.handler_connections import HandlerConnections


#: Verdicts that do not mark the span as failed.
VERDICTS_WITHOUT_SPAN_ERROR = FREE_VERDICTS | {Verdict.SUCCEEDED, Verdict.CANCELLED, Verdict.DISCARDED}
MAX_EXTENSION_NS = int(MAX_DURATION_SECONDS * 1e9)
_DONE = Outcome.DONE
_NEVER_AWAITED = frozenset({type(None), bool, int, float, str, bytes, list, dict, tuple})


class SlotControl:
    """The slot as the context of a running handler sees it: the `JobControl` of context.py."""

    def __init__(self, slot: Slot, job: int, lease: int, max_extension: int) -> None:
        self._slot = slot
        self._job = job
        self._lease = lease
        self._max_extension = max_extension  # nanoseconds that the deadline may be moved
        self.has_seen_stop = False  # the handler has seen the stop request

    def is_stop_requested(self) -> bool:
        if self._slot.stop_requested_for(self._job, self._lease):
            self.has_seen_stop = True
        return self.has_seen_stop

    def stop_reason(self) -> str:
        """Why it should stop: cancel, deadline, memory, drain, lease, kill, stall."""
        return StopReason(self._slot.stop_requested_for(self._job, self._lease)).word

    def seconds_left(self) -> float | None:
        """Read from the slot, because the supervisor moves the deadline of a job that was suspended."""
        due = self._slot.effective_deadline()
        return (due - clock.boottime_ns()) / 1e9 if due else None

    def extend(self, seconds: float) -> None:
        self._slot.deadline_extension = min(
            self._slot.deadline_extension + int(seconds * 1e9), self._max_extension
        )


class Attempt:
    """The run of one order: `begin`, `run`, `report`, each called once."""

    __slots__ = (
        "_args",
        "_connections",
        "_control",
        "_has_started",
        "_lease_expires_at",
        "_output_file",
        "_secret_texts",
        "_setup",
        "_slot",
        "_span",
        "ctx",
        "exception",
        "job",
        "lease",
        "result",
        "started_at",
        "template",
    )

    def __init__(
        self,
        *,
        setup: WorkerSetup,
        output: OwnedDescriptor,
        template: OrderTemplate,
        args: bytes,
        job: int,
        lease: int,
        started_at: int,
    ) -> None:
        self._setup = setup
        self._output_file = output
        self._slot = setup.slot
        self.template = template
        self._args = args
        self.job = job
        self.lease = lease
        self.started_at = started_at  # on the scoreboard's clock
        # The deadline when the order was read. After a stop of the machine, a master that resumes first may renew its leases
        # and learn only then that it has lost this job.
        self._lease_expires_at = setup.lease_deadline.expires_at
        self.ctx: Ctx | None = None
        self._control: SlotControl | None = None
        self._connections: HandlerConnections | None = None
        self._span: tracing.AttemptSpan | None = None
        self._has_started = False
        self._secret_texts: Sequence[str] | None = None  # read when first needed
        self.result: bytes | None = None  # of a handler that ended well
        self.exception: BaseException | None = None  # by one that did not

    def begin(self, cpu: int, output_start: int) -> None:
        """Enter the job in the slot. A death of the process is this job's from here on.

        `cpu`: microseconds used before it. `output_start`: where in the capture file its output begins.
        """
        template = self.template
        self._slot.begin_job(
            job=self.job,
            lease=self.lease,
            started_at=self.started_at,
            deadline=template.deadline_at(self.started_at),
            memory_limit=template.memory_limit,
            cpu_at_start=cpu,
            output_start=output_start,
            is_exclusive=template.order.exclusive,
            stall_timeout=template.stall_timeout_ns,
        )
        if fault_points.IS_ARMED:
            fault_points.fault_point("after_order")
        if template.takes_ctx or self._setup.app.hooks.has_handler_hooks:
            self._make_context()

    def _make_context(self) -> None:
        order = self.template.order
        max_extension = order.deadline - self._slot.deadline if order.deadline else MAX_EXTENSION_NS
        self._control = SlotControl(self._slot, self.job, self.lease, max_extension)
        self.ctx = _context_type()(
            job=self.job,
            task=order.task,
            queue=order.queue,
            attempt=order.attempt,
            crashes=order.crashes,
            lease=self.lease,
            meta=msgspec.json.decode(order.meta),
            errors=order.errors,
            checkpoint=msgspec.json.decode(order.checkpoint),
            control=self._control,
            rate=self._setup.app.rate,
            connections=self,
        )

    def run(self, window: SignalWindow) -> None:
        """Run the handler, unless a stop was requested before it began or another host may have the job by now."""
        if self.template.deadline_ns and self._is_past_deadline():
            return
        if self._slot.stop_requested_for(self.job, self.lease):
            return
        if clock.boottime_ns() >= self._lease_expires_at:
            return
        self._has_started = True
        if tracing.is_enabled():
            order = self.template.order
            meta = msgspec.json.decode(order.meta) or {}
            self._span = tracing.start_attempt_span(order.task, order.queue, self.job, order.attempt, meta)
        self.result = window.run(self._call)
        if fault_points.IS_CHAOS_PLANNED and self.ctx is not None:
            self.ctx.end_handler()
        if self.result is None:
            self.exception, window.exception = window.exception, None

    def _is_past_deadline(self) -> bool:
        """True if the deadline of the whole job passed while the order waited."""
        return 0 < self.template.deadline_ns <= self.started_at

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        return self._database_sessions().connect(**options)

    async def aconnect(self, **options: Any) -> psycopg.AsyncConnection[Any]:
        return await self._database_sessions().aconnect(**options)

    def _database_sessions(self) -> HandlerConnections:
        """Made at the first use: most handlers never connect and need no psycopg."""
        from pgworkers.client.handler_connections import HandlerConnections

        if self._connections is None:
            self._connections = HandlerConnections(self._setup.app.client, self.job, self.lease)
        return self._connections

    def close_sessions(self) -> None:
        """Close the handler's connections.

        A stop request still counts: the server may be slow to answer.
        """
        if self._connections is not None:
            self._connections.close()

    def _call(self, loop: WorkerEventLoop) -> bytes:
        task = self.template.task
        if task is None:
            raise AppNotLoaded(f"this worker's app has no task {self.template.order.task!r}; it was not run")
        try:
            hooks = self._setup.app.hooks
            if hooks.has_handler_hooks and self.ctx is not None:
                value = run_handler(
                    hooks,
                    self.ctx,
                    partial(task.run_handler, self.ctx, self._args),
                    partial(self._await, loop),
                )
            else:
                value = task.run_handler(self.ctx, self._args)
            if type(value) not in _NEVER_AWAITED and inspect.isawaitable(value):
                value = self._await(loop, value)
            settings = self._setup.settings
            return task.encode_result(
                value,
                settings.result_limit,
                store_limit=settings.result_store_limit,
                store=self._store_result if settings.result_store else None,
            )
        except StopIteration as error:
            raise CarriedStopIteration from error

    def _store_result(self, data: bytes) -> bytes:
        return result_store.put(self._setup.settings.result_store, self.job, self.lease, data)

    def _await(self, loop: WorkerEventLoop, awaitable: Awaitable[Any]) -> Any:
        self._slot.has_event_loop = 1
        return loop.run(awaitable)

    def report(self) -> Report:
        """Describe how the attempt ended.

        Reads texts of user code, so a stop request may still interrupt it.
        """
        report = Report(outcome=_DONE, duration=0.0, cpu=0.0, peak_rss=0, has_started=self._has_started)
        stop_reason = self._slot.stop_requested_for(self.job, self.lease)
        if self._has_started and not stop_reason:
            self._setup.app.rates.return_unused_tokens()
        if not self._has_started:
            report.outcome = Outcome.STOPPED
        elif self.exception is not None:
            self._describe_exception(report, self.exception, stop_reason)
        elif self.result == b"null" and self._control is not None and self._control.has_seen_stop:
            # it saw ctx.cancelled and returned early without a result
            report.outcome = Outcome.STOPPED
        elif self.result is not None:
            report.result = Raw(self.result)
        if report.is_stopped and stop_reason:
            report.reason = StopReason(stop_reason)
            report.rungs = self._rungs()
            if stop_reason == StopReason.MEMORY:
                report.memory_limit, report.memory_used = self._slot.memory_limit, self._slot.memory_used
        elif self._is_past_deadline():
            report.reason = StopReason.DEADLINE
        _flush_streams()
        if not report.is_success:
            report.output = self._output()
            self._scrub_secrets(report)
        if self._span is not None:
            # A stop request still counts here: an exporter that hangs counts as the job.
            self._span.end(report.verdict, report.error, report.verdict in VERDICTS_WITHOUT_SPAN_ERROR)
        return report

    def secret_texts(self) -> Sequence[str]:
        """Return the texts of the secret arguments of this job."""
        if self._secret_texts is None:
            try:
                task = self.template.task
                self._secret_texts = () if task is None else task.arguments.secret_texts(self._args)
            except UsageError:  # an annotation that cannot be resolved; the call reports it
                self._secret_texts = ()
        return self._secret_texts

    def _scrub_secrets(self, report: Report) -> None:
        """Remove the values of secret arguments from texts that may quote them."""
        secrets = self.secret_texts()
        report.error = scrub(report.error, secrets)
        report.traceback = scrub(report.traceback, secrets)
        report.output = scrub(report.output, secrets)

    def _describe_exception(self, report: Report, error: BaseException, is_stop_requested: int) -> None:
        seen = self._control is not None and self._control.has_seen_stop
        limit = self._setup.settings.error_limit
        task = self.template.task
        described = outcome.report_exception(
            error,
            is_stop_requested=bool(is_stop_requested),
            has_seen_stop=seen,
            limit=limit,
            policy=RETRY_EVERY_EXCEPTION if task is None else task.exception_policy,
        )
        report.outcome, report.error, report.traceback = (
            described.outcome,
            described.error,
            described.traceback,
        )
        report.retry_after = described.retry_after
        if (
            described.outcome in (Outcome.ERROR, Outcome.FINAL_ERROR)
            and isinstance(error, MemoryError)
            and self._setup.queue.address_space
        ):
            report.outcome, report.reason = (
                Outcome.STOPPED,
                StopReason.MEMORY,
            )  # the kernel's limit was hit first
            report.memory_limit = self._setup.queue.address_space
            return
        if (
            described.outcome in (Outcome.ERROR, Outcome.RETRY)
            and described.retry_after is None
            and task is not None
        ):
            report.retry_after = task.backoff_delay(self.template.order.attempt, error)

    def _rungs(self) -> list[tuple[str, float]]:
        """The rungs that reached the handler, in seconds after the stop request.

        A signal after its end did not.
        """
        requested_at, raised_at = self._slot.stop_requested_at, self._slot.job_stopped_raised_at
        rungs = [("ask", 0.0)]
        if raised_at >= requested_at:
            rungs.append(("raise", round((raised_at - requested_at) / 1e9, 3)))
        return rungs

    def _output(self) -> str | None:
        end = self._output_file.size()
        if end is None:
            return None  # the handler closed the capture file; the supervisor still has it
        limit = self._setup.settings.output_limit
        data = memfd.read_range(self._output_file.fd, self._slot.output_start, end, limit)
        return data.decode("utf-8", "replace") or None

    def complete(self, report: Report) -> None:
        """Add what the handler set until its end: progress, checkpoint, enqueued jobs, and how long the stop took."""
        if report.is_stopped and self._slot.stop_requested_at:
            report.stop_seconds = round(
                max(0.0, (clock.boottime_ns() - self._slot.stop_requested_at) / 1e9), 6
            )
        if self.ctx is not None:
            progress, checkpoint = self.ctx.take_progress(), self.ctx.take_checkpoint()
            if progress is not None:
                report.progress = Raw(progress)
            if checkpoint is not None:
                report.checkpoint = Raw(checkpoint)
            if report.is_success and (children := self.ctx.take_children()) is not None:
                report.enqueued_jobs = Raw(children)

    def drop_exception(self) -> None:
        """Release the exception, which holds every frame that it went through and all their objects."""
        if self.exception is not None:
            traceback.clear_frames(self.exception.__traceback__)
            self.exception = None
            gc.collect()  # frames and exceptions hold each other; the app itself is frozen

    def release_slot(self) -> None:
        """From here on a stop request comes too late."""
        self._slot.set_reporting()


def _context_type() -> type[Ctx]:
    """`Ctx`, or the one that lets planned faults happen."""
    if not fault_points.IS_CHAOS_PLANNED:
        return Ctx
    from pgworkers.worker.chaos import ChaosCtx

    return ChaosCtx


def _flush_streams() -> None:
    try:
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        pass  # the handler closed or replaced it
    try:
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass


#: Number of templates that are kept. Headers with a checkpoint, a trace or a deadline occur once.
MAX_CACHED_TEMPLATES = 100


class OrderTemplate:
    """An order without its arguments, in the units of the scoreboard."""

    __slots__ = (
        "deadline_ns",
        "memory_limit",
        "order",
        "stall_timeout_ns",
        "takes_ctx",
        "task",
        "timeout_ns",
    )

    def __init__(self, tasks: Mapping[str, Task[..., Any]], queue_memory: int | None, order: Order) -> None:
        self.order = order
        self.task = tasks.get(order.task)
        self.takes_ctx = _takes_ctx(self.task)
        self.memory_limit = order.memory or queue_memory or 0
        self.deadline_ns = order.deadline
        self.timeout_ns = (
            None if order.timeout is None else int(min(max(0.0, order.timeout), MAX_DURATION_SECONDS) * 1e9)
        )
        self.stall_timeout_ns = int(order.stall_timeout * 1e9) if order.stall_timeout else 0

    def deadline_at(self, now: int) -> int:
        """The deadline of an attempt that begins now; 0: none."""
        if self.timeout_ns is None:
            return self.deadline_ns
        own = now + self.timeout_ns
        return min(self.deadline_ns, own) if self.deadline_ns else own


class OrderTemplates:
    """The templates of recent order headers."""

    def __init__(self, tasks: Mapping[str, Task[..., Any]], queue_memory: int | None) -> None:
        self._tasks = tasks
        self._queue_memory = queue_memory
        self._known: dict[bytes, OrderTemplate] = {}

    def of(self, body: bytes) -> tuple[OrderTemplate, bytes]:
        """The template and the arguments of an order. Raises what makes it unreadable."""
        head, args = split_order(body)
        template = self._known.get(head)
        return (self._learn(head) if template is None else template), args

    def _learn(self, header: bytes) -> OrderTemplate:
        if len(self._known) >= MAX_CACHED_TEMPLATES:
            self._known.clear()
        template = self._known[header] = OrderTemplate(
            self._tasks, self._queue_memory, decode_order_header(header)
        )
        return template


def _takes_ctx(task: Task[..., Any] | None) -> bool:
    try:
        return task is not None and task.arguments.context_parameter is not None
    except UsageError:
        return False  # the call will say what is wrong with it
