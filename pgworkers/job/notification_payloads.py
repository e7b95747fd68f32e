"""Parsing of notifications: any text that NOTIFY accepts becomes a typed hint or None.

A notification is only a hint to look. Every login that may connect to the database can send any text on any channel, so
a hint carries no authority: the receiver reads the row and believes only that. Parsing never raises, and what it returns
is no longer than a queue's name or 8 kB of ids.

The channels are the schema's own name, for all hosts; each host's id, for that host; and `<schema>_done`, for clients that
wait for an end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pgworkers.bounds import MAX_BIGINT

#: Minimum seconds between two checks caused by hints, if the last one found nothing. Bounds the cost of forged hints.
MIN_HINT_INTERVAL_SECONDS = 0.05

MAX_QUEUE_NAME_BYTES = 200
_ID = re.compile("[1-9][0-9]{0,18}")
_HOST_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class JobsReady:
    """Jobs may be ready in this queue; an empty name stands for any queue.

    `host`: the id of the one host that is asked to claim them; empty: all hosts are. `is_one_job`: it is about a single job.
    """

    queue: str
    host: str = ""
    is_one_job: bool = False


@dataclass(frozen=True, slots=True)
class JobChanged:
    """An operator may have changed a running job: its cancel flag or its deadline."""

    job: int


@dataclass(frozen=True, slots=True)
class QueueChanged:
    """The row or the shares of this queue may have changed."""

    queue: str


@dataclass(frozen=True, slots=True)
class BatchChanged:
    """This batch may be complete."""

    batch: int


@dataclass(frozen=True, slots=True)
class RequestCreated:
    """An operator may have asked something of a host."""


@dataclass(frozen=True, slots=True)
class ViewWatched:
    """The process view is being looked at."""


@dataclass(frozen=True, slots=True)
class DueSoon:
    """A job or a schedule may be due within seconds."""


@dataclass(frozen=True, slots=True)
class Reconnected:
    """The listening session is new, so notifications were missed.

    Made by the host itself, never parsed.
    """


HostHint = (
    JobsReady
    | JobChanged
    | QueueChanged
    | BatchChanged
    | RequestCreated
    | ViewWatched
    | DueSoon
    | Reconnected
)


@dataclass(frozen=True, slots=True)
class JobsEnded:
    """These jobs may have ended; None stands for too many to name."""

    jobs: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class BatchEnded:
    batch: int


@dataclass(frozen=True, slots=True)
class RequestAnswered:
    request: int


DoneHint = JobsEnded | BatchEnded | RequestAnswered

_WITHOUT_ARGUMENT: dict[str, HostHint] = {
    "request:": RequestCreated(),
    "watch:": ViewWatched(),
    "due:": DueSoon(),
}


def parse_host_hint(payload: str | bytes) -> HostHint | None:
    """The hint in a notification on the hosts' channel; None: it is none of ours."""
    text = _decode(payload)
    if text is None:
        return None
    if text in _WITHOUT_ARGUMENT:
        return _WITHOUT_ARGUMENT[text]
    kind, colon, what = text.partition(":")
    if not colon:
        return None
    match kind:
        case "ready" if ":" not in what and (_is_queue_name(what) or not what):
            return JobsReady(what)
        case "ready" | "one":
            return _ready_for_host(what, is_one_job=kind == "one")
        case "queue" if _is_queue_name(what):
            return QueueChanged(what)
        case "cancel" | "deadline" if (job := _parse_id(what)) is not None:
            return JobChanged(job)
        case "batch" if (batch := _parse_id(what)) is not None:
            return BatchChanged(batch)
        case _:
            return None


def parse_done_hint(payload: str | bytes) -> DoneHint | None:
    """The hint in a notification on the waiting clients' channel; None: it is none of ours."""
    text = _decode(payload)
    if text is None:
        return None
    if text == "*":
        return JobsEnded(None)
    kind, colon, what = text.partition(":")
    if colon:
        number = _parse_id(what)
        if number is None or kind not in ("batch", "request"):
            return None
        return BatchEnded(number) if kind == "batch" else RequestAnswered(number)
    ids = [_parse_id(word) for word in text.split(" ")]
    return None if None in ids else JobsEnded(frozenset(one for one in ids if one is not None))


def _ready_for_host(text: str, *, is_one_job: bool) -> JobsReady | None:
    """`<queue>:<host>`.

    A queue's name holds no colon; a host's id is a UUID as Postgres prints it.
    """
    queue, _, host = text.partition(":")
    if not _is_queue_name(queue) or _HOST_ID.fullmatch(host) is None:
        return None
    return JobsReady(queue, host, is_one_job)


def _decode(payload: str | bytes) -> str | None:
    if isinstance(payload, str):
        return payload
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


def _parse_id(text: str) -> int | None:
    """A bigint above 0, in ASCII digits as Postgres prints it."""
    if _ID.fullmatch(text) is None:
        return None
    number = int(text)
    return number if number <= MAX_BIGINT else None


def _is_queue_name(text: str) -> bool:
    return 1 <= len(text.encode("utf-8", "surrogatepass")) <= MAX_QUEUE_NAME_BYTES
