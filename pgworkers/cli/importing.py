"""The app, imported in the command's own process, as enqueueing needs it: its types check the arguments.

Not in a child first, as `run` does: that would import it twice for each enqueue. So an import that takes its time says so
and is interrupted after the setting `boot`, and one that ends the process by a signal leaves its Python line on stderr.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from pgworkers.app import App
from pgworkers.cli.invocation import Invocation
from pgworkers.cli.output import note
from pgworkers.clock import show_seconds
from pgworkers.errors import AppNotLoaded
from pgworkers.loading import load

SLOW = 2.0  # an import that takes longer is announced


class _Late(BaseException):
    """Not an Exception: an app that catches those while it is imported must not go on."""


def imported(said: Invocation, config: str, patience: float) -> App:
    try:
        with redirect_stdout(sys.stderr), _dying_aloud(), _bounded(said, config, patience):
            return load(config)  # what an app prints while it is imported is not our data
    except _Late:
        raise AppNotLoaded(
            f"importing {config} took longer than {show_seconds(patience)}; nothing was enqueued. "
            "Move slow work to @app.on_worker_start, raise the setting `boot`, or enqueue by name with --no-app"
        ) from None


@contextmanager
def _dying_aloud() -> Iterator[None]:
    """Where it was, if a signal ends it."""
    if faulthandler.is_enabled() or sys.__stderr__ is None:
        yield
        return
    faulthandler.enable(file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.disable()


@contextmanager
def _bounded(said: Invocation, config: str, patience: float) -> Iterator[None]:
    """By the alarm clock and not by a thread: an app may look whether there are any. One that sets it is on its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first = min(SLOW, patience)
    told = False

    def rings(*_: Any) -> None:
        nonlocal told
        if told or patience <= SLOW:
            raise _Late
        told = True
        note(said, f"importing {config} …")
        signal.setitimer(signal.ITIMER_REAL, patience - first)

    before = signal.signal(signal.SIGALRM, rings)
    signal.setitimer(signal.ITIMER_REAL, first)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
