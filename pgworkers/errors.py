"""Every error that pgworkers raises on purpose, and the exceptions that a handler raises to decide about its attempt.

The text of an error says what happened, what was not done, and what to do. `exit_code` is the exit status of the command
line for it.
"""

from __future__ import annotations

from typing import ClassVar


class PgworkersError(Exception):
    """The base class of all errors that pgworkers raises on purpose."""

    exit_code: ClassVar[int] = 1


class UsageError(PgworkersError):
    """A declaration, setting or argument that cannot work. It is refused where it is written."""

    exit_code = 2


class ArgumentError(UsageError):
    """The arguments do not fit the task. Nothing was enqueued."""


class StoredArgumentsError(ArgumentError):
    """Stored arguments do not fit the task. The job is dead: another attempt would fail in the same way."""


class ResultError(UsageError):
    """A return value cannot be stored as a result, or a stored result does not fit the return annotation."""


class InvalidResult(ResultError):
    """A return value cannot be stored. The job is dead: another attempt would fail in the same way."""


class NotFound(PgworkersError):
    """What was named does not exist: a job, batch, queue, task, schedule or host."""

    exit_code = 3


class DatabaseUnreachable(PgworkersError):
    """Postgres did not answer. A configured database never falls back to another one.

    `is_transient`: it refused the connection or is still starting, and may answer later. Otherwise the address or the
    password is wrong.
    """

    exit_code = 4

    def __init__(self, text: str, *, is_transient: bool = True, summary: str = "") -> None:
        super().__init__(text)
        self.is_transient = is_transient
        self.summary = summary or text  # shorter, for messages while pgworkers tries again


class DatabaseRefused(PgworkersError):
    """Postgres answered with an error that pgworkers did not expect. The driver's error is its `__cause__`."""


class PermissionDenied(DatabaseRefused):
    """The login may not do this. The text names the missing right (docs/how-to/separate-logins.md)."""


class QuotaExceeded(PgworkersError):
    """The login has as many waiting jobs as its grant allows. Nothing was enqueued; try again later."""


class OutcomeUnknown(DatabaseUnreachable):
    """The connection broke during an enqueue. The jobs may or may not have been committed.

    Nothing is sent twice. With `idempotency_key=` repeating is safe: it returns the job of the first call, if there is one,
    finished or not. Without it, look before you enqueue again: `unique=` finds only a job that has not ended.
    """


class SchemaOutOfDate(PgworkersError):
    """The schema in the database has another version than this code needs."""

    exit_code = 5


class AppNotLoaded(PgworkersError):
    """The app could not be imported or described. `traceback` is the traceback of its own code, as text."""

    exit_code = 6

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class DuplicateJob(PgworkersError):
    """A live job holds the unique key, and `on_conflict="raise"` was given. Nothing was enqueued."""

    def __init__(self, unique: str, job_id: int) -> None:
        super().__init__(
            f"a live job (#{job_id}) already holds the unique key {unique!r}; nothing was enqueued"
        )
        self.unique = unique
        self.job_id = job_id


class JobFailed(PgworkersError):
    """`job.result()` of a job that is dead or was cancelled. It has `job_id`, `state`, `error` and `verdict`."""

    def __init__(self, job_id: int, state: str, error: str | None, verdict: str | None = None) -> None:
        super().__init__(f"job #{job_id} is {state}" + (f": {error}" if error else ""))
        self.job_id = job_id
        self.state = state
        self.error = error
        self.verdict = (
            verdict  # why the last attempt ended: error, timeout, memory_limit, crash, cancelled, …
        )


class ResultTimeout(PgworkersError, TimeoutError):
    """`job.result(timeout=...)` or `batch.wait(timeout=...)` stopped waiting. The jobs continue. Also a TimeoutError."""


class RateTimeout(PgworkersError, TimeoutError):
    """`rate.acquire(timeout=...)`: no token is due in time, and none was used. Also a TimeoutError."""


class ControlException(Exception):
    """Base class of what a handler raises to decide how its attempt ends."""

    reason: str = ""
    after: float | str | None = None

    def __repr__(self) -> str:
        arguments = [repr(self.reason)] if self.reason else []
        arguments += [f"after={self.after!r}"] if self.after is not None else []
        return f"{type(self).__name__}({', '.join(arguments)})"


class Retry(ControlException):
    """Run this job again, after the time `after`, or by the task's back-off. It costs an attempt."""

    def __init__(self, reason: str = "", *, after: float | str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = after


class Snooze(ControlException):
    """Run this job again after the time `after`. It costs no attempt."""

    def __init__(self, after: float | str, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = after


class Discard(ControlException):
    """Give this job up. It is dead and is not retried."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Throttled(ControlException):
    """The service that this queue uses refused: pause the whole queue, on every host. It costs no attempt.

    `after` is the length of the pause. Without it, it is the setting `throttle_duration` (1 minute), and longer each
    time in a row.
    """

    def __init__(self, reason: str = "", *, after: float | str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = after


class JobStopped(BaseException):
    """Raised inside a handler that must stop: cancel, deadline, memory limit, drain, lost lease, kill or stall.

    A BaseException, so that `except Exception` in a handler does not catch it. `reason` is cancel, deadline, memory, drain,
    lease, kill or stall.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
