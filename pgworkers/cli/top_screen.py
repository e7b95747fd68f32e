"""How `top` looks: lines of exactly the screen's width, each a list of styled pieces. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size

from pgworkers.cli import wording
from pgworkers.cli.top_model import Picture, Row, Wish, share, state, totals
from pgworkers.clock import show_seconds, show_size
from pgworkers.observe.escape import printable

#: A line: pieces of text with a style of rich each.
Line = list[tuple[str, str]]
SMALLEST = (40, 8)
WIDE = 110
KEYS = "c cancel s stack z suspend r resume k kill p pause / filter <> sort ? help q end"
HELP = """\
c        cancel the job: the stop ladder, it ends for good (asks)
s        its Python stack, now, also inside C code
z        suspend the job: its processes stand still, its deadline waits
r        resume a suspended job
k        kill its process; the job is handed back and runs again (asks)
p        pause the selected queue on all hosts, or resume it (asks)
arrows   select; also Ctrl-P, Ctrl-N, page up and down, home, end
/        filter by host, queue, task, #job, pid or state; Esc clears it
< >      sort by another column; R the other way round
t        the tree, or one list over all hosts
i        hide idle workers
space    refresh now
q        quit; here q or Esc closes this"""
_STATES = {
    "lost": "bold red",
    "stalled": "bold red",
    "stopping": "yellow",
    "suspended": "magenta",
    "old code": "yellow",
    "busy": "green",
    "idle": "dim",
}


@dataclass(frozen=True, slots=True)
class Scene:
    """All that a frame shows beside the picture."""

    wish: Wish = field(default_factory=Wish)
    selected: tuple[str, ...] | None = None
    offset: int = 0
    status: str = ""  # of the database, when it is away
    message: str = ""
    prompt: str = ""
    pane: tuple[str, str] | None = None  # a title and a text over the tree
    pane_offset: int = 0
    clock: str = ""


def clean(text: str, limit: int = 200) -> str:
    """Text of a job that can neither steer a terminal nor paint outside its cell."""
    shown = printable(text[:limit])
    if shown.isascii():
        return shown
    return "".join(c for c in shown if not unicodedata.category(c).startswith("M"))


def fit(line: Line, width: int) -> Line:
    """Exactly `width` cells: cut or filled with blanks."""
    fitted: Line = []
    left = width
    for text, style in line:
        if left <= 0:
            break
        cells = cell_len(text)
        fitted.append((text if cells <= left else set_cell_size(text, left), style))
        left -= min(cells, left)
    if left > 0:
        fitted.append((" " * left, ""))
    return fitted


def frame(picture: Picture, rows: Sequence[Row], scene: Scene, width: int, height: int) -> list[Line]:
    """`height` lines of `width` cells."""
    if width < SMALLEST[0] or height < SMALLEST[1]:
        lines: list[Line] = [[("the terminal is too small", "")]]
        return [fit(line, width) for line in [*lines, *([[]] * height)][:height]]
    room = body_height(height)
    top = [_first(picture, scene), _headings(scene.wish, width)]
    if scene.pane is not None:
        body = _pane(scene.pane, scene.pane_offset, room)
    else:
        body = [
            _shown(row, scene, width, selected=row.key == scene.selected)
            for row in rows[scene.offset : scene.offset + room]
        ]
        if not rows:
            what = "nothing matches the filter" if picture.hosts else "no hosts: start one with pgworkers run"
            body = [[(f"  {what}", "dim")]]
    body += [[] for _ in range(room - len(body))]
    chosen = next((row for row in rows if row.key == scene.selected), None)
    bottom: list[Line] = [[(detail(chosen) if chosen is not None else "", "cyan")], _word(scene)]
    bottom.append([(KEYS, "dim")])
    return [fit(line, width) for line in [*top, *body, *bottom]]


def body_height(height: int) -> int:
    """The lines between the two above and the three below."""
    return height - 5


def text(picture: Picture, rows: Sequence[Row], scene: Scene, width: int) -> list[str]:
    """One frame without end, for a pipe."""
    lines = [_first(picture, scene), _headings(scene.wish, width)]
    lines += [_shown(row, scene, width) for row in rows]
    return ["".join(piece for piece, _ in fit(line, width)).rstrip() for line in lines]


def _first(picture: Picture, scene: Scene) -> Line:
    figures = totals(picture)
    told = (
        f"{figures['hosts']} host{'s' * (figures['hosts'] != 1)}, {figures['busy']}/{figures['workers']} busy"
    )
    line: Line = [("pgworkers top ", "bold"), (f"{scene.clock} " if scene.clock else "", ""), (told, "")]
    line.append((f", {figures['ready']:,} ready", ""))
    for name in ("stalled", "suspended", "lost"):
        if figures[name]:
            line.append((f", {figures[name]} {name}", _STATES[name]))
    if picture.cut:
        line.append((", not all are shown", "yellow"))
    if scene.status:
        line.append((f"  {clean(scene.status)}", "bold red"))
    if scene.wish.filter:
        line.append((f"  /{clean(scene.wish.filter)}", "yellow"))
    return line


def _word(scene: Scene) -> Line:
    if scene.prompt:
        return [(clean(scene.prompt), "bold yellow")]
    return [(clean(scene.message), "yellow")]


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


def _cell(text: str, size: int, right: bool) -> str:
    cells = cell_len(text)
    if cells > size:
        return set_cell_size(text, max(0, size - 1)) + "…" if size else ""
    blank = " " * (size - cells)
    return blank + text if right else text + blank


def _headings(wish: Wish, width: int) -> Line:
    first, task, wide = _layout(width, wish.tree)
    line: Line = [(_cell("worker", first, False), "reverse bold" if wish.sort == "worker" else "reverse")]
    for name, size, right, sort in _COLUMNS:
        style = "reverse bold" if sort and sort == wish.sort else "reverse"
        mark = ("^" if wish.turned else "v") if sort and sort == wish.sort else ""
        line.append((" " + _cell(name + mark, size or task, right), style))
    if wide:
        line.append((" attempt code            ", "reverse"))
    return line


def _shown(row: Row, scene: Scene, width: int, selected: bool = False) -> Line:
    if row.worker is not None:
        line = _worker(row, scene.wish, width)
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
    line.append((f" {row.busy}/{row.total} busy", ""))
    if host.load is not None:
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
    depth = row.depth
    if depth is None:
        return line
    more = "+" if depth.ready >= DEEPEST else ""
    if depth.ready:
        line.append((f", {depth.ready:,}{more} ready, the oldest for {short(depth.oldest)}", ""))
    if depth.scheduled:
        line.append((f", {depth.scheduled:,} scheduled", "dim"))
    if depth.limit is not None:
        line.append((f", {depth.limit} workers over all hosts", "dim"))
    if depth.paused:
        line.append((" paused", "bold yellow"))
    if depth.throttled:
        line.append((" throttled", "yellow"))
    return line


#: Jobs that are counted in a queue; beyond it stands a plus.
DEEPEST = 10_000


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
    line: Line = [(_cell(name, first, False), "")]
    for column, size, right, _ in _COLUMNS:
        style = _STATES.get(word, "") if column == "state" else "dim" if worker.job is None else ""
        line.append((" " + _cell(cells[column], size or task, right), style))
    if wide:
        attempt = f"{worker.attempt}/{worker.max_attempts}" if worker.attempt is not None else ""
        line.append(
            (f" {_cell(attempt, 7, False)} {_cell(clean(worker.version or '', 40), 16, False)}", "dim")
        )
    return line


def short(seconds: float | None) -> str:
    """A time in at most six characters: 0.4s, 42s, 3m12s, 2h05m, 12d."""
    if seconds is None:
        return ""
    if seconds < 0:
        return "0s"
    if seconds < 10:
        return f"{seconds:.1f}s"
    if seconds < 60:
        return f"{seconds:.0f}s"
    told = show_seconds(seconds)
    return told if len(told) <= 6 else f"{seconds / 86400:.0f}d"


def detail(row: Row) -> str:
    """All about the selected row in one line."""
    worker, host = row.worker, row.host
    if worker is None:
        if row.queue is None:
            told = f"{clean(host.name, 60)}: {clean(host.state, 20)}, view written {short(host.age)} ago"
            return f"{told}, app {clean(host.app, 60)}, host {clean(host.id)}"
        return f"{clean(row.queue, 60)} on {clean(host.name, 60)}"
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


def wrapped(body: str, width: int) -> str:
    """A long text for a pane: printable lines that fit, a longer one goes on indented."""
    width = max(width, 20)
    lines: list[str] = []
    for line in body.splitlines():
        rest = clean(line, 2000)
        while cell_len(rest) > width:
            piece = set_cell_size(rest, width).rstrip()
            lines.append(piece)
            rest = "      " + rest[len(piece) :]
        lines.append(rest)
    return "\n".join(lines)


def _pane(pane: tuple[str, str], offset: int, room: int) -> list[Line]:
    title, body = pane
    lines = [clean(line, 2000) for line in body.splitlines()]
    shown: list[Line] = [[(f"── {clean(title)} ── Esc closes, arrows scroll", "bold cyan")]]
    return shown + [[(line, "")] for line in lines[offset : offset + room - 1]]
