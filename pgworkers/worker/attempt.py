"""One order from its arrival to its report."""

from __future__ import annotations

import gc
import inspect
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from pgworkers.clock import MAX_SECONDS
from pgworkers.context import Ctx
from pgworkers.errors import AppNotLoaded, UsageError
from pgworkers.job.state import FREE, Verdict
from pgworkers.observe import tracing
from pgworkers.process import faults, memfd, scoreboard
from pgworkers.process.measure import Meter
from pgworkers.process.scoreboard import STATE, Reason, Slot, State
from pgworkers.task import Task
from pgworkers.worker import outcome
from pgworkers.worker.birth import Birth
from pgworkers.worker.loop import Loop
from pgworkers.worker.messages import Order, Report
from pgworkers.worker.window import Carried, Ending, Window

if TYPE_CHECKING:
    import psycopg

    from pgworkers.client.backends import Backends


#: Verdicts that are no error of the span.
GOOD = FREE | {Verdict.SUCCEEDED, Verdict.CANCELLED, Verdict.DISCARDED}
_LONGEST = int(MAX_SECONDS * 1e9)
_UNKNOWN = Ending(None, None)
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
    """The run of one order. `prepare`, then `run`, then `report`, each called once."""

    # What most attempts never have is said here once: setting it for each of them costs as much as a handler's call.
    ctx: Ctx | None = None
    _ending = _UNKNOWN
    _feed: Feed | None = None
    _backends: Backends | None = None
    _span: tracing.Consumer | None = None
    _started = False
    _too_late = False  # the deadline of the whole job passed while the order waited

    def __init__(self, birth: Birth, order: Order, job: int, lease: int, output_from: int) -> None:
        self._birth = birth
        self.order = order
        self._slot = birth.slot
        self.job = job
        self.lease = lease
        self.began = time.monotonic()
        self._output_from = output_from
        self._task: Task[..., Any] | None = birth.app.tasks.get(order.task)

    def prepare(self, meter: Meter, fresh: bool) -> None:
        """The slot says whose job this is from here on; a death is now this job's. `fresh`: we were idle before it."""
        order, now = self.order, scoreboard.now()
        memory = order.memory or self._birth.queue.memory or 0
        deadline = order.deadline
        if order.timeout is not None:
            own = now + int(min(max(0.0, order.timeout), MAX_SECONDS) * 1e9)
            deadline = min(deadline, own) if deadline else own
        if 0 < order.deadline <= now:
            self._too_late = True
        cpu = int(meter.begin(self.began, fresh) * 1e6)
        stall = int(order.stall_timeout * 1e9) if order.stall_timeout else 0
        self._slot.begin(
            self.job, self.lease, now, deadline, memory, cpu, self._output_from, int(order.exclusive), stall
        )
        if faults.ARMED:
            faults.point("after_order")
        try:
            if self._task is not None and self._task.arguments.reserved is not None:
                self._make_context()
        except UsageError:
            pass  # the call will say what is wrong with it

    def _make_context(self) -> None:
        order = self.order
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
        if self._too_late or self._slot.wished(self.job, self.lease):
            return
        if scoreboard.now() >= self._birth.term.until:
            return
        self._started = True
        order = self.order
        if tracing.wanted():
            meta = msgspec.json.decode(order.meta) or {}
            self._span = tracing.attempting(order.task, order.queue, self.job, order.attempt, meta)
        self._ending = window.run(self.job, self.lease, self._call)

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
        task = self._task
        if task is None:
            raise AppNotLoaded(f"this worker's app has no task {self.order.task!r}; it was not run")
        try:
            value = task.call(self.ctx, self.order.args)
            if type(value) not in _NEVER_AWAITED and inspect.isawaitable(value):
                self._slot.window = 2
                value = loop.run(value)
            return task.encode_result(value, self._birth.settings.result_limit)
        except StopIteration as error:
            raise Carried from error

    def report(self) -> Report:
        """What the master will hear. Reads texts of user code, so the ladder may still climb until it is done."""
        report = Report("done", 0.0, 0.0, 0, started=self._started)
        ending, wished = self._ending, self._slot.wished(self.job, self.lease)
        if self._started and not wished:
            self._birth.app.rates.give_back()
        if not self._started:
            report.outcome = "stopped"
        elif ending.raised is not None:
            self._tell_exception(report, ending.raised, wished)
        elif ending.result == b"null" and self._feed is not None and self._feed.told:
            # it saw ctx.cancelled and returned early with nothing in its hands
            report.outcome = "stopped"
        elif ending.result is not None:
            report.result = Raw(ending.result)
        if report.outcome == "stopped" and wished:
            report.reason = Reason(wished).word
            report.rungs = self._rungs()
        elif self._too_late:
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
            return
        if told.outcome in ("error", "retry") and told.after is None and self._task is not None:
            report.after = self._task.backoff_after(self.order.attempt, error)

    def _rungs(self) -> list[tuple[str, float]]:
        """As far as the supervisor climbed, in seconds after the wish."""
        asked, raised = self._slot.asked, self._slot.raised
        rungs = [("ask", 0.0)]
        if raised:
            rungs.append(("raise", round(max(0.0, (raised - asked) / 1e9), 3)))
        return rungs

    def _output(self) -> str | None:
        birth = self._birth
        end = memfd.size(birth.output)
        data = memfd.between(birth.output, self._output_from, end, birth.settings.output_limit)
        return data.decode("utf-8", "replace") or None

    def finish(self, report: Report, meter: Meter, *, brief: bool) -> None:
        """After the children were swept: their CPU time counts, too. `brief`: it was too short to have any."""
        report.duration = time.monotonic() - self.began
        report.cpu, report.peak_rss = meter.end(brief=brief)
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
        if self._ending.raised is not None:
            traceback.clear_frames(self._ending.raised.__traceback__)
            self._ending = _UNKNOWN
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
