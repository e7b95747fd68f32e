"""Why an attempt was stopped, in one sentence."""

from __future__ import annotations

import pytest

from pgworkers.ipc.scoreboard import StopReason
from pgworkers.job.model import ClaimedJob
from pgworkers.master.held_job import HeldJob
from pgworkers.master.verdict import stop_sentence
from pgworkers.specs import TaskSpec


def held(
    *,
    timeout_seconds: float | None = None,
    memory_bytes: int | None = None,
    seconds_to_deadline: float | None = None,
) -> HeldJob:
    given = {
        "timeout_seconds": timeout_seconds,
        "memory_bytes": memory_bytes,
        "seconds_to_deadline": seconds_to_deadline,
        "id": 7,
        "lease": 1,
        "attempt": 1,
    }
    blank = {"int": 0, "str": "", "bool": False, "list[str]": [], "float": 0.0}
    fields = {name: blank.get(str(kind)) for name, kind in ClaimedJob.__annotations__.items()}
    return HeldJob(
        ClaimedJob(**{**fields, **given}),
        TaskSpec("work", "default", timeout=600.0, memory=1 << 30, stall_timeout=30.0),
    )


@pytest.mark.parametrize(
    ("reason", "job", "sentence"),
    [
        (StopReason.CANCEL, held(), "cancelled"),
        (StopReason.DEADLINE, held(), "stopped at its deadline: 10m for one attempt"),
        (StopReason.DEADLINE, held(timeout_seconds=5.0), "stopped at its deadline: 5s for one attempt"),
        (StopReason.DEADLINE, held(seconds_to_deadline=0.0), "stopped at its deadline for the whole job"),
        (StopReason.MEMORY, held(), "stopped over its memory limit: peak 2.0GB, 1.0GB allowed"),
        (
            StopReason.MEMORY,
            held(memory_bytes=512 << 20),
            "stopped over its memory limit: peak 2.0GB, 512MB allowed",
        ),
        (StopReason.STALL, held(), "stopped: it showed no sign of life for 30s (stall_timeout)"),
        (StopReason.DRAIN, held(), "interrupted: the host was asked to stop"),
        (StopReason.DEADLINE, None, "stopped at its deadline"),
    ],
)
def test_the_limit_that_was_broken_is_named(reason: StopReason, job: HeldJob | None, sentence: str) -> None:
    assert stop_sentence(reason, job, 2 << 30, None) == sentence


def test_what_the_handler_raised_is_added_unless_it_is_the_stop_itself() -> None:
    assert stop_sentence(StopReason.CANCEL, None, 0, "JobStopped: cancel") == "cancelled"
    assert stop_sentence(StopReason.CANCEL, None, 0, "CancelledError") == "cancelled"
    assert (
        stop_sentence(StopReason.CANCEL, None, 0, "ValueError: half a file")
        == "cancelled; it ended with ValueError: half a file"
    )


def test_each_reason_has_a_sentence_of_its_own() -> None:
    reasons = (
        StopReason.CANCEL,
        StopReason.DEADLINE,
        StopReason.MEMORY,
        StopReason.STALL,
        StopReason.LEASE,
        StopReason.KILL,
        StopReason.DRAIN,
    )
    assert len({stop_sentence(reason, None, 0, None) for reason in reasons}) == len(reasons)


def test_an_extended_deadline_says_so() -> None:
    job = held(timeout_seconds=5.0)
    job.extended_seconds = 90.0
    assert (
        stop_sentence(StopReason.DEADLINE, job, 0, None)
        == "stopped at its deadline: 5s for one attempt, extended by 1m30s"
    )
    job.began_at = 100.0
    assert job.seconds_left(100.0) == 95.0
