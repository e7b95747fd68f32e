"""The duty of rescue: batch by batch, and row by row where a batch is refused.

One row that the database will not schedule again (a unique index or a trigger of the user's own) must not keep the jobs
around it with a host that is gone: it ends, and its record says why.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import psycopg

from pgworkers.events import JobRescued
from pgworkers.facts import Facts
from pgworkers.job.backend import end_backends
from pgworkers.job.rescue import Rescued, lost, rescue
from pgworkers.master.line import Asker

BATCH = 500


async def rescue_all(
    asker: Asker, host: str, facts: Facts, may: Callable[[], bool], reckoned: Callable[[], datetime | None]
) -> int:
    """Only while `may`: a host that has not itself renewed without a gap calls nobody lost. How many were rescued."""
    total = 0
    while may():
        try:
            rescued = await asker.ask(rescue(host, BATCH, clock=reckoned()))
            more = len(rescued) == BATCH
        except psycopg.Error:
            rescued = await _one_by_one(asker, host, reckoned)
            more = bool(rescued)
        for job in rescued:
            facts.tell(JobRescued(job.id, job.lease, job.queue, job.task, job.attempt, job.state))
        if rescued:  # the server may still be busy with a statement of a host that is gone
            await asker.ask(end_backends([(job.id, job.lease) for job in rescued]))
        total += len(rescued)
        if not more:
            break
    return total


async def _one_by_one(asker: Asker, host: str, reckoned: Callable[[], datetime | None]) -> list[Rescued]:
    rescued: list[Rescued] = []
    for job in await asker.ask(lost(host, BATCH, clock=reckoned())):
        try:
            one = await asker.ask(rescue(host, 1, clock=reckoned(), only=job))
        except psycopg.Error as refused:
            try:
                one = await asker.ask(rescue(host, 1, clock=reckoned(), only=job, refused=str(refused)))
            except psycopg.Error:
                continue  # told by the line; the next sweep tries it again
        rescued += one
    return rescued
