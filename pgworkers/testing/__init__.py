"""Test an app: capture its jobs in memory, run them in the test, or run a real host for it.

`app.testing()` puts a `Box` in the place of the database. The client sends its queries to the box (`transport`), the box
keeps the jobs (`store`) and runs them in this process (`attempt`). A frozen clock (`clock`) decides what is due.
Arguments, results, verdicts and retries go through the code that hosts use, so that a test sees what a host would do. What
needs a process is not simulated: timeouts in real time, memory limits, kills.

`pytest_plugin` has the fixtures, `database` and `host` start a server and a tree of processes for a test, and `chaos` kills
workers at chosen points of a job. docs/how-to/test-your-app.md explains how to use all this.

Nothing is imported before it is used: pytest loads the plugin in every project where pgworkers is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgworkers.client.pytest_guard import allow_real_database

if TYPE_CHECKING:
    from pgworkers.testing.box import Box
    from pgworkers.testing.clock import BoxClock
    from pgworkers.testing.host import HostFailed, TestHost
    from pgworkers.testing.store import CapturedJob

__all__ = ["Box", "BoxClock", "CapturedJob", "HostFailed", "TestHost", "allow_real_database"]

_MODULES = {
    "Box": "pgworkers.testing.box",
    "BoxClock": "pgworkers.testing.clock",
    "CapturedJob": "pgworkers.testing.store",
    "HostFailed": "pgworkers.testing.host",
    "TestHost": "pgworkers.testing.host",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module 'pgworkers.testing' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
