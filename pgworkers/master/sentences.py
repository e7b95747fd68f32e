"""Why an attempt was stopped, as one sentence for people: the reason, and the limit that was broken. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pgworkers.clock import show_seconds, show_size
from pgworkers.master.held import Held

OOM = "killed by the kernel, which was out of memory"
CLOSED = "its handler had closed descriptors that were not its own, and with them the way back"
#: What the raise itself looks like in a report; it says no more than the reason does.
_THE_STOP_ITSELF = re.compile(r"(JobStopped|CancelledError)\b")


def of_stop(reason: str, held: Held | None, peak: int, error: str | None, limit: int = 0) -> str:
    """`stopped at its deadline: 10m for one attempt`. `error`: what the handler raised when it was stopped.

    `limit`: the bytes that it may have, and `peak` what it had.
    """
    sentence = _sentence(reason, held, peak, limit)
    if error and not _THE_STOP_ITSELF.match(error):
        return f"{sentence}; it ended with {error}"
    return sentence


def of_dump(status: str) -> str:
    """Of a worker that did not live to be killed, or that only its stacks were wanted of. The fault is not the job's."""
    return f"; its interpreter crashed ({status}) while its stacks were written"


def of_forged(error: str) -> str:
    """Of a worker whose channel carried what no worker sends."""
    return (
        f"the worker was killed: its channel to the master carried what no worker sends ({error}); "
        "something in its process has written to a descriptor that is not its own"
    )


def of_last_crash(error: str | None, crashes: int) -> str:
    """Of a job that has attempts left and gets none: without it nobody would know why."""
    times = "once" if crashes == 1 else f"{crashes} times"
    return f"{error or 'it crashed'}; not tried again: it took its worker down {times} (max_crashes)"


def of_last_loss(error: str | None, losses: int) -> str:
    """Of a job that was running whenever its supervisor died."""
    why = f"it was running in {losses} deaths of its supervisor or host in a row"
    return f"{error or 'its supervisor died'}; not tried again: {why}"


def of_oom(peak: int, limit: int) -> str:
    """Its own limit did not help: it was too high for the machine, or there was none."""
    allowed = f"{show_size(limit)} allowed" if limit else "no limit of its own (memory=)"
    return f"{OOM}: peak {show_size(peak)}, {allowed}"


def of_children(names: Sequence[str]) -> str:
    """`; killed with it: ffmpeg (pid 812)`; nothing if it had left none."""
    return f"; killed with it: {', '.join(names)}" if names else ""


def _sentence(reason: str, held: Held | None, peak: int, limit: int) -> str:
    match reason:
        case "cancel":
            return "cancelled"
        case "deadline":
            return f"stopped at its deadline{_deadline(held)}"
        case "memory":
            limit = limit or ((held.claimed.memory or held.spec.memory or 0) if held is not None else 0)
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
