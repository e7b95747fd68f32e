"""Single values of options: names, durations, sizes, counts, keys and times, checked and converted.

Each function takes what the user wrote and `what`, the option that it is the value of. It returns the value in the unit that
the rest of the package uses (seconds, bytes), or raises a UsageError that names the option and says what to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from pgworkers import bounds
from pgworkers.errors import UsageError
from pgworkers.payload import NotJson, encode
from pgworkers.units import parse_duration, parse_size

Duration = float | str | timedelta
MAX_INT4 = (1 << 31) - 1


def refuse_unknown_options(given: Mapping[str, Any], declared: type[Any], *, what: str) -> None:
    """Raise UsageError for an unknown option, with the one that was probably meant."""
    known = list(declared.__annotations__)
    for name in given:
        if name not in known:
            from difflib import get_close_matches

            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ";"
            raise UsageError(f"{what} has no option {name!r}{hint} It has {', '.join(known)}")


def read_name(value: Any, *, what: str, limit: int) -> str:
    """Check a name. Titles, logs and metrics show it: not empty, not too long, no control characters."""
    if not isinstance(value, str):
        raise UsageError(f"{what}: {value!r} is not a string")
    if not value.strip() or value != value.strip():
        raise UsageError(f"{what}: {value!r} is empty or has spaces around it")
    if not value.isprintable():
        raise UsageError(f"{what}: {value!r} holds control or unprintable characters")
    if len(value.encode()) > limit:
        raise UsageError(f"{what}: {value[:40]!r}… is too long: {len(value.encode())} bytes, at most {limit}")
    return value


def read_cli_name(value: Any, *, what: str, limit: int) -> str:
    """Check the name of a queue or a task. It must work on the command line, as in `pgworkers run -Q a,b:4`."""
    name = read_name(value, what=what, limit=limit)
    found = next((char for char in ",:" if char in name), "-" if name.startswith("-") else "")
    if found:
        where = "begins with" if found == "-" else "contains"
        raise UsageError(
            f"{what}: {name!r} {where} {found!r}, so that `-Q a,b:4` could not name it; use letters, digits, . _ / and -"
        )
    return name


def read_duration(value: Duration | None, *, what: str, positive: bool = True) -> float | None:
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if not isinstance(value, (int, float, str)):
        raise UsageError(f"{what}: {value!r} is not a duration; write 30s, 5m, 1h30m, seconds or a timedelta")
    found = parse_duration(value, what=what)
    if positive and found <= 0:
        raise UsageError(f"{what}: must be longer than 0")
    return found


def read_memory(value: int | str | None, *, what: str) -> int | None:
    if value is None:
        return None
    found = parse_size(value, what=what)
    if found < bounds.MIN_MEMORY_BYTES:
        raise UsageError(f"{what}: {value!r} is less than 1MB; write 512MB or 2GB")
    return found


def read_count(value: Any, *, what: str, minimum: int = 0, maximum: int = MAX_INT4) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{what}: {value!r} is not a whole number")
    if not minimum <= value <= maximum:
        raise UsageError(f"{what}: {value} is out of range ({minimum} to {maximum})")
    return value


def read_optional_count(value: int | None, what: str) -> int | None:
    return None if value is None else read_count(value, what=what, minimum=1)


def read_priority(value: Any, *, what: str) -> int:
    return read_count(value, what=what, minimum=bounds.MIN_PRIORITY, maximum=bounds.MAX_PRIORITY)


def read_retries(value: Any, *, what: str) -> int:
    """Return the number of attempts for this number of retries."""
    return read_count(value, what=what, maximum=bounds.MAX_ATTEMPTS_OR_CRASHES - 1) + 1


def read_key(value: str | None, *, what: str) -> str | None:
    """Check a unique, concurrency or idempotency key: any text that Postgres can store and index."""
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise UsageError(f"{what}: {value!r} is not a key; give a string that is not empty")
    try:
        encode(value, limit=1 << 20)
    except NotJson as exc:
        raise UsageError(f"{what}: {exc}; nothing was enqueued") from None
    if len(value.encode()) > bounds.MAX_KEY_BYTES:
        raise UsageError(
            f"{what}: {len(value.encode())} bytes, at most {bounds.MAX_KEY_BYTES}; hash it. Nothing was enqueued"
        )
    return value


def read_datetime(value: datetime | None, *, what: str) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise UsageError(f"{what}: {value!r} is not a datetime")
    if value.tzinfo is None or value.utcoffset() is None:
        raise UsageError(
            f"{what}: {value.isoformat()} has no time zone; use datetime.now(timezone.utc) or a ZoneInfo"
        )
    if not bounds.MIN_TIMESTAMP <= value < bounds.MAX_TIMESTAMP:
        raise UsageError(f"{what}: {value.isoformat()} does not lie between the years 1970 and 9999")
    return value
