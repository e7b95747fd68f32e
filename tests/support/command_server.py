"""Run by `command`: commands without the time of a start, each forked from this process, which has imported everything.

The commands of the suite spend nine tenths of their time with imports. What a person types is started as a person does in
tests/tree/test_cli_behaviour.py and its neighbours; here it is what commands do to a database. Each has its own arguments,
directory, environment and files, and ends as any other: only `exec` and the imports lie behind it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable

MESSAGE = 1 << 17
CODE = struct.Struct("i")


def _serve(orders: socket.socket) -> Callable[[], None] | None:
    """Serve until the last client is gone. In a child: return what it has to do."""
    bell, ring = socket.socketpair()
    for end in (bell, ring):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ring.fileno())
    running: dict[int, int] = {}  # who wants to know the end of which process
    while True:
        ready, _, _ = select.select([orders, bell], [], [])
        if bell in ready:
            bell.recv(4096)
            while running:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                _tell(running[pid], os.waitstatus_to_exitcode(status))
                os.close(running.pop(pid))
        if orders in ready:
            message, fds, _, _ = socket.recv_fds(orders, MESSAGE, 4)
            if not message:
                return None
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for end in (orders, bell, ring):
                    end.close()
                for known in running.values():
                    os.close(known)
                return _begun(message, fds)
            for file in fds[:3]:
                os.close(file)
            running[pid] = fds[3]
            _tell(fds[3], pid)


def _tell(whom: int, what: int) -> None:
    try:
        os.write(whom, CODE.pack(what))
    except OSError:
        pass  # it waits no longer


def _begun(message: bytes, fds: list[int]) -> Callable[[], None]:
    words, cwd, environ = json.loads(message)
    os.close(fds[3])
    for number, file in enumerate(fds[:3]):
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = ["pgworkers", *words]
    sys.path[0] = cwd

    def begin() -> None:
        from pgworkers.cli.main import main

        main()

    return begin


def _main() -> None:
    orders = socket.socket(fileno=int(sys.argv[1]))
    import pgworkers.cli as commands

    for module in pkgutil.walk_packages(commands.__path__, "pgworkers.cli."):
        importlib.import_module(module.name)
    for name in ("pgworkers.app", "psycopg", "rich.table", "rich.console"):
        importlib.import_module(name)
    gc.freeze()
    begin = _serve(orders)
    if begin is not None:
        begin()


if __name__ == "__main__":
    _main()
