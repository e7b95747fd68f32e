"""Descriptors 0, 1 and 2 are there, whatever the parent closed: else the next file or socket becomes stdout."""

from __future__ import annotations

import os
import sys


def ensure() -> None:
    """Open /dev/null where stdin, stdout or stderr is closed; children inherit it."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(_null(fd), True)
        if getattr(sys, name) is None:
            mode = "r" if fd == 0 else "w"
            stream = open(fd, mode, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def _null(fd: int) -> int:
    opened = os.open(os.devnull, os.O_RDWR)
    if opened != fd:
        os.dup2(opened, fd)
        os.close(opened)
    return fd
