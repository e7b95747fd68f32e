"""What a task accepts about its retries: how long to wait, after which verdicts, and after which exceptions.

`retry_on=` and `discard_on=` name exception classes. They stay in the worker, because the master does not know the classes
of the app. The rest is data that the master gets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pgworkers.errors import ControlException, UsageError
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
    cap: Delay = 10800.0
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


#: Verdicts that `retry_verdicts=` can name. The others cost no attempt, or end the job anyway.
CONFIGURABLE_VERDICTS = (
    Verdict.ERROR,
    Verdict.TIMEOUT,
    Verdict.MEMORY_LIMIT,
    Verdict.OOM,
    Verdict.CRASH,
    Verdict.EXIT,
    Verdict.HOST_LOST,
)


def read_retry_verdicts(value: Mapping[str, bool | Duration] | None, *, what: str) -> dict[str, bool | float]:
    """Read `retry_verdicts=`. By verdict: False ends the job, a duration delays the next attempt, True uses the back-off."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(
            f'{what}: {value!r} is not a mapping; write {{"timeout": False, "oom": "10m"}}. '
            "Exception classes are named by retry_on= and discard_on="
        )
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


ExceptionClasses = type[Exception] | Sequence[type[Exception]] | None


class ExceptionDecision(Enum):
    """What the options of a task say about an exception that its handler raised."""

    RETRY = "retry"  #: another attempt, while there are attempts left
    DISCARD = "discard"  #: `discard_on=` names it: the job is given up
    FAIL = "fail"  #: `retry_on=` names others: the job has failed for good


@dataclass(frozen=True, slots=True)
class ExceptionPolicy:
    """`retry_on=` and `discard_on=` of a task. Without either, every exception is retried."""

    retry_on: tuple[type[Exception], ...] | None = None
    discard_on: tuple[type[Exception], ...] = ()

    def decide(self, error: BaseException) -> ExceptionDecision:
        """Return what an exception means for its job.

        If both options name a class of it, the nearer one in its inheritance counts. A group is discarded if any of its
        exceptions is, and retried only if all of them are.
        """
        if isinstance(error, BaseExceptionGroup) and not self._names(type(error)):
            found = {self.decide(inner) for inner in error.exceptions}
            for decision in (ExceptionDecision.DISCARD, ExceptionDecision.FAIL):
                if decision in found:
                    return decision
            return ExceptionDecision.RETRY
        for kind in type(error).__mro__:
            if kind in self.discard_on:
                return ExceptionDecision.DISCARD
            if self.retry_on is not None and kind in self.retry_on:
                return ExceptionDecision.RETRY
        return ExceptionDecision.RETRY if self.retry_on is None else ExceptionDecision.FAIL

    def _names(self, kind: type[BaseException]) -> bool:
        named = (*self.discard_on, *(self.retry_on or ()))
        return any(issubclass(one, BaseExceptionGroup) and issubclass(kind, one) for one in named)


RETRY_EVERY_EXCEPTION = ExceptionPolicy()


def read_exception_policy(
    retry_on: ExceptionClasses, discard_on: ExceptionClasses, *, what: str
) -> ExceptionPolicy:
    """Read `retry_on=` and `discard_on=`: an exception class, or several."""
    retry = None if retry_on is None else _read_exception_classes(retry_on, f"{what} retry_on")
    discard = () if discard_on is None else _read_exception_classes(discard_on, f"{what} discard_on")
    both = next((kind for kind in discard if retry is not None and kind in retry), None)
    if both is not None:
        raise UsageError(f"{what} {both.__name__} is in retry_on and in discard_on; keep it in one of them")
    return ExceptionPolicy(retry, discard)


def _read_exception_classes(value: Any, what: str) -> tuple[type[Exception], ...]:
    if isinstance(value, Mapping):
        raise UsageError(f"{what}: a mapping; what follows each verdict is set with retry_verdicts=")
    found = (value,) if isinstance(value, type) else value
    if isinstance(found, str) or not isinstance(found, (Sequence, set, frozenset)):
        raise UsageError(
            f"{what}: {value!r} is not an exception class; write (ConnectionError, TimeoutError)"
        )
    for kind in found:
        if not isinstance(kind, type) or not issubclass(kind, (Exception, BaseExceptionGroup)):
            raise UsageError(f"{what}: {kind!r} is not a subclass of Exception")
        if issubclass(kind, ControlException):
            raise UsageError(
                f"{what}: {kind.__name__} decides about its attempt by itself; it cannot be named here"
            )
    return tuple(found)
