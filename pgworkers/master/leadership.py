"""The term of leadership. The host that holds it performs the duties of the cluster.

    candidate --term taken--> leader --term or session lost, or drain--> candidate

The term is a row that only workers can write: host, session, and until when it is valid by the database's clock. The leader
renews it every `leadership_interval`. A candidate takes it when the leader resigned, when the leader's session is gone, or
when the term has run out. The last rule is for a frozen leader, whose session stays open. An advisory lock, held by the
leading session, is the fast path by which a candidate notices the end of a session. Any login can hold that lock, so a lock
that is taken stops no host from leading; the session that holds it is reported (docs/adr/23).

Every duty runs on the very connection that took the term (`execute`), so a host that lost the session cannot act,
whatever it believes. A host that was frozen and wakes up cannot act either until it has renewed: `execute` refuses after
the term has run out by this machine's own clock, counted from the sending of the last renewal. The flag `is_leader` is
only a conservative local view: on only while the term is held, off before it is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

import psycopg

from pgworkers.clock import boottime, monotonic
from pgworkers.events import EventBus, LeaderLockFreed, LeaderLockTaken, LeadershipChanged
from pgworkers.job import hosts
from pgworkers.master.connection import ConnectionDown, ReconnectingConnection
from pgworkers.postgres.driver_errors import first_line
from pgworkers.postgres.statements import Query
from pgworkers.settings import Settings

T = TypeVar("T")


class Leadership:
    def __init__(
        self,
        host_id: str,
        connection: ReconnectingConnection,
        events: EventBus,
        settings: Settings,
        has_renewed_for: Callable[[float], bool],
        database_time: Callable[[], datetime | None],
    ) -> None:
        self.is_leader = False
        self.leader_since = 0.0
        self.lock_holder: hosts.LockHolder | None = (
            None  #: a session that holds the lock and belongs to no host
        )
        self._host_id = host_id
        self._connection = connection
        self._events = events
        self._settings = settings
        self._has_renewed_for = has_renewed_for  # True if this host has renewed without a gap for that long
        self._database_time = database_time  # as this host estimates it
        self._session_number = -1
        self._term = 0
        self._valid_until = 0.0  # the term, on CLOCK_BOOTTIME
        self._suspected_holder: hosts.LockHolder | None = None  # held the lock when this host last looked
        self._former_leader_pid = 0  # of the session that led before; it may hold the lock a little longer
        self._has_resigned = False
        self._became_leader = asyncio.Event()

    @property
    def term_seconds(self) -> float:
        """A leader that has not renewed its term for this long may be deposed."""
        return max(2 * self._settings.renew_interval, 3 * self._settings.leadership_interval)

    async def run(self) -> None:
        """Try for the term for as long as the host lives; while leading, renew it."""
        while not self._has_resigned:
            try:
                await self._run_once()
            except (ConnectionDown, psycopg.Error) as error:
                self._lose(first_line(error))
                await self._connection.wait_for_backoff()
            await asyncio.sleep(self._settings.leadership_interval)

    async def _run_once(self) -> None:
        if self.is_leader:
            is_locked = await self._renew_term()
        else:
            is_locked = await self._take_term()
        await self._report_lock_holder(is_locked)

    async def _renew_term(self) -> bool:
        """Renew the term. True: the session that leads holds the lock."""
        sent = boottime()
        if self._connection.session_number != self._session_number:
            self._lose("the session is gone")
            return True
        renewal = hosts.renew_term(self._host_id, self._term, self.term_seconds)
        is_locked = await self._connection.execute(renewal, session_number=self._session_number)
        if is_locked is None:
            self._lose("its term was not renewed in time, and another host leads")
            await self._connection.execute(
                hosts.resign(self._host_id, self._term), session_number=self._session_number
            )  # the lock
            return True
        self._valid_until = sent + self.term_seconds
        return is_locked

    async def _take_term(self) -> bool:
        """Take the term if it is free. True: the session that leads holds the lock."""
        sent = boottime()
        may_depose = self._has_renewed_for(self.term_seconds)
        tried = await self._connection.execute(
            hosts.try_lead(
                self._host_id, self.term_seconds, may_depose=may_depose, host_clock=self._database_time()
            )
        )
        if tried.term is None:
            if tried.has_lock:  # another host was faster; its session should have the lock
                await self._connection.execute(hosts.resign(self._host_id, 0))
            return tried.is_lock_held_by_former
        if tried.was_expired and tried.former_session is not None:
            self._events.emit(LeadershipChanged(False, "a leader that stopped renewing was deposed"))
            await self._connection.execute(hosts.depose(tried.former_session))
        self._former_leader_pid = tried.former_session.pid if tried.former_session is not None else 0
        self._session_number = self._connection.session_number
        self._term, self._valid_until = tried.term, sent + self.term_seconds
        self.is_leader, self.leader_since = True, monotonic()
        self._became_leader.set()
        self._events.emit(LeadershipChanged(True, "this host leads"))
        return tried.has_lock

    async def _report_lock_holder(self, is_locked: bool) -> None:
        """Find and report the session that holds the lock, if it is not the leader's."""
        found = [] if is_locked else await self._connection.execute(hosts.lock_holders())
        foreign = next((one for one in found if one.pid != self._former_leader_pid), None)
        # Seen twice: the session of a leader that was just replaced may hold it a moment longer.
        before, self.lock_holder = self.lock_holder, foreign if foreign == self._suspected_holder else None
        self._suspected_holder = foreign
        if self.lock_holder is not None and self.lock_holder != before:
            self._events.emit(
                LeaderLockTaken(self.lock_holder.pid, self.lock_holder.user, self.lock_holder.application)
            )
        elif before is not None and self.lock_holder is None:
            self._events.emit(LeaderLockFreed(before.pid))

    async def execute(self, query: Query[T]) -> T:
        """A duty's statement: on the session that holds the term, while it is valid, or not at all."""
        if not self.is_leader:
            raise ConnectionDown("this host does not lead")
        if boottime() >= self._valid_until:
            raise ConnectionDown("the term of this host has run out; nothing is done until it is renewed")
        try:
            return await self._connection.execute(query, session_number=self._session_number)
        except ConnectionDown as error:
            if self._connection.session_number != self._session_number or not self._connection.is_up:
                self._lose(first_line(error))
            raise

    async def until_leading(self) -> None:
        while not self.is_leader:
            self._became_leader.clear()
            await self._became_leader.wait()

    async def resign(self) -> None:
        """Give up leadership before the host leaves."""
        self._has_resigned = True
        if self.is_leader:
            self._lose("this host is leaving")
            try:
                async with asyncio.timeout(self._settings.statement_timeout):
                    await self._connection.execute(
                        hosts.resign(self._host_id, self._term), session_number=self._session_number
                    )
            except (ConnectionDown, TimeoutError, psycopg.Error):
                pass  # the end of the session frees it

    def _lose(self, why: str) -> None:
        if self.is_leader:
            self.is_leader = False
            self._events.emit(LeadershipChanged(False, f"this host no longer leads: {why}"))
