"""Words to the service manager, through real datagram sockets."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgworkers.linux import sd_notify


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(5)
        yield sock


def test_words_arrive_as_one_datagram(manager: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": manager.getsockname(), "HOME": "/"}
    speaker = sd_notify.from_environment(environ)
    speaker.notify(READY=1, STATUS="3/6 busy\nREADY=0")
    assert manager.recv(4096) == b"READY=1\nSTATUS=3/6 busy READY=0"  # a text cannot add a line
    assert environ == {"HOME": "/"}
    speaker.close()
    speaker.notify(READY=1)


def test_an_abstract_socket_is_spoken_to() -> None:
    name = f"pgworkers-test-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name}")
        sock.settimeout(5)
        speaker = sd_notify.from_environment({"NOTIFY_SOCKET": f"@{name}"})
        speaker.notify(STOPPING=1)
        assert sock.recv(100) == b"STOPPING=1"
        speaker.close()


def test_a_watchdog_is_kept_only_if_its_pid_is_our_own(manager: socket.socket) -> None:
    def period(**words: str) -> float | None:
        speaker = sd_notify.from_environment({"NOTIFY_SOCKET": manager.getsockname(), **words})
        speaker.close()
        return speaker.watchdog_seconds

    assert period(WATCHDOG_USEC="3000000") == 3.0
    assert period(WATCHDOG_USEC="3000000", WATCHDOG_PID=str(os.getpid())) == 3.0
    assert period(WATCHDOG_USEC="3000000", WATCHDOG_PID="1") is None
    assert period(WATCHDOG_USEC="0") is None
    assert period(WATCHDOG_USEC="soon") is None
    assert sd_notify.from_environment({"WATCHDOG_USEC": "3000000"}).watchdog_seconds is None


@pytest.mark.parametrize("address", ["", "@", "/", "relative", "vsock:2:1234"])
def test_without_a_socket_nothing_is_sent(address: str) -> None:
    speaker = sd_notify.from_environment({"NOTIFY_SOCKET": address})
    assert not speaker.is_connected
    speaker.notify(READY=1)


def test_a_manager_that_is_gone_or_does_not_read_costs_nothing(manager: socket.socket) -> None:
    speaker = sd_notify.from_environment({"NOTIFY_SOCKET": manager.getsockname()})
    for _ in range(5000):  # more than any buffer holds: it must not wait
        speaker.notify(WATCHDOG=1)
    os.unlink(manager.getsockname())
    speaker.notify(READY=1)
    speaker.close()
