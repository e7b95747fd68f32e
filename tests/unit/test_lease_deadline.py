"""The page with the lease deadline has one writer, and no other process can become one."""

from __future__ import annotations

import mmap
import os

import pytest

from pgworkers.clock import boottime
from pgworkers.ipc.lease_deadline import LeaseDeadline, LeaseDeadlineWriter


def test_readers_see_what_the_writer_moved_on_and_never_back() -> None:
    own = LeaseDeadlineWriter()
    term = LeaseDeadline(os.dup(own.fd))
    assert (term.expires_at, own.is_held()) == (0, False)
    own.extend_to(boottime() + 60.0)
    promised = term.expires_at
    assert own.is_held()
    own.extend_to(boottime() + 10.0)  # an answer that was long on its way
    assert term.expires_at == promised
    os.close(own.fd)


def test_a_process_with_only_the_descriptor_cannot_write() -> None:
    own = LeaseDeadlineWriter()
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
