"""The rows of `top`: a host, a queue or a worker as one line, and the details of the selected one. Pure."""

from __future__ import annotations

from pgworkers.cli import formatting
from pgworkers.cli.top.cells import Line, cell_text, fit_line, pad_cell, short_duration
from pgworkers.cli.top.model import TreeRow, ViewOptions, progress_fraction, worker_state
from pgworkers.job.queries import MAX_COUNTED_JOBS
from pgworkers.units import format_size

#: From this width on version and attempt are shown, too.
WIDE_LAYOUT_CHARACTERS = 110
#: A state's style.
STATE_STYLES = {
    "lost": "bold red",
    "stalled": "bold red",
    "stopping": "yellow",
    "suspended": "magenta",
    "old code": "yellow",
    "busy": "green",
    "idle": "dim",
}
#: heading, width, whether it is written to the right; the sort it stands for.
_TOP_COLUMNS = (
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
    wide = width >= WIDE_LAYOUT_CHARACTERS
    first = (20 if wide else 13) if tree else (30 if wide else 16)
    fixed = sum(size for _, size, _, _ in _TOP_COLUMNS) + len(_TOP_COLUMNS) + (25 if wide else 0)
    return first, max(6, width - first - fixed), wide


def headings(options: ViewOptions, width: int) -> Line:
    """The names of the columns; the one they are sorted by stands out."""
    first, task, wide = _layout(width, options.is_tree)
    line: Line = [
        (pad_cell("worker", first, False), "reverse bold" if options.sort == "worker" else "reverse")
    ]
    for name, size, right, sort in _TOP_COLUMNS:
        style = "reverse bold" if sort and sort == options.sort else "reverse"
        mark = ("^" if options.is_reversed else "v") if sort and sort == options.sort else ""
        line.append((" " + pad_cell(name + mark, size or task, right), style))
    if wide:
        line.append((" attempt code            ", "reverse"))
    return line


def format_row(row: TreeRow, options: ViewOptions, width: int, selected: bool = False) -> Line:
    """One row as a line."""
    if row.worker is not None:
        line = _format_worker(row, options, width)
    elif row.queue is not None:
        line = _format_queue(row)
    else:
        line = _format_host(row)
    if not selected:
        return line
    return [(piece, f"{style} reverse".strip()) for piece, style in fit_line(line, width)]


def _format_host(row: TreeRow) -> Line:
    host = row.host
    line: Line = [(cell_text(host.name, 40), "bold"), (f" pid {host.pid}", "")]
    if host.is_lost:
        line.append((f" lost: silent for {short_duration(host.age)}", "bold red"))
    elif host.is_leader:
        line.append((" leader", "bold green"))
    if host.state != "running" and not host.is_lost:
        line.append((f" {cell_text(host.state, 20)}", "yellow"))
    if not host.is_lost:
        line.append((f" {row.busy}/{row.total} busy", ""))
    if host.load is not None and not host.is_lost:
        line.append((f" load {host.load:.1f}" + (f"/{host.cores}" if host.cores else ""), ""))
    line.append((f" code {cell_text(host.version, 12)}", ""))
    line.append(
        (f" {cell_text(host.app, 20)}" + (f" {cell_text(host.label, 20)}" if host.label else ""), "dim")
    )
    return line


def _format_queue(row: TreeRow) -> Line:
    line: Line = [
        ("└ ", "dim"),
        (cell_text(row.queue or "", 40), "bold blue"),
        (f" {row.busy}/{row.total} busy", ""),
    ]
    if problem := row.host.problems.get(row.queue or ""):
        line.append((f" cannot start: {cell_text(problem[0], 200)}", "bold red"))
    depth = row.depth
    if depth is None:
        return line
    more = "+" if depth.ready >= MAX_COUNTED_JOBS else ""
    if depth.ready:
        line.append((f", {depth.ready:,}{more} ready, the oldest for {short_duration(depth.oldest)}", ""))
    if depth.scheduled:
        line.append((f", {depth.scheduled:,}{'+' * (depth.scheduled >= MAX_COUNTED_JOBS)} scheduled", "dim"))
    if depth.limit is not None:
        line.append((f", {depth.limit} workers over all hosts", "dim"))
    if depth.is_paused:
        line.append((" paused", "bold yellow"))
    if depth.is_throttled:
        line.append((" throttled", "yellow"))
    return line


def _format_worker(row: TreeRow, options: ViewOptions, width: int) -> Line:
    worker, host = row.worker, row.host
    assert worker is not None
    first, task, wide = _layout(width, options.is_tree)
    name = f"{cell_text(worker.queue, 60)}/{worker.slot}"
    name = f"  {name}" if options.is_tree else f"{cell_text(host.name, 40)}:{name}"
    done = progress_fraction(worker.progress)
    word = cell_text(worker_state(worker, host), 20)
    cells = {
        "pid": str(worker.pid),
        "job": f"#{worker.job}" if worker.job is not None else "",
        "task": cell_text(worker.task or ""),
        "cpu%": f"{worker.cpu:.0f}" if worker.cpu is not None else "",
        "rss": format_size(worker.rss) if worker.rss else "",
        "done": f"{done:.0%}" if done is not None else "",
        "time": short_duration(worker.running),
        "left": short_duration(worker.left),
        "state": word,
    }
    line: Line = [(pad_cell(name, first, False), "")]
    for column, size, right, _ in _TOP_COLUMNS:
        style = STATE_STYLES.get(word, "") if column == "state" else "dim" if worker.job is None else ""
        line.append((" " + pad_cell(cells[column], size or task, right), style))
    if wide:
        attempt = f"{worker.attempt}/{worker.max_attempts}" if worker.attempt is not None else ""
        line.append(
            (
                f" {pad_cell(attempt, 7, False)} {pad_cell(cell_text(worker.version or '', 40), 16, False)}",
                "dim",
            )
        )
    return line


def row_details(row: TreeRow) -> str:
    """All about the selected row in one line."""
    worker, host = row.worker, row.host
    if worker is None:
        if row.queue is None:
            word = "lost" if host.is_lost else cell_text(host.state, 20)
            text = f"{cell_text(host.name, 60)}: {word}, view written {short_duration(host.age)} ago"
            return f"{text}, app {cell_text(host.app, 60)}, host {cell_text(host.id)}"
        text = f"{cell_text(row.queue, 60)} on {cell_text(host.name, 60)}"
        error, trace = host.problems.get(row.queue, ("", ""))
        where = " < ".join(reversed([line.strip() for line in trace.splitlines() if line.strip()]))
        return f"{text}: {cell_text(error, 300)}: {cell_text(where, 2000)}" if error else text
    parts = [f"{cell_text(worker.queue, 60)}/{worker.slot}"]
    if worker.job is not None:
        parts.append(f"#{worker.job} {cell_text(worker.task or '', 60)}")
        parts.append(f"attempt {worker.attempt} of {worker.max_attempts}")
    if worker.stop_reason:
        parts.append(f"stopping: {cell_text(worker.stop_reason, 20)}")
    if worker.progress is not None:
        parts.append(cell_text(formatting.show_progress_value(worker.progress)))
    parts.append(f"code {cell_text(worker.version or '?', 16)}")
    parts.append(f"{worker.jobs or 0} jobs done" if worker.job is None else cell_text(host.name, 40))
    return ", ".join(parts)
