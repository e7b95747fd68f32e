"""What modules want done around a fork (`os.register_at_fork`), and what of it a fork of ours needs.

A supervisor forks with one thread, outside of everybody's locks. What `threading` and `logging` do in the child is to make
new locks for those that another thread may have held: here there is none, and it cost each worker a hundred and eighty
pages. So whoever registers in a supervisor does it with us and not with the interpreter, and we leave those two out. In the
worker the interpreter gets them all, in their order: a handler that forks may have threads.
"""

from __future__ import annotations

import _random
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from os import getpid
from typing import Any

Hook = Callable[[], Any]

_WHEN = ("before", "after_in_parent", "after_in_child")
#: Module -> what it registers for the child, which needs none of it when its parent had one thread.
_NEEDLESS = {"threading": "_after_fork", "logging": "_after_at_fork_child_reinit_locks"}
_register = os.register_at_fork
_main: dict[str, Any] | None = None  # attributes of the main thread's object
_kept: list[dict[str, Hook]] = []
_wanted: dict[str, list[Hook]] = {when: [] for when in _WHEN}


def begin() -> None:
    """Before `threading` and `logging` are imported, and the app."""
    os.register_at_fork = _keep  # type: ignore[assignment]


def _keep(**hooks: Hook) -> None:
    for when, hook in hooks.items():
        if when not in _WHEN or not callable(hook):
            break
    else:
        if hooks:
            _kept.append(hooks)
            if not _is_needless(hooks.get("after_in_child")):
                for when, hook in hooks.items():
                    _wanted[when].append(_short(hook))
            return
    _register(**hooks)  # it says what is wrong with them


def _is_needless(hook: Hook | None) -> bool:
    name = _NEEDLESS.get(getattr(hook, "__module__", None) or "")
    return name is not None and name == getattr(hook, "__qualname__", None)


def _short(hook: Hook) -> Hook:
    """That of `random` without its way through Python: thirty pages."""
    owner: Any = getattr(hook, "__self__", None)
    if type(owner).__module__ != "random" or getattr(hook, "__name__", "") != "seed":
        return hook
    seed = _random.Random.seed.__get__(owner)

    def reseed() -> None:
        seed()
        owner.gauss_next = None

    return reseed


def before() -> None:
    """In the supervisor, just before it forks."""
    global _main
    if _main is None and "threading" in sys.modules:
        main = vars(sys.modules["threading"].main_thread())
        _main = main if "_native_id" in main else None
    _call(reversed(_wanted["before"]))


def in_parent() -> None:
    """In the supervisor, after the fork, also when that failed."""
    _call(_wanted["after_in_parent"])


def in_child() -> None:
    """In the worker: what is wanted now, and for forks of its own everything."""
    if _main is not None:
        _main["_native_id"] = getpid()
    if os.register_at_fork is _keep:
        os.register_at_fork = _register
        _call(_wanted["after_in_child"])
        for hooks in _kept:
            _register(**hooks)


def _call(hooks: Iterable[Hook]) -> None:
    for hook in hooks:
        try:
            hook()
        except BaseException:  # as the interpreter does: it is shown, and the fork goes on
            traceback.print_exc()
