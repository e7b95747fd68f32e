"""Which workers are free and which leave when unstarted jobs are reclaimed. With the real socket and pipe of a worker."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

from pgworkers.clock import boottime, monotonic
from pgworkers.events import Event, EventBus, JobsReleased, WorkerLeakedThreads
from pgworkers.ipc import frames, report_page, tickets
from pgworkers.ipc.scoreboard import StopReason
from pgworkers.job.hosts import ChangedDeadline
from pgworkers.job.model import ClaimedJob, Fence, Verdict
from pgworkers.master import assignment, dispatcher, worker_channel
from pgworkers.master.assignment import CLAIM_AHEAD_SECONDS
from pgworkers.master.connection import ReconnectingConnection
from pgworkers.master.dispatcher import Dispatcher
from pgworkers.master.finisher import Finisher
from pgworkers.master.held_job import HeldJob
from pgworkers.master.worker_channel import ChannelDescriptors, WorkerChannel
from pgworkers.observe.log_messages import message_of
from pgworkers.settings import Settings
from pgworkers.specs import QueueSpec, TaskSpec
from pgworkers.supervisor.messages import Died
from pgworkers.worker import messages
from pgworkers.worker.messages import FrameKind

USED: Any = {"duration": 100, "cpu": 100, "peak_rss": 1, "result": b"null"}


def done(job: int) -> bytes:
    return messages.encode_success(job, 1, **USED)


class DispatchHarness:
    """A dispatcher with one worker of the queue "default"; the test acts as that worker."""

    def __init__(self, want_claim: Callable[[str], None] = lambda queue: None) -> None:
        settings, facts = Settings(), EventBus()
        self.events: list[Event] = []
        facts.subscribe(self.events.append)
        self.ends = Finisher("host", ReconnectingConnection("finish", "", settings, facts), facts, 100)
        self.dispatch = Dispatcher(
            settings,
            facts,
            {"work": TaskSpec("work", "default")},
            {"default": QueueSpec("default")},
            self.ends,
            want_claim,
            lambda worker, held, reason: None,
        )
        self.buffer = self.dispatch.buffers["default"]
        self.crew: list[tuple[WorkerChannel, socket.socket]] = []
        page = report_page.create()
        self.shelf = report_page.ReportPage(os.dup(page))
        self.worker, self.theirs, self.takes = self.hire(page)

    def hire(self, page: int) -> tuple[WorkerChannel, socket.socket, int]:
        """A worker that is ready; the other ends of its socket and of its pipe."""
        ours, theirs = socket.socketpair()
        reads, writes = tickets.create_pipe()
        heard, recover = self.dispatch.on_frames, self.dispatch.on_channel_closed
        slot = len(self.crew)
        worker = WorkerChannel(
            queue="default",
            slot=slot,
            pid=os.getpid(),
            incarnation=slot + 1,
            version="v1",
            descriptors=ChannelDescriptors(ours, reads, writes, page),
            on_frames=heard,
            on_closed=recover,
            send_to_supervisor=lambda command: None,
        )
        self.crew.append((worker, theirs))
        self.dispatch.add_worker(worker)
        self.dispatch.on_frames(worker, [frames.Frame(FrameKind.READY, 0, 0, b"")])
        return worker, theirs, os.dup(reads)

    def orders(self) -> list[int]:
        """How many each worker has, the most first."""
        return sorted((len(worker.orders) for worker, _ in self.crew), reverse=True)

    def says(self, kind: FrameKind) -> None:
        self.dispatch.on_frames(self.worker, [frames.Frame(kind, 0, 0, b"")])

    def lays(self, *ids: int) -> None:
        for job in ids:
            assert self.shelf.append(done(job))

    def claims(self, *ids: int, lease: int = 1, at: int = 0) -> None:
        rest = ("default", "work", "{}", 1, 0, 10, 3, None, None, None, None, None, [], 0.0, False)
        self.dispatch.accept(ClaimedJob(i, lease, *rest, claimed_at_us=at) for i in ids)

    def released(self) -> list[int]:
        return sorted(fence.id for fence in self.ends._releases)

    def close(self) -> None:
        for worker, theirs in self.crew:
            worker.dispose()
            theirs.close()
        os.close(self.takes)


def play(scene: Callable[[DispatchHarness], None]) -> None:
    async def run() -> None:
        harness = DispatchHarness()
        try:
            scene(harness)
        finally:
            harness.close()

    asyncio.run(run())


def retire(harness: DispatchHarness) -> None:
    harness.dispatch.retire(harness.worker)


def shrink(harness: DispatchHarness) -> None:
    harness.dispatch.set_target_workers("default", 0)


def drain(harness: DispatchHarness) -> None:
    harness.dispatch.is_claiming = False
    harness.dispatch.release_unstarted("the host is draining")


def burn(harness: DispatchHarness) -> None:
    harness.says(FrameKind.BUSY_THREADS)


@pytest.mark.parametrize("go", [retire, shrink, drain, burn])
def test_a_worker_that_had_begun_nothing_leaves_at_once(go: Callable[[DispatchHarness], None]) -> None:
    def scene(harness: DispatchHarness) -> None:
        harness.claims(1)
        assert harness.worker.state == "busy"
        go(harness)
        assert harness.worker.state == "leaving", "nothing will ever come from it: it would stay for ever"
        assert harness.theirs.recv(1 << 16), "its order had been sent"
        assert harness.theirs.recv(1) == b"", "and after it the end"
        assert tickets.wait_for_ticket(harness.takes) == (None, False), "and no ticket for it"
        assert (harness.buffer.assigned_jobs, harness.buffer.occupied_workers) == (0, 0)
        waiting = [held.job.id for held in harness.buffer.waiting]
        assert sorted(waiting + harness.released()) == [1], "the job is not lost"

    play(scene)


@pytest.mark.parametrize("go", [retire, shrink, drain])
def test_a_worker_that_had_begun_leaves_after_its_job(go: Callable[[DispatchHarness], None]) -> None:
    def scene(harness: DispatchHarness) -> None:
        harness.claims(1)
        assert tickets.wait_for_ticket(harness.takes) == ((1, 1), False)
        go(harness)
        assert (harness.worker.state, harness.worker.is_open) == ("busy", True)
        report = frames.Frame(FrameKind.REPORT, 1, 1, b'["done",0.1,0.1,1]')
        harness.dispatch.on_frames(harness.worker, [report])
        assert harness.worker.state == "leaving"

    play(scene)


def test_a_cancelled_order_leaves_its_worker_free() -> None:
    def scene(harness: DispatchHarness) -> None:
        harness.claims(1)
        assert harness.dispatch.cancel(Fence(1, 1, 0))
        assert harness.worker.state == "idle"
        harness.claims(2)
        assert tickets.wait_for_ticket(harness.takes) == ((2, 1), False), (
            "the ticket of the first was taken back"
        )

    play(scene)


def test_the_number_of_a_lost_claim_that_is_given_again_is_another_job() -> None:
    """After an asynchronous failover id and lease may be those of another job: the old handler is stopped, unwritten."""

    def scene(harness: DispatchHarness) -> None:
        harness.claims(1)
        assert tickets.wait_for_ticket(harness.takes) == ((1, 1), False)
        old = harness.dispatch.held_jobs[1]
        harness.claims(1, at=7)
        assert (harness.dispatch.held_jobs[1], old.stop_reason) == (old, StopReason.LEASE)
        assert harness.ends.pending_fences() == [(1, 1, 7)], (
            "given back: the next claim of it has another number"
        )
        harness.theirs.sendall(done(1))
        harness.worker.read_all()
        assert harness.ends.pending_fences() == [(1, 1, 7)], (
            "what the old handler returned is nobody's result"
        )
        harness.claims(1, lease=2, at=8)
        assert harness.dispatch.held_fences() == [(1, 2, 8)]

    play(scene)


def test_an_order_that_a_worker_has_not_read_is_not_confused_with_a_later_one() -> None:
    """The order of the lost claim may still lie in its socket, under the same number."""

    def scene(harness: DispatchHarness) -> None:
        harness.claims(1)
        harness.dispatch.on_lease_lost(Fence(1, 1, 0))
        assert harness.dispatch.held_fences() == []
        harness.claims(1, at=7)
        assert (harness.dispatch.held_fences(), harness.ends.pending_fences()) == ([], [(1, 1, 7)])

    play(scene)


def test_a_new_claim_of_a_job_that_runs_here_stops_the_handler_of_the_old_one() -> None:
    def scene(harness: DispatchHarness) -> None:
        harness.claims(1)
        assert tickets.wait_for_ticket(harness.takes) == ((1, 1), False)
        old = harness.dispatch.held_jobs[1]
        harness.claims(1, lease=2, at=7)
        assert old.stop_reason is StopReason.LEASE
        assert (harness.dispatch.held_fences(), harness.ends.pending_fences()) == ([(1, 2, 7)], [])

    play(scene)


def test_the_next_job_is_claimed_just_before_the_end_of_a_regular_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assignment, "monotonic", lambda: 100.0)

    def scene(harness: DispatchHarness) -> None:
        for _ in range(5):
            harness.dispatch.assigner.durations.record("work", 0.3)
            harness.buffer.record_duration(0.3)
        harness.claims(1)
        assert harness.worker.predicted_end == pytest.approx(harness.worker.since + 0.3)
        for ends_at, wanted in (
            (100.1, 0),
            (100.0 + CLAIM_AHEAD_SECONDS * 0.9, 1),
            (99.9, 0),
        ):  # long yet; soon; late: who knows when
            harness.worker.predicted_end = ends_at
            assert harness.buffer.capacity(100) == wanted
        harness.worker.predicted_end = 100.001
        harness.claims(2)
        assert [held.job.id for held in harness.buffer.waiting] == [2], (
            "it does not wait in front of the worker"
        )
        assert harness.buffer.capacity(100) == 0, "one is enough"
        harness.buffer.waiting.clear()
        harness.worker.is_retiring = True
        assert harness.buffer.capacity(100) == 0, "who leaves needs no next one"

    play(scene)


def test_what_is_urgent_goes_before_what_was_claimed_earlier() -> None:
    def scene(harness: DispatchHarness) -> None:
        harness.claims(1, 2, 3)
        assert [held.job.id for held in harness.buffer.waiting] == [2, 3]
        urgent = [held.job._replace(id=held.job.id + 10, priority=5) for held in harness.buffer.waiting]
        harness.dispatch.accept([urgent[0], urgent[1], urgent[0]._replace(id=20, priority=1)])
        harness.claims(4)
        assert [held.job.id for held in harness.buffer.waiting] == [12, 13, 20, 2, 3, 4]

    play(scene)


def test_the_claimer_is_woken_for_a_foreseen_end() -> None:
    woken: list[float] = []

    async def run() -> None:
        harness = DispatchHarness(lambda queue: woken.append(monotonic()))
        try:
            for _ in range(5):
                harness.dispatch.assigner.durations.record("work", 0.1)
            harness.claims(1)
            woken.clear()
            while not woken:
                await asyncio.sleep(0.001)
            assert woken[0] - harness.worker.since >= 0.1 - CLAIM_AHEAD_SECONDS
        finally:
            harness.close()

    asyncio.run(run())


def test_a_job_that_a_burning_worker_has_begun_is_not_harmed() -> None:
    def scene(harness: DispatchHarness) -> None:
        harness.claims(1, 2)
        assert tickets.wait_for_ticket(harness.takes) == ((1, 1), False)  # it has begun
        harness.says(FrameKind.BUSY_THREADS)
        assert harness.worker.state == "busy"
        harness.theirs.sendall(done(1))
        harness.worker.read_all()
        assert harness.worker.state == "leaving"
        assert [held.key for held, _ in harness.ends._pending] == [(1, 1)]
        assert [held.job.id for held in harness.buffer.waiting] == [2], "for the next worker"
        events = [fact for fact in harness.events if isinstance(fact, WorkerLeakedThreads)]
        assert [(fact.queue, fact.slot) for fact in events] == [("default", 0)]

    play(scene)


def test_one_job_that_is_given_back_is_spoken_of_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def scene(harness: DispatchHarness) -> None:
        harness.claims(1, 2)
        monkeypatch.setattr(harness.dispatch.assigner, "_buffer_timeout_seconds", lambda: -1.0)
        harness.dispatch.assigner._release_expired_buffers()
        (fact,) = (fact for fact in harness.events if isinstance(fact, JobsReleased))
        assert message_of(fact) == ("info", "released 1 unstarted job: no worker was free")

    play(scene)


@pytest.mark.parametrize("alone", [False, True])
def test_what_no_worker_takes_goes_to_the_other_hosts_if_there_are_any(
    alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [monotonic()]
    for module in (assignment, dispatcher):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])

    def scene(harness: DispatchHarness) -> None:
        harness.dispatch.cluster.is_only_host = alone
        harness.claims(1, 2, 3)  # one worker, and nothing known of the task: two wait in the buffer
        now[0] += assignment.BUFFER_TIMEOUT_SECONDS + 0.1
        harness.dispatch.assigner._release_expired_buffers()
        assert harness.released() == ([] if alone else [2, 3])
        now[0] += assignment.BUFFER_TIMEOUT_ONLY_HOST_SECONDS
        harness.dispatch.assigner._release_expired_buffers()
        assert harness.released() == [2, 3], (
            "alone, too, they do not stay for ever: something urgent may come"
        )

    play(scene)


def test_an_unsent_report_is_read_when_the_next_job_runs_long() -> None:
    async def run() -> None:
        harness = DispatchHarness()
        try:
            harness.dispatch.assigner.durations.record("work", 0.0001)
            harness.claims(1, 2, 3)
            assert [tickets.wait_for_ticket(harness.takes)[0] for _ in range(2)] == [(1, 1), (2, 1)]
            harness.lays(1)
            while len(harness.worker.orders) == 3:  # it looks at who is silent
                await asyncio.sleep(0.001)
            assert [held.job.id for held in harness.worker.orders] in ([2, 3], [2]), "3 may be taken back"
            jobs = harness.worker.jobs_reported
            harness.theirs.sendall(done(1))  # now it is sent as well
            harness.worker.read_all()
            assert (jobs, harness.worker.jobs_reported) == (1, 1), "it has ended once"
        finally:
            harness.close()

    asyncio.run(run())


def test_a_worker_is_woken_for_as_many_short_jobs_as_that_is_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (assignment, dispatcher):  # no worker is late, however slow this machine is
        monkeypatch.setattr(module, "monotonic", lambda: 0.0)

    def scene(harness: DispatchHarness) -> None:
        for _ in range(3):
            os.close(harness.hire(report_page.create())[2])
        harness.claims(1, 2, 3)
        assert harness.orders() == [1, 1, 1, 0], "nobody knows how long they take"
        for number, (worker, theirs) in enumerate(reversed(harness.crew[1:]), 1):
            theirs.sendall(done(number))
            worker.read_all()
        assert len(harness.buffer.idle_workers) == 4
        harness.dispatch.assigner.durations._typical_seconds["work"] = 0.0005 / 24
        harness.claims(*range(10, 20))
        assert harness.orders() == [10, 0, 0, 0]
        harness.claims(*range(20, 30))
        assert harness.orders() == [20, 0, 0, 0], "it is awake"
        harness.claims(*range(30, 60))
        assert harness.orders() == [44, 6, 0, 0], "and has enough"
        harness.claims(*range(60, 200))
        assert len(harness.buffer.idle_workers) == 0, "there is enough for all"
        assert sum(harness.orders()) == 190

    play(scene)


def test_short_jobs_are_handed_to_others_when_an_idle_worker_is_gone() -> None:
    def scene(harness: DispatchHarness) -> None:
        worker, _, takes = harness.hire(report_page.create())
        os.close(takes)
        harness.dispatch.assigner.durations.record("work", 0.00002)
        worker.close()  # and the master has not noticed it yet
        harness.claims(1, 2)
        assert [held.job.id for held in harness.worker.orders] == [1, 2]

    play(scene)


def test_of_ends_that_come_together_only_those_of_its_orders_count() -> None:
    def scene(harness: DispatchHarness) -> None:
        harness.dispatch.assigner.durations.record("work", 0.0001)
        harness.claims(1, 2, 3, 4)
        for job in (1, 2, 3):
            assert tickets.wait_for_ticket(harness.takes) == ((job, 1), False)
        other_lease = messages.encode_success(2, 7, **USED)
        harness.theirs.sendall(done(1) + other_lease + done(1) + done(2) + done(9))
        harness.worker.read_all()
        assert harness.worker.jobs_reported == 2
        assert harness.ends.pending_fences() == [(1, 1, 0), (2, 1, 0)]
        assert [held.job.id for held in harness.worker.orders] == [3, 4]
        assert harness.dispatch.held_fences() == [(3, 1, 0), (4, 1, 0)]
        assert (harness.buffer.assigned_jobs, harness.buffer.occupied_workers) == (2, 1)

    play(scene)


def test_an_order_says_the_same_whether_or_not_one_like_it_was_sent_before() -> None:
    def scene(harness: DispatchHarness) -> None:
        spec = TaskSpec("odd", "default", timeout=2.5, stall_timeout=1.0)
        plain = ClaimedJob(
            1, 1, "default", "odd", '{"a": "é"}', 1, 0, 9, 3, None, None, None, None, None, [], 0.0, False
        )
        for job in (
            plain,
            plain._replace(id=2, args="{}"),
            plain._replace(attempt=2, errors=["ValueError: x"]),
            plain._replace(queue="other"),
            plain._replace(timeout_seconds=1.0, memory_bytes=1 << 30),
            plain._replace(checkpoint='{"page": 3}', meta='{"k": 1}'),
            plain._replace(crashes=1),
        ):
            held = HeldJob(job, spec)
            known = [worker_channel.encode_order(held) for _ in range(2)]
            (frame,) = frames.FrameReader().feed(known[0])
            assert known[1] == known[0]
            assert (frame.kind, frame.key) == (FrameKind.ORDER, (job.id, job.lease))
            head, args = messages.split_order(frame.body)
            order = messages.decode_order_header(head)
            assert (order.task, order.queue, args) == ("odd", job.queue, job.args.encode())
            assert (order.attempt, order.crashes, order.errors) == (job.attempt, job.crashes, job.errors)
            assert (order.timeout, order.memory) == (job.timeout_seconds or 2.5, job.memory_bytes)
            assert bytes(order.checkpoint) == (job.checkpoint or "null").encode()
            assert bytes(order.meta) == (job.meta or "null").encode()
            assert (order.exclusive, order.stall_timeout, order.deadline) == (False, 1.0, 0)
        again = worker_channel.encode_order(HeldJob(plain, TaskSpec("odd", "default", timeout=9.0)))
        (frame,) = frames.FrameReader().feed(again)
        assert messages.decode_order_header(messages.split_order(frame.body)[0]).timeout == 9.0, (
            "the task was declared anew"
        )
        late = worker_channel.encode_order(HeldJob(plain._replace(seconds_to_deadline=60.0), spec))
        (frame,) = frames.FrameReader().feed(late)
        assert messages.decode_order_header(messages.split_order(frame.body)[0]).deadline > 0

    play(scene)


def test_the_ends_that_a_dead_worker_had_not_sent_count() -> None:
    def scene(harness: DispatchHarness) -> None:
        harness.dispatch.assigner.durations.record("work", 0.0001)
        harness.claims(1, 2, 3, 4)
        for job in (1, 2, 3):
            assert tickets.wait_for_ticket(harness.takes) == ((job, 1), False)
        harness.theirs.sendall(done(1)[:30])  # killed while it sent the first, and ran the third
        harness.lays(1, 2)
        harness.theirs.close()
        died = Died(0, os.getpid(), 1, 3, 1, "SIGKILL", 9, was_ready=True)
        assert harness.dispatch.on_worker_died(harness.worker, died) is Verdict.CRASH
        assert harness.worker.jobs_reported == 2, "two have ended, one was running"
        assert [held.job.id for held in harness.buffer.waiting] == [4], "the last was not begun"

    play(scene)


def test_garbage_in_the_report_page_of_a_dead_worker_is_ignored() -> None:
    def scene(harness: DispatchHarness) -> None:
        harness.claims(1)
        assert tickets.wait_for_ticket(harness.takes) == ((1, 1), False)
        harness.shelf.append(b"\xff" * 100)
        assert harness.dispatch.on_worker_died(
            harness.worker, Died(0, os.getpid(), 1, 1, 1, "SIGSEGV", 11, was_ready=True)
        )
        assert harness.worker.state == "gone"

    play(scene)


def test_a_claim_that_comes_back_after_its_task_is_gone_is_given_back() -> None:
    def scene(harness: DispatchHarness) -> None:
        harness.dispatch.replace_app({}, {"default": QueueSpec("default")})
        harness.claims(1)
        assert harness.released() == [1]
        assert harness.dispatch.held_fences() == []

    play(scene)


def test_what_waits_is_given_back_when_its_task_is_gone() -> None:
    def scene(harness: DispatchHarness) -> None:
        harness.claims(1, 2)  # one has the worker, one waits in the buffer
        harness.dispatch.replace_app({}, {"default": QueueSpec("default")})
        assert harness.released() == [2]
        harness.dispatch.retire(harness.worker)  # it has not begun: no worker of the new version could run it
        assert harness.released() == [1, 2]
        assert not harness.buffer.waiting

    play(scene)


@pytest.mark.parametrize(
    ("spec", "waits"),
    [
        (QueueSpec("default", max_jobs=1), True),
        (QueueSpec("default", max_jobs=1, lookahead=False), False),
        (QueueSpec("default"), False),
    ],
)
def test_ends_of_jobs_that_have_a_process_each_wait_for_one_another(
    spec: QueueSpec, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    async def run() -> None:
        harness = DispatchHarness()
        harness.buffer.spec = spec
        try:
            harness.claims(1)
            harness.dispatch.on_frames(harness.worker, frames.FrameReader().feed(done(1)))
            await harness.ends._wait_for_more()
            assert not rests, "one that comes alone is written at once"
            await harness.ends._wait_for_more()
            assert bool(rests) == waits
        finally:
            harness.close()

    monkeypatch.setattr(
        "pgworkers.master.finisher.PROCESS_PER_JOB_BATCH_SECONDS", 3600.0
    )  # however slow the machine is
    monkeypatch.setattr("pgworkers.master.finisher.asyncio.sleep", rest)
    asyncio.run(run())


def with_deadline(remaining: float | None, epoch: float | None) -> HeldJob:
    job = ClaimedJob(
        1, 1, "default", "work", "{}", 1, 0, 10, 3, 5.0, None, remaining, None, None, [], 0.0, False,
        deadline_epoch=epoch,
    )  # fmt: skip
    return HeldJob(job, TaskSpec("work", "default"))


def test_a_deadline_that_is_read_late_was_not_moved() -> None:
    held = with_deadline(60.0, 1000.0)
    held.began_at = monotonic()
    assert not held.update_deadline(ChangedDeadline(Fence(1, 1, 0), 1000.0, 30.0)), (
        "the answer to the claim took half a minute"
    )
    left = held.seconds_left(monotonic())
    assert left is not None
    assert left <= 5.0, "the timeout of the attempt counts"


def test_without_its_deadline_the_timeout_of_the_attempt_counts() -> None:
    held = with_deadline(60.0, 1000.0)
    held.began_at = monotonic()
    assert held.update_deadline(ChangedDeadline(Fence(1, 1, 0), 2000.0, 600.0))
    left = held.seconds_left(monotonic())
    assert left is not None
    assert left > 500.0
    assert held.update_deadline(ChangedDeadline(Fence(1, 1, 0), None, None))
    left = held.seconds_left(monotonic())
    assert left is not None
    assert left <= 5.0
    assert 0 < held.attempt_deadline_ns() <= int((boottime() + 5.0) * 1e9)
    assert held.job_deadline_ns() == 0


def test_the_deadline_of_one_waiting_job_is_not_sent_with_the_next() -> None:
    spec = TaskSpec("work", "default")
    moved, plain = with_deadline(None, None), with_deadline(None, None)
    moved.task = plain.task = spec
    assert moved.update_deadline(ChangedDeadline(Fence(1, 1, 0), 1000.0, 10.0))

    def deadline(held: HeldJob) -> int:
        body = frames.FrameReader().feed(worker_channel.encode_order(held))[0].body
        return messages.decode_order_header(messages.split_order(body)[0]).deadline

    assert deadline(moved) > 0
    assert deadline(plain) == 0
    assert deadline(moved) > 0
