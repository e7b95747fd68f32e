"""Messages of any length over a stream socket: four bytes for the length, then the text."""

from __future__ import annotations

import socket
import struct

_LENGTH = struct.Struct("<I")
#: A longer message is an error of the sender, or not a message.
MAX_MESSAGE_BYTES = 64 << 20
_READ_BYTES = 1 << 18


class MessageTooLong(ValueError):
    """The other side announced a message that is longer than any that we send."""


def encode_message(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


class MessageBuffer:
    """Cuts what was read from a socket into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add what was read. Returns the messages that are complete."""
        self._data += data
        found = []
        while len(self._data) >= _LENGTH.size:
            size = _LENGTH.unpack_from(self._data)[0]
            if size > MAX_MESSAGE_BYTES:
                raise MessageTooLong(f"a message of {size} bytes")
            end = _LENGTH.size + size
            if len(self._data) < end:
                break
            found.append(bytes(self._data[_LENGTH.size : end]))
            del self._data[:end]
        return found


class MessageSocket:
    """The child's side: reads and writes whole messages and waits for them."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._socket = sock
        self._buffer = MessageBuffer()
        self._received: list[bytes] = []

    def receive(self) -> bytes | None:
        """The next message. None: the other side has closed the socket."""
        while not self._received:
            try:
                data = self._socket.recv(_READ_BYTES)
            except ConnectionError:
                return None
            if not data:
                return None
            self._received = self._buffer.feed(data)
        return self._received.pop(0)

    def send(self, body: bytes) -> None:
        self._socket.sendall(encode_message(body))
