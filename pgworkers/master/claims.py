"""The claimer: keeps the desks supplied, on the claim connection, while earlier jobs run and finish."""

from __future__ import annotations

import asyncio

import psycopg

from pgworkers.events import Claimed as ClaimedFact
from pgworkers.events import Facts
from pgworkers.job.claim import claim
from pgworkers.master.dispatch import Dispatch
from pgworkers.master.line import Line, LineDown
from pgworkers.settings import Settings

#: One claim in so many takes the oldest jobs first.
OUT_OF_TURN = 10


class Claims:
    def __init__(self, host: str, line: Line, dispatch: Dispatch, facts: Facts, settings: Settings) -> None:
        self._host = host
        self._line = line
        self._dispatch = dispatch
        self._facts = facts
        self._settings = settings
        self._wake = asyncio.Event()
        self.polls = 0

    def poke(self) -> None:
        """There may be work, or room for it."""
        self._wake.set()

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._settings.poll):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            wants = self._dispatch.wants()
            if not wants:
                continue
            self.polls += 1
            try:
                claimed = await self._line.ask(
                    claim(self._host, wants, list(self._dispatch.tasks), self._aged())
                )
            except LineDown:
                await self._line.rest()
                self._wake.set()
                continue
            except psycopg.Error:
                await asyncio.sleep(self._settings.poll)
                continue
            if claimed:
                self._facts.tell(ClaimedFact(len(claimed)))
                self._dispatch.take(claimed)
                self._wake.set()  # there may be more; the next claim finds out while these run

    def _aged(self) -> float | None:
        """Low priority never starves: now and then the oldest go first."""
        if self._settings.ageing > 0 and self.polls % OUT_OF_TURN == 0:
            return self._settings.ageing
        return None
