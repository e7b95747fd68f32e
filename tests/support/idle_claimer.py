"""What a claimer needs to be alone: a database in which nothing is ready, and buffers that always have room."""

from __future__ import annotations

from typing import Any, cast

from pgworkers.events import EventBus
from pgworkers.job.claim import QueueCapacity
from pgworkers.master.assignment import ClusterView
from pgworkers.master.claimer import Claimer
from pgworkers.postgres.statements import Query
from pgworkers.settings import Settings

#: Statements that claim. Others whose names begin with the same word park jobs or end them.
CLAIM_STATEMENTS = frozenset({"claim", "claim_oldest", "claim_ranges"})


class EmptyDatabase:
    """The connection of a claimer; nothing is ever ready. `asked` are the claims."""

    def __init__(self) -> None:
        self.asked: list[Query[Any]] = []

    @property
    def names(self) -> list[str]:
        return [query.statement.name for query in self.asked]

    async def execute(
        self,
        query: Query[Any],
        *,
        raise_refusals: bool = False,
        raise_timeouts: bool = False,
    ) -> Any:
        if query.statement.name in CLAIM_STATEMENTS:
            self.asked.append(query)
        if query.statement.name == "host_set_idle":
            return frozenset(query.params["queues"])
        return []

    async def wait_for_backoff(self) -> None:
        pass


class DispatcherWithRoom:
    """A buffer for each queue, with room for two more jobs."""

    is_claiming = True

    def __init__(self, queues: str) -> None:
        self.buffers: dict[str, Any] = dict.fromkeys(queues)
        self.tasks: dict[str, Any] = {}
        self.cluster = ClusterView()

    def capacity(self) -> list[QueueCapacity]:
        return [QueueCapacity(queue, 2) for queue in self.buffers]


def claimer(
    connection: EmptyDatabase, settings: Settings, events: EventBus | None = None, *, queues: str = "q"
) -> Claimer:
    """Queues are called by one letter."""
    dispatcher = cast("Any", DispatcherWithRoom(queues))
    return Claimer("host", cast("Any", connection), dispatcher, events or EventBus(), settings, lambda: True)
