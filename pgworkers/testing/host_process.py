"""`python -m pgworkers.testing.host_process PARENT ARGUMENTS`: `pgworkers ARGUMENTS`, killed when its parent dies.

A test run that is killed leaves no host behind: the kernel kills the master, and its tree follows.
"""

from __future__ import annotations

import os
import signal
import sys

from pgworkers.linux import prctl


def main() -> None:
    parent, *arguments = sys.argv[1:]
    if not prctl.set_parent_death_signal(signal.SIGKILL, int(parent)):
        sys.exit("the test run has ended; no host was started")
    command = [sys.executable, "-P", "-m", "pgworkers", *arguments]
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
