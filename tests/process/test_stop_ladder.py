"""Any job is gone when we say: every way to hang, every reason, and never a neighbour."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from play import Died, Dump, Play, Stack, Stalled, is_alive, until

from pgworkers.process import tree
from pgworkers.worker.messages import Kind, Report

APP = """
STARTED = "started"

def begin():
    open(STARTED, "w").close()

@app.task
def quick(n: int) -> int:
    return n

@app.task
def brief() -> None:
    end = time.monotonic() + random.random() * 0.02
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
def asks_for_more(ctx: Ctx) -> None:
    ctx.extend(0.5)
    while not ctx.cancelled: time.sleep(0.005)

@app.task
def loops() -> None:
    begin()
    while True: pass

@app.task
def sleeps() -> None:
    begin()
    try: time.sleep(999)
    finally: print("cleaned up")

@app.task
def reads_forever() -> None:
    r, w = os.pipe(); begin(); os.read(r, 1)

@app.task
def waits_for_child() -> None:
    begin(); subprocess.run(["sleep", "999"])

def guilty_holds_gil():
    return sum(itertools.repeat(1))

@app.task
def holds_gil() -> int:
    begin(); return guilty_holds_gil()

def guilty_swallows():
    while True:
        try: time.sleep(0.01)
        except BaseException: pass

@app.task
def swallows() -> None:
    begin(); guilty_swallows()

def guilty_ignores():
    while True: time.sleep(0.01)

@app.task
def ignores_signals() -> None:
    for s in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}: signal.signal(s, signal.SIG_IGN)
    begin(); guilty_ignores()

def guilty_stops_itself():
    while True:
        try: os.kill(os.getpid(), signal.SIGSTOP)
        except BaseException: pass

@app.task
def stops_itself() -> None:
    begin(); guilty_stops_itself()

def guilty_regex():
    import re
    re.match("(a+)+$", "a" * 60 + "b")

@app.task
def regex() -> None:
    begin()
    while True:
        try: guilty_regex()
        except BaseException: pass

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
        try: await asyncio.sleep(999)
        except BaseException: pass

@app.task
async def async_swallows() -> None:
    begin(); await guilty_async()

def guilty_eater(food):
    while True:
        try: food.append(bytearray(b"x" * 4_000_000)); time.sleep(0.005)
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
def play(tmp_path: Path) -> Iterator[Play]:
    with Play(tmp_path, APP) as playing:
        yield playing


def started(tmp_path: Path) -> None:
    until("the handler's start", (tmp_path / "started").exists)
    (tmp_path / "started").unlink()


@pytest.mark.parametrize(("task", "rung"), OBEY)
def test_handlers_that_obey_keep_their_worker(play: Play, tmp_path: Path, task: str, rung: str) -> None:
    worker = play.worker()
    worker.order(1, task)
    started(tmp_path)
    play.stop(worker, 1)
    report = worker.report(1)
    assert (report.outcome, report.reason, report.started) == ("stopped", "cancel", True)
    assert [name for name, _ in report.rungs] == (["ask"] if rung == "ask" else ["ask", "raise"])
    assert bytes(worker.run(2, "quick", n=5).result) == b"5"
    if task == "sleeps":
        assert "cleaned up" in (report.output or "")


@pytest.mark.parametrize("task", DEFY)
@pytest.mark.parametrize("reason", ["cancel", "deadline", "drain"])
def test_handlers_that_defy_are_killed_and_named(play: Play, tmp_path: Path, task: str, reason: str) -> None:
    worker = play.worker()
    handler = "swallows" if task == "frozen" else task
    worker.order(1, handler, lease=3, timeout=0.1 if reason == "deadline" else None)
    started(tmp_path)
    if task == "frozen":  # continued for the dump
        os.kill(worker.pid, signal.SIGSTOP)
    if reason != "deadline":
        play.stop(worker, 1, reason, lease=3)
    died = play.fact(Died)
    assert (died.job, died.lease, died.reason, died.status) == (1, 3, reason, "SIGKILL")
    assert [name for name, _ in died.rungs] == ["ask", "raise", "dump", "kill"]
    assert (died.ready, died.oom) == (True, False)
    assert " in guilty_" in (died.stack or "")
    assert not is_alive(worker.pid)
    assert bytes(play.worker(other_than=worker.pid).run(2, "quick", n=5).result) == b"5"


def test_a_result_wins_over_a_stop_that_was_only_asked_for(play: Play, tmp_path: Path) -> None:
    worker = play.worker()
    worker.order(1, "finishes_anyway")
    started(tmp_path)
    play.stop(worker, 1, ask=60)
    report = worker.report(1)
    assert (report.outcome, bytes(report.result)) == ("done", b"42")


def test_an_order_that_has_not_begun_is_reported_unstarted(play: Play, tmp_path: Path) -> None:
    worker = play.worker()
    os.kill(worker.pid, signal.SIGSTOP)  # the order stays in its socket
    until("a stopped worker", lambda: (found := tree.stat(worker.pid)) is not None and found.state == "T")
    worker.order(1, "loops")
    play.stop(worker, 1)
    play.send(Dump(worker.slot, 77))
    assert "stopped" in play.fact(Stack, lambda s: s.token == 77).text  # the stop before it was obeyed, too
    os.kill(worker.pid, signal.SIGCONT)
    report = worker.report(1)
    assert (report.outcome, report.started, report.reason) == ("stopped", False, "cancel")
    assert not (tmp_path / "started").exists()
    assert worker.run(2, "quick", n=1).outcome == "done"


def test_a_wish_for_another_lease_or_job_hits_nobody(play: Play, tmp_path: Path) -> None:
    worker = play.worker()
    worker.order(5, "polite", lease=2)
    started(tmp_path)
    for job, lease in ((5, 1), (4, 2), (5, 3)):
        play.stop(worker, job, lease=lease, ask=0, rais=0)
    play.send(Dump(worker.slot, 1))
    assert "polite" in play.fact(Stack).text  # all three were obeyed before it, and the handler runs on
    play.stop(worker, 5, lease=2, ask=60)
    assert worker.report(5).outcome == "stopped"
    assert is_alive(worker.pid)


def test_late_cancels_of_quick_jobs_never_hit_the_next(play: Play) -> None:
    worker = play.worker()
    for job in range(1, 201):
        worker.order(job, "quick", n=job)
        play.stop(worker, job, ask=0, rais=60)
        report = worker.report(job)
        if report.outcome == "done":
            assert bytes(report.result) == str(job).encode()
        else:
            assert (report.outcome, report.reason) == ("stopped", "cancel")
        assert bytes(worker.run(1000 + job, "quick", n=job).result) == str(job).encode()
    play.pump()
    assert not [fact for fact in play.facts if isinstance(fact, Died)], "a worker was lost without need"


def test_kills_of_quick_jobs_never_hit_the_next(play: Play) -> None:
    """Without any grace the kill races with the end of the job, and with the beginning of the next."""
    worker = play.worker()
    killed = 0
    for job in range(1, 61):
        worker.order(job, "brief")
        play.stop(worker, job, ask=0, rais=0)
        worker.order(1000 + job, "quick", n=job)  # begins the moment the first one ends
        while (ended := worker.take(Kind.REPORT, 1000 + job)) is None:
            play.pump()
            died = next((fact for fact in play.facts if isinstance(fact, Died)), None)
            if died is not None:
                assert died.job == job, "a neighbour was hit"
                killed += 1
                play.facts.remove(died)
                worker = play.worker(other_than=worker.pid)
                break
        else:
            assert msgspec.json.decode(ended.body, type=Report).outcome == "done"
    assert killed, "no kill raced with anything"


def test_a_second_wish_hurries_and_keeps_the_first_reason(play: Play, tmp_path: Path) -> None:
    worker = play.worker()
    worker.order(1, "swallows")
    started(tmp_path)
    play.stop(worker, 1, "cancel", ask=300, rais=300)
    play.stop(worker, 1, "kill", ask=0, rais=0)
    died = play.fact(Died)
    assert (died.reason, died.job) == ("cancel", 1)


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Play]:
    """Nobody is killed because the machine is busy."""
    with Play(tmp_path, APP, ask_grace=600.0, raise_grace=600.0) as playing:
        yield playing


def test_memory_limit(patient: Play, tmp_path: Path) -> None:
    worker = patient.worker()
    worker.order(1, "eats", memory=150 << 20)
    started(tmp_path)
    report = worker.report(1)
    assert (report.outcome, report.reason) == ("stopped", "memory")
    assert report.peak_rss > 150 << 20
    assert worker.run(2, "quick", n=1).outcome == "done"


def test_the_memory_of_what_a_handler_started_counts(patient: Play) -> None:
    worker = patient.worker()
    worker.order(1, "child_eats", memory=250 << 20)
    report = worker.report(1)
    assert (report.outcome, report.reason) == ("stopped", "memory")
    assert worker.run(2, "quick", n=1).outcome == "done"


def test_who_runs_away_with_memory_is_killed_without_graces(tmp_path: Path) -> None:
    with Play(tmp_path, APP, ask_grace=600.0, raise_grace=600.0) as play:
        worker = play.worker()
        worker.order(1, "eats_stubbornly", memory=100 << 20)
        died = play.fact(Died)
        assert (died.job, died.reason, died.status) == (1, "memory", "SIGKILL")
        assert "guilty_eater" in (died.stack or "")
        assert died.peak_rss > 100 << 20


def test_the_deadline_holds_while_nobody_reads(tmp_path: Path) -> None:
    """The master is stopped: nothing is read from any socket, facts pile up, and still the job is gone."""
    with Play(tmp_path, APP, workers=2) as play:
        worker = play.worker(0)
        for token in range(2000):  # more answers than the control socket holds
            play.send(Dump(99, token))
        worker.order(1, "swallows", timeout=0.05)
        until("the job's death", lambda: not is_alive(worker.pid))
        died = play.fact(Died, lambda d: d.job == 1)
        assert died.reason == "deadline"
        assert play.worker(0, other_than=worker.pid).run(2, "quick", n=1).outcome == "done"


def test_the_stack_of_a_running_job_without_stopping_it(play: Play, tmp_path: Path) -> None:
    worker = play.worker()
    worker.order(1, "holds_gil")
    started(tmp_path)
    for token in (1, 2):
        play.send(Dump(worker.slot, token))
        stack = play.fact(Stack, lambda s, token=token: s.token == token)
        assert "guilty_holds_gil" in stack.text
        assert "heartbeat" not in stack.text
        assert is_alive(worker.pid)
    play.stop(worker, 1, ask=0, rais=0)
    assert (play.fact(Died).stack or "").count("guilty_holds_gil") == 1, "earlier dumps are not part of it"


def test_a_stopped_worker_is_told_as_stalled_and_back(play: Play, tmp_path: Path) -> None:
    worker = play.worker()
    worker.order(1, "polite")
    started(tmp_path)
    os.kill(worker.pid, signal.SIGSTOP)
    stalled = play.fact(Stalled)
    assert (stalled.job, stalled.stalled) == (1, True)
    os.kill(worker.pid, signal.SIGCONT)
    assert play.fact(Stalled).stalled is False
    play.stop(worker, 1)
    assert worker.report(1).outcome == "stopped"


def test_a_handler_that_asked_for_more_time_is_stopped_when_that_is_over(patient: Play) -> None:
    worker = patient.worker()
    worker.order(1, "asks_for_more", timeout=1.0)
    assert worker.progress(1).extended == 0.5, "the master knows, for top"
    report = worker.report(1)
    assert (report.outcome, report.reason) == ("stopped", "deadline")
    assert report.duration >= 1.5
    assert worker.run(2, "quick", n=1).outcome == "done"
