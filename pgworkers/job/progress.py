"""Progress and checkpoint of running jobs, flushed by the heartbeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgworkers.job import clean
from pgworkers.job.postmortem import fences, in_order
from pgworkers.postgres.statements import Query, Statement

_SAVE = Statement.beside(__file__, "progress")


@dataclass(frozen=True, slots=True)
class Saved:
    """What one handler said since the last beat, as JSON text. None: unchanged."""

    id: int
    lease: int
    claimed_at: int  # microseconds since 1970, as the claim said
    progress: str | None
    checkpoint: str | None


def save(host: str, rows: Sequence[Saved]) -> Query[int]:
    """Store it. Answers how many of the leases `host` still held."""
    ordered: list[Saved] = in_order(rows)
    params = fences(ordered) | {
        "host": host,
        "progresses": [clean.json_text(saved.progress) for saved in ordered],
        "checkpoints": [clean.json_text(saved.checkpoint) for saved in ordered],
    }
    return Query(_SAVE, params, len)
