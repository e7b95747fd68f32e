"""Scripts that measure are run by hand, so nobody else would notice that one of them has fallen behind the code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def test_what_statements_cost_is_measured() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPTS / "sql-cost", "--jobs", "100", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    each = json.loads(done.stdout)["per_job"]
    assert {"claim 50", "finish 500", "enqueue", "enqueue_many", "plain COPY"} <= set(each)
    assert each["claim 50"]["server_us"] > 0
    assert each["enqueue"]["server_us"] > 0
