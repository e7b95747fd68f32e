"""Import the app before the first fork, so that all workers share it.

Everything that workers would otherwise do for themselves is done here once: streams, logging, codecs of tasks. Errors of the
import are reported without the passwords that they may quote.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from types import FrameType

from pgworkers.app import App
from pgworkers.app_import import import_app
from pgworkers.errors import AppNotLoaded
from pgworkers.linux import environment, process_limits
from pgworkers.observe import handler_prometheus, python_logging
from pgworkers.settings import Settings
from pgworkers.supervisor.describe import threads_error
from pgworkers.supervisor.fork_safety import threads_blocking_fork
from pgworkers.supervisor.messages import Boot, Booted, BootFailed
from pgworkers.units import format_duration
from pgworkers.worker.startup import configure_streams, empty_stdin


@dataclass(slots=True)
class LoadedApp:
    app: App
    settings: Settings
    event: Booted


class _ImportTimedOut(BaseException):
    """A BaseException, so that a module's own `except Exception` does not swallow it."""


def settings_from_boot(boot: Boot) -> Settings:
    """The settings, as the master parsed and checked them."""
    return Settings(**boot.settings)  # type: ignore[arg-type]


def load_app(boot: Boot) -> LoadedApp | BootFailed:
    """Import the app and the queue's preload modules, and check that a fork is safe."""
    settings = settings_from_boot(boot)
    started = time.monotonic()
    python_logging.install_record_factory()
    process_limits.set_thread_variables(boot.queue.threads)
    process_limits.set_nice(boot.queue.nice)
    _check_cores(boot)
    handler_prometheus.install(
        boot.metrics_directory, boot.queue.name, boot.metrics_lane, is_used_by_app=boot.uses_prometheus
    )
    try:
        with _ImportTimer(settings.import_timeout):
            app = import_app(boot.config)
            for name in boot.queue.preload:
                importlib.import_module(name)
            environment.forget_import_variables()
            app.use_database(settings.dsn, settings)  # here and not in each worker, so that it is shared
            app.client.has_single_connection = True  # a worker runs one handler at a time
            empty_stdin()
            configure_streams()
            if not app.hooks.start_hooks_of(boot.queue.name):
                python_logging.configure_root_logger(settings.log_format, settings.log_level)
            for task in app.tasks.values():
                task.build_codecs()
            if any(task.is_async for task in app.tasks.values()):
                importlib.import_module("asyncio")  # once for all workers; without such tasks for none
    except _ImportTimedOut as error:
        return BootFailed(
            f"importing {boot.config} took longer than {format_duration(settings.import_timeout)}; no worker was started. "
            "Move slow work to @app.on_worker_start, or raise the setting `import_timeout`",
            hide_passwords("".join(traceback.format_exception(error))),
        )
    except AppNotLoaded as error:
        return BootFailed(hide_passwords(str(error)), hide_passwords(user_traceback(error)))
    except BaseException as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        return BootFailed(
            hide_passwords(f"importing {boot.config} failed: {text}; no worker was started"),
            hide_passwords(user_traceback(error)),
        )
    threads = threads_blocking_fork()
    if threads:
        return BootFailed(f"{threads_error(boot.config, threads)}; no worker was started")
    gc.collect()
    gc.freeze()  # shared with all workers: a collection would copy its pages
    return LoadedApp(app, settings, Booted(round(time.monotonic() - started, 3), len(sys.modules)))


def _check_cores(boot: Boot) -> None:
    here = os.sched_getaffinity(0)
    if not process_limits.allowed_cores(boot.queue.cores, here):
        wanted = ", ".join(map(str, boot.queue.cores))
        print(
            f"[pgworkers: queue {boot.queue.name}: none of its cores ({wanted}) may be used here "
            f"({', '.join(map(str, sorted(here)))} may); its workers run on any]",
            file=sys.stderr,
        )


def user_traceback(error: BaseException) -> str:
    """The user's part of the traceback if the loader kept one, else all of it."""
    kept = error.traceback if isinstance(error, AppNotLoaded) else ""
    return kept or "".join(traceback.format_exception(error))


class _ImportTimer:
    """Raises _ImportTimedOut where the import hangs.

    For code that hangs in C, the master has a timeout.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        def on_slow_import(_signum: int, _frame: FrameType | None) -> None:
            raise _ImportTimedOut

        signal.signal(signal.SIGALRM, on_slow_import)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


_PASSWORD_IN_URL = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s:/@'\"]*):[^\s@'\"]+@", re.IGNORECASE)
_PASSWORD_ASSIGNMENT = re.compile(
    r"(\b(?:password|passwd|pgpassword)\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s,;'\"]+)", re.IGNORECASE
)


def hide_passwords(text: str) -> str:
    """Replace passwords in a text, such as an error that quotes its DSN."""
    return _PASSWORD_ASSIGNMENT.sub(r"\1***", _PASSWORD_IN_URL.sub(r"\1:***@", text))
