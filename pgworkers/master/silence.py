"""A supervisor that says nothing: told when it is odd, killed when it is too long."""

from __future__ import annotations

from pgworkers.facts import Facts
from pgworkers.lives import SupervisorSilent
from pgworkers.master.child import Supervisor
from pgworkers.settings import Settings


def look_at(
    supervisor: Supervisor, now: float, settings: Settings, facts: Facts, errors: dict[str, str]
) -> None:
    """Frozen, starved, or hanging in the import of the app. `errors`: why a queue has no workers."""
    quiet = now - supervisor.heard
    if not supervisor.booted and quiet > settings.boot + settings.patience and not supervisor.killed:
        supervisor.killed = True  # its own alarm did not ring: the import hangs in C
        supervisor.failure = "importing the app hangs; no worker was started"
        errors[supervisor.queue] = supervisor.failure
        supervisor.process.kill()
    if not supervisor.booted or quiet < settings.patience / 2:
        supervisor.silent = False
        return
    if not supervisor.silent:
        supervisor.silent = True
        facts.tell(SupervisorSilent(supervisor.queue, supervisor.pid, quiet))
    if quiet >= settings.patience and not supervisor.killed:
        supervisor.killed = True
        supervisor.process.kill()
