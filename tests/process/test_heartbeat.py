"""A heartbeat thread that rests, and the job that wakes it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.cluster import wait_for

from pgworkers.ipc.scoreboard import Scoreboard, SlotState
from pgworkers.settings import Settings
from pgworkers.worker import heartbeat
from pgworkers.worker.heartbeat import IDLE_BEATS_BEFORE_REST, Heartbeat

BEAT = 0.001


@pytest.fixture
def resting(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Heartbeat, threading.Thread]]:
    """A heartbeat after enough beats without a job, in a rest without end."""
    monkeypatch.setattr(heartbeat, "IDLE_BEAT_FACTOR", 1_000_000)
    slot = Scoreboard(1)[0]
    slot.state = SlotState.IDLE
    ours, theirs = socket.socketpair()
    with ours, theirs:
        setup = cast("Any", SimpleNamespace(slot=slot, settings=Settings()))  # a sleep needs no more of it
        beats = Heartbeat(setup, cast("Any", None))
        for _ in range(IDLE_BEATS_BEFORE_REST):
            beats._sleep(BEAT)
        assert not beats.is_resting, "whoever has just had a job beats as ever"
        thread = threading.Thread(target=beats._sleep, args=(BEAT,), daemon=True)
        thread.start()
        wait_for(lambda: beats.is_resting)
        yield beats, thread
        beats.wake()
        thread.join(60)


def test_a_job_ends_the_rest_at_once(resting: tuple[Heartbeat, threading.Thread]) -> None:
    beats, thread = resting
    assert thread.is_alive()
    beats.wake()
    thread.join(60)
    assert not thread.is_alive(), "the rest would have taken a quarter of an hour"


def test_without_the_wake_it_would_rest_on(resting: tuple[Heartbeat, threading.Thread]) -> None:
    _, thread = resting
    thread.join(0.05)
    assert thread.is_alive()


def test_waking_one_that_does_not_rest_means_nothing(resting: tuple[Heartbeat, threading.Thread]) -> None:
    beats, thread = resting
    for _ in range(5):
        beats.wake()
    thread.join(60)
    beats.is_resting = True  # as if it had timed out between our look and our word
    beats.wake()
    beats.is_resting = True
    beats.wake()
    assert not beats.is_resting
