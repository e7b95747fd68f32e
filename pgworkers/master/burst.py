"""The end of a burst: when nothing is left that this host could run, and what it says about the rest. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pgworkers.job.burst import MAX_LEFT_BEHIND_ROWS, BusyHost, LeftBehind
from pgworkers.observe.escape import printable, shell_command
from pgworkers.units import format_duration

QUEUES_EMPTY_TEXT = "burst: the queues are empty"
#: So many reasons are told, each in a line of its own.
MAX_REASON_LINES = 20


def burst_end_lines(left: Sequence[LeftBehind]) -> list[str]:
    """Why the burst ends, and then a line for each reason why something stays."""
    if not left:
        return [QUEUES_EMPTY_TEXT]
    total = sum(one.count for one in left)
    more = " or more" if total >= MAX_LEFT_BEHIND_ROWS else ""
    lines = [
        f"burst: nothing is left that could run now; {_job_count(total, more)} {'stays' if total == 1 else 'stay'}"
    ]
    lines += [
        f"left: {_job_count(one.count)} of {printable(one.task)}: {_reason_text(one)}"
        for one in left[:MAX_REASON_LINES]
    ]
    if len(left) > MAX_REASON_LINES:
        lines.append(
            f"left: and others for {len(left) - MAX_REASON_LINES} more reasons; pgworkers jobs list shows them"
        )
    return lines


def waiting_sentence(other: BusyHost, own: float, rescue: float) -> str:
    """Whom a burst waits for. `own`: seconds until this host may call others lost; `rescue`: between two looks. Pure."""
    one = other.jobs == 1
    jobs = "1 job" if one else f"{other.jobs} jobs"
    who = f"host {str(other.id)[:8]} ({other.name}, pid {other.pid})"
    within = format_duration(round(max(other.lease_seconds - other.silent_seconds, own, 0.0) + rescue))
    taken = f"if it is gone, {'it is' if one else 'they are'} taken back within {within}"
    return f"waits for {jobs} of {who}, which renewed {format_duration(round(other.silent_seconds))} ago; {taken}"


def _reason_text(one: LeftBehind) -> str:
    queue, task = printable(one.queue), printable(one.task)
    match one.reason:
        case "paused":
            return f"the queue {queue} is paused; {shell_command('queues resume', one.queue)} lets them go on"
        case "no workers":
            undo = shell_command("queues scale", one.queue, default=True)
            return f"the queue {queue} is scaled to 0 workers; {undo} undoes it"
        case "limit":
            return f"the limit of {task}, or of their concurrency key, is 0; pgworkers queues limits shows it"
        case "unknown":
            return f"this app has no task {task}; they wait in {queue} for a host that knows it"
        case "held":
            return f"they wait in {queue} for other jobs, or for their batch"
        case "later" if one.due_in_seconds is not None:
            first = "scheduled for" if one.count == 1 else "the first is scheduled for"
            return f"{first} {format_duration(max(1, round(one.due_in_seconds)))} from now, in {queue}"
        case "running":
            return f"taken from {queue} just now"
    return f"came to {queue} just now"


def _job_count(count: int, more: str = "") -> str:
    return f"{count}{more} {'job' if count == 1 and not more else 'jobs'}"


#: A burst in which nothing has run for this long says what it waits for.
BURST_REPORT_SECONDS = 5.0
