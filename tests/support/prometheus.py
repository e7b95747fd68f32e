"""A real Prometheus: Debian's package, unpacked into a cache and never installed. Skipped if it is not available."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.cluster import wait_for

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pgworkers-tests"


def binaries() -> Path:
    """The directory of `prometheus` and `promtool`; skips the test if there is none and none can be fetched."""
    found = shutil.which("prometheus")
    if found and shutil.which("promtool"):
        return Path(found).parent
    unpacked = CACHE / "prometheus" / "usr" / "bin"
    try:
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (unpacked / "promtool").exists():
                _fetch()
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"NO PROMETHEUS: neither installed nor to be had with apt-get download ({error})")
    return unpacked


def _fetch() -> None:
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise OSError(f"there is no {tool}")
    with tempfile.TemporaryDirectory(dir=CACHE) as place:
        subprocess.run(
            ["apt-get", "download", "prometheus"], cwd=place, check=True, capture_output=True, timeout=60
        )
        [package] = Path(place).glob("prometheus_*.deb")
        subprocess.run(
            ["dpkg-deb", "-x", package, f"{place}/out"], check=True, capture_output=True, timeout=60
        )
        shutil.rmtree(CACHE / "prometheus", ignore_errors=True)
        Path(place, "out").rename(CACHE / "prometheus")


def promtool(*args: str | Path, text: bytes | None = None) -> str:
    """Run it; fails the test with its words."""
    command = [binaries() / "promtool", *args]
    done = subprocess.run(command, input=text, capture_output=True, timeout=60, check=False)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


class Prometheus:
    def __init__(self, port: int) -> None:
        self.base = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **params: str) -> Any:
        url = f"{self.base}/api/v1/{path}?{urllib.parse.urlencode(params)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[Any]:
        found: list[Any] = self.ask("query", query=expression)["result"]
        return found


@contextmanager
def running(directory: Path, targets: list[str]) -> Iterator[Prometheus]:
    """One that scrapes these addresses twice a second, with our rules."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rules = Path(__file__).parents[2] / "grafana" / "alerts.yml"
    config = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "pgworkers", "static_configs": [{"targets": targets}]}],
    }
    (directory / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    command = [
        str(binaries() / "prometheus"),
        f"--config.file={directory}/prometheus.yml",
        f"--storage.tsdb.path={directory}/tsdb",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
        "--log.level=warn",
    ]
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        prometheus = Prometheus(port)

        def up() -> bool:
            assert process.poll() is None, (directory / "prometheus.log").read_text()
            try:
                return bool(prometheus.query('up{job="pgworkers"} == 1'))
            except OSError:
                return False

        wait_for(up, what="Prometheus scrapes the master")
        yield prometheus
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)
