"""A worker's life: start hooks, order after order, stop hooks."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec

from pgworkers.observe import records, tracing
from pgworkers.process import faults, frames, measure, memfd, memory, scoreboard, tickets, tree
from pgworkers.process.frames import Frame
from pgworkers.process.measure import Meter
from pgworkers.process.scoreboard import State
from pgworkers.worker import outcome
from pgworkers.worker.attempt import Attempt
from pgworkers.worker.birth import Birth, settle
from pgworkers.worker.heartbeat import Heartbeat
from pgworkers.worker.inbox import Inbox
from pgworkers.worker.loop import Loop
from pgworkers.worker.messages import NULL, Kind, Order, Report, done
from pgworkers.worker.outbox import Outbox
from pgworkers.worker.tidy import BRIEF, Tidy, stop_timers, sweep
from pgworkers.worker.window import Window

#: After a job that needed so many bytes more than there were before it, memory is given back.
RELEASE = 16 << 20
_DONE = int(Kind.DONE)  # with every job: to ask an enum takes longer
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Order).decode


def live(birth: Birth) -> int:
    """Everything a worker does, from its fork to its exit status."""
    settle(birth)
    worker = Worker(birth)
    try:
        worker.start()
    except BaseException:
        traceback.print_exc()
        print("[pgworkers: a start hook failed; this worker has taken no job]", file=sys.stderr)
        _flush()
        return 1
    worker.serve()
    return worker.leave()


class Worker:
    def __init__(self, birth: Birth) -> None:
        self._birth = birth
        self._slot = birth.slot
        self._outbox = Outbox(birth.sock, birth.shelf)
        self._loop = Loop()
        self._heartbeat = Heartbeat(birth, self._outbox)
        self._inbox = Inbox(birth.sock, birth.tickets, self._rest, self._heartbeat.wait)
        self._window = Window(birth.slot, self._loop, birth.dump, self._heartbeat.heed)
        self._tidy: Tidy | None = None
        self.spared: set[int] = set()  # children that start hooks made
        self._pid = os.getpid()
        self._jobs_left = _jittered(birth.queue.max_jobs)
        self._meter = Meter(alone=self._jobs_left == 1 and not birth.app.start_hooks)
        self._brief: set[str] = set()  # tasks whose last job was over at once

    def start(self) -> None:
        self._window.install()
        os.register_at_fork(after_in_child=self._in_forked_child)
        if not self._birth.brief:
            self._heartbeat.start()
        hooks = self._birth.app.start_hooks
        self._run_hooks(hooks)
        records.bind(self._bearings)
        if hooks:  # without any the supervisor has done it
            records.dress(self._birth.settings.log, self._birth.settings.log_level)
        if self._jobs_left != 1:
            self._tidy = Tidy(self._birth.output, self._birth.dump)
        elif self._birth.app.start_hooks:  # nobody comes after the first job: what it leaves goes with us
            self.spared = set(tree.children(self._pid))
        faults.point("before_ready")
        _flush()

    def serve(self) -> None:
        """Orders until the master closes the pipe of tickets or this worker has done enough."""
        self._slot.state = State.IDLE
        ready = frames.encode(Kind.READY, 0, 0)
        try:
            if not self._birth.brief:  # else it is taken for ready as it is
                self._outbox.send(ready)
            while (key := self._inbox.ticket()) is not None:
                if key == tickets.CALL:
                    self._outbox.send(ready)
                    continue
                frame = self._inbox.order(key)
                if frame is None or self._obey(frame):
                    return
        except OSError:
            return  # the master has closed its end

    def _obey(self, frame: Frame) -> bool:
        """Run one order; True: it was the last."""
        try:
            order = _decode(frame.body)
            attempt = Attempt(self._birth, order, frame.job, frame.lease, self._output_from())
            attempt.prepare(self._meter, self._inbox.waited)
        except (
            Exception
        ) as error:  # too deep, too large, not what an order looks like: no attempt can do better
            self._refuse(frame, error)
            return False
        if attempt.ctx is not None or order.task not in self._brief:
            self._outbox.send_waiting()  # nobody knows how long this one takes
        if order.stall_timeout:
            self._heartbeat.start()  # who may not stand still must be seen to live
        self._heartbeat.attempt = attempt
        self._heartbeat.wake()
        attempt.run(self._window)
        if os.getpid() != self._pid:
            os._exit(0)  # a child that the handler forked and that returned from it
        attempt.close_sessions()
        if faults.ARMED:
            faults.point("before_report")
        report = attempt.report()
        attempt.forget()
        attempt.release_slot()
        now = time.monotonic()
        self._put_back(report, now - attempt.began, now)
        if attempt.ctx is None:  # the heartbeat says nothing of it
            self._heartbeat.attempt = None
        else:
            with self._outbox.lock:
                self._heartbeat.attempt = None
        attempt.finish(report, self._meter, brief=self._tidy is not None and self._tidy.brief)
        said = attempt.ctx.take_metrics() if attempt.ctx is not None else None
        if said is not None:
            self._outbox.send(frames.encode(Kind.METRICS, frame.job, frame.lease, said))
        self._send(frame, order.task, report)
        if faults.ARMED:
            faults.point("after_report")
        self._slot.end()
        if self._meter.grew > RELEASE:
            memory.release()
        return report.last

    def _output_from(self) -> int:
        """Where the output of the next job begins."""
        if self._inbox.waited or self._tidy is None:
            return memfd.size(self._birth.output)
        return self._tidy.output_end

    def _bearings(self) -> tuple[int, str, str, int] | None:
        """The job whose handler runs now, for the records it logs."""
        attempt = self._heartbeat.attempt
        if attempt is None:
            return None
        return attempt.job, attempt.order.task, attempt.order.queue, attempt.order.attempt

    def _send(self, frame: Frame, task: str, report: Report) -> None:
        """In the short form, if it says it all; and of very short jobs many at once."""
        plain = report.outcome == "done" and not report.last and report.progress is NULL
        if plain and report.checkpoint is NULL and report.children is NULL:
            body = done(report.duration, report.cpu, report.peak_rss, report.result)
            end = frames.encode(_DONE, frame.job, frame.lease, body)
            if report.duration < BRIEF:
                self._brief.add(task)
            else:
                self._brief.discard(task)
            if self._tidy is not None and self._tidy.brief:
                self._outbox.lay(end)
            else:
                self._outbox.send(end)
        else:
            report.duration, report.cpu = round(report.duration, 6), round(report.cpu, 6)
            self._outbox.send(frames.encode(Kind.REPORT, frame.job, frame.lease, _encode(report)))

    def _refuse(self, frame: Frame, error: Exception) -> None:
        """A job that cannot even be read is the job's fault, not this process's."""
        text = f"the job cannot be read, so its handler was not run: {outcome.said(error)}"
        report = Report("discard", 0.0, 0.0, 0, error=text, started=False)
        self._outbox.send(frames.encode(Kind.REPORT, frame.job, frame.lease, _encode(report)))
        self._slot.end()

    def _rest(self) -> bool:
        self._outbox.send_waiting()
        return self._tidy is None or self._tidy.rest()

    def _put_back(self, report: Report, took: float, now: float) -> None:
        """Undo what the handler changed, and decide whether this process may have another job."""
        if self._tidy is None:
            stop_timers()
            sweep(self.spared)  # its children's CPU time is its own
        fit = self._tidy is not None and self._tidy.restore(took, now) and not self._loop.stuck
        if self._jobs_left is not None:
            self._jobs_left -= 1
        report.last = not fit or self._jobs_left == 0 or self._too_large()

    def _too_large(self) -> bool:
        limit = self._birth.queue.max_rss
        if limit is None or measure.resident(self._pid) <= limit:
            return False
        memory.release()
        return measure.resident(self._pid) > limit

    def leave(self) -> int:
        """Stop hooks, within the graces of the ladder; the supervisor ends one that hangs."""
        settings = self._birth.settings
        self._slot.deadline = scoreboard.now() + int((settings.ask_grace + settings.raise_grace) * 1e9)
        self._slot.state = State.LEAVING
        try:
            self._run_hooks(self._birth.app.stop_hooks)
            self._loop.close()
        except BaseException:
            traceback.print_exc()
        tracing.flush()
        _flush()
        return 0

    def _run_hooks(self, hooks: Iterable[Callable[[], Any]]) -> None:
        for hook in hooks:
            value = hook()
            if isinstance(value, Coroutine):
                self._loop.run(value, keep=True)

    def _in_forked_child(self) -> None:
        """A process that a handler forks is not a worker: it neither reports nor keeps our socket open."""
        self._outbox.forget()
        self._inbox.forget()
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        faulthandler.unregister(signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
        faulthandler.disable()


def _jittered(jobs: int | None) -> int | None:
    """Workers that started together should not be replaced together."""
    if jobs is None or jobs <= 1:
        return jobs
    return max(1, round(jobs * random.uniform(0.9, 1.1)))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
