"""Output of handlers is kept with the job, passed on to the screen, and never blocks a process."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
from supervisor_harness import Died, SupervisorHarness, until

from pgworkers.supervisor.messages import BytesDropped
from pgworkers.supervisor.output import MAX_WAITING_BYTES, OutputCapture, OutputScreen

APP = """
@app.task
def flood(megabytes: int) -> None:
    line = "x" * 99 + "\\n"
    for _ in range(megabytes * 10_000): sys.stdout.write(line)
    print("the last line")
    raise ValueError("flooded")

@app.task
def long_lines(count: int, die: bool) -> None:
    for _ in range(count): print("o" * 10_000)
    sys.stdout.flush()
    if die: os.kill(os.getpid(), 9)

@app.task
def say(text: str) -> None:
    print(text)

@app.task
def odd() -> None:
    print("caf\\u00e9 \\ud800 \\u2028"); os.write(1, b"raw \\xff\\xfe bytes\\n"); raise ValueError("odd")

@app.task
def crash(text: str) -> None:
    sys.stdout.write("no newline: " + text); sys.stdout.flush(); os.kill(os.getpid(), 9)
"""


def test_a_flood_keeps_its_end_and_costs_no_memory(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, APP) as harness:
        worker = harness.worker()
        report = worker.run(1, "flood", megabytes=20)
        assert report.output is not None
        assert report.output.endswith("x\nthe last line\n")
        assert len(report.output) <= 16 << 10
        until("holes in the capture file", lambda: capture_blocks(worker.pid) < 4 << 20)
        until("the end on the screen", lambda: "the last line" in harness.log.read_text())


def capture_blocks(pid: int) -> int:
    return os.stat(f"/proc/{pid}/fd/1").st_blocks * 512


@pytest.mark.parametrize("die", [False, True], ids=["lives", "dies"])
@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_a_flood_arrives_complete_if_the_screen_is_read(tmp_path: Path, kind: str, die: bool) -> None:
    """20 MB are printed in a few milliseconds; a file or a reader takes them, also after the death of their worker."""
    arrived = tmp_path / "arrived"
    with (
        arrived.open("wb") as file,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file) as cat,
    ):
        assert cat.stdin is not None
        with SupervisorHarness(
            tmp_path, APP, stderr=file.fileno() if kind == "file" else cat.stdin.fileno()
        ) as harness:
            harness.worker().order(1, "long_lines", count=2000, die=die)
            until("all of it", lambda: arrived.stat().st_size >= 2000 * 10_001)
        cat.stdin.close()
    assert set(arrived.read_bytes().splitlines()) == {b"o" * 10_000}


def test_an_unread_screen_blocks_nothing(tmp_path: Path) -> None:
    """stderr is a full pipe: jobs run, the supervisor climbs ladders, and later says what was not shown."""
    reader, writer = os.pipe()
    try:
        with SupervisorHarness(tmp_path, APP, stderr=writer) as harness:
            os.close(writer)
            writer = -1
            worker = harness.worker()
            assert worker.run(1, "flood", megabytes=10).outcome == "error"
            worker.order(2, "crash", text="x")
            assert harness.fact(Died).job == 2
            assert harness.worker(other_than=worker.pid).run(3, "say", text="fine").outcome == "done"
            dropped = harness.fact(BytesDropped).count
            os.set_blocking(reader, False)
            shown = bytearray()

            def read() -> bool:
                try:
                    shown.extend(os.read(reader, 1 << 16))
                except BlockingIOError:
                    pass
                return b"fine\n" in shown and b"no newline: x" in shown

            until("the end", read)
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)
    lines = bytes(shown).splitlines()
    confession = b"[pgworkers: dropped %d bytes of output: stderr was not read in time]" % dropped
    assert lines.count(confession) == 1, "on a line of its own"
    assert set(lines) - {confession} <= {b"x" * 99, b"the last line", b"no newline: x", b"fine"}, (
        "whole lines"
    )


@pytest.mark.parametrize("kind", ["closed pipe", "closed", "socket", "full disk"])
def test_a_closed_screen_is_ignored(tmp_path: Path, kind: str) -> None:
    reader, writer = os.pipe()
    ours, theirs = socket.socketpair()
    disk = os.open("/dev/full", os.O_WRONLY)
    screens = {
        "closed pipe": writer,
        "closed": subprocess.DEVNULL,
        "socket": theirs.fileno(),
        "full disk": disk,
    }
    os.close(reader)
    try:
        with SupervisorHarness(tmp_path, APP, stderr=screens[kind]) as harness:
            worker = harness.worker()
            for job in (1, 2, 3):
                assert worker.run(job, "say", text="anybody there?").outcome == "done"
            if kind == "socket":
                ours.settimeout(60)
                assert b"anybody there?" in ours.recv(1000)
    finally:
        for fd in (writer, disk):
            os.close(fd)
        ours.close()
        theirs.close()


def test_odd_characters(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, APP) as harness:
        report = harness.worker().run(1, "odd")
        assert report.error == "ValueError: odd", "a character that cannot be printed is no error"
        assert report.output == "caf\u00e9 \\ud800 \u2028\nraw \ufffd\ufffd bytes\n"


def test_the_end_of_a_line_that_never_ended(tmp_path: Path) -> None:
    with SupervisorHarness(tmp_path, APP) as harness:
        worker = harness.worker()
        worker.run(1, "say", text="of another job")
        worker.order(2, "crash", text="cut")
        assert harness.fact(Died).output == "no newline: cut"
        until("it on the screen", lambda: "no newline: cut" in harness.log.read_text())


def test_output_with_escapes_fits_into_a_packet(tmp_path: Path) -> None:
    """16 KiB of NUL are 96 KiB of JSON; a large output_limit must not break the control socket."""
    with SupervisorHarness(tmp_path, APP, output_limit=1 << 20) as harness:
        harness.worker().order(1, "crash", text="\x01" * 300_000)
        died = harness.fact(Died)
        assert died.output is not None
        assert set(died.output) == {"\x01"}


def test_however_many_workers_print_more_than_the_screen_takes_the_memory_has_one_bound() -> None:
    """The screen accepts a little each time, so it is not stuck: workers share the buffer, and the rest is counted."""
    line = b"y" * 99 + b"\n"
    reader, writer = os.pipe()
    screen = OutputScreen(writer)
    captures = [OutputCapture(f"test-{n}", 16 << 10) for n in range(6)]
    try:
        os.write(captures[0].output, line * 600_000)
        assert screen.relay(captures, False), "60 MB of one alone wait"
        assert screen.take_dropped_count() == 0
        for capture in captures[1:]:
            os.write(capture.output, line * 300_000)
        printed = sum(capture.unrelayed_bytes for capture in captures)
        shown = len(os.read(reader, 1 << 16))
        assert screen.relay(captures, False)
        held = sum(os.stat(capture.output).st_blocks * 512 for capture in captures)
        assert held <= MAX_WAITING_BYTES, f"{held >> 20} MB"
        left = sum(capture.unrelayed_bytes for capture in captures)
        assert shown >= printed - left - screen.take_dropped_count() > 0, "what is not shown is counted"
    finally:
        for fd in (reader, writer, *screen.descriptors):
            os.close(fd)
        for capture in captures:
            capture.close()
