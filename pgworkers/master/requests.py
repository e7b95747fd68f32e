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
from pgworkers.events import StopWished
from pgworkers.job import request
from pgworkers.job.notifications import HINT_PAUSE_SECONDS
from pgworkers.job.request import Request
from pgworkers.lives import WorkerDumped
from pgworkers.master.crew import Worker
from pgworkers.master.line import LineDown
from pgworkers.supervisor.messages import Dump, Suspend

if TYPE_CHECKING:
    from pgworkers.master.host import Host

#: How long a supervisor may take to answer before we say that it did not: less than whoever asks waits for us.
PATIENCE = 8.0


class Requests:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._wake = asyncio.Event()
        self._tokens = itertools.count(1)
        self._doing: set[asyncio.Task[None]] = set()

    def poke(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        line = self._host.lines["claim"]
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                taken = await line.ask(request.take(self._host.id))
            except (LineDown, psycopg.Error):
                continue  # the asker asks again
            for one in taken:
                self._begin(self._serve(one))
            if not taken:  # any login can notify
                await asyncio.sleep(HINT_PAUSE_SECONDS)

    def tell_stacks(self) -> None:
        """Where every worker is, as facts."""
        for worker in self._host.dispatch.all_workers():
            self._begin(self._tell_stack(worker))

    async def _tell_stack(self, worker: Worker) -> None:
        _, text = await self._stack(worker)
        job = worker.held.claimed if worker.held is not None else None
        whose = (job.id, job.task, job.attempt) if job is not None else (0, "", 0)
        self._host.facts.tell(WorkerDumped(worker.queue, worker.slot, worker.pid, *whose, text))

    def _begin(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(what)
        self._doing.add(task)
        task.add_done_callback(self._doing.discard)

    async def _serve(self, one: Request) -> None:
        done, text = await self._do(one)
        try:
            await self._host.lines["claim"].ask(request.answer(one.id, done, text))
        except (LineDown, psycopg.Error):
            pass  # the asker gives up, and may ask again

    async def _do(self, one: Request) -> tuple[bool, str]:
        worker = self._find(one)
        if worker is None:
            return False, "it no longer runs on this host"
        if one.kind == "stack":
            return await self._stack(worker)
        if one.kind == "leave":
            busy = worker.held is not None
            self._host.dispatch.retire(worker)
            return True, "leaves after its job" if busy else "leaves now"
        held = worker.held
        if held is None:
            return False, "the worker has no job now"
        if one.kind == "kill":
            self._host.facts.tell(StopWished(*held.named, "kill"))
            self._host.supervisors.stop_job(worker, held, "kill", now=True)
            return True, "killed; the job is handed back and runs again"
        suspend = one.kind == "suspend"
        done, text = await self._answer_of(
            worker,
            lambda token: worker.tell(Suspend(worker.slot, worker.incarnation, *held.key, token, suspend)),
        )
        if done and suspend != (worker.state == "suspended"):
            if not suspend:
                held.stood += monotonic() - worker.since
            worker.become("suspended" if suspend else "busy")
            self._host.renewal.soon()
        return done, text

    async def _stack(self, worker: Worker) -> tuple[bool, str]:
        return await self._answer_of(
            worker, lambda token: worker.tell(Dump(worker.slot, worker.incarnation, token))
        )

    def _find(self, one: Request) -> Worker | None:
        for worker in self._host.dispatch.all_workers():
            if one.job_id is not None:
                if worker.held is not None and worker.held.claimed.id == one.job_id:
                    return worker
            elif (worker.queue, worker.slot) == (one.queue, one.slot):
                return worker
        return None

    async def _answer_of(self, worker: Worker, send: Callable[[int], None]) -> tuple[bool, str]:
        token = next(self._tokens)
        answer: asyncio.Future[tuple[bool, str]] = asyncio.get_running_loop().create_future()
        self._host.supervisors.hearing.answers[token] = answer
        send(token)
        try:
            async with asyncio.timeout(PATIENCE):
                return await answer
        except TimeoutError:
            return False, f"the supervisor of queue {worker.queue} did not answer within {PATIENCE:.0f}s"
        finally:
            self._host.supervisors.hearing.answers.pop(token, None)
