"""What is exported is true, what is drawn has data: a master under load, scraped by a real Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml
from prometheus_client.openmetrics import parser as openmetrics
from support import metrics_check, prometheus
from support.cluster import Cluster, Master, wait_for

pytestmark = pytest.mark.timeout(
    600
)  # a browser's worth of types, a Prometheus, dozens of kills: on a busy machine
GRAFANA = Path(__file__).parents[2] / "grafana"
WATCHED = Path(__file__).parents[1] / "support" / "metrics_app.py"
#: Parts of alerts that are empty while all is well: they compare, or speak of what must not be.
COMPARES = re.compile(r"\s*(?:>|<|==)\s*[0-9.]+(?:\s*\*\s*[0-9]+)*\s*\)?")


def watched(cluster: Cluster, workers: str = "default:2,mail:1", **environ: str) -> tuple[Master, str]:
    """A master of the watched app, and the address of its metrics."""
    shutil.copy(WATCHED, cluster.app)
    environ = {"PGWORKERS_METRICS_ADDRESS": "127.0.0.1:0", "PGWORKERS_QUEUE_DEPTH_INTERVAL": "0.5s"} | environ
    master = cluster.start(queues=workers, **environ)
    lines = wait_for(lambda: [line for line in master.log().splitlines() if line.startswith("metrics ")])
    return master, lines[0].split()[1]


def expressions() -> list[str]:
    """Every expression of both dashboards, and each alert's without its threshold."""
    found = []
    for board in sorted((GRAFANA / "dashboards").glob("*.json")):
        for panel in json.loads(board.read_text())["panels"]:
            for target in panel.get("targets", ()):
                text = target["expr"].replace("$__rate_interval", "10s").replace("$__range", "30s")
                found.append(re.sub(r"\$(job|queue|task)", ".*", text))
    for group in yaml.safe_load((GRAFANA / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            parts = re.split(r"\s+(?:unless|and) on \([^)]*\)\s+|\s+or\s+", rule["expr"])
            found += [COMPARES.sub("", part).removeprefix("(") for part in parts if "absent(" not in part]
    return found


def scrape(address: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    request = urllib.request.Request(
        address, headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    text = urllib.request.urlopen(request, timeout=60).read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in openmetrics.text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_rules_and_metrics_satisfy_promtool(cluster: Cluster) -> None:
    prometheus.promtool("check", "rules", GRAFANA / "alerts.yml")
    prometheus.promtool("test", "rules", GRAFANA / "alerts_test.yml")
    _, address = watched(cluster)
    cluster.enqueue("work", 3)
    cluster.until_all_ended()
    said = prometheus.promtool("check", "metrics", text=urllib.request.urlopen(address, timeout=60).read())
    assert said.strip() == ""


def test_a_real_prometheus_answers_every_expression(cluster: Cluster, tmp_path: Path) -> None:
    prometheus.binaries()
    master, address = watched(cluster)
    with prometheus.running(tmp_path, [address.removeprefix("http://").removesuffix("/metrics")]) as watcher:

        def load() -> None:
            cluster.enqueue("work", 20)
            cluster.enqueue("send", 3, queue="mail")
            for task in ("fail", "hang", "die"):
                cluster.enqueue(task)

        empty = expressions()
        assert len(empty) > 80

        def answered() -> bool:
            nonlocal empty
            load()
            empty = [expression for expression in empty if not watcher.query(expression)]
            return not empty

        try:
            wait_for(answered, timeout=200, what="an answer to every expression")
        except AssertionError:
            pytest.fail("no answer:\n" + "\n".join(empty))
        durations = {"query": "pgworkers_job_duration_seconds_bucket", "start": "0", "end": "9e9"}
        wait_for(lambda: watcher.ask("query_exemplars", **durations), what="an exemplar names a job")
        own = 'pgworkers_user_pages_total{format="pdf",task="work"}'
        wait_for(lambda: watcher.query(own), what="a metric of the handler's own, at the next scrape")
        assert {rule["health"] for group in watcher.ask("rules")["groups"] for rule in group["rules"]} <= {
            "ok",
            "unknown",
        }
    assert master.process.poll() is None


def test_only_the_leader_counts_queues(cluster: Cluster) -> None:
    master, first = watched(cluster)
    wait_for(lambda: "this host leads" in master.log(), what="the first one leads")
    _, second = watched(cluster, "default:2")  # the one worker of mail is on the first
    queues = ("pgworkers_queue_jobs", (("queue", "default"), ("state", "ready")))
    leader = ("pgworkers_leader", ())
    wait_for(lambda: queues in scrape(first), what="the leader's snapshot")
    assert [scrape(address)[leader] for address in (first, second)] == [1, 0]
    assert queues not in scrape(second)
    cluster.masters[0].terminate()
    wait_for(
        lambda: scrape(second).get(leader) == 1 and queues in scrape(second),
        what="the next leader's snapshot",
    )


def test_metrics_equal_the_ledger_after_kills_retries_cancels_and_a_reload(cluster: Cluster) -> None:
    master = cluster.start(
        queues="default:2", PGWORKERS_METRICS_ADDRESS="127.0.0.1:0", PGWORKERS_RESTART_LIMIT="1000"
    )
    lines = wait_for(lambda: [line for line in master.log().splitlines() if line.startswith("metrics ")])
    wrong, did = metrics_check.prove(cluster, master, lines[0].split()[1], kills=24, seed=1)
    assert wrong == []
    assert did["kills"] >= 24
    assert did["cancels"] > 0
    assert did["reloads"] == 1


def test_the_dashboards_are_what_grafanas_own_types_say(tmp_path: Path) -> None:
    checked = check_types()
    if checked.returncode == 3:
        pytest.skip(f"NOT TYPE-CHECKED: {checked.stderr.strip()}")
    assert checked.returncode == 0, checked.stdout
    wrong = json.loads((GRAFANA / "dashboards" / "pgworkers-task.json").read_text())
    wrong["panels"][1]["gridPos"]["w"] = "wide"
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    checked = check_types(tmp_path / "wrong.json")
    assert checked.returncode == 1
    assert "'string' is not assignable to type 'number'" in checked.stdout


def check_types(*boards: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, GRAFANA.parent / "scripts" / "check-grafana", *boards]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
