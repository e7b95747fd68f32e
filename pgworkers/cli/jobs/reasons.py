"""Why a job waits, and which of its attempts an operator's retry has closed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pgworkers.cli.formatting import plural, show_duration, terminal_safe
from pgworkers.job.model import FREE_VERDICTS, HELD_STATES, Verdict
from pgworkers.job.queries import AttemptView, JobSituation, JobView
from pgworkers.observe.escape import shell_command


def reason_not_claimed(job: JobView, around: JobSituation) -> str | None:
    """Why a ready job is not claimed, and what to do about it; None if it only waits for its turn."""
    queue, task = terminal_safe(job.queue), terminal_safe(job.task)
    if not around.is_task_known:
        return (
            f"no host knows the task {task}: no app that was started has declared it; is the name right, "
            "is its app deployed?"
        )
    if around.is_queue_paused:
        return f"its queue {queue} is paused; {shell_command('queues resume', job.queue)} lets it go on"
    if not around.living_hosts:
        return f"no host is running; pgworkers run starts one that serves {queue}"
    if not around.serving_hosts:
        return f"no running host serves the queue {queue}; pgworkers hosts shows what each one serves"
    if not around.able_hosts:
        return (
            f"no running host of the queue {queue} has the task {task} any more; deploy an app that has it, or give the "
            f"job up: {shell_command('jobs discard', job.id)}"
        )
    if around.throttled_seconds is not None:
        return f"its queue {queue} was throttled and cools down for {show_duration(around.throttled_seconds)}"
    if around.operator_workers == 0:
        undo = shell_command("queues scale", job.queue, default=True)
        return f"its queue {queue} is scaled to 0 workers; {undo} undoes it"
    if around.failing_error is not None:
        host = terminal_safe(around.failing_host or "?")
        return f"workers of its queue {queue} cannot start on {host}: {terminal_safe(around.failing_error)}"
    if around.free_task_slots is not None and around.free_task_slots <= 0:
        return f"as many jobs of {task} run as may at once; pgworkers queues limits shows the limit"
    if around.free_key_slots is not None and around.free_key_slots <= 0:
        return "as many jobs with its concurrency key run as may at once"
    return None


def reason_scheduled(around: JobSituation) -> str | None:
    """What a scheduled job without a time of its own waits for; None: it has one."""
    if not around.is_held:
        return None
    if around.parent_count:
        named = ", ".join(map(_show_parent, around.first_parents))
        more = around.parent_count - len(around.first_parents)
        return f"waits for {named}" + (f" and {plural(more, 'other job')}" if more > 0 else "")
    if around.batch_id is not None:
        return f"waits for batch #{around.batch_id} to end"
    return "is held until it is retried by hand"


def _show_parent(named: str) -> str:
    """`#17 render (running)`; one that failed is waited for until it is retried."""
    number, state, *task = named.split(" ", 2)
    retry = (
        f", until it is retried: {shell_command('jobs retry', int(number))}"
        if state in ("dead", "cancelled")
        else ""
    )
    return f"#{number} {terminal_safe(task[0]) if task else ''}".rstrip() + f" ({state}{retry})"


def attempts_before_retry(job: JobView, attempts: Sequence[AttemptView]) -> int:
    """How many of the attempts were made before an operator let the job start over.

    Attempt numbers normally grow by one and repeat after a verdict that costs nothing. A number lower than that shows an
    operator's retry.
    """
    numbers = [attempt.attempt for attempt in attempts]
    ran_since = job.state in HELD_STATES or bool(attempts and job.lease > attempts[-1].lease)
    following = [*numbers[1:], job.attempt if ran_since else job.attempt + 1]
    boundary = 0
    for at, (attempt, after) in enumerate(zip(attempts, following, strict=False)):
        expected = attempt.attempt + (0 if _costs_nothing(attempt.verdict) else 1)
        if after < expected:
            boundary = at + 1
    return boundary


def _costs_nothing(verdict: str) -> bool:
    return verdict in FREE_VERDICTS or verdict == Verdict.LEASE_LOST
