"""The screen of `top`: one line of figures, the headings, rows or a pane over them, and a message line. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pgworkers.cli.top.cells import Line, cell_text, fit_line, short_duration
from pgworkers.cli.top.model import Snapshot, TreeRow, ViewOptions, totals
from pgworkers.cli.top.rows import STATE_STYLES, format_row, headings, row_details
from pgworkers.job.queries import MAX_COUNTED_JOBS

MIN_TERMINAL_SIZE = (40, 8)
KEY_LINE = "c cancel s stack z suspend r resume k kill p pause / filter <> sort ? help q end"
KEY_HELP = """\
c        cancel the job: the stop ladder, it ends for good (asks)
s        its Python stack, now, also inside C code
z        suspend the job: its processes are stopped, its deadline is paused
r        resume a suspended job
k        kill its process; the job is released and runs again (asks)
p        pause the selected queue on all hosts, or resume it (asks)
arrows   select; also Ctrl-P, Ctrl-N, page up and down, home, end
/        filter by host, queue, task, #job, pid or state; Esc clears it
< >      sort by another column; R the other way round
t        the tree, or one list over all hosts
i        hide idle workers
space    refresh now
q        quit; here q or Esc closes this"""


@dataclass(frozen=True, slots=True)
class ScreenContent:
    """Everything that a frame shows in addition to the snapshot."""

    options: ViewOptions = field(default_factory=ViewOptions)
    selected: tuple[str, ...] | None = None
    offset: int = 0
    status: str = ""  # of the database, when it is away
    message: str = ""
    prompt: str = ""
    pane: tuple[str, str] | None = None  # a title and a text over the tree
    pane_offset: int = 0
    clock: str = ""


def render_frame(
    picture: Snapshot, rows: Sequence[TreeRow], scene: ScreenContent, width: int, height: int
) -> list[Line]:
    """Render `height` lines of `width` cells."""
    if width < MIN_TERMINAL_SIZE[0] or height < MIN_TERMINAL_SIZE[1]:
        lines: list[Line] = [[("the terminal is too small", "")]]
        return [fit_line(line, width) for line in [*lines, *([[]] * height)][:height]]
    room = body_height(height)
    top = [_summary_line(picture, scene), headings(scene.options, width)]
    if scene.pane is not None:
        body = _pane(scene.pane, scene.pane_offset, room)
    else:
        body = [
            format_row(row, scene.options, width, selected=row.key == scene.selected)
            for row in rows[scene.offset : scene.offset + room]
        ]
        if not rows:
            what = "nothing matches the filter" if picture.hosts else "no hosts: start one with pgworkers run"
            body = [[(f"  {what}", "dim")]]
    body += [[] for _ in range(room - len(body))]
    chosen = next((row for row in rows if row.key == scene.selected), None)
    bottom: list[Line] = [[(row_details(chosen) if chosen is not None else "", "cyan")], _message_line(scene)]
    bottom.append([(KEY_LINE, "dim")])
    return [fit_line(line, width) for line in [*top, *body, *bottom]]


def body_height(height: int) -> int:
    """The lines between the two above and the three below."""
    return height - 5


def render_text(picture: Snapshot, rows: Sequence[TreeRow], scene: ScreenContent, width: int) -> list[str]:
    """Render all rows as text, for a pipe. The last line shows the age of the data."""
    lines = [_summary_line(picture, scene), headings(scene.options, width)]
    lines += [format_row(row, scene.options, width) for row in rows]
    ages = [host.age for host in picture.hosts if not host.is_lost]
    if ages:
        text = "view written" if len(ages) == 1 else "views written up to"
        lines.append([(f"{text} {short_duration(max(ages))} ago", "")])
    return ["".join(piece for piece, _ in fit_line(line, width)).rstrip() for line in lines]


def _summary_line(picture: Snapshot, scene: ScreenContent) -> Line:
    figures = totals(picture)
    text = (
        f"{figures['hosts']} host{'s' * (figures['hosts'] != 1)}, {figures['busy']}/{figures['workers']} busy"
    )
    line: Line = [("pgworkers top ", "bold"), (f"{scene.clock} " if scene.clock else "", ""), (text, "")]
    more = "+" * any(depth.ready >= MAX_COUNTED_JOBS for depth in picture.queues)
    line.append((f", {figures['ready']:,}{more} ready", ""))
    for name in ("stalled", "suspended", "lost"):
        if figures[name]:
            line.append((f", {figures[name]} {name}", STATE_STYLES[name]))
    if picture.is_truncated:
        line.append((", not all are shown", "yellow"))
    if scene.status:
        line.append((f"  {cell_text(scene.status)}", "bold red"))
    if scene.options.filter:
        line.append((f"  /{cell_text(scene.options.filter)}", "yellow"))
    return line


def _message_line(scene: ScreenContent) -> Line:
    if scene.prompt:
        return [(cell_text(scene.prompt), "bold yellow")]
    return [(cell_text(scene.message), "yellow")]


def _pane(pane: tuple[str, str], offset: int, room: int) -> list[Line]:
    title, body = pane
    head: Line = [(f"── {cell_text(title)} ── Esc closes, arrows scroll", "bold cyan")]
    lines = [cell_text(line, 2000) for line in body.splitlines()]
    return [head, *([(line, "")] for line in lines[offset : offset + room - 1])]
