"""The end of attempts and jobs: finish, retry, release; and progress of running jobs.

Only the lease that ran a job may write its end. `finish` ends jobs, `retry` ends an attempt and schedules the next one,
`release` gives back jobs that were claimed but not started. `check_unwritten_finishes` and `check_unwritten_retries` ask
what became of ends that a statement did not write. Workers send progress with the heartbeat, and the host writes it in
batches between finishes.

Texts that a handler left behind are cleaned here, so that one bad text never fails the batch it is part of. A parameter is
NULL instead of an array if no row of the batch has a value: most attempts succeed and leave nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from pgworkers.bounds import MAX_BIGINT
from pgworkers.job import sanitize
from pgworkers.job.claim import fence_params
from pgworkers.job.model import (
    Fence,
    JobState,
    Verdict,
)
from pgworkers.job.retry_policy import clamp_delay
from pgworkers.job.sanitize import MAX_ERROR_LINE_CHARACTERS
from pgworkers.postgres.arrays import Bigints, Doubles, Texts
from pgworkers.postgres.statements import Query, Statement

_FINISH = Statement.from_file(__file__, "finish")
_SUCCEEDED_STATE = JobState.SUCCEEDED


class FinishAnswer(StrEnum):
    """What became of one result that was sent to the database."""

    WRITTEN = "written"  #: by this statement
    MISSING = "missing"  #: not by this statement; the checks say why: ALREADY, LOCKED or LOST
    AGAIN = "again"  #: the statement wrote another result of the same job; send this one in another statement
    ALREADY = "already"  #: by an earlier statement whose answer did not arrive
    LOCKED = "locked"  #: another session has locked the row; send it again later
    LOST = "lost"  #: the lease is no longer valid; the result is dropped


class AttemptEnd(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one attempt ended. A struct, as it is made for each job: a frozen dataclass costs ten times as much."""

    id: int
    lease: int
    claimed_at_us: int  # microseconds since 1970, as the claim returned it
    verdict: Verdict
    duration_seconds: float = 0.0  # seconds
    cpu_seconds: float = 0.0  # seconds, children included
    peak_rss_bytes: int = 0  # bytes
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
    is_crash: bool = False  # counts against max_crashes
    is_supervisor_lost: bool = (
        False  # ended with the death of its supervisor; counts against MAX_CONSECUTIVE_LOSSES
    )

    @property
    def fence(self) -> Fence:
        return Fence(self.id, self.lease, self.claimed_at_us)


class JobFinish(AttemptEnd, frozen=True, kw_only=True, gc=False):
    """The last attempt of a job, and the state the job ends in."""

    state: JobState
    result: str | None = None  # JSON text
    children: str | None = None  # JSON text: jobs that are enqueued when this result is written
    should_keep_args: bool = True  # in history; a job that did not succeed keeps them in any case


def finish(host: str, ends: Sequence[JobFinish]) -> Query[dict[Fence, FinishAnswer]]:
    """End these jobs. Answers MISSING (`check_unwritten_finishes` says why) or AGAIN for each that was not written."""
    rows: list[JobFinish] = in_lock_order(ends)
    once = list({end.id: end for end in rows}.values())
    succeeded = [end.state for end in once].count(_SUCCEEDED_STATE) == len(once)
    result, results = _result_params([end.result for end in once])
    params = attempt_params(once) | {
        "host": host,
        "states": None if succeeded else Texts([str(end.state) for end in once]),
        "result": result,
        "results": results,
        "children": _children_json(once),
        "dropped_args": _dropped_args(once),
    }

    def read(found: list[tuple[Any, ...]]) -> dict[Fence, FinishAnswer]:
        ((written, _),) = found
        answers = {} if written is None else missing_answers(once, written)
        if len(once) < len(rows):
            others = {end.fence for end in rows} - {end.fence for end in once}
            answers |= dict.fromkeys(others, FinishAnswer.AGAIN)
        return answers

    return Query(_FINISH, params, read)


def _result_params(values: list[str | None]) -> tuple[str | None, Texts | None]:
    """The result that all of them have, else one for each: most jobs return None, as their neighbours do."""
    if values and values[0] is not None and values.count(values[0]) == len(values):
        return _clean_result(values[0]), None
    return None, text_column(values, _clean_result)


def _dropped_args(ends: Sequence[JobFinish]) -> list[bool] | None:
    """Which of them leave no arguments in history; None in the common case. What may run again keeps its arguments."""
    dropped = [not end.should_keep_args and end.state is _SUCCEEDED_STATE for end in ends]
    return dropped if any(dropped) else None


def _children_json(ends: Sequence[JobFinish]) -> str | None:
    """The lists of all of them by id and lease; None in the common case."""
    lists = [f'"{end.id}:{end.lease}":{end.children}' for end in ends if end.children is not None]
    return f"{{{','.join(lists)}}}" if lists else None


def _clean_result(value: str) -> str | None:
    return value if value == "null" else sanitize.clean_json_or_string(value, MAX_TEXT_CHARACTERS)


#: The longest text that is written whatever the settings say (they cut earlier, where the text arises).
MAX_TEXT_CHARACTERS = 256 << 10
_SUCCEEDED_VERDICT = Verdict.SUCCEEDED  # for every job: to ask an enum takes longer than all the rest


def attempt_params(ended: Sequence[AttemptEnd]) -> dict[str, Any]:
    """The arrays common to finish and retry. Rows must come in the order of their ids: that is the lock order."""
    verdicts = [end.verdict for end in ended]
    failed = verdicts.count(_SUCCEEDED_VERDICT) < len(verdicts)
    return (
        fence_params(ended)
        | {
            "durations": Doubles(valid_seconds([end.duration_seconds for end in ended])),
            "cpus": Doubles(valid_seconds([end.cpu_seconds for end in ended])),
            "peaks": Bigints(_valid_bytes([end.peak_rss_bytes for end in ended])),
            "progresses": text_column([end.progress for end in ended], sanitize.clean_json),
            "checkpoints": text_column([end.checkpoint for end in ended], sanitize.clean_json),
        }
        | (_failure_params(ended) if failed else _NO_FAILURE_PARAMS)
    )


def _failure_params(ended: Sequence[AttemptEnd]) -> dict[str, Any]:
    """What is written only of attempts that did not succeed."""
    return {
        "verdicts": Texts([str(end.verdict) for end in ended]),
        "crashes": [end.is_crash for end in ended],
        "lines": text_column([_error_line(end) for end in ended]),
        "errors": text_column([end.error for end in ended], bounded_text),
        "tracebacks": text_column([end.traceback for end in ended], bounded_text),
        "stacks": text_column([end.stack for end in ended], bounded_text),
        "exit_statuses": text_column([end.exit_status for end in ended], bounded_text),
        "outputs": text_column([end.output for end in ended], bounded_text),
        "rungs": text_column([end.rungs for end in ended], sanitize.clean_json),
        "workers": text_column([end.worker for end in ended], bounded_text),
        "versions": text_column([end.version for end in ended], bounded_text),
    }


#: Of a batch in which all succeeded.
_NO_FAILURE_PARAMS: dict[str, Any] = dict.fromkeys(
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


def text_column(values: list[str | None], cleaned: Callable[[str], str | None] | None = None) -> Texts | None:
    """Texts of a batch, cleaned; None when there is none in it."""
    if values.count(None) == len(values):
        return None
    if cleaned is not None:
        known = {value: None if value is None else cleaned(value) for value in set(values)}
        values = [known[value] for value in values]
    return Texts(values)


def bounded_text(value: str) -> str:
    return sanitize.clean_text(value, MAX_TEXT_CHARACTERS)


def valid_seconds(values: list[float]) -> list[float]:
    """Durations as the arithmetic of Postgres can take them: never negative, never NaN or infinite."""
    if values and min(values) >= 0.0 and sum(values) < math.inf:  # one NaN makes a NaN of the sum
        return values
    return [value if 0.0 <= value < math.inf else 0.0 for value in values]


def _valid_bytes(values: list[int]) -> list[int]:
    if values and min(values) >= 0 and max(values) <= MAX_BIGINT:
        return values
    return [min(max(value, 0), MAX_BIGINT) for value in values]


def in_lock_order(ended: Sequence[Any]) -> list[Any]:
    """One row per fence, by id: the order in which rows are locked, in every statement."""
    if len({end.id for end in ended}) == len(ended):
        return sorted(ended, key=_by_id)
    return sorted({_by_fence(end): end for end in ended}.values(), key=_by_fence)


_by_id = attrgetter("id")
_by_fence = attrgetter("id", "lease", "claimed_at_us")


def missing_answers(ended: Sequence[AttemptEnd], written: Collection[int]) -> dict[Fence, FinishAnswer]:
    """The ends whose places (the first is 1) are not among the written ones."""
    places = set(written)
    return {end.fence: FinishAnswer.MISSING for nth, end in enumerate(ended, 1) if nth not in places}


def _error_line(end: AttemptEnd) -> str | None:
    """What the job itself remembers of an attempt: one line, and nothing of one that went well."""
    if end.verdict is Verdict.SUCCEEDED:
        return None
    return sanitize.one_line(end.error or str(end.verdict), MAX_ERROR_LINE_CHARACTERS) or str(end.verdict)


_FINISH_CHECK = Statement.from_file(__file__, "finish_check")
_RETRY_CHECK = Statement.from_file(__file__, "retry_check")


def check_unwritten_finishes(host: str, ends: Sequence[JobFinish]) -> Query[dict[Fence, FinishAnswer]]:
    """Answers ALREADY, LOCKED or LOST for each."""
    return _check_unwritten(_FINISH_CHECK, host, ends)


def check_unwritten_retries(host: str, agains: Sequence[JobRetry]) -> Query[dict[Fence, FinishAnswer]]:
    """Answers as `check_unwritten_finishes` does."""
    return _check_unwritten(_RETRY_CHECK, host, agains)


def _check_unwritten(
    statement: Statement, host: str, ended: Sequence[AttemptEnd]
) -> Query[dict[Fence, FinishAnswer]]:
    params = fence_params(ended) | {"host": host, "verdicts": Texts([str(end.verdict) for end in ended])}

    def read(rows: list[tuple[int, bool, bool]]) -> dict[Fence, FinishAnswer]:
        return {
            ended[nth - 1].fence: FinishAnswer.ALREADY
            if already
            else FinishAnswer.LOCKED
            if locked
            else FinishAnswer.LOST
            for nth, already, locked in rows
        }

    return Query(statement, params, read)


_RETRY = Statement.from_file(__file__, "retry")


class JobRetry(AttemptEnd, frozen=True, kw_only=True, gc=False):
    """An ended attempt whose job will run again."""

    delay_seconds: float
    is_free: bool = False


def retry(host: str, agains: Sequence[JobRetry]) -> Query[dict[Fence, FinishAnswer]]:
    """Let these jobs run again. Answers MISSING for each that was not written (`check_unwritten_retries` says why)."""
    rows: list[JobRetry] = in_lock_order(agains)
    params = attempt_params(rows) | {
        "host": host,
        "verdicts": Texts([str(again.verdict) for again in rows]),
        "afters": [clamp_delay(again.delay_seconds) for again in rows],
        "frees": [again.is_free for again in rows],
        "losts": [again.is_supervisor_lost for again in rows],
    }
    return Query(_RETRY, params, lambda found: missing_answers(rows, [row[0] for row in found]))


_RELEASE = Statement.from_file(__file__, "release")


class ReleaseAnswer(NamedTuple):
    """How many jobs were still held and are given back; those whose rows another session had must be sent again."""

    released_count: int
    locked_fences: list[Fence]


def release(host: str, held: Sequence[Fence]) -> Query[ReleaseAnswer]:
    """Give back these jobs of `host`."""
    jobs = sorted(set(held))

    def read(rows: list[tuple[Any, ...]]) -> ReleaseAnswer:
        (count,) = [row[0] for row in rows if row[2] is None]
        return ReleaseAnswer(int(count), [jobs[row[2] - 1] for row in rows if row[2] is not None])

    return Query(_RELEASE, fence_params(jobs) | {"host": host}, read)


_PROGRESS = Statement.from_file(__file__, "progress")


@dataclass(frozen=True, slots=True)
class ProgressUpdate:
    """What one handler reported since the last heartbeat, as JSON text. None: unchanged."""

    id: int
    lease: int
    claimed_at_us: int  # microseconds since 1970, as the claim returned it
    progress: str | None
    checkpoint: str | None

    @property
    def fence(self) -> Fence:
        return Fence(self.id, self.lease, self.claimed_at_us)


class ProgressAnswer(NamedTuple):
    """How many updates were saved; those whose rows another session had must be sent again. The others lost their lease."""

    saved_count: int
    locked_fences: list[Fence]


def save_progress(host: str, rows: Sequence[ProgressUpdate]) -> Query[ProgressAnswer]:
    """Store progress and checkpoints of jobs that `host` still holds."""
    ordered: list[ProgressUpdate] = in_lock_order(rows)
    params = fence_params(ordered) | {
        "host": host,
        "progresses": [sanitize.clean_json(saved.progress) for saved in ordered],
        "checkpoints": [sanitize.clean_json(saved.checkpoint) for saved in ordered],
    }

    def read(found: list[tuple[Any, ...]]) -> ProgressAnswer:
        (count,) = [row[0] for row in found if row[1] is None]
        return ProgressAnswer(int(count), [ordered[row[1] - 1].fence for row in found if row[1] is not None])

    return Query(_PROGRESS, params, read)
