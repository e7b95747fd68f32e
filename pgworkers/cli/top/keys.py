"""The keys of `top`. Pure: a key and a state give the next state, and perhaps an action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pgworkers.cli.top.model import SORT_COLUMNS, TreeRow, ViewOptions
from pgworkers.cli.top.screen import KEY_HELP

_ESCAPE_SEQUENCES = {
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
_CONTROL_KEYS = {
    0x03: "quit",
    0x0A: "enter",
    0x0D: "enter",
    0x0E: "down",
    0x10: "up",
    0x0C: "redraw",
    0x15: "clear",
}


class ActionKind(StrEnum):
    CANCEL = "cancel"
    STACK = "stack"
    SUSPEND = "suspend"
    RESUME = "resume"
    KILL = "kill"
    PAUSE = "pause"  #: of a queue
    UNPAUSE = "unpause"  #: of a queue


#: key -> (what is asked of the host, whether it is asked about first)
JOB_ACTION_KEYS = {
    "c": (ActionKind.CANCEL, True),
    "s": (ActionKind.STACK, False),
    "z": (ActionKind.SUSPEND, False),
    "r": (ActionKind.RESUME, False),
    "k": (ActionKind.KILL, True),
}
MAX_FILTER_CHARACTERS = 60


def decode_keys(data: bytes) -> list[str]:
    """Keys by name; unknown escape sequences are ignored. A lone escape is `escape`."""
    keys: list[str] = []
    at = 0
    while at < len(data):
        byte = data[at]
        if byte == 0x1B:
            found = next((seq for seq in _ESCAPE_SEQUENCES if data.startswith(seq, at)), None)
            if found is not None:
                keys.append(_ESCAPE_SEQUENCES[found])
                at += len(found)
            elif data[at + 1 : at + 2] in (b"[", b"O"):
                at += 2
                while at < len(data) and not 0x40 <= data[at] <= 0x7E:
                    at += 1
                at += 1
            else:
                keys.append("escape")
                at += 1
        elif byte in _CONTROL_KEYS:
            keys.append(_CONTROL_KEYS[byte])
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
class Action:
    """A request to the database: its kind, and the job or queue that was selected when the key was pressed."""

    kind: ActionKind
    job: int | None = None
    queue: str | None = None

    @property
    def target(self) -> str:
        return f"#{self.job}" if self.job is not None else f"queue {self.queue}"


@dataclass(frozen=True, slots=True)
class ViewState:
    """The state of the view: selection, scroll position, filter and question."""

    options: ViewOptions = field(default_factory=ViewOptions)
    selected: tuple[str, ...] | None = None
    offset: int = 0
    pane: tuple[str, str] | None = None
    pane_offset: int = 0
    message: str = ""
    unconfirmed_action: Action | None = None  # waits for y or n
    typed_filter: str | None = None  # the filter that is being typed
    is_quitting: bool = False
    should_refresh: bool = False
    should_redraw: bool = False
    is_confirmed: bool = False  # do not ask

    @property
    def prompt(self) -> str:
        if self.unconfirmed_action is not None:
            return f"{self.unconfirmed_action.kind.replace('unpause', 'resume')} {self.unconfirmed_action.target}? (y/n)"
        return (
            f"filter: {self.typed_filter}_  Enter keeps it, Esc clears it"
            if self.typed_filter is not None
            else ""
        )


def keep_selection_visible(view: ViewState, rows: Sequence[TreeRow], room: int) -> ViewState:
    """Keep the selection on its row and on the screen after a new snapshot or size."""
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


def handle_key(
    view: ViewState, key: str, rows: Sequence[TreeRow], room: int
) -> tuple[ViewState, Action | None]:
    """Handle one key. Returns the next state, and an action if there is one."""
    view = replace(view, message="", should_refresh=False, should_redraw=False)
    if key == "quit":
        return replace(view, is_quitting=True), None
    if view.unconfirmed_action is not None:
        act = view.unconfirmed_action if key in ("y", "Y") else None
        return replace(view, unconfirmed_action=None, message="" if act else "not done"), act
    if view.typed_filter is not None:
        return _edit_filter(view, key, view.typed_filter), None
    if view.pane is not None:
        return _scroll_pane(view, key, view.pane, room), None
    if key in JOB_ACTION_KEYS or key == "p":
        return _start_action(view, key, rows)
    return _change_view(view, key, rows, room), None


def _edit_filter(view: ViewState, key: str, typed: str) -> ViewState:
    match key:
        case "enter":
            return replace(view, typed_filter=None)
        case "escape":
            typed, view = "", replace(view, typed_filter=None)
        case "backspace":
            typed = typed[:-1]
            view = replace(view, typed_filter=typed)
        case "clear":
            typed = ""
            view = replace(view, typed_filter=typed)
        case _ if len(key) == 1 and len(typed) < MAX_FILTER_CHARACTERS:
            typed += key
            view = replace(view, typed_filter=typed)
    return replace(view, options=replace(view.options, filter=typed))


def _scroll_pane(view: ViewState, key: str, pane: tuple[str, str], room: int) -> ViewState:
    last = max(0, len(pane[1].splitlines()) - room + 1)
    steps = {"up": -1, "down": 1, "page up": -room, "page down": room, " ": room, "home": -last, "end": last}
    if key in steps:
        return replace(view, pane_offset=max(0, min(last, view.pane_offset + steps[key])))
    if key in ("escape", "q", "enter", "?", "s"):
        return replace(view, pane=None, pane_offset=0)
    return view


def _start_action(view: ViewState, key: str, rows: Sequence[TreeRow]) -> tuple[ViewState, Action | None]:
    row = next((row for row in rows if row.key == view.selected), None)
    if row is None:
        return replace(view, message="nothing is selected"), None
    if key == "p":
        if row.queue is None:
            return replace(view, message="select a queue, or a worker of it"), None
        depth = row.depth or next((one.depth for one in rows if one.queue == row.queue and one.depth), None)
        is_paused = depth is not None and depth.is_paused
        act, asks = Action(ActionKind.UNPAUSE if is_paused else ActionKind.PAUSE, queue=row.queue), True
    else:
        kind, asks = JOB_ACTION_KEYS[key]
        if row.worker is None or row.worker.job is None:
            return replace(view, message=f"{kind}: select a worker that has a job"), None
        act = Action(kind, job=row.worker.job)
    if asks and not view.is_confirmed:
        return replace(view, unconfirmed_action=act), None
    return replace(view, message=f"{act.kind} {act.target} …"), act


def _change_view(view: ViewState, key: str, rows: Sequence[TreeRow], room: int) -> ViewState:
    options = view.options
    match key:
        case "q":
            return replace(view, is_quitting=True)
        case "?" | "h":
            return replace(view, pane=("help", KEY_HELP), pane_offset=0)
        case "/":
            return replace(view, typed_filter=options.filter)
        case "<" | ">":
            at = (SORT_COLUMNS.index(options.sort) + (1 if key == ">" else -1)) % len(SORT_COLUMNS)
            return replace(view, options=replace(options, sort=SORT_COLUMNS[at], is_reversed=False))
        case "R":
            return replace(view, options=replace(options, is_reversed=not options.is_reversed))
        case "t":
            return replace(view, options=replace(options, is_tree=not options.is_tree))
        case "i":
            return replace(view, options=replace(options, should_show_idle=not options.should_show_idle))
        case " ":
            return replace(view, should_refresh=True)
        case "redraw":
            return replace(view, should_redraw=True)
        case "escape":
            return replace(view, options=replace(options, filter=""))
        case "up" | "down" | "page up" | "page down" | "home" | "end":
            return _move(view, key, rows, room)
    return view


def _move(view: ViewState, key: str, rows: Sequence[TreeRow], room: int) -> ViewState:
    if not rows:
        return view
    keys = [row.key for row in rows]
    at = keys.index(view.selected) if view.selected in keys else 0
    steps = {"up": -1, "down": 1, "page up": -room, "page down": room, "home": -len(rows), "end": len(rows)}
    at = max(0, min(len(rows) - 1, at + steps[key]))
    return keep_selection_visible(replace(view, selected=keys[at]), rows, room)
