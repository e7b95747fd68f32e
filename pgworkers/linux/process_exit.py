"""The end of a command or a supervisor."""

from __future__ import annotations

import os
import sys
import threading
from typing import NoReturn


def exit_process(code: int) -> NoReturn:
    """Exit with this status, without waiting for threads of the user's app that never end.

    The interpreter waits for threads that are not daemons. If there is one, the output is flushed and the process ends at
    once, without the functions that are registered with `atexit`: they may wait for the same thread.
    """
    _flush_or_discard(sys.stdout, 1)
    _flush_or_discard(sys.stderr, 2)
    if all(thread is threading.main_thread() or thread.daemon for thread in threading.enumerate()):
        sys.exit(code)
    os._exit(code)


def _flush_or_discard(stream: object, fd: int) -> None:
    """Flush a stream. Output that cannot be written is dropped: the interpreter would change the exit status for it."""
    try:
        stream.flush()  # type: ignore[attr-defined]
    except Exception:  # closed, full, or whatever an app has put in its place
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, fd)
        if devnull != fd:
            os.close(devnull)
