"""What signals mean to a master. asyncio notes them; everything happens in the loop."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from pgworkers.master.scaling import resize
from pgworkers.master.status import log_state

if TYPE_CHECKING:
    from pgworkers.master.host import Host


def ignore_until_loop_runs() -> None:
    """Until `hear`, what is about running jobs means nothing; by default these signals would end the process.

    A parent that ignores SIGCHLD hands that on, and then the kernel keeps no exit status of our children.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for signum in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(signum, signal.SIG_IGN)


def install_handlers(host: Host) -> None:
    """SIGCHLD is not among them: adopted children may end by the thousand, and signals that the loop has no room for are
    lost, also SIGTERM. Every pulse looks for zombies; the end of a supervisor is told by its pidfd."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: host.leave("SIGTERM"))
    loop.add_signal_handler(signal.SIGINT, lambda: host.leave("SIGINT", now=host.is_leaving))
    loop.add_signal_handler(signal.SIGQUIT, lambda: host.leave("SIGQUIT", now=True))
    loop.add_signal_handler(signal.SIGTTIN, lambda: resize(host, +1))
    loop.add_signal_handler(signal.SIGTTOU, lambda: resize(host, -1))
    loop.add_signal_handler(signal.SIGUSR1, lambda: log_state(host))
    loop.add_signal_handler(signal.SIGUSR2, host.operator_requests.log_all_stacks)
    loop.add_signal_handler(signal.SIGHUP, host.reloader.request)
