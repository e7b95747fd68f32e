"""Starts the supervisors of this host, watches them, and restarts or replaces them.

`SupervisorProcess` is one process: its control socket, its pidfd, its end. `WorkerLifecycle` handles what it reports about
its workers. `SupervisorPool` has one supervisor per queue. The master execs them; it never forks.

When a supervisor dies, its workers die with it by PDEATHSIG. Their results are written only when each process is gone, so
that no job runs twice at once. A supervisor that sends nothing is reported as unresponsive after half of its timeout, and
killed after all of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec

from pgworkers.clock import monotonic
from pgworkers.events import (
    EventBus,
    JobStallChanged,
    OrphansKilled,
    OutputDropped,
    SupervisorBooted,
    SupervisorBootFailed,
    SupervisorDied,
    SupervisorStarted,
    SupervisorUnresponsive,
    WorkerDied,
    WorkerForked,
    WorkerRestartDelayed,
)
from pgworkers.ipc.frames import Frame
from pgworkers.ipc.scoreboard import StopReason
from pgworkers.job.model import Verdict
from pgworkers.linux import environment
from pgworkers.linux.titles import TITLE_PADDING_ARGUMENT
from pgworkers.master import orphan_processes
from pgworkers.master.dispatcher import Dispatcher
from pgworkers.master.held_job import HeldJob
from pgworkers.master.worker_channel import ChannelDescriptors, WorkerChannel
from pgworkers.settings import Settings
from pgworkers.states import WorkerExitReason, WorkerState
from pgworkers.supervisor.messages import (
    Alive,
    Boot,
    Booted,
    BootFailed,
    BytesDropped,
    Command,
    Died,
    Forked,
    Scale,
    StackDumped,
    StallChanged,
    StartDelayed,
    StopJob,
    SupervisorEvent,
    SuspendAnswered,
)
from pgworkers.supervisor.restart_budget import RestartBudget
from pgworkers.worker.messages import FrameKind

_MAX_PACKET_BYTES = 1 << 18
_encode_command = msgspec.json.Encoder().encode
_decode_message = msgspec.json.Decoder(SupervisorEvent).decode


class SupervisorProcess:
    """One running supervisor, as the master sees it."""

    def __init__(
        self,
        boot: Boot,
        version: str,
        lease_deadline_fd: int,
        on_message: Callable[[SupervisorProcess, SupervisorEvent, list[int]], None],
        on_death: Callable[[SupervisorProcess], None],
    ) -> None:
        self.queue = boot.queue.name
        self.version = version
        self.metrics_lane = boot.metrics_lane
        self.workers: dict[int, WorkerChannel] = {}  # by incarnation
        self.is_booted = False
        self.boot_error = ""  # why it could not boot
        self.last_message_at = monotonic()  # when its last message came
        self.is_unresponsive = False
        self.is_retired = False  # newer code, or no such queue any more: it leaves when its workers have
        self.was_killed = False  # by the master: its jobs are not the cause
        self._on_message = on_message
        self._on_death = on_death
        self._unsent: list[bytes] = []
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_PACKET_BYTES * 2)
        ours.setblocking(False)
        with theirs:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "pgworkers.supervisor"),  # -P: no module of this directory
                    *(
                        "--control-fd",
                        str(theirs.fileno()),
                        "--lease-fd",
                        str(lease_deadline_fd),
                        "--parent-pid",
                        str(os.getpid()),
                        TITLE_PADDING_ARGUMENT,
                    ),
                ],
                pass_fds=[theirs.fileno(), lease_deadline_fd],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # cores are then shared out by queue: no crowd of workers starves us
                env=environment.for_children(os.environ)
                | {environment.ORIGIN_VARIABLE: orphan_processes.origin_value(boot.host)},
            )
        self.pid = self.process.pid
        self._control: socket.socket | None = ours
        self._pidfd = os.pidfd_open(self.pid)
        loop = asyncio.get_running_loop()
        loop.add_reader(ours.fileno(), self._on_readable)
        loop.add_reader(self._pidfd, self._on_exit)
        self.send(boot)

    def send(self, order: Command) -> None:
        if self._control is None:
            return
        self._unsent.append(_encode_command(order))
        self._flush()

    def _flush(self) -> None:
        while self._unsent and self._control is not None:
            try:
                self._control.send(self._unsent[0])
            except (BlockingIOError, InterruptedError):
                asyncio.get_running_loop().add_writer(self._control.fileno(), self._on_writable)
                return
            except OSError:
                return  # it is dying; the pidfd reports that
            self._unsent.pop(0)

    def _on_writable(self) -> None:
        if self._control is not None:
            asyncio.get_running_loop().remove_writer(self._control.fileno())
            self._flush()

    def _on_readable(self) -> None:
        while self._receive():
            pass

    def _receive(self) -> bool:
        if self._control is None:
            return False
        try:
            data, fds, _flags, _address = socket.recv_fds(self._control, _MAX_PACKET_BYTES, 4)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data, fds = b"", []
        if not data:
            self.close()
            return False
        self.last_message_at = monotonic()
        self._on_message(self, _decode_message(data), fds)
        return True

    def close(self) -> None:
        """Close the control socket. The supervisor then kills its workers and exits."""
        control, self._control = self._control, None
        if control is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(control.fileno())
            loop.remove_writer(control.fileno())
            control.close()

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._on_readable()  # its last messages
        self.close()
        self.process.wait()
        self._on_death(self)

    @property
    def status(self) -> str:
        code = self.process.returncode
        if code is not None and code < 0:
            return signal.Signals(-code).name
        return f"exit {code}"


#: How a worker died whose death was not reported.
UNREPORTED_DEATH_STATUS = "a death that its supervisor did not report"
_READY_FRAME = Frame(kind=FrameKind.READY, job=0, lease=0, body=b"")


class WorkerLifecycle:
    """Passes messages about workers from the supervisors to the dispatcher: forked, stalled, died; and answers to requests.

    The death of a worker ends its job with the cause of the death. If workers die with their supervisor, no process reports
    that: their jobs end here all together, once the processes are gone.
    """

    def __init__(self, events: EventBus, dispatcher: Dispatcher) -> None:
        self._events = events
        self._dispatcher = dispatcher
        self.pending_answers: dict[int, asyncio.Future[tuple[bool, str]]] = {}  # by token

    def on_message(self, supervisor: SupervisorProcess, message: SupervisorEvent, fds: list[int]) -> None:
        match message:
            case Forked():
                self._on_forked(supervisor, message, fds)
                return  # the descriptors are the worker's now
            case Died():
                gone = supervisor.workers.pop(message.incarnation, None)
                if gone is not None:
                    self._on_died(gone, message)
            case StallChanged():
                self._on_stalled(supervisor.workers.get(message.incarnation), message)
            case Alive():
                self._on_alive(supervisor, message)
            case BytesDropped():
                self._events.emit(OutputDropped(supervisor.queue, message.count))
            case StartDelayed():
                self._events.emit(
                    WorkerRestartDelayed(
                        supervisor.queue, message.seconds, message.deaths, message.has_been_ready
                    )
                )
            case StackDumped():
                self._on_answer(message.token, True, message.text)
            case SuspendAnswered():
                self._on_answer(message.token, message.is_done, message.text)
        for fd in fds:
            os.close(fd)

    def on_supervisor_died(self, supervisor: SupervisorProcess, *, leaving: bool, dismissed: bool) -> None:
        """End the jobs of the workers of a dead supervisor. The workers are gone with it.

        The jobs run again without using up an attempt. Unless the host is `leaving`, each counts a loss: one of them may be
        what kills supervisors. `dismissed`: the idle workers were asked to leave with their supervisor.
        """
        for worker in supervisor.workers.values():
            how = "was killed because it sent nothing" if supervisor.was_killed else "died"
            why = f"its supervisor {how} ({supervisor.status})"
            reason = StopReason.KILL if leaving else None
            self._on_unreported_death(worker, why, reason, lost=not leaving, dismissed=dismissed)
        supervisor.workers.clear()

    def finish_jobs_of_unknown_workers(self, supervisors: Iterable[SupervisorProcess]) -> None:
        """End the jobs of workers that no supervisor has.

        `supervisors`: all, also those that died a moment ago.
        """
        known = {id(worker) for supervisor in supervisors for worker in supervisor.workers.values()}
        for worker in self._dispatcher.busy_workers():
            if id(worker) not in known:
                self._on_unreported_death(worker, UNREPORTED_DEATH_STATUS)

    def _on_forked(self, supervisor: SupervisorProcess, message: Forked, fds: list[int]) -> None:
        sock, ticket_reader, ticket_writer, *report_page = fds
        worker = WorkerChannel(
            queue=supervisor.queue,
            slot=message.slot,
            pid=message.pid,
            incarnation=message.incarnation,
            version=supervisor.version,
            descriptors=ChannelDescriptors(
                socket=socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, sock),
                ticket_reader=ticket_reader,
                ticket_writer=ticket_writer,
                report_page=report_page[0] if report_page else None,
            ),
            on_frames=self._dispatcher.on_frames,
            on_closed=self._dispatcher.on_channel_closed,
            send_to_supervisor=supervisor.send,
        )
        supervisor.workers[message.incarnation] = worker
        self._dispatcher.add_worker(worker)
        self._events.emit(WorkerForked(supervisor.queue, message.slot, message.pid))
        if supervisor.is_retired:  # it was forked before that
            self._dispatcher.retire(worker)
        if message.is_ready:  # it sends no READY itself
            self._dispatcher.on_frames(worker, [_READY_FRAME])

    def _on_alive(self, supervisor: SupervisorProcess, message: Alive) -> None:
        """End the jobs of workers that their supervisor no longer has, although it has not reported their death."""
        for incarnation in supervisor.workers.keys() - set(message.incarnations):
            self._on_unreported_death(supervisor.workers.pop(incarnation), UNREPORTED_DEATH_STATUS)

    def _on_unreported_death(
        self,
        worker: WorkerChannel,
        why: str,
        reason: StopReason | None = None,
        *,
        lost: bool = False,
        dismissed: bool = False,
    ) -> None:
        """Handle a death without a report of the supervisor.

        Without a `reason`, the job ends as a crash.
        """
        worker.read_all()
        self._dispatcher.on_channel_closed(worker)
        if dismissed and worker.current_job is None:
            worker.move_to(WorkerState.LEAVING)
        job, lease = worker.current_job.key if worker.current_job is not None else (0, 0)
        died = Died(
            slot=worker.slot,
            pid=worker.pid,
            incarnation=worker.incarnation,
            job=job,
            lease=lease,
            status=why,
            signal=int(signal.SIGKILL),
            was_ready=True,
            reason=reason,
            is_lost=lost,
        )
        died.duration = monotonic() - worker.since
        self._on_died(worker, died)

    def _on_stalled(self, worker: WorkerChannel | None, message: StallChanged) -> None:
        if (
            worker is None
            or worker.current_job is None
            or worker.current_job.key != (message.job, message.lease)
        ):
            return
        if worker.current_job.is_stalled == message.is_stalled:  # it was the job before it that stalled
            return
        worker.current_job.is_stalled = message.is_stalled
        self._events.emit(JobStallChanged(*worker.current_job.event_fields, message.is_stalled))

    def _on_answer(self, token: int, done: bool, text: str) -> None:
        waiting = self.pending_answers.pop(token, None)
        if waiting is not None and not waiting.done():
            waiting.set_result((done, text))

    def _on_died(self, worker: WorkerChannel, died: Died) -> None:
        left = worker.state is WorkerState.LEAVING or (
            worker.state is WorkerState.BOOTING and died.status == "exit 0"
        )
        held = self._dispatcher.held_jobs.get(died.job)
        job = held.job if held is not None else None
        verdict = self._dispatcher.on_worker_died(worker, died)
        if verdict is not None:
            why: Verdict | WorkerExitReason = verdict
        elif not left:
            why = WorkerExitReason.IDLE
        else:
            why = WorkerExitReason.THREADS if worker.has_leaked_threads else WorkerExitReason.LEFT
        self._events.emit(
            WorkerDied(
                queue=worker.queue,
                slot=worker.slot,
                pid=worker.pid,
                job=died.job,
                status=died.status,
                reason=why.value,
                orphans_killed=died.swept,
                task=job.task if job is not None else "",
                attempt=job.attempt if job is not None else 0,
                unkillable=tuple(died.stuck),
                foreign=tuple(died.foreign),
            )
        )


class SupervisorPool:
    """One supervisor per queue, each with a restart budget, and those that a reload is replacing."""

    def __init__(
        self,
        *,
        host_id: str,
        settings: Settings,
        events: EventBus,
        dispatcher: Dispatcher,
        lease_deadline_fd: int,
        hurry: asyncio.Event,
        start_background: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        """`lease_deadline_fd`: the shared page with the deadline of the leases.

        `hurry`: set if the host must leave now.
        """
        self._settings = settings
        self._events = events
        self._dispatcher = dispatcher
        self._boots: dict[str, Boot] = {}
        self._version = ""  # of the app
        self._start_background = start_background
        self._lease_deadline_fd = lease_deadline_fd
        self._hurry = hurry
        self._host_id = host_id
        self._budgets: dict[str, RestartBudget] = {}
        self._current: dict[str, SupervisorProcess] = {}
        self._retiring: list[SupervisorProcess] = []
        self._dead: list[SupervisorProcess] = []  # supervisors whose workers are not all gone yet
        self._cleanups: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._checked_at = monotonic()
        self.other_children: set[int] = set()  # children that other code in this process waits for
        self.errors: dict[str, str] = {}  # why a queue has no workers
        self.tracebacks: dict[str, str] = {}  # of those errors that have one
        self.workers = WorkerLifecycle(events, dispatcher)

    def set_queues(self, boots: dict[str, Boot], version: str) -> None:
        """Name the queues to serve, with the first message for the supervisor of each.

        Called once, before `start`.
        """
        self._boots, self._version = boots, version

    def start(self) -> None:
        for name in self._boots:
            self._start(name)

    def scale(self, queue: str, workers: int) -> None:
        self._boots[queue] = msgspec.structs.replace(self._boots[queue], workers=workers)
        if queue in self._current:
            self._current[queue].send(Scale(workers))

    def has_queue(self, queue: str) -> bool:
        return queue in self._boots

    def target_workers(self, queue: str) -> int:
        return self._boots[queue].workers if queue in self._boots else 0

    def stop_job(self, worker: WorkerChannel, held: HeldJob, reason: StopReason) -> None:
        """Ask the supervisor to stop a job, by its id and lease.

        A kill has no graces, nor has a host in a hurry.
        """
        has_graces = reason is not StopReason.KILL and not self._hurry.is_set()
        ask, raise_ = (self._settings.ask_grace, self._settings.raise_grace) if has_graces else (0.0, 0.0)
        worker.send_to_supervisor(
            StopJob(
                slot=worker.slot,
                incarnation=worker.incarnation,
                job=held.job.id,
                lease=held.job.lease,
                reason=reason,
                ask_grace=ask,
                raise_grace=raise_,
            )
        )

    async def replace(self, boots: dict[str, Boot], version: str) -> list[str]:
        """Start a new supervisor for each queue, one by one.

        The old one leaves when its jobs are done.

        A queue whose new supervisor cannot boot keeps its old one. Returns the names and reasons of such queues.
        """
        refused = []
        self._version = version
        for queue in [name for name in self._boots if name not in boots]:
            del self._boots[queue]
            self._retire(self._current.pop(queue, None))
        for queue, boot in boots.items():
            if self._is_stopping:
                break  # a drain has started: what it closes must not be replaced
            fresh = self._launch(boot)
            self._events.emit(SupervisorStarted(queue, fresh.pid))
            self._retiring.append(fresh)  # not restarted until it has booted
            while not (fresh.is_booted or fresh.boot_error or fresh.process.returncode is not None):
                await asyncio.sleep(0.02)
            if not fresh.is_booted or self._is_stopping:
                refused.append(f"queue {queue}: {fresh.boot_error or fresh.status}")
                fresh.close()
                continue
            self._boots[queue] = boot
            self._retiring.remove(fresh)
            old = self._current.get(queue)  # read now: another one may have died and been started meanwhile
            self._current[queue] = fresh
            self._retire(old)
        return refused

    def stop_starting(self) -> None:
        """Start no more workers or supervisors."""
        self._is_stopping = True
        for name in self._boots:
            self.scale(name, 0)

    def close(self) -> None:
        self._is_stopping = True
        for supervisor in self._all():
            supervisor.close()

    def kill(self) -> None:
        """Kill all supervisors: one that does not exit when its socket closes is stopped or broken."""
        for supervisor in self._all():
            supervisor.was_killed = True
            supervisor.process.kill()

    @property
    def is_alive(self) -> bool:
        return bool(self._current or self._retiring or self._cleanups)

    @property
    def spared_pids(self) -> set[int]:
        """Children that `reap_strays` and `kill_strays` must leave alone."""
        return {supervisor.pid for supervisor in self._all()} | self.other_children

    def check(self) -> None:
        """Kill supervisors that send nothing, so that their jobs are released.

        Called in every round of housekeeping.
        """
        now = monotonic()
        if now - self._checked_at > 2.0:  # this process did not run: read their messages first
            for supervisor in self._all():
                supervisor.last_message_at = now
        self._checked_at = now
        for supervisor in self._all():
            _check_one(supervisor, now, self._settings, self._events, self.errors)
        self.workers.finish_jobs_of_unknown_workers([*self._all(), *self._dead])

    def unresponsive_queues(self) -> list[str]:
        return [supervisor.queue for supervisor in self._all() if supervisor.is_unresponsive]

    def reap_strays(self) -> None:
        """Reap zombies that no other code waits for."""
        orphan_processes.reap_strays(self.spared_pids)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _all(self) -> list[SupervisorProcess]:
        return [*self._current.values(), *self._retiring]

    def _start(self, queue: str) -> None:
        if self._is_stopping or queue in self._current or queue not in self._boots:
            return
        supervisor = self._launch(self._boots[queue])
        self._current[queue] = supervisor
        self._events.emit(SupervisorStarted(queue, supervisor.pid))

    def _launch(self, boot: Boot) -> SupervisorProcess:
        """Start a supervisor in the first lane that no living supervisor of the queue has."""
        taken = {one.metrics_lane for one in (*self._all(), *self._dead) if one.queue == boot.queue.name}
        lane = next(number for number in range(len(taken) + 1) if number not in taken)
        boot = msgspec.structs.replace(boot, metrics_lane=lane)
        return SupervisorProcess(
            boot, self._version, self._lease_deadline_fd, self._on_message, self._on_exit
        )

    def _retire(self, old: SupervisorProcess | None) -> None:
        if old is None:
            return
        self._retiring.append(old)
        old.is_retired = True
        old.send(Scale(0))
        for worker in list(old.workers.values()):
            self._dispatcher.retire(worker)
        self._close_if_empty(old)

    def _close_if_empty(self, supervisor: SupervisorProcess) -> None:
        """A retired supervisor without workers has nothing left to do."""
        if supervisor.is_retired and supervisor.is_booted and not supervisor.workers:
            supervisor.close()

    def _on_message(self, supervisor: SupervisorProcess, message: SupervisorEvent, fds: list[int]) -> None:
        match message:
            case Booted():
                supervisor.is_booted = True
                self._budget(supervisor.queue).record_ready()
                self.errors.pop(supervisor.queue, None)
                self.tracebacks.pop(supervisor.queue, None)
                self._events.emit(SupervisorBooted(supervisor.queue, supervisor.pid, message.seconds))
                self._close_if_empty(supervisor)
            case BootFailed():
                supervisor.boot_error = message.error
                if supervisor is self._current.get(supervisor.queue):
                    self.errors[supervisor.queue] = message.error
                    self.tracebacks[supervisor.queue] = message.traceback
                self._events.emit(SupervisorBootFailed(supervisor.queue, message.error, message.traceback))
            case _:
                self.workers.on_message(supervisor, message, fds)
                self._close_if_empty(supervisor)

    def _on_exit(self, supervisor: SupervisorProcess) -> None:
        task = self._start_background(self._clean_up_after(supervisor))
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)

    async def _clean_up_after(self, supervisor: SupervisorProcess) -> None:
        """Wait until every worker of a dead supervisor is gone, end their jobs, and start the next supervisor."""
        queue = supervisor.queue
        was_current = self._current.get(queue) is supervisor
        if was_current:
            del self._current[queue]
        elif supervisor in self._retiring:
            self._retiring.remove(supervisor)
        self._dead.append(supervisor)
        killed = await orphan_processes.kill_strays(self._host_id, lambda: self.spared_pids)
        if killed:
            self._events.emit(OrphansKilled(killed))
        self.workers.on_supervisor_died(
            supervisor,
            leaving=self._is_stopping,
            dismissed=self._is_stopping or not was_current,
        )
        self._dead.remove(supervisor)
        should_restart = was_current and not self._is_stopping
        pause = (
            self._budget(queue).record_death(monotonic(), supervisor.is_booted) if should_restart else None
        )
        self._events.emit(SupervisorDied(queue, supervisor.pid, supervisor.status, pause))
        if pause is not None:  # a timer, not this task: a drain waits for this task and starts nothing
            asyncio.get_running_loop().call_later(pause, self._start, queue)

    def _budget(self, queue: str) -> RestartBudget:
        s = self._settings
        return self._budgets.setdefault(
            queue, RestartBudget(s.restart_limit, s.restart_period, s.restart_max_delay)
        )


def _check_one(
    supervisor: SupervisorProcess, now: float, settings: Settings, events: EventBus, errors: dict[str, str]
) -> None:
    """Report or kill a supervisor that is frozen, starved, or hangs in the import of the app."""
    quiet = now - supervisor.last_message_at
    if (
        not supervisor.is_booted
        and quiet > settings.import_timeout + settings.supervisor_timeout
        and not supervisor.was_killed
    ):
        supervisor.was_killed = True  # its own timeout did not fire: the import hangs in C
        supervisor.boot_error = "importing the app hangs; no worker was started"
        errors[supervisor.queue] = supervisor.boot_error
        supervisor.process.kill()
    if not supervisor.is_booted or quiet < settings.supervisor_timeout / 2:
        supervisor.is_unresponsive = False
        return
    if not supervisor.is_unresponsive:
        supervisor.is_unresponsive = True
        events.emit(SupervisorUnresponsive(supervisor.queue, supervisor.pid, quiet))
    if quiet >= settings.supervisor_timeout and not supervisor.was_killed:
        supervisor.was_killed = True
        supervisor.process.kill()
