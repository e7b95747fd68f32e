"""The renewer: listens for notifications and renews the host's row, on one connection.

One UPDATE of one row keeps every lease of the host alive and brings back which of its jobs are wished away and
which it no longer owns. It also keeps the no-gap record: how long this host has renewed without missing the lease;
and what time it was there (reckoning).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq.abc import PGconn

from pgworkers.clock import boottime, monotonic
from pgworkers.events import Notified
from pgworkers.facts import Facts
from pgworkers.job.notifications import HINT_PAUSE_SECONDS, HostHint, Reconnected, parse_host_hint
from pgworkers.job.renew import renew
from pgworkers.master.dispatch import Dispatch
from pgworkers.master.line import Line, LineDown
from pgworkers.master.reckoning import Reckoning
from pgworkers.postgres.exchange import Exchange
from pgworkers.postgres.statements import Query
from pgworkers.settings import Settings

#: A young host renews every second, so that operators see its workers as they come up, and no longer than it takes them.
FRESH = 10.0
#: So does one that somebody watches (`pgworkers top`), for so long after each word of theirs.
WATCHED = 10.0
#: The pause between two renewals while jobs begin that operators cannot see yet.
BEGUN_RENEW_SECONDS = 1.0


View = tuple[str, str, float, int, str]  # state, workers as JSON, load, cores, problems as JSON


def period(now: float, born: float, watched: float, renew: float, *, settled: bool = False) -> float:
    """Seconds until the next renewal; `settled`: all workers are up, and this one said so. Pure."""
    fresh = now - born < FRESH and not settled
    return min(1.0, renew) if fresh or now < watched else renew


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
        view: Callable[[], View],
        registration: Callable[[], Query[Any]],
        on_hint: Callable[[HostHint], None],
        on_heard: Callable[[], None],
        on_renewed: Callable[[float], None],
        settled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._host = host
        self._line = line
        self._dispatch = dispatch
        self._facts = facts
        self._settings = settings
        self._view = view
        self._registration = registration
        self._on_hint = on_hint
        self._on_heard = on_heard  # after all that came together
        self._on_renewed = on_renewed  # with the time of its sending, on CLOCK_BOOTTIME
        self._settled = settled  # have all workers come up?
        self._due = self._sent = self._watched = 0.0
        self.shown_jobs: frozenset[int] = frozenset()  # that workers had in the last process view
        self._must_reread = False  # a hint came after the last renewal was sent
        self._wake: Callable[[], None] | None = None  # ends the wait for the next renewal
        self._born = monotonic()
        self._leaving = False
        self._left = asyncio.Event()
        self.reckoning = Reckoning()
        self.unbroken = Unbroken(2 * settings.renew + settings.statement_timeout)
        line.on_connect = self._listen

    async def run(self) -> None:
        try:
            while not self._leaving:
                try:
                    await self._turn()
                except LineDown:
                    await self._line.rest()
                except psycopg.Error as error:
                    self._line.lose(error)
                    await self._line.rest()
        finally:
            self._left.set()

    async def _turn(self) -> None:
        if monotonic() >= self._due:
            await self.once()
        conn = await self._line.connection()
        self._hear(conn.pgconn)
        if not self._leaving:
            await self._listened(conn.pgconn, conn.fileno())

    async def leave(self) -> None:
        """Renew no more; waits for what is on its way. A renewal that finds the row gone would make it anew."""
        self._leaving = True
        if self._wake is not None:
            self._wake()
        await self._left.wait()

    def _hear(self, pgconn: PGconn) -> None:
        """The notices that are here; what came right behind the answer to a renewal has left the socket already.

        Straight from libpq: psycopg's own generator takes several turns of the loop to say the same.
        """
        pgconn.consume_input()
        heard = []
        while (notice := pgconn.notifies()) is not None:
            heard.append(Notified(notice.extra.decode(errors="replace")))
            if (hint := parse_host_hint(notice.extra)) is not None:
                self._on_hint(hint)
        self._on_heard()
        self._facts.tell_all(heard)

    async def _listened(self, pgconn: PGconn, fd: int) -> None:
        """Until the next renewal is due. Notices are heard as they come, without waking this task: a job waits for them."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        due = self._due

        def end() -> None:
            if not over.done():
                over.set_result(None)

        def came() -> None:
            try:
                self._hear(pgconn)
            except psycopg.Error as error:
                loop.remove_reader(fd)
                if not over.done():
                    over.set_exception(error)
            if self._due < due:  # a notice wants it earlier
                end()

        timer = loop.call_later(max(0.05, due - monotonic()), end)
        loop.add_reader(fd, came)
        self._wake = end
        try:
            await over
        finally:
            self._wake = None
            timer.cancel()
            loop.remove_reader(fd)

    def _noticed(self, said: str) -> None:
        if (hint := parse_host_hint(said)) is not None:
            self._on_hint(hint)
        self._on_heard()
        self._facts.tell(Notified(said))

    @property
    def watched(self) -> bool:
        return monotonic() < self._watched

    def watch(self) -> None:
        """Somebody looks at the process view: for a while it is written every second."""
        self._watched = monotonic() + WATCHED
        self._due = min(self._due, self._sent + 1.0)

    def tell_begun(self) -> None:
        """A job runs that the process view does not show yet: it is written within a second of the last time."""
        due = max(self._sent + BEGUN_RENEW_SECONDS, monotonic())
        if due < self._due:
            self._due = due
            if self._wake is not None:
                self._wake()

    def soon(self) -> None:
        """Something has changed that operators look for in the process view: it is written now."""
        self._due = 0.0
        if self._wake is not None:
            self._wake()

    def reread(self) -> None:
        """Renew soon, because the row of a held job may have changed: only what the renewal reads is believed.

        However many hints come, this causes no more than one renewal per `HINT_PAUSE_SECONDS`.
        """
        self._must_reread = True
        self._due = min(self._due, self._sent + HINT_PAUSE_SECONDS)

    async def once(self) -> None:
        """Renew now, and act on what comes back."""
        sent, sent_boottime = monotonic(), boottime()
        self._must_reread = False
        settled = self._settled()
        held, deadlines = self._dispatch.held_fences(), self._dispatch.held_deadlines()
        renewed = await self._line.ask(renew(self._host, held, *self._view(), deadlines=deadlines))
        if not renewed.known:
            # The row was swept while this host was away. Its jobs are lost; the host begins anew under the same id.
            await self._line.ask(self._registration())
            self._on_hint(Reconnected())
        self._sent = sent
        self._due = sent + period(sent, self._born, self._watched, self._settings.renew, settled=settled)
        if self._must_reread:  # the hint may be of a commit that this renewal did not see
            self._due = min(self._due, sent + HINT_PAUSE_SECONDS)
        self.unbroken.renewed(sent)
        self.reckoning.renewed(sent_boottime, renewed.at, max(renewed.longest, self._settings.lease))
        self._dispatch.alone = renewed.alone
        self._dispatch.sharing_hosts = renewed.sharing
        for fence in renewed.cancels:
            self._dispatch.cancel(fence)
        for deadline in renewed.deadlines:
            self._dispatch.read_deadline(deadline)
        for fence in renewed.lost:
            self._dispatch.lost(fence, rescued=fence in renewed.rescued)
        # Last: a worker that begins jobs again must not find one in its socket that is lost.
        self._on_renewed(sent_boottime)

    async def _listen(self, conn: psycopg.AsyncConnection[Any]) -> None:
        conn.add_notify_handler(
            lambda notice: self._noticed(notice.payload)
        )  # those that come with an answer
        # Not conn.execute(): notifications come before its answer is complete, and psycopg leaves them in libpq until then.
        exchange = Exchange(conn, self._settings.schema)
        for channel in (self._settings.schema, self._host):
            await exchange.command(sql.SQL("LISTEN {}").format(sql.Identifier(channel)).as_bytes(conn))
        self._due = 0.0  # what was missed while deaf comes with the next renewal
        asyncio.get_running_loop().call_soon(self._on_hint, Reconnected())
