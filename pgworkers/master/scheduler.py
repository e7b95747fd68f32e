"""The leader's duty on schedules: look at what is due, plan it, fire it.

Each statement may be lost, sent twice, or race with another host that believes it leads: the revision of the schedule's row
and the primary key of the tick decide, not this loop. One schedule that cannot fire (a zone this host does not know, an
argument too large) is reported, marked and skipped.
"""

from __future__ import annotations

import psycopg

from pgworkers.errors import UsageError
from pgworkers.events import EventBus, ScheduleFailed, TickFired, TicksMissed
from pgworkers.master.connection import QueryExecutor
from pgworkers.schedule import fire as verbs
from pgworkers.schedule.plan import plan_ticks

SCHEDULES_PER_PAGE = 500
MAX_PAGES_PER_PASS = 20
SCHEDULES_PER_STATEMENT = 100  # schedules in one statement
FAILED_SCHEDULE_RETRY_SECONDS = 60.0


async def fire_due_schedules(connection: QueryExecutor, events: EventBus) -> int:
    """One pass over what is due: each schedule once, so that no backlog holds up the others.

    Answers the jobs made.
    """
    seen: set[tuple[str, str]] = set()
    made = 0
    for _ in range(MAX_PAGES_PER_PASS):
        page = await connection.execute(verbs.due_schedules(SCHEDULES_PER_PAGE))
        fresh = [due for due in page if due.key not in seen]
        seen.update(due.key for due in fresh)
        for start in range(0, len(fresh), SCHEDULES_PER_STATEMENT):
            made += await _fire_batch(connection, events, fresh[start : start + SCHEDULES_PER_STATEMENT])
        if len(page) < SCHEDULES_PER_PAGE or not fresh:
            break
    return made


async def _fire_batch(connection: QueryExecutor, events: EventBus, batch: list[verbs.DueSchedule]) -> int:
    planned: list[tuple[verbs.DueSchedule, verbs.Firing]] = []
    for due in batch:
        try:
            planned.append((due, verbs.Firing.of(due, plan_ticks(due.timing, due.planned_until, due.now))))
        except (UsageError, ArithmeticError, ValueError) as error:
            await _mark_failed(connection, events, due, str(error))
    if not planned:
        return 0
    try:
        return _emit_fired(
            events, await connection.execute(verbs.fire_schedules([firing for _, firing in planned]))
        )
    except psycopg.Error:
        made = 0  # one of them cannot be written: find out which
        for due, firing in planned:
            try:
                made += _emit_fired(events, await connection.execute(verbs.fire_schedules([firing])))
            except psycopg.Error as error:
                text = error.diag.message_primary or str(error) or type(error).__name__
                await _mark_failed(connection, events, due, text)
        return made


async def _mark_failed(
    connection: QueryExecutor, events: EventBus, due: verbs.DueSchedule, error: str
) -> None:
    if await connection.execute(verbs.record_failure(due, error, FAILED_SCHEDULE_RETRY_SECONDS)):
        events.emit(ScheduleFailed(due.name, due.scope, error))


def _emit_fired(events: EventBus, fired: verbs.FireResult) -> int:
    for tick in fired.ticks:
        events.emit(TickFired(tick.schedule, tick.scope, tick.at.timestamp(), tick.job_id, tick.reason))
    for (name, scope), count in fired.skipped_by_schedule.items():
        if count:
            events.emit(TicksMissed(name, scope, count))
    return sum(tick.job_id is not None for tick in fired.ticks)
