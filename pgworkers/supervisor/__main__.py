"""`python -m pgworkers.supervisor --fd N --term N --parent PID [--room=...]`: exec'd by the master, not for people."""

from __future__ import annotations

import argparse

from pgworkers.process import interpreter
from pgworkers.supervisor import hooks

if __name__ == "__main__":
    interpreter.begin()
    hooks.begin()  # before main imports what registers something
    from pgworkers.supervisor.main import main

    parser = argparse.ArgumentParser(prog="pgworkers.supervisor")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--term", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--room", help="ignored: makes the command line long enough for titles")
    given = parser.parse_args()
    interpreter.end(main(given.fd, given.term, given.parent))
