"""The supervisor process: import the app, then check workers in a loop, then end everything.

A tick reads commands, reaps dead workers (worker_pool.py, reaper.py), checks the limits of each job (job_limits.py), climbs
the ladder for those that must stop (stopper.py, ladder.py), finishes requested dumps (stack_dump.py), passes on output
(output.py) and forks missing workers (fork.py).
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import socket
import sys
import time

import msgspec

from pgworkers import clock
from pgworkers.ipc.lease_deadline import LeaseDeadline
from pgworkers.ipc.packets import MAX_PACKET_BYTES, PacketSocket
from pgworkers.ipc.scoreboard import SlotState, StopReason
from pgworkers.linux import prctl, signals, titles
from pgworkers.supervisor import fork, job_limits, stack_dump, stopper, suspend, worker_pool
from pgworkers.supervisor.app_loader import load_app
from pgworkers.supervisor.messages import (
    Alive,
    Boot,
    BootFailed,
    Command,
    Died,
    DumpStacks,
    Exit,
    Scale,
    SetDeadline,
    StackDumped,
    StopJob,
    SupervisorEvent,
    SuspendJob,
)
from pgworkers.supervisor.worker_pool import WorkerPool

#: How often running jobs are checked (memory, output). Deadlines and deaths wake the loop by themselves.
WORKER_CHECK_INTERVAL_SECONDS = 0.2
#: Time between two rounds while a worker is busy, and while all are idle if the master's timeout allows it.
BUSY_ROUND_SECONDS = 1.0
IDLE_ROUND_SECONDS = 2.0
#: How long a supervisor that ends waits for the processes that it killed, and for the master to read its last events.
EXIT_TIMEOUT_SECONDS = 1.0
#: Exit status of a supervisor that could not import the app. It has sent the reason.
BOOT_FAILED_STATUS = 6
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_decoder: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)


def boottime_seconds() -> float:
    """Seconds of the scoreboard's clock, on which deadlines and graces are measured."""
    return clock.boottime_ns() / 1e9


class Supervisor:
    def __init__(
        self, control: PacketSocket, parent: int, template: fork.WorkerTemplate, wanted: int, version: str
    ) -> None:
        self._control = control
        self._fd = control.sock.fileno()
        self._parent = parent
        self._pool = WorkerPool(template, wanted, self._emit)
        self._settings = template.settings
        self._lease_deadline = template.lease_deadline
        self._name = template.queue.name
        self._version = f" ({version[:40]})" if version else ""
        self._next_round_at = 0.0
        self._is_leaving = False
        self._signal_wakeup = signals.SignalWakeup((signal.SIGCHLD, signal.SIGTERM), _IGNORED)
        template.note_signals()
        self._poll = select.poll()
        self._poll.register(self._signal_wakeup.reader, select.POLLIN)
        self._poll.register(control.sock, select.POLLIN)
        self._has_command = True  # the master may have sent a command
        self._waits_to_send = False  # poll until the master takes packets
        self._waits_for_screen = False  # poll until stderr takes output
        self._screen_has_room = False  # stderr takes output again
        self._next_check_at = 0.0  # when all workers are checked next

    def run(self) -> int:
        try:
            while True:
                self.tick()
                if self._is_leaving:
                    break
                self._wait()
        finally:  # also when something is wrong with ourselves
            clean = self._shut_down()
        return 0 if clean else 1

    def tick(self) -> None:
        """Handle commands and deaths, fork missing workers, and check every worker if it is time to."""
        self._signal_wakeup.drain()  # only a wake-up
        if os.getppid() != self._parent:
            self._is_leaving = True
        has_commands = self._has_command and self._receive_commands()
        if self._is_leaving:
            return
        now = boottime_seconds()
        self._pool.reap_dead(now)
        if self._screen_has_room:
            self._pool.relay_output()
        if has_commands or now >= self._next_check_at:
            self._check_workers(now)
        self._pool.fork_missing(now, self._descriptors)
        self._control.flush()

    def _check_workers(self, now: float) -> None:
        """Check the limits, the stop requests and the output of every worker."""
        self._next_check_at = now + WORKER_CHECK_INTERVAL_SECONDS
        exclusive_until = self._lease_deadline.expires_at / 1e9 - self._settings.lease_duration / 3
        for worker in self._pool:
            worker_pool.prefer_for_oom_kill(worker)
            worker_pool.request_deferred_heartbeat(worker, now)
            job_limits.check_limits(worker, self._settings, now, exclusive_until)
            stopper.step(worker, now)
            for event in stack_dump.finish_dumps(worker, now) if worker.dump_requests else ():
                self._emit(event)
        self._pool.note_ready()
        self._pool.relay_output()
        if now >= self._next_round_at:
            self._next_round_at = now + max(
                BUSY_ROUND_SECONDS, min(IDLE_ROUND_SECONDS, self._settings.supervisor_timeout / 5)
            )
            self._pool.do_round_work(now)
            if not self._control.unsent_count:  # a master that does not read gets no more to read
                self._emit(Alive(self._pool.incarnations()))
        if not self._is_idle():
            self._next_round_at = min(self._next_round_at, now + BUSY_ROUND_SECONDS)
        self._update_title()

    def _wait(self) -> None:
        """Wait for a signal, a packet or the next check.

        Workers are checked every WORKER_CHECK_INTERVAL_SECONDS, and earlier for a rung that is due. While all of them are
        idle, reading the scoreboard is enough until the next round, up to IDLE_ROUND_SECONDS.
        """
        now = boottime_seconds()
        for worker in self._pool:
            check_at = stopper.next_check_at(worker)
            if check_at is not None and check_at < self._next_check_at:
                self._next_check_at = check_at
        if self._pool.is_reaping or self._pool.output.has_more:
            self._next_check_at = min(self._next_check_at, now + 0.01)
        if self._waits_to_send != bool(self._control.unsent_count):
            self._waits_to_send = not self._waits_to_send
            self._poll.modify(
                self._control.sock, select.POLLIN | select.POLLOUT if self._waits_to_send else select.POLLIN
            )
        if self._waits_for_screen != self._pool.output.is_blocked:
            self._waits_for_screen = not self._waits_for_screen
            for fd in self._pool.output.descriptors:
                self._poll.register(fd, select.POLLOUT) if self._waits_for_screen else self._poll.unregister(
                    fd
                )
        woken = self._poll.poll(max(0.0, self._next_check_at - now) * 1000)
        while not woken and self._may_stay_idle():
            woken = self._poll.poll(WORKER_CHECK_INTERVAL_SECONDS * 1000)
        ready = dict(woken)
        self._has_command = self._fd in ready
        self._screen_has_room = self._waits_for_screen and any(
            fd in ready for fd in self._pool.output.descriptors
        )

    def _may_stay_idle(self) -> bool:
        """True until the round is over, while no worker is busy and nothing waits to be sent."""
        return boottime_seconds() < self._next_round_at and self._is_idle()

    def _is_idle(self) -> bool:
        pool = self._pool
        if pool.is_reaping or pool.output.has_more or self._control.unsent_count:
            return False
        return len(pool) == pool.wanted and all(
            worker.slot.state == SlotState.IDLE and not worker.stop_requests and not worker.dump_requests
            for worker in pool
        )

    def _receive_commands(self) -> bool:
        """True: there was a command."""
        packets = self._control.receive()
        if packets is None:
            self._is_leaving = True  # the master is gone, or has closed the socket
            return True
        for data, _ in packets:
            self._execute(_decoder.decode(data))
        return bool(packets)

    def _execute(self, command: Command) -> None:
        now = boottime_seconds()
        match command:
            case Scale(workers=workers):
                self._pool.scale(workers)
            case StopJob(slot=slot, incarnation=incarnation):
                worker = self._pool.get(slot, incarnation)
                if worker is not None:  # else its `Died` is on the way up
                    stopper.request_stop(worker, command, now)
            case SetDeadline(slot=slot, incarnation=incarnation, job=job, lease=lease, at=at):
                worker = self._pool.get(slot, incarnation)
                if worker is not None:
                    suspend.move_deadline(worker, job, lease, at, now)
            case DumpStacks(slot=slot, incarnation=incarnation, token=token):
                worker = self._pool.get(slot, incarnation)
                gone = StackDumped(slot=slot, incarnation=incarnation, token=token, text="the worker is gone")
                answer = stack_dump.begin_dump(worker, command, now) if worker is not None else gone
                if answer is not None:
                    self._emit(answer)
            case SuspendJob(slot=slot, incarnation=incarnation):
                self._emit(suspend.execute(self._pool.get(slot, incarnation), command, now))
            case Exit() | Boot():
                self._is_leaving = True

    def _emit(self, event: SupervisorEvent, *fds: int) -> None:
        data = msgspec.json.encode(event)
        if len(data) > MAX_PACKET_BYTES and isinstance(event, Died):
            # escapes made the texts too long for one packet
            keep = MAX_PACKET_BYTES // 16
            event.stack, event.output = (event.stack or "")[:keep], (event.output or "")[-keep:]
            data = msgspec.json.encode(event)
        self._control.send(data, *fds)

    def _descriptors(self) -> list[int]:
        """Descriptors of this process that a worker must not inherit."""
        return [
            self._control.sock.fileno(),
            *self._control.unsent_descriptors,
            *self._signal_wakeup.descriptors,
        ]

    def _update_title(self) -> None:
        workers = list(self._pool)
        busy = sum(worker.is_busy for worker in workers)
        stalled = sum(worker.life_signs.is_stalled for worker in workers)
        suspended = sum(bool(worker.suspended_at) for worker in workers)
        title = f"pgworkers: queue {self._name} {busy}/{len(workers)} busy"
        title += f", {suspended} suspended" if suspended else ""
        title += f", {stalled} stalled" if stalled else ""
        titles.set_title(title + self._version)

    def _shut_down(self) -> bool:
        """Kill all processes below this one: groups of workers, orphans, children of the app.

        True: none is left.
        """
        titles.set_title(f"pgworkers: queue {self._name} leaving")
        clean = self._pool.kill_everything(StopReason.KILL, EXIT_TIMEOUT_SECONDS)
        give_up = time.monotonic() + EXIT_TIMEOUT_SECONDS
        while self._control.unsent_count and not self._control.is_broken and time.monotonic() < give_up:
            self._control.flush()
            if self._control.receive() is None:
                break  # the master does not read any more
            time.sleep(0.005)
        return clean


def main(control_fd: int, lease_fd: int, parent: int) -> int:
    """Run the supervisor from exec to its exit status."""
    if sys.stderr is not None:
        faulthandler.enable()
    for signum in (*_IGNORED, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    # An import may hang in C. Until there are workers to end, the death of the master kills this process.
    if not prctl.set_parent_death_signal(signal.SIGKILL, parent):
        return 0
    os.set_inheritable(control_fd, False)
    lease_deadline = LeaseDeadline(lease_fd)
    sock = socket.socket(fileno=control_fd)
    sock.setblocking(True)
    data = sock.recv(MAX_PACKET_BYTES)
    if not data:
        return 0
    boot = msgspec.json.decode(data, type=Boot)
    titles.set_title(f"pgworkers: queue {boot.queue.name} booting")
    prctl.become_subreaper()
    control = PacketSocket(sock)
    loaded = load_app(boot)
    if isinstance(loaded, BootFailed):
        control.send(msgspec.json.encode(loaded))
        return BOOT_FAILED_STATUS
    control.send(msgspec.json.encode(loaded.event))
    template = fork.WorkerTemplate(
        app=loaded.app, settings=loaded.settings, queue=boot.queue, lease_deadline=lease_deadline
    )
    supervisor = Supervisor(control, parent, template, boot.workers, boot.version)
    # From here on the signal wakes the loop, which ends its workers first.
    if not prctl.set_parent_death_signal(signal.SIGTERM, parent):
        return 0
    return supervisor.run()
