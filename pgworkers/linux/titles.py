"""Process titles, as `ps` shows them.

SPT_NOENV keeps setproctitle off the environment block: /proc/PID/environ, which carries the marker of the
tree, stays readable. The price is that a title is no longer than the command line was; `TITLE_PADDING_ARGUMENT`
makes it so.
"""

from __future__ import annotations

import os

_before = os.environ.get("SPT_NOENV")
os.environ["SPT_NOENV"] = "1"

import setproctitle  # noqa: E402

#: Appended to the command line of a process that will set titles.
TITLE_PADDING_ARGUMENT = "--title-padding=" + "." * 120

setproctitle.getproctitle()  # it looks for the command line now, and the variable has served
if _before is None:
    del os.environ["SPT_NOENV"]

_last = ""


def set_title(title: str) -> None:
    """Set the title of this process; cheap when it did not change."""
    global _last
    if title != _last:
        setproctitle.setproctitle(title)
        _last = title
