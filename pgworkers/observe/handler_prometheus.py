"""Metrics of prometheus_client in handlers: the files that its values live in.

Workers are replaced all the time, so a counter in the memory of a worker would vanish with it. prometheus_client has a
multiprocess mode, in which each process keeps its values in files that are mapped into its memory. A kill loses nothing,
and a reader adds the files up. By default the files are named by pid. Here they are named by queue and slot
(`MultiProcessValue(process_identifier=...)`): a slot has at most one living process, and its next process goes on with
the files, so their number does not grow.

A supervisor has a lane as well, because after a reload the old and the new workers of a slot run side by side. A process
that a handler forks has files of its own with its pid, and so has every process that a handler starts. The merger
(`prometheus_merger`) adds these to one file when their process is gone.

prometheus_client chooses the kind of its values when a metric is made, so `install` runs before the app is imported.
"""

from __future__ import annotations

import hashlib
import os
from urllib.parse import quote, unquote

import msgspec

#: prometheus_client reads the directory from this variable.
DIRECTORY_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
#: Longer names of queues are replaced by a hash: the name of a file has at most 255 bytes.
MAX_FILE_NAME_CHARACTERS = 120
#: In the name of a file, before the pid of a process that is not a worker.
PID_MARK = ".p"
#: Files of gauges whose values mean nothing once their process is gone.
_LIFETIME_GAUGES = ("all", "liveall", "livesum", "livemin", "livemax", "livemostrecent")


class MergedPage(msgspec.Struct, array_like=True):
    """What the merger answers to a request."""

    text: bytes
    capped: int  # values and metrics that the limits left out or added up
    broken: list[str]  # files that could not be read


class ProcessIdentity:
    """Names the files of this process: by queue, lane and slot, in other processes with the pid as well."""

    def __init__(self, queue: str, lane: int) -> None:
        self._prefix = f"{_file_name_part(queue)}.{lane}"
        self._pid = os.getpid()
        self._name = f"{self._prefix}.supervisor"

    def enter_slot(self, slot: int) -> None:
        """Call it in a worker after its fork."""
        self._pid = os.getpid()
        self._name = self.slot_name(slot)

    def slot_name(self, slot: int) -> str:
        return f"{self._prefix}.{slot}"

    def __call__(self) -> str:
        pid = os.getpid()
        return self._name if pid == self._pid else f"{self._name}{PID_MARK}{pid}"


_identity: ProcessIdentity | None = None
_directory = ""


def install(directory: str, queue: str, lane: int, *, is_used_by_app: bool) -> None:
    """Make metrics of prometheus_client live in files of this directory. Called by a supervisor before its app is imported.

    `is_used_by_app`: the app imports prometheus_client. Where only a handler imports it, the variable is enough: its files
    are then named by pid, and are added up when the worker is gone.
    """
    global _identity, _directory
    if not directory:
        return
    _directory = os.environ[DIRECTORY_VARIABLE] = directory
    _identity = ProcessIdentity(queue, lane)
    if is_used_by_app:
        from prometheus_client import values

        values.ValueClass = values.MultiProcessValue(process_identifier=_identity)


def enter_worker(slot: int) -> None:
    """Name the files of this worker by its slot. Called in each worker before any code of the app."""
    if _identity is not None:
        _identity.enter_slot(slot)


def forget_gauges(slot: int) -> None:
    """Remove the gauges of a dead worker that describe a living process. Called by its supervisor."""
    if _identity is None:
        return
    for mode in _LIFETIME_GAUGES:
        try:
            os.unlink(os.path.join(_directory, f"gauge_{mode}_{_identity.slot_name(slot)}.db"))
        except OSError:
            continue  # it had no such gauge


def worker_label(file_identity: str) -> str:
    """What a sample of a gauge shows about its process: `reports/0`. Empty: nothing, it is not a worker's."""
    if PID_MARK in file_identity:
        return ""
    queue, _, slot = file_identity.rpartition(".")
    queue = queue.rpartition(".")[0]
    return f"{unquote(queue)}/{slot}" if queue and slot.isdecimal() else ""


def pid_of(file_identity: str) -> int | None:
    """The process of a file that is named by pid; None: the file of a slot or of a supervisor."""
    digits = file_identity.rpartition(PID_MARK)[2]
    return int(digits) if digits.isdecimal() and len(digits) < 20 else None


def _file_name_part(queue: str) -> str:
    """The name of a queue without characters that have a meaning in the names of these files."""
    text = quote(queue, safe="").replace("_", "%5F").replace(".", "%2E")
    if len(text) <= MAX_FILE_NAME_CHARACTERS:
        return text
    return f"{text[:40].rpartition('%')[0] or text[:30]}-{hashlib.sha256(queue.encode()).hexdigest()[:16]}"
