"""When a host wants to be told, and where it looks: the two deciders of the claimer."""

from __future__ import annotations

import asyncio
import time
from math import inf
from typing import Any, cast

import pytest
from support.claimer import Quiet, Roomy, claimer

from pgworkers.facts import Facts
from pgworkers.job.claim import EVERYWHERE, HIGHEST, LOWEST, Claimed, Range, Wants
from pgworkers.master.before import HASTE, LEAST, SHARE
from pgworkers.master.claims import MISSED_AFTER_SECONDS, PIECE, TURN, Claims
from pgworkers.master.positions import LEVELS, Positions
from pgworkers.master.wakes import BUSY, LOOKS, MAX_SHARE, QUIET, STEP, Wakes
from pgworkers.postgres.statements import Query
from pgworkers.settings import Settings

LAST = EVERYWHERE[0].last


def job(job_id: int, priority: int = 0, queue: str = "q") -> Claimed:
    return Claimed(
        job_id, 1, queue, "t", "{}", 1, 0, 3, 3, None, None, None, None, None, [], 0.0, False, priority
    )


def test_a_host_sleeps_until_much_comes_in_and_again_after_a_while_without() -> None:
    wakes = Wakes()
    assert wakes.to_tell(["q", "r"]) == {"q", "r"}
    wakes.told(frozenset({"q", "r"}), 0.0)
    wakes.looked({"q": 1, "r": 1}, {}, 0.5, 0.5)
    assert wakes.to_tell(["q", "r"]) is None
    for n in range(BUSY + 1):
        assert wakes.to_tell(["q", "r"]) is None, "a few notifications change nothing"
        wakes.heard("q", 1.0 + n / 1000)
    assert wakes.to_tell(["q", "r"]) == {"r"}, "nobody is notified of a busy queue"
    wakes.told(frozenset({"r"}), 1.1)
    assert wakes.pause(1.2, 1.0, True) == STEP, "it looks by itself, if it has room"
    assert wakes.pause(1.2, 1.0, False) == 1.0
    wakes.looked({"q": 1, "r": 1}, {"q": 1}, 2.0, 10.0)
    wakes.looked({"q": 1, "r": 1}, {}, 2.0 + QUIET / 2, 10.0)
    wakes.looked({"r": 1}, {}, 9.0, 10.0)  # no room for q: who would be notified?
    assert wakes.to_tell(["q", "r"]) is None
    wakes.looked({"q": 1, "r": 1}, {}, 9.0 + 2 * QUIET, 10.5)
    assert wakes.to_tell(["q", "r"]) == {"q", "r"}
    assert wakes.pause(9.3, 1.0, True) == 1.0


def test_notifications_that_come_slowly_keep_it_asleep() -> None:
    wakes = Wakes()
    wakes.told(frozenset({"q"}), 0.0)
    for n in range(10 * BUSY):
        wakes.heard("q", n * 0.01)
    assert wakes.to_tell(["q"]) is None


def test_who_falls_asleep_looks_again_at_growing_distances() -> None:
    wakes = Wakes()
    wakes.told(frozenset({"q"}), 10.0)
    now = 10.0
    for look in LOOKS:
        assert abs(wakes.pause(now, 1.0, True) - (10.0 + look - now)) < 1e-9
        now = 10.0 + look
        wakes.looked({"q": 1}, {}, now, now + 1.0)
    assert wakes.pause(now, 1.0, True) == 1.0, "then the poll is enough"
    wakes.told(frozenset(), 11.0)
    assert wakes.pause(11.0, 1.0, True) == 1.0, "nothing fell asleep"


def test_a_database_that_forgot_is_told_again() -> None:
    wakes = Wakes()
    wakes.told(frozenset({"q"}), 0.0)
    wakes.sent()
    wakes.looked({"q": 1}, {}, 5.0, 9.0)
    wakes.forget()
    assert not wakes.dry("q", 5.0)
    assert wakes.to_tell(["q"]) == {"q"}
    wakes.told(frozenset({"q"}), 6.0)
    assert 0 < wakes.pause(6.0, 1.0, True) <= LOOKS[0] + 1e-9
    assert [wakes.pause(7.0, 1.0, False) for _ in range(4)] == [0.0, 0.0, 0.0, 1.0], (
        "each look once, room or not"
    )


def asleep(*queues: str) -> Wakes:
    """Of a host that has slept for long, and has just sent a claim."""
    wakes = Wakes()
    wakes.told(frozenset(queues), 0.0)
    wakes.looked({}, {}, 1.0, 1.0)
    wakes.sent()
    return wakes


def test_a_queue_that_gave_less_than_there_was_room_for_is_dry_until_it_is_heard_of() -> None:
    wakes = asleep("q", "r", "s")
    wakes.looked({"q": 2, "r": 2}, {"q": 1, "r": 2}, 10.0, 12.0)
    assert [wakes.dry(queue, 10.1) for queue in "qrs"] == [True, False, False], "the others may have more"
    assert wakes.pause(10.5, 5.0, True) == 1.5, "and for no longer than this"
    assert not wakes.dry("q", 12.0)
    assert [wakes.pause(12.0, 5.0, True), wakes.pause(12.0, 5.0, True)] == [0.0, 5.0], "it is looked at once"
    wakes.sent()
    wakes.looked({"q": 1}, {}, 20.0, 22.0)
    wakes.heard("r", 20.1)
    assert wakes.dry("q", 20.1)
    wakes.heard("q", 20.2)
    assert not wakes.dry("q", 20.2)


def test_what_is_heard_while_a_claim_is_on_its_way_it_may_have_missed() -> None:
    wakes = asleep("q", "r")
    wakes.heard("q", 1.5)
    wakes.looked({"q": 1, "r": 1}, {}, 2.0, 4.0)
    assert (wakes.dry("q", 2.0), wakes.dry("r", 2.0)) == (False, True)
    wakes.sent()
    wakes.stir()
    wakes.looked({"q": 1, "r": 1}, {}, 3.0, 5.0)
    assert (wakes.dry("q", 3.0), wakes.dry("r", 3.0)) == (False, False), "anything may have changed"
    wakes.sent()
    wakes.looked({"q": 1, "r": 1}, {}, 4.0, 6.0)
    assert wakes.dry("q", 4.0)
    wakes.stir()
    assert not wakes.dry("q", 4.0)


def test_a_queue_of_which_nobody_is_notified_is_never_dry() -> None:
    wakes = asleep("r")
    wakes.looked({"q": 1}, {}, 2.0, 4.0)
    assert not wakes.dry("q", 2.0)


def test_while_it_falls_asleep_nothing_stays_dry() -> None:
    wakes = asleep("q")
    wakes.looked({"q": 1}, {}, 2.0, 4.0)
    wakes.told(frozenset({"q", "r"}), 2.1)
    assert not wakes.dry("q", 2.1)
    for look in LOOKS:
        wakes.sent()
        wakes.looked({"q": 1}, {}, 2.1, 4.1)
        assert wakes.dry("q", 2.1)
        assert wakes.pause(2.1 + look, 1.0, True) == 0.0
        assert not wakes.dry("q", 2.1 + look)


def test_hosts_that_share_a_queue_share_the_looks() -> None:
    for hosts, share in ((1, 1), (4, 4), (1000, MAX_SHARE)):
        wakes = asleep("q")
        wakes.hosts = hosts
        for _ in range(BUSY + 1):
            wakes.heard("q", 10.0)
        assert wakes.pause(10.0, 5.0, True) == STEP * share
        wakes.looked({"q": 1}, {}, 10.0 + 0.9 * QUIET * share, 20.0)
        assert wakes.awake("q")
        wakes.looked({"q": 1}, {}, 10.0 + 1.1 * QUIET * share, 20.0)
        assert not wakes.awake("q")


def test_a_full_queue_is_not_asked_about_until_a_claim_finds_less_than_there_was_room_for() -> None:
    wakes = asleep("q", "r")
    wakes.full({"q"})
    assert wakes.to_tell(["q", "r"]) is None, "the database knows"
    wakes.sent()
    wakes.looked({"q": 2}, {"q": 2}, 2.0, 4.0)
    assert wakes.to_tell(["q", "r"]) is None
    assert not wakes.dry("q", 2.0)
    wakes.sent()
    wakes.looked({"q": 2}, {"q": 1}, 3.0, 5.0)
    assert wakes.to_tell(["q", "r"]) == {"q", "r"}
    assert not wakes.dry("q", 3.0), "no host is notified of it yet"


def test_a_host_that_falls_asleep_beside_others_does_not_look_again() -> None:
    wakes = Wakes()
    wakes.told(frozenset({"q"}), 1.0, frozenset())
    assert wakes.pause(1.0, 5.0, True) == 5.0
    wakes.told(frozenset({"q", "r"}), 1.0, frozenset({"r"}))
    assert 0 < wakes.pause(1.0, 5.0, True) <= LOOKS[0]


def test_a_queue_is_polled_when_nothing_was_heard_of_it() -> None:
    wakes = asleep("q", "r")
    for noticed in (True, False):  # that the time is over, before it looks
        wakes.looked({"q": 1, "r": 1}, {}, 2.0, 4.0)
        if noticed:
            assert wakes.pause(4.0, 9.0, True) == 0.0
        wakes.heard("r", 4.0)
        wakes.sent()
        wakes.looked({"q": 1, "r": 1}, {"q": 1, "r": 1}, 4.0, 6.0)
        assert (wakes.polled("q"), wakes.polled("r")) == (True, False)
        wakes.looked({"q": 1}, {}, 4.0, 6.0)
        assert not wakes.polled("q"), "that was the claim before"
        wakes.stir()
        wakes.sent()


class Sharing(Quiet):
    """A database in which other hosts sleep. `sent` are the statements, `claims` what the next claims find."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []
        self.found: list[list[Claimed]] = []

    async def ask(self, query: Query[Any], **how: Any) -> Any:
        self.sent.append(query.statement.name.partition("_aged")[0].partition("_placed")[0])
        if query.statement.name.startswith("claim") and self.found:
            found = self.found.pop(0)
            how["then"](found)
            return found
        return await super().ask(query, **how)


class Crowded(Roomy):
    """Desks with room for as many jobs as `room` says, on a host that shares its queues with others."""

    sharing_hosts = 3

    def __init__(self, queues: str, room: int) -> None:
        super().__init__(queues)
        self.room = room

    def wants(self) -> list[Wants]:
        return [Wants(queue, self.room) for queue in self.desks] if self.room else []

    def take(self, claimed: list[Claimed]) -> None:
        self.room -= len(claimed)


def chosen_host(
    room: int, hints: list[bool], found: list[list[Claimed]], *, sharing: int = 3, rounds: int = 1
) -> list[str]:
    """The statements of a sleeping host that is chosen for jobs: True stands for one job, False for any number."""

    async def story() -> list[str]:
        line, desk = Sharing(), Crowded("q", 1)
        desk.sharing_hosts = sharing
        settings = Settings(poll=3600.0, ageing=0)
        claims = Claims("host", cast("Any", line), cast("Any", desk), Facts(), settings, lambda: True)
        running = asyncio.ensure_future(claims.run())
        claims.forgotten()
        await asyncio.sleep(2 * LOOKS[-1])  # it has fallen asleep
        line.sent.clear()
        line.found, desk.room = found, room
        for _ in range(rounds):
            for is_one_job in hints:
                claims.chosen("q", is_one_job=is_one_job)
            claims.all_heard()
            for _ in range(10):
                await asyncio.sleep(0)
        assert not running.done()
        running.cancel()
        return line.sent

    return asyncio.run(asyncio.wait_for(story(), 60))


@pytest.mark.parametrize(
    ("room", "hints", "found", "sent"),
    [
        (0, [True], [], ["pass_on"]),
        (1, [True], [[job(1)]], ["claim"]),
        (1, [True, True], [[job(1)]], ["claim", "pass_on"]),
        (1, [False], [[job(1)]], ["claim", "pass_on"]),
        (2, [True, True, True], [[job(1)]], ["claim"]),
        (2, [False], [[job(1)]], ["claim"]),
        (1, [True], [], ["claim"]),
    ],
    ids=[
        "no room",
        "room for one",
        "room for one of two",
        "room for one of many",
        "others were faster",
        "all of many",
        "nothing there",
    ],
)
def test_a_chosen_host_passes_on_what_it_has_no_room_for(
    room: int, hints: list[bool], found: list[list[Claimed]], sent: list[str]
) -> None:
    assert chosen_host(room, hints, found) == sent


def test_a_full_host_without_others_passes_nothing_on() -> None:
    assert chosen_host(0, [True], [], sharing=0) == []


def test_however_many_hints_come_a_full_host_sends_few_statements() -> None:
    """Any login can send them."""
    assert chosen_host(0, [True, False] * 50, [], rounds=20).count("pass_on") <= 2


def missed(waited: float, sharing: int) -> list[str]:
    """The statements after the poll of a sleeping host has found a job that had waited for so long."""

    async def story() -> list[str]:
        line, desk = Sharing(), Crowded("q", 2)
        desk.sharing_hosts = sharing
        settings = Settings(poll=3 * LOOKS[-1], ageing=0)
        claims = Claims("host", cast("Any", line), cast("Any", desk), Facts(), settings, lambda: True)
        running = asyncio.ensure_future(claims.run())
        claims.forgotten()
        await asyncio.sleep(2 * LOOKS[-1])  # it has fallen asleep
        line.sent.clear()
        line.found = [[job(1)._replace(waited=waited)], [job(2)._replace(waited=waited)]]
        while line.found:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        running.cancel()
        return line.sent

    return asyncio.run(asyncio.wait_for(story(), 60))


def test_a_host_that_finds_a_missed_job_says_so_once() -> None:
    assert missed(5.0, 3).count("notify_all") == 1
    assert "notify_all" not in missed(MISSED_AFTER_SECONDS / 2, 3), "its host is on its way"
    assert "notify_all" not in missed(5.0, 0), "there is no other host"


def test_room_in_a_dry_queue_is_no_reason_to_look() -> None:
    async def story() -> list[int]:
        line = Quiet()
        claims = claimer(line, Settings(poll=60.0, ageing=0))  # every look is a whole one
        running = asyncio.ensure_future(claims.run())
        claims.forgotten()
        await asyncio.sleep(2 * LOOKS[-1])  # it has fallen asleep
        seen = [len(line.asked)]
        for happens in (claims.room, claims.heard, claims.room):
            happens("q")
            claims.all_heard()
            await asyncio.sleep(0.01)
            seen.append(len(line.asked))
        claims.poke()
        await asyncio.sleep(0.01)
        running.cancel()
        return [*seen, len(line.asked)]

    before, room, heard, room_again, poked = asyncio.run(story())
    assert room == before
    assert heard > room, "the broken twin: it is told that there is something"
    assert room_again == heard
    assert poked > heard


def test_a_look_for_the_oldest_is_followed_by_an_ordinary_one() -> None:
    """It leaves jobs whose task is limited by now to the ordinary look, which must not wait for the poll."""

    async def story() -> list[str]:
        line = Quiet()
        claims = claimer(line, Settings(poll=3600.0, ageing=60.0))
        running = asyncio.ensure_future(claims.run())
        claims.forgotten()
        await asyncio.sleep(2 * LOOKS[-1])  # it has fallen asleep
        line.asked.clear()
        loop = asyncio.get_running_loop()
        until = loop.time() + 60
        while "claim_aged" not in line.names and loop.time() < until:
            claims.heard("q")
            claims.all_heard()
            await asyncio.sleep(0.02)  # not so often that it stops asking to be told
        while line.names[-1] != "claim" and loop.time() < until:
            await asyncio.sleep(0.01)  # nobody is heard of any more
        running.cancel()
        return line.names

    names = asyncio.run(story())
    assert "claim_aged" in names
    assert names[-1] == "claim"


def test_a_look_begins_where_work_was_found_and_leaves_no_priority_out() -> None:
    positions = Positions(60.0)
    assert positions.places(["q"]) == {}, "nothing is known: everywhere"
    positions.found([job(5, 0), job(7, 0), job(3, 9), job(1, 0, "r")])
    places = positions.places(["q", "r", "s"])
    assert places == {
        "q": [
            Range(10, HIGHEST, EVERYWHERE[0].first),
            Range(9, 9, 4),
            Range(1, 8, EVERYWHERE[0].first),
            Range(0, 0, 8),
            Range(LOWEST, -1, EVERYWHERE[0].first),
        ],
        "r": [
            Range(1, HIGHEST, EVERYWHERE[0].first),
            Range(0, 0, 2),
            Range(LOWEST, -1, EVERYWHERE[0].first),
        ],
    }
    positions.found([job(2, 0)])
    assert Range(0, 0, 3) in positions.places(["q"])["q"], "work was found further in front: it goes on there"


def test_the_ends_of_what_a_priority_can_be() -> None:
    positions = Positions(60.0)
    positions.found([job(1, HIGHEST), job(2, LOWEST)])
    assert positions.places(["q"])["q"] == [
        Range(HIGHEST, HIGHEST, 2),
        Range(LOWEST + 1, HIGHEST - 1, EVERYWHERE[0].first),
        Range(LOWEST, LOWEST, 3),
    ]


def test_of_many_priorities_the_ones_last_used_are_remembered() -> None:
    positions = Positions(60.0)
    for priority in range(3 * LEVELS):
        positions.found([job(priority + 1, priority), job(500, 1000)])
    ranges = positions.places(["q"])["q"]
    assert Range(1000, 1000, 501) in ranges
    assert sum(place.low == place.high for place in ranges) == LEVELS


def test_heads_take_a_twentieth_of_the_time() -> None:
    positions = Positions(60.0)
    assert positions.head_is_due(0.0)
    positions.took(0.5, 10.0, head=True, gates=True, jobs=1)
    assert not positions.head_is_due(10.0 + SHARE * 0.5 - 0.01)
    assert positions.head_is_due(10.0 + SHARE * 0.5)
    assert positions.gates_are_due(10.0), "what a head took says nothing about limits"
    positions.took(0.004, 11.0, head=False, gates=True, jobs=1)
    assert positions.gates_are_due(11.0)
    positions.took(0.1, 12.0, head=False, gates=True, jobs=1)
    assert not positions.gates_are_due(12.9)
    assert positions.gates_are_due(13.0)


def test_a_slow_head_is_noticed_however_many_limited_jobs_it_brings() -> None:
    positions = Positions(5.0)
    for _ in range(20):
        positions.took(0.025, 1.0, head=False, gates=True, jobs=500, limited=500)
    positions.took(0.025, 2.0, head=True, gates=True, jobs=500, limited=500)
    assert positions.head_is_due(2.0), "it took no longer than a look at the places only"
    positions.took(0.065, 3.0, head=True, gates=True, jobs=500, limited=500)
    assert [positions.head_is_due(3.0 + after) for after in (0.7, 0.9)] == [False, True]


def test_a_host_looks_again_as_soon_as_it_may_look_where_it_did_not() -> None:
    positions = Positions(5.0)
    positions.took(1.0, 10.0, head=True, gates=True, jobs=0)
    positions.took(0.15, 10.0, head=False, gates=True, jobs=1, limited=1)
    head_at, gates_at = 15.0, pytest.approx(10.15, abs=0.01)
    assert positions.again_at(whole=False, gates=False) == gates_at, (
        "jobs behind limits do not wait for the head"
    )
    assert positions.again_at(whole=True, gates=False) == gates_at
    assert positions.again_at(whole=False, gates=True) == head_at
    assert positions.again_at(whole=True, gates=True) == inf


def steps(positions: Positions, queue: str = "q") -> list[tuple[int, int]]:
    """The ids that the next look goes through before the places, by priority."""
    return [
        (place.first, place.last)
        for place in positions.places([queue], head=True)[queue]
        if place.last < LAST
    ]


def test_a_look_behind_limits_that_brings_many_jobs_is_not_slow() -> None:
    positions = Positions(5.0)
    positions.took(0.03, 10.0, head=False, gates=True, jobs=100, limited=100)
    assert positions.gates_are_due(10.0)
    positions.took(0.1303, 10.0, head=False, gates=True, jobs=0, limited=1)
    assert [positions.gates_are_due(10.0 + after) for after in (0.12, 0.14)] == [False, True], (
        "half of the time"
    )
    positions.took(0.13, 10.0, head=False, gates=True, jobs=0)
    assert [positions.gates_are_due(10.0 + after) for after in (0.9, 1.1)] == [False, True], "a look in vain"
    positions.took(1.0, 20.0, head=False, gates=True, jobs=0)
    assert [positions.gates_are_due(20.0 + after) for after in (2.9, 3.1)] == [False, True], "a very slow one"


def test_a_look_from_the_head_that_became_slow_is_made_in_steps() -> None:
    positions = Positions(60.0)
    place = 10 * LEAST
    positions.found([job(place - 1)])
    assert positions.places(["q"], head=True) == {}, "everywhere"
    positions.took(1.0, 0.0, head=True, gates=True, jobs=1)
    assert steps(positions) == [(place - LEAST, place - 1)]
    assert [r for r in positions.places(["q"])["q"] if r.last < LAST] == [], (
        "and the claims between them have none"
    )
    below, now = place, 1.0
    for _ in range(3):
        assert steps(positions) == [(below - LEAST, below - 1)]
        assert not positions.stepped([], {"q": 5}, now)
        positions.took(1.0, now, head=True, gates=True, jobs=0)
        below -= LEAST
    positions.found([job(place + 7)])
    assert steps(positions) == [(below - LEAST, below - 1)], (
        "what is found at the place does not move the step"
    )
    depth = LEAST
    while not positions.stepped([], {"q": 5}, now):
        positions.took(0.001, now, head=True, gates=True, jobs=0)
        below, depth = below - depth, 2 * depth
        assert steps(positions) == [(below - depth if below > depth else EVERYWHERE[0].first, below - 1)]
    assert not positions._heads._rounds, "the round is over"
    for _ in range(4):
        positions.took(0.001, now, head=True, gates=True, jobs=0)
    assert positions.places(["q"], head=True) == {}, "quick steps have become a look from the head again"


def test_a_step_with_more_jobs_than_room_is_made_again_and_moves_no_place() -> None:
    positions = Positions(60.0)
    positions.found([job(5 * LEAST), job(3 * LEAST, 4)])
    positions.took(1.0, 0.0, head=True, gates=True, jobs=1)
    here = steps(positions)
    assert here == [(4 * LEAST + 1, 5 * LEAST)], "nothing of the other priority is there"
    late = [job(4 * LEAST + n) for n in range(2, 4)]
    assert not positions.stepped(late, {"q": 2}, 1.0)
    positions.found(late)
    assert steps(positions) == here
    assert Range(0, 0, 5 * LEAST + 1) in positions.places(["q"])["q"]
    assert not positions.stepped(late[:1], {"q": 2}, 1.0)
    assert steps(positions) == [(3 * LEAST + 1, 3 * LEAST), (3 * LEAST + 1, 4 * LEAST)][1:]
    assert not positions.stepped([job(6 * LEAST), job(7 * LEAST)], {"q": 2}, 1.0)
    assert steps(positions) == [(2 * LEAST + 1, 3 * LEAST), (2 * LEAST + 1, 3 * LEAST)], (
        "all that there was room for came from the place: it goes on"
    )


def test_a_round_that_takes_long_gets_more_of_the_time_in_steps_as_short_as_before() -> None:
    positions = Positions(5.0)
    positions.found([job(40 * LEAST)])
    positions.took(1.0, 0.0, head=True, gates=True, jobs=1)
    assert not positions.stepped([], {"q": 1}, 1.0)
    positions.took(0.1, 1.0, head=True, gates=True, jobs=0)
    assert not positions.head_is_due(2.9)
    now, asked = 6.1, 1
    while not positions.stepped([], {"q": 1}, now):
        positions.took(0.1, now, head=True, gates=True, jobs=0)
        assert [last - first for first, last in steps(positions) if first > 0] in ([LEAST - 1], [])
        assert not positions.head_is_due(now + HASTE * 0.1 - 0.01)
        assert positions.head_is_due(now + HASTE * 0.1)
        now, asked = now + HASTE * 0.1, asked + 1
    assert asked == 40, "each of them was slow, and none was left out"
    positions.took(0.1, now, head=True, gates=True, jobs=0)
    assert not positions.head_is_due(now + SHARE * 0.1 - 0.01), "the next round is in no haste"


def test_a_look_from_the_head_that_takes_no_longer_than_another_is_made_every_time() -> None:
    positions = Positions(60.0)
    positions.took(0.002, 1.0, head=True, gates=True, jobs=0)
    assert not positions.head_is_due(1.03), "nobody knows how long another takes"
    positions.took(0.002, 1.03, head=False, gates=True, jobs=0)
    positions.took(0.002 + 0.0003, 2.0, head=True, gates=True, jobs=10)
    assert positions.head_is_due(2.0)
    positions.took(0.003, 3.0, head=True, gates=True, jobs=0)
    assert not positions.head_is_due(3.019)
    assert positions.head_is_due(3.0201), "as often as what it takes in addition is a twentieth of the time"


def test_a_database_that_is_far_away_is_not_slow() -> None:
    positions = Positions(5.0)
    positions.found([job(1 << 30)])
    positions.took(0.05, 1.0, head=False, gates=True, jobs=0)
    positions.took(0.05, 1.0, head=True, gates=True, jobs=0)
    assert positions.places(["q"], head=True) == {}


def test_the_oldest_first_is_sought_at_the_places_and_in_steps_of_its_own_when_it_is_slow() -> None:
    positions = Positions(60.0)
    positions.found([job(10 * LEAST), job(8 * LEAST, 7)])
    assert positions.places(["q"], aged=True) == {}, "everywhere"
    positions.took(0.1, 2.0, head=False, gates=True, jobs=0, aged=True)
    assert positions.head_is_due(2.0)
    assert positions.places(["q"], head=True) == {}, "what it took says nothing about the others"
    assert not positions.aged_is_due(3.9)
    assert positions.aged_is_due(4.0)
    for step in (9, 8):
        oldest = positions.places(["q"], aged=True)["q"]
        assert Range(0, 0, step * LEAST + 1, (step + 1) * LEAST) in oldest
        assert {Range(0, 0, 10 * LEAST + 1), Range(7, 7, 8 * LEAST + 1)} <= set(oldest)
        assert not positions.stepped([], {"q": 5}, 4.0, aged=True)


def test_a_slow_answer_does_not_keep_the_head_from_being_looked_at() -> None:
    """Three seconds of a slow network would be a minute, and a job that was given back waits in front of idle workers."""
    positions = Positions(5.0)
    positions.took(3.0, 10.0, head=True, gates=True, jobs=0)
    assert positions.head_is_due(15.0)
    positions.took(3.0, 20.0, head=False, gates=True, jobs=0)
    assert positions.gates_are_due(25.0)


def test_a_large_claim_is_handed_over_in_pieces_and_others_have_their_turn_in_between() -> None:
    class Desk:
        def __init__(self) -> None:
            self.taken: list[int] = []

        def take(self, claimed: list[int]) -> None:
            assert len(claimed) <= PIECE
            self.taken += claimed
            time.sleep(2 * TURN)  # those who were woken have the core

    async def story() -> tuple[list[int], list[int]]:
        desk, seen = Desk(), list[int]()
        claims = Claims("host", cast("Any", None), cast("Any", desk), Facts(), Settings(), lambda: True)

        async def other() -> None:
            while len(desk.taken) < 5 * PIECE:
                seen.append(len(desk.taken))
                await asyncio.sleep(0)

        waiting = asyncio.ensure_future(other())
        claimed = cast("Any", list(range(5 * PIECE)))
        claims._hand_first(claimed)
        await claims._hand_over(claimed)
        await waiting
        return desk.taken, seen

    taken, seen = asyncio.run(story())
    assert taken == list(range(5 * PIECE)), "all of it, in its order"
    assert {PIECE, 2 * PIECE, 3 * PIECE, 4 * PIECE} <= set(seen)
