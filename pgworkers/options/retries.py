"""What `backoff=` and `retry_on=` of a task accept: how long to wait before the next attempt, and after which verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pgworkers.errors import UsageError
from pgworkers.job.model import Verdict
from pgworkers.options.values import Duration, read_duration
from pgworkers.specs import BackoffKind, BackoffSpec
from pgworkers.units import parse_duration

Delay = float | str


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """After attempt n wait `base` * `factor`^(n-1), at most `cap`, spread by ± `jitter` (0.1 is a tenth)."""

    base: Delay = 2.0
    factor: float = 2.0
    cap: Delay = 3600.0
    jitter: float = 0.1


Backoff = ExponentialBackoff | Delay | Sequence[Delay] | Callable[[int], Delay] | None


def read_backoff(backoff: Backoff, *, what: str) -> BackoffSpec:
    """Read `backoff=`: None is exponential, `"30s"` fixed, `["1s", "10s"]` a list whose last value repeats."""
    match backoff:
        case None:
            return BackoffSpec()
        case ExponentialBackoff():
            return _read_exponential(backoff, what)
        case str() | int() | float():
            return BackoffSpec(kind=BackoffKind.FIXED, base=parse_duration(backoff, what=what), jitter=0.0)
        case Sequence():
            if not backoff:
                raise UsageError(f"{what}: an empty list of delays; give at least one, or leave backoff out")
            return BackoffSpec(
                kind=BackoffKind.LIST, delays=tuple(parse_duration(d, what=what) for d in backoff), jitter=0.0
            )
        case _ if callable(backoff):
            return BackoffSpec(kind=BackoffKind.FUNCTION)
    raise UsageError(
        f'{what}: {type(backoff).__name__} is not a back-off; give "30s", ["1s", "10s"], ExponentialBackoff(...) or a '
        "function from the attempt to seconds"
    )


def _read_exponential(curve: ExponentialBackoff, what: str) -> BackoffSpec:
    numbers: tuple[Any, ...] = (curve.factor, curve.jitter)
    if not all(isinstance(n, (int, float)) and math.isfinite(n) for n in numbers):
        raise UsageError(f"{what}: factor and jitter must be numbers")
    if curve.factor < 1 or not 0 <= curve.jitter <= 1:
        raise UsageError(f"{what}: factor must be at least 1 and jitter between 0 and 1")
    return BackoffSpec(
        base=parse_duration(curve.base, what=f"{what} base"),
        factor=float(curve.factor),
        cap=parse_duration(curve.cap, what=f"{what} cap"),
        jitter=float(curve.jitter),
    )


#: Verdicts that `retry_on=` can name. The others cost no attempt, or end the job anyway.
CONFIGURABLE_VERDICTS = (
    Verdict.ERROR,
    Verdict.TIMEOUT,
    Verdict.MEMORY_LIMIT,
    Verdict.OOM,
    Verdict.CRASH,
    Verdict.EXIT,
    Verdict.HOST_LOST,
)


def read_retry_on(value: Mapping[str, bool | Duration] | None, *, what: str) -> dict[str, bool | float]:
    """Read `retry_on=`. By verdict: False ends the job, a duration delays the next attempt, True uses the back-off."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f'{what}: {value!r} is not a mapping; write {{"timeout": False, "oom": "10m"}}')
    found: dict[str, bool | float] = {}
    for verdict, policy in value.items():
        if verdict not in CONFIGURABLE_VERDICTS:
            raise UsageError(
                f"{what}: {verdict!r}; the verdicts it can name are {', '.join(CONFIGURABLE_VERDICTS)}"
            )
        found[str(verdict)] = (
            policy if isinstance(policy, bool) else _read_delay(policy, f"{what}[{verdict!r}]")
        )
    return found


def _read_delay(policy: Any, what: str) -> float:
    delay = read_duration(policy, what=what, positive=False)
    if delay is None:
        raise UsageError(f"{what}: None; write True, False or a duration")
    return delay
