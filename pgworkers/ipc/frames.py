"""Frames on a byte stream: a fixed header and a body.

The header carries what a dispatcher needs (kind, job, lease), so a frame can be routed without parsing its
body. Shared by master and worker.
"""

from __future__ import annotations

import struct

import msgspec

#: Length of the body, kind, job, lease.
HEADER_FORMAT = "<IBxxxqi"
_HEADER = struct.Struct(HEADER_FORMAT)
HEADER_SIZE = _HEADER.size
_pack = _HEADER.pack
_unpack_from = _HEADER.unpack_from
#: Larger bodies are a broken stream, not a job: payload and result limits are far below.
MAX_BODY_BYTES = 256 << 20


class FrameError(ValueError):
    """The stream does not hold frames; nothing after this point can be trusted."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    kind: int
    job: int
    lease: int
    body: bytes

    @property
    def key(self) -> tuple[int, int]:
        """The job and lease that it is about."""
        return self.job, self.lease


def encode(kind: int, job: int, lease: int, body: bytes = b"") -> bytes:
    if len(body) > MAX_BODY_BYTES:
        raise FrameError(f"a frame of {len(body)} bytes is larger than {MAX_BODY_BYTES}; it was not sent")
    return _pack(len(body), kind, job, lease) + body


class FrameReader:
    """Cuts a stream into frames, whatever pieces it arrives in."""

    __slots__ = ("_buffer", "_limit", "_need")

    def __init__(self, limit: int = MAX_BODY_BYTES) -> None:
        self._buffer = bytearray()
        self._limit = limit
        self._need = 0  # bytes of the frame that is being received

    @property
    def buffered_bytes(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """All frames that are complete now."""
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._need:
                return []
            data = bytes(self._buffer)
            self._buffer.clear()
        frames: list[Frame] = []
        at = self._need = 0
        have = len(data)
        while have - at >= HEADER_SIZE:
            length, kind, job, lease = _unpack_from(data, at)
            if length > self._limit:
                raise FrameError(
                    f"a frame claims {length} bytes, the limit is {self._limit}; the stream is broken"
                )
            begin = at + HEADER_SIZE
            if have - begin < length:
                self._need = HEADER_SIZE + length
                break
            at = begin + length
            frames.append(Frame(kind=kind, job=job, lease=lease, body=data[begin:at]))
        if at < have:
            self._buffer += data[at:] if at else data
        return frames
