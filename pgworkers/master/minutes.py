"""The statistics of this host on their way into the database: once a minute, and when it leaves."""

from __future__ import annotations

import asyncio

import psycopg

from pgworkers.master.line import Asker, LineDown
from pgworkers.observe.statistics import MINUTE, Statistics


class Minutes:
    def __init__(self, asker: Asker, statistics: Statistics) -> None:
        self._asker = asker
        self._statistics = statistics

    async def run(self) -> None:
        while True:
            await asyncio.sleep(MINUTE)
            await self.write()

    async def write(self) -> bool:
        """What was not written stays in memory for the next time."""
        query = self._statistics.take()
        if query is None:
            return True
        try:
            await self._asker.ask(query)
        except (LineDown, psycopg.Error):
            return False
        self._statistics.written()
        return True
