"""The leader's duty on schedules: look at what is due, plan it, fire it.

Each statement may be lost, sent twice, or race with another host that believes it leads: the revision of the schedule's row
and the primary key of the tick decide, not this loop. One schedule that cannot fire (a zone this host does not know, an
argument too large) is told, marked and passed by.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from pgworkers.errors import UsageError
from pgworkers.events import ScheduleFailed, TickFired, TicksSkipped
from pgworkers.facts import Facts
from pgworkers.master.line import Asker
from pgworkers.schedule import fire as verbs
from pgworkers.schedule import sync as declared
from pgworkers.schedule.plan import plan
from pgworkers.specs import ScheduleSpec

PAGE = 500
PAGES = 20
BATCH = 100  # schedules in one statement
TRY_AGAIN = 60.0


async def sync(line: Asker, specs: Sequence[ScheduleSpec]) -> list[str]:
    """Write down what this deploy declares; by each host when it starts. Answers what is new or changed."""
    return await line.ask(declared.sync(specs)) if specs else []


async def fire(line: Asker, facts: Facts) -> int:
    """One pass over what is due: each schedule once, so that no backlog holds up the others. Answers the jobs made."""
    seen: set[tuple[str, str]] = set()
    made = 0
    for _ in range(PAGES):
        page = await line.ask(verbs.due(PAGE))
        fresh = [due for due in page if due.key not in seen]
        seen.update(due.key for due in fresh)
        for start in range(0, len(fresh), BATCH):
            made += await _fire_batch(line, facts, fresh[start : start + BATCH])
        if len(page) < PAGE or not fresh:
            break
    return made


async def _fire_batch(line: Asker, facts: Facts, batch: list[verbs.Due]) -> int:
    planned: list[tuple[verbs.Due, verbs.Firing]] = []
    for due in batch:
        try:
            planned.append((due, verbs.Firing.of(due, plan(due.timing, due.considered, due.now))))
        except (UsageError, ArithmeticError, ValueError) as error:
            await _failed(line, facts, due, str(error))
    if not planned:
        return 0
    try:
        return _tell(facts, await line.ask(verbs.fire([firing for _, firing in planned])))
    except psycopg.Error:
        made = 0  # one of them cannot be written: find out which
        for due, firing in planned:
            try:
                made += _tell(facts, await line.ask(verbs.fire([firing])))
            except psycopg.Error as error:
                text = error.diag.message_primary or str(error) or type(error).__name__
                await _failed(line, facts, due, text)
        return made


async def _failed(line: Asker, facts: Facts, due: verbs.Due, error: str) -> None:
    if await line.ask(verbs.fail(due, error, TRY_AGAIN)):
        facts.tell(ScheduleFailed(due.name, due.scope, error))


def _tell(facts: Facts, fired: verbs.Fired) -> int:
    for tick in fired.ticks:
        facts.tell(TickFired(tick.schedule, tick.scope, tick.at.timestamp(), tick.job, tick.reason))
    for (name, scope), count in fired.written.items():
        if count:
            facts.tell(TicksSkipped(name, scope, count))
    return sum(tick.job is not None for tick in fired.ticks)
