"""Every way to hang, one task each: the app of `scripts/stop-matrix` and of the tests of stopping.

Each task notes its processes (one line `job pid` in the file HANGS_NOTES, with the time on CLOCK_BOOTTIME) and then calls a
function `guilty_...`, the one that a stack or a traceback must name.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import subprocess
import time

from pgworkers import App, Ctx

app = App(name="hangs")
app.queue("default", workers=int(os.environ.get("HANGS_WORKERS", "1")))


def note(ctx: Ctx, pid: int = 0) -> None:
    stamp = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    fd = os.open(os.environ["HANGS_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(fd, f"{ctx.job} {pid or os.getpid()} {stamp}\n".encode())
    os.close(fd)


def guilty_loop() -> None:
    while True:
        pass


def guilty_swallow() -> None:
    while True:
        try:
            time.sleep(0.01)
        except BaseException:
            pass


def guilty_gil() -> None:
    sum(itertools.repeat(1))


def guilty_regex() -> None:
    re.match("(a+)+$", "a" * 60 + "b")


def guilty_sleep() -> None:
    time.sleep(9999)


def guilty_read() -> None:
    reader, _writer = os.pipe()
    os.read(reader, 1)


def guilty_ignore() -> None:
    while True:
        time.sleep(0.01)


def guilty_session(ctx: Ctx) -> None:
    child = subprocess.Popen(["sleep", "9999"], start_new_session=True)
    note(ctx, child.pid)
    child.wait()


def guilty_double_fork(ctx: Ctx) -> None:
    middle = os.fork()
    if middle == 0:
        os.setsid()
        grandchild = os.fork()
        if grandchild == 0:
            time.sleep(9999)
        note(ctx, grandchild)
        os._exit(0)
    os.waitpid(middle, 0)
    while True:
        time.sleep(1)


def guilty_stopped() -> None:
    while True:
        os.kill(os.getpid(), signal.SIGSTOP)


async def guilty_asyncio() -> None:
    while True:
        try:
            await asyncio.sleep(9999)
        except BaseException:
            pass


def guilty_allocator() -> None:
    food = []
    while True:
        try:
            if len(food) < 125:
                food.append(bytearray(b"x" * (4 << 20)))
            else:
                time.sleep(0.01)
        except BaseException:
            pass


@app.task
def loop(ctx: Ctx) -> None:
    """pure loop"""
    note(ctx)
    guilty_loop()


@app.task
def swallow(ctx: Ctx) -> None:
    """`except BaseException: pass`"""
    note(ctx)
    guilty_swallow()


@app.task
def gil(ctx: Ctx) -> None:
    """`sum(itertools.repeat(1))`"""
    note(ctx)
    guilty_gil()


@app.task
def regex(ctx: Ctx) -> None:
    """catastrophic regex"""
    note(ctx)
    guilty_regex()


@app.task
def sleep(ctx: Ctx) -> None:
    """`time.sleep`"""
    note(ctx)
    guilty_sleep()


@app.task
def read(ctx: Ctx) -> None:
    """blocked read"""
    note(ctx)
    guilty_read()


@app.task
def ignore(ctx: Ctx) -> None:
    """all signals ignored"""
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    note(ctx)
    guilty_ignore()


@app.task
def session(ctx: Ctx) -> None:
    """child in its own session"""
    note(ctx)
    guilty_session(ctx)


@app.task
def double_fork(ctx: Ctx) -> None:
    """double-forked child"""
    note(ctx)
    guilty_double_fork(ctx)


@app.task
def stopped(ctx: Ctx) -> None:
    """SIGSTOPped worker"""
    note(ctx)
    guilty_stopped()


@app.task(name="asyncio")
async def asyncio_task(ctx: Ctx) -> None:
    """asyncio task that swallows cancel"""
    note(ctx)
    await guilty_asyncio()


@app.task
def allocator(ctx: Ctx) -> None:
    """500 MB allocator"""
    note(ctx)
    guilty_allocator()


@app.task
def polite(ctx: Ctx) -> None:
    """cooperative"""
    note(ctx)
    while not ctx.cancelled:
        time.sleep(0.002)
