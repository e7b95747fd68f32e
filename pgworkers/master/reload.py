"""SIGHUP: newer code without stopping. A broken new version is refused, and the old one goes on.

The app is described again by a child of its own; only when that succeeds are the supervisors replaced, one queue after the
other. Running jobs finish on the code they began with. Until they have, old and new workers of a queue together run no more
jobs than it has workers, unless it says `reload_overlap=True`. With `run --reload` a change of the app's files does it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from pgworkers.errors import PgworkersError
from pgworkers.events import HostStateChanged, ReloadRefused
from pgworkers.job import queues
from pgworkers.master import boot, scheduler
from pgworkers.master.connection import ConnectionDown
from pgworkers.master.lease_keeper import registration
from pgworkers.supervisor.describe import describe

if TYPE_CHECKING:
    from pgworkers.master.host import Host

FILE_WATCH_SECONDS = 0.5
MAX_FILES_WATCHED = 2000
_SKIPPED_DIRECTORIES = {"node_modules", "__pycache__", "site-packages", "venv"}


async def reload(host: Host) -> bool:
    """Replace the code; True: the new one runs."""
    options = host.options
    try:
        app = await asyncio.to_thread(
            describe, options.config, host.settings.import_timeout, host.supervisors.other_children
        )
        served = boot.choose_queues(app, options.queues, options.workers, host.settings.max_workers)
    except PgworkersError as error:
        host.events.emit(ReloadRefused(str(error)))
        return False
    try:
        await host.connections["claim"].execute(
            queues.declare_queues(list(served), boot.cluster_totals(served), boot.retentions(served))
        )
        await host.connections["claim"].execute(queues.declare_tasks(list(app.tasks)))
        await scheduler.sync(host.connections["claim"], app.schedules)
    except (ConnectionDown, psycopg.Error) as error:
        host.events.emit(ReloadRefused(f"the database does not answer: {error}"))
        return False
    host.events.emit(
        HostStateChanged(host.state, f"reloading: version {host.plan.app.version} -> {app.version}")
    )
    new = {task.name: task for task in app.tasks}
    # While both versions run, only what both know is claimed.
    both = {name: task for name, task in new.items() if name in host.dispatcher.tasks}
    host.dispatcher.replace_app(both, served)
    host.plan.app, host.plan.queues = app, served
    refused = await host.supervisors.replace(host.boot_messages(), app.version)
    host.dispatcher.replace_app(new, served)
    host.scaler.decide_again()
    for why in refused:
        host.events.emit(ReloadRefused(why))
    try:
        await host.connections["claim"].execute(registration(host))
    except (ConnectionDown, psycopg.Error):
        pass  # the next reload, or nobody, corrects the version on the host's row
    host.events.emit(HostStateChanged(host.state, f"reloaded: version {app.version}"))
    host.claimer.wake_for_all_queues()
    return not refused


class Reloader:
    """Runs reloads one at a time; a wish that comes during one is one more reload after it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._requested = asyncio.Event()

    def request(self) -> None:
        self._requested.set()

    async def run(self) -> None:
        while True:
            await self._requested.wait()
            self._requested.clear()
            if not self._host.is_leaving:
                self._host.systemd.notify_reloading()
                await reload(self._host)
                self._host.systemd.notify_reloaded()

    async def watch_files(self, directory: Path) -> None:
        """`run --reload`: wish when a Python file below the app's directory changed, and has stopped changing."""
        seen = await asyncio.to_thread(file_times, directory)
        while True:
            await asyncio.sleep(FILE_WATCH_SECONDS)
            now = await asyncio.to_thread(file_times, directory)
            if now != seen:
                await asyncio.sleep(FILE_WATCH_SECONDS)
                seen = await asyncio.to_thread(file_times, directory)
                self.request()


def file_times(directory: Path) -> dict[str, int]:
    """When each Python file of the app was changed last; bounded."""
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
