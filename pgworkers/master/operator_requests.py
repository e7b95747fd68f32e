"""What operators ask of this host: stack, suspend, resume, kill, leave.

A notification says that there are requests; the answers are written to their rows. The stacks of all workers can also be
had by SIGUSR2. They are logged then, which needs no database.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg

from pgworkers.clock import monotonic
from pgworkers.events import EventBus, StopRequested, WorkerStackDumped
from pgworkers.ipc.scoreboard import StopReason
from pgworkers.job import requests
from pgworkers.job.notification_payloads import MIN_HINT_INTERVAL_SECONDS
from pgworkers.job.requests import OperatorRequest, RequestKind
from pgworkers.master.connection import ConnectionDown, ReconnectingConnection
from pgworkers.master.dispatcher import Dispatcher
from pgworkers.master.supervisors import SupervisorPool
from pgworkers.master.worker_channel import WorkerChannel
from pgworkers.states import WorkerState
from pgworkers.supervisor.messages import DumpStacks, SuspendJob

#: How long a supervisor may take to answer. Shorter than the time that the command of the operator waits for this host.
SUPERVISOR_ANSWER_TIMEOUT_SECONDS = 8.0


class OperatorRequests:
    def __init__(
        self,
        *,
        host_id: str,
        connection: ReconnectingConnection,
        dispatcher: Dispatcher,
        supervisors: SupervisorPool,
        renew_now: Callable[[], None],
        events: EventBus,
    ) -> None:
        self._host_id = host_id
        self._connection = connection
        self._dispatcher = dispatcher
        self._supervisors = supervisors
        self._renew_now = renew_now
        self._events = events
        self._wake = asyncio.Event()
        self._tokens = itertools.count(1)
        self._running: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                taken = await self._connection.execute(requests.take_requests(self._host_id))
            except (ConnectionDown, psycopg.Error):
                continue  # the command asks again
            for request in taken:
                self._start(self._handle(request))
            if not taken:  # any login can notify
                await asyncio.sleep(MIN_HINT_INTERVAL_SECONDS)

    def log_all_stacks(self) -> None:
        """Emit the stack of every worker (SIGUSR2)."""
        for worker in self._dispatcher.all_workers():
            self._start(self._log_stack(worker))

    async def _log_stack(self, worker: WorkerChannel) -> None:
        _, text = await self._dump_stack(worker)
        job = worker.current_job.job if worker.current_job is not None else None
        job_fields = (job.id, job.task, job.attempt) if job is not None else (0, "", 0)
        self._events.emit(WorkerStackDumped(worker.queue, worker.slot, worker.pid, *job_fields, text))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _handle(self, request: OperatorRequest) -> None:
        is_done, text = await self._perform(request)
        try:
            await self._connection.execute(requests.answer_request(request.id, is_done, text))
        except (ConnectionDown, psycopg.Error):
            pass  # the command gives up; the operator may repeat it

    async def _perform(self, request: OperatorRequest) -> tuple[bool, str]:
        worker = self._find_worker(request)
        if worker is None:
            return False, "it no longer runs on this host"
        if request.kind == RequestKind.STACK:
            return await self._dump_stack(worker)
        if request.kind == RequestKind.LEAVE:
            is_busy = worker.current_job is not None
            self._dispatcher.retire(worker)
            return True, "leaves after its job" if is_busy else "leaves now"
        held = worker.current_job
        if held is None:
            return False, "the worker has no job now"
        if request.kind == RequestKind.KILL:
            self._events.emit(StopRequested(*held.event_fields, StopReason.KILL.word))
            self._supervisors.stop_job(worker, held, StopReason.KILL)
            return True, "killed; the job is handed back and runs again"
        should_suspend = request.kind == RequestKind.SUSPEND
        is_done, text = await self._ask_supervisor(
            worker,
            lambda token: worker.send_to_supervisor(
                SuspendJob(
                    slot=worker.slot,
                    incarnation=worker.incarnation,
                    job=held.job.id,
                    lease=held.job.lease,
                    token=token,
                    should_suspend=should_suspend,
                )
            ),
        )
        if is_done and should_suspend != worker.is_suspended:
            if not should_suspend:
                held.suspended_seconds += monotonic() - worker.since
            worker.move_to(WorkerState.SUSPENDED if should_suspend else WorkerState.BUSY)
            self._renew_now()
        return is_done, text

    async def _dump_stack(self, worker: WorkerChannel) -> tuple[bool, str]:
        return await self._ask_supervisor(
            worker,
            lambda token: worker.send_to_supervisor(DumpStacks(worker.slot, worker.incarnation, token)),
        )

    def _find_worker(self, request: OperatorRequest) -> WorkerChannel | None:
        for worker in self._dispatcher.all_workers():
            if request.job_id is not None:
                if worker.current_job is not None and worker.current_job.job.id == request.job_id:
                    return worker
            elif (worker.queue, worker.slot) == (request.queue, request.slot):
                return worker
        return None

    async def _ask_supervisor(self, worker: WorkerChannel, send: Callable[[int], None]) -> tuple[bool, str]:
        token = next(self._tokens)
        answer: asyncio.Future[tuple[bool, str]] = asyncio.get_running_loop().create_future()
        self._supervisors.workers.pending_answers[token] = answer
        send(token)
        try:
            async with asyncio.timeout(SUPERVISOR_ANSWER_TIMEOUT_SECONDS):
                return await answer
        except TimeoutError:
            return (
                False,
                f"the supervisor of queue {worker.queue} did not answer within {SUPERVISOR_ANSWER_TIMEOUT_SECONDS:.0f}s",
            )
        finally:
            self._supervisors.workers.pending_answers.pop(token, None)
