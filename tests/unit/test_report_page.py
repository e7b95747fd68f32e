"""A page that outlives its writer: what is laid there, what a reader sees of it, and when."""

from __future__ import annotations

import mmap
import os
import signal
import socket
from collections.abc import Iterator

import pytest

from pgworkers.ipc import report_page
from pgworkers.ipc.report_page import CAPACITY_BYTES, PAGE_BYTES, ReportPage
from pgworkers.linux.descriptors import OwnedSocket
from pgworkers.worker.channel import ReportOutbox


@pytest.fixture
def page() -> Iterator[int]:
    fd = report_page.create()
    yield fd
    os.close(fd)


def test_what_lies_there_is_read_until_it_was_sent(page: int) -> None:
    writer = ReportPage(os.dup(page))
    assert report_page.read(page) == b""
    assert writer.append(b"one")
    assert writer.append(b"two")
    assert report_page.read(page) == writer.unsent() == b"onetwo"
    writer.clear()
    assert (report_page.read(page), writer.unsent(), writer.used_bytes) == (b"", b"", 0)
    assert writer.append(b"three")
    assert report_page.read(page) == b"three"


def test_there_is_room_for_a_page(page: int) -> None:
    writer = ReportPage(os.dup(page))
    assert writer.append(b"x" * (CAPACITY_BYTES - 10))
    assert not writer.append(b"y" * 11)
    assert writer.append(b"z" * 10)
    assert report_page.read(page) == b"x" * (CAPACITY_BYTES - 10) + b"z" * 10


def test_a_reader_that_was_overtaken_has_nothing(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ReportPage(os.dup(page))
    writer.append(b"old")
    pread = os.pread

    def slow(fd: int, length: int, at: int) -> bytes:
        found = pread(fd, length, at)
        if at == 0 and writer.unsent() == b"old":
            writer.clear()
            writer.append(b"newer")
        return found

    monkeypatch.setattr(os, "pread", slow)
    assert report_page.read(page) == b"", "half of it may be newer"
    assert report_page.read(page) == b"newer"


@pytest.mark.parametrize("word", [-1, PAGE_BYTES, 1, 1 << 62])
def test_an_overwritten_page_is_empty(page: int, word: int) -> None:
    mmap.mmap(page, PAGE_BYTES)[:8] = word.to_bytes(8, "little", signed=True)
    assert report_page.read(page) == b""


def test_a_frame_that_has_not_arrived_yet_is_not_there(page: int) -> None:
    """As a processor may show it that lets the word overtake the frame."""
    ReportPage(os.dup(page)).append(b"one")
    seen = mmap.mmap(page, PAGE_BYTES)
    seen[8:11] = b"\0\0\0"
    assert report_page.read(page) == b""
    seen[8:11] = b"one"
    assert report_page.read(page) == b"one"


def test_a_killed_writer_leaves_what_it_laid_down(page: int) -> None:
    pid = os.fork()
    if pid == 0:
        ReportPage(os.dup(page)).append(b"done")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert report_page.read(page) == b"done"


def test_what_is_sent_takes_along_what_lies_there_and_goes_behind_it(page: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        outbox = ReportOutbox()
        outbox.socket, outbox.report_page = OwnedSocket(theirs), ReportPage(os.dup(page))
        outbox.queue(b"one,", now=0)
        outbox.queue(b"two,", now=0)
        with pytest.raises(BlockingIOError):
            ours.recv(100)
        outbox.send(b"three")
        assert (ours.recv(100), report_page.read(page)) == (b"one,two,three", b"")
        outbox.flush()
        with pytest.raises(BlockingIOError):
            ours.recv(100)
        outbox.queue(b"x" * PAGE_BYTES, now=0)
        assert ours.recv(2 * PAGE_BYTES) == b"x" * PAGE_BYTES, "what has no room is sent at once"
        outbox.queue(b"four", now=0)
        outbox.flush()
        assert (ours.recv(100), report_page.read(page)) == (b"four", b"")


def test_a_frame_waits_two_milliseconds_at_most_while_others_follow(page: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        outbox = ReportOutbox()
        outbox.socket, outbox.report_page = OwnedSocket(theirs), ReportPage(os.dup(page))
        outbox.queue(b"one,", now=5_000_000)
        outbox.queue(b"two,", now=6_999_999)
        with pytest.raises(BlockingIOError):
            ours.recv(100)
        outbox.queue(b"three,", now=7_000_000)
        assert (ours.recv(100), report_page.read(page)) == (b"one,two,three,", b"")
        outbox.queue(b"four,", now=9_000_000)
        assert report_page.read(page) == b"four,", "it is the oldest now"
