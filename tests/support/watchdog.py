"""Ends what a killed pytest leaves: its masters, workers, servers and poolers, and its directory.

Every pytest process, the workers of xdist too, starts one. It waits for the end of its parent through a pidfd, in a
session of its own, so that neither SIGKILL nor Ctrl-C nor a closed terminal can leave processes behind. A pytest that
ends properly cleans up by itself and takes its watchdog with it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

STEP_SECONDS = 0.05
#: A process that is just forked may not have been found yet, and a server needs a moment to end.
PATIENCE_SECONDS = 60.0


class Watchdog:
    """The side of pytest."""

    def __init__(self, run: str, root: str, mark: str) -> None:
        environ = {name: value for name, value in os.environ.items() if name != mark}
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(os.getpid()), run, root],
            env=environ,  # without the mark: it need not be gone after a test
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    def dismiss(self) -> None:
        self._process.kill()
        self._process.wait()


def main(parent: int, run: str, root: str) -> None:
    try:
        end = os.pidfd_open(parent)
    except ProcessLookupError:
        pass
    else:
        if os.getppid() == parent:  # else the number may be another's by now
            poll = select.poll()
            poll.register(end, select.POLLIN)
            poll.poll()
    clean_up(run, root)


def clean_up(run: str, root: str) -> None:
    """Kill every process of the run until there is none, then stop its servers and delete its files."""
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from pathlib import Path

    from support import leftover_processes

    give_up = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < give_up:
        found = leftover_processes.with_variable(leftover_processes.MARK, run)
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if not found and leftover_processes.remove(Path(root)):
            return
        time.sleep(STEP_SECONDS)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
