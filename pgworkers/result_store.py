"""Results that are too large for the table: files in a directory, or objects behind an fsspec URL.

The worker writes the value before it reports the job's end. The table keeps a reference: a name, a size and a checksum. So a
worker that is killed between the two leaves a file that nothing refers to, and never a reference to half a file. The leader
removes files whose job is gone (`master/result_files.py`).

A name holds the job and its lease, and random letters, so that no attempt overwrites the value of another one.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from pgworkers.errors import ResultError, UsageError

REFERENCE_KEY = "$stored"
#: Name of the file that says which database the store belongs to.
OWNER_NAME = "pgworkers-owner"
_JOBS_PER_FOLDER = 1000
_NAME = re.compile(r"(\d+)/(\d+)-(\d+)-[0-9a-f]{16}\.(json|tmp)")
_REFERENCE_PREFIX = b'{"' + REFERENCE_KEY.encode() + b'":'


class ResultStore(Protocol):
    """Where values are kept, by name."""

    def write(self, name: str, data: bytes) -> None:
        """Write a value, whole or not at all. OSError if that failed."""

    def read(self, name: str) -> bytes:
        """Return a value. FileNotFoundError if there is none."""

    def remove(self, name: str) -> None:
        """Remove a value, if it is there."""

    def folders(self) -> list[str]:
        """Return the folders that hold values."""

    def names(self, folder: str) -> list[str]:
        """Return the names of the values in a folder."""


class StoredValue(msgspec.Struct, frozen=True):
    """What the table keeps of a value in the store."""

    name: str
    size: int  #: bytes
    sha256: str

    def to_json(self) -> bytes:
        return msgspec.json.encode({REFERENCE_KEY: self})


class ParsedName(NamedTuple):
    job: int
    lease: int


def make_name(job: int, lease: int) -> str:
    return f"{job // _JOBS_PER_FOLDER}/{job}-{lease}-{os.urandom(8).hex()}.json"


def parse_name(name: str) -> ParsedName | None:
    """Return what a name says. None: it is not the name of a value, nor of one that was not written to its end."""
    found = _NAME.fullmatch(name)
    if found is None or int(found[1]) != int(found[2]) // _JOBS_PER_FOLDER:
        return None
    return ParsedName(int(found[2]), int(found[3]))


def check_not_a_reference(data: bytes) -> None:
    """Raise ValueError for a handler's own value that would be read as a reference."""
    if data.startswith(_REFERENCE_PREFIX) and len(msgspec.json.decode(data, type=dict[str, Any])) == 1:
        raise ValueError(f"has only the key {REFERENCE_KEY}, which is reserved")


def put(url: str, job: int, lease: int, data: bytes) -> bytes:
    """Write a value and return its reference as JSON. OSError if that failed."""
    name = make_name(job, lease)
    open_store(url).write(name, data)
    return StoredValue(name, len(data), hashlib.sha256(data).hexdigest()).to_json()


def read_reference(result: Any) -> StoredValue | None:
    """Return the reference that a result is. None: it is the result itself."""
    if not isinstance(result, dict) or len(result) != 1 or REFERENCE_KEY not in result:
        return None
    try:
        return msgspec.convert(result[REFERENCE_KEY], StoredValue)
    except msgspec.ValidationError:
        return None


def fetch(url: str, job: int, stored: StoredValue) -> bytes:
    """Return the value of a job. ResultError if it is gone or is not what the worker wrote."""
    what = f"job #{job}: its result of {stored.size:,} bytes"
    parsed = parse_name(stored.name)
    if parsed is None or parsed.job != job or not stored.name.endswith(".json"):
        raise ResultError(f"{what} has a reference that this job cannot have; nothing was read")
    if not url:
        raise ResultError(
            f"{what} is in a result store, and this process has no setting result_store; set the one of the hosts"
        )
    try:
        data = open_store(url).read(stored.name)
    except FileNotFoundError:
        raise ResultError(
            f"{what} is not in {url}: it was removed, or this machine does not share that directory"
        ) from None
    except OSError as exc:
        raise ResultError(f"{what} cannot be read from {url}: {exc}") from exc
    if len(data) != stored.size or hashlib.sha256(data).hexdigest() != stored.sha256:
        raise ResultError(f"{what} was changed or cut after it was written; nothing was returned")
    return data


_open_stores: dict[str, ResultStore] = {}
_opened_by_pid = 0
_lock = threading.Lock()


def open_store(url: str) -> ResultStore:
    """Return the store of a directory or URL. One per process: clients of object stores do not survive a fork."""
    global _opened_by_pid, _lock
    if _opened_by_pid != os.getpid():
        _open_stores.clear()
        _opened_by_pid, _lock = os.getpid(), threading.Lock()
    with _lock:
        store = _open_stores.get(url)
        if store is None:
            store = FsspecStore(url) if "://" in url else DirectoryStore(Path(url))
            _open_stores[url] = store
        return store


class DirectoryStore:
    """Files below a directory that all hosts and readers share."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, name: str, data: bytes) -> None:
        path = self._directory / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = path.with_suffix(".tmp")
        try:
            fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(unfinished, path)
            _sync_directory(path.parent)
        except BaseException:  # also a stop request
            unfinished.unlink(missing_ok=True)
            raise

    def read(self, name: str) -> bytes:
        return (self._directory / name).read_bytes()

    def remove(self, name: str) -> None:
        path = self._directory / name
        path.unlink(missing_ok=True)
        try:
            path.parent.rmdir()
        except OSError:
            pass  # it holds others, or is gone

    def folders(self) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self._directory) if entry.name.isdigit())
        except FileNotFoundError:
            return []

    def names(self, folder: str) -> list[str]:
        try:
            return [f"{folder}/{entry.name}" for entry in os.scandir(self._directory / folder)]
        except FileNotFoundError:
            return []


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class FsspecStore:
    """Objects below an fsspec URL. It needs the extra `fsspec` and the package of its protocol (s3fs, gcsfs, ...)."""

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise UsageError(f"result_store={url!r} needs fsspec; install pgworkers[fsspec]") from None
        try:
            self._files, self._root = url_to_fs(url, skip_instance_cache=True)
        except (ValueError, ImportError) as exc:
            raise UsageError(f"result_store={url!r} cannot be used: {exc}") from None

    def write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._files.pipe_file(path, data)

    def read(self, name: str) -> bytes:
        found: bytes = self._files.cat_file(self._path(name))
        return found

    def remove(self, name: str) -> None:
        try:
            self._files.rm_file(self._path(name))
        except FileNotFoundError:
            pass

    def folders(self) -> list[str]:
        return sorted(name for name in self._list("") if name.isdigit())

    def names(self, folder: str) -> list[str]:
        return [f"{folder}/{name}" for name in self._list(folder)]

    def _list(self, folder: str) -> Iterator[str]:
        self._files.invalidate_cache()
        try:
            found = self._files.ls(self._path(folder) if folder else self._root, detail=False)
        except FileNotFoundError:
            return
        for path in found:
            yield str(path).rstrip("/").rpartition("/")[2]

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"
