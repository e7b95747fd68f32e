from __future__ import annotations

import asyncio

import pytest

from pgworkers.errors import (
    ArgumentError,
    Discard,
    InvalidResult,
    JobStopped,
    ResultError,
    Retry,
    Snooze,
    StoredArgumentsError,
    Throttled,
)
from pgworkers.worker import outcome


def of(error: BaseException, wished: bool = False, seen: bool = False) -> outcome.ExceptionReport:
    return outcome.report_exception(error, is_stop_requested=wished, has_seen_stop=seen, limit=1000)


def test_control_exceptions_show_their_message() -> None:
    shown = [repr(one) for one in (Retry(), Retry("busy", after="5s"), Snooze(3), Throttled(), Discard("x"))]
    assert shown == ["Retry()", "Retry('busy', after='5s')", "Snooze(after=3)", "Throttled()", "Discard('x')"]


def turned(first: BaseException, second: BaseException) -> BaseException:
    try:
        try:
            raise first
        except BaseException as caught:
            raise second from caught
    except BaseException as error:
        return error


STOPS = [
    JobStopped("cancel"),
    asyncio.CancelledError(),
    BaseExceptionGroup("tasks", [ValueError(), JobStopped("cancel")]),
    turned(JobStopped("cancel"), RuntimeError("could not finish")),
]


@pytest.mark.parametrize("error", STOPS)
def test_jobstopped_counts_as_a_stop_only_if_a_stop_was_requested(error: BaseException) -> None:
    assert of(error, wished=True).outcome == "stopped"
    assert of(error, wished=False).outcome == "error"


def test_an_error_during_a_stop_is_an_error_unless_the_handler_knew_of_the_stop() -> None:
    assert of(ValueError("x"), wished=True).outcome == "error"
    assert of(ValueError("x"), wished=True, seen=True).outcome == "stopped"


@pytest.mark.parametrize(
    ("error", "name", "after"),
    [
        (Retry("x", after="1m"), "retry", 60.0),
        (Retry(after="soon"), "retry", None),
        (Retry(after=float("nan")), "retry", None),
        (Retry(after=-1), "retry", None),
        (Retry(after=[]), "retry", None),  # type: ignore[arg-type]
        (Snooze(5), "snooze", 5.0),
        (Throttled(), "throttled", None),
        (Discard(), "discard", None),
        (StoredArgumentsError("stored by SQL"), "bad_arguments", None),
        (ArgumentError("of another task, that the handler enqueued"), "error", None),
        (ResultError("of another job, that the handler read"), "error", None),
        (InvalidResult("work: the result is not JSON"), "bad_result", None),
        (SystemExit(), "exit", None),
        (KeyboardInterrupt(), "error", None),
    ],
)
def test_what_exceptions_mean(error: BaseException, name: str, after: float | None) -> None:
    found = of(error)
    assert (found.outcome, found.retry_after) == (name, after)
    assert "\n" not in (found.error or "")


def test_a_chain_of_causes_without_end() -> None:
    error = ValueError("x")
    error.__context__ = error
    assert of(error, wished=True).outcome == "error"


def test_long_tracebacks_keep_both_ends() -> None:
    def deep(n: int) -> None:
        if n:
            deep_again(n)
        raise ValueError("the very end")

    def deep_again(n: int) -> None:
        deep(n - 1)

    with pytest.raises(ValueError, match="the very end") as caught:
        deep(100)
    text = outcome.traceback_text(caught.value, 2000)
    assert len(text) <= 2000
    assert text.startswith("Traceback")
    assert text.rstrip().endswith("ValueError: the very end")
