"""What prctl(2) offers: a signal when the parent dies, and orphans as children."""

from __future__ import annotations

import ctypes
import os
import signal
import threading

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def die_with_parent(signum: signal.Signals, parent: int) -> bool:
    """Ask for `signum` when the parent dies. False: it is already gone and the caller must leave.

    The kernel ties the request to the calling thread's life in fork order, so only the main thread may ask.
    """
    if threading.get_native_id() != os.getpid():
        raise RuntimeError("die_with_parent must be called in the main thread")
    _prctl(_PR_SET_PDEATHSIG, signum)
    return os.getppid() == parent


def inherit_orphans() -> None:
    """Become a child subreaper: descendants whose parent died become our children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
