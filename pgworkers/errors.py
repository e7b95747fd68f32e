"""Every error a user of pgworkers can meet, and the exceptions a handler raises to steer its job.

An error's text says three things: what happened, what was not done, and what to do. `exit_code` is what the
command line returns for it.
"""

from __future__ import annotations

from typing import ClassVar


class PgworkersError(Exception):
    """The root of all errors that pgworkers raises on purpose."""

    exit_code: ClassVar[int] = 1


class UsageError(PgworkersError):
    """A declaration, setting or argument that cannot work; refused where it was made."""

    exit_code = 2


class ArgumentError(UsageError):
    """Arguments that do not fit the task; nothing was enqueued."""


class StoredArgumentsError(ArgumentError):
    """Stored arguments that do not fit the task that was to run with them. The job is dead: it cannot get better."""


class ResultError(UsageError):
    """A handler's return value that cannot be kept as a result, or a kept one that does not fit the annotation."""


class InvalidResult(ResultError):
    """A handler's return value that cannot be kept. The job is dead: running it again would end the same way."""


class NotFound(PgworkersError):
    """The job, queue, task or host that was named does not exist."""

    exit_code = 3


class DatabaseUnreachable(PgworkersError):
    """Postgres did not answer. A configured database never falls back to another one.

    `transient`: it refused or is still starting, and may answer later; else the address or the password is wrong.
    """

    exit_code = 4

    def __init__(self, text: str, *, transient: bool = True, brief: str = "") -> None:
        super().__init__(text)
        self.is_transient = transient
        self.summary = brief or text  # for somebody who is told of it while we try again


class DatabaseRefused(PgworkersError):
    """Postgres answered with an error that pgworkers did not expect. The driver's error is its `__cause__`."""


class PermissionDenied(DatabaseRefused):
    """The login may not do this; the text says which right it lacks (docs/how-to/separate-logins.md)."""


class QuotaExceeded(PgworkersError):
    """As many jobs of this login wait as its grant allows; nothing was enqueued. Try again later."""


class OutcomeUnknown(DatabaseUnreachable):
    """The connection broke while an enqueue was on its way: it may or may not have been committed.

    Nothing is sent twice. With `idempotency_key=` repeating is safe: it returns the job of the first try, if there is
    one, finished or not. Without it, look before you enqueue again: `unique=` finds only a job that has not ended.
    """


class SchemaOutOfDate(PgworkersError):
    """The schema in the database is not the one this code speaks."""

    exit_code = 5


class AppNotLoaded(PgworkersError):
    """The user's app could not be imported or described. `traceback` is the text of what its code raised."""

    exit_code = 6

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class DuplicateJob(PgworkersError):
    """A live job holds the unique key and `on_conflict="raise"` was asked for; nothing was enqueued."""

    def __init__(self, unique: str, job_id: int) -> None:
        super().__init__(
            f"a live job (#{job_id}) already holds the unique key {unique!r}; nothing was enqueued"
        )
        self.unique = unique
        self.job_id = job_id


class JobFailed(PgworkersError):
    """`job.result()` of a job that ended dead or cancelled. It has `job_id`, `state` and `error`."""

    def __init__(self, job_id: int, state: str, error: str | None) -> None:
        super().__init__(f"job #{job_id} is {state}" + (f": {error}" if error else ""))
        self.job_id = job_id
        self.state = state
        self.error = error


class ResultTimeout(PgworkersError, TimeoutError):
    """`job.result(timeout=...)` gave up waiting; the job itself goes on. A TimeoutError, too."""


class RateTimeout(PgworkersError, TimeoutError):
    """`rate.acquire(timeout=...)`: no token of that rate is due in time; none was used. A TimeoutError, too."""


class ControlException(Exception):
    """What a handler raises to say how its attempt ends."""

    reason: str = ""
    after: float | str | None = None

    def __repr__(self) -> str:
        said = [repr(self.reason)] if self.reason else []
        said += [f"after={self.after!r}"] if self.after is not None else []
        return f"{type(self).__name__}({', '.join(said)})"


class Retry(ControlException):
    """Run this job again, `after` so long (or by the task's back-off); costs an attempt."""

    def __init__(self, reason: str = "", *, after: float | str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = after


class Snooze(ControlException):
    """Run this job again after `after`; costs no attempt."""

    def __init__(self, after: float | str, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = after


class Discard(ControlException):
    """This job is dead now; no retries."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Throttled(ControlException):
    """The service behind this queue said no: the whole queue cools down, on every host; the job costs no attempt.

    `after` says for how long; else it is the setting `throttle_duration` (1 minute), longer each time in a row.
    """

    def __init__(self, reason: str = "", *, after: float | str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = after


class JobStopped(BaseException):
    """Raised inside a handler that must end: cancel, deadline, memory, drain, lost lease.

    A BaseException, so that `except Exception` in a handler does not swallow it. `reason` says which of them it was.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
