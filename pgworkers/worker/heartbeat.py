"""The heartbeat thread: a beat in the slot, news to the master, a true title, a look for parents, leftovers and orphans."""

from __future__ import annotations

import _thread
import os
import select
import signal
import time

import msgspec

from pgworkers.clock import show_seconds
from pgworkers.process import frames, measure, scoreboard, signals, titles
from pgworkers.process.adopted import Adopted
from pgworkers.process.scoreboard import State
from pgworkers.worker.attempt import Attempt
from pgworkers.worker.birth import Birth, forget_faults, hear_dumps_again, unheard
from pgworkers.worker.leftover import Leftover
from pgworkers.worker.messages import Kind, Progress
from pgworkers.worker.outbox import Outbox

#: Seconds without a heartbeat, where lives are brief (`Birth.brief`): most are over by then.
YOUTH = 0.1
#: Beats without a job after which a worker rests, and how many times longer its beats take then.
TIRED = 3
REST = 5
#: A worker that has had no job for this long closes the database connection that its handlers enqueue with.
SESSION_IDLE_SECONDS = 10.0
#: Seconds by which a sleep may be too long on a busy machine; and how long a beat waits after a longer one.
LATE = 0.05
_BLOCKED = signals.Blocked(heard=signal.SIGUSR2)
_BURNS = frames.encode(Kind.BURNS, 0, 0)
_encode = msgspec.json.Encoder().encode
_said: msgspec.json.Decoder[dict[str, float | str | None]] = msgspec.json.Decoder(
    dict[str, float | str | None]
)


class Heartbeat:
    """A bare thread: an object of `threading` would cost each worker ninety pages, and its first job a wait.

    Even so it costs as much as a short job. So where lives are brief it begins when somebody has reason to ask for it: the
    wait for an order, a job that may not stand still, or the supervisor, by a signal.
    """

    def __init__(self, birth: Birth, outbox: Outbox) -> None:
        self._birth = birth
        self._slot = birth.slot
        self._outbox = outbox
        self._extended = 0  # as the master was told last
        self._poll = select.poll()
        self._idle = 0  # beats since the last job
        self.resting = False  # does the next job have to `wake` it?
        self._alarm = _thread.allocate_lock()  # ends a rest when it is let go
        self._alarm.acquire()
        self._begun = False
        self._leftover = Leftover(birth.settings.heartbeat)
        self._adopted = Adopted()
        self._told = False  # that we burn
        self.spared: list[int] = []  # threads that start hooks made
        #: The running job; read and cleared under the outbox's lock, so that no progress of a job follows its report.
        self.attempt: Attempt | None = None

    def start(self) -> None:
        """If it did not begin before. With all signals but SIGUSR2 blocked in it: they belong to the main thread."""
        if not self._begun:
            with _BLOCKED:
                _thread.start_new_thread(self.run, ())
            self._begun = True

    def heed(self) -> None:
        """By a signal, in the middle of anything: the supervisor misses the beat."""
        try:
            self.start()
        except RuntimeError:
            pass  # no thread can be had now; it will ask again

    def wait(self, fd: int) -> None:
        """Until there is something to read; a wait that takes long has a heartbeat."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if self._begun or not poll.poll(YOUTH * 1000):
            self.start()
            if not poll.poll(SESSION_IDLE_SECONDS * 1000):
                self._birth.app.client.close_unused()  # what handlers enqueue with
                poll.poll()

    def run(self) -> None:
        self._poll.register(self._birth.sock, select.POLLRDHUP)
        while True:
            self._slot.beat += 1
            try:
                self._check_parents()
                self._flush()
                self._look_for_leftovers()
                if not self._birth.dump.is_ours():
                    forget_faults()
                elif signal.getsignal(signal.SIGUSR2) is not unheard:
                    # the handler ignores all signals: its stack is ours all the same
                    hear_dumps_again(self._birth.dump)
                titles.show(self._title())
                is_behind = self._adopted.reap(self._birth.settings.heartbeat)
            except Exception as error:  # a broken note must not stop the beat
                self._complain(error)
                is_behind = False
            if not is_behind:
                self._sleep(self._birth.settings.heartbeat)

    def _sleep(self, period: float) -> None:
        """Until the next beat. Whoever has had no job for a while beats less often, and is woken by the next one."""
        self._idle = self._idle + 1 if self.attempt is None and self._slot.state == State.IDLE else 0
        began = time.monotonic()
        if self._idle <= TIRED:
            time.sleep(period)
        else:
            period *= REST
            self.resting = True
            if self.attempt is None:  # a job that begins after this line sees that we rest
                self._alarm.acquire(timeout=period)
            self.resting = False
        if time.monotonic() - began > period + LATE:
            # This process stood still. If it goes on for the sake of a dump, the main thread walks through our frames just
            # now, without the GIL: one that came or went meanwhile would be its death.
            time.sleep(LATE)

    def wake(self) -> None:
        """By the main thread, when a job begins while it rests: its title and its progress are not to wait."""
        if self.resting:
            self.resting = False
            try:
                self._alarm.release()
            except RuntimeError:
                pass  # it was about to wake up anyway

    def _check_parents(self) -> None:
        """No supervisor, or no master while a job runs: whatever this process does, nobody will hear of it."""
        gone = os.getppid() != self._birth.parent
        if not gone and self._slot.state == State.RUNNING:
            if not self._birth.sock.is_ours():
                self._slot.closed = 1
                gone = True
            else:
                gone = bool(self._poll.poll(0))
        if gone:
            os.killpg(os.getpgrp(), signal.SIGKILL)

    def _flush(self) -> None:
        with self._outbox.lock:
            ctx = self.attempt.ctx if self.attempt is not None else None
            if ctx is None or not self._outbox.is_clear():
                return
            said = ctx.take_metrics()
            if said is not None:
                self._outbox.offer(frames.encode(Kind.METRICS, ctx.job, ctx.lease, said))
                if not self._outbox.is_clear():
                    return
            progress, checkpoint = ctx.take_progress(), ctx.take_checkpoint()
            extended = self._slot.extended
            if progress is None and checkpoint is None and extended == self._extended:
                return
            self._extended = extended
            news = Progress(
                msgspec.Raw(progress or b"null"), msgspec.Raw(checkpoint or b"null"), extended / 1e9
            )
            body = _encode(news)
            self._outbox.offer(frames.encode(Kind.PROGRESS, ctx.job, ctx.lease, body))
        if progress is not None:
            self._slot.progress = _permille(progress)

    def _look_for_leftovers(self) -> None:
        """Whoever burns CPU without a job is of no use to the next one: the master lets it go as it would anybody."""
        slot = self._slot
        mark = slot.started if self.attempt is None and slot.state == State.IDLE else 0
        cpu = measure.cpu_without(self.spared) if mark else 0
        if not self._leftover.is_too_much(mark, time.monotonic_ns(), cpu) or self._told:
            return
        with self._outbox.lock:
            if self._outbox.is_clear():
                self._outbox.offer(_BURNS)
                self._told = True

    def _title(self) -> str:
        name = f"pgworkers: worker {self._birth.queue.name}/{self._birth.index}"
        attempt, slot = self.attempt, self._slot
        if attempt is None:
            state = slot.state
            return f"{name} {'idle' if state in (State.IDLE, State.REPORTING) else State(state).name.lower()}"
        done = f" {slot.progress // 10}%" if slot.progress >= 0 else ""
        took = show_seconds((scoreboard.now() - slot.started) / 1e9)
        return f"{name} #{attempt.job} {attempt.plan.order.task}{done} {took}"

    def _complain(self, error: Exception) -> None:
        """Into the capture file itself: what stderr is, the handler decides."""
        self._birth.output.write(f"[pgworkers: heartbeat: {type(error).__name__}: {error}]\n")


def _permille(progress: bytes) -> int:
    try:
        said = _said.decode(progress)
        done, total = said.get("done"), said.get("total")
        return max(0, min(1000, int(1000 * float(done or 0) / float(total)))) if total else -1
    except (msgspec.DecodeError, ValueError, TypeError, OverflowError):
        return -1
