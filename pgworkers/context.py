"""`Ctx`: what a running handler knows of its job, and how it tells about itself.

A handler that wants one annotates its first parameter `Ctx`. The context touches neither socket nor database:
the worker fills in a `JobControl` (is a stop wished, how long is left) and its heartbeat thread takes what changed.
Everything the two threads share is guarded by one lock.

What a handler keeps over its attempts.

What stands behind a context: its worker, or nobody, when a handler is called as a plain function.
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


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose records name the job; what a call says with `extra=` is kept."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class Ctx:
    """What a handler knows of its job. A first parameter annotated `Ctx` gets it and is not a parameter of `enqueue`."""

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
        feed: JobControl | None = None,
        rate: Callable[..., Rate] | None = None,
        connections: ConnectionFactory | None = None,
    ) -> None:
        self.job = job  #: its number
        self.task = task  #: its task's name
        self.queue = queue  #: its queue's name
        self.attempt = attempt  #: the first is 1
        self.crashes = crashes  #: how often the process died under this job
        self.lease = lease  #: grows with every execution: a fencing number for outside systems
        #: what `using(meta=...)` said; a schedule or a batch adds its own
        self.meta: dict[str, Any] = dict(meta or {})
        self.errors = list(errors)  #: one line per failed attempt, the newest last
        #: a dict that survives retries, kills and deploys; JSON, at most 1 MiB
        self.checkpoint = Checkpoint(checkpoint)
        self.log = JobLogger(  #: a logger whose records name the job
            logging.getLogger(f"pgworkers.job.{task}"),
            {"job": job, "task": task, "queue": queue, "attempt": attempt},
        )
        self._control: JobControl = feed if feed is not None else StandaloneControl()
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
        """A context outside any worker, for tests: `render(Ctx.for_test(checkpoint={"page": 498}), 7)`.

        `cancelled=lambda: True` plays a job that should end; `dsn` is where `ctx.connect()` goes.
        """
        feed = StandaloneControl()
        if cancelled is not None:
            feed.is_stop_requested = cancelled  # type: ignore[method-assign]
        if remaining is not None:
            feed.seconds_left = remaining  # type: ignore[method-assign]
        return cls(
            job=0,
            task="test",
            queue="test",
            attempt=attempt,
            checkpoint=checkpoint,
            meta=meta,
            feed=feed,
            connections=StandaloneConnections(dsn),
        )

    @property
    def cancelled(self) -> bool:
        """True once this job should end: cancel, deadline, drain, lost lease."""
        return self._control.is_stop_requested()

    @property
    def deadline(self) -> float | None:
        """Seconds left for this attempt, or None when there is no limit."""
        return self._control.seconds_left()

    def extend(self, by: float | str) -> float | None:
        """This attempt may take so much longer, within the job's own deadline; returns the seconds left (None: no limit).

        A cancellation point: it raises JobStopped when the attempt is already being stopped.
        """
        self.check_cancelled()
        self._control.extend(parse_duration(by, what="ctx.extend"))
        return self._control.seconds_left()

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context that the job was enqueued with, for systems that are called."""
        return tracing.traceparent_of(self.meta)

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Say how far it is. Cheap: only the last word is kept, and sent with the next heartbeat (1 s)."""
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
        """Iterate with progress; each step is a cancellation point that raises JobStopped."""
        if total is None and isinstance(iterable, Sized):
            total = len(iterable)
        self.progress(0, total, note)
        for done, item in enumerate(iterable):
            self.check_cancelled()
            yield item
            self.progress(done + 1)

    def check_cancelled(self) -> None:
        """Raise JobStopped if this job should end."""
        if self._control.is_stop_requested():
            raise JobStopped(self._control.stop_reason())

    def rate(
        self, scope: str, rate: float | None = None, per: float | str = "1s", burst: float | None = None
    ) -> Rate:
        """A rate that all hosts share; waiting for it ends when this job should. `ctx.rate("github").acquire()`."""
        return self._rate(scope, rate, per, burst).with_stop_point(self.check_cancelled)

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """A psycopg connection to the app's database whose session ends with this job, however the job ends.

        `options` go to psycopg: `ctx.connect(autocommit=True, row_factory=dict_row)`. It is closed after the handler; a stop
        (cancel, deadline, drain, kill, crash) cancels its statement on the server.
        """
        return self._connections.connect(**options)

    async def aconnect(self, **options: Any) -> psycopg.AsyncConnection[Any]:
        """`connect` for `async def` handlers."""
        return await self._connections.aconnect(**options)

    def enqueue(self, *jobs: PreparedJob[Any]) -> None:
        """Enqueue these with the end of this job: they exist if and when it has succeeded, whatever dies in between.

        `ctx.enqueue(mail.prepare(7), report.using(delay="5m").prepare(7))`. A delay begins with the end of this job.
        """
        new = [_require_prepared(job) for job in jobs]
        with self._lock:
            all_of_them = [*(self._children or ()), *new]
            if (
                len(all_of_them) > model.MAX_CHILDREN_PER_JOB
                or sum(map(model.child_characters, all_of_them)) > model.MAX_CHILDREN_CHARACTERS
            ):
                raise UsageError(
                    f"ctx.enqueue: more than {model.MAX_CHILDREN_PER_JOB:,} jobs or 4MB with the end of one; "
                    "none of these was enqueued; use app.enqueue_many(...)"
                )
            self._children = all_of_them

    @property
    def enqueued(self) -> tuple[NewJob, ...]:
        """What `enqueue` was given so far; for tests of a handler."""
        return tuple(self._children or ())

    @property
    def metrics(self) -> HandlerMetrics:
        """Metrics of your own: `counter(name, n)`, `gauge(name, value)`, `observe(name, value)`, each with labels."""
        if self._metrics is None:
            self._metrics = HandlerMetrics()
        return self._metrics

    def take_metrics(self) -> bytes | None:
        """For the worker: what was said since it was last taken."""
        return None if self._metrics is None else self._metrics.take_updates()

    def take_children(self) -> bytes | None:
        """For the worker: the JSON list of what was enqueued with the end of this job."""
        return None if self._children is None else model.encode_children(self._children)

    def take_progress(self) -> bytes | None:
        """For the worker: the JSON text of the progress if it changed since it was last taken."""
        with self._lock:
            if not self._is_progress_changed:
                return None
            self._is_progress_changed = False
            said = {"done": self._done, "total": self._total, "note": self._note}
        try:
            return encode(
                {key: value for key, value in said.items() if value is not None}, limit=4096, clean=True
            )
        except NotJson:  # done or total is NaN or huge: nothing to show, nothing to fail for
            return None

    def take_checkpoint(self) -> bytes | None:
        """For the worker: the JSON text of the checkpoint if it changed since it was last taken."""
        return self.checkpoint.take_changes()

    def __repr__(self) -> str:
        return f"<Ctx #{self.job} {self.task} attempt {self.attempt}>"


def _require_prepared(job: PreparedJob[Any]) -> NewJob:
    if not isinstance(job, PreparedJob):
        raise UsageError(
            f"ctx.enqueue: {type(job).__name__} is no prepared job; nothing was enqueued; write ctx.enqueue(task.prepare())"
        )
    model.refuse_as_child(job.job)
    return job.job


class Checkpoint(MutableMapping[str, Any]):
    """A dictionary that survives retries, kills and deploys; values must be JSON.

    Assigning encodes at once: a wrong value raises in the handler, and later changes inside a value (a list
    that grows) are kept only when it is assigned again.
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
        """The JSON text if it changed since it was last taken."""
        with self._lock:
            if not self._is_changed:
                return None
            self._is_changed = False
            return msgspec.json.encode({key: msgspec.Raw(text) for key, text in self._texts.items()})


class JobControl(Protocol):
    """What the worker tells a context."""

    def is_stop_requested(self) -> bool: ...

    def seconds_left(self) -> float | None: ...

    def stop_reason(self) -> str: ...

    def extend(self, seconds: float) -> None: ...


class ConnectionFactory(Protocol):
    """Who opens database sessions for a handler."""

    def connect(self, **options: Any) -> psycopg.Connection[Any]: ...

    async def aconnect(self, **options: Any) -> psycopg.AsyncConnection[Any]: ...


class StandaloneConnections:
    """Sessions of a handler that is called as a plain function: those of the dsn it was given."""

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
    """The rate of a handler that is called as a plain function: it never waits."""
    return Rate(RateLimit(scope, 1.0, 1.0), TokenStock(1.0), UnlimitedRunner())


class StandaloneControl:
    """The feed of a handler that is called as a plain function."""

    def is_stop_requested(self) -> bool:
        return False

    def seconds_left(self) -> float | None:
        return None

    def stop_reason(self) -> str:
        return "cancel"

    def extend(self, seconds: float) -> None:
        pass
