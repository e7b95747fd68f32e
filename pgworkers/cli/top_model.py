"""What `top` shows: hosts, their queues, their workers, as a tree or as a list; filtered and sorted. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pgworkers.job.watch import SeenHost, SeenWorker
from pgworkers.sightings import QueueDepth

#: The orders one can choose: how a worker ranks; the largest first where `largest` says so.
SORTS = ("worker", "cpu", "rss", "time", "left", "progress", "task", "job")
LARGEST = frozenset({"cpu", "rss", "time", "progress"})


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that one refresh brought. `cut`: there are more workers than were asked for."""

    hosts: Sequence[SeenHost] = ()
    workers: Sequence[SeenWorker] = ()
    queues: Sequence[QueueDepth] = ()
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Wish:
    """How the reader wants it."""

    sort: str = "worker"
    turned: bool = False  # the other way round
    filter: str = ""
    queue: str | None = None
    tree: bool = True
    idle: bool = True  # show idle workers, too


@dataclass(frozen=True, slots=True)
class Row:
    """One line: a host, a queue on a host, or a worker. `key` is the same in the next picture."""

    key: tuple[str, ...]
    host: SeenHost
    queue: str | None = None
    depth: QueueDepth | None = None
    worker: SeenWorker | None = None
    busy: int = 0
    total: int = 0

    @property
    def kind(self) -> str:
        return "worker" if self.worker is not None else "queue" if self.queue is not None else "host"


@dataclass(slots=True)
class _Group:
    queues: dict[str, list[SeenWorker]] = field(default_factory=dict)


def state(worker: SeenWorker, host: SeenHost) -> str:
    """One word for what is most remarkable about a worker."""
    if worker.wish:
        return "stopping"
    if worker.state == "suspended":
        return "suspended"
    if worker.stalled:
        return "stalled"
    if worker.job is not None and worker.version and worker.version != host.version:
        return "old code"
    return worker.state or ""


def share(progress: Any) -> float | None:
    """How far a job is, 0 to 1, if it said so in a way that has a share."""
    if not isinstance(progress, dict):
        return None
    try:
        done, total = float(progress["done"]), float(progress["total"])
        return min(max(done / total, 0.0), 1.0) if total > 0 else None
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def rows(picture: Picture, wish: Wish) -> list[Row]:
    """The lines of the tree, or of the list when that is wished. A lost host is one line of the tree, below the living."""
    depths = {depth.queue: depth for depth in picture.queues}
    hosts = {host.id: host for host in picture.hosts}
    groups = {host.id: _Group() for host in picture.hosts}
    for host in picture.hosts:
        for queue in host.queues if not host.lost else ():
            groups[host.id].queues[queue] = []
    workers = _living(picture)
    for worker in workers:
        groups[worker.host].queues.setdefault(worker.queue, []).append(worker)
    wanted = [worker for worker in workers if _wanted(worker, hosts[worker.host], wish)]
    if not wish.tree:
        ordered = sorted(wanted, key=_rank(wish), reverse=_down(wish))
        return [_row(hosts[worker.host], worker) for worker in ordered]
    found: list[Row] = []
    kept = {id(worker) for worker in wanted}
    for host in sorted(picture.hosts, key=lambda one: one.lost):
        below: list[Row] = []
        group = groups[host.id].queues
        for queue in sorted(group):
            if wish.queue is not None and queue != wish.queue:
                continue
            here = sorted((w for w in group[queue] if id(w) in kept), key=_rank(wish), reverse=_down(wish))
            named = not wish.filter or _says(wish.filter, queue, host.name)
            if here or named:
                below.append(_queue(host, queue, depths.get(queue), group[queue]))
                below += [_row(host, worker) for worker in here]
        if below or not wish.filter or _says(wish.filter, host.name, "lost" * host.lost):
            every = [worker for workers in group.values() for worker in workers]
            found.append(Row((host.id,), host, busy=_busy(every), total=len(every)))
            found += below
    return found


def _row(host: SeenHost, worker: SeenWorker) -> Row:
    return Row((host.id, worker.queue, str(worker.slot)), host, worker.queue, worker=worker)


def _queue(host: SeenHost, queue: str, depth: QueueDepth | None, workers: Sequence[SeenWorker]) -> Row:
    return Row((host.id, queue), host, queue, depth, busy=_busy(workers), total=len(workers))


def _living(picture: Picture) -> list[SeenWorker]:
    """What a lost host said of its workers is no longer so: their jobs are others', or wait."""
    lost = {host.id for host in picture.hosts if host.lost}
    return [worker for worker in picture.workers if worker.host not in lost]


def _busy(workers: Sequence[SeenWorker]) -> int:
    return sum(worker.job is not None for worker in workers)


def _wanted(worker: SeenWorker, host: SeenHost, wish: Wish) -> bool:
    if wish.queue is not None and worker.queue != wish.queue:
        return False
    if not wish.idle and worker.job is None:
        return False
    return not wish.filter or _says(
        wish.filter,
        host.name,
        f"{worker.queue}/{worker.slot}",
        worker.task or "",
        f"#{worker.job}" if worker.job is not None else "",
        str(worker.pid),
        state(worker, host),
    )


def _says(text: str, *words: str) -> bool:
    return any(text.lower() in word.lower() for word in words)


def _down(wish: Wish) -> bool:
    return (wish.sort in LARGEST) != wish.turned


def _rank(wish: Wish) -> Callable[[SeenWorker], tuple[Any, ...]]:
    """Workers that have no such figure come last, whichever way round."""
    down = _down(wish)

    def figure(value: float | None) -> tuple[bool, float]:
        return (value is not None) == down, value if value is not None else 0.0

    def rank(worker: SeenWorker) -> tuple[Any, ...]:
        slot = -worker.slot if down else worker.slot
        match wish.sort:
            case "cpu":
                return *figure(worker.cpu), slot
            case "rss":
                return *figure(worker.rss), slot
            case "time":
                return *figure(worker.running), slot
            case "left":
                return *figure(worker.left), slot
            case "progress":
                return *figure(share(worker.progress)), slot
            case "job":
                return *figure(worker.job), slot
            case "task":
                return (worker.task is not None) == down, worker.task or "", slot
            case _:
                return worker.host, worker.queue, worker.slot

    return rank


def totals(picture: Picture) -> dict[str, int]:
    """The figures of the first line."""
    hosts = {host.id: host for host in picture.hosts}
    workers = _living(picture)
    states = [state(worker, hosts[worker.host]) for worker in workers]
    lost = sum(host.lost for host in picture.hosts)
    return {
        "hosts": len(picture.hosts) - lost,
        "lost": lost,
        "workers": len(workers),
        "busy": _busy(workers),
        "stalled": states.count("stalled"),
        "suspended": states.count("suspended"),
        "ready": sum(depth.ready for depth in picture.queues),
    }


def document(picture: Picture, wish: Wish) -> dict[str, Any]:
    """The same tree for scripts."""
    found: dict[str, Any] = {"totals": totals(picture), "cut": picture.cut, "hosts": []}
    found["queues"] = [asdict(depth) for depth in picture.queues if wish.queue in (None, depth.queue)]
    for row in rows(picture, Wish(**{**asdict(wish), "tree": True})):
        if row.worker is not None:
            told = {**asdict(row.worker), "shown": state(row.worker, row.host)}
            found["hosts"][-1]["queues"][-1]["workers"].append(told)
        elif row.queue is not None:
            found["hosts"][-1]["queues"].append({"queue": row.queue, "workers": []})
        else:
            found["hosts"].append({**asdict(row.host), "queues": []})
    return found
