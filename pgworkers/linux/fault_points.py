"""Points where a test lets a process die, sleep or leave.

`PGWORKERS_FAULT=name[:action]`, several separated by commas. The action is `kill` (SIGKILL to itself, the
default), `sleep=SECONDS` or `exit=STATUS`. Points that every job passes are asked only if there are any (`IS_ARMED`).

Points, in the order of a job's life:

- `fork_child_early`: the forked worker before it set its death signal
- `before_ready`:     the worker after its start hooks, before it says READY
- `after_order`:      the worker has an order and wrote its slot, the handler has not begun
- `before_report`:    the handler has ended, nothing was reported
- `after_report`:     reported, the slot not yet cleared
"""

from __future__ import annotations

import os
import signal
import time


def _parse(text: str) -> dict[str, str]:
    points: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, action = part.partition(":")
        points[name] = action or "kill"
    return points


_points = _parse(os.environ.get("PGWORKERS_FAULT", ""))
IS_ARMED = bool(_points)
#: A test has planned faults inside handlers (`worker/chaos`).
IS_CHAOS_PLANNED = "PGWORKERS_CHAOS_PLAN" in os.environ


def fault_point(name: str) -> None:
    """Do here what PGWORKERS_FAULT says, if it names this point."""
    action = _points.get(name)
    if action is None:
        return
    kind, _, value = action.partition("=")
    match kind:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "sleep":
            time.sleep(float(value))
        case "exit":
            os._exit(int(value))
        case _:
            raise ValueError(f"PGWORKERS_FAULT: {name}:{action}: use kill, sleep=SECONDS or exit=STATUS")
