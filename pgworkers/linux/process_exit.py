"""How an interpreter of ours begins and ends: commands and supervisors are started by the thousand.

Importing makes a hundred thousand objects that stay. Python looks through them for cycles again and again while they come,
and once more when it takes everything apart at the end, object by object: a quarter of the CPU of a command that asks the
database something.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import threading
from typing import Any, NoReturn

#: New objects between two looks for cycles, where cycles are rare.
RAISED_GC_THRESHOLD = 20_011  # a number that nobody else would take
_DEFAULT_GC_THRESHOLD = gc.get_threshold()
_has_foreign_code = False


def raise_gc_threshold() -> None:
    """Before the imports."""
    gc.set_threshold(RAISED_GC_THRESHOLD, *_DEFAULT_GC_THRESHOLD[1:])


def restore_gc_threshold() -> None:
    """After the imports of somebody else's code, which then finds what it is used to, unless it said otherwise itself."""
    if gc.get_threshold() == (RAISED_GC_THRESHOLD, *_DEFAULT_GC_THRESHOLD[1:]):
        gc.set_threshold(*_DEFAULT_GC_THRESHOLD)


def note_foreign_code() -> None:
    """Somebody else's code is about to be imported here."""
    global _has_foreign_code
    _has_foreign_code = True


def exit_process(code: int) -> NoReturn:
    """Do what was registered for the exit, flush, and leave the rest to the kernel. Threads that never end are not waited
    for, nor is anything done that may wait for them. What guests have open is theirs to find closed, and who traces or
    profiles the process has something to say at its end: they get an ordinary exit."""
    if all(thread is threading.main_thread() or thread.daemon for thread in threading.enumerate()):
        if _has_foreign_code or _is_traced():
            sys.exit(code)
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, full, or whatever an app has put in its place
            stream.flush()
    os._exit(code)


def _is_traced() -> bool:
    monitoring: Any = getattr(sys, "monitoring", None)  # from Python 3.12 on; six tools may use it
    tools = monitoring is not None and any(monitoring.get_tool(number) for number in range(6))
    return bool(sys.gettrace() or sys.getprofile() or tools)
