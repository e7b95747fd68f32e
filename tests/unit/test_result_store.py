"""Values outside the table: names, references, directories and fsspec, and what a reader refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pgworkers import App, ResultError, UsageError, result_store
from pgworkers.errors import InvalidResult, PgworkersError
from pgworkers.master.result_files import check_owner
from pgworkers.settings import Settings


@pytest.fixture(params=["directory", "fsspec"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    place = str(tmp_path / "results")
    return place if request.param == "directory" else f"file://{place}"


def put(url: str, data: bytes, job: int = 1234, lease: int = 2) -> result_store.StoredValue:
    found = result_store.read_reference(json.loads(result_store.put(url, job, lease, data)))
    assert found is not None
    return found


def test_a_value_is_read_back_and_removed(url: str) -> None:
    stored = put(url, b'"x"' * 1000)
    assert result_store.parse_name(stored.name) == (1234, 2)
    assert result_store.fetch(url, 1234, stored) == b'"x"' * 1000
    store = result_store.open_store(url)
    assert (store.folders(), store.names("1")) == (["1"], [stored.name])
    store.remove(stored.name)
    store.remove(stored.name)
    assert store.names("1") == []
    with pytest.raises(ResultError, match="it was removed, or this machine does not share that directory"):
        result_store.fetch(url, 1234, stored)


def test_an_empty_store_has_nothing(url: str) -> None:
    store = result_store.open_store(url)
    assert (store.folders(), store.names("1")) == ([], [])


def test_a_value_that_was_changed_or_is_of_another_job_is_refused(url: str) -> None:
    stored = put(url, b"[1,2,3]")
    path = Path(url.removeprefix("file://")) / stored.name
    path.write_bytes(b"[1,2,4]")
    with pytest.raises(ResultError, match="was changed or cut"):
        result_store.fetch(url, 1234, stored)
    with pytest.raises(ResultError, match="a reference that this job cannot have"):
        result_store.fetch(url, 1235, stored)
    with pytest.raises(ResultError, match="this process has no setting result_store"):
        result_store.fetch("", 1234, stored)
    for name in (
        "../../etc/passwd",
        "1/../../1234-1-0123456789abcdef.json",
        "2/1234-2-0123456789abcdef.json",
        "1/1234-2-0123456789abcdef.tmp",
        "",
    ):
        forged = result_store.StoredValue(name, 1, "")
        with pytest.raises(ResultError, match="nothing was read"):
            result_store.fetch(url, 1234, forged)


def test_nothing_is_left_of_a_write_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space left"):
        put(str(tmp_path), b"x")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_only_an_object_with_the_one_key_is_a_reference() -> None:
    good = {"$stored": {"name": "0/1-1-0123456789abcdef.json", "size": 1, "sha256": ""}}
    assert result_store.read_reference(good) is not None
    for other in ({}, {"$stored": 1}, {**good, "more": 1}, [good], None, {"$stored": {"name": 1}}):
        assert result_store.read_reference(other) is None


def make_task(**options: Any) -> Any:
    app = App(dsn="postgresql://nowhere.invalid/x")
    app.queue("default")

    @app.task(**options)
    def work() -> Any: ...

    return work


def test_a_task_stores_what_is_above_its_limit() -> None:
    kept: list[bytes] = []

    def store(data: bytes) -> bytes:
        kept.append(data)
        return b"{}"

    work = make_task(result_limit="1KB")
    assert work.encode_result("x" * 100, 10, store_limit=5000, store=store) == b'"' + b"x" * 100 + b'"'
    assert work.encode_result("x" * 2000, 10, store_limit=5000, store=store) == b"{}"
    assert [msgspec.json.decode(data) for data in kept] == ["x" * 2000]
    with pytest.raises(InvalidResult, match="more than 5KB"):
        work.encode_result("x" * 6000, 10, store_limit=5000, store=store)
    with pytest.raises(InvalidResult, match="or set result_store"):
        work.encode_result("x" * 6000, 10)

    def full(data: bytes) -> bytes:
        raise OSError(28, "No space left on device")

    with pytest.raises(InvalidResult, match=r"2,002 bytes could not be written to result_store: OSError"):
        work.encode_result("x" * 2000, 10, store_limit=5000, store=full)


def test_a_handler_cannot_return_a_reference() -> None:
    forged = {"$stored": {"name": "0/1-1-0123456789abcdef.json", "size": 1, "sha256": ""}}
    with pytest.raises(InvalidResult, match=r"only the key \$stored, which is reserved"):
        make_task().encode_result(forged, 10_000)
    make_task().encode_result({**forged, "more": 1}, 10_000)


def test_a_store_belongs_to_one_database(url: str) -> None:
    check_owner(url, "mine")
    put(url, b"1")
    check_owner(url, "mine")
    check_owner(url, "mine")
    with pytest.raises(PgworkersError, match="belongs to another database"):
        check_owner(url, "yours")


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(UsageError, match="use an absolute path"):
        Settings(result_store="results").validate()
    Settings(result_store="s3://bucket/results").validate()
    with pytest.raises(UsageError, match="cannot be used"):
        result_store.open_store("nonsense://x")
