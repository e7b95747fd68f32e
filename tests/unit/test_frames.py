from __future__ import annotations

import random

import pytest

from pgworkers.ipc.frames import HEADER_SIZE, Frame, FrameError, FrameReader, encode

FRAMES = [
    Frame(1, 1, 1, b""),
    Frame(3, 2**63 - 1, 2**31 - 1, b"x" * 70_000),
    Frame(4, -1, -1, b"\0\xff" * 3),
    Frame(2, 0, 0, b"{}"),
]


@pytest.mark.parametrize("seed", range(20))
def test_frames_survive_any_cutting(seed: int) -> None:
    rand = random.Random(seed)
    stream = b"".join(encode(frame.kind, frame.job, frame.lease, frame.body) for frame in FRAMES * 3)
    reader, found, at = FrameReader(), [], 0
    while at < len(stream):
        step = rand.choice([1, 3, HEADER_SIZE, 100, 65536, 1 << 20])
        found += reader.feed(stream[at : at + step])
        at += step
    assert found == FRAMES * 3
    assert reader.buffered_bytes == 0


def test_one_byte_at_a_time() -> None:
    stream = encode(1, 5, 6, b"body") + encode(2, 7, 8, b"")
    reader = FrameReader()
    found = [frame for byte in stream for frame in reader.feed(bytes([byte]))]
    assert found == [Frame(1, 5, 6, b"body"), Frame(2, 7, 8, b"")]


def test_a_length_beyond_the_limit_is_refused_before_it_is_buffered() -> None:
    reader = FrameReader(limit=10)
    assert reader.feed(encode(1, 1, 1, b"x" * 10)) == [Frame(1, 1, 1, b"x" * 10)]
    with pytest.raises(FrameError, match="11 bytes"):
        reader.feed(encode(1, 1, 1, b"x" * 11)[:HEADER_SIZE])
