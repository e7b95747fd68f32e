"""Executed by the master, not for people:

`python -m pgworkers.supervisor --control-fd N --lease-fd N --parent-pid PID [--title-padding=...]`
"""

from __future__ import annotations

import argparse

from pgworkers.linux import process_exit
from pgworkers.supervisor.main import main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="pgworkers.supervisor")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--lease-fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--title-padding", help="ignored: makes the command line long enough for titles")
    given = parser.parse_args()
    process_exit.exit_process(main(given.control_fd, given.lease_fd, given.parent_pid))
