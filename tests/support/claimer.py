"""What a claimer needs to be alone: a database in which nothing is ready, and a desk that has always room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from pgworkers.facts import Facts
from pgworkers.job.claim import Wants
from pgworkers.master.claims import Claims
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

    def wants(self) -> list[Wants]:
        return [Wants(queue, 2) for queue in self.desks]


def claimer(line: Quiet, settings: Settings, facts: Facts | None = None, *, queues: str = "q") -> Claims:
    """Queues are called by one letter."""
    desk = cast("Any", Roomy(queues))
    return Claims("host", cast("Any", line), desk, facts or Facts(), settings, lambda: True)
