"""What keys do in `top`. Pure: a key and the state make the next state, and perhaps something to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pgworkers.cli.top_model import SORTS, Row, Wish
from pgworkers.cli.top_screen import HELP

_SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1bOH": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1bOF": "end",
    b"\x1b[4~": "end",
}
_CONTROLS = {
    0x03: "quit",
    0x0A: "enter",
    0x0D: "enter",
    0x0E: "down",
    0x10: "up",
    0x0C: "redraw",
    0x15: "clear",
}
_MOVES = {"up": -1, "down": 1}
#: key -> (what is asked of the host, whether it is asked about first)
JOB_KEYS = {
    "c": ("cancel", True),
    "s": ("stack", False),
    "z": ("suspend", False),
    "r": ("resume", False),
    "k": ("kill", True),
}
FILTER_LIMIT = 60


def decode(data: bytes) -> list[str]:
    """Keys by name; unknown escape sequences are no keys at all. A lone escape is `escape`."""
    keys: list[str] = []
    at = 0
    while at < len(data):
        byte = data[at]
        if byte == 0x1B:
            found = next((seq for seq in _SEQUENCES if data.startswith(seq, at)), None)
            if found is not None:
                keys.append(_SEQUENCES[found])
                at += len(found)
            elif data[at + 1 : at + 2] in (b"[", b"O"):
                at += 2
                while at < len(data) and not 0x40 <= data[at] <= 0x7E:
                    at += 1
                at += 1
            else:
                keys.append("escape")
                at += 1
        elif byte in _CONTROLS:
            keys.append(_CONTROLS[byte])
            at += 1
        elif byte in (0x7F, 0x08):
            keys.append("backspace")
            at += 1
        elif byte < 0x20:
            at += 1
        else:
            end = at + 1
            while end < len(data) and data[end] & 0xC0 == 0x80:
                end += 1
            keys.append(data[at:end].decode("utf-8", "replace"))
            at = end
    return keys


@dataclass(frozen=True, slots=True)
class Act:
    """Something to ask of the database: a kind, and the job or queue that was selected when it was meant."""

    kind: str  # cancel, stack, suspend, resume, kill, pause, unpause
    job: int | None = None
    queue: str | None = None

    @property
    def named(self) -> str:
        return f"#{self.job}" if self.job is not None else f"queue {self.queue}"


@dataclass(frozen=True, slots=True)
class View:
    """Where the reader is."""

    wish: Wish = field(default_factory=Wish)
    selected: tuple[str, ...] | None = None
    offset: int = 0
    pane: tuple[str, str] | None = None
    pane_offset: int = 0
    message: str = ""
    asking: Act | None = None  # waits for y or n
    typing: str | None = None  # the filter that is being typed
    leaving: bool = False
    refresh: bool = False
    redraw: bool = False
    yes: bool = False  # do not ask

    @property
    def prompt(self) -> str:
        if self.asking is not None:
            return f"{self.asking.kind.replace('unpause', 'resume')} {self.asking.named}? (y/n)"
        return f"filter: {self.typing}_  Enter keeps it, Esc clears it" if self.typing is not None else ""


def settle(view: View, rows: Sequence[Row], room: int) -> View:
    """After a new picture or size: the selection stays on its row, and on the screen."""
    if not rows:
        return replace(view, offset=0)
    keys = [row.key for row in rows]
    if view.selected in keys:
        at = keys.index(view.selected)
    else:
        at = min(view.offset, len(rows) - 1)
    offset = min(view.offset, max(0, len(rows) - room))
    offset = max(min(offset, at), at - room + 1, 0)
    return replace(view, selected=keys[at], offset=offset)


def press(view: View, key: str, rows: Sequence[Row], room: int) -> tuple[View, Act | None]:
    """One key."""
    view = replace(view, message="", refresh=False, redraw=False)
    if key == "quit":
        return replace(view, leaving=True), None
    if view.asking is not None:
        act = view.asking if key in ("y", "Y") else None
        return replace(view, asking=None, message="" if act else "not done"), act
    if view.typing is not None:
        return _type(view, key, view.typing), None
    if view.pane is not None:
        return _read(view, key, view.pane, room), None
    if key in JOB_KEYS or key == "p":
        return _act(view, key, rows)
    return _look(view, key, rows, room), None


def _type(view: View, key: str, typed: str) -> View:
    match key:
        case "enter":
            return replace(view, typing=None)
        case "escape":
            typed, view = "", replace(view, typing=None)
        case "backspace":
            typed = typed[:-1]
            view = replace(view, typing=typed)
        case "clear":
            typed = ""
            view = replace(view, typing=typed)
        case _ if len(key) == 1 and len(typed) < FILTER_LIMIT:
            typed += key
            view = replace(view, typing=typed)
    return replace(view, wish=replace(view.wish, filter=typed))


def _read(view: View, key: str, pane: tuple[str, str], room: int) -> View:
    last = max(0, len(pane[1].splitlines()) - room + 1)
    steps = {"up": -1, "down": 1, "page up": -room, "page down": room, " ": room, "home": -last, "end": last}
    if key in steps:
        return replace(view, pane_offset=max(0, min(last, view.pane_offset + steps[key])))
    if key in ("escape", "q", "enter", "?", "s"):
        return replace(view, pane=None, pane_offset=0)
    return view


def _act(view: View, key: str, rows: Sequence[Row]) -> tuple[View, Act | None]:
    row = next((row for row in rows if row.key == view.selected), None)
    if row is None:
        return replace(view, message="nothing is selected"), None
    if key == "p":
        if row.queue is None:
            return replace(view, message="select a queue, or a worker of it"), None
        depth = row.depth or next((one.depth for one in rows if one.queue == row.queue and one.depth), None)
        act, asks = Act("unpause" if depth is not None and depth.paused else "pause", queue=row.queue), True
    else:
        kind, asks = JOB_KEYS[key]
        if row.worker is None or row.worker.job is None:
            return replace(view, message=f"{kind}: select a worker that has a job"), None
        act = Act(kind, job=row.worker.job)
    if asks and not view.yes:
        return replace(view, asking=act), None
    return replace(view, message=f"{act.kind} {act.named} …"), act


def _look(view: View, key: str, rows: Sequence[Row], room: int) -> View:
    wish = view.wish
    match key:
        case "q":
            return replace(view, leaving=True)
        case "?" | "h":
            return replace(view, pane=("help", HELP), pane_offset=0)
        case "/":
            return replace(view, typing=wish.filter)
        case "<" | ">":
            at = (SORTS.index(wish.sort) + (1 if key == ">" else -1)) % len(SORTS)
            return replace(view, wish=replace(wish, sort=SORTS[at], turned=False))
        case "R":
            return replace(view, wish=replace(wish, turned=not wish.turned))
        case "t":
            return replace(view, wish=replace(wish, tree=not wish.tree))
        case "i":
            return replace(view, wish=replace(wish, idle=not wish.idle))
        case " ":
            return replace(view, refresh=True)
        case "redraw":
            return replace(view, redraw=True)
        case "escape":
            return replace(view, wish=replace(wish, filter=""))
        case "up" | "down" | "page up" | "page down" | "home" | "end":
            return _move(view, key, rows, room)
    return view


def _move(view: View, key: str, rows: Sequence[Row], room: int) -> View:
    if not rows:
        return view
    keys = [row.key for row in rows]
    at = keys.index(view.selected) if view.selected in keys else 0
    steps = {"up": -1, "down": 1, "page up": -room, "page down": room, "home": -len(rows), "end": len(rows)}
    at = max(0, min(len(rows) - 1, at + steps[key]))
    return settle(replace(view, selected=keys[at]), rows, room)
