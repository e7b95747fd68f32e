"""A rehearsal: the supervisor plays a worker's life a few times, with a job that does nothing, before it forks any.

An interpreter learns while it runs: where it found an attribute, which form of an instruction fits. It writes that down
beside the code, and what was not learned before the fork each worker learns for itself, in pages that it must copy first.
All of it is on stage only: a slot, a term, a channel, an app of its own. No signal, no stream and no thread is touched.
"""

from __future__ import annotations

import os
import random
import signal
from socket import AF_UNIX, SOCK_STREAM, socketpair

import msgspec

from pgworkers import clock
from pgworkers.app import App
from pgworkers.ipc import frames, tickets
from pgworkers.ipc.lease_deadline import LeaseDeadline, LeaseDeadlineWriter
from pgworkers.ipc.scoreboard import Scoreboard
from pgworkers.linux import fault_points, memfd, prctl, proc
from pgworkers.observe import tracing
from pgworkers.settings import Settings
from pgworkers.specs import QueueSpec
from pgworkers.worker.cleanup import INTERVAL_TIMERS
from pgworkers.worker.main import WorkerProcess
from pgworkers.worker.messages import NULL, FrameKind, Order, encode_order_header
from pgworkers.worker.startup import WorkerSetup

#: So many lives: an interpreter looks closer at code that it has seen eight times.
LIVES = 16
_JOB, _LEASE = 1, 1
_LONG = 3600.0


def rehearse(settings: Settings, queue: QueueSpec, parent: int) -> None:
    """Nothing of it is left but what the interpreter has learned."""
    if (
        tracing.is_enabled()
        or fault_points.IS_ARMED
        or any(signal.getitimer(timer)[0] for timer in INTERVAL_TIMERS)
    ):
        return  # whoever watches would see jobs that never were, and a job's end stops the app's timers
    app = App(name="rehearsal")

    @app.task(name="nothing", queue="rehearsal")
    def nothing(number: int) -> None:
        pass

    order = Order("nothing", queue.name, 1, 0, None, None, NULL, NULL, [])
    frame = frames.encode(FrameKind.ORDER, _JOB, _LEASE, encode_order_header(order) + b'{"number":1}')
    children = set(proc.children(os.getpid()))
    own = LeaseDeadlineWriter()
    own.extend_to(clock.boottime_ns() / 1e9 + _LONG)
    stage = WorkerSetup(
        app=app,
        settings=settings,
        queue=msgspec.structs.replace(queue, max_jobs=1, max_rss=None, address_space=None),
        index=0,
        slot=Scoreboard(1)[0],
        lease_deadline=LeaseDeadline(own.fd),
        supervisor_pid=parent,
        signals_to_reset=[],
    )
    for _ in range(LIVES):
        _be_born(parent)
        _play(stage, frame, children)


def _be_born(parent: int) -> None:
    """Those of the first steps that change nothing in a process which has made them before."""
    prctl.set_parent_death_signal(signal.SIGKILL, parent)
    prctl.become_subreaper()
    random.seed()


def _play(stage: WorkerSetup, frame: bytes, children: set[int]) -> None:
    ours, theirs = socketpair(AF_UNIX, SOCK_STREAM)
    reads, writes = tickets.create_pipe()
    output = memfd.create("pgworkers-rehearsal")
    try:
        ours.sendall(frame)
        tickets.write_tickets(writes, [(_JOB, _LEASE)])
        worker = WorkerProcess(stage)
        worker._accept(theirs, reads, None, output, output, True)
        worker._spared_children = children
        worker._serve()
        worker._shut_down()
    finally:
        ours.close()
        theirs.close()
        for fd in (reads, writes, output):
            os.close(fd)
