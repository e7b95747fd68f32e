"""The table of moves of a worker's state, and the channel that keeps to it."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from pgworkers.ipc import tickets
from pgworkers.master.worker_channel import STARTED_STATES, WORKER_MOVES, ChannelDescriptors, WorkerChannel
from pgworkers.states import WorkerState


def test_every_state_has_its_moves_and_all_but_the_first_are_reached() -> None:
    assert set(WORKER_MOVES) == set(WorkerState)
    assert {state for moves in WORKER_MOVES.values() for state in moves} == set(WorkerState) - {
        WorkerState.BOOTING
    }
    assert not WORKER_MOVES[WorkerState.GONE]
    assert all(
        WorkerState.GONE in moves for state, moves in WORKER_MOVES.items() if state is not WorkerState.GONE
    )
    assert STARTED_STATES.isdisjoint({WorkerState.BOOTING, WorkerState.LEAVING, WorkerState.GONE})


@pytest.mark.parametrize("first", WorkerState)
def test_a_worker_makes_only_the_moves_of_the_table(first: WorkerState) -> None:
    async def scene() -> None:
        for then in WorkerState:
            ours, theirs = socket.socketpair()
            ticket_reader, ticket_writer = tickets.create_pipe()
            worker = WorkerChannel(
                queue="default",
                slot=0,
                pid=os.getpid(),
                incarnation=1,
                version="v1",
                descriptors=ChannelDescriptors(ours, ticket_reader, ticket_writer, None),
                on_frames=lambda worker, frames: None,
                on_closed=lambda worker: None,
                send_to_supervisor=lambda command: None,
            )
            worker.state = first
            worker.move_to(then)
            assert worker.state is (then if then is first or then in WORKER_MOVES[first] else first)
            worker.dispose()
            theirs.close()

    asyncio.run(scene())
