"""Whether a blocking call would block an event loop that others depend on.

In a Jupyter cell and at the prompt of `python -m asyncio` an event loop runs, and yet blocking is right: the person waits
for the cell. In an `async def` function it is wrong. Both have a running loop, so the call stack decides: from the caller
outwards, the first frame that is known counts.

- the code of a cell or a prompt: blocking is allowed, also if the cell itself uses `await`
- a coroutine, or a frame of asyncio that runs a callback: blocking is refused
- nothing known: blocking is refused

A cell is recognised by its global namespace, which must be that of the running IPython shell or of the asyncio prompt. So
neither a script nor an imported module is taken for a cell. Nothing is imported for this: a shell that is not loaded does
not run. Other threads of a notebook have no running loop, and block as everywhere.
"""

from __future__ import annotations

import sys
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_ITERABLE_COROUTINE
from types import FrameType
from typing import Any

_ASYNC_FLAGS = CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE


def is_in_event_loop() -> bool:
    """True if the caller must not block: an event loop runs in this thread, and the caller is not a cell or a prompt."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return not _is_called_by_a_cell(sys._getframe(1))


def _is_called_by_a_cell(frame: FrameType | None) -> bool:
    namespaces = [space for space in (_ipython_namespace(), _asyncio_prompt_namespace()) if space is not None]
    while namespaces and frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and any(frame.f_globals is space for space in namespaces):
            return True
        if code.co_flags & _ASYNC_FLAGS or frame.f_globals.get("__name__") == "asyncio.events":
            return False
        frame = frame.f_back
    return False


def _ipython_namespace() -> dict[str, Any] | None:
    """The global variables of the cells of the running IPython shell."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    space = getattr(shell, "user_global_ns", None)
    return space if isinstance(space, dict) else None


def _asyncio_prompt_namespace() -> dict[str, Any] | None:
    """The variables of the prompt of `python -m asyncio`."""
    main = sys.modules.get("__main__")
    if getattr(getattr(main, "__spec__", None), "name", None) != "asyncio.__main__":
        return None
    space = getattr(getattr(main, "console", None), "locals", None)
    return space if isinstance(space, dict) else None
