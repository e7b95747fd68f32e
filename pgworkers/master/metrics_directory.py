"""The directory of this host in which metrics of prometheus_client live (observe/handler_prometheus.py).

It is private to the account of the host and is removed when the host leaves. What a killed host left behind is removed by
the next host of the machine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from pathlib import Path

from pgworkers.master import orphan_processes

_PREFIX = "pgworkers-metrics-"
_OWNER_FILE = "owner"


def create_metrics_directory(host_id: str) -> str:
    """Make the directory. Empty: no directory for temporary files can be written, so handlers keep their own metrics."""
    try:
        _remove_abandoned()
        directory = tempfile.mkdtemp(prefix=_PREFIX)
        Path(directory, _OWNER_FILE).write_text(orphan_processes.origin_value(host_id))
    except OSError as error:
        logging.getLogger("pgworkers").warning(
            "no directory for metrics of handlers (%s): metrics of prometheus_client are not shown on /metrics; "
            "set TMPDIR to a directory that can be written",
            error.strerror or error,
        )
        return ""
    return directory


def remove_metrics_directory(directory: str) -> None:
    if directory:
        shutil.rmtree(directory, ignore_errors=True)


def has_metric_files(directory: str) -> bool:
    """True if a process has used prometheus_client."""
    try:
        with os.scandir(directory) as entries:
            return any(entry.name.endswith(".db") for entry in entries)
    except OSError:
        return False


def _remove_abandoned() -> None:
    """Remove directories of this account whose master on this machine is gone."""
    with os.scandir(tempfile.gettempdir()) as entries:
        candidates = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
    for path in candidates:
        with contextlib.suppress(OSError):
            if os.lstat(path).st_uid != os.geteuid() or os.path.islink(path):
                continue
            owner = Path(path, _OWNER_FILE)
            if owner.stat().st_size > 1000:
                continue
            origin = orphan_processes.ProcessOrigin.parse(owner.read_text(errors="replace"))
            if origin is not None and origin.is_of_this_kernel() and origin.is_master_gone():
                shutil.rmtree(path, ignore_errors=True)
