"""Not collected by itself: `test_killed_pytest.py` runs it in a pytest of its own and kills that.

It starts a master with a running job, a server that belongs to the run, a server of its own and a pooler, writes their
process ids into the file that HANGING_REPORT names, and waits.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from support.cluster import Cluster, wait_for
from support.pooler import BOUNCER, Pooler
from support.server import OwnServer

from pgworkers.embedded import process


def test_hangs(cluster: Cluster, own_server: OwnServer, run_root: Path, tmp_path: Path) -> None:
    master = cluster.start(queues="default:2")
    cluster.enqueue("hang")
    wait_for(cluster.ledger.exists)
    servers = [process.recorded_pid(file.parent) for file in run_root.rglob("postmaster.pid")]
    pids = {
        "pytest": [os.getpid()],
        "master": [process.pid for process in master.processes()],
        "server": servers,
    }
    if BOUNCER is not None:
        pooler = Pooler(own_server.dsn, tmp_path / "bouncer")
        pooler.start()
        pids["pooler"] = [pooler.pid]
    report = Path(os.environ["HANGING_REPORT"])
    report.with_suffix(".new").write_text(json.dumps({"root": str(run_root), "pids": pids}))
    report.with_suffix(".new").rename(report)
    while True:
        time.sleep(0.1)
