"""A terminal for tests: a pty with a program in it, and what its screen shows."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

OWN_TERMINAL = """\
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
_CSI = re.compile(rb"\x1b\[([?\d;]*)([A-Za-z])")


class Screen:
    """A program in a terminal of `columns` x `lines`. It knows what a full-screen program needs to send, and no more."""

    def __init__(
        self,
        program: Sequence[str],
        environ: Mapping[str, str],
        columns: int = 80,
        lines: int = 24,
    ) -> None:
        self._master, slave = pty.openpty()
        self.columns, self.lines = columns, lines
        self._slave = slave  # kept open: the terminal's settings are looked at when the program has ended
        self._widest = (
            columns  # what may be drawn: after a resize, a frame of the size before is still on its way
        )
        self.resize(columns, lines)
        self.settings = termios.tcgetattr(slave)
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWN_TERMINAL, *program],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environ, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        self.modes: dict[str, bool] = {}
        self.raw = b""
        self._cells = [[" "] * columns for _ in range(lines)]
        self._row = self._column = 0
        self._pending = b""

    def resize(self, columns: int, lines: int) -> None:
        self._widest = max(self._widest, columns)
        self.columns, self.lines = columns, lines
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._cells = [[" "] * columns for _ in range(lines)]
        if hasattr(self, "process"):
            self.process.send_signal(signal.SIGWINCH)

    def type(self, keys: str | bytes) -> None:
        os.write(self._master, keys.encode() if isinstance(keys, str) else keys)

    def text(self) -> str:
        """What the screen shows now."""
        self._read(0)
        return "\n".join("".join(row).rstrip() for row in self._cells)

    def until(self, fact: str | Callable[[str], Any], timeout: float = 60.0) -> str:
        """Wait for a text, or for what `fact` says of the screen."""
        give_up = time.monotonic() + timeout
        while True:
            shown = self.text()
            if fact in shown if isinstance(fact, str) else fact(shown):
                return shown
            assert time.monotonic() < give_up, f"not within {timeout} s: {fact!r} on\n{shown}"
            self._read(0.05)

    def wait(self, timeout: float = 60.0) -> int:
        """Its exit code; what it still wrote is read."""
        give_up = time.monotonic() + timeout
        while self.process.poll() is None:
            assert time.monotonic() < give_up, f"it did not end:\n{self.text()}"
            self._read(0.05)
        self._read(0)
        return self.process.returncode

    def restored(self) -> bool:
        """True if the terminal has its earlier settings and shows the shell's screen."""
        self._read(0)
        off = not self.modes.get("?1049", False)
        seen = self.modes.get("?25", True) and self.modes.get("?7", True)
        return off and seen and termios.tcgetattr(self._slave) == self.settings

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        os.close(self._master)
        os.close(self._slave)

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, wait: float) -> None:
        while select.select([self._master], [], [], wait)[0]:
            wait = 0
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:
                return
            self.raw += data
            self._feed(self._pending + data)

    def _feed(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            byte = data[at]
            if byte == 0x1B:
                found = _CSI.match(data, at)
                if found is None:
                    if len(data) - at < 16:
                        break  # the rest comes with the next read
                    raise AssertionError(f"an unknown sequence: {data[at : at + 16]!r}")
                self._obey(found[1].decode(), found[2].decode())
                at = found.end()
            elif byte in (0x0D, 0x0A):
                self._column = 0 if byte == 0x0D else self._column
                self._row += byte == 0x0A
                at += 1
            elif byte < 0x20:
                raise AssertionError(f"a control character: {byte:#x} in {data[max(0, at - 40) : at + 20]!r}")
            else:
                end = at + 1
                while end < len(data) and data[end] & 0xC0 == 0x80:
                    end += 1
                if end == len(data) and byte >= 0xC0:
                    break
                self._put(data[at:end].decode("utf-8", "replace"))
                at = end
        self._pending = data[at:]

    def _obey(self, numbers: str, what: str) -> None:
        if what == "H":
            row, _, column = numbers.partition(";")
            self._row, self._column = int(row or 1) - 1, int(column or 1) - 1
        elif what == "J":
            self._widest = self.columns
            self._cells = [[" "] * self.columns for _ in range(self.lines)]
        elif what == "K":
            if self._row < self.lines:
                self._cells[self._row][self._column :] = [" "] * (self.columns - self._column)
        elif what in "hl":
            self.modes[numbers] = what == "h"
        else:
            assert what == "m", f"an unknown sequence: {numbers}{what}"

    def _put(self, char: str) -> None:
        width = 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if self.modes.get("?1049") and self._row < self.lines:
            assert self._column + width <= self._widest, f"beyond the right edge: {self._cells[self._row]}"
        if self._row < self.lines and self._column < self.columns:
            self._cells[self._row][self._column] = char
            if width == 2 and self._column + 1 < self.columns:
                self._cells[self._row][self._column + 1] = ""
        self._column += width
