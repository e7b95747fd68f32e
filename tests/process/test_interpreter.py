"""How a command ends: with everything done that was registered, and without waiting for threads."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest


def run(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    text = f"from pgworkers.linux import process_exit\n{textwrap.dedent(code)}"
    return subprocess.run(
        [sys.executable, *options, "-c", text], check=False, capture_output=True, text=True, timeout=60
    )


def test_what_was_registered_is_done_and_what_was_printed_is_there() -> None:
    ended = run(
        """
        import atexit, sys

        atexit.register(print, "registered")
        sys.stdout.write("unfinished ")
        sys.stderr.write("said")
        process_exit.exit_process(3)
        """
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "unfinished registered\n", "said")


def test_open_files_are_written(tmp_path: Path) -> None:
    code = f"kept = open({str(tmp_path / 'kept')!r}, 'w')\nkept.write('said')\nprocess_exit.exit_process(3)"
    assert run(code).returncode == 3
    assert (tmp_path / "kept").read_text() == "said"


@pytest.mark.parametrize("watched", ["", "import sys; sys.settrace(lambda *_: None)"])
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


def test_a_failing_exit_handler_is_reported_and_the_others_run() -> None:
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
