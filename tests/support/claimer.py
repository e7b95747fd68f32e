"""What a claimer needs to be alone: a database in which nothing is ready, and a desk that has always room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from pgworkers.events import EventBus
from pgworkers.job.claim import QueueCapacity
from pgworkers.master.claimer import Claimer
from pgworkers.postgres.statements import Query
from pgworkers.settings import Settings


class Quiet:
    """The line of a claimer; nothing is ever ready. `asked` are the claims."""

    def __init__(self) -> None:
        self.asked: list[Query[Any]] = []

    @property
    def names(self) -> list[str]:
        return [query.statement.name for query in self.asked]

    async def ask(
        self,
        query: Query[Any],
        *,
        refusable: bool = False,
        timeouts: bool = False,
        then: Callable[[Any], None] | None = None,
    ) -> Any:
        if query.statement.name.startswith("claim"):
            self.asked.append(query)
        if query.statement.name == "asleep":
            return frozenset(query.params["queues"])
        if then is not None:
            then([])
        return []

    async def rest(self) -> None:
        pass


class Roomy:
    """A desk for each queue, with room for two more jobs."""

    claiming = True
    sharing_hosts = 0

    def __init__(self, queues: str) -> None:
        self.desks: dict[str, Any] = dict.fromkeys(queues)
        self.tasks: dict[str, Any] = {}

    def wants(self) -> list[QueueCapacity]:
        return [QueueCapacity(queue, 2) for queue in self.desks]


def claimer(line: Quiet, settings: Settings, facts: EventBus | None = None, *, queues: str = "q") -> Claimer:
    """Queues are called by one letter."""
    desk = cast("Any", Roomy(queues))
    return Claimer("host", cast("Any", line), desk, facts or EventBus(), settings, lambda: True)
