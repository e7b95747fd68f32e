"""Which signal does what in a master. asyncio records a signal; its handler runs in the event loop.

SIGTERM and SIGINT call `leave()` (master/lifecycle.py), which starts the drain (master/drain.py).
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from pgworkers.master.lifecycle import HostLifecycle


def ignore_until_loop_runs() -> None:
    """Ignore the signals that concern running jobs until `install_handlers`; by default they end the process.

    SIGCHLD gets its default action, since a parent may have ignored it: then the kernel keeps no exit status of children.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for signum in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(signum, signal.SIG_IGN)


def install_handlers(
    lifecycle: HostLifecycle,
    *,
    resize: Callable[[int], None],
    log_state: Callable[[], None],
    log_stacks: Callable[[], None],
    reload: Callable[[], None],
) -> None:
    """Install all handlers except one for SIGCHLD.

    Adopted children may end by the thousand. Signals beyond the capacity of the loop's wake-up pipe are lost, SIGTERM
    included. So housekeeping reaps zombies, and a pidfd reports the end of a supervisor.
    """
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: lifecycle.leave("SIGTERM"))
    loop.add_signal_handler(signal.SIGINT, lambda: lifecycle.leave("SIGINT", at_once=lifecycle.is_leaving))
    loop.add_signal_handler(signal.SIGQUIT, lambda: lifecycle.leave("SIGQUIT", at_once=True))
    loop.add_signal_handler(signal.SIGTTIN, resize, +1)
    loop.add_signal_handler(signal.SIGTTOU, resize, -1)
    loop.add_signal_handler(signal.SIGUSR1, log_state)
    loop.add_signal_handler(signal.SIGUSR2, log_stacks)
    loop.add_signal_handler(signal.SIGHUP, reload)
