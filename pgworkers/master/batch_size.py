"""How many rows go into one statement: fewer after a failure, more after fast ones. Pure."""

from __future__ import annotations

#: A batch may grow when it took less than this share of the time limit: twice as many take half of it.
FAST_BATCH_SHARE = 0.25


class BatchSize:
    """How many results go into one statement: fewer after a failure, more after fast ones. Pure."""

    def __init__(self, max_results: int, limit: float) -> None:
        """`max_results`: results in one statement. `limit`: seconds that it may take."""
        self.max_results = max_results
        self._fast_seconds = FAST_BATCH_SHARE * limit
        self.current = max_results
        self.is_slow = False  # it was halved because it was slow, and has not grown to the full size since

    def record_written(self, count: int, seconds: float) -> None:
        """A batch of `count` was written. Only a full one shows that a larger one would be fast, too."""
        if count >= self.current and seconds < self._fast_seconds:
            self.current = min(self.max_results, 2 * self.current)
        if self.current == self.max_results:
            self.is_slow = False

    def record_failed(self, count: int, *, slow: bool) -> bool:
        """A batch of `count` was not written. True: it is the first slow one."""
        self.current = max(1, count // 2)
        is_news = slow and not self.is_slow
        self.is_slow = self.is_slow or slow
        return is_news
