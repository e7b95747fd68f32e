"""Packets with descriptors over a SOCK_SEQPACKET socket that never blocks.

The sender keeps what the other side does not take yet: a stopped reader costs memory, never time. One packet is one message.
Descriptors travel with it and are closed here once they are sent.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Sequence

#: The largest packet. Below the kernel's default socket buffer (208 KiB), so that one always fits.
MAX_PACKET_BYTES = 128 << 10
MAX_DESCRIPTORS_PER_PACKET = 4  #: that travel with one packet


class PacketSocket:
    """One end of a packet socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._queue: deque[tuple[bytes, Sequence[int]]] = deque()
        self.is_broken = False

    @property
    def unsent_count(self) -> int:
        """Packets not yet taken by the other side."""
        return len(self._queue)

    @property
    def unsent_descriptors(self) -> list[int]:
        """Descriptors that wait to be sent: a forked child must close them."""
        return [fd for _, fds in self._queue for fd in fds]

    def send(self, data: bytes, *fds: int) -> None:
        """Queue a packet and send what can be sent. The descriptors are ours from now on."""
        if len(data) > MAX_PACKET_BYTES:
            raise ValueError(f"a packet of {len(data)} bytes is larger than {MAX_PACKET_BYTES}")
        self._queue.append((data, fds))
        if self.is_broken:
            self.discard_unsent()
        self.flush()

    def flush(self) -> None:
        while self._queue and not self.is_broken:
            data, fds = self._queue[0]
            try:
                socket.send_fds(self.sock, [data], fds, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError as error:
                # ETOOMANYREFS: too many descriptors in flight, the reader is behind. All else: the reader is gone.
                if error.errno in (errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM):
                    return
                self.is_broken = True
                self.discard_unsent()
                return
            self._queue.popleft()
            for fd in fds:
                os.close(fd)

    def discard_unsent(self) -> None:
        """Close what was never sent."""
        for fd in self.unsent_descriptors:
            os.close(fd)
        self._queue.clear()

    def receive(self) -> list[tuple[bytes, list[int]]] | None:
        """All packets that have arrived, or None when the other side is gone."""
        packets: list[tuple[bytes, list[int]]] = []
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.sock, MAX_PACKET_BYTES, MAX_DESCRIPTORS_PER_PACKET)
            except BlockingIOError:
                return packets
            except ConnectionError:
                return packets or None
            if not data:
                return packets or None
            packets.append((data, list(fds)))
