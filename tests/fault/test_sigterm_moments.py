"""Row 82: SIGTERM at any moment; two hundred that are drawn, and the ones between two statements, held open."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support import sigterm_moments
from support.cluster import Cluster, Master, wait_for
from support.cluster_fixtures import audited_cluster
from support.ledger import audit, read
from support.server import Server
from support.sigterm_moments import PHASES, DrawnMoment
from support.time_bounds import BUSY, D, K

MOMENTS = int(os.environ.get("FAULT_MOMENTS", "200"))
LEAST = 3  # moments of each phase, or the run has shown nothing
AT_ONCE = 4
LATEST = D + K + 10.0 + 4 + BUSY  # with the statement timeout of the unhurried
pytestmark = pytest.mark.timeout(1800)


@pytest.mark.long
def test_row_82_sigterm_at_two_hundred_random_moments(
    request: pytest.FixtureRequest, server: Server, template: str, tmp_path: Path
) -> None:
    """Several hosts live and leave at once, each on a database of its own: all that is seen there is its doing."""
    seed = int(os.environ.get("FAULT_SEED", time.time_ns() % 1_000_000))
    print(f"replay: FAULT_SEED={seed} FAULT_MOMENTS={MOMENTS} scripts/test -m long {__file__}")
    drawn = [sigterm_moments.draw(seed, number) for number in range(MOMENTS)]
    hit: Counter[str] = Counter()
    failed = threading.Event()

    def run_hosts(cluster: Cluster, mine: list[DrawnMoment]) -> None:
        try:
            for one in mine:
                if failed.is_set():
                    return
                began = time.monotonic()
                phases = run_to_the_end(cluster, one)
                hit.update(phases)
                print(f"{one}: {', '.join(sorted(phases))}; {time.monotonic() - began:.1f} s")
            last_life(cluster)
        except BaseException:
            failed.set()
            raise

    with ExitStack() as stack:
        clusters = [
            stack.enter_context(own(request, server, template, tmp_path / str(at))) for at in range(AT_ONCE)
        ]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            ends = [
                pool.submit(run_hosts, cluster, drawn[at::AT_ONCE]) for at, cluster in enumerate(clusters)
            ]
        for end in ends:
            end.result()
    print(f"FAULT_SEED={seed}: {MOMENTS} moments: {dict(hit)}")
    missed = [phase for phase in PHASES if hit[phase] < LEAST]
    assert not missed, f"FAULT_SEED={seed}: hardly a moment was {' or '.join(missed)}: {dict(hit)}"


@contextmanager
def own(request: pytest.FixtureRequest, server: Server, template: str, directory: Path) -> Iterator[Cluster]:
    directory.mkdir()
    name = server.create(template=template)
    try:
        with audited_cluster(request, server.dsn(name), directory) as cluster:
            cluster.declare(sigterm_moments.STUBBORN)
            yield cluster
    finally:
        server.drop(name)


def run_to_the_end(cluster: Cluster, drawn: DrawnMoment) -> set[str]:
    """Run one host from its start to its end. Returns what it was doing when SIGTERM came."""
    before = begun(cluster)
    if drawn.load != "boot":
        sigterm_moments.enqueue(cluster, drawn)
    master = cluster.start(queues=drawn.queues, wait=False, PGWORKERS_LOG_FORMAT="json", **drawn.environ)
    if drawn.load != "boot":
        wait_for(
            lambda: sigterm_moments.state_change(master, "running") or master.process.poll() is not None,
            what=f"{drawn}: runs",
        )
        wait_for(lambda: begun(cluster) >= before + drawn.begun, what=f"{drawn}: works")
    with sigterm_moments.slow_server(cluster, drawn):
        time.sleep(drawn.after)
        moment = sigterm_moments.send_sigterm(cluster, master, drawn, signal.SIGTERM)
    lapsed = watched_to_the_end(cluster, master)
    told = f"{drawn}\n{master.log()[-4000:]}"
    code = master.wait(0)
    # A host that gets SIGTERM before it installs its handler ends by the signal, and has nothing to clean up.
    unknown = (
        not moment.running
        and code == -signal.SIGTERM
        and sigterm_moments.state_change(master, "draining") is None
    )
    assert code == 0 or unknown, f"ended with {code}: {told}"
    assert not lapsed, f"it still lived and was not renewed in time: {told}"
    wait_for(lambda: not master.processes(), what=f"I13 no process of its is left: {told}")
    assert not (left := sigterm_moments.left_behind(cluster)), f"I11 {left}: {told}"
    wrong = list(sigterm_moments.judge(cluster, master, moment))
    assert not wrong, f"{wrong}: {told}"
    return moment.phases


def begun(cluster: Cluster) -> int:
    return cluster.ledger.read_bytes().count(b"START") if cluster.ledger.exists() else 0


def watched_to_the_end(cluster: Cluster, master: Master) -> bool:
    """Was the lease ever seen lapsed? The heartbeat goes on to the end."""
    until = time.monotonic() + LATEST
    lapsed = False
    while master.process.poll() is None:
        assert time.monotonic() < until, (
            f"I11 D + K + S are over, and it is still there: {master.log()[-4000:]}"
        )
        row = cluster.db.execute(
            "SELECT count(*) > 0 FROM pgworkers.host WHERE clock_timestamp() - renewed_at > lease"
        ).fetchone()
        lapsed = lapsed or row == (True,)
        time.sleep(0.05)
    return lapsed


def last_life(cluster: Cluster) -> None:
    """A host that may stay as long as it takes: nothing was lost, and what ran twice was stopped by a drain."""
    cluster.open_gate()
    last = cluster.start(queues=sigterm_moments.QUEUES)
    cluster.until_all_ended()
    assert last.terminate() == 0, last.log()
    assert cluster.counts() == {"succeeded": len(cluster.enqueued)}
    interrupted = {
        (job, lease)
        for job, lease in cluster.db.execute(
            "SELECT job_id, lease FROM pgworkers.attempt WHERE verdict = 'interrupted'"
        )
    }
    starts = [entry for entry in read(cluster.ledger) if entry.kind == "START"]
    latest: dict[int, int] = {}
    for entry in starts:
        latest[entry.job] = max(entry.lease, latest.get(entry.job, 0))
    for entry in starts:
        explained = entry.lease == latest[entry.job] or (entry.job, entry.lease) in interrupted
        assert explained, f"job {entry.job} ran again after lease {entry.lease}, and nobody says why"
    assert audit(cluster.db, cluster.ledger, cluster.enqueued) == []
