"""Workers with one job each, on the master's side: ready when forked, gone after one report. Real sockets and pipes.

A supervisor sends `Forked` and `Died`; between the two the worker itself sends at most the report of its job.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from pgworkers.events import AttemptStarted, Event, EventBus, WorkerDied, WorkerReady
from pgworkers.ipc import frames, tickets
from pgworkers.job.finish import JobFinish, JobRetry
from pgworkers.job.model import ClaimedJob, JobState, Verdict
from pgworkers.master import assignment, dispatcher, orphan_processes
from pgworkers.master.connection import ReconnectingConnection
from pgworkers.master.dispatcher import Dispatcher
from pgworkers.master.finisher import Finisher
from pgworkers.master.supervisors import SupervisorPool
from pgworkers.master.worker_channel import WorkerChannel
from pgworkers.settings import Settings
from pgworkers.specs import QueueSpec, TaskSpec
from pgworkers.supervisor.messages import Alive, Boot, Died, Forked
from pgworkers.worker.messages import FrameKind, Outcome, Report

ONE = QueueSpec("default", max_jobs=1)


class WorkerPeer:
    """One worker: as the master sees it, and the ends of its channel that are its own."""

    def __init__(self, worker: WorkerChannel, theirs: socket.socket, takes: int) -> None:
        self.seen = worker
        self.theirs = theirs
        self._takes = takes

    def order(self) -> int | None:
        """The job whose order waits in its socket; it reads it."""
        try:
            (order,) = frames.FrameReader().feed(self.theirs.recv(1 << 16, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return None
        assert order.kind == FrameKind.ORDER
        return order.job

    def ticket(self) -> int | None:
        """The job that it may begin; it takes the ticket, if there is one."""
        try:
            data = os.read(self._takes, tickets.TICKET_BYTES)
        except BlockingIOError:
            return None
        return int.from_bytes(data[:8], "little") if data else None

    def reports(self, job: int, *, cut: int = 0, **more: Any) -> None:
        """Send its last report. `cut`: it is killed this many bytes before the end of it."""
        said = Report(Outcome.DONE, 0.1, 0.1, 1, is_last=True, **more)
        frame = frames.encode(FrameKind.REPORT, job, 1, msgspec.json.encode(said))
        self.theirs.sendall(frame[: len(frame) - cut])

    def leave(self) -> None:
        self.theirs.close()
        os.close(self._takes)


class DispatchHarness:
    """A master without processes: what the supervisor of a queue with `max_jobs=1` says we say."""

    def __init__(self) -> None:
        settings, facts = Settings(), EventBus()
        self.events: list[Event] = []
        facts.subscribe(self.events.append)
        self.ends = Finisher("host", ReconnectingConnection("finish", "", settings, facts), facts, 100)
        self.dispatch = Dispatcher(
            settings,
            facts,
            {"work": TaskSpec("work", "default")},
            {"default": ONE},
            self.ends,
            lambda queue: None,
            lambda worker, held, reason: None,
        )
        self.buffer = self.dispatch.buffers["default"]
        #: How often the master read the unstarted orders of a worker: also when its socket closes.
        self.unstarted_reads = 0
        on_channel_closed = self.dispatch.on_channel_closed

        def look(worker: WorkerChannel) -> None:
            self.unstarted_reads += 1
            on_channel_closed(worker)

        cast("Any", self.dispatch).on_channel_closed = look
        boot = Boot("app.py", ONE, 1, {}, "host")
        self.supervisors = SupervisorPool(
            host_id="host",
            settings=settings,
            events=facts,
            dispatcher=self.dispatch,
            lease_deadline_fd=-1,
            hurry=asyncio.Event(),
            start_background=asyncio.create_task,
        )
        self.supervisors.set_queues({"default": boot}, "v1")
        self.supervisor = SimpleNamespace(
            queue="default",
            version="v1",
            workers={},
            is_retired=False,
            is_booted=True,
            send=lambda command: None,
            close=lambda: None,
        )
        self.peers: list[WorkerPeer] = []

    def listed(self, *incarnations: int) -> None:
        """What the supervisor says each second: these are the workers that it has."""
        self.supervisors._on_message(cast("Any", self.supervisor), Alive(list(incarnations)), [])

    def forked(self, *, ready: bool = True, slot: int | None = None) -> WorkerPeer:
        """The supervisor has forked one: nothing stands between it and its first order, if it is `ready`."""
        ours, theirs = socket.socketpair()
        reads, writes = tickets.create_pipe()
        number = len(self.peers)
        slot = number if slot is None else slot
        takes = os.dup(reads)
        fds = [ours.detach(), reads, writes]
        self.supervisors._on_message(
            cast("Any", self.supervisor), Forked(slot, 4711 + number, number, ready), fds
        )
        self.peers.append(WorkerPeer(self.supervisor.workers[number], theirs, takes))
        return self.peers[-1]

    def died(self, worker_peer: WorkerPeer, job: int, status: str = "SIGKILL") -> str:
        """Its supervisor has reaped it. Returns the reason that the master emits. `job`: the job in its slot."""
        number = 0 if status.startswith("exit") else int(signal.Signals[status])
        fact = Died(
            worker_peer.seen.slot,
            worker_peer.seen.pid,
            worker_peer.seen.incarnation,
            job,
            1 if job else 0,
            status,
            number,
            was_ready=True,
        )
        self.supervisors._on_message(cast("Any", self.supervisor), fact, [])
        [events] = [
            fact for fact in self.events if isinstance(fact, WorkerDied) and fact.pid == worker_peer.seen.pid
        ]
        return str(events.reason)

    def claims(self, *ids: int) -> None:
        self.dispatch.accept(
            ClaimedJob(
                i, 1, "default", "work", "{}", 1, 0, 10, 3, None, None, None, None, None, [], 0.0, False
            )
            for i in ids
        )

    def waiting(self) -> list[int]:
        return [held.job.id for held in self.buffer.waiting]

    def ended(self) -> list[JobFinish | JobRetry]:
        return [end for _, end in self.ends._pending]

    def released(self) -> list[int]:
        return [fence.id for fence in self.ends._releases]

    def began(self) -> list[int]:
        return [fact.job for fact in self.events if isinstance(fact, AttemptStarted)]

    def at_rest(self) -> bool:
        """True if no worker has an order and no job is held."""
        return (self.buffer.assigned_jobs, self.buffer.occupied_workers, self.dispatch.held_fences()) == (
            0,
            0,
            [],
        )

    def close(self) -> None:
        for worker_peer in self.peers:
            worker_peer.seen.dispose()
            worker_peer.leave()


@pytest.fixture(autouse=True)
def _clock_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is: no order is reclaimed or released because of the time."""
    monkeypatch.setattr(assignment, "monotonic", lambda: 0.0)
    monkeypatch.setattr(dispatcher, "monotonic", lambda: 0.0)


def run_scene(scene: Callable[[DispatchHarness], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        harness = DispatchHarness()
        try:
            await scene(harness)
        finally:
            harness.close()

    asyncio.run(asyncio.wait_for(run(), 60))


async def turns() -> None:
    """Let the loop read everything that is in the sockets."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("waits", [True, False], ids=["a job waits for it", "it waits for a job"])
def test_a_worker_forked_ready_gets_its_order_before_it_sends_anything(waits: bool) -> None:
    async def scene(harness: DispatchHarness) -> None:
        if waits:
            harness.claims(1)
        worker_peer = harness.forked()
        if not waits:
            assert (worker_peer.seen.state, harness.buffer.idle_workers) == ("idle", [worker_peer.seen])
            harness.claims(1)
        assert (worker_peer.order(), worker_peer.ticket()) == (1, 1), "it has said nothing, and will not"
        assert worker_peer.seen.state == "busy"
        assert sum(isinstance(fact, WorkerReady) for fact in harness.events) == 1

    run_scene(scene)


def test_a_worker_not_forked_ready_gets_no_order_until_it_is_ready() -> None:
    async def scene(harness: DispatchHarness) -> None:
        harness.claims(1)
        worker_peer = harness.forked(ready=False)
        assert (worker_peer.order(), worker_peer.seen.state, harness.waiting()) == (None, "booting", [1]), (
            "its hooks may fail"
        )
        worker_peer.theirs.sendall(frames.encode(FrameKind.READY, 0, 0, b""))
        while not harness.buffer.assigned_jobs:
            await asyncio.sleep(0)
        assert (worker_peer.order(), worker_peer.ticket()) == (1, 1)

    run_scene(scene)


def test_a_worker_of_a_replaced_supervisor_gets_no_order_and_leaves() -> None:
    async def scene(harness: DispatchHarness) -> None:
        harness.claims(1)
        harness.supervisor.is_retired = True
        worker_peer = harness.forked()
        assert (worker_peer.seen.state, harness.waiting()) == ("leaving", [1]), "its code is the old one"
        assert worker_peer.theirs.recv(1) == b"", "it is let go"
        assert harness.died(worker_peer, 0, "exit 0") == "left"

    run_scene(scene)


# -- dead before it did its job ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["SIGKILL", "SIGSEGV", "exit 1"])
@pytest.mark.parametrize("heard", [True, False], ids=["its hanging up was heard", "nothing was heard"])
def test_the_job_of_one_that_died_before_it_took_the_ticket_costs_nothing_and_goes_to_the_next(
    status: str, heard: bool
) -> None:
    async def scene(harness: DispatchHarness) -> None:
        harness.claims(1)
        worker_peer = harness.forked()
        assert worker_peer.order() == 1, "even if it had read its order"
        if heard:
            worker_peer.theirs.shutdown(socket.SHUT_RDWR)
            while worker_peer.seen.orders:
                await asyncio.sleep(0)
        assert harness.died(worker_peer, 0, status) == "idle"
        assert (harness.waiting(), harness.ended(), harness.released()) == ([1], [], []), (
            "it is ours, and as it was"
        )
        assert harness.began() == []
        assert worker_peer.ticket() is None, "were it alive in spite of all it could not begin any more"
        heir = harness.forked()
        assert (heir.order(), heir.ticket()) == (1, 1)
        heir.reports(1)
        while not harness.ended():
            await asyncio.sleep(0)
        assert harness.died(heir, 0, "exit 0") == "left"
        [end] = harness.ended()
        assert (end.verdict, end.is_crash) == (Verdict.SUCCEEDED, False)
        assert harness.at_rest()

    run_scene(scene)


def test_an_order_for_one_that_is_dead_already_is_not_sent_and_waits_for_the_next() -> None:
    async def scene(harness: DispatchHarness) -> None:
        worker_peer = harness.forked()
        worker_peer.theirs.close()  # and the loop has not run since
        harness.claims(1)
        assert (harness.waiting(), harness.buffer.assigned_jobs, harness.buffer.idle_workers) == ([1], 0, [])
        assert harness.died(worker_peer, 0) == "idle"
        assert harness.forked().order() == 1

    run_scene(scene)


@pytest.mark.parametrize(
    ("status", "ended"),
    [("SIGKILL", None), ("SIGSEGV", Verdict.CRASH), ("exit 1", Verdict.EXIT)],
)
def test_of_one_that_took_the_ticket_and_never_began_only_a_kill_from_outside_is_not_its_doing(
    status: str, ended: Verdict | None
) -> None:
    async def scene(harness: DispatchHarness) -> None:
        harness.claims(1)
        worker_peer = harness.forked()
        assert worker_peer.ticket() == 1
        why = harness.died(worker_peer, 0, status)
        if ended is None:
            assert (harness.released(), harness.ended(), why) == ([1], [], "idle")
            assert harness.began() == []
        else:
            assert [(end.verdict, why) for end in harness.ended()] == [(ended, str(ended))]
            assert harness.released() == []
        assert harness.waiting() == [], (
            "nobody here knows whether it began: it is not simply given to the next"
        )
        assert harness.at_rest()

    run_scene(scene)


# -- dead after it did its job, or in the middle ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "ended"), [("SIGKILL", Verdict.CRASH), ("SIGSEGV", Verdict.CRASH), ("exit 0", Verdict.EXIT)]
)
@pytest.mark.parametrize("said", ["nothing", "half of it"])
def test_one_that_did_its_job_and_died_without_a_word_has_not_done_it(
    status: str, ended: Verdict, said: str
) -> None:
    """Perhaps it had. But its result is unknown, and a job is done at least once."""

    async def scene(harness: DispatchHarness) -> None:
        harness.claims(1)
        worker_peer = harness.forked()
        assert worker_peer.ticket() == 1
        if said == "half of it":
            worker_peer.reports(1, cut=3)
        assert harness.died(worker_peer, 1, status) == str(ended)
        [end] = harness.ended()
        assert isinstance(end, JobRetry), "it has attempts left"
        assert (end.id, end.verdict, end.is_crash) == (1, ended, True)
        assert (harness.began(), harness.released(), harness.waiting()) == ([1], [], [])
        assert harness.ends._sessions_to_end == [(1, 1)], "what it left in the database is ended first"
        assert harness.at_rest()

    run_scene(scene)


@pytest.mark.parametrize("status", ["exit 0", "SIGKILL", "SIGSEGV"])
def test_the_death_of_a_worker_after_its_last_report_ends_no_job(status: str) -> None:
    """Killed by an operator on its way out, or by a stop hook: its job is done."""

    async def scene(harness: DispatchHarness) -> None:
        harness.claims(1)
        worker_peer = harness.forked()
        assert worker_peer.ticket() == 1
        worker_peer.reports(1, result=msgspec.Raw(b'"r"'))
        while not harness.ended():
            await asyncio.sleep(0)
        assert (worker_peer.seen.state, harness.at_rest()) == ("leaving", True)
        harness.claims(2)
        assert (harness.waiting(), harness.buffer.idle_workers) == ([2], []), "it gets nothing more"
        assert harness.died(worker_peer, 0, status) == "left"
        [end] = harness.ended()
        assert isinstance(end, JobFinish)
        assert (end.state, end.result, end.is_crash) == (JobState.SUCCEEDED, '"r"', False)
        assert harness.forked().order() == 2

    run_scene(scene)


def test_a_channel_that_closes_after_the_last_report_triggers_nothing() -> None:
    async def scene(harness: DispatchHarness) -> None:
        first, last = harness.forked(), harness.forked()
        harness.claims(1)
        assert last.ticket() == 1, "who rested last comes first"
        last.reports(1)
        while last.seen.state != "leaving":
            await asyncio.sleep(0)
        before = harness.unstarted_reads
        last.theirs.shutdown(socket.SHUT_RDWR)
        await turns()
        assert harness.unstarted_reads == before, "its supervisor will tell"
        assert harness.died(last, 0, "exit 0") == "left"
        heard = harness.unstarted_reads
        first.theirs.shutdown(socket.SHUT_RDWR)
        await turns()
        assert harness.unstarted_reads == heard + 1, "of one that has not, it is the first sign"

    run_scene(scene)


@pytest.mark.parametrize("status", ["exit 0", "SIGKILL"])
def test_a_report_still_in_the_socket_is_read_before_the_death(status: str) -> None:
    async def scene(harness: DispatchHarness) -> None:
        harness.claims(1)
        worker_peer = harness.forked()
        assert worker_peer.ticket() == 1
        worker_peer.reports(1, result=msgspec.Raw(b'"r"'))
        worker_peer.theirs.shutdown(socket.SHUT_RDWR)
        harness.died(worker_peer, 0, status)  # the loop has had no turn to read it
        [end] = harness.ended()
        assert isinstance(end, JobFinish)
        assert (end.state, end.result, end.is_crash) == (JobState.SUCCEEDED, '"r"', False)
        assert (harness.began(), harness.waiting(), harness.released()) == ([1], [], [])
        assert harness.ends._sessions_to_end == []
        assert harness.at_rest()

    run_scene(scene)


# -- deaths that were not reported -------------------------------------------------------------------------------------


def test_a_worker_that_its_supervisor_no_longer_lists_is_gone_and_its_job_crashed() -> None:
    async def scene(harness: DispatchHarness) -> None:
        harness.claims(1)
        worker_peer = harness.forked()
        assert (worker_peer.order(), worker_peer.ticket()) == (1, 1), "it has begun"
        harness.listed(worker_peer.seen.incarnation)
        assert (harness.ended(), worker_peer.seen.state) == ([], "busy"), "it is listed"
        harness.listed()
        [end] = harness.ended()
        assert end.verdict is Verdict.CRASH
        assert "a death that its supervisor did not report" in str(end.error)
        assert (worker_peer.seen.state, harness.supervisor.workers, harness.dispatch.held_jobs) == (
            "gone",
            {},
            {},
        )

    run_scene(scene)


def test_an_unbegun_order_of_a_worker_that_is_no_longer_listed_goes_to_the_next() -> None:
    async def scene(harness: DispatchHarness) -> None:
        harness.claims(1)
        assert harness.forked().order() == 1
        harness.listed()
        assert (harness.waiting(), harness.ended()) == ([1], [])

    run_scene(scene)


def test_a_busy_worker_that_no_supervisor_has_is_gone_and_its_job_crashed() -> None:
    """As when the table of a supervisor had another worker under the same key."""

    async def scene(harness: DispatchHarness) -> None:
        harness.claims(1)
        worker_peer = harness.forked()
        assert (worker_peer.order(), worker_peer.ticket()) == (1, 1)
        harness.supervisors.workers.finish_jobs_of_unknown_workers([cast("Any", harness.supervisor)])
        assert harness.ended() == [], "it is known"
        harness.supervisor.workers.clear()
        harness.supervisors.workers.finish_jobs_of_unknown_workers([cast("Any", harness.supervisor)])
        [end] = harness.ended()
        assert end.verdict is Verdict.CRASH
        assert harness.dispatch.held_jobs == {}

    run_scene(scene)


def test_the_death_of_an_earlier_occupant_is_not_that_of_the_next() -> None:
    async def scene(harness: DispatchHarness) -> None:
        harness.claims(1)
        first = harness.forked()
        assert (first.order(), first.ticket()) == (1, 1)
        second = harness.forked(slot=first.seen.slot)
        assert harness.died(first, 1) == "crash"
        assert [end.verdict for end in harness.ended()] == [Verdict.CRASH]
        assert (first.seen.state, second.seen.state, second.seen.is_open) == ("gone", "idle", True)

    run_scene(scene)


def test_a_failed_reap_ends_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host learns of the failure and leaves. Otherwise the queue would silently have no supervisor."""

    async def hidden(*_: object) -> int:
        raise PermissionError("/proc")

    monkeypatch.setattr(orphan_processes, "kill_strays", hidden)

    async def run() -> None:
        harness = DispatchHarness()
        tasks: list[asyncio.Task[None]] = []

        def start_background(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            tasks.append(asyncio.create_task(work))
            return tasks[-1]

        harness.supervisors._start_background = start_background
        harness.supervisors._on_exit(cast("Any", harness.supervisor))
        assert harness.supervisors.is_alive
        await asyncio.wait(tasks)
        assert isinstance(tasks[0].exception(), PermissionError)
        assert not harness.supervisors.is_alive, "a drain does not wait for it"

    asyncio.run(run())
