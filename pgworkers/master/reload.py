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
from pgworkers.events import HostChanged, ReloadRefused
from pgworkers.job import queue as queues
from pgworkers.master import boot, ticks
from pgworkers.master.joining import registration
from pgworkers.master.line import LineDown
from pgworkers.supervisor.ask import describe

if TYPE_CHECKING:
    from pgworkers.master.host import Host

WATCH_EVERY = 0.5
MOST_FILES = 2000
_SKIPPED = {"node_modules", "__pycache__", "site-packages", "venv"}


async def reload(host: Host) -> bool:
    """Replace the code; True: the new one runs."""
    options = host.options
    try:
        app = await asyncio.to_thread(describe, options.config, host.settings.boot, host.supervisors.guests)
        served = boot.choose_queues(app, options.queues, options.workers, host.settings.max_workers)
    except PgworkersError as error:
        host.facts.tell(ReloadRefused(str(error)))
        return False
    try:
        await host.lines["claim"].ask(
            queues.declare(list(served), boot.totals(served), boot.retentions(served))
        )
        await host.lines["claim"].ask(queues.declare_tasks(list(app.tasks)))
        await ticks.sync(host.lines["claim"], app.schedules)
    except (LineDown, psycopg.Error) as error:
        host.facts.tell(ReloadRefused(f"the database does not answer: {error}"))
        return False
    host.facts.tell(HostChanged(host.state, f"reloading: version {host.plan.app.version} -> {app.version}"))
    new = {task.name: task for task in app.tasks}
    # While both versions run, only what both know is claimed.
    both = {name: task for name, task in new.items() if name in host.dispatch.tasks}
    host.dispatch.adopt(both, served)
    host.plan.app, host.plan.queues = app, served
    refused = await host.supervisors.replace(host.boots(), app.version)
    host.dispatch.adopt(new, served)
    host.scaling.forget()
    for why in refused:
        host.facts.tell(ReloadRefused(why))
    try:
        await host.lines["claim"].ask(registration(host))
    except (LineDown, psycopg.Error):
        pass  # the next reload, or nobody, corrects the version on the host's row
    host.facts.tell(HostChanged(host.state, f"reloaded: version {app.version}"))
    host.claims.poke()
    return not refused


class Reloads:
    """Runs reloads one at a time; a wish that comes during one is one more reload after it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._wished = asyncio.Event()

    def wish(self) -> None:
        self._wished.set()

    async def run(self) -> None:
        while True:
            await self._wished.wait()
            self._wished.clear()
            if not self._host.leaving:
                self._host.service.reloading()
                await reload(self._host)
                self._host.service.reloaded()

    async def watch(self, directory: Path) -> None:
        """`run --reload`: wish when a Python file below the app's directory changed, and has stopped changing."""
        seen = await asyncio.to_thread(snapshot, directory)
        while True:
            await asyncio.sleep(WATCH_EVERY)
            now = await asyncio.to_thread(snapshot, directory)
            if now != seen:
                await asyncio.sleep(WATCH_EVERY)
                seen = await asyncio.to_thread(snapshot, directory)
                self.wish()


def snapshot(directory: Path) -> dict[str, int]:
    """When each Python file of the app was changed last; bounded."""
    found: dict[str, int] = {}
    for path in _python_files(directory):
        try:
            found[path] = os.stat(path).st_mtime_ns
        except OSError:
            continue
        if len(found) >= MOST_FILES:
            break
    return found


def _python_files(directory: Path) -> Iterator[str]:
    for root, directories, files in os.walk(directory):
        directories[:] = sorted(d for d in directories if not d.startswith(".") and d not in _SKIPPED)
        yield from (os.path.join(root, name) for name in files if name.endswith(".py"))
