"""What an exception means for the job, and how it reads.

Texts of user code are never trusted to be readable.
"""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import dataclass

from pgworkers import errors
from pgworkers.job import sanitize
from pgworkers.job.model import RETRY_REQUESTED_PREFIX
from pgworkers.options.retries import RETRY_EVERY_EXCEPTION, ExceptionDecision, ExceptionPolicy
from pgworkers.units import parse_duration
from pgworkers.worker.messages import Outcome

_PACKAGE_DIRECTORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@dataclass(slots=True, kw_only=True)
class ExceptionReport:
    """The part of a report that an exception decides."""

    outcome: Outcome
    error: str | None = None
    traceback: str | None = None
    retry_after: float | None = None


def report_exception(
    error: BaseException,
    *,
    is_stop_requested: bool,
    has_seen_stop: bool,
    limit: int,
    policy: ExceptionPolicy = RETRY_EVERY_EXCEPTION,
) -> ExceptionReport:
    """Describe how a handler ended by an exception.

    `is_stop_requested`: this execution should stop. `has_seen_stop`: the handler asked, and learned of it. An error of a
    handler that has seen the stop is how it stopped. One that merely came at the same time is not. `policy` is what the task
    says about exceptions.
    """
    if is_stop_requested and (has_seen_stop or _is_caused_by_stop(error)):
        return ExceptionReport(
            outcome=Outcome.STOPPED, error=error_line(error), traceback=traceback_text(error, limit)
        )
    match error:
        case errors.Retry():
            return ExceptionReport(
                outcome=Outcome.RETRY,
                error=_reason(error.reason, RETRY_REQUESTED_PREFIX),
                retry_after=_after(error.after),
            )
        case errors.Snooze():
            return ExceptionReport(
                outcome=Outcome.SNOOZE,
                error=_reason(error.reason, "snoozed"),
                retry_after=_after(error.after),
            )
        case errors.Throttled():
            return ExceptionReport(
                outcome=Outcome.THROTTLED,
                error=_reason(error.reason, "throttled"),
                retry_after=_after(error.after),
            )
        case errors.Discard():
            return ExceptionReport(outcome=Outcome.DISCARD, error=_reason(error.reason, "discarded"))
        case errors.StoredArgumentsError():
            return ExceptionReport(outcome=Outcome.BAD_ARGUMENTS, error=error_line(error))
        case errors.InvalidResult():
            return ExceptionReport(outcome=Outcome.BAD_RESULT, error=sanitize.one_line(_text_of(error)))
        case SystemExit():
            return ExceptionReport(
                outcome=Outcome.EXIT, error=error_line(error), traceback=traceback_text(error, limit)
            )
        case _:
            outcome, note = _DECIDED_OUTCOMES[policy.decide(error)]
            return ExceptionReport(
                outcome=outcome, error=error_line(error) + note, traceback=traceback_text(error, limit)
            )


_DECIDED_OUTCOMES = {
    ExceptionDecision.RETRY: (Outcome.ERROR, ""),
    ExceptionDecision.DISCARD: (Outcome.DISCARD, "; not tried again (discard_on)"),
    ExceptionDecision.FAIL: (Outcome.FINAL_ERROR, "; not tried again: retry_on does not name it"),
}


def is_stop(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(is_stop(inner) for inner in error.exceptions)
    loops = sys.modules.get("asyncio")  # not imported: its exception was not raised
    return isinstance(error, errors.JobStopped) or (
        loops is not None and isinstance(error, loops.CancelledError)
    )


def _is_caused_by_stop(error: BaseException) -> bool:
    """A handler that turns the stop into an error of its own has still been stopped."""
    inner: BaseException | None = error
    for _ in range(50):
        if inner is None:
            return False
        if is_stop(inner):
            return True
        inner = inner.__cause__ or inner.__context__
    return False


def _reason(reason: object, word: str) -> str:
    text = _text_of(reason)
    return sanitize.one_line(f"{word}: {text}" if text else word)


def _after(value: float | str | None) -> float | None:
    """What the handler wrote in `after=`; nonsense there means: by the task's back-off."""
    if value is None:
        return None
    try:
        return parse_duration(value)
    except (errors.UsageError, TypeError, ValueError, AttributeError):
        return None


def error_line(error: BaseException) -> str:
    """One line: the type and what it says."""
    name = type(error).__qualname__
    text = _text_of(error)
    return sanitize.one_line(f"{name}: {text}" if text else name)


def _text_of(value: object) -> str:
    try:
        return str(value)
    except BaseException as broken:
        return f"<its text could not be made: str() raised {type(broken).__qualname__}>"


def traceback_text(error: BaseException, limit: int) -> str:
    """The traceback from the user's first frame on; long ones lose their middle."""
    try:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_PACKAGE_DIRECTORY):
            frames = frames.tb_next
        shown = traceback.TracebackException(type(error), error, frames)
        if isinstance(error, errors.JobStopped):
            while len(shown.stack) > 1 and shown.stack[-1].filename.startswith(_PACKAGE_DIRECTORY):
                shown.stack.pop()  # how we raised it is not where the handler was
        text = "".join(shown.format())
    except BaseException as broken:  # recursion, memory, a lazy attribute that raises
        text = f"{error_line(error)}\n<no traceback: formatting it raised {type(broken).__qualname__}>"
    if len(text) > limit:
        text = f"{text[: limit // 4]}\n  …\n{text[-(limit * 3 // 4 - 8) :]}"
    return sanitize.clean_text(text, limit)
