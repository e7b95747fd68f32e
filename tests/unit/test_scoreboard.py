from __future__ import annotations

import ctypes

import msgspec

from pgworkers.clock import boottime_ns
from pgworkers.ipc.scoreboard import SLOT_BYTES, Scoreboard, Slot, SlotState, StopReason
from pgworkers.worker.attempt import SlotControl

NAMES = [field[0] for field in Slot._fields_]


def values(slot: Slot) -> list[int]:
    return [getattr(slot, name) for name in NAMES]


def fill(slot: Slot, first: int) -> None:
    for number, name in enumerate(NAMES, first):
        setattr(slot, name, number)


def test_fields_do_not_overlap_and_slots_are_apart() -> None:
    assert sorted(NAMES) == sorted(name for name in Slot.__annotations__ if not name.startswith("_"))
    assert ctypes.sizeof(Slot) == 8 * len(NAMES) <= SLOT_BYTES
    board = Scoreboard(3)
    for number, slot in enumerate(board.slots):
        fill(slot, number * 100)
    for number, slot in enumerate(board.slots):
        assert values(slot) == list(range(number * 100, number * 100 + len(NAMES)))
    board[1].clear()
    assert set(values(board[1])) == {0}
    assert values(board[2])[0] == 200


def test_numbers_are_64_bit_and_signed() -> None:
    slot = Scoreboard(1)[0]
    slot.job = 2**63 - 1
    slot.progress_permille = -1
    assert (slot.job, slot.progress_permille) == (2**63 - 1, -1)


def test_a_job_is_seen_from_its_lease_to_its_end() -> None:
    slot = Scoreboard(1)[0]
    assert slot.read_job().job == 0
    slot.begin_job(
        job=7, lease=3, started_at=10, deadline=20, memory_limit=30, cpu_at_start=40, output_start=50
    )
    seen = slot.read_job()
    assert (seen.job, seen.lease, seen.state) == (7, 3, SlotState.RUNNING)
    assert (seen.started_at, seen.deadline, seen.memory_limit) == (10, 20, 30)
    assert (seen.cpu_at_start, seen.output_start) == (40, 50)
    slot.lease = 0  # half way through `end`: no lease, no job
    assert slot.read_job().job == 0
    slot.deadline_extension, slot.has_event_loop = 1, 1
    slot.end_job()
    assert (slot.read_job().job, slot.state, slot.deadline, slot.memory_limit) == (0, SlotState.IDLE, 0, 0)
    assert (slot.job, slot.deadline_extension, slot.has_event_loop) == (0, 0, 0)


def test_a_job_writes_the_fields_that_are_meant_and_no_others() -> None:
    slot = Scoreboard(1)[0]
    fill(slot, 1000)
    slot.begin_job(
        job=7,
        lease=3,
        started_at=10,
        deadline=20,
        memory_limit=30,
        cpu_at_start=40,
        output_start=50,
        is_exclusive=True,
        stall_timeout=60,
    )
    assert (
        slot.is_exclusive,
        slot.stall_timeout,
        slot.progress_permille,
        slot.deadline_extension,
        slot.has_event_loop,
    ) == (1, 60, -1, 0, 0)
    slot.end_job()
    ours = NAMES[NAMES.index("started_at") : NAMES.index("lease") + 1]
    assert [name for name in NAMES if getattr(slot, name) < 1000] == ours


def test_a_stop_request_applies_only_to_its_job_and_lease() -> None:
    slot = Scoreboard(1)[0]
    assert slot.stop_requested_for(7, 3) == 0
    slot.request_stop(7, 3, StopReason.CANCEL, requested_at=100)
    assert slot.stop_requested_for(7, 3) == StopReason.CANCEL
    assert slot.stop_requested_for(7, 4) == 0
    assert slot.stop_requested_for(8, 3) == 0
    slot.raise_signal_sent_at = 5
    slot.request_stop(7, 3, StopReason.DEADLINE, requested_at=200)  # latched: the first reason stays
    assert (slot.stop_requested_for(7, 3), slot.stop_requested_at, slot.raise_signal_sent_at) == (
        StopReason.CANCEL,
        100,
        5,
    )
    slot.request_stop(8, 1, StopReason.MEMORY, requested_at=300)
    assert (slot.stop_requested_for(7, 3), slot.stop_requested_for(8, 1), slot.raise_signal_sent_at) == (
        0,
        StopReason.MEMORY,
        0,
    )


def test_an_idle_slot_has_no_stop_request() -> None:
    """An idle slot is all zero, and so is an empty stop request: they must not match."""
    slot = Scoreboard(1)[0]
    assert not slot.stop_requested_for(0, 0)


def test_a_deadline_moves_as_far_as_the_whole_job_may_take_and_for_this_job_alone() -> None:
    slot = Scoreboard(1)[0]
    soon = boottime_ns() + 10_000_000_000
    slot.begin_job(
        job=7, lease=3, started_at=10, deadline=soon, memory_limit=0, cpu_at_start=0, output_start=0
    )
    feed = SlotControl(slot, 7, 3, max_extension=5_000_000_000)
    feed.extend(2.0)
    assert slot.read_job().deadline == soon + 2_000_000_000
    slot.deadline += 1  # the supervisor's: it was suspended
    feed.extend(60.0)
    assert slot.read_job().deadline == soon + 1 + 5_000_000_000
    slot.end_job()
    slot.begin_job(job=8, lease=1, started_at=10, deadline=0, memory_limit=0, cpu_at_start=0, output_start=0)
    feed = SlotControl(slot, 8, 1, max_extension=5_000_000_000)
    assert slot.effective_deadline() == 0
    feed.extend(2.0)
    assert (slot.effective_deadline(), feed.seconds_left()) == (0, None), (
        "there was no limit, and there is none"
    )


def test_a_reason_that_only_a_newer_version_knows_is_a_kill() -> None:
    assert msgspec.json.decode(b"99", type=StopReason) is StopReason.KILL
