"""The look for claims whose answer was lost: each goes on where the last one ended, and when it looks at everything."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from support.database_host import DatabaseHost

from pgworkers.job.model import Fence
from pgworkers.master import lost_claims
from pgworkers.master.lost_claims import (
    FULL_SCAN_INTERVAL_SECONDS,
    FULL_SCAN_LEASES_AFTER_RECONNECT,
    LostClaims,
)
from pgworkers.postgres.statements import Query
from pgworkers.settings import Settings

SETTINGS = Settings()


@dataclass
class HostConnection:
    """A connection to the test's database."""

    host: DatabaseHost
    session_number: int = 1
    since: list[bool] = field(
        default_factory=list
    )  # of each search: True if it continued from an earlier one

    async def execute(self, query: Query[Any]) -> Any:
        self.since.append(query.params["since"] is not None)
        return self.host.execute(query)


@dataclass
class KnownJobs:
    """The fences that the host knows, and those that it releases."""

    known: set[Fence] = field(default_factory=set)
    given: list[Fence] = field(default_factory=list)

    def held_fences(self) -> set[Fence]:
        return self.known

    def pending_fences(self) -> set[Fence]:
        return set()

    def release(self, fences: list[Fence], why: str) -> None:
        assert why
        self.given += fences


@dataclass
class LostClaimsHarness:
    claim: HostConnection
    finish: HostConnection
    known: KnownJobs
    overlooked: LostClaims
    now: float = 1000.0

    def look(self, **more: Any) -> list[Fence]:
        self.known.given.clear()
        found = asyncio.run(self.overlooked.release_lost(0.0, **more))
        assert found == len(self.known.given)
        return self.known.given[:]

    @property
    def whole(self) -> bool:
        """True if the last search read all jobs of the host."""
        return not self.finish.since[-1]


@pytest.fixture
def harness(host: DatabaseHost, monkeypatch: pytest.MonkeyPatch) -> LostClaimsHarness:
    """One whose sessions have been there for long."""
    claim, finish, known = HostConnection(host), HostConnection(host), KnownJobs()
    connections = cast("Any", {"claim": claim, "finish": finish})
    held = cast("Any", known)
    harness = LostClaimsHarness(
        claim, finish, known, LostClaims(host.id, connections, held, held, SETTINGS, lambda: None)
    )
    monkeypatch.setattr(lost_claims, "monotonic", lambda: harness.now)
    harness.look()
    harness.now += FULL_SCAN_LEASES_AFTER_RECONNECT * SETTINGS.lease_duration
    return harness


def test_unknown_jobs_are_released_and_known_ones_are_not(
    host: DatabaseHost, harness: LostClaimsHarness
) -> None:
    lost, held = host.enqueue_and_claim(), host.enqueue_and_claim()
    harness.known.known.add(held.fence)
    assert harness.look() == [lost.fence]
    another = host.enqueue_and_claim()
    assert harness.look() == [another.fence], "only what was claimed since"
    assert not harness.whole
    assert harness.look() == []


def test_after_a_session_was_lost_everything_is_looked_at(
    host: DatabaseHost, harness: LostClaimsHarness
) -> None:
    """It may be another server, on which a job still runs that we have ended."""
    ours = host.enqueue_and_claim()
    harness.known.known.add(ours.fence)
    assert harness.look() == []
    harness.known.known.clear()  # ended, and the new primary does not know it
    assert harness.look() == []
    for connection in (harness.claim, harness.finish):
        connection.session_number += 1
        assert harness.look() == [ours.fence]
        assert harness.whole
        harness.now += (FULL_SCAN_LEASES_AFTER_RECONNECT - 1) * SETTINGS.lease_duration
        assert harness.look() == [ours.fence], (
            "a claim may have been on its way to the disk for as long as that"
        )
        harness.now += SETTINGS.lease_duration
        assert harness.look() == []
        assert not harness.whole


def test_after_a_while_and_before_it_leaves_a_host_looks_at_everything(harness: LostClaimsHarness) -> None:
    harness.look()
    assert not harness.whole
    harness.look(is_full_scan=True)
    assert harness.whole
    harness.now += FULL_SCAN_INTERVAL_SECONDS
    harness.look()
    assert harness.whole
    harness.look()
    assert not harness.whole


def test_a_clock_that_was_set_back_hides_nothing(host: DatabaseHost, harness: LostClaimsHarness) -> None:
    harness.look()
    seen = harness.overlooked._scanned_until
    assert seen is not None
    harness.overlooked._scanned_until = seen.replace(
        year=seen.year + 1
    )  # as if the database's clock had been a year ahead
    late = host.enqueue_and_claim()
    assert harness.look() == [], "it was claimed before the time that was seen"
    assert harness.look() == [late.fence]


def test_a_look_that_failed_is_made_again(
    host: DatabaseHost, harness: LostClaimsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.look()
    lost = host.enqueue_and_claim()
    execute = harness.finish.execute

    async def down(query: Query[Any]) -> Any:
        raise lost_claims.ConnectionDown("no answer")

    monkeypatch.setattr(harness.finish, "execute", down)
    assert harness.look() == []
    harness.now += FULL_SCAN_INTERVAL_SECONDS
    assert harness.look() == [], "this one would have been at everything, and that was too much"
    monkeypatch.setattr(harness.finish, "execute", execute)
    assert harness.look() == [lost.fence]
    assert not harness.whole, "so the next one goes on where the last one ended"
