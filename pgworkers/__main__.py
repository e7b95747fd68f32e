"""`python -m pgworkers` is the command `pgworkers`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the current directory: what the user names there is put back when it is loaded
    from pgworkers.cli.main import main

    main()
