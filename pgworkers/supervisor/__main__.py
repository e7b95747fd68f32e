"""`python -m pgworkers.supervisor --fd N --term N --parent PID [--room=...]`: exec'd by the master, not for people."""

from __future__ import annotations

import argparse

from pgworkers.linux import process_exit
from pgworkers.supervisor import hooks

if __name__ == "__main__":
    process_exit.raise_gc_threshold()
    hooks.begin()  # before main imports what registers something
    from pgworkers.supervisor.main import main

    parser = argparse.ArgumentParser(prog="pgworkers.supervisor")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--term", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--room", help="ignored: makes the command line long enough for titles")
    given = parser.parse_args()
    process_exit.exit_process(main(given.fd, given.term, given.parent))
