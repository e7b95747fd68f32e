"""prometheus_client in handlers: /metrics shows it, whatever happens to workers, children, files and the merger."""

from __future__ import annotations

import os
import signal
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from support.cluster import Cluster, Master, wait_for

from pgworkers.prometheus import registry

APP = Path(__file__).parents[1] / "support" / "prometheus_app.py"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def start(cluster: Cluster, queues: str = "default:2", app: str = "", **environ: str) -> tuple[Master, str]:
    cluster.app.write_text(app or APP.read_text())
    temporary = cluster.directory / "temporary"
    temporary.mkdir(exist_ok=True)
    master = cluster.start(
        queues=queues, PGWORKERS_METRICS_ADDRESS="127.0.0.1:0", TMPDIR=str(temporary), **environ
    )
    lines = wait_for(lambda: [line for line in master.log().splitlines() if line.startswith("metrics ")])
    return master, lines[0].split()[1]


def scrape(address: str, accept: str = "text/plain") -> Samples:
    request = urllib.request.Request(address, headers={"Accept": accept})
    text = urllib.request.urlopen(request, timeout=60).read().decode()
    parse = (
        openmetrics.text_string_to_metric_families
        if "openmetrics" in accept
        else text_string_to_metric_families
    )
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


PDF = ("shop_pages_total", (("format", "pdf"),))
PNG = ("shop_pages_total", (("format", "png"),))


def files(cluster: Cluster) -> list[str]:
    return sorted(path.name for path in cluster.directory.glob("temporary/*/*"))


def until(address: str, key: tuple[str, tuple[tuple[str, str], ...]], value: float) -> Samples:
    """The scrape in which a series has this value. A late merger costs one scrape."""

    def found() -> Samples | None:
        samples = scrape(address)
        return samples if samples.get(key) == value else None

    return wait_for(found, what=f"{key} = {value}; now {scrape(address).get(key)}")


@pytest.mark.excused("audit", "jobs of this test kill their own worker")
def test_counts_survive_the_death_of_their_workers(cluster: Cluster) -> None:
    master, address = start(cluster)
    cluster.enqueue("draw", 30)
    cluster.enqueue("draw", 30, args={"is_killed": True})
    cluster.until_all_ended()
    samples = until(address, PDF, 60 * 40)
    assert samples["shop_page_seconds_bucket", (("le", "1.0"),)] == 60
    assert samples["shop_page_seconds_count", ()] == 60
    assert samples["shop_page_seconds_sum", ()] == pytest.approx(30)
    assert samples["shop_in_hand", ()] == 0, "what dead workers had in hand is gone with them"
    assert not [name for name, labels in samples if dict(labels).get("pid")], "no pid is a label"
    assert samples["pgworkers_jobs_started_total", (("queue", "default"), ("task", "draw"))] == 60
    assert ("pgworkers_jobs_started_total", ()) not in samples, "a name of ours is not theirs"
    slots = {name.rpartition(".")[0].rpartition(".")[2] for name in files(cluster) if name.endswith(".db")}
    assert slots <= {"0", "1", "supervisor"}, "files are named by slot, so their number does not grow"
    assert scrape(address, "application/openmetrics-text; version=1.0.0")[PDF] == 60 * 40
    assert master.titles("pgworkers: metrics"), "the merger is a process of its own"
    master.terminate()
    assert files(cluster) == [], "the directory is removed with the host"


def test_children_of_handlers_count_and_leave_no_files(cluster: Cluster) -> None:
    _, address = start(cluster)
    cluster.enqueue("fork", 3)
    cluster.until_all_ended()
    until(address, PNG, 30)
    wait_for(
        lambda: scrape(address)[PNG] == 30 and not [name for name in files(cluster) if ".p" in name],
        what="files of children that are gone are added up",
    )


LATE = """
import os, signal
from pgworkers import App, Ctx

app = App()
app.queue("default", workers=2)

@app.task(retries=0)
def late(is_killed: bool = False):
    import prometheus_client
    try:
        counter = prometheus_client.Counter("late_total", "Made in a handler.")
    except ValueError:
        counter = prometheus_client.REGISTRY._names_to_collectors["late_total"]
    counter.inc()
    if is_killed:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.excused("audit", "jobs of this test kill their own worker")
def test_a_library_that_only_a_handler_imports_counts_as_well(cluster: Cluster) -> None:
    master, address = start(cluster, app=LATE)
    cluster.enqueue("late", 5, args={"is_killed": True})
    cluster.enqueue("late", 5)
    cluster.until_all_ended()
    until(address, ("late_total", ()), 10)
    living = {str(pid) for pid in master.worker_pids()}
    wait_for(
        lambda: (
            scrape(address)["late_total", ()] == 10
            and {name.rpartition("_")[2][:-3] for name in files(cluster) if name.endswith(".db")}
            <= {*living, "gone"}
        ),
        what="files of dead workers are added up",
    )


def test_series_are_limited_and_counted(cluster: Cluster) -> None:
    _, address = start(cluster)
    cluster.enqueue("many")
    cluster.until_all_ended()
    samples = until(address, ("shop_ids_total", (("id", "other"),)), 200)
    assert len([1 for name, _ in samples if name == "shop_ids_total"]) == 101
    wait_for(
        lambda: scrape(address)["pgworkers_series_capped_total", (("what", "user"),)] >= 200,
        what="the limit is counted",
    )


def test_a_reload_lets_two_workers_of_a_slot_count(cluster: Cluster) -> None:
    master, address = start(cluster, "default:1")
    cluster.enqueue("draw", 5)
    cluster.until_all_ended()
    for _ in range(2):
        before = master.supervisor_pids()
        master.signal(signal.SIGHUP)
        wait_for(
            lambda before=before: (
                master.supervisor_pids() and set(master.supervisor_pids()).isdisjoint(before)
            )
        )
        cluster.enqueue("draw", 5)
        cluster.until_all_ended()
    until(address, PDF, 15 * 40)


@pytest.mark.parametrize("way", ["killed", pytest.param("stopped", marks=pytest.mark.slow)])
def test_a_merger_that_does_not_answer_costs_only_its_part(cluster: Cluster, way: str) -> None:
    master, address = start(cluster)
    cluster.enqueue("draw")
    cluster.until_all_ended()
    until(address, PDF, 40)
    (merger, _) = master.titles("pgworkers: metrics")[0]
    os.kill(merger, signal.SIGKILL if way == "killed" else signal.SIGSTOP)
    cluster.enqueue("draw")
    cluster.until_all_ended()
    samples = until(address, ("pgworkers_jobs_started_total", (("queue", "default"), ("task", "draw"))), 2)
    assert samples[PDF] in (40, 80), "the last text, or that of the next merger"
    until(address, PDF, 80)
    assert merger not in dict(master.titles("pgworkers: metrics")), "another one has replaced it"


def test_broken_files_are_put_aside(cluster: Cluster) -> None:
    master, address = start(cluster, "default:1")
    cluster.enqueue("draw")
    cluster.until_all_ended()
    until(address, PDF, 40)
    cluster.enqueue("corrupt")
    cluster.until_all_ended()
    wait_for(
        lambda: scrape(address) and "could not be read and was put aside" in master.log(),
        what="the log names the files",
    )
    until(address, ("pgworkers_jobs_started_total", (("queue", "default"), ("task", "corrupt"))), 1)
    for pid in master.worker_pids():
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: master.titles("idle"), what="the next worker")
    cluster.enqueue("draw")
    cluster.until_all_ended()
    until(address, PDF, 40)


def test_the_directory_of_a_killed_host_is_removed_by_the_next(cluster: Cluster) -> None:
    master, _ = start(cluster)
    first = {path.name for path in cluster.directory.glob("temporary/*")}
    master.process.kill()
    master.wait()
    wait_for(lambda: not master.processes())
    start(cluster)
    second = {path.name for path in cluster.directory.glob("temporary/*")}
    assert len(second) == 1
    assert first.isdisjoint(second)


def test_a_registry_for_programs_that_export_metrics_themselves(cluster: Cluster) -> None:
    master, address = start(cluster)
    cluster.enqueue("draw")
    cluster.until_all_ended()
    until(address, PDF, 40)
    until(address, ("pgworkers_jobs_started_total", (("queue", "default"), ("task", "draw"))), 1)
    host = address.removeprefix("http://").removesuffix("/metrics")
    found = registry(host)
    assert found.get_sample_value("pgworkers_host_up", {"address": host}) == 1
    assert found.get_sample_value("pgworkers_jobs_started_total", {"queue": "default", "task": "draw"}) == 1
    assert found.get_sample_value("shop_pages_total", {"format": "pdf"}) == 40
    assert b"process_cpu" not in generate_latest(found)
    master.terminate()
    assert found.get_sample_value("pgworkers_host_up", {"address": host}) == 0
