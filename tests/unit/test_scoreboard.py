from __future__ import annotations

from pgworkers.process.scoreboard import FIELDS, Field, Reason, Scoreboard, Slot, State, now
from pgworkers.worker.attempt import Feed


def test_fields_do_not_overlap_and_slots_are_apart() -> None:
    indexes = [field.index for field in vars(Slot).values() if isinstance(field, Field)]
    assert len(indexes) == len(set(indexes))
    assert max(indexes) < FIELDS
    board = Scoreboard(3)
    for number, slot in enumerate(board.slots):
        for index in range(FIELDS):
            slot.view[index] = number * 100 + index
    for number, slot in enumerate(board.slots):
        assert list(slot.view) == [number * 100 + index for index in range(FIELDS)]


def test_numbers_are_64_bit_and_signed() -> None:
    slot = Scoreboard(1)[0]
    slot.job = 2**63 - 1
    slot.progress = -1
    assert (slot.job, slot.progress) == (2**63 - 1, -1)


def test_a_job_is_seen_from_its_lease_to_its_end() -> None:
    slot = Scoreboard(1)[0]
    assert slot.running().job == 0
    slot.begin(7, 3, started=10, deadline=20, memory=30, cpu=40, output=50)
    seen = slot.running()
    assert (seen.job, seen.lease, seen.state) == (7, 3, State.RUNNING)
    assert (seen.started, seen.deadline, seen.memory) == (10, 20, 30)
    assert (seen.cpu_before, seen.output_from) == (40, 50)
    slot.lease = 0  # half way through `end`: no lease, no job
    assert slot.running().job == 0
    slot.extended, slot.loop = 1, 1
    slot.end()
    assert (slot.running().job, slot.state, slot.deadline, slot.memory) == (0, State.IDLE, 0, 0)
    assert (slot.job, slot.extended, slot.loop) == (0, 0, 0)


def test_a_job_writes_the_fields_that_are_meant_and_no_others() -> None:
    """They are written in a row, by their places."""
    slot = Scoreboard(1)[0]
    ours = set(range(vars(Slot)["started"].index, vars(Slot)["lease"].index + 1))
    for index in range(FIELDS):
        slot.view[index] = 99
    slot.begin(7, 3, started=10, deadline=20, memory=30, cpu=40, output=50, exclusive=1, stall=60)
    assert (slot.exclusive, slot.stall, slot.progress, slot.extended, slot.loop) == (1, 60, -1, 0, 0)
    slot.end()
    assert {index for index in range(FIELDS) if slot.view[index] == 99} == set(range(FIELDS)) - ours


def test_a_wish_hits_only_its_own_job_and_lease() -> None:
    slot = Scoreboard(1)[0]
    assert slot.wished(7, 3) == 0
    slot.wish(7, 3, Reason.CANCEL, asked=100)
    assert slot.wished(7, 3) == Reason.CANCEL
    assert slot.wished(7, 4) == 0
    assert slot.wished(8, 3) == 0
    slot.raised = 5
    slot.wish(7, 3, Reason.DEADLINE, asked=200)  # latched: the first reason stays
    assert (slot.wished(7, 3), slot.asked, slot.raised) == (Reason.CANCEL, 100, 5)
    slot.wish(8, 1, Reason.MEMORY, asked=300)
    assert (slot.wished(7, 3), slot.wished(8, 1), slot.raised) == (0, Reason.MEMORY, 0)


def test_no_job_is_never_wished_for() -> None:
    """An idle slot is all zero, and so is an empty wish: they must not match."""
    slot = Scoreboard(1)[0]
    assert not slot.wished(0, 0)


def test_a_deadline_moves_as_far_as_the_whole_job_may_take_and_for_this_job_alone() -> None:
    slot = Scoreboard(1)[0]
    soon = now() + 10_000_000_000
    slot.begin(7, 3, started=10, deadline=soon, memory=0, cpu=0, output=0)
    feed = Feed(slot, 7, 3, longest=5_000_000_000)
    feed.extend(2.0)
    assert slot.running().deadline == soon + 2_000_000_000
    slot.deadline += 1  # the supervisor's: it was suspended
    feed.extend(60.0)
    assert slot.running().deadline == soon + 1 + 5_000_000_000
    slot.end()
    slot.begin(8, 1, started=10, deadline=0, memory=0, cpu=0, output=0)
    feed = Feed(slot, 8, 1, longest=5_000_000_000)
    assert slot.due() == 0
    feed.extend(2.0)
    assert (slot.due(), feed.remaining()) == (0, None), "there was no limit, and there is none"
