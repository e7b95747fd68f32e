"""The renewer: listens for notifications and renews the host's row, on one connection.

One UPDATE of one row keeps every lease of the host alive and brings back which of its jobs are wished away and
which it no longer owns. It also keeps the no-gap record: how long this host has renewed without missing the lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from pgworkers.clock import boottime, monotonic
from pgworkers.events import Facts, Notified
from pgworkers.job.renew import renew
from pgworkers.master.dispatch import Dispatch
from pgworkers.master.line import Line, LineDown
from pgworkers.postgres.statements import Query
from pgworkers.settings import Settings

#: A young host renews every second, so that operators see its workers as they come up.
FRESH = 10.0


class Unbroken:
    """Since when this host has renewed without a gap; pure. `gap` is the longest silence that is no gap."""

    def __init__(self, gap: float) -> None:
        self._gap = gap
        self._since: float | None = None
        self._last: float | None = None

    def renewed(self, sent: float) -> None:
        if self._last is None or sent - self._last > self._gap or self._since is None:
            self._since = sent
        self._last = sent

    def for_at_least(self, period: float, now: float) -> bool:
        """Has it renewed without a gap for `period`, and is the last one fresh?"""
        if self._since is None or self._last is None:
            return False
        return now - self._last <= self._gap and now - self._since >= period


class Renewal:
    def __init__(
        self,
        host: str,
        line: Line,
        dispatch: Dispatch,
        facts: Facts,
        settings: Settings,
        view: Callable[[], tuple[str, str]],
        registration: Callable[[], Query[Any]],
        on_notice: Callable[[str], None],
        on_renewed: Callable[[float], None],
    ) -> None:
        self._host = host
        self._line = line
        self._dispatch = dispatch
        self._facts = facts
        self._settings = settings
        self._view = view
        self._registration = registration
        self._on_notice = on_notice
        self._on_renewed = on_renewed  # with the time of its sending, on CLOCK_BOOTTIME
        self._due = 0.0
        self._born = monotonic()
        self.unbroken = Unbroken(2 * settings.renew + settings.statement_timeout)
        line.on_connect = self._listen

    async def run(self) -> None:
        while True:
            try:
                if monotonic() >= self._due:
                    await self.once()
                conn = await self._line.connection()
                async for notice in conn.notifies(timeout=max(0.05, self._due - monotonic()), stop_after=100):
                    self._facts.tell(Notified(notice.payload))
                    self._on_notice(notice.payload)
            except LineDown:
                await self._line.rest()
            except psycopg.Error as error:
                self._line.lose(error)
                await self._line.rest()

    async def once(self) -> None:
        """Renew now, and act on what comes back."""
        sent, sent_boottime = monotonic(), boottime()
        state, workers = self._view()
        renewed = await self._line.ask(renew(self._host, self._dispatch.held_keys(), state, workers))
        if not renewed.known:
            # The row was swept while this host was away. Its jobs are lost; the host begins anew under the same id.
            await self._line.ask(self._registration())
            self._on_notice("reconnected")
        fresh = sent - self._born < FRESH
        self._due = sent + (min(1.0, self._settings.renew) if fresh else self._settings.renew)
        self.unbroken.renewed(sent)
        self._on_renewed(sent_boottime)
        for job, _lease in renewed.cancels:
            self._dispatch.cancel(job)
        for key in renewed.lost:
            self._dispatch.lost(key)

    async def _listen(self, conn: psycopg.AsyncConnection[Any]) -> None:
        await conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._settings.schema)))
        self._due = 0.0  # what was missed while deaf comes with the next renewal
        asyncio.get_running_loop().call_soon(self._on_notice, "reconnected")
