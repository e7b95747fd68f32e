"""What a handler keeps over its attempts."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import msgspec

from pgworkers.bounds import CHECKPOINT_BYTES
from pgworkers.errors import UsageError
from pgworkers.payload import NotJson, encode


class Checkpoint(MutableMapping[str, Any]):
    """A dictionary that survives retries, kills and deploys; values must be JSON.

    Assigning encodes at once: a wrong value raises in the handler, and later changes inside a value (a list
    that grows) are kept only when it is assigned again.
    """

    __slots__ = ("_changed", "_lock", "_texts", "_values")

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, Any] = dict(values or {})
        self._texts = {
            key: encode(value, limit=CHECKPOINT_BYTES, clean=True) for key, value in self._values.items()
        }
        self._changed = False

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise UsageError(f"checkpoint[{key!r}]: keys must be strings; nothing was kept")
        try:
            encode(key, limit=CHECKPOINT_BYTES)
            text = encode(value, limit=CHECKPOINT_BYTES)
        except NotJson as exc:
            raise UsageError(f"checkpoint[{key!r}]: {exc}; nothing was kept") from None
        with self._lock:
            others = sum(len(k) + len(t) for k, t in self._texts.items() if k != key)
            if others + len(key) + len(text) > CHECKPOINT_BYTES:
                raise UsageError(
                    f"checkpoint[{key!r}]: the checkpoint would be larger than 1MB; nothing was kept"
                )
            self._values[key], self._texts[key], self._changed = value, text, True

    def __delitem__(self, key: str) -> None:
        with self._lock:
            del self._values[key]
            del self._texts[key]
            self._changed = True

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._values))

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Checkpoint({self._values!r})"

    def take(self) -> bytes | None:
        """The JSON text if it changed since it was last taken."""
        with self._lock:
            if not self._changed:
                return None
            self._changed = False
            return msgspec.json.encode({key: msgspec.Raw(text) for key, text in self._texts.items()})
