"""Playing the master: a real supervisor on a control socket, with a small app of the test's own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pgworkers.ipc import frames, report_page, tickets
from pgworkers.ipc.lease_deadline import LeaseDeadlineWriter
from pgworkers.ipc.packets import PacketSocket
from pgworkers.ipc.scoreboard import StopReason
from pgworkers.linux import proc
from pgworkers.linux.titles import TITLE_PADDING_ARGUMENT
from pgworkers.settings import Settings
from pgworkers.specs import QueueSpec
from pgworkers.supervisor.messages import (
    Alive,
    Boot,
    Booted,
    BootFailed,
    Died,
    DumpStacks,
    Exit,
    Forked,
    Scale,
    StackDumped,
    StallChanged,
    StartDelayed,
    StopJob,
    SupervisorEvent,
)
from pgworkers.worker.messages import (
    FrameKind,
    Order,
    Outcome,
    Progress,
    Report,
    decode_success,
    encode_order_header,
)

T = TypeVar("T")
STEP = 0.005
NOBODY = 9999  # a slot without a worker
PATIENCE = 60.0  # never a threshold: only how long a test waits before it says what is missing

HEAD = """
import asyncio, ctypes, itertools, os, random, signal, subprocess, sys, threading, time
from pgworkers import App, Ctx, Retry, Snooze, Discard, Throttled, JobStopped
app = App()
app.queue("q")
"""


def until(
    what: str, ask: Callable[[], T | None], patience: float = PATIENCE, tell: Callable[[], str] = str
) -> T:
    """Wait for a fact."""
    give_up = time.monotonic() + patience
    while True:
        found = ask()
        if found:
            return found
        assert time.monotonic() < give_up, f"waited in vain for: {what}{tell()}"
        time.sleep(STEP)


def is_alive(pid: int) -> bool:
    found = proc.read_stat(pid)
    return found is not None and found.state not in "ZX"


def is_stopped(pid: int) -> bool:
    """True if it is stopped (SIGSTOP)."""
    found = proc.read_stat(pid)
    return found is not None and found.state in "Tt"


def as_report(frame: frames.Frame) -> frames.Frame:
    """A report, whichever of its two forms it has."""
    if frame.kind != FrameKind.SUCCESS:
        return frame
    duration, cpu, peak, result = decode_success(frame.body)
    report = Report(Outcome.DONE, duration, cpu, peak, result=msgspec.Raw(result))
    return msgspec.structs.replace(frame, kind=FrameKind.REPORT, body=msgspec.json.encode(report))


class HarnessWorker:
    """One worker as the master sees it: its pid and its socket."""

    def __init__(self, slot: int, pid: int, incarnation: int, channel: list[int]) -> None:
        self.slot = slot
        self.pid = pid
        self.incarnation = incarnation
        fd, self.reads, self.writes, *page = channel
        self.page = page[0] if page else -1  # a worker of one job has none
        self.sock = socket.socket(fileno=fd)
        self.sock.setblocking(False)
        self._reader = frames.FrameReader()
        self._frames: list[frames.Frame] = []
        self._early: set[tuple[int, int]] = set()  # ends that were read from the page and will come again
        self._sent: set[tuple[int, int]] = set()  # that have come, though they may lie there a moment longer
        self.closed = False
        self.ready = False

    def pump(self) -> None:
        lying = report_page.read(self.page) if self.page >= 0 else b""
        self._receive()
        for frame in frames.FrameReader().feed(lying):
            key = frame.job, frame.lease
            if key not in self._early | self._sent:
                self._early.add(key)
                self._frames.append(as_report(frame))

    def _receive(self) -> None:
        while not self.closed:
            try:
                data = self.sock.recv(1 << 16)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if not data:
                self.closed = True
                return
            for frame in self._reader.feed(data):
                key = frame.job, frame.lease
                self._sent.add(key)
                if key in self._early:
                    self._early.remove(key)
                else:
                    self._frames.append(as_report(frame))

    def take(self, kind: FrameKind, job: int = 0) -> frames.Frame | None:
        self.pump()
        for frame in self._frames:
            if frame.kind == kind and job in (0, frame.job):
                self._frames.remove(frame)
                return frame
        return None

    def has(self, kind: FrameKind) -> bool:
        """Has a frame come? It is not taken."""
        self.pump()
        return any(frame.kind == kind for frame in self._frames)

    def order(
        self,
        job: int,
        task: str,
        *,
        lease: int = 1,
        timeout: float | None = None,
        memory: int | None = None,
        checkpoint: Any = None,
        attempt: int = 1,
        stall_timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        found = msgspec.Raw(msgspec.json.encode(checkpoint))
        order = Order(
            task=task,
            queue="q",
            attempt=attempt,
            crashes=0,
            timeout=timeout,
            memory=memory,
            checkpoint=found,
            meta=msgspec.Raw(b"null"),
            errors=[],
            stall_timeout=stall_timeout,
        )
        # arguments travel as one JSON object by parameter name
        body = encode_order_header(order) + msgspec.json.encode(kwargs)
        self.sock.setblocking(True)
        if len(body) > 100_000:  # more than a socket takes: the worker reads it when it has the ticket
            tickets.write_tickets(self.writes, [(job, lease)])
        self.sock.sendall(frames.encode(FrameKind.ORDER, job, lease, body))
        self.sock.setblocking(False)
        if len(body) <= 100_000:
            tickets.write_tickets(self.writes, [(job, lease)])

    def report(self, job: int) -> Report:
        frame = until(f"the report of job {job}", lambda: self.take(FrameKind.REPORT, job))
        return msgspec.json.decode(frame.body, type=Report)

    def progress(self, job: int) -> Progress:
        frame = until(f"progress of job {job}", lambda: self.take(FrameKind.PROGRESS, job))
        return msgspec.json.decode(frame.body, type=Progress)

    def close(self) -> None:
        """The whole channel: an idle worker leaves."""
        self.sock.close()
        for fd in (self.reads, self.writes, self.page):
            if fd >= 0:
                os.close(fd)
        self.reads = self.writes = self.page = -1

    def run(self, job: int, task: str, **how: Any) -> Report:
        self.order(job, task, **how)
        return self.report(job)


class SupervisorHarness:
    """A supervisor and its workers. `close` ends everything and waits for it."""

    def __init__(
        self,
        directory: Path,
        *sources: str,
        workers: int = 1,
        environ: dict[str, str] | None = None,
        stderr: Any = None,
        queue: dict[str, Any] | None = None,
        lease_seconds: float = 3600.0,
        **settings: Any,
    ) -> None:
        config = directory / "app.py"
        config.write_text(HEAD + "\n".join(textwrap.dedent(source) for source in sources))
        # Long graces: otherwise a busy machine would let them run out, and tests would fail now and then.
        values = {"heartbeat_interval": 0.05, "ask_grace": 600.0, "raise_grace": 600.0, **settings}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.log = directory / "stderr"
        self.lease = LeaseDeadlineWriter()
        self.lease.extend_to(time.clock_gettime(time.CLOCK_BOOTTIME) + lease_seconds)
        with theirs, self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "pgworkers.supervisor"),
                    *("--control-fd", str(theirs.fileno()), "--lease-fd", str(self.lease.fd)),
                    *("--parent-pid", str(os.getpid()), TITLE_PADDING_ARGUMENT),
                ],
                pass_fds=[theirs.fileno(), self.lease.fd],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stderr=log if stderr is None else stderr,
                cwd=directory,
                env={**os.environ, **(environ or {})},
            )
        self.control = PacketSocket(ours)
        self.facts: list[SupervisorEvent] = []
        self.workers: dict[int, HarnessWorker] = {}
        self.all_workers: list[HarnessWorker] = []
        self.gone = False
        self.send(
            Boot(
                str(config),
                QueueSpec("q", **(queue or {})),
                workers,
                asdict(Settings(**values)),
                "host",
            )
        )

    def __enter__(self) -> SupervisorHarness:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, command: Boot | Scale | StopJob | DumpStacks | Exit) -> None:
        self.control.send(msgspec.json.encode(command))

    def pump(self) -> None:
        if self.gone:
            return
        self.control.flush()
        packets = self.control.receive()
        if packets is None:
            self.gone = True
            return
        for data, fds in packets:
            fact: SupervisorEvent = msgspec.json.decode(data, type=SupervisorEvent)
            if isinstance(fact, Forked):
                self.workers[fact.slot] = HarnessWorker(fact.slot, fact.pid, fact.incarnation, fds)
                self.workers[fact.slot].ready = fact.is_ready
                self.all_workers.append(self.workers[fact.slot])
            self.facts.append(fact)

    def fact(self, kind: type[T], where: Callable[[T], bool] = lambda _: True) -> T:
        """The next fact of a kind, taken."""

        def look() -> T | None:
            self.pump()
            for fact in self.facts:
                if isinstance(fact, kind) and where(fact):
                    self.facts.remove(fact)
                    return fact
            return None

        return until(kind.__name__, look, tell=lambda: f"; there are {self.facts}")

    def end(self, worker: HarnessWorker, job: int) -> Died | Report:
        """What comes first: the report of a job, or the death of a worker."""

        def look() -> Died | Report | None:
            self.pump()
            for fact in self.facts:
                if isinstance(fact, Died):
                    self.facts.remove(fact)
                    return fact
            frame = worker.take(FrameKind.REPORT, job)
            return msgspec.json.decode(frame.body, type=Report) if frame is not None else None

        return until(f"the end of job {job}", look)

    def worker(self, slot: int = 0, *, other_than: int = 0) -> HarnessWorker:
        """A worker that has sent READY, or need not."""

        def look() -> HarnessWorker | None:
            self.pump()
            found = self.workers.get(slot)
            if found is None or found.pid == other_than:
                return None
            return found if found.ready or found.take(FrameKind.READY) else None

        found = until(f"a ready worker in slot {slot}; facts: {self.facts}", look)
        found.ready = True
        return found

    def wait_for_stack(self, worker: HarnessWorker, word: str) -> str:
        """Wait until a stack of the worker has a word in it: a dump may find it a moment too early, or asleep."""

        def look() -> str | None:
            self.send(DumpStacks(worker.slot, worker.incarnation, 1))
            text = self.fact(StackDumped).text
            return text if word in text else None

        return until(f"{word!r} in a stack", look)

    def wait_for_pending_commands(self) -> None:
        """Wait until the supervisor has wait_for_pending_commands all that was sent to it: it answers in order."""
        self.send(DumpStacks(NOBODY, 0, 2))
        self.fact(StackDumped, lambda stack: stack.slot == NOBODY)

    def stop(
        self,
        worker: HarnessWorker,
        job: int,
        reason: str = "cancel",
        *,
        lease: int = 1,
        ask: float,
        rais: float = 600.0,
    ) -> None:
        self.send(
            StopJob(
                slot=worker.slot,
                incarnation=worker.incarnation,
                job=job,
                lease=lease,
                reason=StopReason[reason.upper()],
                ask_grace=ask,
                raise_grace=rais,
            )
        )

    def close(self) -> None:
        if self.process.poll() is None and not self.gone:
            self.send(Exit())
            until("the supervisor's end", lambda: (self.pump(), self.process.poll() is not None)[1])
        self.control.sock.close()
        os.close(self.lease.fd)
        for worker in self.all_workers:
            worker.close()
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


__all__ = [
    "NOBODY",
    "Alive",
    "BootFailed",
    "Booted",
    "Died",
    "DumpStacks",
    "Exit",
    "Forked",
    "HarnessWorker",
    "Scale",
    "StackDumped",
    "StallChanged",
    "StartDelayed",
    "StopJob",
    "SupervisorHarness",
    "is_alive",
    "is_stopped",
    "until",
]  # fmt: skip
