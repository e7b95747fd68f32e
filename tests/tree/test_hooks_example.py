"""examples/hooks.py does what it says."""

from __future__ import annotations

import shutil
import urllib.request
from pathlib import Path

from support.cluster import Cluster, wait_for

EXAMPLE = Path(__file__).parents[2] / "examples" / "hooks.py"


def test_the_example_runs(cluster: Cluster) -> None:
    shutil.copy(EXAMPLE, cluster.app)
    master = cluster.start(PGWORKERS_METRICS_ADDRESS="127.0.0.1:0")
    lines = wait_for(lambda: [line for line in master.log().splitlines() if line.startswith("metrics ")])
    (good,) = cluster.enqueue("shout", args={"text": "hello"})
    (bad,) = cluster.enqueue("shout", args={"text": ""})
    assert str(cluster.until(good, "succeeded")["result"]).startswith("HELLO from default/")
    wait_for(lambda: f"shout #{bad}: error: ValueError: nothing to shout" in master.log(), what="the alert")
    wait_for(lambda: "hooks: shout took " in master.log(), what="the line of the middleware")
    wait_for(
        lambda: (
            b"example_letters_total 5.0" in urllib.request.urlopen(lines[0].split()[1], timeout=60).read()
        ),
        what="the counter",
    )
