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

from pgworkers.observe import records, tracing
from pgworkers.process import faults, frames, measure, memory, tickets, tree
from pgworkers.process.descriptors import Channel, Descriptor
from pgworkers.process.frames import Frame
from pgworkers.process.measure import Meter
from pgworkers.process.scoreboard import now
from pgworkers.process.shelf import Shelf
from pgworkers.worker import noting, outcome
from pgworkers.worker.attempt import Attempt
from pgworkers.worker.birth import Birth, bound, forget_faults, is_bound, settle, unheard
from pgworkers.worker.heartbeat import Heartbeat
from pgworkers.worker.inbox import Inbox
from pgworkers.worker.loop import Loop
from pgworkers.worker.messages import Kind, Report, Unstarted, done
from pgworkers.worker.outbox import Outbox
from pgworkers.worker.plan import Plans
from pgworkers.worker.tidy import BRIEF, Tidy, stop_timers, sweep
from pgworkers.worker.window import Window

#: After a job that needed so many bytes more than there were before it, memory is given back.
RELEASE = 16 << 20
_encode = msgspec.json.Encoder().encode
_READY = frames.encode(Kind.READY, 0, 0)


class Worker:
    """Made in its supervisor, once for each slot, as the crib of all that will be born there: what a worker makes for itself
    it makes in pages that it has to copy first. So nothing here belongs to a process until `live`."""

    def __init__(self, birth: Birth) -> None:
        self._birth = birth
        self._slot = birth.slot
        self._outbox = Outbox()
        self._loop = Loop()
        self._heartbeat = Heartbeat(birth, self._outbox)
        self._inbox = Inbox(self._rest, self._heartbeat.wait)
        self._window = Window(birth.slot, self._loop, self._heartbeat.heed)
        self._tidy: Tidy | None = None
        self.spared: set[int] = set()  # children that start hooks made
        self._pid = 0
        self._jobs_left = birth.queue.max_jobs or sys.maxsize
        self._hooks = bool(birth.app.start_hooks), bool(birth.app.stop_hooks)
        self._meter = Meter()
        self._may_grow = birth.queue.max_rss is None
        self._plans = Plans(birth)
        self._brief: set[str] = set()  # tasks whose last job was over at once
        self._bound = is_bound(birth)
        self._graces = int((birth.settings.ask_grace + birth.settings.raise_grace) * 1e9)
        self._signals = birth.signals
        self._on_signal = self._window.on_signal
        self._is_forked = False  # this process is a child of the worker, or a child of one
        self._at_fork = self._in_forked_child
        self._at_log = self._bearings

    def live(
        self, sock: socket, tickets: int, shelf: Shelf | None, output: int, dump: int, brief: bool
    ) -> int:
        """Everything a worker does, from its fork to its exit status."""
        self.take(sock, tickets, shelf, output, dump, brief)
        settle(output, dump, self._signals, self._on_signal)
        try:
            self.start(brief)
        except BaseException as error:
            self._fail_to_start(error)
            return 1
        self.serve()
        return self.leave()

    def take(
        self, sock: socket, tickets: int, shelf: Shelf | None, output: int, dump: int, brief: bool
    ) -> None:
        """What comes with its birth."""
        birth, outbox, inbox = self._birth, self._outbox, self._inbox
        birth.sock = outbox.sock = inbox.sock = Channel(sock)
        birth.tickets = inbox.pipe = Descriptor(tickets)
        birth.shelf = outbox.shelf = shelf
        birth.output = Descriptor(output)
        birth.dump = self._window.dump = Descriptor(dump)
        self._slot.dump = dump
        birth.brief = brief
        self._pid = getpid()

    def start(self, brief: bool) -> None:
        os.register_at_fork(after_in_child=self._at_fork)
        if self._bound:
            bound(self._birth)
        if not brief:
            self._heartbeat.start()
        hooked = self._hooks[0]
        if hooked or self._jobs_left > 1:
            self._meter.open()
        if hooked:
            self._run_hooks(self._birth.app.start_hooks)
            self._heartbeat.spared = measure.threads()
        records.bind(self._at_log)
        if hooked:  # else the supervisor has done it
            records.dress(self._birth.settings.log, self._birth.settings.log_level)
        if self._jobs_left > 1:
            self._jobs_left = _jittered(self._jobs_left)
            self._tidy = Tidy(self._birth.output, self._birth.dump)
        elif hooked:  # nobody comes after the first job: what it leaves goes with us
            self.spared = set(tree.children(self._pid))
        if faults.ARMED:
            faults.point("before_ready")
        if not brief:
            _flush()

    def serve(self) -> None:
        """Orders until the master closes the pipe of tickets or this worker has done enough."""
        self._slot.rest()
        try:
            if not self._birth.brief:  # else it is taken for ready as it is
                self._outbox.send(_READY)
            while (key := self._inbox.ticket()) is not None:
                if key == tickets.CALL:
                    self._outbox.send(_READY)
                    continue
                frame = self._inbox.order(key)
                if frame is None or self._obey(frame):
                    return
        except OSError as error:  # the master has closed its end, or a handler ours
            if error.errno in (errno.EBADF, errno.ENOTSOCK):
                self._slot.closed = 1

    def _obey(self, frame: Frame) -> bool:
        """Run one order; True: it was the last."""
        _, job, lease, body = frame
        began = now()
        tidy, waited = self._tidy, self._inbox.waited
        try:
            plan, args = self._plans.of(body)
            attempt = Attempt(self._birth, plan, args, job, lease, began)
            cpu = self._meter.begin(began, waited)
            output = (self._birth.output.size() or 0) if tidy is None or waited else tidy.output_end
            attempt.begin(cpu, output)
        except Exception as error:  # too deep, not what an order looks like: no attempt can do better
            self._refuse(frame, error)
            return False
        is_brief = plan.order.task in self._brief
        if not is_brief or attempt.ctx is not None:
            self._outbox.send_waiting()  # nobody knows how long this one takes
        heartbeat = self._heartbeat
        if plan.order.stall_timeout:
            heartbeat.start()  # who may not stand still must be seen to live
        heartbeat.attempt = attempt
        if heartbeat.resting:
            heartbeat.wake()
        attempt.run(self._window)
        took = (ended := now()) - began
        if took < BRIEF and attempt.result is not None and tidy is not None and tidy.glance(ended):
            if is_brief and self._may_grow and self._jobs_left > 1 and attempt.is_plain():
                self._end_at_once(attempt, took, attempt.result)
                return False
            return self._end(attempt, took)
        if getpid() != self._pid:
            os._exit(0)  # a child that the handler forked and that returned from it
        return self._end(attempt, None)

    def _end_at_once(self, attempt: Attempt, took: int, result: bytes) -> None:
        """What is left to do after most very short jobs: nothing to put back, nothing to tell but the result."""
        if faults.ARMED:
            faults.point("before_report")
        attempt.release_slot()
        self._jobs_left -= 1
        self._heartbeat.attempt = None
        cpu, peak = self._meter.guess(took)
        self._outbox.lay(done(attempt.job, attempt.lease, took // 1000, cpu, peak, result))
        if faults.ARMED:
            faults.point("after_report")
        self._slot.end()

    def _end(self, attempt: Attempt, brief: int | None) -> bool:
        """What may be left to do after a job; True: it was the last. `brief`: how long it took, if a glance was enough."""
        attempt.close_sessions()
        if faults.ARMED:
            faults.point("before_report")
        report = attempt.report()
        attempt.forget()
        attempt.release_slot()
        self._put_back(report, brief is not None)
        with self._outbox.lock:
            self._heartbeat.attempt = None
        took = now() - attempt.began if brief is None else brief
        # after the children were swept: their CPU time counts, too
        cpu, peak = self._meter.end(took) if brief is None else self._meter.guess(took)
        attempt.finish(report)
        said = attempt.ctx.take_metrics() if attempt.ctx is not None else None
        if said is not None:
            self._outbox.send(frames.encode(Kind.METRICS, attempt.job, attempt.lease, said))
        if report.is_plain():
            self._tell_done(attempt, took, cpu, peak, lay=brief is not None)
        else:
            report.duration, report.cpu, report.peak_rss = took // 1000 / 1e6, cpu / 1e6, peak
            self._outbox.send(frames.encode(Kind.REPORT, attempt.job, attempt.lease, _encode(report)))
        if faults.ARMED:
            faults.point("after_report")
        self._slot.end()
        if brief is None and self._meter.grew > RELEASE:
            memory.release()
        return report.last

    def _tell_done(self, attempt: Attempt, took: int, cpu: int, peak: int, *, lay: bool) -> None:
        """In the short form, since it says it all; `lay`: many at once."""
        task = attempt.plan.order.task
        if took < BRIEF:
            self._brief.add(task)
        else:
            self._brief.discard(task)
        result = attempt.result or b"null"
        end = done(attempt.job, attempt.lease, took // 1000, cpu, peak, result)
        if lay:
            self._outbox.lay(end)
        else:
            self._outbox.send(end)

    def _bearings(self) -> tuple[int, str, str, int] | None:
        """The job whose handler runs now, for the records it logs."""
        attempt = self._heartbeat.attempt
        if attempt is None:
            return None
        order = attempt.plan.order
        return attempt.job, order.task, order.queue, order.attempt

    def _refuse(self, frame: Frame, error: Exception) -> None:
        """A job that cannot even be read is the job's fault, not this process's."""
        text = f"the job cannot be read, so its handler was not run: {outcome.said(error)}"
        report = Report("discard", 0.0, 0.0, 0, error=text, started=False)
        self._outbox.send(frames.encode(Kind.REPORT, frame.job, frame.lease, _encode(report)))
        self._slot.end()

    def _rest(self) -> bool:
        self._outbox.send_waiting()
        return self._tidy is None or self._tidy.rest()

    def _put_back(self, report: Report, brief: bool) -> None:
        """Undo what the handler changed, and decide whether this process may have another job."""
        if report.outcome != "done":
            report.swept = self._left_children()
        if self._tidy is None:
            stop_timers()
            sweep(self.spared)  # its children's CPU time is its own
        fit = brief or (self._tidy is not None and self._tidy.restore(now()))
        self._jobs_left -= 1
        report.last = not fit or self._loop.stuck or self._jobs_left == 0 or self._too_large()

    def _left_children(self) -> list[str]:
        """Those that are about to be swept."""
        return tree.names_of_children(self._tidy.children if self._tidy is not None else self.spared)

    def _too_large(self) -> bool:
        limit = self._birth.queue.max_rss
        if limit is None or measure.resident(self._pid) <= limit:
            return False
        memory.release()
        return measure.resident(self._pid) > limit

    def leave(self) -> int:
        """Stop hooks, within the graces of the ladder; the supervisor ends one that hangs."""
        self._slot.leave(now() + self._graces)
        try:
            if self._hooks[1]:
                self._run_hooks(self._birth.app.stop_hooks)
            self._loop.close()
        except BaseException:
            self.complain()
        if tracing.wanted():
            tracing.flush()
        _flush()
        return 0

    def _run_hooks(self, hooks: Iterable[Callable[[], Any]]) -> None:
        for hook in hooks:
            value = hook()
            if isinstance(value, Coroutine):
                self._loop.run(value, keep=True)

    def _fail_to_start(self, error: BaseException) -> None:
        """Say why: to those who read the output, and to the master, which shows it to operators."""
        self.complain()
        self._birth.output.write("[pgworkers: a start hook failed; this worker has taken no job]\n")
        trace = outcome.told(error, self._birth.settings.error_limit)
        body = _encode(Unstarted(f"a start hook failed: {outcome.said(error)}", trace))
        try:
            self._outbox.send(frames.encode(Kind.UNSTARTED, 0, 0, body))
        except OSError:
            pass  # the master is gone, or the hook has closed the channel

    def complain(self) -> None:
        """The exception at hand, into the capture file itself: what stderr is, the user's code decides."""
        _flush()
        self._birth.output.write(traceback.format_exc())

    def _in_forked_child(self) -> None:
        """A process that a handler forks is not a worker: it neither reports nor keeps our socket open.

        What it forks in turn has nothing of ours any more: there the same numbers and signals are its own.
        """
        if self._is_forked:
            return
        self._is_forked = True
        self._outbox.forget()
        self._inbox.forget()
        noting.noted[0] = True  # so that it finds out, should it return from the handler
        forget_faults()
        for signum, handler in ((signal.SIGUSR1, self._on_signal), (signal.SIGUSR2, unheard)):
            if signal.getsignal(signum) == handler:
                signal.signal(signum, signal.SIG_DFL)


def _jittered(jobs: int) -> int:
    """Workers that started together should not be replaced together."""
    return jobs if jobs == sys.maxsize else max(1, round(jobs * random.uniform(0.9, 1.1)))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
