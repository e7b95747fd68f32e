"""CPU time per very short job of one worker, as the kernel accounts it; several checkouts in turn.

    .venv/bin/python tests/bench/worker_cpu.py [--repeat 40] [--task nothing] [CHECKOUT …]

The real loop of a worker in a forked process, with a real socketpair, ticket pipe and report page, and 200 orders sent
ahead. Each CHECKOUT (this one by default, others to compare with it) is measured once per repetition, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

ORDERS_AHEAD = 200
BATCHES_PER_SAMPLE = 4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", nargs="*", type=Path, default=[Path(__file__).resolve().parents[2]])
    parser.add_argument("--repeat", type=int, default=40)
    parser.add_argument("--task", default="nothing", choices=["nothing", "number", "context"])
    given = parser.parse_args()
    found: dict[str, list[float]] = {str(checkout): [] for checkout in given.checkouts}
    measurers = {checkout: _start_measurer(checkout, given.task) for checkout in found}
    try:
        for _ in range(given.repeat):
            for checkout, measurer in measurers.items():
                assert measurer.stdin is not None
                assert measurer.stdout is not None
                measurer.stdin.write("\n")
                measurer.stdin.flush()
                found[checkout].append(json.loads(measurer.stdout.readline()))
    finally:
        for measurer in measurers.values():
            assert measurer.stdin is not None
            measurer.stdin.close()
            measurer.wait()
    for checkout, took in found.items():
        print(f"{checkout}: smallest {min(took):.2f}, median {statistics.median(took):.2f} µs of CPU per job")


def _start_measurer(checkout: str, task: str) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": checkout}
    command = [sys.executable, __file__, "--measure", task]
    return subprocess.Popen(command, cwd=checkout, env=environ, text=True, stdin=-1, stdout=-1)


def measure(task: str) -> None:
    """Act as the master of one worker. For each line on stdin, run jobs and print the CPU time of one in µs."""
    from pgworkers import clock
    from pgworkers.app import App
    from pgworkers.context import Ctx
    from pgworkers.ipc import frames, lease_deadline, report_page, scoreboard, tickets
    from pgworkers.linux import memfd
    from pgworkers.linux.descriptors import OwnedDescriptor, OwnedSocket
    from pgworkers.settings import Settings
    from pgworkers.specs import QueueSpec
    from pgworkers.worker.main import WorkerProcess
    from pgworkers.worker.messages import JSON_NULL, FrameKind, Order, encode_order_header
    from pgworkers.worker.startup import WorkerHandles, WorkerSetup

    app = App(name="alone")

    @app.task(name="nothing")
    def nothing() -> None:
        pass

    @app.task(name="number")
    def number(number: int) -> int:
        return number

    @app.task(name="context")
    def context(ctx: Ctx) -> None:
        pass

    for each in app.tasks.values():
        each.build_codecs()
    args = b'{"number":1}' if task == "number" else b"{}"
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    reads, writes = tickets.create_pipe()
    page = report_page.create()
    own = lease_deadline.LeaseDeadlineWriter()
    own.extend_to(clock.boottime_ns() / 1e9 + 3600)
    board = scoreboard.Scoreboard(1)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        ours.close()
        os.close(writes)
        output, dump = memfd.create("output"), memfd.create("dump")
        setup = WorkerSetup(
            app=app,
            settings=Settings(),
            queue=QueueSpec("q"),
            index=0,
            slot=board[0],
            lease_deadline=lease_deadline.LeaseDeadline(own.fd),
            supervisor_pid=parent,
            signals_to_reset=[],
        )
        handles = WorkerHandles(
            socket=OwnedSocket(theirs),
            tickets=OwnedDescriptor(reads),
            report_page=report_page.ReportPage(page),
            output=OwnedDescriptor(output),
            dump=OwnedDescriptor(dump),
            is_short_lived=False,
        )
        os._exit(WorkerProcess(setup).run(handles))
    theirs.close()
    order = Order(
        task=task,
        queue="q",
        attempt=1,
        crashes=0,
        timeout=60.0,
        memory=None,
        checkpoint=JSON_NULL,
        meta=JSON_NULL,
        errors=[],
    )
    body = encode_order_header(order) + args
    reader = frames.FrameReader()
    job = 0

    def run_batch() -> None:
        nonlocal job
        keys = [(job + number, 1) for number in range(1, ORDERS_AHEAD + 1)]
        job += ORDERS_AHEAD
        ours.sendall(b"".join(frames.encode(FrameKind.ORDER, *key, body) for key in keys))
        tickets.write_tickets(writes, keys)
        left = ORDERS_AHEAD
        while left:
            left -= sum(frame.kind == FrameKind.SUCCESS for frame in reader.feed(ours.recv(1 << 16)))

    def cpu_ns() -> int:
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])

    try:
        run_batch()
        for _ in sys.stdin:
            before = cpu_ns()
            for _ in range(BATCHES_PER_SAMPLE):
                run_batch()
            time.sleep(0.001)
            print((cpu_ns() - before) / 1000 / ORDERS_AHEAD / BATCHES_PER_SAMPLE, flush=True)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        sys.path[0] = os.environ["PYTHONPATH"]
        measure(sys.argv[2])
    else:
        main()
