"""The page that says until when leases hold: one writer, and nobody else can become one."""

from __future__ import annotations

import mmap
import os

import pytest

from pgworkers.clock import boottime
from pgworkers.process.term import OwnTerm, Term


def test_readers_see_what_the_writer_moved_on_and_never_back() -> None:
    own = OwnTerm()
    term = Term(os.dup(own.fd))
    assert (term.until, own.holds()) == (0, False)
    own.move(boottime() + 60.0)
    promised = term.until
    assert own.holds()
    own.move(boottime() + 10.0)  # an answer that was long on its way
    assert term.until == promised
    os.close(own.fd)


def test_who_has_only_the_descriptor_cannot_write() -> None:
    own = OwnTerm()
    with pytest.raises(PermissionError):
        os.pwrite(own.fd, b"\xff" * 8, 0)
    with pytest.raises(PermissionError):
        mmap.mmap(own.fd, mmap.PAGESIZE)
    with pytest.raises(PermissionError):
        os.ftruncate(own.fd, 0)
    again = os.open(f"/proc/self/fd/{own.fd}", os.O_RDWR)
    with pytest.raises(PermissionError):
        os.pwrite(again, b"\xff" * 8, 0)
    os.close(again)
    os.close(own.fd)
