"""Every way to hang, one task each: the app of `scripts/stop-matrix` and of the tests of stopping.

Each task notes its processes (one line `job pid` in the file HANGS_NOTES, with the time on CLOCK_BOOTTIME) and then calls a
function `guilty_...`, the one that a stack or a traceback must name.

The argument `child` says what the handler starts before it hangs, one of CHILDREN. All of these processes have HANGS_NOTES
and the number of the job in their environment (HANGS_JOB). So a test finds those that are left, whatever their parent and
session.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import subprocess
import sys
import time

from pgworkers import App, Ctx

#: What a handler may have started, as the documentation names it.
CHILDREN = {
    "none": "no child",
    "big": "1.5 GB child",
    "session": "own session",
    "many": "200 asleep",
    "respawn": "60 that respawn",
}
BIG = """
import os, time
size = int(os.environ.get("HANGS_BIG_MB", "1536")) << 20
held = bytearray(size)
held[::4096] = b"1" * len(held[::4096])
print("ready", flush=True)
time.sleep(9999)
"""
#: Each of sixty forks its successor and ends, every HANGS_NAP seconds.
RESPAWN = """
import os, time
for _ in range(60):
    if os.fork() == 0:
        os.setsid()
        while True:
            time.sleep(float(os.environ.get("HANGS_NAP", "0.05")))
            if os.fork(): os._exit(0)
print("ready", flush=True)
time.sleep(9999)
"""

app = App(name="hangs")
app.queue("default", workers=int(os.environ.get("HANGS_WORKERS", "1")))


def note(ctx: Ctx, pid: int = 0, began: int = 0) -> None:
    stamp = began or time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    fd = os.open(os.environ["HANGS_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(fd, f"{ctx.job} {pid or os.getpid()} {stamp}\n".encode())
    os.close(fd)


def begin(ctx: Ctx, child: str) -> None:
    """Start the children and note the job, with the time of its beginning: it hangs from now on."""
    began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    environ = {**os.environ, "HANGS_JOB": f"{os.environ['HANGS_NOTES']} {ctx.job}"}
    if child in ("big", "respawn"):
        code = BIG if child == "big" else RESPAWN
        started = subprocess.Popen(
            [sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, start_new_session=True
        )
        assert started.stdout is not None
        started.stdout.readline()
    for _ in range({"session": 1, "many": 200}.get(child, 0)):
        subprocess.Popen(["sleep", "9999"], env=environ, start_new_session=child == "session")
    note(ctx, began=began)


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
def loop(ctx: Ctx, child: str = "none") -> None:
    """pure loop"""
    begin(ctx, child)
    guilty_loop()


@app.task
def swallow(ctx: Ctx, child: str = "none") -> None:
    """`except BaseException: pass`"""
    begin(ctx, child)
    guilty_swallow()


@app.task
def gil(ctx: Ctx, child: str = "none") -> None:
    """`sum(itertools.repeat(1))`"""
    begin(ctx, child)
    guilty_gil()


@app.task
def regex(ctx: Ctx, child: str = "none") -> None:
    """catastrophic regex"""
    begin(ctx, child)
    guilty_regex()


@app.task
def sleep(ctx: Ctx, child: str = "none") -> None:
    """`time.sleep`"""
    begin(ctx, child)
    guilty_sleep()


@app.task
def read(ctx: Ctx, child: str = "none") -> None:
    """blocked read"""
    begin(ctx, child)
    guilty_read()


@app.task
def ignore(ctx: Ctx, child: str = "none") -> None:
    """all signals ignored"""
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    begin(ctx, child)
    guilty_ignore()


@app.task
def session(ctx: Ctx, child: str = "none") -> None:
    """child in its own session"""
    begin(ctx, child)
    guilty_session(ctx)


@app.task
def double_fork(ctx: Ctx, child: str = "none") -> None:
    """double-forked child"""
    begin(ctx, child)
    guilty_double_fork(ctx)


@app.task
def stopped(ctx: Ctx, child: str = "none") -> None:
    """SIGSTOPped worker"""
    begin(ctx, child)
    guilty_stopped()


@app.task(name="asyncio")
async def asyncio_task(ctx: Ctx, child: str = "none") -> None:
    """asyncio task that swallows cancel"""
    begin(ctx, child)
    await guilty_asyncio()


@app.task
def allocator(ctx: Ctx, child: str = "none") -> None:
    """500 MB allocator"""
    begin(ctx, child)
    guilty_allocator()


@app.task
def polite(ctx: Ctx, child: str = "none") -> None:
    """cooperative"""
    begin(ctx, child)
    while not ctx.cancelled:
        time.sleep(0.002)
