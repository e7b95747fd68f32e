"""Who is free, and who leaves, when jobs are taken back before they began. With a worker's real socket and pipe."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import pytest

from pgworkers.clock import boottime, monotonic
from pgworkers.events import Fact, JobsReleased
from pgworkers.facts import Facts
from pgworkers.job.claim import Claimed, Fence
from pgworkers.job.renew import Deadline
from pgworkers.job.state import Verdict
from pgworkers.lives import WorkerBurned
from pgworkers.master import desk, handing, orders
from pgworkers.master.crew import Worker
from pgworkers.master.dispatch import Dispatch
from pgworkers.master.ends import Ends
from pgworkers.master.held import Held
from pgworkers.master.line import Line
from pgworkers.master.pace import AHEAD
from pgworkers.observe.lines import tell
from pgworkers.process import frames, shelf, tickets
from pgworkers.settings import Settings
from pgworkers.specs import QueueSpec, TaskSpec
from pgworkers.supervisor.messages import Died
from pgworkers.worker import messages
from pgworkers.worker.messages import Kind


def done(job: int) -> bytes:
    return messages.done(job, 1, 100, 100, 1, b"null")


class Stage:
    """A dispatch with one worker of the queue "default", whose side we play."""

    def __init__(self, want_claim: Callable[[str], None] = lambda queue: None) -> None:
        settings, facts = Settings(), Facts()
        self.told: list[Fact] = []
        facts.listen(self.told.append)
        self.ends = Ends("host", Line("finish", "", settings, facts), facts, 100)
        self.dispatch = Dispatch(
            settings,
            facts,
            {"work": TaskSpec("work", "default")},
            {"default": QueueSpec("default")},
            self.ends,
            want_claim,
            lambda worker, held, reason: None,
        )
        self.desk = self.dispatch.desks["default"]
        self.crew: list[tuple[Worker, socket.socket]] = []
        page = shelf.make()
        self.shelf = shelf.Shelf(os.dup(page))
        self.worker, self.theirs, self.takes = self.hire(page)

    def hire(self, page: int) -> tuple[Worker, socket.socket, int]:
        """A worker that is ready; the other ends of its socket and of its pipe."""
        ours, theirs = socket.socketpair()
        reads, writes = tickets.make()
        heard, recover = self.dispatch.heard, self.dispatch.recover
        slot = len(self.crew)
        channel = ours, reads, writes, page
        worker = Worker(
            "default", slot, os.getpid(), slot + 1, "v1", channel, heard, recover, lambda command: None
        )
        self.crew.append((worker, theirs))
        self.dispatch.joined(worker)
        self.dispatch.heard(worker, [frames.Frame(Kind.READY, 0, 0, b"")])
        return worker, theirs, os.dup(reads)

    def orders(self) -> list[int]:
        """How many each worker has, the most first."""
        return sorted((len(worker.orders) for worker, _ in self.crew), reverse=True)

    def says(self, kind: Kind) -> None:
        self.dispatch.heard(self.worker, [frames.Frame(kind, 0, 0, b"")])

    def lays(self, *ids: int) -> None:
        for job in ids:
            assert self.shelf.lay(done(job))

    def claims(self, *ids: int, lease: int = 1, at: int = 0) -> None:
        rest = ("default", "work", "{}", 1, 0, 10, 3, None, None, None, None, None, [], 0.0, False)
        self.dispatch.take(Claimed(i, lease, *rest, claimed_at=at) for i in ids)

    def released(self) -> list[int]:
        return sorted(fence.id for fence in self.ends._releases)

    def close(self) -> None:
        for worker, theirs in self.crew:
            worker.bury()
            theirs.close()
        os.close(self.takes)


def play(scene: Callable[[Stage], None]) -> None:
    async def run() -> None:
        stage = Stage()
        try:
            scene(stage)
        finally:
            stage.close()

    asyncio.run(run())


def retire(stage: Stage) -> None:
    stage.dispatch.retire(stage.worker)


def shrink(stage: Stage) -> None:
    stage.dispatch.shrink("default", 0)


def drain(stage: Stage) -> None:
    stage.dispatch.claiming = False
    stage.dispatch.give_back_all("the host is draining")


def burn(stage: Stage) -> None:
    stage.says(Kind.BURNS)


@pytest.mark.parametrize("go", [retire, shrink, drain, burn])
def test_a_worker_that_had_begun_nothing_leaves_at_once(go: Callable[[Stage], None]) -> None:
    def scene(stage: Stage) -> None:
        stage.claims(1)
        assert stage.worker.state == "busy"
        go(stage)
        assert stage.worker.state == "leaving", "nothing will ever come from it: it would stay for ever"
        assert stage.theirs.recv(1 << 16), "its order had been sent"
        assert stage.theirs.recv(1) == b"", "and after it the end"
        assert tickets.wait(stage.takes) == (None, False), "and no ticket for it"
        assert (stage.desk.running, stage.desk.occupied) == (0, 0)
        waiting = [held.claimed.id for held in stage.desk.buffer]
        assert sorted(waiting + stage.released()) == [1], "the job is not lost"

    play(scene)


@pytest.mark.parametrize("go", [retire, shrink, drain])
def test_a_worker_that_had_begun_leaves_after_its_job(go: Callable[[Stage], None]) -> None:
    def scene(stage: Stage) -> None:
        stage.claims(1)
        assert tickets.wait(stage.takes) == ((1, 1), False)
        go(stage)
        assert (stage.worker.state, stage.worker.open) == ("busy", True)
        report = frames.Frame(Kind.REPORT, 1, 1, b'["done",0.1,0.1,1]')
        stage.dispatch.heard(stage.worker, [report])
        assert stage.worker.state == "leaving"

    play(scene)


def test_a_cancelled_order_leaves_its_worker_free() -> None:
    def scene(stage: Stage) -> None:
        stage.claims(1)
        assert stage.dispatch.cancel(Fence(1, 1, 0))
        assert stage.worker.state == "idle"
        stage.claims(2)
        assert tickets.wait(stage.takes) == ((2, 1), False), "the ticket of the first was taken back"

    play(scene)


def test_the_number_of_a_lost_claim_that_is_given_again_is_another_job() -> None:
    """After an asynchronous failover id and lease may be those of another job: the old handler is stopped, unwritten."""

    def scene(stage: Stage) -> None:
        stage.claims(1)
        assert tickets.wait(stage.takes) == ((1, 1), False)
        old = stage.dispatch.held[1]
        stage.claims(1, at=7)
        assert (stage.dispatch.held[1], old.wish) == (old, "lease")
        assert stage.ends.fences() == [(1, 1, 7)], "given back: the next claim of it has another number"
        stage.theirs.sendall(done(1))
        stage.worker.catch_up()
        assert stage.ends.fences() == [(1, 1, 7)], "what the old handler returned is nobody's result"
        stage.claims(1, lease=2, at=8)
        assert stage.dispatch.held_fences() == [(1, 2, 8)]

    play(scene)


def test_an_order_that_a_worker_has_not_read_is_not_confused_with_a_later_one() -> None:
    """The order of the lost claim may still lie in its socket, under the same number."""

    def scene(stage: Stage) -> None:
        stage.claims(1)
        stage.dispatch.lost(Fence(1, 1, 0))
        assert stage.dispatch.held_fences() == []
        stage.claims(1, at=7)
        assert (stage.dispatch.held_fences(), stage.ends.fences()) == ([], [(1, 1, 7)])

    play(scene)


def test_a_new_claim_of_a_job_that_runs_here_stops_the_handler_of_the_old_one() -> None:
    def scene(stage: Stage) -> None:
        stage.claims(1)
        assert tickets.wait(stage.takes) == ((1, 1), False)
        old = stage.dispatch.held[1]
        stage.claims(1, lease=2, at=7)
        assert old.wish == "lease"
        assert (stage.dispatch.held_fences(), stage.ends.fences()) == ([(1, 2, 7)], [])

    play(scene)


def test_the_next_job_is_claimed_just_before_the_end_of_a_regular_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(desk, "monotonic", lambda: 100.0)

    def scene(stage: Stage) -> None:
        for _ in range(5):
            stage.dispatch._pace.learn("work", 0.3)
            stage.desk.learn(0.3)
        stage.claims(1)
        assert stage.worker.ends_at == pytest.approx(stage.worker.since + 0.3)
        for ends_at, wanted in (
            (100.1, 0),
            (100.0 + AHEAD * 0.9, 1),
            (99.9, 0),
        ):  # long yet; soon; late: who knows when
            stage.worker.ends_at = ends_at
            assert stage.desk.wanted(100) == wanted
        stage.worker.ends_at = 100.001
        stage.claims(2)
        assert [held.claimed.id for held in stage.desk.buffer] == [2], (
            "it does not wait in front of the worker"
        )
        assert stage.desk.wanted(100) == 0, "one is enough"
        stage.desk.buffer.clear()
        stage.worker.retiring = True
        assert stage.desk.wanted(100) == 0, "who leaves needs no next one"

    play(scene)


def test_what_is_urgent_goes_before_what_was_claimed_earlier() -> None:
    def scene(stage: Stage) -> None:
        stage.claims(1, 2, 3)
        assert [held.claimed.id for held in stage.desk.buffer] == [2, 3]
        urgent = [held.claimed._replace(id=held.claimed.id + 10, priority=5) for held in stage.desk.buffer]
        stage.dispatch.take([urgent[0], urgent[1], urgent[0]._replace(id=20, priority=1)])
        stage.claims(4)
        assert [held.claimed.id for held in stage.desk.buffer] == [12, 13, 20, 2, 3, 4]

    play(scene)


def test_the_claimer_is_woken_for_a_foreseen_end() -> None:
    woken: list[float] = []

    async def run() -> None:
        stage = Stage(lambda queue: woken.append(monotonic()))
        try:
            for _ in range(5):
                stage.dispatch._pace.learn("work", 0.1)
            stage.claims(1)
            woken.clear()
            while not woken:
                await asyncio.sleep(0.001)
            assert woken[0] - stage.worker.since >= 0.1 - AHEAD
        finally:
            stage.close()

    asyncio.run(run())


def test_a_job_that_a_burning_worker_has_begun_is_not_harmed() -> None:
    def scene(stage: Stage) -> None:
        stage.claims(1, 2)
        assert tickets.wait(stage.takes) == ((1, 1), False)  # it has begun
        stage.says(Kind.BURNS)
        assert stage.worker.state == "busy"
        stage.theirs.sendall(done(1))
        stage.worker.catch_up()
        assert stage.worker.state == "leaving"
        assert [held.key for held, _ in stage.ends._pending] == [(1, 1)]
        assert [held.claimed.id for held in stage.desk.buffer] == [2], "for the next worker"
        told = [fact for fact in stage.told if isinstance(fact, WorkerBurned)]
        assert [(fact.queue, fact.slot) for fact in told] == [("default", 0)]

    play(scene)


def test_one_job_that_is_given_back_is_spoken_of_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def scene(stage: Stage) -> None:
        stage.claims(1, 2)
        monkeypatch.setattr(stage.dispatch, "_patience", lambda: -1.0)
        stage.dispatch._give_back_waiting()
        (fact,) = (fact for fact in stage.told if isinstance(fact, JobsReleased))
        assert tell(fact) == ("info", "1 unstarted job given back: no worker was free")

    play(scene)


@pytest.mark.parametrize("alone", [False, True])
def test_what_no_worker_takes_goes_to_the_other_hosts_if_there_are_any(
    alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [monotonic()]
    monkeypatch.setattr("pgworkers.master.handing.monotonic", lambda: now[0])

    def scene(stage: Stage) -> None:
        stage.dispatch.alone = alone
        stage.claims(1, 2, 3)  # one worker, and nothing known of the task: two wait in the buffer
        now[0] += desk.PATIENCE + 0.1
        stage.dispatch._give_back_waiting()
        assert stage.released() == ([] if alone else [2, 3])
        now[0] += desk.ALONE
        stage.dispatch._give_back_waiting()
        assert stage.released() == [2, 3], "alone, too, they do not stay for ever: something urgent may come"

    play(scene)


def test_an_end_that_was_not_sent_is_heard_when_the_next_job_runs_long() -> None:
    async def run() -> None:
        stage = Stage()
        try:
            stage.dispatch._pace.learn("work", 0.0001)
            stage.claims(1, 2, 3)
            assert [tickets.wait(stage.takes)[0] for _ in range(2)] == [(1, 1), (2, 1)]
            stage.lays(1)
            while len(stage.worker.orders) == 3:  # it looks at who is silent
                await asyncio.sleep(0.001)
            assert [held.claimed.id for held in stage.worker.orders] in ([2, 3], [2]), "3 may be taken back"
            jobs = stage.worker.jobs
            stage.theirs.sendall(done(1))  # now it is sent as well
            stage.worker.catch_up()
            assert (jobs, stage.worker.jobs) == (1, 1), "it has ended once"
        finally:
            stage.close()

    asyncio.run(run())


def test_a_worker_is_woken_for_as_many_short_jobs_as_that_is_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handing, "monotonic", lambda: 0.0)  # nobody is late, however slow this machine is

    def scene(stage: Stage) -> None:
        for _ in range(3):
            os.close(stage.hire(shelf.make())[2])
        stage.claims(1, 2, 3)
        assert stage.orders() == [1, 1, 1, 0], "nobody knows how long they take"
        for number, (worker, theirs) in enumerate(reversed(stage.crew[1:]), 1):
            theirs.sendall(done(number))
            worker.catch_up()
        assert len(stage.desk.idle) == 4
        stage.dispatch._pace._typical["work"] = 0.0005 / 24
        stage.claims(*range(10, 20))
        assert stage.orders() == [10, 0, 0, 0]
        stage.claims(*range(20, 30))
        assert stage.orders() == [20, 0, 0, 0], "it is awake"
        stage.claims(*range(30, 60))
        assert stage.orders() == [44, 6, 0, 0], "and has enough"
        stage.claims(*range(60, 200))
        assert len(stage.desk.idle) == 0, "there is enough for all"
        assert sum(stage.orders()) == 190

    play(scene)


def test_short_jobs_are_handed_to_others_when_an_idle_worker_is_gone() -> None:
    def scene(stage: Stage) -> None:
        worker, _, takes = stage.hire(shelf.make())
        os.close(takes)
        stage.dispatch._pace.learn("work", 0.00002)
        worker.hang_up()  # and nobody has heard of it yet
        stage.claims(1, 2)
        assert [held.claimed.id for held in stage.worker.orders] == [1, 2]

    play(scene)


def test_of_ends_that_come_together_only_those_of_its_orders_count() -> None:
    def scene(stage: Stage) -> None:
        stage.dispatch._pace.learn("work", 0.0001)
        stage.claims(1, 2, 3, 4)
        for job in (1, 2, 3):
            assert tickets.wait(stage.takes) == ((job, 1), False)
        other_lease = messages.done(2, 7, 100, 100, 1, b"null")
        stage.theirs.sendall(done(1) + other_lease + done(1) + done(2) + done(9))
        stage.worker.catch_up()
        assert stage.worker.jobs == 2
        assert stage.ends.fences() == [(1, 1, 0), (2, 1, 0)]
        assert [held.claimed.id for held in stage.worker.orders] == [3, 4]
        assert stage.dispatch.held_fences() == [(3, 1, 0), (4, 1, 0)]
        assert (stage.desk.running, stage.desk.occupied) == (2, 1)

    play(scene)


def test_an_order_says_the_same_whether_or_not_one_like_it_was_sent_before() -> None:
    def scene(stage: Stage) -> None:
        spec = TaskSpec("odd", "default", timeout=2.5, stall_timeout=1.0)
        plain = Claimed(
            1, 1, "default", "odd", '{"a": "é"}', 1, 0, 9, 3, None, None, None, None, None, [], 0.0, False
        )
        for job in (
            plain,
            plain._replace(id=2, args="{}"),
            plain._replace(attempt=2, errors=["ValueError: x"]),
            plain._replace(queue="other"),
            plain._replace(timeout=1.0, memory=1 << 30),
            plain._replace(checkpoint='{"page": 3}', meta='{"k": 1}'),
            plain._replace(crashes=1),
        ):
            held = Held(job, spec)
            known = [orders.frame(held) for _ in range(2)]
            (frame,) = frames.Reader().feed(known[0])
            assert known[1] == known[0]
            assert frame[:3] == (Kind.ORDER, job.id, job.lease)
            head, args = messages.parted(frame.body)
            order = messages.read_head(head)
            assert (order.task, order.queue, args) == ("odd", job.queue, job.args.encode())
            assert (order.attempt, order.crashes, order.errors) == (job.attempt, job.crashes, job.errors)
            assert (order.timeout, order.memory) == (job.timeout or 2.5, job.memory)
            assert bytes(order.checkpoint) == (job.checkpoint or "null").encode()
            assert bytes(order.meta) == (job.meta or "null").encode()
            assert (order.exclusive, order.stall_timeout, order.deadline) == (False, 1.0, 0)
        again = orders.frame(Held(plain, TaskSpec("odd", "default", timeout=9.0)))
        (frame,) = frames.Reader().feed(again)
        assert messages.read_head(messages.parted(frame.body)[0]).timeout == 9.0, "the task was declared anew"
        late = orders.frame(Held(plain._replace(remaining=60.0), spec))
        (frame,) = frames.Reader().feed(late)
        assert messages.read_head(messages.parted(frame.body)[0]).deadline > 0

    play(scene)


def test_the_ends_that_a_dead_worker_had_not_sent_count() -> None:
    def scene(stage: Stage) -> None:
        stage.dispatch._pace.learn("work", 0.0001)
        stage.claims(1, 2, 3, 4)
        for job in (1, 2, 3):
            assert tickets.wait(stage.takes) == ((job, 1), False)
        stage.theirs.sendall(done(1)[:30])  # killed while it sent the first, and ran the third
        stage.lays(1, 2)
        stage.theirs.close()
        died = Died(0, os.getpid(), 1, 3, 1, "SIGKILL", 9, ready=True)
        assert stage.dispatch.died(stage.worker, died) is Verdict.CRASH
        assert stage.worker.jobs == 2, "two have ended, one was running"
        assert [held.claimed.id for held in stage.desk.buffer] == [4], "the last was not begun"

    play(scene)


def test_nonsense_on_the_shelf_of_a_dead_worker_is_not_read() -> None:
    def scene(stage: Stage) -> None:
        stage.claims(1)
        assert tickets.wait(stage.takes) == ((1, 1), False)
        stage.shelf.lay(b"\xff" * 100)
        assert stage.dispatch.died(stage.worker, Died(0, os.getpid(), 1, 1, 1, "SIGSEGV", 11, ready=True))
        assert stage.worker.state == "gone"

    play(scene)


def test_a_claim_that_comes_back_after_its_task_is_gone_is_given_back() -> None:
    def scene(stage: Stage) -> None:
        stage.dispatch.adopt({}, {"default": QueueSpec("default")})
        stage.claims(1)
        assert stage.released() == [1]
        assert stage.dispatch.held_fences() == []

    play(scene)


def test_what_waits_is_given_back_when_its_task_is_gone() -> None:
    def scene(stage: Stage) -> None:
        stage.claims(1, 2)  # one has the worker, one waits in the buffer
        stage.dispatch.adopt({}, {"default": QueueSpec("default")})
        assert stage.released() == [2]
        stage.dispatch.retire(stage.worker)  # it has not begun: nobody of the new version could run it
        assert stage.released() == [1, 2]
        assert not stage.desk.buffer

    play(scene)


@pytest.mark.parametrize(
    ("spec", "waits"),
    [
        (QueueSpec("default", max_jobs=1), True),
        (QueueSpec("default", max_jobs=1, batch=False), False),
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
        stage = Stage()
        stage.desk.spec = spec
        try:
            stage.claims(1)
            stage.dispatch.heard(stage.worker, frames.Reader().feed(done(1)))
            await stage.ends._gather()
            assert not rests, "one that comes alone is written at once"
            await stage.ends._gather()
            assert bool(rests) == waits
        finally:
            stage.close()

    monkeypatch.setattr("pgworkers.master.ends.STEP", 3600.0)  # however slow the machine is
    monkeypatch.setattr("pgworkers.master.ends.asyncio.sleep", rest)
    asyncio.run(run())


def with_deadline(remaining: float | None, epoch: float | None) -> Held:
    job = Claimed(
        1, 1, "default", "work", "{}", 1, 0, 10, 3, 5.0, None, remaining, None, None, [], 0.0, False,
        deadline_epoch=epoch,
    )  # fmt: skip
    return Held(job, TaskSpec("work", "default"))


def test_a_deadline_that_is_read_late_was_not_moved() -> None:
    held = with_deadline(60.0, 1000.0)
    held.began = monotonic()
    assert not held.read_deadline(Deadline(Fence(1, 1, 0), 1000.0, 30.0)), (
        "the answer to the claim took half a minute"
    )
    left = held.left(monotonic())
    assert left is not None
    assert left <= 5.0, "the timeout of the attempt counts"


def test_without_its_deadline_the_timeout_of_the_attempt_counts() -> None:
    held = with_deadline(60.0, 1000.0)
    held.began = monotonic()
    assert held.read_deadline(Deadline(Fence(1, 1, 0), 2000.0, 600.0))
    left = held.left(monotonic())
    assert left is not None
    assert left > 500.0
    assert held.read_deadline(Deadline(Fence(1, 1, 0), None, None))
    left = held.left(monotonic())
    assert left is not None
    assert left <= 5.0
    assert 0 < held.attempt_deadline() <= int((boottime() + 5.0) * 1e9)
    assert held.deadline() == 0


def test_the_deadline_of_one_waiting_job_is_not_sent_with_the_next() -> None:
    spec = TaskSpec("work", "default")
    moved, plain = with_deadline(None, None), with_deadline(None, None)
    moved.spec = plain.spec = spec
    assert moved.read_deadline(Deadline(Fence(1, 1, 0), 1000.0, 10.0))

    def deadline(held: Held) -> int:
        body = frames.Reader().feed(orders.frame(held))[0].body
        return messages.read_head(messages.parted(body)[0]).deadline

    assert deadline(moved) > 0
    assert deadline(plain) == 0
    assert deadline(moved) > 0
