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


def _serve(requests: socket.socket) -> Callable[[], None] | None:
    """Serve until the last client is gone. In a child: return what it has to do."""
    wakeup_reader, wakeup_writer = socket.socketpair()
    for end in (wakeup_reader, wakeup_writer):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup_writer.fileno())
    running: dict[int, int] = {}  # who wants to know the end of which process
    while True:
        ready, _, _ = select.select([requests, wakeup_reader], [], [])
        if wakeup_reader in ready:
            wakeup_reader.recv(4096)
            while running:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                _send_code(running[pid], os.waitstatus_to_exitcode(status))
                os.close(running.pop(pid))
        if requests in ready:
            message, fds, _, _ = socket.recv_fds(requests, MESSAGE, 4)
            if not message:
                return None
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for end in (requests, wakeup_reader, wakeup_writer):
                    end.close()
                for known in running.values():
                    os.close(known)
                return _prepare_command(message, fds)
            for file in fds[:3]:
                os.close(file)
            running[pid] = fds[3]
            _send_code(fds[3], pid)


def _send_code(whom: int, what: int) -> None:
    try:
        os.write(whom, CODE.pack(what))
    except OSError:
        pass  # it waits no longer


def _prepare_command(message: bytes, fds: list[int]) -> Callable[[], None]:
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

    def run_command() -> None:
        from pgworkers.cli.main import main

        main()

    return run_command


def _main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    import pgworkers.cli as commands

    for module in pkgutil.walk_packages(commands.__path__, "pgworkers.cli."):
        importlib.import_module(module.name)
    for name in ("pgworkers.app", "psycopg", "rich.table", "rich.console"):
        importlib.import_module(name)
    gc.freeze()
    run_command = _serve(requests)
    if run_command is not None:
        run_command()


if __name__ == "__main__":
    _main()
