"""The rows of `top`: a host, a queue or a worker as one line under its headings, and all about it in another. Pure."""

from __future__ import annotations

from pgworkers.cli import wording
from pgworkers.cli.top_cells import Line, cell, clean, fit, short
from pgworkers.cli.top_model import Row, Wish, share, state
from pgworkers.clock import show_size

#: From this width on version and attempt are shown, too.
WIDE = 110
#: Jobs that are counted in a queue; beyond it stands a plus.
DEEPEST = 10_000
#: A state's style.
STATES = {
    "lost": "bold red",
    "stalled": "bold red",
    "stopping": "yellow",
    "suspended": "magenta",
    "old code": "yellow",
    "busy": "green",
    "idle": "dim",
}
#: heading, width, whether it is written to the right; the sort it stands for.
_COLUMNS = (
    ("pid", 7, True, ""),
    ("job", 8, True, "job"),
    ("task", 0, False, "task"),
    ("cpu%", 5, True, "cpu"),
    ("rss", 6, True, "rss"),
    ("done", 4, True, "progress"),
    ("time", 6, True, "time"),
    ("left", 6, True, "left"),
    ("state", 9, False, ""),
)


def _layout(width: int, tree: bool) -> tuple[int, int, bool]:
    """The width of the first column and of the task, and whether there is room for version and attempt."""
    wide = width >= WIDE
    first = (20 if wide else 13) if tree else (30 if wide else 16)
    fixed = sum(size for _, size, _, _ in _COLUMNS) + len(_COLUMNS) + (25 if wide else 0)
    return first, max(6, width - first - fixed), wide


def headings(wish: Wish, width: int) -> Line:
    """The names of the columns; the one they are sorted by stands out."""
    first, task, wide = _layout(width, wish.tree)
    line: Line = [(cell("worker", first, False), "reverse bold" if wish.sort == "worker" else "reverse")]
    for name, size, right, sort in _COLUMNS:
        style = "reverse bold" if sort and sort == wish.sort else "reverse"
        mark = ("^" if wish.turned else "v") if sort and sort == wish.sort else ""
        line.append((" " + cell(name + mark, size or task, right), style))
    if wide:
        line.append((" attempt code            ", "reverse"))
    return line


def shown(row: Row, wish: Wish, width: int, selected: bool = False) -> Line:
    """One row as a line."""
    if row.worker is not None:
        line = _worker(row, wish, width)
    elif row.queue is not None:
        line = _queue(row)
    else:
        line = _host(row)
    if not selected:
        return line
    return [(piece, f"{style} reverse".strip()) for piece, style in fit(line, width)]


def _host(row: Row) -> Line:
    host = row.host
    line: Line = [(clean(host.name, 40), "bold"), (f" pid {host.pid}", "")]
    if host.lost:
        line.append((f" lost: silent for {short(host.age)}", "bold red"))
    elif host.leader:
        line.append((" leader", "bold green"))
    if host.state != "running" and not host.lost:
        line.append((f" {clean(host.state, 20)}", "yellow"))
    if not host.lost:
        line.append((f" {row.busy}/{row.total} busy", ""))
    if host.load is not None and not host.lost:
        line.append((f" load {host.load:.1f}" + (f"/{host.cores}" if host.cores else ""), ""))
    line.append((f" code {clean(host.version, 12)}", ""))
    line.append((f" {clean(host.app, 20)}" + (f" {clean(host.label, 20)}" if host.label else ""), "dim"))
    return line


def _queue(row: Row) -> Line:
    line: Line = [
        ("└ ", "dim"),
        (clean(row.queue or "", 40), "bold blue"),
        (f" {row.busy}/{row.total} busy", ""),
    ]
    if problem := row.host.problems.get(row.queue or ""):
        line.append((f" cannot start: {clean(problem[0], 200)}", "bold red"))
    depth = row.depth
    if depth is None:
        return line
    more = "+" if depth.ready >= DEEPEST else ""
    if depth.ready:
        line.append((f", {depth.ready:,}{more} ready, the oldest for {short(depth.oldest)}", ""))
    if depth.scheduled:
        line.append((f", {depth.scheduled:,}{'+' * (depth.scheduled >= DEEPEST)} scheduled", "dim"))
    if depth.limit is not None:
        line.append((f", {depth.limit} workers over all hosts", "dim"))
    if depth.paused:
        line.append((" paused", "bold yellow"))
    if depth.throttled:
        line.append((" throttled", "yellow"))
    return line


def _worker(row: Row, wish: Wish, width: int) -> Line:
    worker, host = row.worker, row.host
    assert worker is not None
    first, task, wide = _layout(width, wish.tree)
    name = f"{clean(worker.queue, 60)}/{worker.slot}"
    name = f"  {name}" if wish.tree else f"{clean(host.name, 40)}:{name}"
    done = share(worker.progress)
    word = clean(state(worker, host), 20)
    cells = {
        "pid": str(worker.pid),
        "job": f"#{worker.job}" if worker.job is not None else "",
        "task": clean(worker.task or ""),
        "cpu%": f"{worker.cpu:.0f}" if worker.cpu is not None else "",
        "rss": show_size(worker.rss) if worker.rss else "",
        "done": f"{done:.0%}" if done is not None else "",
        "time": short(worker.running),
        "left": short(worker.left),
        "state": word,
    }
    line: Line = [(cell(name, first, False), "")]
    for column, size, right, _ in _COLUMNS:
        style = STATES.get(word, "") if column == "state" else "dim" if worker.job is None else ""
        line.append((" " + cell(cells[column], size or task, right), style))
    if wide:
        attempt = f"{worker.attempt}/{worker.max_attempts}" if worker.attempt is not None else ""
        line.append((f" {cell(attempt, 7, False)} {cell(clean(worker.version or '', 40), 16, False)}", "dim"))
    return line


def detail(row: Row) -> str:
    """All about the selected row in one line."""
    worker, host = row.worker, row.host
    if worker is None:
        if row.queue is None:
            word = "lost" if host.lost else clean(host.state, 20)
            told = f"{clean(host.name, 60)}: {word}, view written {short(host.age)} ago"
            return f"{told}, app {clean(host.app, 60)}, host {clean(host.id)}"
        told = f"{clean(row.queue, 60)} on {clean(host.name, 60)}"
        error, trace = host.problems.get(row.queue, ("", ""))
        where = " < ".join(reversed([line.strip() for line in trace.splitlines() if line.strip()]))
        return f"{told}: {clean(error, 300)}: {clean(where, 2000)}" if error else told
    parts = [f"{clean(worker.queue, 60)}/{worker.slot}"]
    if worker.job is not None:
        parts.append(f"#{worker.job} {clean(worker.task or '', 60)}")
        parts.append(f"attempt {worker.attempt} of {worker.max_attempts}")
    if worker.wish:
        parts.append(f"stopping: {clean(worker.wish, 20)}")
    if worker.progress is not None:
        parts.append(clean(wording.progress(worker.progress)))
    parts.append(f"code {clean(worker.version or '?', 16)}")
    parts.append(f"{worker.jobs or 0} jobs done" if worker.job is None else clean(host.name, 40))
    return ", ".join(parts)
