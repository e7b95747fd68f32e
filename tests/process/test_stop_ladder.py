"""Any job is gone when we say: every way to hang, every reason, and never a neighbour."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from supervisor_harness import (
    NOBODY,
    Died,
    DumpStacks,
    HarnessWorker,
    StackDumped,
    StallChanged,
    SupervisorHarness,
    is_alive,
    is_stopped,
    until,
)

from pgworkers.ipc.scoreboard import StopReason
from pgworkers.worker.messages import FrameKind, Progress

APP = """
STARTED = "started"

def begin():
    open(STARTED, "w").close()

@app.task
def leaves_sleepers(fails: bool) -> None:
    for apart in (False, True):
        child = subprocess.Popen(["sleep", "999"], start_new_session=apart)
        # The kernel closes the pipe that Popen waits for a moment before it renames the process.
        while open(f"/proc/{child.pid}/comm").read() != "sleep\\n": time.sleep(0.001)
    open("started", "w").close()
    if fails: raise ValueError("on purpose")
    while True: time.sleep(1)

@app.task
def quick(n: int) -> int:
    return n

@app.task
def brief(most: float) -> None:
    end = time.monotonic() + random.random() * most
    while time.monotonic() < end:
        try: time.sleep(0.001)
        except BaseException: pass

@app.task
def polite(ctx: Ctx) -> None:
    begin()
    while not ctx.cancelled: time.sleep(0.005)
    raise RuntimeError("leaving as asked")

@app.task
def returns_early(ctx: Ctx) -> None:
    begin()
    while not ctx.cancelled: time.sleep(0.005)

@app.task
def finishes_anyway(ctx: Ctx) -> int:
    begin()
    while not ctx.cancelled: time.sleep(0.005)
    return 42

@app.task
def tracks(ctx: Ctx) -> None:
    begin()
    for _ in ctx.track(itertools.count()): time.sleep(0.002)

@app.task
def asks_for_more(ctx: Ctx) -> str | None:
    ctx.extend(0.5)
    if ctx.cancelled: return "too late"
    while not ctx.cancelled: time.sleep(0.005)

@app.task
def loops() -> None:
    begin()
    while True: pass

@app.task
def sleeps() -> None:
    try:
        begin()
        time.sleep(999)
    finally: print("cleaned up")

@app.task
def reads_forever() -> None:
    r, w = os.pipe(); begin(); os.read(r, 1)

@app.task
def waits_for_child() -> None:
    begin(); subprocess.run(["sleep", "999"])

# The guilty begin within what protects them (and loop within it): who has begun cannot be stopped by an exception any more.

def guilty_holds_gil():
    begin()
    return sum(itertools.repeat(1))

@app.task
def holds_gil() -> int:
    return guilty_holds_gil()

def guilty_swallows():
    while True:
        try:
            begin()
            while True: time.sleep(0.01)
        except BaseException: pass

@app.task
def swallows() -> None:
    guilty_swallows()

def guilty_ignores():
    begin()
    while True: time.sleep(0.01)

@app.task
def ignores_signals() -> None:
    for s in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}: signal.signal(s, signal.SIG_IGN)
    guilty_ignores()

def guilty_stops_itself():
    while True:
        try:
            begin()
            while True: os.kill(os.getpid(), signal.SIGSTOP)
        except BaseException: pass

@app.task
def stops_itself() -> None:
    guilty_stops_itself()

def guilty_regex():
    import re
    while True:
        try:
            begin()
            re.match("(a+)+$", "a" * 60 + "b")
        except BaseException: pass

@app.task
def regex() -> None:
    guilty_regex()

@app.task
async def async_waits() -> None:
    begin(); await asyncio.sleep(999)

@app.task
async def async_loops() -> None:
    begin()
    while True: pass

@app.task
async def async_child_loops() -> None:
    async def busy():
        while True: pass
    begin(); await asyncio.gather(busy())

async def guilty_async():
    while True:
        try:
            begin()
            while True: await asyncio.sleep(999)
        except BaseException: pass

@app.task
async def async_swallows() -> None:
    await guilty_async()

def guilty_eater(food):
    while True:
        try:
            while True: food.append(bytearray(b"x" * 4_000_000)); time.sleep(0.005)
        except BaseException: pass

@app.task
def eats_stubbornly() -> None:
    begin(); guilty_eater([])

@app.task
def child_eats() -> None:
    begin()
    code = "import time; food = [bytearray(b'x' * 4_000_000) for _ in range(72)]; time.sleep(999)"
    subprocess.run([sys.executable, "-c", code], start_new_session=True)

@app.task
def eats() -> None:
    begin()
    food = [bytearray(b"x" * 4_000_000) for _ in range(44)]  # over 150 MiB, never half as much again
    time.sleep(999)
"""

#: These end when JobStopped is raised in them (or earlier) and the worker lives on.
OBEY = [
    ("polite", "ask"),
    ("returns_early", "ask"),
    ("tracks", "ask"),
    ("loops", "raise"),
    ("sleeps", "raise"),
    ("reads_forever", "raise"),
    ("waits_for_child", "raise"),
    ("async_waits", "raise"),
    ("async_loops", "raise"),
    ("async_child_loops", "raise"),
]
#: These must be killed; the stack names the function.
DEFY = [
    "holds_gil",
    "swallows",
    "ignores_signals",
    "regex",
    "async_swallows",
    "frozen",
    "stops_itself",
]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[SupervisorHarness]:
    with SupervisorHarness(tmp_path, APP) as harness:
        yield harness


def started(tmp_path: Path) -> None:
    until("the handler's start", (tmp_path / "started").exists)
    (tmp_path / "started").unlink()


@pytest.mark.parametrize(("task", "rung"), OBEY)
def test_handlers_that_obey_keep_their_worker(
    harness: SupervisorHarness, tmp_path: Path, task: str, rung: str
) -> None:
    worker = harness.worker()
    worker.order(1, task)
    started(tmp_path)
    harness.stop(worker, 1, ask=600 if rung == "ask" else 0.1)
    report = worker.report(1)
    assert (report.outcome, report.reason, report.has_started) == ("stopped", StopReason.CANCEL, True)
    assert [name for name, _ in report.rungs] == (["ask"] if rung == "ask" else ["ask", "raise"])
    assert bytes(worker.run(2, "quick", n=5).result) == b"5"
    if task == "sleeps":
        assert "cleaned up" in (report.output or "")


@pytest.mark.parametrize("task", DEFY)
@pytest.mark.parametrize("reason", ["cancel", "drain"])
def test_handlers_that_defy_are_killed_and_named(
    harness: SupervisorHarness, tmp_path: Path, task: str, reason: str
) -> None:
    worker = harness.worker()
    worker.order(1, "swallows" if task == "frozen" else task, lease=3)
    started(tmp_path)
    if task == "stops_itself":
        until("a stopped worker", lambda: is_stopped(worker.pid))
    else:
        harness.wait_for_stack(worker, " in guilty_")
    if task == "frozen":  # continued for the dump
        os.kill(worker.pid, signal.SIGSTOP)
    harness.stop(worker, 1, reason, lease=3, ask=0.1, rais=0.2)
    killed_and_named(harness, worker, harness.fact(Died), 1, reason)


def killed_and_named(
    harness: SupervisorHarness, worker: HarnessWorker, died: Died, job: int, reason: str
) -> None:
    assert (died.job, died.lease, died.reason) == (job, 3, StopReason[reason.upper()])
    names = [name for name, _ in died.rungs]
    if died.is_dumping:
        # The dump reads the frames of running threads without the GIL: CPython may crash in it (docs/adr/14). The worker,
        # which was to be killed next, is gone nevertheless. The product says so: test_dump_crash.
        assert died.status in ("SIGSEGV", "SIGBUS", "SIGABRT")
        names.append("kill")
    else:
        assert died.status == "SIGKILL"
    assert names in (["ask", "raise", "dump", "kill"], ["ask", "signal", "dump", "kill"])
    assert (died.was_ready, died.is_oom) == (True, False)
    assert " in guilty_" in (died.stack or "")
    assert not is_alive(worker.pid)
    assert bytes(harness.worker(other_than=worker.pid).run(99, "quick", n=5).result) == b"5"


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[SupervisorHarness]:
    """A supervisor with short graces, which soon kills handlers that do not stop."""
    with SupervisorHarness(tmp_path, APP, ask_grace=0.1, raise_grace=0.2) as harness:
        yield harness


@pytest.mark.parametrize("task", DEFY)
def test_handlers_that_defy_their_deadline_are_killed_and_named(
    hasty: SupervisorHarness, tmp_path: Path, task: str
) -> None:
    """On a busy machine a short deadline may come before the handler has begun to defy: a longer one is tried then."""
    last = 0
    for job, timeout in enumerate((0.1, 1.0, 10.0), 1):
        worker = hasty.worker(other_than=last)
        worker.order(job, "swallows" if task == "frozen" else task, lease=3, timeout=timeout)
        if task == "frozen":
            freeze(hasty, worker, tmp_path / "started")
        end = hasty.end(worker, job)
        if isinstance(end, Died) and (tmp_path / "started").exists():
            break
        (tmp_path / "started").unlink(missing_ok=True)
        last = worker.pid if isinstance(end, Died) else last
    assert isinstance(end, Died), f"it was not killed: {end}"
    killed_and_named(hasty, worker, end, job, "deadline")


def freeze(harness: SupervisorHarness, worker: HarnessWorker, begun: Path) -> None:
    """Stop a worker as soon as its handler has begun; it may be dead by then."""

    def over() -> bool:
        harness.pump()
        return any(isinstance(fact, Died) for fact in harness.facts)

    until("the handler's start or end", lambda: begun.exists() or over() or worker.has(FrameKind.REPORT))
    try:
        os.kill(worker.pid, signal.SIGSTOP)  # continued for the dump
    except ProcessLookupError:
        pass


def test_a_result_wins_over_a_stop_that_was_only_asked_for(
    harness: SupervisorHarness, tmp_path: Path
) -> None:
    worker = harness.worker()
    worker.order(1, "finishes_anyway")
    started(tmp_path)
    harness.stop(worker, 1, ask=60)
    report = worker.report(1)
    assert (report.outcome, bytes(report.result)) == ("done", b"42")


def test_an_order_that_has_not_begun_is_reported_unstarted(
    harness: SupervisorHarness, tmp_path: Path
) -> None:
    worker = harness.worker()
    os.kill(worker.pid, signal.SIGSTOP)  # the order stays in its socket
    until("a stopped worker", lambda: is_stopped(worker.pid))
    worker.order(1, "loops")
    harness.stop(worker, 1, ask=600)
    harness.send(DumpStacks(worker.slot, worker.incarnation, 77))
    assert (
        "stopped" in harness.fact(StackDumped, lambda s: s.token == 77).text
    )  # the stop before it was wait_for_pending_commands, too
    os.kill(worker.pid, signal.SIGCONT)
    report = worker.report(1)
    assert (report.outcome, report.has_started, report.reason) == ("stopped", False, StopReason.CANCEL)
    assert not (tmp_path / "started").exists()
    assert worker.run(2, "quick", n=1).outcome == "done"


def test_a_stop_request_for_another_lease_or_job_stops_nothing(
    harness: SupervisorHarness, tmp_path: Path
) -> None:
    worker = harness.worker()
    worker.order(5, "polite", lease=2)
    started(tmp_path)
    for job, lease in ((5, 1), (4, 2), (5, 3)):
        harness.stop(worker, job, lease=lease, ask=0, rais=0)
    harness.wait_for_pending_commands()
    harness.wait_for_stack(worker, "polite")  # the handler runs on
    harness.stop(worker, 5, lease=2, ask=60)
    assert worker.report(5).outcome == "stopped"
    assert is_alive(worker.pid)


def test_late_cancels_of_quick_jobs_never_hit_the_next(harness: SupervisorHarness) -> None:
    worker = harness.worker()
    for job in range(1, 201):
        worker.order(job, "quick", n=job)
        harness.stop(worker, job, ask=0, rais=60)
        report = worker.report(job)
        if report.outcome == "done":
            assert bytes(report.result) == str(job).encode()
        else:
            assert (report.outcome, report.reason) == ("stopped", StopReason.CANCEL)
        assert bytes(worker.run(1000 + job, "quick", n=job).result) == str(job).encode()
    harness.pump()
    assert not [fact for fact in harness.facts if isinstance(fact, Died)], "a worker was lost without need"


def test_kills_of_quick_jobs_never_hit_the_next(harness: SupervisorHarness) -> None:
    """Without any grace the kill races with the end of the job, and with the beginning of the next."""
    worker = harness.worker()
    job = killed = 0
    most = 0.02
    while job < 60 or (not killed and job < 100):
        job += 1
        if job > 60:  # on a busy machine all had ended before the first look: they last longer now
            most = min(2 * most, 2.0)
        worker.order(job, "brief", most=most)
        worker.order(1000 + job, "quick", n=job)  # begins the moment the first one ends
        harness.stop(worker, job, ask=0, rais=0)
        end = harness.end(worker, 1000 + job)
        if isinstance(end, Died):
            assert end.job == job, "a neighbour was hit"
            killed += 1
            worker = harness.worker(other_than=worker.pid)
        else:
            assert end.outcome == "done"
    assert killed, "no kill raced with anything"


def test_a_second_stop_request_shortens_the_graces_and_keeps_the_first_reason(
    harness: SupervisorHarness, tmp_path: Path
) -> None:
    worker = harness.worker()
    worker.order(1, "swallows")
    started(tmp_path)
    harness.stop(worker, 1, "cancel", ask=300, rais=300)
    harness.stop(worker, 1, "kill", ask=0, rais=0)
    died = harness.fact(Died)
    assert (died.reason, died.job) == (StopReason.CANCEL, 1)


def test_memory_limit(harness: SupervisorHarness, tmp_path: Path) -> None:
    worker = harness.worker()
    worker.order(1, "eats", memory=150 << 20)
    started(tmp_path)
    report = worker.report(1)
    assert (report.outcome, report.reason) == ("stopped", StopReason.MEMORY)
    assert report.peak_rss > 150 << 20
    assert report.memory_limit == 150 << 20
    assert report.memory_used > report.memory_limit
    assert worker.run(2, "quick", n=1).outcome == "done"


def test_the_memory_of_what_a_handler_started_counts(harness: SupervisorHarness) -> None:
    worker = harness.worker()
    worker.order(1, "child_eats", memory=250 << 20)
    report = worker.report(1)
    assert (report.outcome, report.reason) == ("stopped", StopReason.MEMORY)
    assert report.memory_limit == 250 << 20
    assert report.memory_used > report.memory_limit, "the child's memory is part of it"
    assert worker.run(2, "quick", n=1).outcome == "done"


def test_a_handler_whose_memory_grows_fast_is_killed_without_graces(harness: SupervisorHarness) -> None:
    worker = harness.worker()
    worker.order(1, "eats_stubbornly", memory=100 << 20)
    died = harness.fact(Died)
    assert (died.job, died.reason, died.status) == (1, StopReason.MEMORY, "SIGKILL")
    assert "guilty_eater" in (died.stack or "")
    assert died.peak_rss > 100 << 20
    assert died.memory_limit == 100 << 20
    assert died.memory_used > died.memory_limit


def test_the_deadline_holds_while_the_master_reads_nothing(tmp_path: Path) -> None:
    """The master is stopped: nothing is read from any socket, facts pile up, and still the job is gone."""
    with SupervisorHarness(tmp_path, APP, workers=2, ask_grace=0.1, raise_grace=0.2) as harness:
        worker = harness.worker(0)
        for token in range(2000):  # more answers than the control socket holds
            harness.send(DumpStacks(NOBODY, 0, token))
        for job, timeout in enumerate((0.05, 1.0, 10.0), 1):
            worker.order(job, "swallows", timeout=timeout)
            # its death closes the socket; the deadline may also have come before it had begun to swallow
            until("the job's end", lambda: select.select([worker.sock], [], [], 0)[0])
            if not worker.has(FrameKind.REPORT):
                break
            worker.report(job)
        died = harness.fact(Died, lambda d: d.job == job)
        assert died.reason == StopReason.DEADLINE
        assert harness.worker(0, other_than=worker.pid).run(99, "quick", n=1).outcome == "done"


def test_the_stack_of_a_running_job_without_stopping_it(harness: SupervisorHarness, tmp_path: Path) -> None:
    worker = harness.worker()
    worker.order(1, "holds_gil")
    started(tmp_path)
    for _ in (1, 2):
        assert "heartbeat" not in harness.wait_for_stack(worker, "guilty_holds_gil")
        assert is_alive(worker.pid)
    harness.stop(worker, 1, ask=0, rais=0)
    assert (harness.fact(Died).stack or "").count("guilty_holds_gil") == 1, "earlier dumps are not part of it"


def test_a_stopped_worker_is_reported_as_stalled_and_as_recovered(
    harness: SupervisorHarness, tmp_path: Path
) -> None:
    worker = harness.worker()
    worker.order(1, "polite")
    started(tmp_path)
    os.kill(worker.pid, signal.SIGSTOP)
    harness.fact(StallChanged, lambda told: (told.job, told.is_stalled) == (1, True))
    os.kill(worker.pid, signal.SIGCONT)
    harness.fact(StallChanged, lambda told: (told.job, told.is_stalled) == (1, False))
    harness.stop(worker, 1, ask=600)
    assert worker.report(1).outcome == "stopped"


def test_a_handler_that_asked_for_more_time_is_stopped_when_that_is_over(harness: SupervisorHarness) -> None:
    worker = harness.worker()
    for job, timeout in ((1, 1.0), (2, 10.0)):
        worker.order(job, "asks_for_more", timeout=timeout)
        report = worker.report(job)
        told = worker.take(FrameKind.PROGRESS, job)
        if (
            told is not None and report.outcome != "done"
        ):  # else the machine was too busy for the first deadline
            break
    assert told is not None
    assert msgspec.json.decode(told.body, type=Progress).extended == 0.5, "the master knows, for top"
    assert (report.outcome, report.reason) == ("stopped", StopReason.DEADLINE)
    assert report.duration >= timeout + 0.5
    assert worker.run(9, "quick", n=1).outcome == "done"


def test_a_raise_is_recorded_only_if_jobstopped_was_raised(
    harness: SupervisorHarness, tmp_path: Path
) -> None:
    worker = harness.worker()
    worker.order(1, "swallows")
    started(tmp_path)
    harness.wait_for_stack(worker, " in guilty_")
    harness.stop(worker, 1, ask=0.05, rais=0.3)
    assert [name for name, _ in harness.fact(Died).rungs] == ["ask", "raise", "dump", "kill"]
    worker = harness.worker(other_than=worker.pid)
    worker.order(2, "holds_gil")  # C code that never looks: the signal arrives and nothing is raised
    harness.wait_for_stack(worker, " in guilty_")
    harness.stop(worker, 2, ask=0.05, rais=0.3)
    assert [name for name, _ in harness.fact(Died).rungs] == ["ask", "signal", "dump", "kill"]


def test_what_was_killed_with_a_job_is_named(harness: SupervisorHarness, tmp_path: Path) -> None:
    worker = harness.worker()
    worker.order(1, "leaves_sleepers", fails=False)
    started(tmp_path)
    harness.stop(worker, 1, "kill", ask=0, rais=0)
    died = harness.fact(Died)
    assert sorted(name.partition(" (pid ")[0] for name in died.killed_children) == ["sleep", "sleep"]
    worker = harness.worker(other_than=worker.pid)
    report = worker.run(2, "leaves_sleepers", fails=True)
    assert report.outcome == "error"
    assert sorted(name.partition(" (pid ")[0] for name in report.killed_children) == ["sleep", "sleep"]
