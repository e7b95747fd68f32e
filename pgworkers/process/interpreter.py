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
from typing import NoReturn

#: New objects between two looks for cycles, where cycles are rare.
YOUNG = 20_000
_USUAL = gc.get_threshold()


def begin() -> None:
    """Before the imports."""
    gc.set_threshold(YOUNG, *_USUAL[1:])


def settle() -> None:
    """After the imports of somebody else's code, which then finds what it is used to, unless it said otherwise itself."""
    if gc.get_threshold() == (YOUNG, *_USUAL[1:]):
        gc.set_threshold(*_USUAL)


def end(code: int) -> NoReturn:
    """Do what was registered for the exit, flush, and leave the rest to the kernel. Threads that never end are not waited
    for (then nothing that may wait for them is done either). Who traces or profiles the process gets an ordinary exit."""
    if sys.gettrace() or sys.getprofile():
        sys.exit(code)
    import threading  # not above: a supervisor imports it when it is ready to (see supervisor/hooks)

    if all(thread is threading.main_thread() or thread.daemon for thread in threading.enumerate()):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, full, or whatever an app has put in its place
            stream.flush()
    os._exit(code)
