"""Frames on a byte stream: a fixed header and a body.

The header carries what a dispatcher needs (kind, job, lease), so a frame can be routed without parsing its
body. Shared by master and worker.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_HEADER = struct.Struct("<IBxxxqi")
HEADER_SIZE = _HEADER.size
#: Larger bodies are a broken stream, not a job: payload and result limits are far below.
MAX_BODY = 256 << 20


class FrameError(ValueError):
    """The stream does not hold frames; nothing after this point can be trusted."""


class Frame(NamedTuple):
    kind: int
    job: int
    lease: int
    body: bytes


def encode(kind: int, job: int, lease: int, body: bytes = b"") -> bytes:
    if len(body) > MAX_BODY:
        raise FrameError(f"a frame of {len(body)} bytes is larger than {MAX_BODY}; it was not sent")
    return _HEADER.pack(len(body), kind, job, lease) + body


class Reader:
    """Cuts a stream into frames, whatever pieces it arrives in."""

    __slots__ = ("_buffer", "_limit")

    def __init__(self, limit: int = MAX_BODY) -> None:
        self._buffer = bytearray()
        self._limit = limit

    @property
    def waiting(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """All frames that are complete now."""
        self._buffer += data
        frames: list[Frame] = []
        at = 0
        have = len(self._buffer)
        while have - at >= HEADER_SIZE:
            length, kind, job, lease = _HEADER.unpack_from(self._buffer, at)
            if length > self._limit:
                raise FrameError(
                    f"a frame claims {length} bytes, the limit is {self._limit}; the stream is broken"
                )
            if have - at < HEADER_SIZE + length:
                break
            body = bytes(memoryview(self._buffer)[at + HEADER_SIZE : at + HEADER_SIZE + length])
            frames.append(Frame(kind, job, lease, body))
            at += HEADER_SIZE + length
        if at:
            del self._buffer[:at]
        return frames
