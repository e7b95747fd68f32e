"""The demo of `scripts/run`: CPU work that can be watched, with nothing to install.

    pgworkers run --config examples/app.py --enqueue demo

`demo` enqueues a few dozen jobs: bands of a Mandelbrot picture (two worker processes draw them at the same time), counts of
prime numbers, one job that fails at first and is tried again, and a few that only wait.
"""

from __future__ import annotations

import asyncio
import math
import os
import struct
import tempfile
import zlib
from pathlib import Path
from typing import NamedTuple

from pgworkers import App, Ctx

app = App()
app.queue("frames", workers=2)
app.queue("default", workers=1)

WIDTH, HEIGHT, BANDS = 640, 480, 24
PICTURES = Path(tempfile.gettempdir()) / f"pgworkers-demo-{os.getuid()}"


class Drawn(NamedTuple):
    file: str
    inside: int  # points that never escaped


@app.task(queue="frames", timeout="2m", memory="512MB")
def mandelbrot(ctx: Ctx, band: int, *, limit: int = 900) -> Drawn:
    """Draw one horizontal band of the picture into a PNG file."""
    height = HEIGHT // BANDS
    first = ctx.checkpoint.get("row", 0)  # after a crash or a deploy it goes on where it was
    rows: list[str] = ctx.checkpoint.get("rows", [])
    for y in ctx.track(range(first, height), total=height, note=f"band {band}"):
        row = bytearray()
        for x in range(WIDTH):
            n = escape(complex(3.2 * x / WIDTH - 2.2, 2.4 * (band * height + y) / HEIGHT - 1.2), limit)
            row.append(0 if n == limit else 255 - int(200 * math.sqrt(n / limit)))
        rows.append(row.hex())
        ctx.checkpoint.update(row=y + 1, rows=rows)
    PICTURES.mkdir(exist_ok=True)
    file = PICTURES / f"band-{band:02d}.png"
    file.write_bytes(png(WIDTH, [bytes.fromhex(row) for row in rows]))
    return Drawn(str(file), sum(bytes.fromhex(row).count(0) for row in rows))


def escape(c: complex, limit: int) -> int:
    z = 0j
    for n in range(limit):
        z = z * z + c
        if z.real * z.real + z.imag * z.imag > 4.0:
            return n
    return limit


def png(width: int, rows: list[bytes]) -> bytes:
    """A grey PNG, by hand."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, len(rows), 8, 0, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@app.task(timeout="1m")
def primes(ctx: Ctx, start: int, stop: int) -> int:
    """Count the prime numbers from `start` up to `stop`."""
    found = 0
    for n in ctx.track(range(start, stop)):
        found += n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))
    return found


@app.task(retries=3, backoff="1s")
def flaky(ctx: Ctx) -> str:
    """Fail the first time, as services do."""
    if ctx.attempt == 1:
        raise ConnectionError("the service is not there yet")
    return f"worked at attempt {ctx.attempt}, after: {ctx.errors[-1]}"


@app.task
async def nap(seconds: float) -> float:
    """Wait without using the CPU; `async def` handlers run on the worker's event loop."""
    await asyncio.sleep(seconds)
    return seconds


@app.task(priority=10, retries=0)
def demo() -> int:
    """Enqueue everything above: what `pgworkers run --enqueue demo` starts with."""
    flaky.enqueue()
    frames = [mandelbrot.prepare(band) for band in range(BANDS)]
    counts = [primes.prepare(start, start + 60_000) for start in range(0, 480_000, 60_000)]
    return app.enqueue_many([*frames, *counts, *(nap.prepare(0.3) for _ in range(3))])
