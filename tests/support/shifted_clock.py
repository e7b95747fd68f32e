"""A wall clock that a test moves while processes run, for a whole tree of them: a host, or a server with all its backends.

`shifted.c` is preloaded into them; they map one file, so a move is seen by all of them at once, and by those that come
later. The clocks that measure (MONOTONIC, BOOTTIME) stay true. Without a C compiler there is no such clock,
and the tests are skipped by name.
"""

from __future__ import annotations

import mmap
import os
import shlex
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

from pgworkers.embedded import account as accounts
from pgworkers.embedded import binaries
from pgworkers.embedded.location import SHARED_DIRECTORIES

SOURCE = Path(__file__).with_name("shifted_clock.c")
STEP = 0.05


class NoCompiler(Exception):
    """Why there is no such clock here."""

    def __init__(self) -> None:
        super().__init__("there is no C compiler to build a clock that can be moved (apt-get install gcc)")


class ShiftedClock:
    """The clock of processes that are started with `environ`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o755)
        self._library = directory / "shifted.so"
        self._file = directory / "shift"
        self._file.write_bytes(bytes(8))
        with self._file.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 8)
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise NoCompiler
        build = [compiler, "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-o", self._library, SOURCE, "-ldl"]
        done = subprocess.run(build, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        for made in (self._library, self._file):  # the server may be run by another account
            made.chmod(0o755)

    @property
    def environ(self) -> dict[str, str]:
        before = os.environ.get("LD_PRELOAD", "")
        preload = f"{self._library}:{before}" if before else str(self._library)
        return {"LD_PRELOAD": preload, "SHIFTED_CLOCK": str(self._file)}

    def move(self, seconds: float) -> None:
        """So far from the true time from now on."""
        self._page[:] = struct.pack("=q", round(seconds * 1e9))

    def moves(self, pid: int) -> bool:
        """True if this process has mapped the file that we write."""
        return str(self._file) in Path(f"/proc/{pid}/maps").read_text()

    @contextmanager
    def restless(self, *places: float) -> Iterator[None]:
        """It jumps to and fro, several times in each period of ours; then it is where it was."""
        over, before = threading.Event(), bytes(self._page)

        def jump() -> None:
            for seconds in cycle(places):
                self.move(seconds)
                if over.wait(STEP):
                    return

        jumping = threading.Thread(target=jump)
        jumping.start()
        try:
            yield
        finally:
            over.set()
            jumping.join()
            self._page[:] = before

    def programs(self, directory: Path, bindir: Path | None) -> Path:
        """Postgres programs whose server has this clock: of our environment a server gets nothing."""
        made = directory / "bin"
        made.mkdir(mode=0o755)
        real = binaries.find_binaries(
            accounts.choose_account(directory, None), bindir, SHARED_DIRECTORIES, None
        ).bindir
        words = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.environ.items())
        for name in ("postgres", "initdb"):
            program = made / name
            program.write_text(f'#!/bin/sh\n{words} exec {shlex.quote(str(real / name))} "$@"\n')
            program.chmod(0o755)
        return made
