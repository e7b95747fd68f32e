"""Importing the app once, so that every worker has it for the price of a fork."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pgworkers.app import App
from pgworkers.clock import show_seconds
from pgworkers.errors import AppNotLoaded
from pgworkers.loading import load
from pgworkers.observe import records
from pgworkers.process import interpreter, limits, pools
from pgworkers.settings import Settings
from pgworkers.supervisor.ask import starts_threads
from pgworkers.supervisor.messages import Boot, Booted, BootFailed
from pgworkers.supervisor.scrub import scrub
from pgworkers.worker.birth import dress_streams, empty_stdin
from pgworkers.worker.rehearsal import rehearse

#: How the name of a thread begins that Python does not know.
NATIVE = "native thread"


@dataclass(slots=True)
class Loaded:
    app: App
    settings: Settings
    fact: Booted


class _TookTooLong(BaseException):
    """A BaseException, so that a module's own `except Exception` does not swallow it."""


def settings_of(boot: Boot) -> Settings:
    """The master has parsed and checked them; JSON has kept the numbers."""
    return Settings(**boot.settings)  # type: ignore[arg-type]


def load_app(boot: Boot, parent: int) -> Loaded | BootFailed:
    """Import the app and the queue's preload modules, and see that a fork is safe."""
    settings = settings_of(boot)
    started = time.monotonic()
    records.know()
    limits.set_threads(boot.queue.threads)
    limits.set_nice(boot.queue.nice)
    _check_cores(boot)
    try:
        with _Alarm(settings.boot):
            app = load(boot.config)
            for name in boot.queue.preload:
                importlib.import_module(name)
            app.bind(settings.dsn, settings)  # here and not in each worker: what it makes is shared
            app.client.is_single = True  # a worker runs one handler at a time
            empty_stdin()
            dress_streams()
            if not app.start_hooks:
                records.dress(settings.log, settings.log_level)
            for task in app.tasks.values():
                task.warm()
            if any(task.is_async for task in app.tasks.values()):
                importlib.import_module("asyncio")  # once for all workers; without such tasks for none
    except _TookTooLong as error:
        return BootFailed(
            f"importing {boot.config} took longer than {show_seconds(settings.boot)}; no worker was started. "
            "Move slow work to @app.on_worker_start, or raise the setting `boot`",
            scrub("".join(traceback.format_exception(error))),
        )
    except AppNotLoaded as error:
        return BootFailed(scrub(str(error)), scrub(traceback_of(error)))
    except BaseException as error:
        said = "".join(traceback.format_exception_only(error)).strip()
        return BootFailed(
            scrub(f"importing {boot.config} failed: {said}; no worker was started"),
            scrub(traceback_of(error)),
        )
    threads = threads_left()
    if threads:
        return BootFailed(f"{starts_threads(boot.config, threads)}; no worker was started")
    with suppress(OSError):  # no descriptor left for it, for instance: workers are as good without
        rehearse(settings, boot.queue, parent)
    interpreter.settle()
    gc.collect()
    gc.freeze()  # what is here now is shared with all workers: do not touch it
    return Loaded(app, settings, Booted(round(time.monotonic() - started, 3), len(sys.modules)))


def _check_cores(boot: Boot) -> None:
    here = os.sched_getaffinity(0)
    if not limits.allowed_cores(boot.queue.cores, here):
        wanted = ", ".join(map(str, boot.queue.cores))
        print(
            f"[pgworkers: queue {boot.queue.name}: none of its cores ({wanted}) may be used here "
            f"({', '.join(map(str, sorted(here)))} may); its workers run on any]",
            file=sys.stderr,
        )


def traceback_of(error: BaseException) -> str:
    """The user's part of the traceback if the loader kept one, else all of it."""
    kept = error.traceback if isinstance(error, AppNotLoaded) else ""
    return kept or "".join(traceback.format_exception(error))


def threads_left() -> list[str]:
    """Threads that keep this process from forking: those of numeric libraries are ended first, where that is possible."""
    if not running_threads():
        return []
    pools.stop()
    found = running_threads()
    if any(name.startswith(NATIVE) for name in found) and (libraries := pools.libraries()):
        found.append(f"loaded libraries with threads of their own: {', '.join(libraries)}")
    return found


def running_threads() -> list[str]:
    """Names of all threads but the main one: Python's, and those that libraries started behind its back."""
    if os.stat("/proc/self/task").st_nlink == 3:  # itself, its parent and one thread: before every fork
        return []
    named = {thread.native_id: thread.name for thread in threading.enumerate()}
    named.pop(os.getpid(), None)
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid() and int(task) not in named:
            try:
                comm = Path(f"/proc/self/task/{task}/comm").read_text().strip()
            except OSError:
                continue
            named[int(task)] = f"{NATIVE} {comm}"
    return sorted(named.values())


class _Alarm:
    """Raises where the import hangs. Code that hangs in C is left to the master's patience."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        def ring(_signum: int, _frame: FrameType | None) -> None:
            raise _TookTooLong

        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
