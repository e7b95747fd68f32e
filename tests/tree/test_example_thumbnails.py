"""examples/fastapi_thumbnails with a real server, a real host and a real client."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from support.cluster import UNHURRIED, Cluster, wait_for
from support.server import OwnServer

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fastapi_thumbnails"
pytestmark = pytest.mark.excused("audit", "the handlers of the example keep no ledger")


@contextmanager
def web_server(dsn: str, directory: Path) -> Iterator[str]:
    """The address of the example's web server."""
    log = directory / "web.log"
    env = os.environ | {"PGWORKERS_DSN": dsn, "THUMBNAILS": str(directory / "pictures")}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLE), "--port", "0",
                "--timeout-graceful-shutdown", "2", "web:web",
            ],
            stdout=out, stderr=out, env=env,
        )  # fmt: skip
    try:
        pattern = re.compile(r"running on (http://127\.0\.0\.1:\d+)")
        found = wait_for(
            lambda: pattern.search(log.read_text()) or process.poll() is not None, what="the web server"
        )
        assert isinstance(found, re.Match), log.read_text()
        yield found[1]
    finally:
        process.terminate()
        process.wait(60)
        print(log.read_text())


def picture() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (640, 480), "teal").save(out, "JPEG")
    return out.getvalue()


def follow(client: httpx.Client, job: int, log: list[dict[str, Any]]) -> dict[str, Any]:
    """Read the events of a job as a browser does, with reconnects, until its end."""
    last_id = ""
    for _ in range(100):
        try:
            with client.stream("GET", f"/jobs/{job}/events", headers={"Last-Event-ID": last_id}) as answer:
                assert answer.status_code == 200
                name = ""
                for line in answer.iter_lines():
                    field, _, value = line.partition(": ")
                    if field == "id":
                        last_id = value
                    elif field == "event":
                        name = value
                    elif field == "data":
                        log.append(json.loads(value))
                        if name == "end":
                            return log[-1]
        except httpx.TransportError:
            continue
    raise AssertionError("the job did not end")


def test_a_picture_becomes_thumbnails_and_the_browser_sees_it(cluster: Cluster) -> None:
    cluster.app = EXAMPLE / "jobs.py"
    cluster.start(queues="default:2", THUMBNAILS=str(cluster.directory / "pictures"))
    with (
        web_server(cluster.dsn, cluster.directory) as address,
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        assert "EventSource" in client.get("/").text
        job = client.post("/pictures?pause=0.7", content=picture()).json()["job"]
        log: list[dict[str, Any]] = []
        end = follow(client, job, log)
        assert (end["state"], len(end["result"])) == ("succeeded", 4)
        assert any(0 < (seen["fraction"] or 0) < 1 for seen in log), log
        made = Image.open(io.BytesIO(client.get(f"/pictures/{end['result'][0]}").content))
        assert max(made.size) == 32
        assert client.get("/pictures/none").status_code == 404


def test_a_killed_worker_and_a_restart_of_the_database(own_cluster: Cluster, own_server: OwnServer) -> None:
    cluster = own_cluster
    cluster.app = EXAMPLE / "jobs.py"
    master = cluster.start(queues="default:2", THUMBNAILS=str(cluster.directory / "pictures"), **UNHURRIED)
    with (
        web_server(cluster.dsn, cluster.directory) as address,
        httpx.Client(base_url=address, timeout=120) as client,
    ):
        job = client.post("/pictures?pause=2", content=picture()).json()["job"]
        workers = wait_for(lambda: master.titles(f"#{job}"))
        os.kill(workers[0][0], signal.SIGKILL)
        wait_for(lambda: cluster.row(job)["attempt"] == 2)
        own_server.crash()
        own_server.start()
        cluster.reconnect()
        log: list[dict[str, Any]] = []
        end = follow(client, job, log)
        assert (end["state"], end["attempt"]) == ("succeeded", 2)
