"""The terminal of `top`, which is restored in every case.

Only lines that differ from the last frame are sent, so that a quiet screen costs nothing over ssh. Line wrapping is off
meanwhile: a character whose width the terminal sees differently spoils one line at most.
"""

from __future__ import annotations

import contextlib
import io
import os
import termios
import tty
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from pgworkers.cli.top.cells import Line

_ENTER_SEQUENCE = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
_LEAVE_SEQUENCE = b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"


class Terminal:
    def __init__(self, keys: int, screen: int) -> None:
        self.keys = keys
        self._screen = screen
        self._before: list[Any] | None = None
        self._drawn: list[str] = []
        self._console = Console(file=_DiscardingFile(screen), highlight=False, markup=False, emoji=False)

    @contextlib.contextmanager
    def full_screen(self) -> Iterator[None]:
        """Switch to the alternate screen without cursor and line buffering, and restore everything at the end."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        self._before = termios.tcgetattr(self.keys)
        tty.setcbreak(self.keys, termios.TCSANOW)
        self._write(_ENTER_SEQUENCE)
        self.invalidate()

    def leave(self) -> None:
        before, self._before = self._before, None
        if before is None:
            return
        with contextlib.suppress(OSError):  # the terminal may be gone
            self._write(_LEAVE_SEQUENCE)
        with contextlib.suppress(termios.error, OSError):
            termios.tcsetattr(self.keys, termios.TCSANOW, before)

    def size(self) -> tuple[int, int]:
        try:
            found = os.get_terminal_size(self._screen)
        except OSError:
            return 80, 24
        return found.columns or 80, found.lines or 24

    def invalidate(self) -> None:
        """Draw the next frame as a whole: the size changed, or another program has written to the terminal."""
        self._drawn = []

    def draw(self, frame: Sequence[Line]) -> None:
        lines = [self._styled(line) for line in frame]
        out = [] if self._drawn else ["\x1b[2J"]
        for at, line in enumerate(lines):
            if at >= len(self._drawn) or self._drawn[at] != line:
                out.append(f"\x1b[{at + 1};1H{line}\x1b[0m")
        self._drawn = lines
        if out:
            self._write("".join(out).encode("utf-8", "replace"))

    def read(self) -> bytes | None:
        """The keys that were typed; None if the terminal is gone."""
        try:
            return os.read(self.keys, 4096) or None
        except BlockingIOError:
            return b""
        except OSError:
            return None

    def _styled(self, line: Line) -> str:
        with self._console.capture() as captured:
            text = Text.assemble(*line, no_wrap=True, end="")
            self._console.print(text, end="", soft_wrap=True)
        return captured.get()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._screen, view) :]


class _DiscardingFile(io.StringIO):
    """A file for rich: it asks whether this is a terminal and which one, and writes nothing."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def fileno(self) -> int:
        return self._fd
