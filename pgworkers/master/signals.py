"""What signals mean to a master. asyncio notes them; everything happens in the loop."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from pgworkers.clock import monotonic, show_seconds
from pgworkers.events import HostChanged

if TYPE_CHECKING:
    from pgworkers.master.host import Host


def wait_for_the_loop() -> None:
    """Until `hear`, what is about running jobs means nothing; by default these signals would end the process.

    A parent that ignores SIGCHLD hands that on, and then the kernel keeps no exit status of our children.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for signum in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(signum, signal.SIG_IGN)


def hear(host: Host) -> None:
    """SIGCHLD is not among them: adopted children may end by the thousand, and signals that the loop has no room for are
    lost, also SIGTERM. Every pulse looks for zombies; the end of a supervisor is told by its pidfd."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: host.leave("SIGTERM"))
    loop.add_signal_handler(signal.SIGINT, lambda: host.leave("SIGINT", now=host.leaving))
    loop.add_signal_handler(signal.SIGQUIT, lambda: host.leave("SIGQUIT", now=True))
    loop.add_signal_handler(signal.SIGTTIN, lambda: resize(host, +1))
    loop.add_signal_handler(signal.SIGTTOU, lambda: resize(host, -1))
    loop.add_signal_handler(signal.SIGUSR1, lambda: log_state(host))
    loop.add_signal_handler(signal.SIGUSR2, host.requests.tell_stacks)
    loop.add_signal_handler(signal.SIGHUP, host.reloads.wish)


def resize(host: Host, by: int) -> None:
    """One worker more or less in every queue; an idle one goes first, a busy one after its job."""
    if host.leaving:
        return
    changed = False
    for queue in host.dispatch.desks:
        target = min(host.settings.max_workers, max(1, host.supervisors.target(queue) + by))
        changed = changed or target != host.supervisors.target(queue)
        host.supervisors.scale(queue, target)
        host.dispatch.shrink(queue, target)
    what = "one worker " + ("more" if by > 0 else "less") + " per queue"
    host.facts.tell(HostChanged(host.state, what if changed else f"not {what}: no queue can have it"))


def log_state(host: Host) -> None:
    now = monotonic()
    for worker in host.dispatch.all_workers():
        job = f" #{worker.held.claimed.id} {worker.held.claimed.task}" if worker.held else ""
        why = f"{worker.name} pid {worker.pid} {worker.state}{job} for {show_seconds(now - worker.since)}"
        host.facts.tell(HostChanged(host.state, why))
    lines = ", ".join(f"{role} {'up' if line.up else 'down'}" for role, line in host.lines.items())
    host.facts.tell(HostChanged(host.state, f"{len(host.ends)} ends waiting; connections: {lines}"))
