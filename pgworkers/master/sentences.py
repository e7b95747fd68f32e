"""Why an attempt was stopped, as one sentence for people: the reason, and the limit that was broken. Pure."""

from __future__ import annotations

import re

from pgworkers.clock import show_seconds, show_size
from pgworkers.master.held import Held

OOM = "killed by the kernel: out of memory"
CLOSED = "its handler had closed descriptors that were not its own, and with them the way back"
#: What the raise itself looks like in a report; it says no more than the reason does.
_THE_STOP_ITSELF = re.compile(r"(JobStopped|CancelledError)\b")


def of_stop(reason: str, held: Held | None, peak: int, error: str | None) -> str:
    """`stopped at its deadline: 10m for one attempt`. `error`: what the handler raised when it was stopped."""
    sentence = _sentence(reason, held, peak)
    if error and not _THE_STOP_ITSELF.match(error):
        return f"{sentence}; it ended with {error}"
    return sentence


def of_last_crash(error: str | None, crashes: int) -> str:
    """Of a job that has attempts left and gets none: without it nobody would know why."""
    times = "once" if crashes == 1 else f"{crashes} times"
    return f"{error or 'it crashed'}; not tried again: it took its worker down {times} (max_crashes)"


def _sentence(reason: str, held: Held | None, peak: int) -> str:
    match reason:
        case "cancel":
            return "cancelled"
        case "deadline":
            return f"stopped at its deadline{_deadline(held)}"
        case "memory":
            limit = (held.claimed.memory or held.spec.memory) if held is not None else None
            allowed = f", {show_size(limit)} allowed" if limit else ""
            return f"stopped over its memory limit: peak {show_size(peak)}{allowed}"
        case "stall":
            longest = held.spec.stall_timeout if held is not None else None
            patience = f" for {show_seconds(longest)}" if longest else ""
            return f"stopped: it showed no sign of life{patience} (stall_timeout)"
        case "lease":
            return "stopped: another host holds the lease, or may soon"
        case "kill":
            return "interrupted: killed at once, by an operator or because its supervisor had to leave"
        case _:
            return "interrupted: the host was told to stop"


def _deadline(held: Held | None) -> str:
    if held is None:
        return ""
    if held.past_deadline():
        return " for the whole job"
    own = held.timeout()
    more = f", extended by {show_seconds(held.extended)}" if held.extended else ""
    return f": {show_seconds(own)} for one attempt{more}" if own is not None else ""
