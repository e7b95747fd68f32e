"""`retry_on=`: what a task says about retries by verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pgworkers.declare.options import Duration, read_duration
from pgworkers.errors import UsageError
from pgworkers.job.state import Verdict

#: Verdicts after which a task may say how it goes on. The others cost nothing, or end the job anyway.
DECIDABLE = (
    Verdict.ERROR,
    Verdict.TIMEOUT,
    Verdict.MEMORY_LIMIT,
    Verdict.OOM,
    Verdict.CRASH,
    Verdict.EXIT,
    Verdict.HOST_LOST,
)


def read_retry_on(value: Mapping[str, bool | Duration] | None, *, what: str) -> dict[str, bool | float]:
    """By verdict: False is the end of the job, a duration the delay before the next attempt, True as ever."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f'{what}: {value!r} is not a mapping; write {{"timeout": False, "oom": "10m"}}')
    found: dict[str, bool | float] = {}
    for verdict, policy in value.items():
        if verdict not in DECIDABLE:
            raise UsageError(f"{what}: {verdict!r}; the verdicts it can speak of are {', '.join(DECIDABLE)}")
        found[str(verdict)] = policy if isinstance(policy, bool) else _delay(policy, f"{what}[{verdict!r}]")
    return found


def _delay(policy: Any, what: str) -> float:
    delay = read_duration(policy, what=what, positive=False)
    if delay is None:
        raise UsageError(f"{what}: None; write True, False or a duration")
    return delay
