"""A duty of the leader: remove stored results whose job is gone (`pgworkers/result_store.py`).

History may lose a whole day of jobs in one statement, without reading them. So the duty goes through the store and asks the
database which names are still needed. A store is marked with the database that it belongs to. If the mark is that of another
database, nothing is removed: two databases must not share a store.

The store may be slow or hang (a network file system), and the loop of the master must not wait for it. So all access is in
threads, and a call that gets no answer in time ends the run of the duty.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from itertools import islice
from typing import TypeVar

from pgworkers import result_store
from pgworkers.errors import PgworkersError
from pgworkers.job.result_files import database_identity, unneeded_result_files
from pgworkers.master.connection import QueryExecutor
from pgworkers.master.duties import Duty
from pgworkers.units import format_duration

T = TypeVar("T")

NAMES_PER_STATEMENT = 500
#: Longest wait for one answer of the store.
STORE_TIMEOUT_SECONDS = 60.0
#: How long the other duties of a leader wait for this one, and how long an operator does who runs it by hand.
LEADER_WAIT_SECONDS = 0.5
OPERATOR_WAIT_SECONDS = 600.0


def remove_unneeded_results(executor: QueryExecutor, url: str, every: float, *, wait_seconds: float) -> Duty:
    """The leader's duty: remove stored results whose job is gone.

    The other duties wait for this one for `wait_seconds` at most. Then it continues next to them, and the next run reports
    how it ended.
    """
    running: asyncio.Task[int] | None = None

    async def perform() -> int:
        nonlocal running
        if running is None:
            running = asyncio.create_task(_clean(executor, url), name="pgworkers result store")
        await asyncio.wait({running}, timeout=wait_seconds)
        if not running.done():
            return 0
        ended, running = running, None
        return ended.result()

    return Duty("results", every, perform, "remove stored results whose job is gone")


async def _clean(executor: QueryExecutor, url: str) -> int:
    access = StoreThread(url)
    identity = await executor.execute(database_identity())
    await access.run(lambda: check_owner(url, identity))
    removed = 0
    for folder in await access.run(lambda: result_store.open_store(url).folders()):
        removed += await _clean_folder(executor, access, url, folder)
    return removed


async def _clean_folder(executor: QueryExecutor, access: StoreThread, url: str, folder: str) -> int:
    names = await access.run(lambda: result_store.open_store(url).names(folder))
    parsed = {name: found for name in names if (found := result_store.parse_name(name)) is not None}
    removed, left = 0, iter(sorted(parsed))
    while portion := list(islice(left, NAMES_PER_STATEMENT)):
        gone = await executor.execute(unneeded_result_files(portion, [parsed[name].job for name in portion]))
        await access.run(lambda gone=gone: _remove(url, gone))  # type: ignore[misc]
        removed += len(gone)
    return removed


def _remove(url: str, names: list[str]) -> None:
    store = result_store.open_store(url)
    for name in names:
        store.remove(name)


def check_owner(url: str, identity: str) -> None:
    """Mark the store as this database's. PgworkersError if it is another one's."""
    store = result_store.open_store(url)
    try:
        owner = store.read(result_store.OWNER_NAME).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        if not store.folders():
            return  # nothing to remove, and perhaps not mounted
        store.write(result_store.OWNER_NAME, identity.encode())
        return
    if owner != identity:
        raise PgworkersError(
            f"result_store {url} belongs to another database ({owner}, this one is {identity}); no stored result was "
            f"removed. Give each database a store of its own; if this one was moved, delete the file "
            f"{result_store.OWNER_NAME} in it"
        )


class StoreThread:
    """Runs functions in threads that nothing waits for at exit."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function. PgworkersError if it takes too long or the store fails."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                value = function()
            except BaseException as exc:
                _answer(loop, future, lambda exc=exc: future.set_exception(exc))  # type: ignore[misc]
            else:
                _answer(loop, future, lambda: future.set_result(value))

        threading.Thread(target=work, name="pgworkers result store", daemon=True).start()
        try:
            return await asyncio.wait_for(future, STORE_TIMEOUT_SECONDS)
        except TimeoutError:
            waited = format_duration(STORE_TIMEOUT_SECONDS)
            raise PgworkersError(f"result_store {self._url} has not answered for {waited}") from None
        except OSError as exc:
            raise PgworkersError(f"result_store {self._url}: {exc}") from exc


def _answer(loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], give: Callable[[], None]) -> None:
    def give_if_awaited() -> None:
        if not future.done():
            give()

    try:
        loop.call_soon_threadsafe(give_if_awaited)
    except RuntimeError:
        pass  # the host has left meanwhile
