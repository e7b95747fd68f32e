"""A child of the master that is not a supervisor, as the master sees it: its socket, its pidfd, its end.

The reporter and the merger of metrics are such children. Sending never waits: what the child has not read yet is kept here,
and the caller limits how much that is.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence

from pgworkers.ipc.messages import MessageBuffer, MessageTooLong, encode_message
from pgworkers.linux import environment, signals
from pgworkers.linux.titles import TITLE_PADDING_ARGUMENT
from pgworkers.master import orphan_processes

_READ_BYTES = 1 << 18


class ChildProcess:
    """One running child. `spared` is the set of children that sweeps of the master leave alone."""

    def __init__(
        self,
        module: str,
        *,
        host_id: str,
        spared: set[int],
        on_message: Callable[[bytes], None],
        on_exit: Callable[[ChildProcess], None],
        arguments: Sequence[str] = (),
    ) -> None:
        self._spared = spared
        self._on_message = on_message
        self._on_exit = on_exit
        self._unsent = bytearray()
        self._is_waiting_to_write = False
        self._buffer = MessageBuffer()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        with theirs:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", module),  # -P: no module of this directory
                    *("--fd", str(theirs.fileno()), "--parent-pid", str(os.getpid()), *arguments),
                    TITLE_PADDING_ARGUMENT,
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=environment.for_children(os.environ)
                | {environment.ORIGIN_VARIABLE: orphan_processes.origin_value(host_id)},
            )
        self.pid = self.process.pid
        spared.add(self.pid)
        self._socket: socket.socket | None = ours
        self._pidfd = os.pidfd_open(self.pid)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(ours.fileno(), self._on_readable)
        self._loop.add_reader(self._pidfd, self._on_pidfd)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the child has not taken yet."""
        return len(self._unsent)

    @property
    def status(self) -> str:
        code = self.process.returncode
        return signals.signal_name(-code) if code is not None and code < 0 else f"exit {code}"

    def send(self, body: bytes) -> None:
        if self._socket is not None:
            self._unsent += encode_message(body)
            self._flush()

    def close(self) -> None:
        """Close the socket. The child ends when it has handled what was sent."""
        sock, self._socket = self._socket, None
        if sock is not None:
            self._loop.remove_reader(sock.fileno())
            self._loop.remove_writer(sock.fileno())
            sock.close()

    def kill(self) -> None:
        """Kill it with everything in its group. Its pid is its own until `_on_pidfd` reaps it."""
        if self.process.returncode is None:
            signals.send_to_group(self.pid, signal.SIGKILL)
            self.process.kill()

    def _flush(self) -> None:
        while self._unsent and self._socket is not None:
            try:
                sent = self._socket.send(self._unsent)
            except (BlockingIOError, InterruptedError):
                if not self._is_waiting_to_write:
                    self._is_waiting_to_write = True
                    self._loop.add_writer(self._socket.fileno(), self._on_writable)
                return
            except OSError:
                return  # it is dying; the pidfd reports that
            del self._unsent[:sent]

    def _on_writable(self) -> None:
        if self._socket is not None:
            self._loop.remove_writer(self._socket.fileno())
            self._is_waiting_to_write = False
            self._flush()

    def _on_readable(self) -> None:
        if self._socket is None:
            return
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        try:
            messages = self._buffer.feed(data)
        except MessageTooLong:
            self.kill()
            return
        for message in messages:
            self._on_message(message)

    def _on_pidfd(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        while self._socket is not None:  # its last messages
            before = self._socket
            self._read_rest(before)
        signals.send_to_group(
            self.pid, signal.SIGKILL
        )  # what it started; the number is its own until it is reaped
        self.process.wait()
        self._spared.discard(self.pid)
        self._on_exit(self)

    def _read_rest(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(_READ_BYTES)
            for message in self._buffer.feed(data):
                self._on_message(message)
        except (OSError, MessageTooLong):
            data = b""
        if not data:
            self.close()
