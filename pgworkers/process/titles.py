"""What `ps` shows.

SPT_NOENV keeps setproctitle off the environment block: /proc/PID/environ, which carries the marker of the
tree, stays readable. The price is that a title is no longer than the command line was; `ROOM` is an
argument that makes it so.
"""

from __future__ import annotations

import os

os.environ["SPT_NOENV"] = "1"

import setproctitle

#: Appended to the command line of a process that will set titles.
ROOM = "--room=" + "." * 120

_last = ""


def show(title: str) -> None:
    """Set the title of this process; cheap when it did not change."""
    global _last
    if title != _last:
        setproctitle.setproctitle(title)
        _last = title


def setup() -> None:
    """Let setproctitle look for the command line now, in the process that was exec'd."""
    setproctitle.getproctitle()
