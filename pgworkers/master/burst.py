"""The end of a burst: when nothing is left that this host could run, and what it says about the rest. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pgworkers.clock import show_seconds
from pgworkers.job.show import MOST_LEFT, Left, Other
from pgworkers.observe.escape import command, printable

EMPTY = "burst: the queues are empty"
#: So many reasons are told, each in a line of its own.
LINES = 20


def told(left: Sequence[Left]) -> list[str]:
    """Why the burst ends, and then a line for each reason why something stays."""
    if not left:
        return [EMPTY]
    total = sum(one.count for one in left)
    more = " or more" if total >= MOST_LEFT else ""
    lines = [
        f"burst: nothing is left that could run now; {_jobs(total, more)} {'stays' if total == 1 else 'stay'}"
    ]
    lines += [f"left: {_jobs(one.count)} of {printable(one.task)}: {_why(one)}" for one in left[:LINES]]
    if len(left) > LINES:
        lines.append(f"left: and others for {len(left) - LINES} more reasons; pgworkers jobs list shows them")
    return lines


def waiting(other: Other, own: float, rescue: float) -> str:
    """Whom a burst waits for. `own`: seconds until this host may call others lost; `rescue`: between two looks. Pure."""
    one = other.jobs == 1
    jobs = "1 job" if one else f"{other.jobs} jobs"
    who = f"host {str(other.id)[:8]} ({other.name}, pid {other.pid})"
    within = show_seconds(round(max(other.lease - other.silent, own, 0.0) + rescue))
    taken = f"if it is gone, {'it is' if one else 'they are'} taken back within {within}"
    return f"waits for {jobs} of {who}, which renewed {show_seconds(round(other.silent))} ago; {taken}"


def _why(one: Left) -> str:
    queue, task = printable(one.queue), printable(one.task)
    match one.reason:
        case "paused":
            return f"the queue {queue} is paused; {command('queues resume', one.queue)} lets them go on"
        case "no workers":
            return f"the queue {queue} is scaled to 0 workers; {command('queues scale', one.queue, default=True)} undoes it"
        case "limit":
            return f"the limit of {task}, or of their concurrency key, is 0; pgworkers queues limits shows it"
        case "unknown":
            return f"this app has no task {task}; they wait in {queue} for a host that knows it"
        case "held":
            return f"they wait in {queue} for other jobs, or for their batch"
        case "later" if one.due is not None:
            first = "scheduled for" if one.count == 1 else "the first is scheduled for"
            return f"{first} {show_seconds(max(1, round(one.due)))} from now, in {queue}"
        case "running":
            return f"taken from {queue} just now"
    return f"came to {queue} just now"


def _jobs(count: int, more: str = "") -> str:
    return f"{count}{more} {'job' if count == 1 and not more else 'jobs'}"
