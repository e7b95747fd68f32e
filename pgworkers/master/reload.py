"""SIGHUP and `run --reload`: newer code without stopping.

A broken version is refused, and the old one continues.

A child process describes the new app. Only if that succeeds are the supervisors replaced, one queue after the other.
Running jobs finish on the code they started with. Until then the old and new workers of a queue together run no more jobs
than it has workers, unless the queue is declared with `reload_overlap=True`. With `run --reload`, a change of the
app's files causes a reload.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg

from pgworkers.errors import PgworkersError
from pgworkers.events import EventBus, ReloadRefused
from pgworkers.job.queues import declare_queues, declare_tasks
from pgworkers.master import boot
from pgworkers.master.boot import RunOptions, ServedApp
from pgworkers.master.connection import ConnectionDown, ReconnectingConnection
from pgworkers.master.dispatcher import Dispatcher
from pgworkers.master.lifecycle import HostLifecycle
from pgworkers.master.reporter import Reporter
from pgworkers.master.scaling import Scaler
from pgworkers.master.supervisors import SupervisorPool
from pgworkers.master.systemd import SystemdNotifier
from pgworkers.postgres.statements import Query
from pgworkers.schedule.definitions import sync_schedules
from pgworkers.settings import Settings
from pgworkers.specs import AppSpec, QueueSpec
from pgworkers.supervisor.describe import describe
from pgworkers.supervisor.messages import Boot

FILE_WATCH_SECONDS = 0.5
MAX_FILES_WATCHED = 2000
_SKIPPED_DIRECTORIES = {"node_modules", "__pycache__", "site-packages", "venv"}


class Reloader:
    """Runs reloads one at a time. A request during a reload causes one more after it."""

    def __init__(
        self,
        *,
        options: RunOptions,
        settings: Settings,
        served: ServedApp,
        connection: ReconnectingConnection,
        lifecycle: HostLifecycle,
        dispatcher: Dispatcher,
        supervisors: SupervisorPool,
        scaler: Scaler,
        systemd: SystemdNotifier,
        reporter: Reporter,
        boot_messages: Callable[[], dict[str, Boot]],
        registration: Callable[[], Query[Any]],
        wake_claimer: Callable[[], None],
        events: EventBus,
    ) -> None:
        self._options = options
        self._settings = settings
        self._served = served
        self._connection = connection
        self._lifecycle = lifecycle
        self._dispatcher = dispatcher
        self._supervisors = supervisors
        self._scaler = scaler
        self._systemd = systemd
        self._reporter = reporter
        self._boot_messages = boot_messages
        self._registration = registration
        self._wake_claimer = wake_claimer
        self._events = events
        self._requested = asyncio.Event()

    def request(self) -> None:
        self._requested.set()

    async def run(self) -> None:
        while True:
            await self._requested.wait()
            self._requested.clear()
            if not self._lifecycle.is_leaving:
                self._systemd.notify_reloading()
                await self.reload()
                self._systemd.notify_reloaded()

    async def reload(self) -> bool:
        """Replace the code. Returns True if all queues run the new code."""
        options = self._options
        try:
            app = await asyncio.to_thread(
                describe, options.config, self._settings.import_timeout, self._supervisors.other_children
            )
            queues = boot.choose_queues(app, options.queues, options.workers, self._settings.max_workers)
        except PgworkersError as error:
            self._events.emit(ReloadRefused(str(error)))
            return False
        try:
            await self._declare(app, queues)
        except (ConnectionDown, psycopg.Error) as error:
            self._events.emit(ReloadRefused(f"the database does not answer: {error}"))
            return False
        self._lifecycle.note(f"reloading: version {self._served.app.version} -> {app.version}")
        new_tasks = {task.name: task for task in app.tasks}
        # While both versions run, only tasks that both know are claimed.
        common_tasks = {name: task for name, task in new_tasks.items() if name in self._dispatcher.tasks}
        self._dispatcher.replace_app(common_tasks, queues)
        self._served.app, self._served.queues = app, queues
        self._reporter.serve_app(app)
        refused = await self._supervisors.replace(self._boot_messages(), app.version)
        self._dispatcher.replace_app(new_tasks, queues)
        self._scaler.decide_again()
        for why in refused:
            self._events.emit(ReloadRefused(why))
        try:
            await self._connection.execute(self._registration())
        except (ConnectionDown, psycopg.Error):
            pass  # the host's row shows the old version until the next reload
        self._lifecycle.note(f"reloaded: version {app.version}")
        self._wake_claimer()
        return not refused

    async def _declare(self, app: AppSpec, queues: dict[str, QueueSpec]) -> None:
        """Write what the app declares to the database."""
        await self._connection.execute(
            declare_queues(list(queues), boot.cluster_totals(queues), boot.retentions(queues))
        )
        await self._connection.execute(declare_tasks(list(app.tasks)))
        await self._connection.execute(sync_schedules(app.schedules))

    async def watch_files(self, directory: Path) -> None:
        """`run --reload`: request a reload when Python files of the app have changed, and no longer change."""
        seen = await asyncio.to_thread(file_times, directory)
        while True:
            await asyncio.sleep(FILE_WATCH_SECONDS)
            now = await asyncio.to_thread(file_times, directory)
            if now != seen:
                await asyncio.sleep(FILE_WATCH_SECONDS)
                seen = await asyncio.to_thread(file_times, directory)
                self.request()


def file_times(directory: Path) -> dict[str, int]:
    """The time of the last change of each Python file, for at most `MAX_FILES_WATCHED` files."""
    found: dict[str, int] = {}
    for path in _python_files(directory):
        try:
            found[path] = os.stat(path).st_mtime_ns
        except OSError:
            continue
        if len(found) >= MAX_FILES_WATCHED:
            break
    return found


def _python_files(directory: Path) -> Iterator[str]:
    for root, directories, files in os.walk(directory):
        directories[:] = sorted(
            d for d in directories if not d.startswith(".") and d not in _SKIPPED_DIRECTORIES
        )
        yield from (os.path.join(root, name) for name in files if name.endswith(".py"))
