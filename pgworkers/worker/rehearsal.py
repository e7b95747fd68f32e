"""A rehearsal: the supervisor plays a worker's life a few times, with a job that does nothing, before it forks any.

An interpreter learns while it runs: where it found an attribute, which form of an instruction fits. It writes that down
beside the code, and what was not learned before the fork each worker learns for itself, in pages that it must copy first.
All of it is on stage only: a slot, a term, a channel, an app of its own. No signal, no stream and no thread is touched.
"""

from __future__ import annotations

import os
import random
import signal
from _socket import AF_UNIX, SOCK_STREAM, socketpair

import msgspec

from pgworkers.app import App
from pgworkers.observe import tracing
from pgworkers.process import faults, frames, memfd, prctl, scoreboard, tickets, tree
from pgworkers.process.scoreboard import Scoreboard
from pgworkers.process.term import OwnTerm, Term
from pgworkers.settings import Settings
from pgworkers.specs import QueueSpec
from pgworkers.worker.birth import Birth
from pgworkers.worker.main import Worker
from pgworkers.worker.messages import NULL, Kind, Order, head
from pgworkers.worker.tidy import TIMERS

#: So many lives: an interpreter looks closer at code that it has seen eight times.
LIVES = 16
_JOB, _LEASE = 1, 1
_LONG = 3600.0


def rehearse(settings: Settings, queue: QueueSpec, parent: int) -> None:
    """Nothing of it is left but what the interpreter has learned."""
    if tracing.wanted() or faults.ARMED or any(signal.getitimer(timer)[0] for timer in TIMERS):
        return  # whoever watches would see jobs that never were, and a job's end stops the app's timers
    app = App(name="rehearsal")

    @app.task(name="nothing", queue="rehearsal")
    def nothing(number: int) -> None:
        pass

    order = Order("nothing", queue.name, 1, 0, None, None, NULL, NULL, [])
    frame = frames.encode(Kind.ORDER, _JOB, _LEASE, head(order) + b'{"number":1}')
    children = set(tree.children(os.getpid()))
    own = OwnTerm()
    own.move(scoreboard.now() / 1e9 + _LONG)
    stage = Birth(
        app=app,
        settings=settings,
        queue=msgspec.structs.replace(queue, max_jobs=1, max_rss=None, address_space=None),
        index=0,
        slot=Scoreboard(1)[0],
        term=Term(own.fd),
        parent=parent,
        signals=[],
    )
    for _ in range(LIVES):
        _be_born(parent)
        _play(stage, frame, children)


def _be_born(parent: int) -> None:
    """Those of the first steps that change nothing in a process which has made them before."""
    prctl.die_with_parent(signal.SIGKILL, parent)
    prctl.inherit_orphans()
    random.seed()


def _play(stage: Birth, frame: bytes, children: set[int]) -> None:
    ours, theirs = socketpair(AF_UNIX, SOCK_STREAM)
    reads, writes = tickets.make()
    output = memfd.create("pgworkers-rehearsal")
    try:
        ours.sendall(frame)
        tickets.write(writes, [(_JOB, _LEASE)])
        worker = Worker(stage)
        worker.take(theirs, reads, None, output, output, True)
        worker.spared = children
        worker.serve()
        worker.leave()
    finally:
        ours.close()
        theirs.close()
        for fd in (reads, writes, output):
            os.close(fd)
