"""A task: a function that can be called, and enqueued.

`Task[P, R]` is generic over the parameters that `enqueue` takes and over the result of the job. The subclasses differ in
the plain call. `CtxTask` takes a context first and replaces None by one for use outside a worker. A call of an `async def`
handler returns a coroutine (`CallR`), while its job still results in `R`.

The overloads of `TaskDecorator` declare for type checkers which parameters `enqueue` takes. Their order matters. The result
of an async handler is what it awaits to. A first parameter `Ctx` is not passed to `enqueue`. A first parameter that accepts
anything (`Any`, `object`) would also fit the overloads for `Ctx`, so it is matched before them and left unchecked.

An enqueue goes on in client/client.py, then in job/enqueue.py.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cached_property, update_wrapper
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    overload,
)

import msgspec

from pgworkers import payload, result_store
from pgworkers.context import Ctx
from pgworkers.errors import InvalidResult, ResultError, UsageError
from pgworkers.handles import Job
from pgworkers.job.model import NewJob, PreparedJob
from pgworkers.observe import tracing
from pgworkers.options.arguments import Arguments, ParameterCodec, read_result_codec
from pgworkers.options.enqueue import (
    CheckedEnqueueOptions,
    EnqueueOptions,
    read_enqueue_options,
    refuse_missing_connection,
)
from pgworkers.options.retries import RETRY_EVERY_EXCEPTION, ExceptionPolicy
from pgworkers.options.values import (
    refuse_unknown_options,
)
from pgworkers.secret_arguments import SecretCipher
from pgworkers.specs import TaskSpec
from pgworkers.type_codecs import BUILTIN_TYPES, TypeCodecs
from pgworkers.units import parse_duration

if TYPE_CHECKING:
    from pgworkers.client.client import Client
    from pgworkers.job.enqueue import Enqueued
    from pgworkers.postgres.steps import Steps

P = ParamSpec("P")
R = TypeVar("R")
CallR = TypeVar("CallR")

_log = logging.getLogger("pgworkers.task")
DEFAULT_ENQUEUE_OPTIONS = CheckedEnqueueOptions()


class Task(Generic[P, R]):
    """A function that can be called and enqueued. `@app.task` makes one. `task.name` is its name, `task.queue` its queue."""

    def __init__(
        self,
        fn: Callable[..., Any],
        spec: TaskSpec,
        *,
        client: Client,
        resolve_queue: Callable[[str | None, str], str],
        backoff: Callable[[int], float | str] | None = None,
        exception_policy: ExceptionPolicy = RETRY_EVERY_EXCEPTION,
        local_names: Mapping[str, Any] | None = None,
        surround: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
        types: TypeCodecs = BUILTIN_TYPES,
        cipher: SecretCipher | None = None,
    ) -> None:
        update_wrapper(self, fn)
        self.function = fn
        self._handler = fn if surround is None else surround(fn)  # what a worker calls
        self.name = spec.name
        self.is_async = inspect.iscoroutinefunction(inspect.unwrap(fn))
        self._spec = spec
        self._client = client
        self._resolve_queue = resolve_queue
        self._backoff = backoff
        self.exception_policy = exception_policy
        self._local_names = dict(local_names or {})
        self._types = types
        self._cipher = cipher
        self._arguments: Arguments | None = None

    # What a user's code calls.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function in this process, without a job, a worker or a database.

        A task that takes a `Ctx` gets it first: `render(None, 7)` makes one, `render(Ctx.for_test(), 7)` passes yours.
        """
        return self.function(*args, **kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Insert one job and return its handle. ArgumentError, and no job, if the arguments do not fit."""
        return self._client.run_steps(self._enqueue_steps(DEFAULT_ENQUEUE_OPTIONS, args, kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """`enqueue` for asyncio."""
        return await self._client.arun_steps(self._enqueue_steps(DEFAULT_ENQUEUE_OPTIONS, args, kwargs))

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> PreparedJob[R]:
        """Check the arguments now and insert the job later, with `app.enqueue_many`, `app.batch` or `ctx.enqueue`."""
        return PreparedJob(self._new_job(DEFAULT_ENQUEUE_OPTIONS, args, kwargs))

    def using(self, **options: Unpack[EnqueueOptions]) -> BoundTask[P, R]:
        """Return the task with options for one enqueue. The result also has `enqueue`, `aenqueue` and `prepare`.

        `render.using(delay="5m", unique="report:7").enqueue(7)`
        """
        refuse_unknown_options(options, EnqueueOptions, what="using()")
        refuse_missing_connection(options)
        return BoundTask(self, read_enqueue_options(**options))

    # What the worker calls.

    @property
    def arguments(self) -> Arguments:
        """The parameters of the function. Reads its signature if that was not possible when it was declared."""
        if self._arguments is None:
            try:
                self._arguments = self._read_arguments()
            except NameError as exc:
                raise UsageError(
                    f"task {self.name}: an annotation cannot be resolved: {exc}; "
                    "import it at run time, not under TYPE_CHECKING"
                ) from None
        return self._arguments

    def run_handler(self, ctx: Ctx | None, args_json: bytes) -> Any:
        """Run the handler with stored arguments. Returns a coroutine if it is `async def`."""
        arguments = self.arguments
        args, kwargs = arguments.decode(args_json)
        if arguments.context_parameter:
            return self._handler(ctx if ctx is not None else Ctx.for_test(), *args, **kwargs)
        return self._handler(*args, **kwargs)

    def encode_result(
        self,
        value: Any,
        limit: int,
        *,
        store_limit: int = 0,
        store: Callable[[bytes], bytes] | None = None,
    ) -> bytes:
        """Return a result as JSON. NUL and lone surrogates become U+FFFD.

        A result above the limit is given to `store`, if there is one, and its reference is returned. InvalidResult if it
        holds NaN, is too large, cannot be written to the store, or is not JSON.
        """
        if value is None:
            return b"null"
        limit = self._spec.result_limit or limit
        try:
            value = self._result_codec.dump(value)
            most = limit if store is None else max(limit, store_limit)
            data = payload.encode(value, limit=most, clean=True, types=self._types)
            result_store.check_not_a_reference(data)
        except payload.NotJson as exc:
            spot = f"result.{exc.path}".replace(".[", "[") if exc.path else "the result"
            hint = "; return where it was written, or raise result_limit" if "more than" in exc.reason else ""
            if hint and store is None:
                hint += ", or set result_store"
            raise InvalidResult(f"{self.name}: {spot} {exc.reason}{hint}") from None
        except ValueError as exc:
            raise InvalidResult(f"{self.name}: the result {exc}") from None
        if store is None or len(data) <= limit:
            return data
        try:
            return store(data)
        except Exception as exc:  # what a library for an object store raises is not known
            raise InvalidResult(
                f"{self.name}: the result of {len(data):,} bytes could not be written to result_store: "
                f"{type(exc).__name__}: {exc}"
            ) from exc

    def decode_result(self, text: bytes) -> R:
        """Return a stored result as the return annotation describes it."""
        try:
            return self._result_codec.load(text)  # type: ignore[no-any-return]
        except Exception as exc:  # a dataclass's own __post_init__ may raise anything
            raise ResultError(
                f"{self.name}: the kept result does not fit the return annotation: {exc}"
            ) from None

    def backoff_delay(self, attempt: int, exc: BaseException | None = None) -> float | None:
        """Call the task's own back-off function. None: it has none, or the function failed, which is logged."""
        if self._backoff is None:
            return None
        try:
            return parse_duration(self._backoff(attempt), what=f"task {self.name} backoff({attempt})")
        except Exception:
            _log.exception("task %s: backoff(%d) failed; the exponential curve is used", self.name, attempt)
            return None

    # What the app calls.

    @property
    def queue(self) -> str:
        return self._resolve_queue(self._spec.queue or None, self.name)

    @property
    def declared_spec(self) -> TaskSpec:
        """The spec as it was declared. Its queue may be empty."""
        return self._spec

    def to_spec(self) -> TaskSpec:
        """Return the task as data for the master. UsageError if something about it cannot work."""
        return msgspec.structs.replace(
            self._spec,
            queue=self.queue,
            signature=self.arguments.signature_text,
            secret=self.arguments.secret,
        )

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of what is stored: `{"arguments": ..., "result": ...}`."""
        from pgworkers.json_schema import result_schema, task_arguments_schema

        arguments = self.arguments
        return {
            "arguments": task_arguments_schema(arguments, self._spec.doc),
            "result": result_schema(self.name, self._result_codec, arguments),
        }

    def try_read_signature(self) -> None:
        """Check the signature now, unless an annotation names something that is defined later."""
        try:
            self._arguments = self._read_arguments()
        except NameError:
            pass

    def _read_arguments(self) -> Arguments:
        return Arguments.from_function(
            self.name,
            self.function,
            self._local_names,
            types=self._types,
            secret=self._spec.secret,
            cipher=self._cipher,
        )

    @property
    def has_read_signature(self) -> bool:
        return self._arguments is not None

    def build_codecs(self) -> None:
        """Build the decoders now instead of in the first job. If that fails, the first job reports the error."""
        try:
            self.arguments.build_decoders()
            _ = self._result_codec
        except Exception:
            pass

    def location(self) -> str:
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(self.function)

    # A task is pickled as its name, like the function it wraps.
    def __reduce__(self) -> str:
        return str(self.function.__qualname__)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    @cached_property
    def _result_codec(self) -> ParameterCodec:
        return read_result_codec(self.arguments.returns, self._types)

    def _new_job(
        self, options: CheckedEnqueueOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> NewJob:
        text = self.arguments.encode(args, kwargs, limit=self._client.database.payload_limit)
        spec = self._spec
        queue = self._resolve_queue(options.queue or spec.queue or None, self.name)
        if options is DEFAULT_ENQUEUE_OPTIONS:  # the common case, and one for each row of a bulk enqueue
            return NewJob(
                task=self.name,
                args_json=text.decode(),
                queue=queue,
                priority=spec.priority,
                max_attempts=spec.max_attempts,
                max_crashes=spec.max_crashes,
                deadline=spec.deadline,
                expires=spec.expires,
                meta_json=tracing.with_current_span(None),
            )
        return NewJob(
            task=self.name,
            args_json=text.decode(),
            queue=queue,
            priority=spec.priority if options.priority is None else options.priority,
            run_at=options.at,
            delay=options.delay,
            unique_key=options.unique,
            on_conflict=options.on_conflict,
            max_attempts=options.max_attempts or spec.max_attempts,
            max_crashes=spec.max_crashes,
            timeout=options.timeout,
            memory=options.memory,
            deadline=spec.deadline if options.deadline is None else options.deadline,
            expires=spec.expires if options.expires is None else options.expires,
            concurrency_key=options.concurrency_key,
            meta_json=tracing.with_current_span(options.meta_json),
            after=options.after,
            on_failed=options.on_failed,
            idempotency_key=options.idempotency_key,
            idempotency_window=options.idempotency_window,
        )

    def _enqueue_steps(
        self, options: CheckedEnqueueOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Steps[Job[R]]:
        if not tracing.is_enabled():
            job = self._new_job(options, args, kwargs)
            return self._handle((yield from self._client.enqueue_steps(job, options.conn)))
        with tracing.enqueue_span(self.name) as span:
            job = self._new_job(options, args, kwargs)
            enqueued = yield from self._client.enqueue_steps(job, options.conn)
            span.set_job(enqueued.id, job.queue, enqueued.is_new)
        return self._handle(enqueued)

    def _handle(self, made: Enqueued) -> Job[R]:
        return Job(made.id, self._client.current, decode=self.decode_result, is_new=made.is_new)


class PlainTask(Task[P, R], Generic[P, R, CallR]):
    """A task without a context."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> CallR:
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]


class CtxTask(Task[P, R], Generic[P, R, CallR]):
    """A task whose handler takes a context first."""

    def __call__(self, ctx: Ctx | None, /, *args: P.args, **kwargs: P.kwargs) -> CallR:
        return self.function(Ctx.for_test() if ctx is None else ctx, *args, **kwargs)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class BoundTask(Generic[P, R]):
    """A task with options for one enqueue. `task.using(...)` returns it."""

    task: Task[P, R]
    options: CheckedEnqueueOptions

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Insert one job with these options and return its handle."""
        return self.task._client.run_steps(self.task._enqueue_steps(self.options, args, kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """`enqueue` for asyncio."""
        return await self.task._client.arun_steps(self.task._enqueue_steps(self.options, args, kwargs))

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> PreparedJob[R]:
        """Check the arguments now and insert the job later."""
        if self.options.conn is not None:
            raise UsageError(
                "using(conn=...).prepare(): give the connection to app.enqueue_many(..., conn=conn) instead"
            )
        return PreparedJob(self.task._new_job(self.options, args, kwargs))


class AnyFirstParameter:
    """A type that only a parameter of type Any or object accepts. It has no instances."""


class TaskDecorator(Protocol):
    """The type of `@app.task(...)`: a decorator that makes a task of a function."""

    @overload
    def __call__(
        self, fn: Callable[Concatenate[AnyFirstParameter, P], Coroutine[Any, Any, R]], /
    ) -> PlainTask[..., R, Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(self, fn: Callable[Concatenate[AnyFirstParameter, P], R], /) -> PlainTask[..., R, R]: ...

    @overload
    def __call__(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[Concatenate[Ctx, P], Coroutine[Any, Any, R]], /
    ) -> CtxTask[P, R, Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(self, fn: Callable[Concatenate[Ctx, P], R], /) -> CtxTask[P, R, R]: ...

    @overload
    def __call__(
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> PlainTask[P, R, Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(self, fn: Callable[P, R], /) -> PlainTask[P, R, R]: ...

    def __call__(self, fn: Any, /) -> Any: ...
