"""What `@app.schedule(...)` accepts, and the `ScheduleSpec` that it becomes: the leader enqueues jobs by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, TypedDict

import msgspec

from pgworkers import bounds
from pgworkers.bounds import UNIX_EPOCH
from pgworkers.errors import UsageError
from pgworkers.options.values import Duration, read_datetime, read_duration, read_name, read_priority
from pgworkers.payload import NotJson
from pgworkers.payload import encode as encode_json
from pgworkers.schedule.plan import MISSED_POLICIES, OVERLAP_POLICIES, Timing
from pgworkers.specs import ScheduleSpec, TaskSpec

DEFAULT_MISSED_WINDOW_SECONDS = 86400.0
MAX_SCHEDULE_ARGS_BYTES = 1 << 20

MissedPolicy = Literal["latest", "all", "skip"]
OverlapPolicy = Literal["allow", "skip", "replace"]
Scopes = Iterable[str] | Mapping[str, Mapping[str, Any]]
#: Returns arguments as the JSON object of a job. ArgumentError if they do not fit the task.
ArgumentEncoder = Callable[[Mapping[str, Any]], bytes]


class ScheduleOptions(TypedDict, total=False):
    """The keywords of `@app.schedule(...)`."""

    name: str | None  # name of the schedule; by default the task's
    every: Duration | None  # fixed interval, instead of a cron expression
    tz: str  # time zone of the cron expression
    args: Mapping[str, Any] | None  # arguments of the job
    jitter: Duration | None  # delay the job by up to this long; the same for every run of the same tick
    start: datetime | None  # no tick before this time; an interval counts from it
    end: datetime | None  # no tick at or after this time
    missed: MissedPolicy  # what to do about ticks that passed while no host was running
    missed_window: Duration  # how far back missed="all" goes
    overlap: OverlapPolicy  # what to do when the previous job has not ended yet
    reentrant: bool  # False: one attempt only; not run again when its host dies
    paused: bool  # start paused, until `pgworkers schedules resume`
    scope: str | None  # kind of scope, such as "tenant": the schedule runs once for each of its scopes
    scopes: Scopes | None  # names of the scopes, or a dict of names and their own arguments
    queue: str | None  # queue of the job; by default the task's, like the three options below
    priority: int | None  # higher runs first
    deadline: Duration | None  # longest time for the whole job, all attempts
    expires: Duration | None  # the job is dead if it has not started by then


def declare_schedule(
    task: Any, cron: str | None, options: Mapping[str, Any]
) -> tuple[str, Callable[[], ScheduleSpec]]:
    """Return the name of a schedule and a function that makes its spec. Wrong options are refused now.

    Annotations may name what the module defines later. Then the arguments are checked when the whole app is described.
    """

    def encode(args: Mapping[str, Any]) -> bytes:
        found: bytes = task.arguments.encode((), dict(args), limit=MAX_SCHEDULE_ARGS_BYTES)
        return found

    encode_now = encode if task.has_read_signature else _encode_unchecked
    spec = read_schedule_options(task.declared_spec, encode_now, cron, **options)
    return spec.name, lambda: read_schedule_options(task.declared_spec, encode, cron, **options)


def read_schedule_options(
    task: TaskSpec,
    encode: ArgumentEncoder,
    cron: str | None,
    *,
    name: str | None = None,
    every: Duration | None = None,
    tz: str = "UTC",
    args: Mapping[str, Any] | None = None,
    jitter: Duration | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    missed: MissedPolicy = "latest",
    missed_window: Duration = DEFAULT_MISSED_WINDOW_SECONDS,
    overlap: OverlapPolicy = "allow",
    reentrant: bool = True,
    paused: bool = False,
    scope: str | None = None,
    scopes: Scopes | None = None,
    queue: str | None = None,
    priority: int | None = None,
    deadline: Duration | None = None,
    expires: Duration | None = None,
) -> ScheduleSpec:
    """Check and convert the options. UsageError says what to write instead."""
    name = read_name(
        name if name is not None else task.name, what="schedule name", limit=bounds.MAX_NAME_BYTES
    )
    what = f"schedule {name}:"
    kind, own = _read_scopes(what, scope, scopes)
    base = _read_args(what, args)
    first, last = _read_whole_second(start, f"{what} start"), _read_whole_second(end, f"{what} end")
    if first is not None and last is not None and last <= first:
        raise UsageError(f"{what} end is not after start; no tick could ever fire")
    _check_choice(missed, MISSED_POLICIES, f"{what} missed")
    _check_choice(overlap, OVERLAP_POLICIES, f"{what} overlap")
    timing = Timing(
        cron=cron,
        every=read_duration(every, what=f"{what} every"),
        tz=tz,
        start=first,
        end=last,
        missed=missed,
        missed_window_seconds=read_duration(missed_window, what=f"{what} missed_window")
        or DEFAULT_MISSED_WINDOW_SECONDS,
    )
    _check_timing(what, timing)
    # The arguments of a scoped schedule are complete only together with those of the scope.
    whole = _encode_args(what, encode if kind == "" else _encode_unchecked, base)
    encoded = {one: _encode_args(what, encode, {**base, **more}) for one, more in own.items()}
    return ScheduleSpec(
        name=name,
        task=task.name,
        cron=None if cron is None else " ".join(cron.split()),
        every=timing.every,
        tz=tz,
        args=whole,
        jitter=read_duration(jitter, what=f"{what} jitter", positive=False) or 0.0,
        start=first,
        end=last,
        missed=missed,
        missed_window=timing.missed_window_seconds,
        overlap=overlap,
        reentrant=bool(reentrant),
        paused=bool(paused),
        scope_kind=kind,
        scopes=encoded,
        queue=queue,
        priority=None if priority is None else read_priority(priority, what=f"{what} priority"),
        deadline=read_duration(deadline, what=f"{what} deadline") or task.deadline,
        expires=read_duration(expires, what=f"{what} expires") or task.expires,
    )


def _check_timing(what: str, timing: Timing) -> None:
    if timing.cron is None and timing.every is None:
        raise UsageError(f'{what} say when: @app.schedule("0 3 * * *") or @app.schedule(every="5m")')
    if timing.cron is not None and timing.every is not None:
        raise UsageError(f"{what} a cron expression or every=, not both")
    if timing.every is not None and timing.tz != "UTC":
        raise UsageError(f"{what} every= counts elapsed time and has no time zone; leave tz out")
    try:
        timing.calendar()
    except UsageError as exc:
        raise UsageError(f"{what} {exc}") from None
    if timing.start is not None and timing.end is not None and timing.next_after(UNIX_EPOCH) is None:
        raise UsageError(f"{what} no tick lies between start and end")


def _read_scopes(what: str, kind: str | None, scopes: Scopes | None) -> tuple[str, dict[str, dict[str, Any]]]:
    if kind is None:
        if scopes is not None:
            raise UsageError(f'{what} scopes= without scope=: say what they are, e.g. scope="tenant"')
        return "", {}
    kind = read_name(kind, what=f"{what} scope", limit=bounds.MAX_NAME_BYTES)
    if isinstance(scopes, str):
        raise UsageError(f'{what} scopes must be a list of names or a dict: scopes=["{scopes}"]')
    given = scopes if isinstance(scopes, Mapping) else {one: {} for one in scopes or ()}
    return kind, {
        read_name(one, what=f"{what} {kind}", limit=bounds.MAX_SCOPE_BYTES): _read_args(
            f"{what} {kind} {one}", more
        )
        for one, more in given.items()
    }


def _encode_unchecked(args: Mapping[str, Any]) -> bytes:
    """Encode arguments that cannot be compared with the task yet."""
    try:
        return encode_json(dict(args), limit=MAX_SCHEDULE_ARGS_BYTES)
    except NotJson as exc:
        raise UsageError(f"args: {exc}") from None


def _read_args(what: str, args: Mapping[str, Any] | None) -> dict[str, Any]:
    if args is not None and not isinstance(args, Mapping):
        raise UsageError(f"{what} args must be a dict by parameter name, not {type(args).__name__}")
    return dict(args or {})


def _encode_args(what: str, encode: ArgumentEncoder, args: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = msgspec.json.decode(encode(args))
    except UsageError as exc:
        raise UsageError(f"{what} {str(exc).replace('; nothing was enqueued', '')}") from None
    return found


def _read_whole_second(value: datetime | None, what: str) -> datetime | None:
    """Cut a time to the second, as ticks are."""
    found = read_datetime(value, what=what)
    return None if found is None else found.replace(microsecond=0)


def _check_choice(value: Any, known: tuple[str, ...], what: str) -> None:
    if value not in known:
        raise UsageError(f"{what}={value!r}: use {', '.join(known)}")
