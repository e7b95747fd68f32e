"""Durations and sizes as people write them: `1h30m` and `512MB`, read and printed."""

from __future__ import annotations

import re

from pgworkers.bounds import MAX_DURATION_SECONDS, MAX_MEMORY_BYTES
from pgworkers.errors import UsageError

_SECONDS_PER_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_BYTES_PER_UNIT = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_DURATION = re.compile(
    r"(?:\d++(?:\.\d++)?(?:ms|s|m|h|d|w) *+)++"
)  # ++: no backtracking, however long the text is
_SIZE_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?B)?", re.IGNORECASE)


def parse_duration(value: float | str, *, what: str = "duration") -> float:
    """Read `30s`, `5m`, `1h30m`, `250ms` or a number of seconds."""
    if isinstance(value, bool):
        raise UsageError(f"{what}: {value!r} is not a duration; write 30s, 5m, 1h30m or a number of seconds")
    if isinstance(value, (int, float)):
        result = float(value)
    else:
        text = value.strip()
        if _DURATION.fullmatch(text):
            result = sum(
                float(number) * _SECONDS_PER_UNIT[unit] for number, unit in _DURATION_PART.findall(text)
            )
        else:
            try:
                result = float(text)
            except ValueError:
                raise UsageError(
                    f"{what}: {value!r} is not a duration; write 30s, 5m, 1h30m or a number of seconds"
                ) from None
    if not 0 <= result <= MAX_DURATION_SECONDS:
        raise UsageError(f"{what}: {value!r} is out of range (0 to 100 years)")
    return result


def parse_size(value: int | str, *, what: str = "size") -> int:
    """Read `512MB`, `2GB` or a number of bytes. Units are powers of 1024."""
    if isinstance(value, int) and not isinstance(value, bool):
        result: float = value
    else:
        match = _SIZE_PATTERN.fullmatch(str(value).strip())
        if match is None:
            raise UsageError(f"{what}: {value!r} is not a size; write 512MB, 2GB or a number of bytes")
        unit = match[2].upper()
        result = float(match[1]) * _BYTES_PER_UNIT[unit + "B" if unit else ""]
    if not 0 <= result <= MAX_MEMORY_BYTES:
        raise UsageError(f"{what}: {value!r} is out of range")
    return int(result)


def format_duration(value: float) -> str:
    """Format a duration: 0.4s, 42s, 3m12s, 2h05m, 3d4h; without a zero part: 1m, 2h, 14d."""
    if value <= 0:
        return "0s"
    if value < 0.01:
        return f"{value * 1000:.1f}ms"
    if value < 10:
        return f"{value:.2f}".rstrip("0").rstrip(".") + "s"
    whole = round(value)
    if whole < 60:
        return f"{value:.1f}".rstrip("0").rstrip(".") + "s"
    if whole < 3600:
        return f"{whole // 60}m" + (f"{whole % 60:02d}s" if whole % 60 else "")
    if whole < 86400:
        return f"{whole // 3600}h" + (f"{whole % 3600 // 60:02d}m" if whole % 3600 // 60 else "")
    return f"{whole // 86400}d" + (f"{whole % 86400 // 3600}h" if whole % 86400 // 3600 else "")


def format_size(value: int) -> str:
    """Format a size: 812B, 64KB, 312MB, 1.5GB."""
    amount = float(value)
    for unit in ("B", "KB", "MB"):
        if amount < 1024:
            return f"{amount:.0f}{unit}"
        amount /= 1024
    return f"{amount:.1f}GB"
