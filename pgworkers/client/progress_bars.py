"""Progress bars for a wait: in a notebook by ipywidgets, else by tqdm if the program uses it, else by rich.

Nothing here is imported before a caller asks for a bar. pgworkers depends on neither ipywidgets nor tqdm.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, Protocol

from pgworkers.errors import UsageError

BarKind = Literal["ipywidgets", "tqdm", "rich"]
_KINDS = ("ipywidgets", "tqdm", "rich")


class ProgressBar(Protocol):
    """A bar on a screen."""

    def update(self, done: float, total: float | None, text: str) -> None:
        """Show `done` of `total`. None: the total is not known."""

    def close(self) -> None:
        """Leave the bar as it is."""


def open_bar(kind: bool | str, title: str) -> ProgressBar:
    """Return a bar of this kind; True chooses one. UsageError if the library is not installed."""
    chosen = _choose() if kind is True else kind
    if chosen not in _KINDS:
        raise UsageError(f"progress={kind!r}: use True, {', '.join(repr(one) for one in _KINDS)}")
    try:
        if chosen == "ipywidgets":
            return _WidgetBar(title)
        return _TqdmBar(title) if chosen == "tqdm" else _RichBar(title)
    except ImportError as error:
        raise UsageError(f"progress={chosen!r}: {error}; install {chosen}, or use progress=True") from error


def _choose() -> BarKind:
    if is_in_kernel() and find_spec("ipywidgets") is not None:
        return "ipywidgets"
    return "tqdm" if "tqdm" in sys.modules else "rich"


def is_in_kernel() -> bool:
    """True in a Jupyter kernel, whose output is a page and not a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return shell is not None and getattr(shell, "kernel", None) is not None


class _WidgetBar:
    def __init__(self, title: str) -> None:
        widgets: Any = import_module("ipywidgets")
        display: Any = import_module("IPython.display").display
        self._bar = widgets.FloatProgress(value=0.0, min=0.0, max=1.0)
        self._text = widgets.Label(title)
        self._title = title
        display(widgets.HBox([self._bar, self._text]))

    def update(self, done: float, total: float | None, text: str) -> None:
        self._bar.value = min(1.0, done / total) if total else 0.0
        self._text.value = f"{self._title} {text}"

    def close(self) -> None:
        self._bar.bar_style = "success" if self._bar.value >= 1.0 else ""


class _TqdmBar:
    def __init__(self, title: str) -> None:
        self._bar: Any = import_module("tqdm.auto").tqdm(desc=title)

    def update(self, done: float, total: float | None, text: str) -> None:
        self._bar.total, self._bar.n = total, done
        self._bar.set_postfix_str(text, refresh=True)

    def close(self) -> None:
        self._bar.close()


class _RichBar:
    def __init__(self, title: str) -> None:
        from rich.markup import escape
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
        )
        self._task = self._progress.add_task(escape(title), total=None, text="")
        self._progress.start()

    def update(self, done: float, total: float | None, text: str) -> None:
        self._progress.update(self._task, completed=done, total=total, text=text)

    def close(self) -> None:
        self._progress.stop()
