"""How many ends go into one statement: fewer after one that failed, more again after those that were fast. Pure.

A statement that runs into its time limit would do so again. So it is halved, down to one end, until it is fast enough. A
batch that is refused because of one bad row is found out the same way: the halves without that row pass.
"""

from __future__ import annotations

#: A batch may grow when it took less than this share of the time limit: twice as many then take half of it.
FAST_SHARE = 0.25


class BatchSize:
    def __init__(self, most: int, limit: float) -> None:
        """`most`: ends in one statement. `limit`: seconds that it may take."""
        self.most = most
        self._fast = FAST_SHARE * limit
        self.now = most
        self.is_slow = False  # it was halved for its time, and has not grown to the full size since

    def written(self, count: int, seconds: float) -> None:
        """A batch of `count` was written. Only a full one says that more would be fast, too."""
        if count >= self.now and seconds < self._fast:
            self.now = min(self.most, 2 * self.now)
        if self.now == self.most:
            self.is_slow = False

    def failed(self, count: int, *, slow: bool) -> bool:
        """A batch of `count` was not written. True: it is news that it was slow."""
        self.now = max(1, count // 2)
        news = slow and not self.is_slow
        self.is_slow = self.is_slow or slow
        return news
