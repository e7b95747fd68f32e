"""Fires the schedules of an app in a box, tick by tick, up to a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from pgworkers.errors import UsageError
from pgworkers.job.model import NewJob
from pgworkers.schedule.plan import Timing, tick_jitter
from pgworkers.specs import ScheduleSpec
from pgworkers.testing.store import CapturedJob
from pgworkers.units import parse_duration

if TYPE_CHECKING:
    from pgworkers.testing.box import Box

MAX_TICKS_PER_CALL = 10_000


@dataclass
class _FiredSchedule:
    """One schedule, or one scope of it, while its ticks fire."""

    spec: ScheduleSpec
    scope: str
    scope_args: dict[str, Any]
    timing: Timing
    next_tick: datetime | None
    last_job: int | None = None


def fire_until(box: Box, until: datetime | str, after_each: Callable[[], None] | None) -> list[CapturedJob]:
    """Fire every tick after the box's time, up to `until`, in their order. Returns the jobs."""
    end = until if isinstance(until, datetime) else box.clock.now + _duration(until)
    if end.tzinfo is None:
        raise UsageError(f"fire_schedules: {end!r} has no time zone; write datetime(..., tzinfo=UTC)")
    schedules = _schedules_of(box)
    made: list[CapturedJob] = []
    for _ in range(MAX_TICKS_PER_CALL):
        due = [one for one in schedules if one.next_tick is not None and one.next_tick <= end]
        if not due:
            if end > box.clock.now:
                box.clock.move_to(end)
            return made
        one = min(due, key=lambda s: (s.next_tick, s.spec.name, s.scope))
        assert one.next_tick is not None
        if one.next_tick > box.clock.now:
            box.clock.move_to(one.next_tick)
        if (job := _fire(box, one, one.next_tick)) is not None:
            made.append(job)
        one.next_tick = one.timing.next_after(one.next_tick)
        if after_each is not None:
            after_each()
    raise UsageError(
        f"fire_schedules: more than {MAX_TICKS_PER_CALL:,} ticks until {end}; give an earlier time"
    )


def _duration(value: str) -> timedelta:
    return timedelta(seconds=parse_duration(value, what="fire_schedules"))


def _schedules_of(box: Box) -> list[_FiredSchedule]:
    found = []
    for make in box.app.schedules.values():
        spec = make()
        if spec.paused:
            continue
        timing = Timing(
            cron=spec.cron,
            every=spec.every,
            tz=spec.tz,
            start=spec.start,
            end=spec.end,
            missed=spec.missed,
            missed_window_seconds=spec.missed_window,
        )
        scopes = box.scopes_of(spec.name).args if spec.scope_kind else {"": {}}
        for scope, args in scopes.items():
            found.append(_FiredSchedule(spec, scope, args, timing, timing.next_after(box.clock.now)))
    return found


def _fire(box: Box, one: _FiredSchedule, at: datetime) -> CapturedJob | None:
    """Enqueue the job of one tick. None: its overlap policy made none. Counterpart: fire.sql."""
    spec, store = one.spec, box.store
    task = box.app.tasks[spec.task]
    previous = None if one.last_job is None else store.jobs[one.last_job]
    is_previous_live = previous is not None and previous.is_live
    if spec.overlap == "skip" and is_previous_live:
        return None
    meta: dict[str, Any] = {"schedule": spec.name, "tick": at.isoformat()}
    if spec.scope_kind:
        meta |= {"scope_kind": spec.scope_kind, "scope": one.scope}
    declared = task.declared_spec
    new = NewJob(
        task=spec.task,
        args_json=msgspec.json.encode(spec.args | one.scope_args).decode(),
        queue=spec.queue or task.queue,
        priority=declared.priority if spec.priority is None else spec.priority,
        delay=tick_jitter(spec.name, one.scope, at, spec.jitter) or None,
        max_attempts=declared.max_attempts if spec.reentrant else 1,
        max_crashes=declared.max_crashes if spec.reentrant else 1,
        deadline=spec.deadline,
        expires=spec.expires,
        concurrency_key=f"schedule:{spec.name}/{one.scope}" if spec.overlap == "replace" else None,
        meta_json=msgspec.json.encode(meta).decode(),
    )
    job = store.jobs[store.enqueue(new)[0]]
    if spec.overlap == "replace" and previous is not None and is_previous_live:
        store.cancel(previous.id, "replaced by the next tick of its schedule")
    one.last_job = job.id
    return job
