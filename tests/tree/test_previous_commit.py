"""Row 88 with the real thing: the code of an earlier commit, taken from git, on the schema of today.

It works, together with today's hosts, or it refuses with exit code 5, says why and touches nothing. Where a clone has no
history there is nothing to take: skipped loudly.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.cluster import Cluster, wait_for
from support.ledger import audit

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

#: How git is asked for it.
COMMITS = {
    "the commit before": ["rev-parse", "HEAD~1"],
    "the commit before the last change of the schema": [
        "log",
        "-1",
        "--format=%H~1",
        "--",
        "pgworkers/schema",
    ],
}
REFUSALS = ("is newer than this pgworkers", "was made by another version of")


def git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=False)


@pytest.fixture(params=COMMITS)
def previous(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory with the package as it was."""
    found = git(*COMMITS[request.param])
    lines = found.stdout.decode().split()
    commit = lines[0] if lines else ""
    packed = git("archive", commit, "pgworkers") if commit and found.returncode == 0 else found
    if packed.returncode != 0 or not commit:
        pytest.skip(f"NOT TESTED: no history of {request.param}: {packed.stderr.decode().strip()[-200:]}")
    place = tmp_path / "previous"
    place.mkdir()
    subprocess.run(["tar", "-x", "-C", str(place)], input=packed.stdout, check=True)
    said = subprocess.run(
        [sys.executable, "-c", "import pgworkers; print(pgworkers.__file__)"],
        env={"PYTHONPATH": str(place)}, cwd=tmp_path, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert said.startswith(str(place)), "not the previous code: nothing would be tested"
    return place


def test_row_88_a_host_of_an_earlier_commit_works_on_the_new_schema_or_refuses_clearly(
    previous: Path, cluster: Cluster
) -> None:
    old = cluster.start(queues="default:2,old:1", wait=False, PYTHONPATH=str(previous))
    wait_for(lambda: old.process.poll() is not None or len(old.titles("idle")) >= 3, timeout=60)
    refused = old.process.poll() is not None
    if refused:
        assert old.process.returncode == 5, old.log()
        assert any(words in old.log() for words in REFUSALS), old.log()
        assert cluster.db.execute("SELECT count(*) FROM pgworkers.host").fetchone() == (0,)
    cluster.start(queues="default:2,old:1" if refused else "default:2")
    jobs = cluster.enqueue("work", 40, args={"seconds": 0.02})
    jobs += cluster.enqueue("work", 10, queue="old")  # the old host has this queue for itself, if it works
    jobs += cluster.enqueue("fail", 5, args={"times": 1})
    cluster.until_all_ended()
    assert cluster.counts() == {"succeeded": 55}
    assert audit(cluster.db, cluster.ledger, jobs) == []
    if not refused:
        assert old.terminate() == 0, old.log()
