"""Progress and checkpoints that handlers reported and Postgres does not have yet.

A worker sends only what changed, so an update that was lost would never be sent again. Here each field of each running job
is in one of three places: it waits to be sent, it is in flight, or it is deferred because its row is locked or because the
database refused it. A newer value of a field replaces the older one, wherever that is. What is left when the job ends is
written with its result. Reads the clock, and is pure otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import islice

from pgworkers.job.finish import ProgressUpdate
from pgworkers.job.model import Fence
from pgworkers.master.deferred_results import DeferredResults


class UnsavedProgress:
    def __init__(self) -> None:
        self._waiting: dict[Fence, ProgressUpdate] = {}
        self._in_flight: dict[Fence, ProgressUpdate] = {}
        self._deferred: DeferredResults[ProgressUpdate, None] = DeferredResults()
        self._invalid: set[Fence] = set()  # deferred, because the server refused the values themselves

    def __bool__(self) -> bool:
        return bool(self._waiting or self._in_flight or self._deferred)

    @property
    def has_waiting(self) -> bool:
        """True if there is something to send now."""
        return bool(self._waiting)

    def seconds_until_due(self) -> float | None:
        """Seconds until the next deferred update is due; None: there is none."""
        return self._deferred.seconds_until_due()

    def add(self, update: ProgressUpdate) -> None:
        """What a handler has just reported."""
        fence = update.fence
        waiting = self._waiting.get(fence)
        self._waiting[fence] = update if waiting is None else _merge(waiting, update)
        deferred = self._deferred.get(fence)
        if deferred is None:
            return
        if left := _without_fields_of(deferred, update):
            self._deferred.replace(left)
        else:
            self._deferred.pop(fence)

    def take(self, most: int) -> list[ProgressUpdate]:
        """The updates to send next. Each is in flight until `settle`, `restore` or `defer_refused` is called."""
        self._in_flight = dict(islice(self._waiting.items(), most))
        for fence in self._in_flight:
            del self._waiting[fence]
        return list(self._in_flight.values())

    def restore(self) -> None:
        """Nothing is known of what is in flight: send it again."""
        self._put_in_front(self._in_flight.values())
        self._in_flight = {}

    def settle(self, locked: Collection[Fence]) -> None:
        """The database answered: all is saved, or its lease is lost, except what was locked."""
        for fence, update in self._in_flight.items():
            if fence in locked:
                if left := self._to_defer(update):
                    self._deferred.defer_locked(left, None)
            elif self._deferred.get(fence) is None:
                self._forget(fence)
        self._in_flight = {}

    def defer_refused(self, *, is_invalid: bool) -> float | None:
        """The only update in flight was refused. Returns the seconds until it is sent again; None: it is no longer needed.

        `is_invalid`: the server refused the values themselves. A result that carried them would be refused, too.
        """
        pause = None
        for fence, update in self._in_flight.items():
            if left := self._to_defer(update):
                pause = self._deferred.defer_refused(left, None)
                (self._invalid.add if is_invalid else self._invalid.discard)(fence)
        self._in_flight = {}
        return pause

    def requeue_due(self) -> None:
        """Put deferred updates that are due in front of those that wait."""
        self._put_in_front([update for update, _ in self._deferred.pop_due()])

    def pop(self, fence: Fence) -> ProgressUpdate | None:
        """Take all that is not saved of a job that ends, for its result."""
        deferred = self._deferred.pop(fence)
        update = None if fence in self._invalid else deferred
        for newer in (self._in_flight.pop(fence, None), self._waiting.pop(fence, None)):
            update = _merge(update, newer) if update is not None and newer is not None else newer or update
        self._forget(fence)
        return update

    def _put_in_front(self, older: Iterable[ProgressUpdate]) -> None:
        merged: dict[Fence, ProgressUpdate] = {}
        for update in older:
            newer = self._waiting.pop(update.fence, None)
            merged[update.fence] = update if newer is None else _merge(update, newer)
        self._waiting = merged | self._waiting

    def _to_defer(self, update: ProgressUpdate) -> ProgressUpdate | None:
        """What of an update that was in flight must be sent again, together with what was deferred before."""
        older, newer = self._deferred.get(update.fence), self._waiting.get(update.fence)
        merged = update if older is None else _merge(older, update)
        return merged if newer is None else _without_fields_of(merged, newer)

    def _forget(self, fence: Fence) -> None:
        self._deferred.forget(fence)
        self._invalid.discard(fence)


def _merge(older: ProgressUpdate, newer: ProgressUpdate) -> ProgressUpdate:
    """Field by field: what the newer one does not change stays as the older one has it."""
    return replace(
        newer,
        progress=older.progress if newer.progress is None else newer.progress,
        checkpoint=older.checkpoint if newer.checkpoint is None else newer.checkpoint,
    )


def _without_fields_of(older: ProgressUpdate, newer: ProgressUpdate) -> ProgressUpdate | None:
    """What of the older one the newer one does not replace; None: nothing."""
    left = replace(
        older,
        progress=older.progress if newer.progress is None else None,
        checkpoint=older.checkpoint if newer.checkpoint is None else None,
    )
    return None if left.progress is None and left.checkpoint is None else left
