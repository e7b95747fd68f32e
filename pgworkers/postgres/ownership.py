"""Whose a file is: what is found by itself must not be another user's trap.

Commands look for `app.py` in the current directory and for `.pgworkers` beside it. In a directory that others can
write to, both may have been put there by anyone. What a user names is theirs to judge and is not asked about here.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Container
from pathlib import Path

_OTHERS = stat.S_IWOTH


def reason_to_distrust(path: Path, trusted: Container[int] = ()) -> str | None:
    """Why this file or directory may be another user's doing; None: it belongs to us, to root or to someone trusted."""
    try:
        found, above = path.stat(), path.parent.stat()
    except OSError:
        return None  # whoever opens it says what is wrong
    if found.st_uid not in (0, os.geteuid()) and found.st_uid not in trusted:
        return f"belongs to {_name(found.st_uid)}"
    if found.st_mode & _OTHERS:
        return "can be written by every user of this machine"
    if found.st_mode & stat.S_IWGRP and found.st_gid != _own_group(found.st_uid):
        return f"can be written by the group {found.st_gid}"
    if above.st_mode & _OTHERS and not above.st_mode & stat.S_ISVTX:
        return "lies in a directory in which every user of this machine can replace it"
    return None


def _name(uid: int) -> str:
    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user id {uid}"


def _own_group(uid: int) -> int:
    """The group that a user's files have by default: with a umask of 002 it may write to all of them."""
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid
