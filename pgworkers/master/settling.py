"""Batches whose last jobs were ended by several sessions at once: asked about again, after all of them have committed.

Every host hears of them; the leader asks. What nobody heard is found by the duty `batches`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg

from pgworkers.flow import batch
from pgworkers.master.line import Asker, LineDown

AGAIN = 0.02  # seconds; somebody who ends its jobs has not committed yet
PATIENCE = 250  # times; then it is left to the duty
KEEP = 1000  # batches that may wait here
MAX_BATCHES_PER_PASS = 100


class Settling:
    def __init__(self, asker: Asker, leads: Callable[[], bool]) -> None:
        self._asker = asker
        self._leads = leads
        self._asked: dict[int, int] = {}  # batch -> how often it was asked about
        self._wake = asyncio.Event()

    def heard(self, batch_id: int) -> None:
        """A notification `batch:<id>`."""
        if self._leads() and len(self._asked) < KEEP:
            self._asked[batch_id] = 0
            self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._asked:
                await self._once()

    async def _once(self) -> None:
        busy = {}
        none_finished = True
        for batch_id, times in list(self._asked.items())[:MAX_BATCHES_PER_PASS]:
            del self._asked[batch_id]
            try:
                answer = await self._asker.ask(batch.settle(batch_id))
            except (LineDown, psycopg.Error):
                continue  # no longer the leader, or the database is away: the duty finds it
            none_finished = none_finished and answer != "finished"
            if answer == "busy" and times < PATIENCE:
                busy[batch_id] = times + 1
        if (
            none_finished
        ):  # also what forged notifications lead to: they must not keep the session from the duties
            await asyncio.sleep(AGAIN)
        self._asked = busy | self._asked
