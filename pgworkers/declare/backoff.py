"""How a task says how long to wait before its next attempt, as the data that decides it (`BackoffSpec`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pgworkers.clock import seconds
from pgworkers.errors import UsageError
from pgworkers.specs import BackoffSpec

Duration = float | str


@dataclass(frozen=True, slots=True)
class Exponential:
    """After attempt n wait `base` * `factor`^(n-1), at most `cap`, spread by ± `jitter` (0.1 is a tenth)."""

    base: Duration = 2.0
    factor: float = 2.0
    cap: Duration = 3600.0
    jitter: float = 0.1


Backoff = Exponential | Duration | Sequence[Duration] | Callable[[int], Duration] | None


def spec_of(backoff: Backoff, *, what: str) -> BackoffSpec:
    """None is exponential, `"30s"` fixed, `["1s", "10s"]` a list whose last value repeats, or a function."""
    match backoff:
        case None:
            return BackoffSpec()
        case Exponential():
            return _exponential(backoff, what)
        case str() | int() | float():
            return BackoffSpec(kind="fixed", base=seconds(backoff, what=what), jitter=0.0)
        case Sequence():
            if not backoff:
                raise UsageError(f"{what}: an empty list of delays; give at least one, or leave backoff out")
            return BackoffSpec(kind="list", delays=tuple(seconds(d, what=what) for d in backoff), jitter=0.0)
        case _ if callable(backoff):
            return BackoffSpec(kind="function")
    raise UsageError(
        f'{what}: {type(backoff).__name__} is no back-off; give "30s", ["1s", "10s"], Exponential(...) or a '
        "function from the attempt to seconds"
    )


def _exponential(curve: Exponential, what: str) -> BackoffSpec:
    numbers: tuple[Any, ...] = (curve.factor, curve.jitter)
    if not all(isinstance(n, (int, float)) and math.isfinite(n) for n in numbers):
        raise UsageError(f"{what}: factor and jitter must be numbers")
    if curve.factor < 1 or not 0 <= curve.jitter <= 1:
        raise UsageError(f"{what}: factor must be at least 1 and jitter between 0 and 1")
    return BackoffSpec(
        base=seconds(curve.base, what=f"{what} base"),
        factor=float(curve.factor),
        cap=seconds(curve.cap, what=f"{what} cap"),
        jitter=float(curve.jitter),
    )
