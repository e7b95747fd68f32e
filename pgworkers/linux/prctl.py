"""What prctl(2) offers: a signal when the parent dies, and orphans as children."""

from __future__ import annotations

import ctypes
import os

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_call = ctypes.CDLL(None, use_errno=True).prctl
_call.argtypes = (ctypes.c_int, ctypes.c_ulong)  # the options used here read no other arguments


def _prctl(option: int, argument: int) -> None:
    if _call(option, argument) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def set_parent_death_signal(signum: int, parent: int) -> bool:
    """Ask for `signum` when the parent dies. False: it is already gone and the caller must leave.

    The setting belongs to the calling thread. The kernel sends the signal when the thread that forked this process ends.
    """
    _prctl(_PR_SET_PDEATHSIG, signum)
    return os.getppid() == parent


def become_subreaper() -> None:
    """Become a child subreaper: descendants whose parent died become our children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
