"""From a report or a death to what is written."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Raw

from pgworkers.ipc.scoreboard import StopReason
from pgworkers.job.finish import JobFinish, JobRetry
from pgworkers.job.model import ClaimedJob, JobState, Verdict
from pgworkers.master.held_job import HeldJob
from pgworkers.master.verdict import decide_end, from_death, from_report
from pgworkers.specs import TaskSpec
from pgworkers.supervisor.messages import Died
from pgworkers.worker.messages import Outcome, Report


def held(
    *, attempt: int = 1, max_attempts: int = 3, crashes: int = 0, stop_reason: StopReason | None = None
) -> HeldJob:
    job = ClaimedJob(
        7,
        4,
        "default",
        "work",
        "{}",
        attempt,
        crashes,
        max_attempts,
        2,
        None,
        None,
        None,
        None,
        None,
        [],
        0.0,
        False,
    )
    found = HeldJob(job, TaskSpec("work", "default"))
    found.stop_reason = stop_reason
    return found


def written(report: Report, **kwargs: object) -> JobFinish | JobRetry:
    return decide_end(held(**kwargs), from_report(report), 0.5, "default/0 pid 1", "v1")  # type: ignore[arg-type]


def died(status: str = "SIGKILL", signal: int = 9, **kwargs: object) -> Died:
    return Died(0, 1, 1, 7, 4, status, signal, True, **kwargs)  # type: ignore[arg-type]


def test_done_is_succeeded_whatever_was_requested() -> None:
    end = written(Report(Outcome.DONE, 1.0, 0.5, 1000), stop_reason=StopReason.CANCEL)
    assert isinstance(end, JobFinish)
    assert (end.state, end.verdict) == (JobState.SUCCEEDED, Verdict.SUCCEEDED)


def test_arguments_that_do_not_fit_are_not_tried_again() -> None:
    end = written(Report(Outcome.BAD_ARGUMENTS, 1, 1, 1, error="UnfitArguments: x"), attempt=1)
    assert isinstance(end, JobFinish)
    assert (end.state, end.verdict, end.error) == (JobState.DEAD, Verdict.ERROR, "UnfitArguments: x")


def test_an_error_is_retried_until_the_attempts_are_spent() -> None:
    assert isinstance(written(Report(Outcome.ERROR, 1, 1, 1, error="x"), attempt=2), JobRetry)
    last = written(Report(Outcome.ERROR, 1, 1, 1, error="x"), attempt=3)
    assert isinstance(last, JobFinish)
    assert last.state is JobState.DEAD


def test_an_unknown_outcome_is_a_failure_and_never_a_success() -> None:
    end = written(Report("hooray", 1, 1, 1), attempt=3)
    assert (end.verdict, isinstance(end, JobFinish) and end.state) == (Verdict.ERROR, JobState.DEAD)


def test_a_cancel_that_met_a_failing_handler_skips_the_retry_curve() -> None:
    end = written(Report(Outcome.ERROR, 1, 1, 1, error="x"), stop_reason=StopReason.CANCEL)
    assert isinstance(end, JobFinish)
    assert end.state is JobState.CANCELLED


@pytest.mark.parametrize(
    ("reason", "verdict", "free"),
    [
        (StopReason.DRAIN, Verdict.INTERRUPTED, True),
        (StopReason.KILL, Verdict.INTERRUPTED, True),
        (StopReason.DEADLINE, Verdict.TIMEOUT, False),
    ],
)
def test_a_stopped_handler_ends_by_the_reason_of_the_ladder(
    reason: StopReason, verdict: Verdict, free: bool
) -> None:
    end = written(Report(Outcome.STOPPED, 1, 1, 1, reason=reason, rungs=[("ask", 0.0)]))
    assert isinstance(end, JobRetry)
    assert (end.verdict, end.is_free) == (verdict, free)
    assert end.rungs == '[{"rung":"ask","after":0.0}]'


@pytest.mark.parametrize(
    ("death", "verdict"),
    [
        (died(), Verdict.CRASH),
        (died(is_oom=True), Verdict.OOM),
        (died("SIGSEGV", 11), Verdict.CRASH),
        (died("exit 0", 0), Verdict.EXIT),
        (died(reason=StopReason.MEMORY), Verdict.MEMORY_LIMIT),
        (died(reason=StopReason.DEADLINE), Verdict.TIMEOUT),
        (died(reason=StopReason.DRAIN), Verdict.INTERRUPTED),
    ],
)
def test_a_death_has_a_verdict_and_a_sentence(death: Died, verdict: Verdict) -> None:
    ending = from_death(death)
    assert ending.verdict is verdict
    assert ending.error


@pytest.mark.parametrize(
    ("reason", "verdict", "began"),
    [
        (StopReason.CANCEL, Verdict.CANCELLED, "cancelled"),
        (StopReason.DEADLINE, Verdict.TIMEOUT, "stopped at its deadline"),
        (None, Verdict.CRASH, "the worker was ended by SIGSEGV"),
    ],
)
def test_a_dump_that_crashes_the_interpreter_keeps_the_verdict_and_is_mentioned(
    reason: StopReason | None, verdict: Verdict, began: str
) -> None:
    ending = from_death(died("SIGSEGV", 11, reason=reason, is_dumping=True))
    assert (ending.verdict, ending.exit_status) == (verdict, "SIGSEGV")
    assert (ending.error or "").startswith(began)
    assert (ending.error or "").endswith("; its interpreter crashed (SIGSEGV) while its stacks were written")


def test_a_crash_counts_and_the_last_allowed_one_is_the_end() -> None:
    first = decide_end(held(crashes=0), from_death(died()), 0.5, "", "")
    assert isinstance(first, JobRetry)
    assert first.is_crash
    second = decide_end(held(crashes=1), from_death(died()), 0.5, "", "")
    assert isinstance(second, JobFinish)
    assert second.state is JobState.DEAD
    assert (second.error or "").endswith("; not tried again: it took its worker down 2 times (max_crashes)")
    assert "max_crashes" not in (first.error or "")
    spent = decide_end(held(crashes=1, attempt=10, max_attempts=10), from_death(died()), 0.5, "", "")
    assert "max_crashes" not in (spent.error or ""), "it had no attempt left anyway"


def test_a_handler_that_exits_has_the_same_error_on_its_last_crash() -> None:
    left = written(Report(Outcome.EXIT, 0.1, 0.0, 0, error="SystemExit: 0"), crashes=1)
    assert isinstance(left, JobFinish)
    assert left.error == "SystemExit: 0; not tried again: it took its worker down 2 times (max_crashes)"


def test_the_error_of_a_worker_without_its_channel_names_the_cause() -> None:
    assert "closed descriptors that were not its own" in (
        from_death(died("exit 0", 0, has_closed_channel=True)).error or ""
    )
    assert "closed" not in (from_death(died("exit 0", 0)).error or "")


def test_a_handler_that_left_no_checkpoint_does_not_wipe_the_one_on_record() -> None:
    end = written(
        Report(Outcome.DONE, 1, 1, 1, result=Raw(b"null"), checkpoint=Raw(b"null"), progress=Raw(b"null"))
    )
    assert isinstance(end, JobFinish)
    assert (end.checkpoint, end.progress, end.result) == (None, None, "null")


def test_a_result_that_cannot_be_kept_is_the_end_at_once() -> None:
    end = written(Report(Outcome.BAD_RESULT, 1, 1, 1, error="work: the result is not JSON"), attempt=1)
    assert isinstance(end, JobFinish)
    assert (end.state, end.verdict, end.error) == (
        JobState.DEAD,
        Verdict.BAD_RESULT,
        "work: the result is not JSON",
    )


def test_a_memory_verdict_names_limit_and_peak() -> None:
    report = Report(
        Outcome.STOPPED,
        1,
        1,
        10 << 20,
        reason=StopReason.MEMORY,
        memory_limit=100 << 20,
        memory_used=150 << 20,
    )
    assert from_report(report).error == "stopped over its memory limit: peak 150MB, 100MB allowed"
    death = msgspec.structs.replace(
        died(reason=StopReason.MEMORY), memory_limit=100 << 20, memory_used=150 << 20, peak_rss=10 << 20
    )
    assert from_death(death).error == "stopped over its memory limit: peak 150MB, 100MB allowed"
    kernel = msgspec.structs.replace(died(is_oom=True), peak_rss=200 << 20)
    assert (from_death(kernel).error or "").endswith(": peak 200MB, no limit of its own (memory=)")
    limited = msgspec.structs.replace(kernel, memory_limit=300 << 20)
    assert (from_death(limited).error or "").endswith(": peak 200MB, 300MB allowed")


def test_what_was_killed_with_a_job_is_named() -> None:
    death = msgspec.structs.replace(died(), killed_children=["ffmpeg (pid 7)", "sh (pid 8)"])
    assert (from_death(death).error or "").endswith("; killed with it: ffmpeg (pid 7), sh (pid 8)")
    report = Report(Outcome.ERROR, 1, 1, 1, error="ValueError: x", killed_children=["sleep (pid 9)"])
    assert from_report(report).error == "ValueError: x; killed with it: sleep (pid 9)"


def test_hanging_children_and_those_of_another_user_are_distinguished() -> None:
    text = from_death(died(stuck=["5 (dd, state D)"])).error or ""
    assert "hang in the kernel: 5 (dd, state D)" in text
    text = from_death(died(foreign=["6 (sudo, state S)"])).error or ""
    assert "hang" not in text
    assert "belong to another user" in text
    assert "6 (sudo, state S)" in text
