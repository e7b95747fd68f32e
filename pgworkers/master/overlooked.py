"""Jobs that are this host's in the tables, and that nobody here knows: the answer to their claim was lost.

No other host may take them, because this one renews; so this one gives them back. It looks again and again, whether
or not it noticed a loss: a claim may also arrive at the server long after its sender gave it up. A claim is answered or
given up well within a lease, so what was claimed longer ago and is unknown here has no owner. Giving back is guarded by
the lease like every write: what ended meanwhile is not touched.
"""

from __future__ import annotations

import asyncio

import psycopg

from pgworkers.clock import monotonic
from pgworkers.job.mine import mine
from pgworkers.master.dispatch import Dispatch
from pgworkers.master.duties import SHARE
from pgworkers.master.ends import Ends
from pgworkers.master.line import Asker, LineDown
from pgworkers.settings import Settings


def pause(took: float, rescue: float, lease: float) -> float:
    """Seconds until the next look, after one that took so long; pure.

    While a vacuum is held back a look takes long, and is made less often. But how long it took is also how slow the
    network was, and how long the database was away: so never less often than once in a lease.
    """
    return max(rescue, lease / 3, min(SHARE * took, lease))


class Overlooked:
    def __init__(self, host: str, asker: Asker, dispatch: Dispatch, ends: Ends, settings: Settings) -> None:
        self._host = host
        self._asker = asker
        self._dispatch = dispatch
        self._ends = ends
        self._settings = settings

    async def run(self) -> None:
        took = 0.0
        while True:
            await asyncio.sleep(pause(took, self._settings.rescue, self._settings.lease))
            began = monotonic()
            await self.give_back(self._settings.lease)  # none is younger than a lease
            took = monotonic() - began

    async def give_back(self, age: float) -> int:
        """Give back what was claimed so long ago and is unknown here; how many."""
        try:
            owned = await self._asker.ask(mine(self._host, age))
        except (LineDown, psycopg.Error):
            return 0  # the next look finds them
        known = {*self._dispatch.held_keys(), *self._ends.keys()}
        unknown = [key for key in owned if key not in known]
        if unknown:
            self._ends.release(unknown, "the answer to their claim was lost")
        return len(unknown)
