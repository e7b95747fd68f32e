"""`Ctx`: what a handler knows about its job, and how it reports progress.

A handler that wants one annotates its first parameter `Ctx`. The context reads the worker's scoreboard slot through a
`JobControl`: whether the job should stop, and how much time is left. Only `connect`, `aconnect` and `rate` reach the
database. The heartbeat thread sends progress, checkpoint and metrics (worker/heartbeat.py). Progress and enqueued jobs are
guarded by a lock of the context; checkpoint and metrics have their own.

A handler that is called as a plain function gets a context without a worker: the `Standalone…` classes stand in for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sized
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from pgworkers.bounds import MAX_CHECKPOINT_BYTES
from pgworkers.errors import JobStopped, UsageError
from pgworkers.job import model
from pgworkers.job.model import NewJob, PreparedJob
from pgworkers.limits.rate import Rate, RateLimit, TokenStock, UnlimitedRunner
from pgworkers.observe import tracing
from pgworkers.observe.handler_metrics import HandlerMetrics
from pgworkers.payload import NotJson, encode
from pgworkers.units import parse_duration

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")
MAX_NOTE_CHARACTERS = 200
MAX_PROGRESS_BYTES = 4096


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose records name the job. The `extra=` of a call is kept."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class Ctx:
    """What a handler knows about its job.

    The worker passes it to a first parameter annotated `Ctx`. `enqueue` does not take that parameter.
    """

    __slots__ = (
        "_children",
        "_connections",
        "_control",
        "_done",
        "_is_progress_changed",
        "_lock",
        "_metrics",
        "_note",
        "_rate",
        "_total",
        "attempt",
        "checkpoint",
        "crashes",
        "errors",
        "job",
        "lease",
        "log",
        "meta",
        "queue",
        "task",
    )  # fmt: skip

    def __init__(
        self,
        *,
        job: int,
        task: str,
        queue: str,
        attempt: int = 1,
        crashes: int = 0,
        lease: int = 0,
        meta: Mapping[str, Any] | None = None,
        errors: Iterable[str] = (),
        checkpoint: Mapping[str, Any] | None = None,
        control: JobControl | None = None,
        rate: Callable[..., Rate] | None = None,
        connections: ConnectionFactory | None = None,
    ) -> None:
        self.job = job  #: number of the job
        self.task = task  #: name of the task
        self.queue = queue  #: name of the queue
        self.attempt = attempt  #: number of this attempt; the first is 1
        self.crashes = crashes  #: how often the worker process died while running this job
        self.lease = lease  #: fencing token for other systems: grows with every execution
        #: what `using(meta=...)` was given; a schedule or a batch adds keys of its own
        self.meta: dict[str, Any] = dict(meta or {})
        self.errors = list(errors)  #: one line for each failed attempt, the newest last
        #: a dict that survives retries, kills and deploys; JSON, at most 1 MiB
        self.checkpoint = Checkpoint(checkpoint)
        self.log = JobLogger(  #: a logger whose records name the job
            logging.getLogger(f"pgworkers.job.{task}"),
            {"job": job, "task": task, "queue": queue, "attempt": attempt},
        )
        self._control: JobControl = control if control is not None else StandaloneControl()
        self._rate = rate if rate is not None else unlimited_rate
        self._connections: ConnectionFactory = (
            connections if connections is not None else StandaloneConnections(None)
        )
        self._lock = threading.Lock()
        self._done: float | None = None
        self._total: float | None = None
        self._note: str | None = None
        self._is_progress_changed = False
        self._metrics: HandlerMetrics | None = None
        self._children: list[NewJob] | None = None

    @classmethod
    def for_test(
        cls,
        *,
        checkpoint: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        attempt: int = 1,
        cancelled: Callable[[], bool] | None = None,
        remaining: Callable[[], float | None] | None = None,
        dsn: str | None = None,
    ) -> Ctx:
        """Make a context without a worker, for tests: `render(Ctx.for_test(checkpoint={"page": 498}), 7)`.

        `cancelled=lambda: True` simulates a job that should stop. `remaining` returns the seconds left for `ctx.deadline`.
        `dsn` is the database that `ctx.connect()` opens.
        """
        return cls(
            job=0,
            task="test",
            queue="test",
            attempt=attempt,
            checkpoint=checkpoint,
            meta=meta,
            control=StandaloneControl(cancelled, remaining),
            connections=StandaloneConnections(dsn),
        )

    @property
    def cancelled(self) -> bool:
        """True once this job should stop: cancel, deadline, memory limit, drain, lost lease, kill or stall."""
        return self._control.is_stop_requested()

    @property
    def deadline(self) -> float | None:
        """Seconds left for this attempt, or None if it has no limit."""
        return self._control.seconds_left()

    def extend(self, by: float | str) -> float | None:
        """Give this attempt more time, within the job's own deadline. Returns the seconds left (None: no limit).

        A cancellation point: it raises JobStopped if the attempt is already being stopped.
        """
        self.check_cancelled()
        self._control.extend(parse_duration(by, what="ctx.extend"))
        return self._control.seconds_left()

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context that the job was enqueued with, to pass on to other systems."""
        return tracing.traceparent_of(self.meta)

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Report progress. Cheap: only the latest values are kept, and sent with the next heartbeat (1 s)."""
        for name, number in (("done", done), ("total", total)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, (int, float))):
                raise UsageError(f"ctx.progress: {name} is {type(number).__name__}; give a number")
        with self._lock:
            self._done, self._is_progress_changed = done, True
            if total is not None:
                self._total = total
            if note is not None:
                self._note = str(note)[:MAX_NOTE_CHARACTERS]

    def track(
        self, iterable: Iterable[T], total: float | None = None, note: str | None = None
    ) -> Iterator[T]:
        """Iterate and report progress. Each step is a cancellation point that raises JobStopped."""
        if total is None and isinstance(iterable, Sized):
            total = len(iterable)
        self.progress(0, total, note)
        for done, item in enumerate(iterable):
            self.check_cancelled()
            yield item
            self.progress(done + 1)

    def check_cancelled(self) -> None:
        """Raise JobStopped if this job should stop."""
        if self._control.is_stop_requested():
            raise JobStopped(self._control.stop_reason())

    def rate(
        self, scope: str, rate: float | None = None, per: float | str = "1s", burst: float | None = None
    ) -> Rate:
        """Return a rate limit that all hosts share: `ctx.rate("github").acquire()`. A stop of this job ends the wait."""
        return self._rate(scope, rate, per, burst).with_stop_point(self.check_cancelled)

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """Open a psycopg connection to the app's database. Its session ends with this job, however the job ends.

        `options` are passed to psycopg: `ctx.connect(autocommit=True, row_factory=dict_row)`. The connection is closed after
        the handler. A stop (cancel, deadline, drain, kill, crash) cancels its statement on the server.
        """
        return self._connections.connect(**options)

    async def aconnect(self, **options: Any) -> psycopg.AsyncConnection[Any]:
        """`connect` for `async def` handlers."""
        return await self._connections.aconnect(**options)

    def enqueue(self, *jobs: PreparedJob[Any]) -> None:
        """Enqueue jobs in the transaction that marks this job as succeeded. If it does not succeed, they do not exist.

        `ctx.enqueue(mail.prepare(7), report.using(delay="5m").prepare(7))`. A delay begins with the end of this job.
        """
        new = [_require_prepared(job) for job in jobs]
        with self._lock:
            children = [*(self._children or ()), *new]
            if (
                len(children) > model.MAX_CHILDREN_PER_JOB
                or sum(map(model.child_characters, children)) > model.MAX_JOB_CHILDREN_CHARACTERS
            ):
                raise UsageError(
                    f"ctx.enqueue: more than {model.MAX_CHILDREN_PER_JOB:,} jobs or 4MB with the end of one; "
                    "none of these was enqueued; use app.enqueue_many(...)"
                )
            self._children = children

    @property
    def enqueued(self) -> tuple[NewJob, ...]:
        """The jobs that `enqueue` was given so far, for tests of a handler."""
        return tuple(self._children or ())

    @property
    def metrics(self) -> HandlerMetrics:
        """Your own metrics: `counter(name, n)`, `gauge(name, value)`, `observe(name, value)`, each with labels."""
        if self._metrics is None:
            self._metrics = HandlerMetrics()
        return self._metrics

    def end_handler(self) -> None:
        """For the worker: the handler has returned or raised. Only a test with planned faults does something here."""

    def take_metrics(self) -> bytes | None:
        """For the worker: the metrics that changed since the last call."""
        return None if self._metrics is None else self._metrics.take_updates()

    def take_children(self) -> bytes | None:
        """For the worker: the jobs that `enqueue` was given, as a JSON list."""
        return None if self._children is None else model.encode_children(self._children)

    def take_progress(self) -> bytes | None:
        """For the worker: the progress as JSON if it changed since the last call."""
        with self._lock:
            if not self._is_progress_changed:
                return None
            self._is_progress_changed = False
            progress = {"done": self._done, "total": self._total, "note": self._note}
        try:
            return encode(
                {key: value for key, value in progress.items() if value is not None},
                limit=MAX_PROGRESS_BYTES,
                clean=True,
            )
        except NotJson:  # done or total is NaN or huge: not a reason to fail the job
            return None

    def take_checkpoint(self) -> bytes | None:
        """For the worker: the checkpoint as JSON if it changed since the last call."""
        return self.checkpoint.take_changes()

    def __repr__(self) -> str:
        return f"<Ctx #{self.job} {self.task} attempt {self.attempt}>"


def _require_prepared(job: PreparedJob[Any]) -> NewJob:
    if not isinstance(job, PreparedJob):
        raise UsageError(
            f"ctx.enqueue: {type(job).__name__} is not a prepared job; nothing was enqueued; "
            "write ctx.enqueue(task.prepare())"
        )
    model.refuse_as_child(job.job)
    return job.job


class Checkpoint(MutableMapping[str, Any]):
    """A dictionary that survives retries, kills and deploys. Its values must be JSON.

    An assignment encodes at once, so a wrong value raises in the handler. Later changes inside a value (a list that grows)
    are kept only if it is assigned again.
    """

    __slots__ = ("_is_changed", "_lock", "_texts", "_values")

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, Any] = dict(values or {})
        self._texts = {
            key: encode(value, limit=MAX_CHECKPOINT_BYTES, clean=True) for key, value in self._values.items()
        }
        self._is_changed = False

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise UsageError(f"checkpoint[{key!r}]: keys must be strings; nothing was kept")
        try:
            encode(key, limit=MAX_CHECKPOINT_BYTES)
            text = encode(value, limit=MAX_CHECKPOINT_BYTES)
        except NotJson as exc:
            raise UsageError(f"checkpoint[{key!r}]: {exc}; nothing was kept") from None
        with self._lock:
            others = sum(len(k) + len(t) for k, t in self._texts.items() if k != key)
            if others + len(key) + len(text) > MAX_CHECKPOINT_BYTES:
                raise UsageError(
                    f"checkpoint[{key!r}]: the checkpoint would be larger than 1MB; nothing was kept"
                )
            self._values[key], self._texts[key], self._is_changed = value, text, True

    def __delitem__(self, key: str) -> None:
        with self._lock:
            del self._values[key]
            del self._texts[key]
            self._is_changed = True

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._values))

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Checkpoint({self._values!r})"

    def take_changes(self) -> bytes | None:
        """Return the JSON text if it changed since the last call."""
        with self._lock:
            if not self._is_changed:
                return None
            self._is_changed = False
            return msgspec.json.encode({key: msgspec.Raw(text) for key, text in self._texts.items()})


class JobControl(Protocol):
    """The worker's side of a context: stop requests and the time limit."""

    def is_stop_requested(self) -> bool: ...

    def seconds_left(self) -> float | None: ...

    def stop_reason(self) -> str: ...

    def extend(self, seconds: float) -> None: ...


class ConnectionFactory(Protocol):
    """Opens database sessions for a handler."""

    def connect(self, **options: Any) -> psycopg.Connection[Any]: ...

    async def aconnect(self, **options: Any) -> psycopg.AsyncConnection[Any]: ...


class StandaloneConnections:
    """Opens sessions for a handler that is called as a plain function, with the dsn of `Ctx.for_test`."""

    def __init__(self, dsn: str | None) -> None:
        self._dsn = dsn

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        import psycopg

        return psycopg.connect(self._require_dsn(), **options)

    async def aconnect(self, **options: Any) -> psycopg.AsyncConnection[Any]:
        import psycopg

        return await psycopg.AsyncConnection.connect(self._require_dsn(), **options)

    def _require_dsn(self) -> str:
        if self._dsn is None:
            raise UsageError("this context has no database; write Ctx.for_test(dsn=...). Nothing was opened")
        return self._dsn


def unlimited_rate(
    scope: str, rate: float | None = None, per: float | str = "1s", burst: float | None = None
) -> Rate:
    """The rate limit of a handler that is called as a plain function. It never waits."""
    return Rate(RateLimit(scope, 1.0, 1.0), TokenStock(1.0), UnlimitedRunner())


class StandaloneControl:
    """The control of a handler that is called as a plain function. `Ctx.for_test` passes what a test wants to simulate."""

    def __init__(
        self,
        cancelled: Callable[[], bool] | None = None,
        remaining: Callable[[], float | None] | None = None,
    ) -> None:
        self._cancelled = cancelled
        self._remaining = remaining

    def is_stop_requested(self) -> bool:
        return self._cancelled is not None and self._cancelled()

    def seconds_left(self) -> float | None:
        return None if self._remaining is None else self._remaining()

    def stop_reason(self) -> str:
        return "cancel"

    def extend(self, seconds: float) -> None:
        pass
