"""Completes batches whose last jobs were ended by several sessions at once, after all of these have committed.

Normally the statement that ends the last job completes its batch: it calls `settle_dependents()` in the schema. Every host
is notified of the others; only the leader acts. The duty `batches` finds those whose notification was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg

from pgworkers.job import batches
from pgworkers.master.connection import ConnectionDown, QueryExecutor

BUSY_BATCH_RETRY_SECONDS = 0.02  # a session that ends its jobs has not committed yet
MAX_TRIES_PER_BATCH = 250  # then it is left to the duty
MAX_BATCHES_WAITING = 1000
MAX_BATCHES_PER_PASS = 100


class BatchCompleter:
    def __init__(self, executor: QueryExecutor, leads: Callable[[], bool]) -> None:
        self._executor = executor
        self._is_leader = leads
        self._tries: dict[int, int] = {}  # batch -> how often it was tried
        self._wake = asyncio.Event()

    def on_notification(self, batch_id: int) -> None:
        """A notification `batch:<id>`."""
        if self._is_leader() and len(self._tries) < MAX_BATCHES_WAITING:
            self._tries[batch_id] = 0
            self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._tries:
                await self._complete_some()

    async def _complete_some(self) -> None:
        busy = {}
        none_finished = True
        for batch_id, times in list(self._tries.items())[:MAX_BATCHES_PER_PASS]:
            del self._tries[batch_id]
            try:
                answer = await self._executor.execute(batches.settle_batch(batch_id))
            except (ConnectionDown, psycopg.Error):
                continue  # no longer the leader, or the database is away: the duty finds it
            none_finished = none_finished and answer != "finished"
            if answer == "busy" and times < MAX_TRIES_PER_BATCH:
                busy[batch_id] = times + 1
        if none_finished:  # forged notifications must not keep the connection from the duties
            await asyncio.sleep(BUSY_BATCH_RETRY_SECONDS)
        self._tries = busy | self._tries
