"""Who performs the cluster's duties: the host whose session holds the advisory lock of the schema.

    candidate --lock won--> leader --session lost, or drain--> candidate

What is authoritative is the session: every duty runs on the very connection that holds the lock (`ask`), so who lost
the session cannot act, whatever it believes. The flag `leads` is only a conservative local view: off first, on only
while the lock is held, off before it is given back. Losing is noticed by the next duty, because that duty fails.

A frozen leader keeps its session, so it would lead for ever. A candidate that has itself renewed without a gap ends the
session of a leader whose row went silent for two renewals; the deposed one, should it wake up, finds its session gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

import psycopg

from pgworkers.clock import monotonic
from pgworkers.events import LeaderChanged
from pgworkers.facts import Facts
from pgworkers.job import lead
from pgworkers.master.line import Line, LineDown, first_line
from pgworkers.postgres.statements import Query
from pgworkers.settings import Settings

T = TypeVar("T")

AFTER_DEPOSING = 0.1  # seconds; the lock is free as soon as the ended session has left


class Leadership:
    def __init__(
        self,
        host: str,
        line: Line,
        facts: Facts,
        settings: Settings,
        unbroken: Callable[[float], bool],
        reckoned: Callable[[], datetime | None],
    ) -> None:
        self.leads = False
        self.since = 0.0
        self._host = host
        self._line = line
        self._facts = facts
        self._settings = settings
        self._unbroken = unbroken  # has this host renewed without a gap for so long?
        self._reckoned = reckoned  # the database's time, as this host reckons it
        self._session = -1
        self._resigned = False
        self._won = asyncio.Event()

    @property
    def silence(self) -> float:
        """A leader that has not renewed for this long may be deposed."""
        return 2 * self._settings.renew

    async def run(self) -> None:
        """Try for the lock for as long as the host lives; while leading, see that the session is still there."""
        while not self._resigned:
            pause = self._settings.leader_retry
            try:
                if await self._round():
                    pause = min(pause, AFTER_DEPOSING)
            except (LineDown, psycopg.Error) as error:
                self._lost(first_line(error))
                await self._line.rest()
            await asyncio.sleep(pause)

    async def _round(self) -> bool:
        """True: a frozen leader was deposed, so that the lock is about to be free."""
        if self.leads:
            if self._line.session != self._session:
                self._lost("the session is gone")
            return False
        if await self._line.ask(lead.try_to_lead(self._host)):
            self._session = self._line.session
            self.leads, self.since = True, monotonic()
            self._won.set()
            self._facts.tell(LeaderChanged(True, "this host leads"))
            return False
        if not self._unbroken(self.silence):
            return False
        deposed = await self._line.ask(lead.depose(self.silence, clock=self._reckoned()))
        if deposed:
            self._facts.tell(LeaderChanged(False, "a leader that stopped renewing was deposed"))
        return deposed > 0

    async def ask(self, query: Query[T]) -> T:
        """A duty's statement: on the session that holds the lock, or not at all."""
        if not self.leads:
            raise LineDown("this host does not lead")
        try:
            return await self._line.ask(query, session=self._session)
        except LineDown as error:
            if self._line.session != self._session or not self._line.up:
                self._lost(first_line(error))
            raise

    async def until_leading(self) -> None:
        while not self.leads:
            self._won.clear()
            await self._won.wait()

    async def resign(self) -> None:
        """Before the host leaves: the flag, the row, the lock."""
        self._resigned = True
        if self.leads:
            self._lost("this host is leaving")
            try:
                async with asyncio.timeout(self._settings.statement_timeout):
                    await self._line.ask(lead.resign(self._host), session=self._session)
            except (LineDown, TimeoutError, psycopg.Error):
                pass  # the end of the session frees it

    def _lost(self, why: str) -> None:
        if self.leads:
            self.leads = False
            self._facts.tell(LeaderChanged(False, f"this host no longer leads: {why}"))
