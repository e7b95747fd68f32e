"""Rows of part D: output is not read, no process can be forked, no CPU is left, unknown clients at the HTTP port."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from support.cluster import Cluster, Master, wait_for
from support.ledger import audit
from support.metrics_check import scrape, total
from support.time_bounds import BUSY, D, H, K, P, S

pytestmark = pytest.mark.timeout(300)


def test_row_75_unread_output_blocks_nothing(cluster: Cluster) -> None:
    """A pipe of a page and room for a few lines: nearly all of them must be dropped, and none may be waited for."""
    read_end, write_end = os.pipe()
    try:
        page = fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
        port = _free_port()
        more = {
            "PGWORKERS_LOG_FORMAT": "json",
            "PGWORKERS_LOG_BUFFER_SIZE": "8KB",
            "PGWORKERS_LOG_RATE_LIMIT": "0",
        }
        address = f"127.0.0.1:{port}"
        master = cluster.start(
            queues="default:2", stdout=write_end, PGWORKERS_METRICS_ADDRESS=address, **more
        )
        jobs = cluster.enqueue("work", 200)
        oldest = 0.0

        def ended() -> bool:
            nonlocal oldest
            row = cluster.db.execute(
                "SELECT extract(epoch FROM clock_timestamp() - renewed_at)::float FROM pgworkers.host"
            ).fetchone()
            oldest = max(oldest, row[0] if row else 0.0)
            return cluster.counts() == {"succeeded": 200}

        wait_for(ended, what="the jobs go on")
        assert oldest < H + S + BUSY, "its renewals waited for the reader"
        dropped = wait_for(
            lambda: total(scrape(f"http://{address}/metrics"), "log_lines_dropped_total"),
            timeout=H + BUSY,
            what="dropped lines are counted",
        )
        assert dropped > 1, "all had room: nothing was tested"
        assert audit(cluster.db, cluster.ledger, jobs) == []
        assert master.terminate(timeout=D + K + S + BUSY) == 0, "and it leaves in time"
        os.close(write_end)
        write_end = -1
        unread = 0
        while data := os.read(read_end, 1 << 16):
            unread += len(data)
        assert 0 < unread <= page, "somebody read: nothing was tested"
    finally:
        os.close(read_end)
        if write_end >= 0:
            os.close(write_end)


def test_row_76_output_that_was_closed(cluster: Cluster) -> None:
    read_end, out = os.pipe()
    try:
        master = cluster.start(queues="default:1", stdout=out)
        os.close(read_end)
        goes_on(cluster, master, cluster.enqueue("hostile", 3, args={"what": "print"}))
    finally:
        os.close(out)


def test_row_77_a_log_that_cannot_grow(cluster: Cluster) -> None:
    master = cluster.start(queues="default:1")
    size = master.log_path.stat().st_size
    resource.prlimit(master.pid, resource.RLIMIT_FSIZE, (size, size))
    size = master.log_path.stat().st_size  # what it logged before the limit
    goes_on(cluster, master, cluster.enqueue("hostile", 3, args={"what": "raise nasty"}))
    assert master.log_path.stat().st_size == size, "it could be written: nothing was tested"


def goes_on(cluster: Cluster, master: Master, failing: list[int]) -> None:
    jobs = cluster.enqueue("work", 20)
    cluster.until_all_ended(timeout=P + S + BUSY)
    assert cluster.counts() == {"succeeded": 20, "dead": 3}
    assert audit(cluster.db, cluster.ledger, jobs + failing) == []
    assert master.terminate(timeout=D + K + S + BUSY) == 0


@pytest.mark.long
def test_row_74_no_process_can_be_forked_for_a_while(few_pids: Path, cluster: Cluster) -> None:
    place = few_pids
    master = cluster.start(queues="default:2,other:1", cgroup=place)
    victim = master.worker_pids("default/")[0]
    limit = place / "pids.max"
    limit.write_text("1")
    parent = psutil.Process(victim).parent()
    assert parent is not None
    spent, began = sum(parent.cpu_times()[:2]), time.monotonic()
    os.kill(victim, signal.SIGKILL)
    jobs = cluster.enqueue("work", 10, queue="default") + cluster.enqueue("work", 10, queue="other")
    cluster.until_all_ended()
    wait_for(lambda: time.monotonic() - began > 3.0)
    assert sum(parent.cpu_times()[:2]) - spent < (time.monotonic() - began) / 2, "it tries again and again"
    assert cluster.counts() == {"succeeded": 20}, "who was there works on"
    assert len(master.worker_pids("default/")) == 1, "a process was forked: nothing was tested"
    limit.write_text("max")
    wait_for(lambda: len(master.worker_pids("default/")) == 2, timeout=60, what="a new one comes")
    assert master.process.poll() is None
    assert audit(cluster.db, cluster.ledger, jobs) == []
    assert master.terminate() == 0


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.mark.long
def test_row_78_clients_that_stall_and_requests_without_end(cluster: Cluster) -> None:
    port = _free_port()
    cluster.start(queues="default:2", PGWORKERS_METRICS_ADDRESS=f"127.0.0.1:{port}")
    strangers = []
    for n in range(300):
        sock = socket.create_connection(("127.0.0.1", port), timeout=5)
        try:
            sock.sendall(b"GET /" + b"x" * (1 << 20 if n % 50 == 0 else 5))
        except OSError:
            pass  # the server closed the connection
        strangers.append(sock)
    jobs = cluster.enqueue("work", 50)
    cluster.until_all_ended()
    assert audit(cluster.db, cluster.ledger, jobs) == []

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    wait_for(answers, timeout=2 + BUSY, what="two seconds per client, then it answers again")
    for sock in strangers:
        sock.close()


@pytest.mark.long
def test_row_79_a_port_that_is_taken_is_a_clear_error(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        master = cluster.start(wait=False, PGWORKERS_METRICS_ADDRESS=f"127.0.0.1:{port}")
        assert master.wait(60) == 2
    assert "cannot listen" in master.log()
    assert "--metrics" in master.log()
    assert not master.processes()


BURN_CPU = """
@app.task
def burn_cpu(ctx: Ctx, seconds: float) -> None:
    note(ctx, "START")
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
    note(ctx, "END")
"""


@pytest.mark.long
def test_row_81_five_percent_of_a_cpu(little_cpu: Path, cluster: Cluster) -> None:
    place = little_cpu
    cluster.declare(BURN_CPU)
    starved = cluster.start(queues="default:2", cgroup=place)
    cluster.start(queues="default:2")
    try:
        (place / "cpu.cfs_quota_us").write_text("5000")
    except OSError as why:
        pytest.skip(f"NOT TESTED: {why}")
    jobs: list[int] = []

    def starving() -> bool:
        """The other host may take nearly all of them."""
        jobs.extend(cluster.enqueue("burn_cpu", 60, args={"seconds": 0.05}, max_crashes=20))
        cluster.until_all_ended(timeout=110)
        return int((place / "cpu.stat").read_text().split("nr_throttled")[1].split()[0]) > 10

    wait_for(starving, what="it had too little")
    (place / "cpu.cfs_quota_us").write_text("-1")
    assert cluster.counts() == {"succeeded": len(jobs)}
    assert audit(cluster.db, cluster.ledger, jobs) == []
    assert starved.terminate() == 0
