"""What a handler does, and the report that the master receives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from supervisor_harness import Booted, SupervisorHarness, until

from pgworkers.worker.messages import FrameKind, Progress

APP = """
from dataclasses import dataclass

@app.task
def add(a: int, b: int) -> int:
    return a + b

@app.task
def fail(text: str) -> None:
    def inner_frame():
        raise ValueError(text)
    inner_frame()

@app.task
def leave(how: str) -> None:
    kinds = {"exit": SystemExit(3), "interrupt": KeyboardInterrupt(), "generator": GeneratorExit("odd"),
             "base": BaseException("bare"), "stopped": JobStopped("nobody asked")}
    raise kinds[how]

class Mute(Exception):
    def __str__(self): raise RuntimeError("no words")
    __repr__ = __str__

@app.task
def bad_text(kind: str) -> None:
    if kind == "mute": raise Mute("x")
    if kind == "nul": raise ValueError("a\\0b\\ud800c")
    if kind == "long": raise ValueError("x" * 3_000_000)
    if kind == "deep":
        def down(): down()
        down()
    if kind == "memory": raise MemoryError
    if kind == "lines": raise ValueError("one\\n12:00:00 #1 forged line")

@app.task
def give(kind: str):
    if kind == "nan": return float("nan")
    if kind == "object": return object()
    if kind == "big": return "x" * 100_000
    if kind == "self":
        x = []; x.append(x); return x
    if kind == "nul": return "a\\0b"

@app.task
def steer(kind: str) -> None:
    raise {"retry": Retry("later", after="2m"), "snooze": Snooze(5), "discard": Discard("useless"),
           "throttled": Throttled("429", after=30), "plain": Retry()}[kind]

@app.task
async def wait(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "waited"

@app.task
def noisy(fails: bool) -> None:
    print("to stdout"); print("to stderr", file=sys.stderr)
    subprocess.run(["echo", "from a child"])
    if fails: raise ValueError("after the noise")

@app.task
def use_cpu() -> None:
    ballast = bytearray(80_000_000); ballast[::4096] = b"x" * len(ballast[::4096])
    end = time.process_time() + 0.2
    while time.process_time() < end: pass

@app.task(backoff=lambda attempt: attempt * 7.0)
def own_curve() -> None:
    raise ValueError("again")

@app.task
def advance(ctx: Ctx) -> int:
    ctx.progress(41, 100, "half way"); ctx.checkpoint["page"] = 12
    while not os.path.exists("go"): time.sleep(0.01)
    ctx.checkpoint["page"] = 13
    return ctx.checkpoint.get("old", 0)
"""


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[SupervisorHarness]:
    with SupervisorHarness(tmp_path, APP) as harness:
        yield harness


def test_a_result(harness: SupervisorHarness) -> None:
    booted = harness.fact(Booted)
    assert booted.modules > 50
    report = harness.worker().run(1, "add", a=2, b=3)
    assert (report.outcome, bytes(report.result), report.has_started, report.is_last) == (
        "done",
        b"5",
        True,
        False,
    )
    assert report.peak_rss > 1 << 20
    assert report.output is None


def test_exceptions_are_reported_from_the_users_first_frame_and_the_worker_goes_on(
    harness: SupervisorHarness,
) -> None:
    worker = harness.worker()
    report = worker.run(1, "fail", text="no such thing")
    assert (report.outcome, report.error) == ("error", "ValueError: no such thing")
    assert report.traceback is not None
    assert "inner_frame" in report.traceback
    assert "window.py" not in report.traceback
    assert worker.run(2, "add", a=1, b=1).outcome == "done"


def test_nothing_a_handler_raises_ends_the_worker(harness: SupervisorHarness) -> None:
    worker = harness.worker()
    expected = {
        "exit": ("exit", "SystemExit: 3"),
        "interrupt": ("error", "KeyboardInterrupt"),
        "generator": ("error", "GeneratorExit: odd"),
        "base": ("error", "BaseException: bare"),
        "stopped": ("error", "JobStopped: nobody asked"),
    }
    for job, (how, told) in enumerate(expected.items(), 1):
        report = worker.run(job, "leave", how=how)
        assert (report.outcome, report.error) == told
    assert worker.run(9, "add", a=1, b=1).outcome == "done"


def test_texts_that_cannot_be_read_are_still_reported(harness: SupervisorHarness) -> None:
    worker = harness.worker()
    mute = worker.run(1, "bad_text", kind="mute")
    assert mute.outcome == "error"
    assert mute.error == "Mute: <its text could not be made: str() raised RuntimeError>"
    nul = worker.run(2, "bad_text", kind="nul")
    assert nul.error == "ValueError: a b\ufffdc"
    assert "\0" not in (nul.traceback or "")
    long = worker.run(3, "bad_text", kind="long")
    assert len(long.error or "") <= 300
    assert len(long.traceback or "") <= 16 << 10
    assert (worker.run(4, "bad_text", kind="deep").error or "").startswith("RecursionError")
    assert worker.run(5, "bad_text", kind="memory").error == "MemoryError"
    assert "\n" not in (worker.run(6, "bad_text", kind="lines").error or "\n")


def test_invalid_results_are_clear_errors(harness: SupervisorHarness) -> None:
    worker = harness.worker()
    for job, kind in enumerate(["nan", "object", "big", "self"], 1):
        report = worker.run(job, "give", kind=kind)
        assert report.outcome == "bad_result"
        assert (report.error or "").startswith("give: "), kind
    assert bytes(worker.run(9, "give", kind="nul").result) == '"a\ufffdb"'.encode()


def test_control_by_exception(harness: SupervisorHarness) -> None:
    worker = harness.worker()
    expected = {
        "retry": ("retry", 120.0, "asked to be retried: later"),
        "snooze": ("snooze", 5.0, "snoozed"),
        "discard": ("discard", None, "discarded: useless"),
        "throttled": ("throttled", 30.0, "throttled: 429"),
        "plain": ("retry", None, "asked to be retried"),
    }
    for job, (kind, told) in enumerate(expected.items(), 1):
        report = worker.run(job, "steer", kind=kind)
        assert (report.outcome, report.retry_after, report.error) == told


def test_a_backoff_function_runs_in_the_worker(harness: SupervisorHarness) -> None:
    assert harness.worker().run(1, "own_curve", attempt=3).retry_after == 21.0


def test_unknown_tasks_and_wrong_arguments_are_errors(harness: SupervisorHarness) -> None:
    worker = harness.worker()
    assert "no task 'ghost'" in (worker.run(1, "ghost").error or "")
    unfit = worker.run(2, "add", a=1, b="x")
    assert (unfit.outcome, (unfit.error or "")[:25]) == ("bad_arguments", "StoredArgumentsError: add")
    assert worker.run(3, "add", a=1, b=1).outcome == "done"


def test_async_handlers_share_one_loop(harness: SupervisorHarness) -> None:
    worker = harness.worker()
    for job in (1, 2):
        report = worker.run(job, "wait", seconds=0.01)
        assert (report.outcome, bytes(report.result)) == ("done", b'"waited"')


def test_output_is_on_the_report_of_a_failure_and_on_the_screen(harness: SupervisorHarness) -> None:
    worker = harness.worker()
    assert worker.run(1, "noisy", fails=False).output is None
    report = worker.run(2, "noisy", fails=True)
    assert report.output is not None
    assert report.output.count("to stdout") == 1, "only this job's output belongs to it"
    assert "to stderr" in report.output
    assert "from a child" in report.output
    until("both jobs' output on the screen", lambda: harness.log.read_text().count("from a child") == 2)


def test_cpu_and_memory_are_those_of_the_job(harness: SupervisorHarness) -> None:
    worker = harness.worker()
    small = worker.run(1, "add", a=1, b=1)
    heavy = worker.run(2, "use_cpu")
    after = worker.run(3, "add", a=1, b=1)
    assert heavy.cpu >= 0.2
    assert heavy.peak_rss >= small.peak_rss + 70_000_000
    assert after.peak_rss < heavy.peak_rss - 50_000_000
    assert after.cpu < 0.2


def test_progress_and_checkpoint_are_flushed_while_the_handler_runs(
    harness: SupervisorHarness, tmp_path: Path
) -> None:
    worker = harness.worker()
    worker.order(1, "advance", lease=4, checkpoint={"old": 3})
    said: set[bytes] = set()
    while len(said) < 2:  # a beat may come between the two
        news = worker.progress(1)
        said |= {bytes(part) for part in (news.progress, news.checkpoint)} - {b"null"}
    assert said == {b'{"done":41,"total":100,"note":"half way"}', b'{"old":3,"page":12}'}
    title = Path(f"/proc/{worker.pid}/cmdline")
    until(
        "progress in the title", lambda: title.read_text().startswith("pgworkers: worker q/0 #1 advance 41% ")
    )
    (tmp_path / "go").touch()
    report = worker.report(1)
    assert bytes(report.result) == b"3"
    late = worker.take(FrameKind.PROGRESS, 1)  # a beat may have come after the change as well
    last = report.checkpoint if late is None else msgspec.json.decode(late.body, type=Progress).checkpoint
    assert bytes(last) == b'{"old":3,"page":13}'
    assert bytes(report.progress) == b"null"
    until("an idle title", lambda: title.read_text().rstrip("\0") == "pgworkers: worker q/0 idle")
    assert b"PGWORKERS_TEST_RUN=" in Path(f"/proc/{worker.pid}/environ").read_bytes()


def test_what_changed_after_the_last_beat_is_on_the_report(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, APP, heartbeat_interval=600.0) as harness:
        (tmp_path / "go").touch()
        report = harness.worker().run(1, "advance", checkpoint={"old": 3})
        assert bytes(report.checkpoint) == b'{"old":3,"page":13}'
        assert bytes(report.progress) == b'{"done":41,"total":100,"note":"half way"}'


def test_a_worker_has_exactly_the_descriptors_it_needs(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, APP, workers=3) as harness:
        for slot in (0, 1, 2):
            worker = harness.worker(slot)
            names = {
                int(fd): os.readlink(f"/proc/{worker.pid}/fd/{fd}")
                for fd in os.listdir(f"/proc/{worker.pid}/fd")
            }
            output = f"/memfd:pgworkers-output-q-{slot} (deleted)"
            dump = f"/memfd:pgworkers-dump-q-{slot} (deleted)"
            assert [names.pop(fd) for fd in (0, 1, 2)] == ["/dev/null", output, output]
            left = sorted(name.partition(":[")[0] for name in names.values())
            page = "/memfd:pgworkers-report-page (deleted)"
            lease = "/memfd:pgworkers-lease-deadline (deleted)"
            refs = f"/proc/{worker.pid}/clear_refs"
            assert left == sorted([output, dump, page, lease, "socket", "pipe", refs])
            pipe = next(int(fd) for fd, name in names.items() if name.startswith("pipe:"))
            flags = Path(f"/proc/{worker.pid}/fdinfo/{pipe}").read_text().split("flags:")[1].split()[0]
            assert int(flags, 8) & os.O_ACCMODE == os.O_RDONLY, "only the master can write a ticket"
