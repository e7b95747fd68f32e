"""Faults that a newcomer found, each as the report that it was."""

from __future__ import annotations

import os
import re
import signal
import socket
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import psutil
import pytest
from psycopg.types.json import Jsonb
from support.cluster import Cluster, wait_for
from support.command import Command
from support.ledger import audit, read

ODD = """

@app.task(retries=0)
def stops(ctx: Ctx) -> int:
    return next(iter([]))


@app.task(retries=0)
def leaks(ctx: Ctx) -> None:
    hoard = bytearray(200_000_000)
    hoard[::4096] = b"x" * len(hoard[::4096])
    raise ValueError("with full hands")
"""


def test_a_handler_that_raises_stop_iteration_has_failed(cluster: Cluster) -> None:
    cluster.app.write_text(cluster.app.read_text() + ODD)
    cluster.start(queues="default:1")
    [job] = cluster.enqueue("stops", max_attempts=1)
    row = cluster.until(job, "dead")
    assert "StopIteration" in row["error"]


def test_what_a_failed_handler_held_is_given_back(cluster: Cluster) -> None:
    cluster.app.write_text(cluster.app.read_text() + ODD)
    master = cluster.start(queues="default:1")
    [job] = cluster.enqueue("leaks", max_attempts=1)
    cluster.until(job, "dead")
    [pid] = master.worker_pids()
    wait_for(lambda: psutil.Process(pid).memory_info().rss < 150_000_000, what="given back after the report")


@pytest.mark.excused("I5", "its handler cannot be called")
def test_a_job_that_cannot_be_read_is_dead_and_the_queue_goes_on(cluster: Cluster) -> None:
    """Rows that were inserted by hand, past every check of the API."""
    master = cluster.start(queues="default:1")
    for domain, constraint in (
        ("arguments", "job_args_are_flat"),
        ("job_meta", "job_meta_fits"),
        ("job_meta", "job_meta_is_flat"),
        ("job_timeout", "job_timeout_fits"),
    ):
        cluster.db.execute(f"ALTER DOMAIN pgworkers.{domain} DROP CONSTRAINT {constraint}")
    deep = "[" * 5000 + "]" * 5000
    columns = "queue, task, args, timeout, meta"
    insert = f"INSERT INTO pgworkers.job ({columns}) VALUES ('default', 'work', %s, %s, %s) RETURNING id"
    poison = [
        cluster.db.execute(insert, values).fetchone()[0]
        for values in (
            (f'{{"value": {deep}}}', None, None),
            ("{}", None, f'{{"x": {deep}}}'),
            ("{}", "100000 years", None),
        )
    ]
    [good] = cluster.enqueue("work")
    cluster.until(good, "succeeded")
    cluster.until_all_ended()
    for job, why in zip(poison, ("nested too deeply", "cannot be read"), strict=False):
        state, error = cluster.db.execute(
            "SELECT state::text, error FROM pgworkers.jobs WHERE id = %s", (job,)
        ).fetchone()
        assert (state, why in error) == ("dead", True)
    assert len(master.worker_pids()) == 1


def test_a_frozen_supervisor_is_replaced_and_its_jobs_cost_nothing(cluster: Cluster) -> None:
    master = cluster.start(queues="default:1", PGWORKERS_SUPERVISOR_TIMEOUT="2s")
    [job] = cluster.enqueue("work", args={"seconds": 1.0})
    wait_for(lambda: read(cluster.ledger))
    [supervisor] = master.supervisor_pids()
    os.kill(supervisor, signal.SIGSTOP)
    wait_for(lambda: "it is stopped or starved of CPU" in master.log())
    wait_for(lambda: supervisor not in master.supervisor_pids() and master.supervisor_pids())
    row = cluster.until(job, "succeeded")
    assert row["crashes"] == 0
    assert audit(cluster.db, cluster.ledger, [job]) == []


def test_a_burst_takes_what_is_due_and_leaves_what_it_does_not_know(cluster: Cluster) -> None:
    [due] = cluster.enqueue("work", delay="0.01 seconds")
    [unknown] = cluster.enqueue("of_another_app")
    master = cluster.start("--burst", wait=False, queues="default:1")
    assert master.wait() == 0, master.log()
    assert (cluster.state(due), cluster.state(unknown)) == ("succeeded", "ready")


def test_a_burst_ends_when_the_rest_cannot_run_and_says_why(cluster: Cluster) -> None:
    cluster.start("--burst", wait=False, queues="default:1,images:1").wait()  # the queues are known
    cluster.db.execute("UPDATE pgworkers.queue SET paused = true WHERE name = 'images'")
    cluster.db.execute("INSERT INTO pgworkers.concurrency (kind, name, slots) VALUES ('task', 'fail', 0)")
    [runs] = cluster.enqueue("work")
    cluster.enqueue("work", 2, queue="images")
    cluster.enqueue("fail")
    cluster.enqueue("work", delay="3 days")
    cluster.enqueue("of_another_app")
    master = cluster.start("--burst", wait=False, queues="default:1,images:1")
    assert master.wait() == 0, master.log()
    assert cluster.state(runs) == "succeeded"
    log = master.log()
    assert "the queues are empty" not in log
    assert "nothing is left that could run now; 5 jobs stay" in log
    assert "left: 2 jobs of work: the queue images is paused; pgworkers queues resume images" in log
    assert "left: 1 job of fail: the limit of fail, or of their concurrency key, is 0" in log
    assert "left: 1 job of work: scheduled for 3d from now" in log or "scheduled for 2d" in log
    assert "left: 1 job of of_another_app: this app has no task of_another_app" in log


def test_a_burst_that_only_waits_says_so_once(cluster: Cluster) -> None:
    [job] = cluster.enqueue("work", delay="1 hour")
    cluster.db.execute("UPDATE pgworkers.job SET attempt = 1 WHERE id = %s", [job])  # as after a retry
    master = cluster.start("--burst", queues="default:1")
    wait_for(lambda: "burst: waiting for a job" in master.log())
    cluster.db.execute("UPDATE pgworkers.job SET run_at = now() WHERE id = %s", [job])
    assert master.wait() == 0, master.log()
    assert cluster.state(job) == "succeeded"
    assert master.log().count("burst: waiting for") == 1


def test_an_app_that_starts_threads_is_refused_at_the_start(cluster: Cluster) -> None:
    threads = (
        "\nimport threading, time\nthreading.Thread(target=time.sleep, args=(600,), name='mine').start()\n"
    )
    cluster.app.write_text(cluster.app.read_text() + threads)
    master = cluster.start(wait=False)
    assert master.wait() == 6, master.log()
    assert "mine" in master.log()
    assert "on_worker_start" in master.log()


@pytest.mark.parametrize("address", ["banana", "0.0.0.0:99999", "127.0.0.1:", "no.such.host.invalid:9911"])
def test_check_refuses_an_address_that_a_start_would_refuse(cluster: Cluster, address: str) -> None:
    for words in (["--check"], []):
        master = cluster.start(*words, "--metrics", address, wait=False)
        assert master.wait() == 2, master.log()
        assert "metrics" in master.log()
        assert "check     ok" not in master.log()


def test_check_warns_of_a_port_that_is_taken(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        master = cluster.start("--check", "--metrics", address, wait=False)
        assert master.wait() == 0, master.log()
        assert f"{address}, but not now: metrics: cannot listen" in master.log()


def test_the_label_is_in_the_title_the_metrics_and_the_lists(cluster: Cluster, tmp_path: Path) -> None:
    label = 'blue "7"'
    master = cluster.start(
        queues="default:1", PGWORKERS_HOST_LABEL=label, PGWORKERS_METRICS_ADDRESS="127.0.0.1:0"
    )
    wait_for(
        lambda: [title for _, title in master.titles("pgworkers: master") if title.endswith(f", {label}")]
    )
    address = re.search(r"http://[\d.:]+", master.log())
    assert address is not None
    page = urllib.request.urlopen(f"{address[0]}/metrics", timeout=60).read().decode()
    assert re.search(r'^pgworkers_build_info\{.*label="blue \\"7\\""\} 1', page, re.MULTILINE), page
    cli = Command(tmp_path, PGWORKERS_DSN=cluster.dsn)
    rows = wait_for(lambda: cli("workers", "list", "-o", "json").json())
    assert [row["label"] for row in rows] == [label]
    assert [row["label"] for row in cli("hosts", "-o", "json").json()] == [label]


@pytest.mark.excused("audit", "the test drops the schema")
def test_check_changes_nothing(cluster: Cluster) -> None:
    cluster.db.execute("DROP SCHEMA pgworkers CASCADE")
    master = cluster.start("--check", wait=False)
    assert master.wait() == 0, master.log()
    assert "would migrate" in master.log()
    assert cluster.db.execute("SELECT to_regnamespace('pgworkers')").fetchone() == (None,)


def test_health_and_metrics_answer_and_say_why_not(cluster: Cluster) -> None:
    master = cluster.start(
        queues="default:1", PGWORKERS_METRICS_ADDRESS="127.0.0.1:0", PGWORKERS_DRAIN_TIMEOUT="60s"
    )
    address = wait_for(
        lambda: [line.split()[1] for line in master.log().splitlines() if line.startswith("metrics")]
    )[0]
    base = address.removesuffix("/metrics")
    [job] = cluster.enqueue("work", meta=Jsonb({}))
    cluster.until(job, "succeeded")

    def scraped() -> str:
        text: str = urllib.request.urlopen(address, timeout=60).read().decode()
        return text

    # the row is there before the master has received the answer
    one = 'pgworkers_jobs_finished_total{queue="default",task="work",verdict="succeeded"} 1.0'
    wait_for(lambda: one in scraped())
    text = scraped()
    assert 'pgworkers_jobs_finished_total{queue="default",task="fail",verdict="error"} 0.0' in text
    duty = 'pgworkers_duty_seconds_count{duty="check_due"}'
    wait_for(lambda: duty in scraped())
    assert urllib.request.urlopen(f"{base}/livez", timeout=60).status == 200
    assert urllib.request.urlopen(f"{base}/readyz?verbose", timeout=60).read().startswith(b"ok")
    [slow] = cluster.enqueue("gate")
    wait_for(lambda: any(e.job == slow for e in read(cluster.ledger)))
    master.signal(signal.SIGTERM)
    wait_for(lambda: "draining" in master.log())
    with pytest.raises(HTTPError) as refused:
        urllib.request.urlopen(f"{base}/readyz?verbose", timeout=60)
    assert refused.value.code == 503
    assert b"draining" in refused.value.read()


def test_two_hosts_on_one_machine_have_separate_metrics_and_are_distinguished(
    cluster: Cluster, tmp_path: Path
) -> None:
    masters = [cluster.start(queues="default:1", PGWORKERS_METRICS_ADDRESS="") for _ in range(2)]
    cli = Command(tmp_path, PGWORKERS_DSN=cluster.dsn)
    workers = wait_for(
        lambda: (found := cli("workers", "list", "-o", "json").json()) and len(found) == 2 and found
    )
    assert {row["host_pid"] for row in workers} == {master.pid for master in masters}
    shown = cli("workers", "list").lines()
    assert shown[0].split()[:2] == ["HOST", "MASTER"]
    assert {line.split()[1] for line in shown[1:]} == {str(master.pid) for master in masters}
    hosts = {row["pid"]: row["metrics"] for row in cli("hosts", "-o", "json").json()}
    assert len(set(hosts.values())) == 2
    assert all(page.startswith("http://127.0.0.1:") for page in hosts.values()), hosts
    for master in masters:
        assert f"metrics   {hosts[master.pid]}" in master.log()
        page = urllib.request.urlopen(hosts[master.pid], timeout=60).read().decode()
        assert "pgworkers_build_info" in page


def test_check_makes_no_database(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("from pgworkers import App\napp = App()\napp.queue('default')\n")
    told = Command(tmp_path)("run", "--check")
    assert f"embedded, would be made in {tmp_path}/.pgworkers" in told.out
    assert "check     ok" in told.out
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["app.py"]
