"""A page that outlives its writer: what is laid there, what a reader sees of it, and when."""

from __future__ import annotations

import mmap
import os
import signal
import socket
from collections.abc import Iterator

import pytest

from pgworkers.process import shelf
from pgworkers.process.descriptors import Channel
from pgworkers.process.shelf import ROOM, SIZE, Shelf
from pgworkers.worker.outbox import Outbox


@pytest.fixture
def page() -> Iterator[int]:
    fd = shelf.make()
    yield fd
    os.close(fd)


def test_what_lies_there_is_read_until_it_was_sent(page: int) -> None:
    writer = Shelf(os.dup(page))
    assert shelf.read(page) == b""
    assert writer.lay(b"one")
    assert writer.lay(b"two")
    assert shelf.read(page) == writer.lying() == b"onetwo"
    writer.clear()
    assert (shelf.read(page), writer.lying(), writer.used) == (b"", b"", 0)
    assert writer.lay(b"three")
    assert shelf.read(page) == b"three"


def test_there_is_room_for_a_page(page: int) -> None:
    writer = Shelf(os.dup(page))
    assert writer.lay(b"x" * (ROOM - 10))
    assert not writer.lay(b"y" * 11)
    assert writer.lay(b"z" * 10)
    assert shelf.read(page) == b"x" * (ROOM - 10) + b"z" * 10


def test_a_reader_that_was_overtaken_has_nothing(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Shelf(os.dup(page))
    writer.lay(b"old")
    pread = os.pread

    def slow(fd: int, length: int, at: int) -> bytes:
        found = pread(fd, length, at)
        if at == 0 and writer.lying() == b"old":
            writer.clear()
            writer.lay(b"newer")
        return found

    monkeypatch.setattr(os, "pread", slow)
    assert shelf.read(page) == b"", "half of it may be newer"
    assert shelf.read(page) == b"newer"


@pytest.mark.parametrize("word", [-1, SIZE, 1, 1 << 62])
def test_a_page_that_somebody_wrote_over_is_empty(page: int, word: int) -> None:
    mmap.mmap(page, SIZE)[:8] = word.to_bytes(8, "little", signed=True)
    assert shelf.read(page) == b""


def test_a_frame_that_has_not_arrived_yet_is_not_there(page: int) -> None:
    """As a processor may show it that lets the word overtake the frame."""
    Shelf(os.dup(page)).lay(b"one")
    seen = mmap.mmap(page, SIZE)
    seen[8:11] = b"\0\0\0"
    assert shelf.read(page) == b""
    seen[8:11] = b"one"
    assert shelf.read(page) == b"one"


def test_a_killed_writer_leaves_what_it_laid_down(page: int) -> None:
    pid = os.fork()
    if pid == 0:
        Shelf(os.dup(page)).lay(b"done")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert shelf.read(page) == b"done"


def test_what_is_sent_takes_along_what_lies_there_and_goes_behind_it(page: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        outbox = Outbox()
        outbox.sock, outbox.shelf = Channel(theirs), Shelf(os.dup(page))
        outbox.lay(b"one,")
        outbox.lay(b"two,")
        with pytest.raises(BlockingIOError):
            ours.recv(100)
        outbox.send(b"three")
        assert (ours.recv(100), shelf.read(page)) == (b"one,two,three", b"")
        outbox.send_waiting()
        with pytest.raises(BlockingIOError):
            ours.recv(100)
        outbox.lay(b"x" * SIZE)
        assert ours.recv(2 * SIZE) == b"x" * SIZE, "what has no room is sent at once"
        outbox.lay(b"four")
        outbox.send_waiting()
        assert (ours.recv(100), shelf.read(page)) == (b"four", b"")
