"""`retry_on=` and `discard_on=` of a task, and the window of the default policy."""

from __future__ import annotations

import pytest

from pgworkers import App
from pgworkers.errors import Discard, Retry, UsageError
from pgworkers.job.retry_policy import backoff_delay
from pgworkers.master.verdict import from_report
from pgworkers.options.retries import ExceptionDecision, ExceptionPolicy, read_exception_policy
from pgworkers.specs import BackoffSpec, TaskSpec
from pgworkers.worker import outcome
from pgworkers.worker.messages import Report

RETRY, DISCARD, FAIL = ExceptionDecision.RETRY, ExceptionDecision.DISCARD, ExceptionDecision.FAIL


@pytest.mark.parametrize(
    ("policy", "error", "expected"),
    [
        (ExceptionPolicy(), ValueError(), RETRY),
        (ExceptionPolicy(discard_on=(ValueError,)), ValueError(), DISCARD),
        (ExceptionPolicy(discard_on=(ValueError,)), UnicodeDecodeError("x", b"", 0, 1, "y"), DISCARD),
        (ExceptionPolicy(discard_on=(ValueError,)), KeyError(), RETRY),
        (ExceptionPolicy(retry_on=(ConnectionError,)), ConnectionResetError(), RETRY),
        (ExceptionPolicy(retry_on=(ConnectionError,)), ValueError(), FAIL),
        (ExceptionPolicy(retry_on=()), ValueError(), FAIL),
        # The nearer class counts, whichever option names it.
        (ExceptionPolicy(retry_on=(OSError,), discard_on=(FileNotFoundError,)), FileNotFoundError(), DISCARD),
        (ExceptionPolicy(retry_on=(ConnectionError,), discard_on=(OSError,)), ConnectionResetError(), RETRY),
        (ExceptionPolicy(retry_on=(ConnectionError,), discard_on=(OSError,)), FileNotFoundError(), DISCARD),
        # A group, as asyncio.TaskGroup raises it.
        (ExceptionPolicy(discard_on=(ValueError,)), ExceptionGroup("g", [KeyError(), ValueError()]), DISCARD),
        (ExceptionPolicy(retry_on=(OSError,)), ExceptionGroup("g", [OSError(), KeyError()]), FAIL),
        (ExceptionPolicy(retry_on=(OSError,)), ExceptionGroup("g", [OSError(), ConnectionError()]), RETRY),
        (ExceptionPolicy(discard_on=(ExceptionGroup,)), ExceptionGroup("g", [KeyError()]), DISCARD),
    ],
)
def test_what_an_exception_means(
    policy: ExceptionPolicy, error: BaseException, expected: ExceptionDecision
) -> None:
    assert policy.decide(error) is expected


def report_of(error: BaseException, policy: ExceptionPolicy) -> outcome.ExceptionReport:
    return outcome.report_exception(
        error, is_stop_requested=False, has_seen_stop=False, limit=1000, policy=policy
    )


def test_the_report_says_which_option_ended_the_job() -> None:
    failed = report_of(ValueError("bad"), ExceptionPolicy(retry_on=(OSError,)))
    assert (failed.outcome, failed.error) == (
        "final_error",
        "ValueError: bad; not tried again: retry_on does not name it",
    )
    assert failed.traceback
    ended = from_report(Report(failed.outcome, 0.1, 0.0, 0, error=failed.error))
    assert (ended.verdict, ended.is_permanent) == ("error", True)
    discarded = report_of(ValueError("bad"), ExceptionPolicy(discard_on=(ValueError,)))
    assert (discarded.outcome, discarded.error) == (
        "discard",
        "ValueError: bad; not tried again (discard_on)",
    )
    long = report_of(ValueError("x" * 10_000), ExceptionPolicy(discard_on=(ValueError,)))
    assert (long.error or "").endswith("; not tried again (discard_on)")


def test_a_handler_that_decides_itself_is_not_overruled() -> None:
    policy = ExceptionPolicy(retry_on=(OSError,), discard_on=(Exception,))
    assert report_of(Retry("busy"), policy).outcome == "retry"
    assert report_of(Discard("gone"), policy).outcome == "discard"
    assert report_of(SystemExit(1), policy).outcome == "exit"


@pytest.mark.parametrize(
    ("retry_on", "discard_on", "said"),
    [
        ({"timeout": False}, None, "retry_verdicts="),
        ("ConnectionError", None, "write \\(ConnectionError, TimeoutError\\)"),
        (3, None, "not an exception class"),
        ((int,), None, "is not a subclass of Exception"),
        ((KeyboardInterrupt,), None, "is not a subclass of Exception"),
        (None, (Retry,), "decides about its attempt by itself"),
        ((ValueError,), (ValueError,), "ValueError is in retry_on and in discard_on"),
    ],
)
def test_classes_that_make_no_sense_are_refused(retry_on: object, discard_on: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_exception_policy(retry_on, discard_on, what="task t:")  # type: ignore[arg-type]


def test_one_class_needs_no_tuple() -> None:
    app = App()
    app.queue("default")

    @app.task(retry_on=ConnectionError, discard_on=[KeyError, ValueError])
    def fetch() -> None: ...

    assert fetch.exception_policy == ExceptionPolicy((ConnectionError,), (KeyError, ValueError))


def test_the_default_policy_tries_for_most_of_a_day() -> None:
    """docs/how-to/retry-jobs.md shows these figures."""
    spec, backoff = TaskSpec("t", "default"), BackoffSpec()
    assert (spec.max_attempts, backoff.base, backoff.factor, backoff.cap) == (20, 2.0, 2.0, 3 * 3600.0)
    shortest, middle, longest = (
        sum(backoff_delay(backoff, attempt, rand) for attempt in range(1, spec.max_attempts))
        for rand in (0.0, 0.5, 1.0)
    )
    assert 20.2 * 3600 < shortest < middle == pytest.approx(22.55 * 3600, rel=0.001)
    assert longest < 23.1 * 3600
    one_more = sum(backoff_delay(backoff, attempt, 0.5) for attempt in range(1, 21))
    assert one_more > 25.5 * 3600
