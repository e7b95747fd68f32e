"""The reporter: the process of a host that imports the app and runs its `on_job_end` hooks.

`python -m pgworkers.supervisor.reporter --fd N --parent-pid PID`. The master sends it the ends of attempts, one message
each, and gets an answer when all hooks have run. So it knows what a hook was busy with if this process hangs or dies.
Nothing waits for this process: jobs run and end without it.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import logging
import os
import signal
import socket
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from pgworkers.app import App
from pgworkers.app_import import import_app
from pgworkers.hooks import JobEnd
from pgworkers.ipc.messages import MessageSocket
from pgworkers.linux import environment, prctl, process_exit, titles
from pgworkers.observe import python_logging, tracing
from pgworkers.settings import Settings
from pgworkers.supervisor.app_loader import hide_passwords, user_traceback
from pgworkers.supervisor.reporter_messages import (
    EndMessage,
    Handled,
    ReporterAnswer,
    ReporterBoot,
    ReporterBootFailed,
    ReporterOrder,
    ReporterReady,
    TickMessage,
)
from pgworkers.worker.startup import configure_streams

_log = logging.getLogger("pgworkers.reporter")
_decode = msgspec.json.Decoder(ReporterOrder).decode
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)


class HookRunner:
    """Runs hooks, each for itself: one that raises is logged, and the others run nevertheless."""

    def __init__(self, app: App) -> None:
        self._hooks = app.hooks
        self._runner: asyncio.Runner | None = None

    def start(self) -> None:
        """Run the start hooks of the reporter. What they raise is raised."""
        for hook in self._hooks.reporter_start:
            self._call(hook)

    def handle(self, order: EndMessage | TickMessage) -> list[str]:
        """Run the hooks that want this. Returns a line for each that failed."""
        match order:
            case EndMessage(end=end):
                _end_span(end)
                wanted = [hook.function for hook in self._hooks.job_end if end.verdict in hook.verdicts]
                if end.meta.get("schedule"):
                    wanted += self._hooks.scheduled_ends
                return self._call_all(wanted, end, f"job {end.job}")
            case TickMessage(tick=tick):
                return self._call_all(self._hooks.ticks, tick, f"schedule {tick.schedule}")

    def close(self) -> None:
        for hook in self._hooks.reporter_stop:
            try:
                self._call(hook)
            except Exception:
                _log.exception("a stop hook of the reporter failed")
        tracing.flush()

    def _call_all(self, hooks: Iterable[Callable[..., Any]], about: Any, what: str) -> list[str]:
        errors = []
        for hook in hooks:
            try:
                self._call(hook, about)
            except Exception as error:
                name = getattr(hook, "__qualname__", repr(hook))
                _log.exception("the hook %s failed for %s", name, what)
                errors.append(f"{name}: {type(error).__name__}")
        return errors

    def _call(self, hook: Callable[..., Any], *args: Any) -> None:
        value = hook(*args)
        if inspect.isawaitable(value):
            if self._runner is None:
                self._runner = asyncio.Runner()
            self._runner.run(_awaited(value))


def _end_span(end: JobEnd) -> None:
    """End the span of an attempt whose process was killed: nothing in that process could."""
    if end.exit_status is not None and tracing.is_enabled():
        tracing.end_killed_span(
            task=end.task,
            queue=end.queue,
            job=end.job,
            attempt=end.attempt,
            verdict=end.verdict,
            error=end.error,
            meta=end.meta,
            ended_at=end.ended_at.timestamp(),
            duration=end.duration,
        )


async def _awaited(value: Any) -> Any:
    return await value


def _boot(boot: ReporterBoot) -> HookRunner | ReporterBootFailed:
    """Import the app and run its start hooks."""
    settings = Settings(**boot.settings)  # type: ignore[arg-type]
    python_logging.install_record_factory()
    python_logging.set_current_job_source(lambda: None)  # its lines name the machine, and no job runs here
    try:
        app = import_app(boot.config)
        app.use_database(settings.dsn, settings)
        configure_streams()
        hooks = HookRunner(app)
        hooks.start()
        python_logging.configure_root_logger(settings.log_format, settings.log_level)
    except BaseException as error:
        line = "".join(traceback.format_exception_only(error)).strip()
        return ReporterBootFailed(hide_passwords(line), hide_passwords(user_traceback(error)))
    return hooks


def serve(connection: MessageSocket) -> int:
    """Run hooks until the master closes the socket. Returns the exit status."""
    first = connection.receive()
    if first is None:
        return 0
    boot = _decode(first)
    if not isinstance(boot, ReporterBoot):
        raise TypeError(f"the first message is {type(boot).__name__}")
    hooks = _boot(boot)
    if isinstance(hooks, ReporterBootFailed):
        _send(connection, hooks)
        return 6
    titles.set_title("pgworkers: reporter" + (f" ({boot.version[:40]})" if boot.version else ""))
    _send(connection, ReporterReady())
    while (message := connection.receive()) is not None:
        order = _decode(message)
        if not isinstance(order, ReporterBoot):
            _send(connection, Handled(hooks.handle(order)))
    hooks.close()
    return 0


def _send(connection: MessageSocket, answer: ReporterAnswer) -> None:
    try:
        connection.send(msgspec.json.encode(answer))
    except (BrokenPipeError, ConnectionResetError):
        pass  # the master has closed the socket; `receive` returns what it sent before


def main() -> None:
    parser = argparse.ArgumentParser(prog="pgworkers.supervisor.reporter")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--title-padding", help="ignored: makes the command line long enough for titles")
    given = parser.parse_args()
    environment.open_missing_streams()
    os.dup2(2, 1)
    for signum in _IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    if not prctl.set_parent_death_signal(signal.SIGKILL, given.parent_pid):
        return
    prctl.become_subreaper()
    os.set_inheritable(given.fd, False)
    titles.set_title("pgworkers: reporter booting")
    process_exit.exit_process(serve(MessageSocket(socket.socket(fileno=given.fd))))


if __name__ == "__main__":
    main()
