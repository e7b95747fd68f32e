"""The look for claims whose answer was lost: each goes on where the last one ended, and when it looks at everything."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from support.desk import Desk

from pgworkers.job.claim import Claimed
from pgworkers.master import overlooked
from pgworkers.master.overlooked import WARY, WHILE, Overlooked
from pgworkers.postgres.statements import Query
from pgworkers.settings import Settings

SETTINGS = Settings()


@dataclass
class OnDesk:
    """A line to the test's database."""

    desk: Desk
    session: int = 1
    since: list[bool] = field(default_factory=list)  # of each look: did it go on from another?

    async def ask(self, query: Query[Any]) -> Any:
        self.since.append(query.params["since"] is not None)
        return self.desk.ask(query)


@dataclass
class Known:
    """What the host knows, and what it gives back."""

    keys_: set[tuple[int, int]] = field(default_factory=set)
    given: list[tuple[int, int]] = field(default_factory=list)

    def held_keys(self) -> set[tuple[int, int]]:
        return self.keys_

    def keys(self) -> set[tuple[int, int]]:
        return set()

    def release(self, keys: list[tuple[int, int]], why: str) -> None:
        assert why
        self.given += keys


@dataclass
class Looker:
    claim: OnDesk
    finish: OnDesk
    known: Known
    overlooked: Overlooked
    now: float = 1000.0

    def look(self, **more: Any) -> list[tuple[int, int]]:
        self.known.given.clear()
        found = asyncio.run(self.overlooked.give_back(0.0, **more))
        assert found == len(self.known.given)
        return self.known.given[:]

    @property
    def whole(self) -> bool:
        """Was the last look one at everything?"""
        return not self.finish.since[-1]


@pytest.fixture
def looker(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Looker:
    """One whose sessions have been there for long."""
    claim, finish, known = OnDesk(desk), OnDesk(desk), Known()
    lines = cast("Any", {"claim": claim, "finish": finish})
    held = cast("Any", known)
    looker = Looker(claim, finish, known, Overlooked(desk.host, lines, held, held, SETTINGS, lambda: None))
    monkeypatch.setattr(overlooked, "monotonic", lambda: looker.now)
    looker.look()
    looker.now += WARY * SETTINGS.lease
    return looker


def key(job: Claimed) -> tuple[int, int]:
    return job.id, job.lease


def test_what_nobody_knows_is_given_back_and_what_is_known_is_not(desk: Desk, looker: Looker) -> None:
    lost, held = desk.run_one(), desk.run_one()
    looker.known.keys_.add(key(held))
    assert looker.look() == [key(lost)]
    another = desk.run_one()
    assert looker.look() == [key(another)], "only what was claimed since"
    assert not looker.whole
    assert looker.look() == []


def test_after_a_session_was_lost_everything_is_looked_at(desk: Desk, looker: Looker) -> None:
    """It may be another server, on which a job still runs that we have ended."""
    ours = desk.run_one()
    looker.known.keys_.add(key(ours))
    assert looker.look() == []
    looker.known.keys_.clear()  # ended, and the new primary does not know it
    assert looker.look() == []
    for line in (looker.claim, looker.finish):
        line.session += 1
        assert looker.look() == [key(ours)]
        assert looker.whole
        looker.now += (WARY - 1) * SETTINGS.lease
        assert looker.look() == [key(ours)], (
            "a claim may have been on its way to the disk for as long as that"
        )
        looker.now += SETTINGS.lease
        assert looker.look() == []
        assert not looker.whole


def test_after_a_while_and_before_it_leaves_a_host_looks_at_everything(looker: Looker) -> None:
    looker.look()
    assert not looker.whole
    looker.look(whole=True)
    assert looker.whole
    looker.now += WHILE
    looker.look()
    assert looker.whole
    looker.look()
    assert not looker.whole


def test_a_clock_that_was_set_back_hides_nothing(desk: Desk, looker: Looker) -> None:
    looker.look()
    seen = looker.overlooked._seen
    assert seen is not None
    looker.overlooked._seen = seen.replace(
        year=seen.year + 1
    )  # as if the database's clock had been a year ahead
    late = desk.run_one()
    assert looker.look() == [], "it was claimed before the time that was seen"
    assert looker.look() == [key(late)]


def test_a_look_that_failed_is_made_again(
    desk: Desk, looker: Looker, monkeypatch: pytest.MonkeyPatch
) -> None:
    looker.look()
    lost = desk.run_one()
    asking = looker.finish.ask

    async def down(query: Query[Any]) -> Any:
        raise overlooked.LineDown("no answer")

    monkeypatch.setattr(looker.finish, "ask", down)
    assert looker.look() == []
    looker.now += WHILE
    assert looker.look() == [], "this one would have been at everything, and that was too much"
    monkeypatch.setattr(looker.finish, "ask", asking)
    assert looker.look() == [key(lost)]
    assert not looker.whole, "so the next one goes on where the last one ended"
