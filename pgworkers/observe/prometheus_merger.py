"""The metrics of prometheus_client in handlers as text for /metrics: a child process of the master.

`python -m pgworkers.observe.prometheus_merger --fd N --parent-pid PID --directory DIR` answers each request (`text` or
`openmetrics`) with a page. The master starts it at the first scrape after a handler has used prometheus_client. It reads
files that handlers write and can break, which the master's loop must never wait for.

What handlers report is limited as for `ctx.metrics`: labels, their length, and their combinations. Values beyond the
limits are added up under `other`, and metrics beyond them are left out. Both are counted.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
from collections.abc import Iterable
from typing import Any

import msgspec
from prometheus_client import exposition
from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.openmetrics import exposition as openmetrics_exposition
from prometheus_client.samples import Sample

from pgworkers.ipc.messages import MessageSocket
from pgworkers.linux import prctl, titles
from pgworkers.observe.handler_metrics import (
    MAX_LABEL_CHARACTERS,
    MAX_LABELS_PER_METRIC,
    MAX_SERIES_PER_METRIC,
)
from pgworkers.observe.handler_prometheus import MergedPage, pid_of, worker_label
from pgworkers.observe.metrics_catalog import METRIC_PREFIX, METRICS
from pgworkers.observe.metrics_series import OTHER_LABEL_VALUE

MAX_FAMILIES = 200  #: metrics of the whole app
MAX_SAMPLES = 20_000  #: lines of one page
MAX_FILE_BYTES = 16 << 20  #: a larger file is not read
MAX_FILES = 10_000
HEADER_BYTES = 8
#: The file that values of processes which are gone are added to.
GONE_IDENTITY = "gone"
_RESERVED_NAMES = frozenset(metric.full_name.removesuffix("_total") for metric in METRICS.values())
#: Labels that a sample adds to those of its series.
_SAMPLE_LABELS = ("le", "quantile")


class _File(msgspec.Struct, frozen=True):
    """One file of a process: `counter_reports.0.1.db`, `gauge_all_reports.0.1.db`."""

    path: str
    kind: str  # counter, histogram, summary, gauge
    mode: str  # of a gauge
    identity: str


def list_files(directory: str) -> list[_File]:
    """The files in the directory that are named as prometheus_client names them."""
    found = []
    for name in sorted(os.listdir(directory))[:MAX_FILES]:
        if not name.endswith(".db"):
            continue
        kind, *rest = name[:-3].split("_")
        mode = rest.pop(0) if kind == "gauge" and len(rest) > 1 else ""
        if len(rest) == 1 and (kind != "gauge" or mode):
            found.append(_File(os.path.join(directory, name), kind, mode, rest[0]))
    return found


class Merger:
    """Adds the files of all processes up. It remembers which series it has shown, so that none changes its name."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._shown: dict[str, set[tuple[tuple[str, str], ...]]] = {}  # by family

    def page(self, *, is_openmetrics: bool) -> MergedPage:
        """The text of all metrics, without the end mark of OpenMetrics."""
        broken: list[str] = []
        files = self._files(broken)
        self._add_up_gone(files, broken)
        paths = [file.path for file in files if os.path.exists(file.path)]
        capped = samples = 0
        texts: list[bytes] = []
        for family in self._families(paths, broken):
            limited, count = self._limit(family)
            capped += count
            if limited is None:
                continue
            samples += len(limited.samples)
            text = _text_of(limited, is_openmetrics=is_openmetrics) if samples <= MAX_SAMPLES else None
            if text is None:
                capped += 1
            else:
                texts.append(text)
        return MergedPage(text=b"".join(texts), capped=capped, broken=broken)

    def _files(self, broken: list[str]) -> list[_File]:
        """The files that have a plausible size."""
        files = []
        for file in list_files(self._directory):
            try:
                size = os.stat(file.path).st_size
            except FileNotFoundError:
                continue
            if size > MAX_FILE_BYTES:
                _set_aside(file.path, broken)
            elif (
                size >= HEADER_BYTES
            ):  # else its process was killed between two steps, and the next one goes on
                files.append(file)
        return files

    def _families(self, paths: list[str], broken: list[str]) -> list[Metric]:
        try:
            found = MultiProcessCollector.merge(paths)
        except Exception:  # one of them is not what prometheus_client writes
            found = MultiProcessCollector.merge([path for path in paths if _is_readable(path, broken)])
        return sorted(found, key=lambda family: str(family.name))

    def _limit(self, family: Metric) -> tuple[Metric | None, int]:
        """The family within the limits, and how many values were left out or added up under `other`."""
        if family.name.startswith(METRIC_PREFIX) or family.name in _RESERVED_NAMES:
            return None, 1
        shown = self._shown.get(family.name)
        if shown is None:
            if len(self._shown) >= MAX_FAMILIES:
                return None, 1
            shown = self._shown[family.name] = set()
        capped = 0
        values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for sample in family.samples:
            labels = _with_worker({str(name): str(value) for name, value in sample.labels.items()})
            series = tuple(sorted((k, v) for k, v in labels.items() if k not in _SAMPLE_LABELS))
            if len(series) > MAX_LABELS_PER_METRIC:
                capped += 1
                continue
            short = tuple((k, v[:MAX_LABEL_CHARACTERS]) for k, v in series)
            if short not in shown:
                if len(shown) < MAX_SERIES_PER_METRIC:
                    shown.add(short)
                else:
                    capped += 1
                    short = tuple((k, OTHER_LABEL_VALUE) for k, _ in short)
            own = tuple((k, labels[k]) for k in _SAMPLE_LABELS if k in labels)
            key = (sample.name, (*short, *own))
            if family.type == "gauge":
                values[key] = sample.value
            else:
                values[key] = values.get(key, 0.0) + sample.value
        if not values:
            return None, capped
        limited = Metric(family.name, family.documentation, family.type)
        limited.samples = [Sample(name, dict(labels), value) for (name, labels), value in values.items()]
        return limited, capped

    def _add_up_gone(self, files: list[_File], broken: list[str]) -> None:
        """Add the files of processes that are gone to one file, so that the number of files does not grow."""
        for file in files:
            pid = pid_of(file.identity)
            if pid is None or os.path.exists(f"/proc/{pid}"):
                continue
            if file.kind != "gauge" or file.mode in ("sum", "min", "max", "mostrecent"):
                if not _is_readable(file.path, broken):
                    continue
                _add_to_gone(file, self._directory)
            os.unlink(file.path)


def _add_to_gone(file: _File, directory: str) -> None:
    mode = f"{file.kind}_{file.mode}" if file.mode else file.kind
    total = MmapedDict(os.path.join(directory, f"{mode}_{GONE_IDENTITY}.db"))
    try:
        known = {key: (value, stamp) for key, value, stamp in total.read_all_values()}
        for key, value, stamp, _ in MmapedDict.read_all_values_from_file(file.path):
            before, stamp_before = known.get(key, (None, 0.0))
            if before is None:
                total.write_value(key, value, stamp)
            elif file.mode in ("", "sum"):
                total.write_value(key, before + value, stamp)
            elif file.mode == "min":
                total.write_value(key, min(before, value), stamp)
            elif file.mode == "max":
                total.write_value(key, max(before, value), stamp)
            elif stamp >= stamp_before:
                total.write_value(key, value, stamp)
    finally:
        total.close()


def _with_worker(labels: dict[str, str]) -> dict[str, str]:
    """prometheus_client labels gauges with `pid`, which is the name of the file here: name the worker instead."""
    if "pid" not in labels:
        return labels
    worker = worker_label(labels["pid"])
    found = {key: value for key, value in labels.items() if key != "pid"}
    return {"worker": worker, **found} if worker else found


def _is_readable(path: str, broken: list[str]) -> bool:
    """False: the file is broken, or gone. A broken one is renamed, so that the next process of its slot begins another."""
    try:
        MultiProcessCollector.merge([path])
    except FileNotFoundError:
        return False
    except Exception:
        _set_aside(path, broken)
        return False
    return True


def _set_aside(path: str, broken: list[str]) -> None:
    broken.append(os.path.basename(path))
    try:
        os.replace(path, f"{path}.broken")
    except OSError:
        pass


def _text_of(family: Metric, *, is_openmetrics: bool) -> bytes | None:
    """None: it has no text, because a handler wrote something else into its file."""
    write = openmetrics_exposition.generate_latest if is_openmetrics else exposition.generate_latest
    try:
        return write(_Families([family])).removesuffix(b"# EOF\n")
    except Exception:
        return None


class _Families:
    """What prometheus_client writes as text: anything with `collect`."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def serve(connection: MessageSocket, directory: str) -> None:
    """Answer requests until the master closes the socket."""
    merger = Merger(directory)
    while (request := connection.receive()) is not None:
        try:
            page = merger.page(is_openmetrics=request == b"openmetrics")
        except FileNotFoundError:
            page = MergedPage(
                text=b"", capped=0, broken=[]
            )  # the host has left, or a process took its files away
        connection.send(msgspec.msgpack.encode(page))


def main(arguments: Any = None) -> None:
    parser = argparse.ArgumentParser(prog="pgworkers.observe.prometheus_merger")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--title-padding", help="ignored: makes the command line long enough for titles")
    given = parser.parse_args(arguments)
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_IGN)
    if not prctl.set_parent_death_signal(signal.SIGKILL, given.parent_pid):
        return
    os.set_inheritable(given.fd, False)
    titles.set_title("pgworkers: metrics")
    serve(MessageSocket(socket.socket(fileno=given.fd)), given.directory)


if __name__ == "__main__":
    main()
