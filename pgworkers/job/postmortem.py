"""What is known about an attempt that ended, and how a batch of them becomes parameters.

Everything a handler left behind is cleaned here, so that one bad text never fails the batch it travels in. A column in which
no row of the batch has anything is NULL instead of an array: most attempts succeed, and have little to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from pgworkers.job import clean
from pgworkers.job.claim import Fence
from pgworkers.job.state import Verdict
from pgworkers.postgres.arrays import Bigints, Doubles, Integers, Moments, Texts

#: The longest text that is written whatever the settings say (they cut earlier, where the text arises).
TEXT_LIMIT = 256 << 10
LINE_LIMIT = 300
MOST = (1 << 63) - 1
_SUCCEEDED = Verdict.SUCCEEDED  # for every job: to ask an enum takes longer than all the rest


class Postmortem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one attempt ended. A struct, as it is made for each job: a frozen dataclass costs ten times as much."""

    id: int
    lease: int
    claimed_at: int  # microseconds since 1970, as the claim said
    verdict: Verdict
    duration: float = 0.0  # seconds
    cpu: float = 0.0  # seconds, children included
    peak_rss: int = 0  # bytes
    error: str | None = None
    traceback: str | None = None
    stack: str | None = None
    exit_status: str | None = None
    output: str | None = None
    progress: str | None = None  # JSON text
    checkpoint: str | None = None  # JSON text
    rungs: str | None = None  # JSON text
    worker: str = ""
    version: str = ""
    crash: bool = False  # counts against max_crashes
    lost: bool = False  # ended with the death of its supervisor; counts against MAX_LOSSES

    @property
    def fence(self) -> Fence:
        return Fence(self.id, self.lease, self.claimed_at)


def fences(rows: Sequence[Any]) -> dict[str, Any]:
    """What a write names of each row: its id, its lease and when it was claimed."""
    return {
        "ids": Bigints([row.id for row in rows]),
        "leases": Integers([row.lease for row in rows]),
        "claims": Moments([row.claimed_at for row in rows]),
    }


def columns(ended: Sequence[Postmortem]) -> dict[str, Any]:
    """The arrays common to finish and retry. Rows must come in the order of their ids: that is the lock order."""
    verdicts = [end.verdict for end in ended]
    failed = verdicts.count(_SUCCEEDED) < len(verdicts)
    return (
        fences(ended)
        | {
            "durations": Doubles(numbers([end.duration for end in ended])),
            "cpus": Doubles(numbers([end.cpu for end in ended])),
            "peaks": Bigints(_sizes([end.peak_rss for end in ended])),
            "progresses": column([end.progress for end in ended], clean.json_text),
            "checkpoints": column([end.checkpoint for end in ended], clean.json_text),
        }
        | (_examined(ended) if failed else _NOT_EXAMINED)
    )


def _examined(ended: Sequence[Postmortem]) -> dict[str, Any]:
    """What is written only of attempts that did not succeed."""
    return {
        "verdicts": Texts([str(end.verdict) for end in ended]),
        "crashes": [end.crash for end in ended],
        "lines": column([_line(end) for end in ended]),
        "errors": column([end.error for end in ended], text),
        "tracebacks": column([end.traceback for end in ended], text),
        "stacks": column([end.stack for end in ended], text),
        "exit_statuses": column([end.exit_status for end in ended], text),
        "outputs": column([end.output for end in ended], text),
        "rungs": column([end.rungs for end in ended], clean.json_text),
        "workers": column([end.worker for end in ended], text),
        "versions": column([end.version for end in ended], text),
    }


#: Of a batch in which all succeeded.
_NOT_EXAMINED: dict[str, Any] = dict.fromkeys(
    (
        *(
            "verdicts",
            "crashes",
            "lines",
            "errors",
            "tracebacks",
            "stacks",
            "exit_statuses",
            "outputs",
            "rungs",
        ),
        *("workers", "versions"),
    )
)


def column(values: list[str | None], cleaned: Callable[[str], str | None] | None = None) -> Texts | None:
    """Texts of a batch, cleaned; None when there is none in it."""
    if values.count(None) == len(values):
        return None
    if cleaned is not None:
        known = {value: None if value is None else cleaned(value) for value in set(values)}
        values = [known[value] for value in values]
    return Texts(values)


def text(value: str) -> str:
    return clean.text(value, TEXT_LIMIT)


def numbers(values: list[float]) -> list[float]:
    """Durations as the arithmetic of Postgres can take them: never negative, never NaN or infinite."""
    if values and min(values) >= 0.0 and sum(values) < math.inf:  # one NaN makes a NaN of the sum
        return values
    return [value if 0.0 <= value < math.inf else 0.0 for value in values]


def _sizes(values: list[int]) -> list[int]:
    if values and min(values) >= 0 and max(values) <= MOST:
        return values
    return [min(max(value, 0), MOST) for value in values]


def in_order(ended: Sequence[Any]) -> list[Any]:
    """One row per fence, by id: the order in which rows are locked, in every statement."""
    if len({end.id for end in ended}) == len(ended):
        return sorted(ended, key=_id)
    return sorted({_fence(end): end for end in ended}.values(), key=_fence)


_id = attrgetter("id")
_fence = attrgetter("id", "lease", "claimed_at")


def unwritten(ended: Sequence[Postmortem], written: Collection[int]) -> dict[Fence, str]:
    """The ends whose places (the first is 1) are not among the written ones."""
    places = set(written)
    return {end.fence: "missing" for nth, end in enumerate(ended, 1) if nth not in places}


def _line(end: Postmortem) -> str | None:
    """What the job itself remembers of an attempt: one line, and nothing of one that went well."""
    if end.verdict is Verdict.SUCCEEDED:
        return None
    return clean.line(end.error or str(end.verdict), LINE_LIMIT) or str(end.verdict)
