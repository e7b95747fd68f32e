"""What operators ask of this host: a stack now, suspend, resume, kill, leave. Taken when notified, answered in the table.

All stacks, by signal, are answered in the log: that needs no database.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import psycopg

from pgworkers.clock import monotonic
from pgworkers.events import StopRequested, WorkerStackDumped
from pgworkers.ipc.scoreboard import StopReason
from pgworkers.job import requests
from pgworkers.job.notification_payloads import MIN_HINT_INTERVAL_SECONDS
from pgworkers.job.requests import OperatorRequest
from pgworkers.master.connection import ConnectionDown
from pgworkers.master.worker_channel import WorkerChannel, WorkerState
from pgworkers.supervisor.messages import DumpStacks, SuspendJob

if TYPE_CHECKING:
    from pgworkers.master.host import Host

#: How long a supervisor may take to answer before we say that it did not: less than whoever asks waits for us.
SUPERVISOR_ANSWER_TIMEOUT_SECONDS = 8.0


class OperatorRequests:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._wake = asyncio.Event()
        self._tokens = itertools.count(1)
        self._running: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        line = self._host.connections["claim"]
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                taken = await line.execute(requests.take_requests(self._host.id))
            except (ConnectionDown, psycopg.Error):
                continue  # the asker asks again
            for one in taken:
                self._start(self._handle(one))
            if not taken:  # any login can notify
                await asyncio.sleep(MIN_HINT_INTERVAL_SECONDS)

    def log_all_stacks(self) -> None:
        """Where every worker is, as facts."""
        for worker in self._host.dispatcher.all_workers():
            self._start(self._log_stack(worker))

    async def _log_stack(self, worker: WorkerChannel) -> None:
        _, text = await self._dump_stack(worker)
        job = worker.current_job.job if worker.current_job is not None else None
        whose = (job.id, job.task, job.attempt) if job is not None else (0, "", 0)
        self._host.events.emit(WorkerStackDumped(worker.queue, worker.slot, worker.pid, *whose, text))

    def _start(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(what)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _handle(self, one: OperatorRequest) -> None:
        done, text = await self._perform(one)
        try:
            await self._host.connections["claim"].execute(requests.answer_request(one.id, done, text))
        except (ConnectionDown, psycopg.Error):
            pass  # the asker gives up, and may ask again

    async def _perform(self, one: OperatorRequest) -> tuple[bool, str]:
        worker = self._find_worker(one)
        if worker is None:
            return False, "it no longer runs on this host"
        if one.kind == "stack":
            return await self._dump_stack(worker)
        if one.kind == "leave":
            busy = worker.current_job is not None
            self._host.dispatcher.retire(worker)
            return True, "leaves after its job" if busy else "leaves now"
        held = worker.current_job
        if held is None:
            return False, "the worker has no job now"
        if one.kind == "kill":
            self._host.events.emit(StopRequested(*held.event_fields, StopReason.KILL.word))
            self._host.supervisors.stop_job(worker, held, StopReason.KILL, at_once=True)
            return True, "killed; the job is handed back and runs again"
        suspend = one.kind == "suspend"
        done, text = await self._ask_supervisor(
            worker,
            lambda token: worker.send_to_supervisor(
                SuspendJob(worker.slot, worker.incarnation, *held.key, token, suspend)
            ),
        )
        if done and suspend != worker.is_suspended:
            if not suspend:
                held.suspended_seconds += monotonic() - worker.since
            worker.move_to(WorkerState.SUSPENDED if suspend else WorkerState.BUSY)
            self._host.lease_keeper.renew_now()
        return done, text

    async def _dump_stack(self, worker: WorkerChannel) -> tuple[bool, str]:
        return await self._ask_supervisor(
            worker,
            lambda token: worker.send_to_supervisor(DumpStacks(worker.slot, worker.incarnation, token)),
        )

    def _find_worker(self, one: OperatorRequest) -> WorkerChannel | None:
        for worker in self._host.dispatcher.all_workers():
            if one.job_id is not None:
                if worker.current_job is not None and worker.current_job.job.id == one.job_id:
                    return worker
            elif (worker.queue, worker.slot) == (one.queue, one.slot):
                return worker
        return None

    async def _ask_supervisor(self, worker: WorkerChannel, send: Callable[[int], None]) -> tuple[bool, str]:
        token = next(self._tokens)
        answer: asyncio.Future[tuple[bool, str]] = asyncio.get_running_loop().create_future()
        self._host.supervisors.workers.pending_answers[token] = answer
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
            self._host.supervisors.workers.pending_answers.pop(token, None)
