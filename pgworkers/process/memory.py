"""Giving memory back to the kernel."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

_libc: Any = ctypes.CDLL(None)


def release() -> None:
    """What nobody holds any more: first what only holds itself, then what the C library keeps for later."""
    gc.collect()
    if hasattr(_libc, "malloc_trim"):  # not in every C library
        _libc.malloc_trim(0)
