"""The supervisor's life: boot, tick, leave."""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import socket
import sys
import time

import msgspec

from pgworkers.process import prctl, scoreboard, signals, titles
from pgworkers.process.packets import MAX_PACKET, Packets
from pgworkers.process.scoreboard import State
from pgworkers.process.term import Term
from pgworkers.supervisor import climb, fork, suspend
from pgworkers.supervisor.boot import load_app
from pgworkers.supervisor.crew import Crew
from pgworkers.supervisor.messages import (
    Alive,
    Boot,
    BootFailed,
    Command,
    Died,
    Dump,
    Exit,
    Fact,
    MoveDeadline,
    Scale,
    Stack,
    Stop,
    Suspend,
)
from pgworkers.worker import noting

#: How often running jobs are looked at (memory, output); deadlines and deaths wake the loop by themselves.
TICK = 0.2
#: Seconds between two full rounds while some work; and while all idle, if the master's patience allows it.
SECOND = 1.0
CALM = 2.0
#: How long a leaving supervisor waits for what it killed, and for the master to read the last facts.
LEAVE_TIME = 1.0
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_decoder: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)


def now_seconds() -> float:
    """The scoreboard's clock: deadlines and graces are measured on it."""
    return scoreboard.now() / 1e9


class Supervisor:
    def __init__(
        self, control: Packets, parent: int, nursery: fork.Nursery, wanted: int, version: str
    ) -> None:
        self._control = control
        self._fd = control.sock.fileno()
        self._parent = parent
        self._crew = Crew(nursery, wanted, self._tell)
        self._settings = nursery.settings
        self._term = nursery.term
        self._name = nursery.queue.name
        self._version = f" ({version[:40]})" if version else ""
        self._next_second = 0.0
        self._leaving = False
        self._notes = signals.Notes((signal.SIGCHLD, signal.SIGTERM), _IGNORED)
        nursery.hears()
        self._poll = select.poll()
        self._poll.register(self._notes.reader, select.POLLIN)
        self._poll.register(control.sock, select.POLLIN)
        self._spoken = True  # may the master have said something?
        self._writes = False  # do we wait until the master takes what we have for it?
        self._shows = False  # do we wait until the screen takes what workers printed?
        self._room = False  # it does again
        self._round_at = 0.0  # when all workers are looked at next

    def run(self) -> int:
        try:
            while True:
                self.tick()
                if self._leaving:
                    break
                self._wait()
        finally:  # also when something is wrong with ourselves
            clean = self._leave()
        return 0 if clean else 1

    def tick(self) -> None:
        """One round: take what came, bury the dead, fork what is missing, and look at every worker if it is time to."""
        self._notes.take()  # only a wake-up: what it says is looked for
        if os.getppid() != self._parent:
            self._leaving = True
        told = self._spoken and self._obey()
        if self._leaving:
            return
        now = now_seconds()
        self._crew.bury(now)
        if self._room:
            self._crew.echo()
        if told or now >= self._round_at:
            self._look(now)
        self._crew.replenish(now, self._descriptors)
        self._control.flush()

    def _look(self, now: float) -> None:
        """At every worker: its limits, its ladder, its output."""
        self._round_at = now + TICK
        fence = self._term.until / 1e9 - self._settings.lease / 3
        for worker in self._crew:
            climb.tend(worker, now)
            climb.check_limits(worker, self._settings, now, fence)
            climb.step(worker, now)
            for fact in climb.finish_dumps(worker, now) if worker.dumps else ():
                self._tell(fact)
        self._crew.note_ready()
        self._crew.echo()
        if now >= self._next_second:
            self._next_second = now + max(SECOND, min(CALM, self._settings.patience / 5))
            self._crew.each_second(now)
            if not self._control.waiting:  # a master that does not read gets no more to read
                self._tell(Alive(self._crew.incarnations()))
        if not self._calm():
            self._next_second = min(self._next_second, now + SECOND)
        self._show()

    def _wait(self) -> None:
        """Until a signal, a packet or a rung that is due; never longer than a tick."""
        now = now_seconds()
        for worker in self._crew:
            look = climb.next_look(worker)
            if look is not None and look < self._round_at:
                self._round_at = look
        if self._crew.dying or self._crew.echo_waits:
            self._round_at = min(self._round_at, now + 0.01)
        if self._writes != bool(self._control.waiting):
            self._writes = not self._writes
            self._poll.modify(
                self._control.sock, select.POLLIN | select.POLLOUT if self._writes else select.POLLIN
            )
        if self._shows != self._crew.echo_blocked:
            self._shows = not self._shows
            for fd in self._crew.screen:
                self._poll.register(fd, select.POLLOUT) if self._shows else self._poll.unregister(fd)
        woken = self._poll.poll(max(0.0, self._round_at - now) * 1000)
        while not woken and self._idles():  # a look at the scoreboard is all that this moment needs
            woken = self._poll.poll(TICK * 1000)
        ready = dict(woken)
        self._spoken = self._fd in ready
        self._room = self._shows and any(fd in ready for fd in self._crew.screen)

    def _idles(self) -> bool:
        """Nobody works and nothing waits: until the round is over, or somebody begins."""
        return now_seconds() < self._next_second and self._calm()

    def _calm(self) -> bool:
        crew = self._crew
        if crew.dying or crew.echo_waits or self._control.waiting:
            return False
        return len(crew) == crew.wanted and all(
            worker.slot.state == State.IDLE and not worker.climbs and not worker.dumps for worker in crew
        )

    def _obey(self) -> bool:
        """True: there was something to do."""
        packets = self._control.receive()
        if packets is None:
            self._leaving = True  # the master is gone, or does not want us any more
            return True
        for data, _ in packets:
            self._do(_decoder.decode(data))
        return bool(packets)

    def _do(self, command: Command) -> None:
        now = now_seconds()
        match command:
            case Scale(workers=workers):
                self._crew.scale(workers)
            case Stop(slot=slot, incarnation=incarnation):
                worker = self._crew.get(slot, incarnation)
                if worker is not None:  # else its `Died` is on the way up
                    climb.wish(worker, command, now)
            case MoveDeadline(slot=slot, incarnation=incarnation, job=job, lease=lease, at=at):
                worker = self._crew.get(slot, incarnation)
                if worker is not None:
                    suspend.move_deadline(worker, job, lease, at, now)
            case Dump(slot=slot, incarnation=incarnation, token=token):
                worker = self._crew.get(slot, incarnation)
                gone = Stack(slot, incarnation, token, "the worker is gone")
                answer = climb.begin_dump(worker, command, now) if worker is not None else gone
                if answer is not None:
                    self._tell(answer)
            case Suspend(slot=slot, incarnation=incarnation):
                self._tell(suspend.obey(self._crew.get(slot, incarnation), command, now))
            case Exit() | Boot():
                self._leaving = True

    def _tell(self, fact: Fact, *fds: int) -> None:
        data = msgspec.json.encode(fact)
        if len(data) > MAX_PACKET and isinstance(fact, Died):
            # escapes made the texts too long for one packet
            keep = MAX_PACKET // 16
            fact.stack, fact.output = (fact.stack or "")[:keep], (fact.output or "")[-keep:]
            data = msgspec.json.encode(fact)
        self._control.send(data, *fds)

    def _descriptors(self) -> list[int]:
        """Ours, not to be inherited."""
        return [self._control.sock.fileno(), *self._control.descriptors, *self._notes.descriptors]

    def _show(self) -> None:
        workers = list(self._crew)
        busy = sum(worker.busy for worker in workers)
        stalled = sum(worker.pulse.stalled for worker in workers)
        suspended = sum(bool(worker.suspended) for worker in workers)
        title = f"pgworkers: queue {self._name} {busy}/{len(workers)} busy"
        title += f", {suspended} suspended" if suspended else ""
        title += f", {stalled} stalled" if stalled else ""
        titles.show(title + self._version)

    def _leave(self) -> bool:
        """Nothing of ours may outlive us: groups, orphans, children of the app."""
        titles.show(f"pgworkers: queue {self._name} leaving")
        clean = self._crew.end("kill", LEAVE_TIME)
        give_up = time.monotonic() + LEAVE_TIME
        while self._control.waiting and not self._control.broken and time.monotonic() < give_up:
            self._control.flush()
            if self._control.receive() is None:
                break  # nobody reads any more
            time.sleep(0.005)
        return clean


def main(fd: int, term: int, parent: int) -> int:
    """Everything from exec to exit."""
    if sys.stderr is not None:
        faulthandler.enable()
    for signum in (*_IGNORED, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    # an import may hang in C, so until there are workers to end, the death of the master is ours
    if not prctl.die_with_parent(signal.SIGKILL, parent):
        return 0
    os.set_inheritable(fd, False)
    promised = Term(term)
    sock = socket.socket(fileno=fd)
    sock.setblocking(True)
    data = sock.recv(MAX_PACKET)
    if not data:
        return 0
    boot = msgspec.json.decode(data, type=Boot)
    titles.show(f"pgworkers: queue {boot.queue.name} booting")
    prctl.inherit_orphans()
    control = Packets(sock)
    noting.begin()
    loaded = load_app(boot, parent)
    if isinstance(loaded, BootFailed):
        control.send(msgspec.json.encode(loaded))
        return 6
    control.send(msgspec.json.encode(loaded.fact))
    nursery = fork.Nursery(loaded.app, loaded.settings, boot.queue, promised)
    supervisor = Supervisor(control, parent, nursery, boot.workers, boot.version)
    # from here on there are handlers: the signal wakes the loop, which ends its workers first
    if not prctl.die_with_parent(signal.SIGTERM, parent):
        return 0
    return supervisor.run()
