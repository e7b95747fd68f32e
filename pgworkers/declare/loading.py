"""Importing the app from `app.py`, `dir/app.py:name`, `pkg.mod:app` or `pkg.mod`; and which release it is.

A file is imported under its own name, and a file inside a package as a module of that package, with the right
directory first in sys.path: its functions can be imported and pickled by name, and relative imports work.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import FrameType, ModuleType, TracebackType

from pgworkers.declare.dependencies import put_first
from pgworkers.errors import AppNotLoaded


def import_config(config: str) -> tuple[ModuleType, str]:
    """The module, and the name after the colon (or an empty text)."""
    place, _, name = config.rpartition(":") if ":" in config else (config, "", "")
    if not place:
        raise AppNotLoaded(f"{config!r} names no app; write app.py, dir/app.py:app or pkg.mod:app")
    if names_file(place):
        return _import_file(config, Path(place)), name
    return _import_dotted(config, place), name


def names_file(place: str) -> bool:
    """What stands before the colon: a file, and no module."""
    return place.endswith(".py") or os.sep in place or Path(place).is_file()


def _import_file(config: str, path: Path) -> ModuleType:
    path = Path(os.path.abspath(path))  # not resolve(): a symbolic link keeps its own neighbours
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
    put_first(str(root))
    known = sys.modules.get(name)
    if known is not None:
        if _same_file(known, path):
            return known
        raise AppNotLoaded(
            f"{config}: a module called {name} is already loaded from "
            f"{getattr(known, '__file__', None) or 'the interpreter'}; give the file another name"
        )
    if len(parts) > 1:
        return _run(config, name, lambda: importlib.import_module(name))
    return _run(config, name, lambda: _exec_file(name, path))


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
        put_first(os.getcwd())  # only then: an installed app needs nothing of the current directory
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (name + ".").startswith(exc.name + "."):
            found = None
        else:
            raise AppNotLoaded(f"{config}: {exc}", "".join(traceback.format_exception(exc))) from exc
    except Exception:  # the parent package raises: the import below says it properly
        return _run(config, name, lambda: importlib.import_module(name))
    if found is None:
        raise AppNotLoaded(
            f"{config}: there is no module {name} here or in sys.path (looked in {os.getcwd()} first)"
        )
    return _run(config, name, lambda: importlib.import_module(name))


def _run(config: str, name: str, load: object) -> ModuleType:
    """Import, or AppNotLoaded with the traceback from the user's first frame on."""
    before = set(sys.modules)
    try:
        return load()  # type: ignore[operator,no-any-return]
    except (Exception, SystemExit) as exc:
        if name not in before:
            sys.modules.pop(name, None)
        frames = exc.__traceback__
        while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
            frames = frames.tb_next
        text = "".join(traceback.format_exception(type(exc), exc, frames))
        if isinstance(exc, SystemExit):
            reason = 'it called sys.exit() while being imported; put that under `if __name__ == "__main__":`'
        else:
            place = _place_of(exc, frames)
            line = f" (line {place[0]} of {place[1]})" if place is not None else ""
            said = (
                traceback.format_exception_only(exc)[-1]
                .strip()
                .splitlines()[-1]
                .removeprefix("pgworkers.errors.")
            )
            reason = f"{said}{line}"
        raise AppNotLoaded(f"{config} could not be imported: {reason}", text) from exc


def _place_of(exc: BaseException, frames: TracebackType | None) -> tuple[int, str] | None:
    """Line and file: of what cannot be parsed or decoded, else of the user's first frame."""
    if isinstance(exc, SyntaxError) and exc.filename:
        return exc.lineno or 1, exc.filename  # 0: the encoding that the first lines name is unknown
    if frames is not None:
        return frames.tb_lineno, frames.tb_frame.f_code.co_filename
    return None


def _is_ours(file: str) -> bool:
    return file == __file__ or "importlib" in file


def _same_file(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and os.path.exists(file) and os.path.samefile(file, path)


def origin_of(frame: FrameType) -> Path:
    """The file that makes an App; the embedded server lives beside it."""
    file = frame.f_globals.get("__file__")
    return Path(file).resolve() if isinstance(file, str) else Path.cwd() / "app.py"


def release_of(app_file: Path) -> str:
    """Which release of the app this is: its repository's commit, else a hash of its directory's files."""
    directory = app_file.parent
    for parent in (directory, *directory.parents):
        head = _commit(parent / ".git")
        if head:
            return head[:10]
    digest = hashlib.sha256()
    try:
        for file in sorted(directory.glob("*.py"))[:1000]:
            info = file.stat()
            digest.update(f"{file.name} {info.st_mtime_ns} {info.st_size}\n".encode())
    except OSError:
        pass
    return "files-" + digest.hexdigest()[:10]


def _commit(git: Path) -> str | None:
    """The commit HEAD points to, read without starting git."""
    try:
        if git.is_file():  # a worktree: "gitdir: ..."
            git = (git.parent / git.read_text().removeprefix("gitdir:").strip()).resolve()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head or None
        ref = head.removeprefix("ref: ")
        common = git / "commondir"
        for base in (git, (git / common.read_text().strip()).resolve()) if common.is_file() else (git,):
            if (base / ref).is_file():
                return (base / ref).read_text().strip()
            packed = base / "packed-refs"
            for line in packed.read_text().splitlines() if packed.is_file() else ():
                if line.endswith(" " + ref):
                    return line.split()[0]
    except (OSError, UnicodeDecodeError):
        pass
    return None
