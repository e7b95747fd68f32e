"""Results in a directory, with real hosts: read back, never a lie after a kill, removed with their jobs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from support.cluster import Cluster, wait_for

from pgworkers import ResultError

APP = """
from pgworkers import App

app = App(result_store={store!r})
app.queue("default", workers=1)


@app.task(max_crashes=100, retries=100, backoff="0.1s", retry_verdicts={{"crash": 0.1}})
def produce(count: int) -> list[int]:
    return list(range(count))


@app.task
def fails() -> str:
    return "x" * (300 << 20)
"""


@pytest.fixture
def producer(cluster: Cluster, tmp_path: Path) -> Iterator[ModuleType]:
    cluster.app.write_text(APP.format(store=str(tmp_path / "results")))
    spec = importlib.util.spec_from_file_location("producer_app", cluster.app)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["producer_app"] = module
    spec.loader.exec_module(module)
    module.app.client.database.use(cluster.dsn, {**_settings(), "result_store": str(tmp_path / "results")})
    yield module
    module.app.close()


def _settings() -> dict[str, object]:
    from dataclasses import asdict

    from pgworkers.settings import Settings

    return asdict(Settings())


def files(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "results").rglob("*.json")}


def run_duty(cluster: Cluster) -> str:
    words = [sys.executable, "-m", "pgworkers", "-c", str(cluster.app), "--dsn", cluster.dsn]
    return subprocess.run(
        [*words, "duties", "run", "results"], capture_output=True, text=True, timeout=60, check=True, cwd="/"
    ).stdout


def test_a_large_result_is_handed_back_and_removed_with_its_job(
    cluster: Cluster, producer: ModuleType, tmp_path: Path
) -> None:
    cluster.start(queues="default:1", PGWORKERS_RESULT_PRUNE_INTERVAL="0.5s")
    small, large = producer.produce.enqueue(3), producer.produce.enqueue(50_000)
    assert small.result(timeout=60) == [0, 1, 2]
    assert large.result(timeout=60) == list(range(50_000))
    [name] = files(tmp_path)
    assert name.startswith(f"{large.id}-1-")
    reference = cluster.row(large.id)["result"]["$stored"]
    assert reference["name"].endswith(name)
    words = [sys.executable, "-m", "pgworkers", "-c", str(cluster.app), "--dsn", cluster.dsn]
    printed = subprocess.run(
        [*words, "enqueue", "produce", "count=9000", "--wait=60s"],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
        cwd="/",
    ).stdout
    assert "8999" in printed
    assert len(files(tmp_path)) == 2
    wait_for((tmp_path / "results" / "pgworkers-owner").exists, what="the leader has looked at the store")
    assert len(files(tmp_path)) == 2, "their jobs are there"
    cluster.db.execute("DELETE FROM pgworkers.history WHERE id = %s", [large.id])
    wait_for(lambda: name not in files(tmp_path), what="the file of the job that is gone")
    assert len(files(tmp_path)) == 1
    cluster.enqueued.clear()


def test_a_worker_killed_between_the_file_and_its_report_leaves_no_lie(
    cluster: Cluster, producer: ModuleType, tmp_path: Path
) -> None:
    first = cluster.start(queues="default:1", PGWORKERS_FAULT="before_report")
    job = producer.produce.enqueue(50_000)
    wait_for(lambda: len(files(tmp_path)) >= 2, what="two killed attempts left their files")
    assert job.state != "succeeded"
    first.terminate()
    orphans = files(tmp_path)
    cluster.start(queues="default:1")
    assert job.result(timeout=60) == list(range(50_000))
    [kept] = files(tmp_path) - orphans
    [path] = (tmp_path / "results").rglob(kept)
    unfinished = path.with_name(f"{job.id}-1-0123456789abcdef.tmp")  # killed in the middle of a write
    unfinished.touch()
    run_duty(cluster)
    assert files(tmp_path) == {kept}
    assert not unfinished.exists()
    assert job.result() == list(range(50_000))


def test_a_result_beyond_the_limit_of_the_store_is_dead_at_once(
    cluster: Cluster, producer: ModuleType, tmp_path: Path
) -> None:
    cluster.start(queues="default:1", PGWORKERS_RESULT_STORE_LIMIT="1MB")
    row = cluster.until(producer.fails.enqueue().id, "dead")
    assert (row["verdict"], row["attempt"]) == ("bad_result", 1)
    assert "more than 1MB" in row["error"]
    assert files(tmp_path) == set()


def test_a_store_that_cannot_be_written_is_dead_at_once(
    cluster: Cluster, producer: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "results").write_text("a file where the directory should be")
    cluster.start(queues="default:1")
    row = cluster.until(producer.produce.enqueue(50_000).id, "dead")
    assert (row["verdict"], row["attempt"]) == ("bad_result", 1)
    assert "could not be written to result_store" in row["error"]


def test_a_reader_without_the_store_and_a_foreign_store_say_so(
    cluster: Cluster, producer: ModuleType, tmp_path: Path
) -> None:
    cluster.start(queues="default:1")
    job = producer.produce.enqueue(50_000)
    job.result(timeout=60)
    [kept] = (tmp_path / "results").rglob("*.json")
    away = kept.rename(tmp_path / "away")
    with pytest.raises(ResultError, match="it was removed, or this machine does not share"):
        job.result()
    away.rename(kept)
    (tmp_path / "results" / "pgworkers-owner").write_text("another database")
    cluster.db.execute("DELETE FROM pgworkers.history")
    cluster.enqueued.clear()
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run_duty(cluster)
    assert "belongs to another database" in caught.value.stderr
    assert len(files(tmp_path)) == 1
