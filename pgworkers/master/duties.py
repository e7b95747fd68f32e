"""What must be done for the cluster, on its own connection: promote, expire, rescue, partitions, dead host rows.

Until leadership exists every host performs them; each is idempotent, bounded and skips what others have locked.
A duty that fails is told and counted, and never stops the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import psycopg

from pgworkers.clock import monotonic
from pgworkers.events import DutyDone, DutyFailed, Facts, JobRescued
from pgworkers.job import archive, host, promote, rescue
from pgworkers.master.line import Line, LineDown
from pgworkers.settings import Settings

RESCUE_BATCH = 500
PROMOTE_BATCH = 1000
DAYS_AHEAD = 3


@dataclass(slots=True)
class Duty:
    name: str
    every: float
    perform: Callable[[], Awaitable[int]]
    due: float = 0.0


class Duties:
    def __init__(
        self, host_id: str, line: Line, facts: Facts, settings: Settings, may_rescue: Callable[[], bool]
    ) -> None:
        self._host = host_id
        self._line = line
        self._facts = facts
        self._settings = settings
        self._may_rescue = may_rescue
        self._wake = asyncio.Event()
        now = monotonic()
        self.duties = [
            Duty("promote", settings.promote, self._promote),
            Duty("expire", settings.rescue, self._expire, now + settings.rescue),
            Duty("rescue", settings.rescue, self._rescue, now + settings.rescue),
            Duty("sweep_hosts", settings.rescue * 6, self._sweep_hosts, now + settings.rescue * 6),
            Duty("partitions", settings.upkeep, self._partitions),
        ]

    async def run(self) -> None:
        while True:
            now = monotonic()
            for duty in self.duties:
                if duty.due <= now:
                    duty.due = now + duty.every
                    await self.perform(duty)
            pause = min(duty.due for duty in self.duties) - monotonic()
            if pause > 0:
                await asyncio.sleep(pause)

    async def perform(self, duty: Duty) -> int:
        began = monotonic()
        try:
            count = await duty.perform()
        except LineDown as error:
            self._facts.tell(DutyFailed(duty.name, str(error)))
            await self._line.rest()
            return 0
        except psycopg.Error as error:
            self._facts.tell(DutyFailed(duty.name, f"{type(error).__name__}: {error}"))
            return 0
        self._facts.tell(DutyDone(duty.name, count, monotonic() - began))
        return count

    async def _promote(self) -> int:
        total = 0
        while True:
            promoted = await self._line.ask(promote.promote(PROMOTE_BATCH))
            total += promoted.count
            if promoted.count < PROMOTE_BATCH:
                if promoted.next_in is not None:
                    duty = self.duties[0]
                    duty.due = min(duty.due, monotonic() + max(0.01, promoted.next_in))
                return total

    async def _expire(self) -> int:
        return await self._line.ask(promote.expire(PROMOTE_BATCH))

    async def _rescue(self) -> int:
        """Only a host that has itself renewed without a gap may call others lost: an outage must not be a mass rescue."""
        total = 0
        while self._may_rescue():
            rescued = await self._line.ask(rescue.rescue(self._host, RESCUE_BATCH))
            for job in rescued:
                self._facts.tell(JobRescued(job.id, job.lease, job.queue, job.task, job.state))
            total += len(rescued)
            if len(rescued) < RESCUE_BATCH:
                break
        return total

    async def _sweep_hosts(self) -> int:
        return await self._line.ask(host.sweep()) if self._may_rescue() else 0

    async def _partitions(self) -> int:
        made = await self._line.ask(archive.make_partitions(DAYS_AHEAD))
        old = await self._line.ask(archive.old_partitions(self._settings.retention))
        for name in old:
            await self._line.ask(archive.drop(name))
        return made + len(old)
