"""One order from its arrival to its report.

What few orders need (a context, a span, sessions, a deadline of the whole job) is a branch that the others pass by.
"""

from __future__ import annotations

import gc
import inspect
import sys
import traceback
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from pgworkers.clock import MAX_SECONDS
from pgworkers.context import Ctx
from pgworkers.errors import AppNotLoaded
from pgworkers.job.state import FREE, Verdict
from pgworkers.observe import tracing
from pgworkers.process import faults, memfd, scoreboard
from pgworkers.process.scoreboard import STATE, Reason, Slot, State
from pgworkers.worker import outcome
from pgworkers.worker.birth import Birth
from pgworkers.worker.loop import Loop
from pgworkers.worker.messages import Report
from pgworkers.worker.plan import Plan
from pgworkers.worker.window import Carried, Window

if TYPE_CHECKING:
    import psycopg

    from pgworkers.client.backends import Backends


#: Verdicts that are no error of the span.
GOOD = FREE | {Verdict.SUCCEEDED, Verdict.CANCELLED, Verdict.DISCARDED}
_LONGEST = int(MAX_SECONDS * 1e9)
_REPORTING = int(State.REPORTING)
_NEVER_AWAITED = frozenset({type(None), bool, int, float, str, bytes, list, dict, tuple})


class Feed:
    """What the context of a running handler knows of its slot."""

    def __init__(self, slot: Slot, job: int, lease: int, longest: int) -> None:
        self._slot = slot
        self._job = job
        self._lease = lease
        self._longest = longest  # nanoseconds that the deadline may be moved
        self.told = False  # the handler has seen that it should stop

    def cancelled(self) -> bool:
        if self._slot.wished(self._job, self._lease):
            self.told = True
        return self.told

    def reason(self) -> str:
        """Why it should end: cancel, deadline, memory, drain, lease, kill, stall."""
        return Reason(self._slot.wished(self._job, self._lease)).word

    def remaining(self) -> float | None:
        """From the slot: the supervisor moves the deadline of a job that was suspended."""
        due = self._slot.due()
        return (due - scoreboard.now()) / 1e9 if due else None

    def extend(self, seconds: float) -> None:
        self._slot.extended = min(self._slot.extended + int(seconds * 1e9), self._longest)


class Attempt:
    """The run of one order. `begin`, then `run`; then it is plain, or `report` says how it ended. Each is called once."""

    __slots__ = (
        *("_args", "_backends", "_birth", "_feed", "_slot", "_span", "_started", "_until"),
        *("began", "ctx", "job", "lease", "plan", "raised", "result"),
    )

    def __init__(self, birth: Birth, plan: Plan, args: bytes, job: int, lease: int, began: int) -> None:
        self._birth = birth
        self._slot = birth.slot
        self.plan = plan
        self._args = args
        self.job = job
        self.lease = lease
        self.began = began  # on the scoreboard's clock
        # The term as of the order. A master that comes to itself first may renew, and learn only then that the job is lost.
        self._until = birth.term.until
        self.ctx: Ctx | None = None
        self._feed: Feed | None = None
        self._backends: Backends | None = None
        self._span: tracing.Consumer | None = None
        self._started = False
        self.result: bytes | None = None  # of a handler that ended well
        self.raised: BaseException | None = None  # by one that did not

    def begin(self, cpu: int, output: int) -> None:
        """The slot says whose job this is from here on; a death is now this job's.

        `cpu`: microseconds used before it; `output`: where in the capture file its own begins.
        """
        plan, began = self.plan, self.began
        self._slot.begin(
            self.job, self.lease, began, plan.due(began), plan.memory, cpu, output, plan.exclusive, plan.stall
        )  # fmt: skip
        if faults.ARMED:
            faults.point("after_order")
        if plan.takes_ctx:
            self._make_context()

    def _make_context(self) -> None:
        order = self.plan.order
        whole = order.deadline - self._slot.deadline if order.deadline else _LONGEST
        self._feed = Feed(self._slot, self.job, self.lease, whole)
        self.ctx = Ctx(
            job=self.job,
            task=order.task,
            queue=order.queue,
            attempt=order.attempt,
            crashes=order.crashes,
            lease=self.lease,
            meta=msgspec.json.decode(order.meta),
            errors=order.errors,
            checkpoint=msgspec.json.decode(order.checkpoint),
            feed=self._feed,
            rate=self._birth.app.rate,
            connections=self,
        )

    def run(self, window: Window) -> None:
        """The handler, unless somebody wants it stopped before it began, or could by now have given it to another host."""
        if self.plan.deadline and self._is_too_late():
            return
        if self._slot.wished(self.job, self.lease):
            return
        if scoreboard.now() >= self._until:
            return
        self._started = True
        if tracing.wanted():
            order = self.plan.order
            meta = msgspec.json.decode(order.meta) or {}
            self._span = tracing.attempting(order.task, order.queue, self.job, order.attempt, meta)
        self.result = window.run(self._call)
        if self.result is None:
            self.raised, window.raised = window.raised, None

    def _is_too_late(self) -> bool:
        """Did the deadline of the whole job pass while the order waited?"""
        return 0 < self.plan.deadline <= self.began

    def is_plain(self) -> bool:
        """Did the handler end well, and is its result all there is to say?"""
        return (
            self.result is not None
            and self.ctx is None
            and self._span is None
            and not self._birth.app.rates.declared
        )

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        return self._sessions().connect(**options)

    async def aconnect(self, **options: Any) -> psycopg.AsyncConnection[Any]:
        return await self._sessions().aconnect(**options)

    def _sessions(self) -> Backends:
        """Made by the first use: most handlers never connect, and need no psycopg."""
        from pgworkers.client.backends import Backends

        if self._backends is None:
            self._backends = Backends(self._birth.app.client, self.job, self.lease)
        return self._backends

    def close_sessions(self) -> None:
        """The handler has ended, and its SQL with it. The ladder still climbs: the server may be slow to answer."""
        if self._backends is not None:
            self._backends.close()

    def _call(self, loop: Loop) -> bytes:
        task = self.plan.task
        if task is None:
            raise AppNotLoaded(f"this worker's app has no task {self.plan.order.task!r}; it was not run")
        try:
            value = task.call(self.ctx, self._args)
            if type(value) not in _NEVER_AWAITED and inspect.isawaitable(value):
                self._slot.loop = 1
                value = loop.run(value)
            return task.encode_result(value, self._birth.settings.result_limit)
        except StopIteration as error:
            raise Carried from error

    def report(self) -> Report:
        """What the master will hear. Reads texts of user code, so the ladder may still climb until it is done."""
        report = Report("done", 0.0, 0.0, 0, started=self._started)
        wished = self._slot.wished(self.job, self.lease)
        if self._started and not wished:
            self._birth.app.rates.give_back()
        if not self._started:
            report.outcome = "stopped"
        elif self.raised is not None:
            self._tell_exception(report, self.raised, wished)
        elif self.result == b"null" and self._feed is not None and self._feed.told:
            # it saw ctx.cancelled and returned early with nothing in its hands
            report.outcome = "stopped"
        elif self.result is not None:
            report.result = Raw(self.result)
        if report.outcome == "stopped" and wished:
            report.reason = Reason(wished).word
            report.rungs = self._rungs()
            if wished == Reason.MEMORY:
                report.limit, report.used = self._slot.memory, self._slot.used
        elif self._is_too_late():
            report.reason = Reason.DEADLINE.word
        _flush_streams()
        if report.outcome != "done":
            report.output = self._output()
        if self._span is not None:
            # While the ladder still climbs: an exporter that hangs is the job's affair.
            self._span.end(report.verdict, report.error, report.verdict in GOOD)
        return report

    def _tell_exception(self, report: Report, error: BaseException, wished: int) -> None:
        seen = self._feed is not None and self._feed.told
        limit = self._birth.settings.error_limit
        told = outcome.of(error, stop_wished=bool(wished), stop_seen=seen, limit=limit)
        report.outcome, report.error, report.traceback = told.outcome, told.error, told.traceback
        report.after = told.after
        if told.outcome == "error" and isinstance(error, MemoryError) and self._birth.queue.address_space:
            report.outcome, report.reason = "stopped", "memory"  # the kernel's limit spoke first
            report.limit = self._birth.queue.address_space
            return
        if told.outcome in ("error", "retry") and told.after is None and self.plan.task is not None:
            report.after = self.plan.task.backoff_after(self.plan.order.attempt, error)

    def _rungs(self) -> list[tuple[str, float]]:
        """What reached the handler, in seconds after the wish. A signal that came after its end did not."""
        asked, struck = self._slot.asked, self._slot.struck
        rungs = [("ask", 0.0)]
        if struck >= asked:
            rungs.append(("raise", round((struck - asked) / 1e9, 3)))
        return rungs

    def _output(self) -> str | None:
        birth = self._birth
        end = birth.output.size()
        if end is None:
            return None  # the handler closed the capture file; its supervisor has it still
        data = memfd.between(birth.output.fd, self._slot.output_from, end, birth.settings.output_limit)
        return data.decode("utf-8", "replace") or None

    def finish(self, report: Report) -> None:
        """What came up to its end; nobody else speaks for it any more."""
        if report.outcome == "stopped" and self._slot.asked:
            report.stopped = round(max(0.0, (scoreboard.now() - self._slot.asked) / 1e9), 6)
        if self.ctx is not None:
            progress, checkpoint = self.ctx.take_progress(), self.ctx.take_checkpoint()
            if progress is not None:
                report.progress = Raw(progress)
            if checkpoint is not None:
                report.checkpoint = Raw(checkpoint)
            if report.outcome == "done" and (children := self.ctx.take_children()) is not None:
                report.children = Raw(children)

    def forget(self) -> None:
        """Let go of what the handler left: an exception holds every frame it went through, and all they had."""
        if self.raised is not None:
            traceback.clear_frames(self.raised.__traceback__)
            self.raised = None
            gc.collect()  # frames and exceptions like to hold each other; the app itself is frozen and costs nothing

    def release_slot(self) -> None:
        """No wish can undo what is done from here on."""
        self._slot.view[STATE] = _REPORTING


def _flush_streams() -> None:
    try:
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        pass  # the handler closed or replaced it
    try:
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass
