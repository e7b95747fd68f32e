"""`python -m pgworkers` is the command `pgworkers`."""

from __future__ import annotations

from pgworkers.cli import main

if __name__ == "__main__":
    main()
