"""Packets with descriptors over a socket whose other end may be asleep."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator

import pytest

from pgworkers.ipc.packets import MAX_PACKET_BYTES, PacketSocket


@pytest.fixture
def ends() -> Iterator[tuple[PacketSocket, PacketSocket]]:
    one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, two:
        yield PacketSocket(one), PacketSocket(two)


def test_packets_keep_their_order_and_their_borders(ends: tuple[PacketSocket, PacketSocket]) -> None:
    sender, receiver = ends
    sent = [b"x" * size for size in (1, 100, MAX_PACKET_BYTES, 7)]
    found: list[bytes] = []
    for data in sent:
        sender.send(data)
        found += [data for data, _ in receiver.receive() or []]
    assert found == sent


def test_a_reader_that_sleeps_costs_no_time_and_loses_nothing(
    ends: tuple[PacketSocket, PacketSocket],
) -> None:
    sender, receiver = ends
    for number in range(5000):
        sender.send(b"%d" % number)
    assert sender.unsent_count > 0
    found: list[bytes] = []
    while len(found) < 5000:
        found += [data for data, _ in receiver.receive() or []]
        sender.flush()
    assert found == [b"%d" % number for number in range(5000)]
    assert sender.unsent_count == 0


def test_descriptors_travel_and_are_closed_here(ends: tuple[PacketSocket, PacketSocket]) -> None:
    sender, receiver = ends
    gc.collect()  # what earlier tests left must not be closed in between
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        reader, writer = os.pipe()
        sender.send(b"here", writer)
        packets = receiver.receive()
        assert packets is not None
        [(_, [theirs])] = packets
        os.write(theirs, b"through")
        os.close(theirs)
        assert os.read(reader, 10) == b"through"
        assert os.read(reader, 10) == b"", "no copy is left open"
        os.close(reader)
    assert len(os.listdir("/proc/self/fd")) == before


def test_send_and_receive_after_the_peer_is_gone(ends: tuple[PacketSocket, PacketSocket]) -> None:
    sender, receiver = ends
    receiver.send(b"last words")
    receiver.sock.close()
    assert sender.receive() == [(b"last words", [])]
    assert sender.receive() is None
    _, writer = pipe = os.pipe()
    sender.send(b"lost", writer)
    assert sender.is_broken
    assert sender.unsent_count == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(writer)
    os.close(pipe[0])


def test_too_large_is_refused_at_once(ends: tuple[PacketSocket, PacketSocket]) -> None:
    with pytest.raises(ValueError, match="larger than"):
        ends[0].send(b"x" * (MAX_PACKET_BYTES + 1))
