"""Children: jobs that begin to exist in the statement that writes the end of another one, or never."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from pgworkers.errors import UsageError
from pgworkers.job.new import NewJob

#: Of one job: more would make its end a long statement. `app.enqueue_many` takes any number.
MOST = 1000
CHARACTERS = 4 << 20

_PLAIN = NewJob("")
#: What `pgworkers.bear` reads; the two texts are JSON themselves.
_NAMES = (
    "queue", "priority", "run_at", "delay", "max_attempts", "max_crashes", "timeout", "memory", "deadline", "expires",
    "concurrency_key",
)  # fmt: skip
_encode = msgspec.json.Encoder().encode


def refuse(new: NewJob) -> None:
    """UsageError for what must not come with an end: to wait for a lock, or to fail, would hold up other ends."""
    for name, why in (
        ("unique", "its unique key may be held by an open transaction"),
        ("idempotency_key", "its key may be held by an open transaction"),
        ("after", "the jobs it comes after may be gone by then"),
    ):
        if getattr(new, name) != getattr(_PLAIN, name):
            raise UsageError(
                f"ctx.enqueue: {new.task} with {name}= cannot be enqueued with the end of a job: {why}; nothing was "
                f"enqueued; use task.using({name}=...).enqueue(...)"
            )


def size(new: NewJob) -> int:
    """Characters, about."""
    return len(new.args_json) + len(new.meta_json or "") + 200


def encode(children: Iterable[NewJob]) -> bytes:
    """A JSON list, without what is left to the task."""
    return _encode([_spoken(new) for new in children])


def _spoken(new: NewJob) -> dict[str, Any]:
    said = {name: value for name in _NAMES if (value := getattr(new, name)) is not None}
    said |= {"task": new.task, "args": msgspec.Raw(new.args_json.encode())}
    if new.meta_json is not None:
        said["meta"] = msgspec.Raw(new.meta_json.encode())
    return said
