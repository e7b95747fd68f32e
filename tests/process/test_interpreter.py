"""How an interpreter of ours begins and ends: quickly, and with everything done that was to be done."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pgworkers.linux import process_exit


def run(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    text = f"from pgworkers.linux import process_exit\n{textwrap.dedent(code)}"
    return subprocess.run(
        [sys.executable, *options, "-c", text], check=False, capture_output=True, text=True, timeout=60
    )


def test_what_was_registered_is_done_and_what_was_printed_is_there_and_nothing_is_taken_apart() -> None:
    ended = run(
        """
        import atexit, sys

        class Last:
            def __del__(self): print("taken apart")

        last = Last()
        atexit.register(print, "registered")
        sys.stdout.write("unfinished ")
        sys.stderr.write("said")
        process_exit.exit_process(3)
        """
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "unfinished registered\n", "said")


def test_the_twin_an_ordinary_exit_takes_everything_apart() -> None:
    ended = run(
        """
        import sys

        class Last:
            def __del__(self): print("taken apart")

        last = Last()
        sys.exit(3)
        """
    )
    assert (ended.returncode, ended.stdout) == (3, "taken apart\n")


def test_what_guests_have_open_is_closed(tmp_path: Path) -> None:
    code = f"kept = open({str(tmp_path / 'kept')!r}, 'w')\nkept.write('said')\nprocess_exit.exit_process(3)"
    assert run(f"process_exit.note_foreign_code()\n{code}").returncode == 3
    assert (tmp_path / "kept").read_text() == "said"
    assert run(code).returncode == 3
    assert (tmp_path / "kept").read_text() == "", "the twin: nobody else's code was there"


@pytest.mark.parametrize(
    "watched", ["", "import sys; sys.settrace(lambda *_: None)", "process_exit.note_foreign_code()"]
)
def test_a_thread_that_never_ends_is_not_waited_for_nor_is_what_may_wait_for_it(watched: str) -> None:
    ended = run(
        f"""
        import atexit, threading
        {watched}

        thread = threading.Thread(target=threading.Event().wait)
        thread.start()
        atexit.register(thread.join)
        print("done")
        process_exit.exit_process(0)
        """
    )
    assert (ended.returncode, ended.stdout) == (0, "done\n")


def test_who_registers_something_that_fails_is_told_and_the_rest_is_done() -> None:
    ended = run(
        """
        import atexit

        atexit.register(print, "the other")
        atexit.register(lambda: 1 / 0)
        process_exit.exit_process(0)
        """
    )
    assert (ended.returncode, ended.stdout) == (0, "the other\n")
    assert "ZeroDivisionError" in ended.stderr


def test_an_output_that_is_gone_or_closed_changes_no_exit_code() -> None:
    for spoil in ("import os; os.close(1); os.close(2)", "import sys; sys.stdout.close(); sys.stderr = None"):
        ended = run(f"print('lost', end='')\n{spoil}\nprocess_exit.exit_process(4)")
        assert ended.returncode == 4, spoil


def test_a_profile_is_written() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "cProfile", "-m", "pgworkers", "version"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert told.returncode == 0
    assert "function calls" in told.stdout


@pytest.mark.parametrize("said", [None, (5, 5, 5)])
def test_an_app_finds_what_it_is_used_to_unless_it_said_otherwise(said: tuple[int, int, int] | None) -> None:
    usual = gc.get_threshold()
    try:
        process_exit.raise_gc_threshold()
        assert gc.get_threshold()[0] == process_exit.RAISED_GC_THRESHOLD
        if said:
            gc.set_threshold(*said)
        process_exit.restore_gc_threshold()
        assert gc.get_threshold() == (said or usual)
    finally:
        gc.set_threshold(*usual)
