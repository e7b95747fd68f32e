"""What `top` shows: hosts, their queues, their workers, as a tree or as a list; filtered and sorted. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pgworkers.events import QueueDepth
from pgworkers.job.queries import HostOverview, WorkerOverview

#: The orders one can choose: how a worker ranks; the largest first where `largest` says so.
SORT_COLUMNS = ("worker", "cpu", "rss", "time", "left", "progress", "task", "job")
DESCENDING_COLUMNS = frozenset({"cpu", "rss", "time", "progress"})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The result of one refresh. `is_truncated`: there are more workers than were read."""

    hosts: Sequence[HostOverview] = ()
    workers: Sequence[WorkerOverview] = ()
    queues: Sequence[QueueDepth] = ()
    is_truncated: bool = False


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """The options of the view."""

    sort: str = "worker"
    is_reversed: bool = False  # the other way round
    filter: str = ""
    queue: str | None = None
    is_tree: bool = True
    should_show_idle: bool = True  # show idle workers, too


@dataclass(frozen=True, slots=True)
class TreeRow:
    """One line: a host, a queue on a host, or a worker. `key` is the same in the next snapshot."""

    key: tuple[str, ...]
    host: HostOverview
    queue: str | None = None
    depth: QueueDepth | None = None
    worker: WorkerOverview | None = None
    busy: int = 0
    total: int = 0

    @property
    def kind(self) -> str:
        return "worker" if self.worker is not None else "queue" if self.queue is not None else "host"


@dataclass(slots=True)
class _Group:
    queues: dict[str, list[WorkerOverview]] = field(default_factory=dict)


def worker_state(worker: WorkerOverview, host: HostOverview) -> str:
    """One word for what is most remarkable about a worker."""
    if worker.stop_reason:
        return "stopping"
    if worker.state == "suspended":
        return "suspended"
    if worker.is_stalled:
        return "stalled"
    if worker.job is not None and worker.version and worker.version != host.version:
        return "old code"
    return worker.state or ""


def progress_fraction(progress: Any) -> float | None:
    """Progress of a job from 0 to 1, if it reported one that has a ratio."""
    if not isinstance(progress, dict):
        return None
    try:
        done, total = float(progress["done"]), float(progress["total"])
        return min(max(done / total, 0.0), 1.0) if total > 0 else None
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def tree_rows(picture: Snapshot, options: ViewOptions) -> list[TreeRow]:
    """The lines of the tree, or of the list. In the tree a lost host is one line, below the living hosts."""
    depths = {depth.queue: depth for depth in picture.queues}
    hosts = {host.id: host for host in picture.hosts}
    groups = {host.id: _Group() for host in picture.hosts}
    for host in picture.hosts:
        for queue in host.queues if not host.is_lost else ():
            groups[host.id].queues[queue] = []
    workers = _workers_of_living_hosts(picture)
    for worker in workers:
        groups[worker.host].queues.setdefault(worker.queue, []).append(worker)
    wanted = [worker for worker in workers if _is_shown(worker, hosts[worker.host], options)]
    if not options.is_tree:
        ordered = sorted(wanted, key=_sort_key(options), reverse=_is_descending(options))
        return [_worker_row(hosts[worker.host], worker) for worker in ordered]
    found: list[TreeRow] = []
    kept = {id(worker) for worker in wanted}
    for host in sorted(picture.hosts, key=lambda one: one.is_lost):
        below: list[TreeRow] = []
        group = groups[host.id].queues
        for queue in sorted(group):
            if options.queue is not None and queue != options.queue:
                continue
            here = sorted(
                (w for w in group[queue] if id(w) in kept),
                key=_sort_key(options),
                reverse=_is_descending(options),
            )
            named = not options.filter or _matches(options.filter, queue, host.name)
            if here or named:
                below.append(_queue_row(host, queue, depths.get(queue), group[queue]))
                below += [_worker_row(host, worker) for worker in here]
        if below or not options.filter or _matches(options.filter, host.name, "lost" * host.is_lost):
            every = [worker for workers in group.values() for worker in workers]
            found.append(TreeRow((host.id,), host, busy=_count_busy(every), total=len(every)))
            found += below
    return found


def _worker_row(host: HostOverview, worker: WorkerOverview) -> TreeRow:
    return TreeRow((host.id, worker.queue, str(worker.slot)), host, worker.queue, worker=worker)


def _queue_row(
    host: HostOverview, queue: str, depth: QueueDepth | None, workers: Sequence[WorkerOverview]
) -> TreeRow:
    return TreeRow((host.id, queue), host, queue, depth, busy=_count_busy(workers), total=len(workers))


def _workers_of_living_hosts(picture: Snapshot) -> list[WorkerOverview]:
    """The workers of a lost host are not shown: their jobs belong to other hosts now, or wait."""
    lost = {host.id for host in picture.hosts if host.is_lost}
    return [worker for worker in picture.workers if worker.host not in lost]


def _count_busy(workers: Sequence[WorkerOverview]) -> int:
    return sum(worker.job is not None for worker in workers)


def _is_shown(worker: WorkerOverview, host: HostOverview, options: ViewOptions) -> bool:
    if options.queue is not None and worker.queue != options.queue:
        return False
    if not options.should_show_idle and worker.job is None:
        return False
    return not options.filter or _matches(
        options.filter,
        host.name,
        f"{worker.queue}/{worker.slot}",
        worker.task or "",
        f"#{worker.job}" if worker.job is not None else "",
        str(worker.pid),
        worker_state(worker, host),
    )


def _matches(text: str, *words: str) -> bool:
    return any(text.lower() in word.lower() for word in words)


def _is_descending(options: ViewOptions) -> bool:
    return (options.sort in DESCENDING_COLUMNS) != options.is_reversed


def _sort_key(options: ViewOptions) -> Callable[[WorkerOverview], tuple[Any, ...]]:
    """Workers that have no such figure come last, whichever way round."""
    down = _is_descending(options)

    def figure(value: float | None) -> tuple[bool, float]:
        return (value is not None) == down, value if value is not None else 0.0

    def rank(worker: WorkerOverview) -> tuple[Any, ...]:
        slot = -worker.slot if down else worker.slot
        match options.sort:
            case "cpu":
                return *figure(worker.cpu), slot
            case "rss":
                return *figure(worker.rss), slot
            case "time":
                return *figure(worker.running), slot
            case "left":
                return *figure(worker.left), slot
            case "progress":
                return *figure(progress_fraction(worker.progress)), slot
            case "job":
                return *figure(worker.job), slot
            case "task":
                return (worker.task is not None) == down, worker.task or "", slot
            case _:
                return worker.host, worker.queue, worker.slot

    return rank


def totals(picture: Snapshot) -> dict[str, int]:
    """The figures of the first line."""
    hosts = {host.id: host for host in picture.hosts}
    workers = _workers_of_living_hosts(picture)
    states = [worker_state(worker, hosts[worker.host]) for worker in workers]
    lost = sum(host.is_lost for host in picture.hosts)
    return {
        "hosts": len(picture.hosts) - lost,
        "lost": lost,
        "workers": len(workers),
        "busy": _count_busy(workers),
        "stalled": states.count("stalled"),
        "suspended": states.count("suspended"),
        "ready": sum(depth.ready for depth in picture.queues),
    }


def as_document(picture: Snapshot, options: ViewOptions) -> dict[str, Any]:
    """The same tree for scripts."""
    found: dict[str, Any] = {"totals": totals(picture), "cut": picture.is_truncated, "hosts": []}
    found["queues"] = [asdict(depth) for depth in picture.queues if options.queue in (None, depth.queue)]
    for row in tree_rows(picture, ViewOptions(**{**asdict(options), "is_tree": True})):
        if row.worker is not None:
            document = {**asdict(row.worker), "shown": worker_state(row.worker, row.host)}
            found["hosts"][-1]["queues"][-1]["workers"].append(document)
        elif row.queue is not None:
            found["hosts"][-1]["queues"].append({"queue": row.queue, "workers": []})
        else:
            found["hosts"].append({**asdict(row.host), "queues": []})
    return found
