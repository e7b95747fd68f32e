"""An app whose handlers write a ledger outside the system and misbehave on request.

The ledger is the file in PGWORKERS_LEDGER: one line per start and end, appended with one os.write, stamped with
CLOCK_BOOTTIME. Copy this file next to a test as app.py, or import it.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import logging
import os
import signal
import sys
import time
from typing import Any

from pgworkers import App, Ctx, Discard, Retry, Snooze, Throttled

app = App(name="misbehaving")
for _name, _workers in (part.split(":") for part in os.environ.get("APP_QUEUES", "default:2").split(",")):
    if _workers.startswith("c"):  # "default:c6": over all hosts
        app.queue(_name, cluster_workers=int(_workers[1:]))
    else:
        app.queue(_name, workers=int(_workers))


def note(ctx: Ctx, kind: str) -> None:
    """One line of the ledger."""
    path = os.environ.get("PGWORKERS_LEDGER")
    if not path:
        return
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        stamp = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        os.write(fd, f"{kind} {ctx.job} {ctx.lease} {ctx.attempt} {os.getpid()} {stamp}\n".encode())
    finally:
        os.close(fd)


@app.task
def work(ctx: Ctx, seconds: float = 0.0, value: Any = None, gated: bool = False) -> Any:
    """Sleep a while (`gated`: until the test opens the gate) and return the value."""
    note(ctx, "START")
    time.sleep(seconds)
    while gated and not os.path.exists(os.environ["PGWORKERS_LEDGER"] + ".open"):
        time.sleep(0.005)
    note(ctx, "END")
    return value


@app.task
def gate(ctx: Ctx, value: Any = None) -> Any:
    """Run until the test opens the gate (`Cluster.open_gate`), however slow the machine is, and return the value."""
    note(ctx, "START")
    while not os.path.exists(os.environ["PGWORKERS_LEDGER"] + ".open"):
        time.sleep(0.02)
    note(ctx, "END")
    return value


@app.task(concurrency=2, concurrency_per_key=2)
def narrow(ctx: Ctx, seconds: float = 0.0) -> None:
    """No more than two at once in the whole cluster; nor of one key."""
    note(ctx, "START")
    time.sleep(seconds)
    note(ctx, "END")


@app.task(concurrency_per_key=2)
def tenant(ctx: Ctx, seconds: float = 0.0) -> None:
    """No more than two at once of one key."""
    note(ctx, "START")
    time.sleep(seconds)
    note(ctx, "END")


@app.task
def spin(ctx: Ctx, seconds: float = 0.1) -> int:
    """Burn CPU in Python."""
    note(ctx, "START")
    until = time.monotonic() + seconds
    turns = 0
    while time.monotonic() < until:
        turns += 1
    note(ctx, "END")
    return turns


@app.task
def polite(ctx: Ctx, seconds: float = 60.0) -> str:
    """Wait, but look at ctx.cancelled."""
    note(ctx, "START")
    until = time.monotonic() + seconds
    while time.monotonic() < until and not ctx.cancelled:
        time.sleep(0.01)
    note(ctx, "END")
    return "asked" if ctx.cancelled else "waited"


@app.task
def hang(ctx: Ctx) -> None:
    """Swallow everything, for ever."""
    note(ctx, "START")
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass


@app.task
def hold_gil(ctx: Ctx, turns: int) -> int:
    """Stay inside C code that neither releases the GIL nor looks at signals."""
    note(ctx, "START")
    total = sum(itertools.repeat(1, turns))
    note(ctx, "END")
    return total


@app.task(retries=2)
def fail(ctx: Ctx, text: str = "on purpose", times: int = 1_000_000) -> str:
    """Raise on the first `times` attempts."""
    note(ctx, "START")
    if ctx.attempt <= times:
        note(ctx, "END")
        raise ValueError(text)
    note(ctx, "END")
    return f"attempt {ctx.attempt}"


@app.task
def die(ctx: Ctx, how: str = "kill", times: int = 1_000_000) -> str:
    """End the worker: kill, segv, abort, exit0, exit3, sysexit."""
    note(ctx, "START")
    if ctx.attempt <= times:
        match how:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segv":
                ctypes.string_at(0)
            case "abort":
                os.abort()
            case "exit0":
                os._exit(0)
            case "exit3":
                os._exit(3)
            case "sysexit":
                sys.exit(4)
    note(ctx, "END")
    return "lived"


@app.task
def steer(ctx: Ctx, how: str, after: float = 0.0) -> str:
    """Raise a control exception on the first attempt(s)."""
    note(ctx, "START")
    note(ctx, "END")
    done = ctx.checkpoint.get("steered", 0)
    if not done:
        ctx.checkpoint["steered"] = 1
        match how:
            case "retry":
                raise Retry("not yet", after=after)
            case "snooze":
                raise Snooze(after)
            case "discard":
                raise Discard("useless")
            case "throttle":
                raise Throttled("slow down", after=after or None)
    return "steered"


@app.task
def progress(ctx: Ctx, steps: int = 10, pause: float = 0.05) -> int:
    """Say how far it is, and remember it over attempts."""
    note(ctx, "START")
    begin = ctx.checkpoint.get("step", 0)
    for step in ctx.track(range(begin, steps)):
        ctx.checkpoint["step"] = step
        time.sleep(pause)
    note(ctx, "END")
    return steps


class Nasty(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__


@app.task(retries=0)
def hostile(ctx: Ctx, what: str) -> Any:
    """Return or raise what no database likes."""
    note(ctx, "START")
    note(ctx, "END")
    deep: Any = []
    for _ in range(10_000):
        deep = [deep]
    match what:
        case "return nul":
            return "a\0b"
        case "return surrogate":
            return "a\ud800b"
        case "return nan":
            return float("nan")
        case "return big":
            return "x" * (2 << 20)
        case "return deep":
            return deep
        case "return huge int":
            return 2**70
        case "return object":
            return object()
        case "raise nul":
            raise ValueError("a\0b")
        case "raise surrogate":
            raise ValueError("a\ud800b")
        case "raise big":
            raise ValueError("x" * (2 << 20))
        case "raise nasty":
            raise Nasty
        case "raise interrupt":
            raise KeyboardInterrupt
        case "raise generator exit":
            raise GeneratorExit
        case "print":
            print("\x1b[31m a\0b \udcff".encode("utf-8", "surrogateescape"))
            sys.stdout.buffer.write(b"\xff\xfe\x00" * 100_000)
            sys.stdout.flush()
            raise ValueError("printed")
    return what


@app.task
async def breathe(ctx: Ctx, seconds: float = 0.01) -> str:
    """An async handler."""
    note(ctx, "START")
    await asyncio.sleep(seconds)
    note(ctx, "END")
    return "breathed"


@app.task
def litter(ctx: Ctx, seconds: float = 0.0) -> int:
    """Leave a grandchild in a session of its own."""
    note(ctx, "START")
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    os.waitpid(pid, 0)
    time.sleep(seconds)
    note(ctx, "END")
    return pid


@app.task
def talk(ctx: Ctx, text: str = "hello") -> None:
    """Log in every way a handler may, and print."""
    note(ctx, "START")
    ctx.log.info("ctx %s", text, extra={"page": 7})
    logging.getLogger("shop.pdf").warning("library %s", text, extra={"host": "elsewhere"})
    try:
        raise ValueError(f"inner {text}")
    except ValueError:
        logging.getLogger("shop.pdf").exception("caught %s", text)
    print(f"printed {text!r}")
    note(ctx, "END")
