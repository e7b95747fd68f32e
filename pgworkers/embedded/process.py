"""The server as a process: find it, start it, stop it.

`postmaster.pid` is only a hint: it outlives a crash, and its process id may belong to another program now. So a process
counts as the server only if it is a `postgres` whose working directory is this data directory.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from pgworkers.embedded import account as accounts
from pgworkers.embedded.account import Account, EmbeddedServerError
from pgworkers.embedded.binaries import Binaries
from pgworkers.embedded.location import SOCKET_PORT, DataLocation

READY_POLL_SECONDS = 0.02
START_TIMEOUT_SECONDS = (
    300.0  # recovery after a crash takes as long as it takes; the process itself says when it fails
)
STOP_TIMEOUT_SECONDS = 60.0
ORPHAN_BACKENDS_TIMEOUT_SECONDS = 30.0
_MAX_LOG_BYTES = 8 << 20
# In the background of a shell that ends at once, the server is not our child and has no pipe of ours; only
# its process id comes back. Arguments are passed as such, so no path needs quoting.
_DETACH_SCRIPT = 'log=$1; shift; exec 2>>"$log"; "$@" </dev/null >&2 & echo $!'


@dataclass(frozen=True, slots=True)
class PostmasterFile:
    """What postmaster.pid says."""

    pid: int
    started: int
    socket_dir: Path
    status: str


def read_postmaster_file(data: Path) -> PostmasterFile | None:
    """The contents of postmaster.pid, or None when there is none or it is still being written."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
        return PostmasterFile(int(lines[0]), int(lines[2]), Path(lines[4]), lines[7].strip())
    except (FileNotFoundError, ValueError, IndexError):
        return None


def recorded_pid(data: Path) -> int | None:
    """The process id in postmaster.pid, which is there before the rest of the file is."""
    try:
        return int((data / "postmaster.pid").read_text().splitlines()[0])
    except (FileNotFoundError, ValueError, IndexError):
        return None


def running_pid(data: Path) -> int | None:
    """The process id of the server that works in this data directory, if there is one."""
    pid = recorded_pid(data)
    return pid if pid is not None and is_server(pid, data) else None


def is_server(pid: int, data: Path) -> bool:
    """Whether the process is the postmaster of this data; a zombie, a backend or a stranger is not."""
    try:
        argv = psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
    if not argv or os.path.basename(argv[0]) != "postgres":
        return False
    try:  # compared as a file: psutil's `cwd()` is a text, which bind mounts and symlinks spoil
        return os.path.samestat(os.stat(f"/proc/{pid}/cwd"), data.stat())
    except PermissionError:  # without the right to trace other accounts, even root may not look
        return str(data) in argv
    except OSError:
        return False


def pid_namespace() -> str:
    """Names the set of processes that can be seen from here; another container has another one."""
    return os.readlink("/proc/self/ns/pid")


def start(
    place: DataLocation, binaries: Binaries, account: Account, socket_dir: Path, options: Mapping[str, str]
) -> None:
    """Start the server and wait until it accepts connections; if it does not, its log says why."""
    give_up = time.monotonic() + ORPHAN_BACKENDS_TIMEOUT_SECONDS
    while True:
        _remove_stale_pid_file(place.data_directory)
        _remove_stale_socket(socket_dir)
        position = _rotate_log(place.log_file)
        pid = _spawn(place, binaries, account, socket_dir, options)
        if _wait_ready(place.data_directory, pid):
            return
        log_text = _log_since(place.log_file, position)
        # Backends of a server that was killed end by themselves; until then they keep the new one out.
        if "shared memory block" in log_text and time.monotonic() < give_up:
            time.sleep(10 * READY_POLL_SECONDS)
            continue
        raise EmbeddedServerError(
            f"the embedded Postgres did not start; its log {place.log_file} says:\n{log_text.strip() or '(nothing)'}"
        )


def wait_until_ready(data: Path, pid: int) -> bool:
    """Wait for a server that another process started; False if it ended instead."""
    return _wait_ready(data, pid)


def stop(data: Path, *, is_fast: bool = True) -> bool:
    """End the server of this data directory and wait until it is gone; False if there was none."""
    pid = running_pid(data)
    if pid is None:
        return False
    with _pidfd(pid) as gone:
        if gone is None or not is_server(pid, data):  # checked again: the descriptor pins the process
            return False
        try:
            signal.pidfd_send_signal(gone, signal.SIGINT if is_fast else signal.SIGQUIT)
            if not _has_ended(gone, STOP_TIMEOUT_SECONDS):
                signal.pidfd_send_signal(gone, signal.SIGQUIT)
        except PermissionError:
            raise EmbeddedServerError(
                f"the embedded Postgres (process {pid}) runs as another user; it was not stopped. "
                "Stop it as that user or as root"
            ) from None
        except ProcessLookupError:
            return True
        if not _has_ended(gone, STOP_TIMEOUT_SECONDS):
            raise EmbeddedServerError(
                f"the embedded Postgres (process {pid}) did not end within {STOP_TIMEOUT_SECONDS:.0f} s; "
                f"look at {data / 'server.log'}"
            )
    return True


def _spawn(
    place: DataLocation, binaries: Binaries, account: Account, socket_dir: Path, options: Mapping[str, str]
) -> int:
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": str(socket_dir),
        "unix_socket_permissions": "0700",
        "port": str(SOCKET_PORT),
        "max_connections": "200",
        **options,
    }
    argv: list[str | Path] = [
        "/bin/sh",
        "-c",
        _DETACH_SCRIPT,
        "sh",
        place.log_file,
        binaries.program("postgres"),
        "-D",
        place.data_directory,
    ]
    for name, value in settings.items():
        argv += ["-c", f"{name}={value}"]
    answer = accounts.run_as(account, argv)
    if answer is None or not answer.strip().isdigit():
        raise EmbeddedServerError(
            f"{binaries.program('postgres')} could not be run as {account.name}; nothing was started"
        )
    return int(answer)


def _wait_ready(data: Path, pid: int) -> bool:
    give_up = time.monotonic() + START_TIMEOUT_SECONDS
    with _pidfd(pid) as gone:
        while gone is not None and not _has_ended(gone, READY_POLL_SECONDS):
            found = read_postmaster_file(data)
            if found is not None and found.pid == pid and found.status == "ready":
                return True
            if time.monotonic() > give_up:
                raise EmbeddedServerError(
                    f"the embedded Postgres (process {pid}) is not ready after {START_TIMEOUT_SECONDS:.0f} s; "
                    f"look at {data / 'server.log'}"
                )
    return False


@contextmanager
def _pidfd(pid: int) -> Iterator[int | None]:
    """A descriptor that becomes readable when the process ends; None if it already has."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _has_ended(descriptor: int, timeout: float) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(timeout * 1000))


def _remove_stale_pid_file(data: Path) -> None:
    """Remove a postmaster.pid whose number now belongs to a stranger: Postgres would take it for a server.

    A number without a process is left to Postgres, which checks more than we do.
    """
    pid = recorded_pid(data)
    if pid is not None and psutil.pid_exists(pid) and not is_server(pid, data):
        (data / "postmaster.pid").unlink(missing_ok=True)


def _remove_stale_socket(socket_dir: Path) -> None:
    """Remove the socket of a server that was killed: its lock file would be believed while the pid is a zombie.

    The directory serves this data directory alone, and no server of it runs.
    """
    for name in (f".s.PGSQL.{SOCKET_PORT}", f".s.PGSQL.{SOCKET_PORT}.lock"):
        (socket_dir / name).unlink(missing_ok=True)


def _rotate_log(log: Path) -> int:
    """Keep the log from growing for ever; the position from which the next start writes."""
    try:
        written = log.stat().st_size
    except FileNotFoundError:
        return 0
    if written <= _MAX_LOG_BYTES:
        return written
    log.replace(log.with_name("server.log.1"))
    return 0


def _log_since(log: Path, position: int) -> str:
    try:
        with log.open("rb") as file:
            file.seek(position)
            return file.read()[-3000:].decode(errors="replace")
    except FileNotFoundError:
        return ""
