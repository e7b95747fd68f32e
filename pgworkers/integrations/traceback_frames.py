"""Reads the frames of tracebacks and stack dumps back out of their texts.

An attempt that failed is reported by another process than the one that ran it, and a killed process leaves only the text
that faulthandler wrote. Pure but for the source lines, which are read from the files if they are still there.
"""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
from dataclasses import dataclass, field

MAX_FRAMES = 200
CONTEXT_LINES = 5
_TRACEBACK_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d+), in (?P<function>.*)')
_DUMP_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)')
_DUMP_HEADER = "(most recent call first):"
_TRACEBACK_HEADER = "Traceback (most recent call last):"
_LIBRARY_DIRECTORIES = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_PACKAGE_DIRECTORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@dataclass(frozen=True, slots=True)
class TextFrame:
    """One frame of a stack."""

    file: str
    line: int
    function: str

    @property
    def is_of_app(self) -> bool:
        """True for the user's code: not the standard library, an installed package or pgworkers."""
        return not self.file.startswith((*_LIBRARY_DIRECTORIES, _PACKAGE_DIRECTORY, "<"))

    def source(self) -> tuple[list[str], str, list[str]]:
        """The lines before, the line itself and the lines after it. Empty if the file cannot be read."""
        lines = linecache.getlines(self.file)
        if not 0 < self.line <= len(lines):
            return [], "", []
        at = self.line - 1
        texts = [text.rstrip("\n") for text in lines]
        return texts[max(0, at - CONTEXT_LINES) : at], texts[at], texts[at + 1 : at + 1 + CONTEXT_LINES]


@dataclass(slots=True)
class TextException:
    """One exception of a chain. `frames`: the outermost call first."""

    type: str
    value: str
    frames: list[TextFrame] = field(default_factory=list)


@dataclass(slots=True)
class TextThread:
    """One thread of a dump. `frames`: the outermost call first."""

    name: str
    is_current: bool
    frames: list[TextFrame] = field(default_factory=list)


def read_traceback(text: str) -> list[TextException]:
    """The exceptions of a traceback in the order in which they were raised. Empty: the text has another form."""
    found: list[TextException] = []
    for part in text.split(_TRACEBACK_HEADER + "\n")[1:]:
        frames: list[TextFrame] = []
        message: list[str] = []
        for line in part.splitlines():
            frame = _TRACEBACK_FRAME.fullmatch(line)
            if frame is not None and not message:
                frames.append(_frame_of(frame))
            elif not line.startswith("  ") or message:
                message.append(line)
        whole = "\n".join(message).split("\n\nThe above exception was the direct cause")[0]
        whole = whole.split("\n\nDuring handling of the above exception")[0].strip()
        name, _, value = whole.partition(":")
        found.append(TextException(name.strip(), value.strip(), frames[-MAX_FRAMES:]))
    return found


def read_dump(text: str) -> list[TextThread]:
    """The threads of a dump by faulthandler."""
    threads: list[TextThread] = []
    for line in text.splitlines():
        if line.endswith(_DUMP_HEADER):
            name = line.removesuffix(_DUMP_HEADER).strip()
            threads.append(TextThread(name, is_current=name.startswith("Current thread")))
            continue
        frame = _DUMP_FRAME.fullmatch(line)
        if frame is not None and threads and len(threads[-1].frames) < MAX_FRAMES:
            threads[-1].frames.insert(0, _frame_of(frame))
    return threads


def _frame_of(found: re.Match[str]) -> TextFrame:
    return TextFrame(found["file"], int(found["line"]), found["function"])
