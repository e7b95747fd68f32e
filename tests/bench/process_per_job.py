"""CPU and page faults of one process per job: a worker and its supervisor, from fork to reap; several checkouts in turn.

    .venv/bin/python tests/bench/process_per_job.py [--repeat 12] [--jobs 100] [--workers 2] [CHECKOUT …]

A real supervisor (`max_jobs=1`) without a database: this script acts as its master and sends one order to each forked
worker. The usage of the workers is what the kernel adds up for the children that the supervisor has waited for. Each
CHECKOUT (this one by default, others to compare with it) is measured once per repetition, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

APP = """
import asyncio
from pgworkers import App
app = App()
app.queue("q", max_jobs=1)

@app.task
def job(i: int) -> None:
    pass
"""
_TICK = 1000 / os.sysconf("SC_CLK_TCK")  # ms
NAMES = ("worker ms", "supervisor ms", "worker pages", "supervisor pages")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", nargs="*", type=Path, default=[Path(__file__).resolve().parents[2]])
    parser.add_argument("--repeat", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    found: dict[str, list[list[float]]] = {str(checkout): [] for checkout in given.checkouts}
    measurers = {checkout: _start_measurer(checkout, given.jobs, given.workers) for checkout in found}
    try:
        for turn in range(given.repeat + 1):
            for checkout, measurer in measurers.items():
                assert measurer.stdin is not None
                assert measurer.stdout is not None
                measurer.stdin.write("\n")
                measurer.stdin.flush()
                took = json.loads(measurer.stdout.readline())
                if turn:  # the first round is the warm-up
                    found[checkout].append(took)
    finally:
        for measurer in measurers.values():
            assert measurer.stdin is not None
            measurer.stdin.close()
            measurer.wait()
    for checkout, took in found.items():
        parts = [
            f"{name} {min(values):.2f} ({statistics.median(values):.2f})"
            for name, values in zip(NAMES, zip(*took, strict=True), strict=True)
        ]
        print(f"{checkout}: {', '.join(parts)}; smallest (median) per job")


def _start_measurer(checkout: str, jobs: int, workers: int) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": checkout}
    command = [sys.executable, __file__, "--measure", str(jobs), str(workers)]
    return subprocess.Popen(command, cwd=checkout, env=environ, text=True, stdin=-1, stdout=-1)


class Usage:
    """CPU time and page faults so far, of one process and of the children that it has waited for."""

    def __init__(self, pid: int) -> None:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        own = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6
        self.numbers = (int(fields[13]) + int(fields[14])) * _TICK, own, int(fields[8]), int(fields[7])

    def since(self, before: Usage, jobs: int) -> list[float]:
        return [(now - then) / jobs for now, then in zip(self.numbers, before.numbers, strict=True)]


def measure(jobs: int, workers: int) -> None:
    """Act as the master of one supervisor. For each line on stdin, run the jobs and print their usage."""
    import tempfile
    from dataclasses import asdict

    import msgspec

    from pgworkers.ipc import frames, tickets
    from pgworkers.ipc.lease_deadline import LeaseDeadlineWriter
    from pgworkers.ipc.packets import PacketSocket
    from pgworkers.linux.titles import TITLE_PADDING_ARGUMENT
    from pgworkers.settings import Settings
    from pgworkers.specs import QueueSpec
    from pgworkers.supervisor.messages import Boot, Died, Forked, SupervisorEvent
    from pgworkers.worker.messages import JSON_NULL, FrameKind, Order, encode_order_header

    body = (
        encode_order_header(
            Order(
                task="job",
                queue="q",
                attempt=1,
                crashes=0,
                timeout=60.0,
                memory=None,
                checkpoint=JSON_NULL,
                meta=JSON_NULL,
                errors=[],
            )
        )
        + b'{"i":1}'
    )
    ready = len(frames.encode(FrameKind.READY, 0, 0))
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "app.py"
        config.write_text(APP)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lease = LeaseDeadlineWriter()
        lease.extend_to(time.clock_gettime(time.CLOCK_BOOTTIME) + 3600)
        numbers = (
            "--control-fd",
            str(theirs.fileno()),
            "--lease-fd",
            str(lease.fd),
            "--parent-pid",
            str(os.getpid()),
        )
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "pgworkers.supervisor", *numbers, TITLE_PADDING_ARGUMENT],
            pass_fds=[theirs.fileno(), lease.fd],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        control = PacketSocket(ours)
        control.send(
            msgspec.json.encode(
                Boot(str(config), QueueSpec("q", max_jobs=1), workers, asdict(Settings()), "host")
            )
        )
        workers_by_slot: dict[int, tuple[socket.socket, int, int]] = {}
        job = 0

        def send_order(slot: int, fds: list[int], is_ready: bool) -> None:
            nonlocal job
            job += 1
            sock = socket.socket(fileno=fds[0])
            workers_by_slot[slot] = sock, fds[1], fds[2]
            sock.setblocking(True)
            if not is_ready:
                sock.recv(ready, socket.MSG_WAITALL)
            sock.sendall(frames.encode(FrameKind.ORDER, job, 1, body))
            tickets.write_tickets(fds[2], [(job, 1)])

        def read_report(slot: int) -> None:
            sock, *fds = workers_by_slot.pop(slot)
            with sock:
                (frame,) = frames.FrameReader().feed(sock.recv(1 << 16))
                assert frame.kind in (FrameKind.SUCCESS, FrameKind.REPORT), frame
            for fd in fds:
                os.close(fd)

        def run_jobs(count: int) -> None:
            deaths = 0
            while deaths < count:
                select.select([ours], [], [])
                packets = control.receive()
                assert packets is not None, "the supervisor is gone"
                for data, fds in packets:
                    fact: Any = msgspec.json.decode(data, type=SupervisorEvent)
                    if isinstance(fact, Forked):
                        send_order(fact.slot, fds, fact.is_ready)
                    elif isinstance(fact, Died):
                        read_report(fact.slot)
                        deaths += 1

        try:
            for _ in sys.stdin:
                before = Usage(supervisor.pid)
                run_jobs(jobs)
                print(json.dumps(Usage(supervisor.pid).since(before, jobs)), flush=True)
        finally:
            os.kill(supervisor.pid, signal.SIGKILL)
            supervisor.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        sys.path[0] = os.environ["PYTHONPATH"]
        measure(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
