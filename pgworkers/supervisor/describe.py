"""Describe an app: run a short-lived child that imports it, and read its answer within a time limit."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from pgworkers.errors import AppNotLoaded
from pgworkers.linux import environment, signals
from pgworkers.specs import AppSpec
from pgworkers.units import format_duration

MAX_ANSWER_BYTES = 64 << 20
APP_OUTPUT_TIMEOUT_SECONDS = 5.0  # for what the app printed, once it has answered; a busy machine may need it
SLOW_IMPORT_SECONDS = 2.0  # an import that takes longer is announced


class _DescribeError(msgspec.Struct):
    error: str
    traceback: str = ""


#: In the set of spared children while one is being started whose pid is not known yet. No process has this pid.
FORK_IN_PROGRESS = 0
#: Held while a child is started. A sweep that stopped the half-started child would wait for it for ever.
FORK_LOCK = threading.Lock()


def describe(
    config: str,
    timeout: float,
    spared: set[int] | None = None,
    on_slow: Callable[[str], None] | None = None,
    *,
    threads: int | None = 1,
    preload: Sequence[str] = (),
) -> AppSpec:
    """What the app declares.

    AppNotLoaded (with the app's own traceback) when it cannot be imported or described.

    A caller that reaps or kills strays among its children gives the set of those it spares. `on_slow` is called once if the
    import takes long. `threads` and `preload`: as a queue has them, to see what its supervisor would.
    """
    reader, writer = os.pipe()
    spared = set() if spared is None else spared
    with FORK_LOCK:
        spared.add(FORK_IN_PROGRESS)  # a sweep must wait until the pid of the child is in this set
        try:
            child = subprocess.Popen(
                [
                    *(
                        sys.executable,
                        "-P",
                        "-m",
                        "pgworkers.supervisor.describe_child",
                    ),  # -P: no module of this directory
                    *("--fd", str(writer), "--config", config, "--threads", str(threads or 0)),
                    *(f"--preload={name}" for name in preload),
                ],
                pass_fds=[writer],
                stdin=subprocess.DEVNULL,
                process_group=0,
                env=environment.for_children(os.environ),
            )
            spared.add(child.pid)
        except BaseException:
            os.close(reader)
            raise
        finally:
            spared.discard(FORK_IN_PROGRESS)
            os.close(writer)
    data = None
    try:
        data = _read_line(
            reader, child, time.monotonic() + timeout, _SlowNotice(f"importing {config} …", on_slow)
        )
    finally:
        os.close(reader)
        _end_child(child, 0.0 if data is None else APP_OUTPUT_TIMEOUT_SECONDS)
        spared.discard(child.pid)
    if data is None:
        raise AppNotLoaded(
            f"importing {config} took longer than {format_duration(timeout)}; nothing was started. "
            "Move slow work to @app.on_worker_start, or raise the setting `import_timeout`"
        )
    return _parse_answer(config, data, child.returncode)


class _SlowNotice:
    """Calls `on_slow` once, after a while."""

    def __init__(self, text: str, on_slow: Callable[[str], None] | None) -> None:
        self._text = text
        self._on_slow = on_slow
        self._due_at = time.monotonic() + SLOW_IMPORT_SECONDS

    def check(self) -> None:
        if self._on_slow is not None and time.monotonic() >= self._due_at:
            self._on_slow(self._text)
            self._on_slow = None


def _read_line(
    reader: int, child: subprocess.Popen[bytes], give_up: float, slow_notice: _SlowNotice
) -> bytes | None:
    """One line, or what there is when the child is gone; None: too late.

    Not until end of file: a process that the app started may hold the pipe for ever.
    """
    data = b""
    while not data.endswith(b"\n") and len(data) < MAX_ANSWER_BYTES:
        left = give_up - time.monotonic()
        if left <= 0:
            return None
        slow_notice.check()
        if select.select([reader], [], [], min(left, 0.05))[0]:
            part = os.read(reader, 1 << 16)
            if not part:
                break
            data += part
        elif _is_gone(child) and not select.select([reader], [], [], 0)[0]:
            break
    return data


def _end_child(child: subprocess.Popen[bytes], timeout: float) -> None:
    """It has answered, or never will.

    Its group goes first: while it is not reaped the number is its own.
    """
    give_up = time.monotonic() + timeout
    while not _is_gone(child) and time.monotonic() < give_up:
        time.sleep(0.002)
    signals.send_to_group(child.pid, signal.SIGKILL)
    child.kill()
    child.wait()


def _is_gone(child: subprocess.Popen[bytes]) -> bool:
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _parse_answer(config: str, data: bytes, status: int) -> AppSpec:
    if not data.endswith(b"\n"):
        how = (
            f"was ended by {signals.signal_name(-status)}"
            if status < 0
            else f"left with exit status {status}"
        )
        raise AppNotLoaded(f"{config}: the process that imported it {how} before it could say what is in it")
    if data.startswith(b'{"error"'):
        refusal = msgspec.json.decode(data, type=_DescribeError)
        raise AppNotLoaded(refusal.error, refusal.traceback)
    return msgspec.json.decode(data, type=AppSpec)


def threads_error(config: str, threads: Sequence[str]) -> str:
    """Why an app cannot be forked, and what to do."""
    return (
        f"{config} starts threads while it is imported ({', '.join(threads)}), and a process with threads must not fork. "
        "Start them in @app.on_worker_start, import libraries with thread pools of their own in the handler, or declare "
        "the queue with threads=1 (docs/how-to/stop-jobs.md)"
    )
