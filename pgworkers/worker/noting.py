"""Who changes the process from Python is noted, so that it need not be searched for what has changed after every job.

The functions themselves do what they always did. C code that changes the same things is not seen here: `cleanup` looks for
that by itself, after every job but the shortest, and after those every millisecond.
"""

from __future__ import annotations

import faulthandler
import locale
import os
import resource
import signal
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

#: By which functions what `cleanup` puts back is changed. A fork takes longer than the shortest jobs, and needs no note.
_CHANGING: dict[ModuleType, tuple[str, ...]] = {
    os: (
        *("chdir", "fchdir", "chroot", "umask", "nice", "setpriority", "sched_setaffinity", "close", "closerange", "dup2"),
        *("putenv", "unsetenv"),  # by which os.environ changes the environment
        *("setuid", "seteuid", "setreuid", "setresuid", "setgid", "setegid", "setregid", "setresgid"),
    ),
    resource: ("setrlimit", "prlimit"),
    signal: ("signal", "pthread_sigmask", "alarm", "setitimer", "siginterrupt"),
    locale: ("setlocale", "resetlocale"),
    faulthandler: ("enable", "disable", "register", "unregister"),
}  # fmt: skip

#: Was anything changed since somebody set it to False?
noted = [False]


def begin() -> None:
    """Before the app is imported: from here on changes are noted."""
    for module, names in _CHANGING.items():
        for name in names:
            if hasattr(module, name):
                _replace(module, name)


def _replace(module: ModuleType, name: str) -> None:
    function: Callable[..., Any] = getattr(module, name)

    @wraps(function)
    def noting(*args: Any, **named: Any) -> Any:
        noted[0] = True
        return function(*args, **named)

    noting.__module__ = module.__name__  # where it is found again, by pickle for instance
    for able in (os.supports_fd, os.supports_dir_fd, os.supports_effective_ids, os.supports_follow_symlinks):
        if function in able:
            able.add(noting)
    setattr(module, name, noting)
