"""Why a job waits, and which of its attempts an operator's retry has closed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pgworkers.cli.wording import lasting, plain, plural
from pgworkers.job.show import AttemptView, JobView
from pgworkers.job.standing import Standing
from pgworkers.job.state import FREE, HELD, Verdict
from pgworkers.observe.escape import command


def hindrance(job: JobView, around: Standing) -> str | None:
    """What keeps a ready job from being taken, and what to do about it; None: only its turn."""
    queue, task = plain(job.queue), plain(job.task)
    if not around.known:
        return (
            f"no host knows the task {task}: no app that was started has declared it; is the name right, "
            "is its app deployed?"
        )
    if around.paused:
        return f"its queue {queue} is paused; {command('queues resume', job.queue)} lets it go on"
    if not around.hosts:
        return f"no host is running; pgworkers run starts one that serves {queue}"
    if not around.serving:
        return f"no running host serves the queue {queue}; pgworkers hosts shows what each one serves"
    if not around.able:
        return (
            f"no running host of the queue {queue} has the task {task} any more; deploy an app that has it, or give the "
            f"job up: {command('jobs discard', job.id)}"
        )
    if around.throttled is not None:
        return f"its queue {queue} was throttled and cools down for {lasting(around.throttled)}"
    if around.workers == 0:
        return f"its queue {queue} is scaled to 0 workers; {command('queues scale', job.queue, default=True)} undoes it"
    if around.problem is not None:
        return f"workers of its queue {queue} cannot start on {plain(around.failing or '?')}: {plain(around.problem)}"
    if around.room_of_task is not None and around.room_of_task <= 0:
        return f"as many jobs of {task} run as may at once; pgworkers queues limits shows the limit"
    if around.room_of_key is not None and around.room_of_key <= 0:
        return "as many jobs with its concurrency key run as may at once"
    return None


def waiting_for(around: Standing) -> str | None:
    """What a scheduled job without a time of its own waits for; None: it has one."""
    if not around.held:
        return None
    if around.parents:
        named = ", ".join(map(_parent, around.named))
        more = around.parents - len(around.named)
        return f"waits for {named}" + (f" and {plural(more, 'other job')}" if more > 0 else "")
    if around.batch is not None:
        return f"waits for batch #{around.batch} to end"
    return "is held until it is retried by hand"


def _parent(named: str) -> str:
    """`#17 render (running)`; one that failed is waited for until it is retried."""
    number, state, *task = named.split(" ", 2)
    retry = (
        f", until it is retried: {command('jobs retry', int(number))}"
        if state in ("dead", "cancelled")
        else ""
    )
    return f"#{number} {plain(task[0]) if task else ''}".rstrip() + f" ({state}{retry})"


def closed(job: JobView, attempts: Sequence[AttemptView]) -> int:
    """How many of the attempts were made before an operator let the job start over.

    A retry by an operator begins to count at one again; so does nothing else, but for verdicts that cost nothing.
    """
    numbers = [attempt.attempt for attempt in attempts]
    ran_since = job.state in HELD or bool(attempts and job.lease > attempts[-1].lease)
    following = [*numbers[1:], job.attempt if ran_since else job.attempt + 1]
    boundary = 0
    for at, (attempt, after) in enumerate(zip(attempts, following, strict=False)):
        expected = attempt.attempt + (0 if _costs_nothing(attempt.verdict) else 1)
        if after < expected:
            boundary = at + 1
    return boundary


def _costs_nothing(verdict: str) -> bool:
    return verdict in FREE or verdict == Verdict.LEASE_LOST
