"""`Ctx`: what a running handler knows of its job, and how it tells about itself.

A handler that wants one annotates its first parameter `Ctx`. The context touches neither socket nor database:
the worker fills in a `Feed` (is a stop wished, how long is left) and its heartbeat thread takes what changed.
Everything the two threads share is guarded by one lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sized
from typing import TYPE_CHECKING, Any, TypeVar

from pgworkers.checkpoint import Checkpoint
from pgworkers.clock import seconds
from pgworkers.detached import Connections, Detached, Feed, Plain, unlimited
from pgworkers.errors import JobStopped, UsageError
from pgworkers.flow.rate import Rate
from pgworkers.job import children
from pgworkers.job.new import NewJob, Prepared
from pgworkers.observe import tracing
from pgworkers.observe.handlers import HandlerMetrics
from pgworkers.payload import NotJson, encode

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")
NOTE_LIMIT = 200


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose records name the job; what a call says with `extra=` is kept."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class Ctx:
    """What a handler knows of its job. A first parameter annotated `Ctx` gets it and is not a parameter of `enqueue`."""

    __slots__ = (
        "_changed", "_children", "_connections", "_done", "_feed", "_lock", "_metrics", "_note", "_rate", "_total",
        "attempt", "checkpoint", "crashes", "errors", "job", "lease", "log", "meta", "queue", "task",
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
        feed: Feed | None = None,
        rate: Callable[..., Rate] | None = None,
        connections: Connections | None = None,
    ) -> None:
        self.job = job  #: its number
        self.task = task  #: its task's name
        self.queue = queue  #: its queue's name
        self.attempt = attempt  #: the first is 1
        self.crashes = crashes  #: how often the process died under this job
        self.lease = lease  #: grows with every execution: a fencing number for outside systems
        self.meta: dict[str, Any] = dict(
            meta or {}
        )  #: what `using(meta=...)` said; a schedule or a batch adds its own
        self.errors = list(errors)  #: one line per failed attempt, the newest last
        self.checkpoint = Checkpoint(
            checkpoint
        )  #: a dict that survives retries, kills and deploys; JSON, at most 1 MiB
        self.log = JobLogger(  #: a logger whose records name the job
            logging.getLogger(f"pgworkers.job.{task}"),
            {"job": job, "task": task, "queue": queue, "attempt": attempt},
        )
        self._feed: Feed = feed if feed is not None else Detached()
        self._rate = rate if rate is not None else unlimited
        self._connections: Connections = connections if connections is not None else Plain(None)
        self._lock = threading.Lock()
        self._done: float | None = None
        self._total: float | None = None
        self._note: str | None = None
        self._changed = False
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
        feed = Detached()
        if cancelled is not None:
            feed.cancelled = cancelled  # type: ignore[method-assign]
        if remaining is not None:
            feed.remaining = remaining  # type: ignore[method-assign]
        return cls(
            job=0,
            task="test",
            queue="test",
            attempt=attempt,
            checkpoint=checkpoint,
            meta=meta,
            feed=feed,
            connections=Plain(dsn),
        )

    @property
    def cancelled(self) -> bool:
        """True once this job should end: cancel, deadline, drain, lost lease."""
        return self._feed.cancelled()

    @property
    def deadline(self) -> float | None:
        """Seconds left for this attempt, or None when there is no limit."""
        return self._feed.remaining()

    def extend(self, by: float | str) -> float | None:
        """This attempt may take so much longer, within the job's own deadline; returns the seconds left (None: no limit).

        A cancellation point: it raises JobStopped when the attempt is already being stopped.
        """
        self.stop_point()
        self._feed.extend(seconds(by, what="ctx.extend"))
        return self._feed.remaining()

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context that the job was enqueued with, for systems that are called."""
        return tracing.of(self.meta)

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Say how far it is. Cheap: only the last word is kept, and sent with the next heartbeat (1 s)."""
        for name, number in (("done", done), ("total", total)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, (int, float))):
                raise UsageError(f"ctx.progress: {name} is {type(number).__name__}; give a number")
        with self._lock:
            self._done, self._changed = done, True
            if total is not None:
                self._total = total
            if note is not None:
                self._note = str(note)[:NOTE_LIMIT]

    def track(
        self, iterable: Iterable[T], total: float | None = None, note: str | None = None
    ) -> Iterator[T]:
        """Iterate with progress; each step is a cancellation point that raises JobStopped."""
        if total is None and isinstance(iterable, Sized):
            total = len(iterable)
        self.progress(0, total, note)
        for done, item in enumerate(iterable):
            self.stop_point()
            yield item
            self.progress(done + 1)

    def stop_point(self) -> None:
        """Raise JobStopped if this job should end."""
        if self._feed.cancelled():
            raise JobStopped(self._feed.reason())

    def rate(
        self, scope: str, rate: float | None = None, per: float | str = "1s", burst: float | None = None
    ) -> Rate:
        """A rate that all hosts share; waiting for it ends when this job should. `ctx.rate("github").acquire()`."""
        return self._rate(scope, rate, per, burst).stopping(self.stop_point)

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """A psycopg connection to the app's database whose session ends with this job, however the job ends.

        `options` go to psycopg: `ctx.connect(autocommit=True, row_factory=dict_row)`. It is closed after the handler; a stop
        (cancel, deadline, drain, kill, crash) cancels its statement on the server.
        """
        return self._connections.connect(**options)

    async def aconnect(self, **options: Any) -> psycopg.AsyncConnection[Any]:
        """`connect` for `async def` handlers."""
        return await self._connections.aconnect(**options)

    def enqueue(self, *jobs: Prepared[Any]) -> None:
        """Enqueue these with the end of this job: they exist if and when it has succeeded, whatever dies in between.

        `ctx.enqueue(mail.prepare(7), report.using(delay="5m").prepare(7))`. A delay begins with the end of this job.
        """
        new = [_prepared(job) for job in jobs]
        with self._lock:
            all_of_them = [*(self._children or ()), *new]
            if len(all_of_them) > children.MOST or sum(map(children.size, all_of_them)) > children.CHARACTERS:
                raise UsageError(
                    f"ctx.enqueue: more than {children.MOST:,} jobs or 4MB with the end of one; none of these was enqueued; "
                    "use app.enqueue_many(...)"
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
        return None if self._metrics is None else self._metrics.take()

    def take_children(self) -> bytes | None:
        """For the worker: the JSON list of what was enqueued with the end of this job."""
        return None if self._children is None else children.encode(self._children)

    def take_progress(self) -> bytes | None:
        """For the worker: the JSON text of the progress if it changed since it was last taken."""
        with self._lock:
            if not self._changed:
                return None
            self._changed = False
            said = {"done": self._done, "total": self._total, "note": self._note}
        try:
            return encode(
                {key: value for key, value in said.items() if value is not None}, limit=4096, clean=True
            )
        except NotJson:  # done or total is NaN or huge: nothing to show, nothing to fail for
            return None

    def take_checkpoint(self) -> bytes | None:
        """For the worker: the JSON text of the checkpoint if it changed since it was last taken."""
        return self.checkpoint.take()

    def __repr__(self) -> str:
        return f"<Ctx #{self.job} {self.task} attempt {self.attempt}>"


def _prepared(job: Prepared[Any]) -> NewJob:
    if not isinstance(job, Prepared):
        raise UsageError(
            f"ctx.enqueue: {type(job).__name__} is no prepared job; nothing was enqueued; write ctx.enqueue(task.prepare())"
        )
    children.refuse(job.new)
    return job.new
