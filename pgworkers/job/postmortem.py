"""What is known about an attempt that ended, and how a batch of them becomes parameters.

Everything a handler left behind is cleaned here, so that one bad text never fails the batch it travels in. The parts that
only a failed attempt has travel in arrays of their own: most attempts succeed and have none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pgworkers.job import clean
from pgworkers.job.state import Verdict

#: The longest text that is written whatever the settings say (they cut earlier, where the text arises).
TEXT_LIMIT = 256 << 10
LINE_LIMIT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Postmortem:
    """How one attempt ended."""

    id: int
    lease: int
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


def columns(ended: Sequence[Postmortem]) -> dict[str, list[Any]]:
    """The arrays common to finish and retry. Rows must come in the order of their ids: that is the lock order."""
    failed = [end for end in ended if end.verdict is not Verdict.SUCCEEDED]
    return {
        "ids": [end.id for end in ended],
        "leases": [end.lease for end in ended],
        "verdicts": [str(end.verdict) for end in ended],
        "durations": [number(end.duration) for end in ended],
        "cpus": [number(end.cpu) for end in ended],
        "peaks": [end.peak_rss for end in ended],
        "progresses": [clean.json_text(end.progress) for end in ended],
        "checkpoints": [clean.json_text(end.checkpoint) for end in ended],
        "crashes": [end.crash for end in ended],
        "lines": [_line(end) for end in ended],
        "failed_ids": [end.id for end in failed],
        "errors": [text(end.error) for end in failed],
        "tracebacks": [text(end.traceback) for end in failed],
        "stacks": [text(end.stack) for end in failed],
        "exit_statuses": [text(end.exit_status) for end in failed],
        "outputs": [text(end.output) for end in failed],
        "rungs": [clean.json_text(end.rungs) for end in failed],
        "workers": [text(end.worker) for end in failed],
        "versions": [text(end.version) for end in failed],
    }


def text(value: str | None) -> str | None:
    return None if value is None else clean.text(value, TEXT_LIMIT)


def number(value: float) -> float:
    """A duration as the arithmetic of Postgres can take it: never negative, never NaN or infinite."""
    return max(0.0, value) if math.isfinite(value) else 0.0


def in_order(ended: Sequence[Any]) -> list[Any]:
    """One row per lease, by id: the order in which rows are locked, in every statement."""
    return sorted({(end.id, end.lease): end for end in ended}.values(), key=lambda end: (end.id, end.lease))


def answers(rows: list[tuple[Any, ...]]) -> dict[tuple[int, int], str]:
    """(id, lease) -> "written", "already" (an earlier send of the same end was committed) or "lost"."""
    return {(row[0], row[1]): row[2] for row in rows}


def _line(end: Postmortem) -> str | None:
    """What the job itself remembers of an attempt: one line, and nothing of one that went well."""
    if end.verdict is Verdict.SUCCEEDED:
        return None
    return clean.line(end.error or str(end.verdict), LINE_LIMIT) or str(end.verdict)
