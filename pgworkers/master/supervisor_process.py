"""One supervisor process, as the master sees it: its control socket, its pidfd, its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import msgspec

from pgworkers.clock import monotonic
from pgworkers.linux import environment
from pgworkers.linux.titles import TITLE_PADDING_ARGUMENT
from pgworkers.master import orphans
from pgworkers.master.worker_channel import WorkerChannel
from pgworkers.supervisor.messages import Boot, Command, SupervisorFact

_MAX_PACKET_BYTES = 1 << 18
_encode_command = msgspec.json.Encoder().encode
_decode_message = msgspec.json.Decoder(SupervisorFact).decode


class SupervisorProcess:
    """One running supervisor, as the master sees it."""

    def __init__(
        self,
        boot: Boot,
        version: str,
        lease_deadline_fd: int,
        on_message: Callable[[SupervisorProcess, SupervisorFact, list[int]], None],
        on_death: Callable[[SupervisorProcess], None],
    ) -> None:
        self.queue = boot.queue.name
        self.version = version
        self.metrics_lane = boot.metrics_lane
        self.workers: dict[int, WorkerChannel] = {}  # by incarnation
        self.is_booted = False
        self.boot_error = ""  # why it could not boot
        self.last_message_at = monotonic()  # when its last message came
        self.is_unresponsive = False
        self.is_retired = False  # newer code, or no such queue any more: it leaves when its workers have
        self.was_killed = False  # by the master: its jobs are not the cause
        self._on_message = on_message
        self._on_death = on_death
        self._unsent: list[bytes] = []
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_PACKET_BYTES * 2)
        ours.setblocking(False)
        with theirs:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "pgworkers.supervisor"),  # -P: no module of this directory
                    *(
                        "--control-fd",
                        str(theirs.fileno()),
                        "--lease-fd",
                        str(lease_deadline_fd),
                        "--parent-pid",
                        str(os.getpid()),
                        TITLE_PADDING_ARGUMENT,
                    ),
                ],
                pass_fds=[theirs.fileno(), lease_deadline_fd],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # cores are then shared out by queue: no crowd of workers starves us
                env=environment.for_children(os.environ)
                | {orphans.ORIGIN_VARIABLE: orphans.origin_value(boot.host)},
            )
        self.pid = self.process.pid
        self._control: socket.socket | None = ours
        self._pidfd = os.pidfd_open(self.pid)
        loop = asyncio.get_running_loop()
        loop.add_reader(ours.fileno(), self._on_readable)
        loop.add_reader(self._pidfd, self._on_exit)
        self.send(boot)

    def send(self, order: Command) -> None:
        if self._control is None:
            return
        self._unsent.append(_encode_command(order))
        self._flush()

    def _flush(self) -> None:
        while self._unsent and self._control is not None:
            try:
                self._control.send(self._unsent[0])
            except (BlockingIOError, InterruptedError):
                asyncio.get_running_loop().add_writer(self._control.fileno(), self._on_writable)
                return
            except OSError:
                return  # it is dying; the pidfd reports that
            self._unsent.pop(0)

    def _on_writable(self) -> None:
        if self._control is not None:
            asyncio.get_running_loop().remove_writer(self._control.fileno())
            self._flush()

    def _on_readable(self) -> None:
        while self._receive():
            pass

    def _receive(self) -> bool:
        if self._control is None:
            return False
        try:
            data, fds, _flags, _address = socket.recv_fds(self._control, _MAX_PACKET_BYTES, 4)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data, fds = b"", []
        if not data:
            self.close()
            return False
        self.last_message_at = monotonic()
        self._on_message(self, _decode_message(data), fds)
        return True

    def close(self) -> None:
        """Close the control socket. The supervisor then kills its workers and exits."""
        control, self._control = self._control, None
        if control is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(control.fileno())
            loop.remove_writer(control.fileno())
            control.close()

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._on_readable()  # its last messages
        self.close()
        self.process.wait()
        self._on_death(self)

    @property
    def status(self) -> str:
        code = self.process.returncode
        if code is not None and code < 0:
            return signal.Signals(-code).name
        return f"exit {code}"
