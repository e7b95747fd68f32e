"""What `pgworkers export` writes for a host's surroundings, read by the tools it is for."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.command import Command

from pgworkers.deploy.render import (
    STOP_MARGIN_SECONDS,
    deployment_of,
    dns_label,
    render_kubernetes,
    render_systemd_unit,
)
from pgworkers.master import http
from pgworkers.master.drain import max_stop_seconds
from pgworkers.settings import load_settings
from pgworkers.specs import AppSpec, QueueSpec

APP = """
from pgworkers import App
app = App(drain_timeout="2m")
app.queue("default", workers=3, memory="512MB")
app.queue("odd 'name' #[x]", workers=1)
"""


@pytest.fixture
def cli(tmp_path: Path) -> Command:
    home = tmp_path / "My Reports"
    home.mkdir()
    (home / "app.py").write_text(APP)
    return Command(home)


def tool(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"NOT TESTED: {name} is not installed")
    return found


def module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        pytest.skip(f"NOT TESTED: {name} is not installed (scripts/setup dev)")


def stop_of(drain: float) -> int:
    return (
        int(max_stop_seconds(load_settings(environ={}, app={"drain_timeout": drain}).settings))
        + STOP_MARGIN_SECONDS
    )


def test_a_unit_that_systemd_understands(cli: Command, tmp_path: Path) -> None:
    text = cli("export", "systemd", "--user", "root").out
    lines = text.splitlines()
    assert "Type=notify" in lines
    assert "KillMode=mixed" in lines
    assert f"TimeoutStopSec={stop_of(120)}" in lines  # what the app says counts
    program = Path(sys.executable).with_name("pgworkers")
    assert f'ExecStart={program} --config "{cli.cwd}/app.py" run' in lines
    assert f"WorkingDirectory={cli.cwd}" in lines
    path = tmp_path / "my-reports.service"
    path.write_text(text)
    done = subprocess.run(
        [tool("systemd-analyze"), "--man=no", "verify", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if "my-reports" in line]
    assert (done.returncode, ours) == (0, []), done.stderr


def test_a_unit_with_a_mistake_is_noticed(tmp_path: Path) -> None:
    """The broken twin: the tool does look."""
    path = tmp_path / "broken.service"
    path.write_text("[Service]\nType=notfy\nExecStart=/nowhere/pgworkers run\nKilMode=mixed\n")
    done = subprocess.run(
        [tool("systemd-analyze"), "--man=no", "verify", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "KilMode" in done.stderr
    assert done.returncode != 0


def test_what_the_environment_says_of_a_stop_is_in_the_unit(cli: Command) -> None:
    text = cli("export", "systemd", PGWORKERS_DRAIN_TIMEOUT="10s").out
    assert "Environment=PGWORKERS_DRAIN_TIMEOUT=10s" in text.splitlines()
    assert f"TimeoutStopSec={stop_of(10)}" in text.splitlines()


def test_percent_signs_and_quotes_stay_what_they_are() -> None:
    app = deployment_of(
        "a", '/srv/100%/"a b"/app.py', load_settings(environ={"PGWORKERS_DRAIN_TIMEOUT": "5s"}), None
    )
    text = render_systemd_unit(
        app, program="/opt/x y/pgworkers", user="u", directory="/srv/100%", environment_file="/etc/a.env"
    )
    assert 'ExecStart="/opt/x y/pgworkers" --config "/srv/100%%/\\"a b\\"/app.py" run' in text
    assert "WorkingDirectory=/srv/100%%\n" in text


def parsed(text: str) -> list[dict[str, Any]]:
    return list(module("yaml").safe_load_all(text))


def test_manifests_that_kubernetes_understands(cli: Command) -> None:
    deployment, policy, scaled = parsed(cli("export", "k8s", "--image", "r.example/app:1").out)
    for one in (deployment, policy):
        module("kubernetes_validate").validate(one, "1.31", strict=True)
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["terminationGracePeriodSeconds"] == stop_of(120)
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert (
        variables["PGWORKERS_SERVICE_STOP_TIMEOUT"] == f"{stop_of(120)}s"
    )  # what `doctor` compares the drain with
    assert {"livenessProbe", "readinessProbe", "startupProbe"} <= set(container)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["resources"]["limits"]["memory"] == f"{256 + 3 * 512}Mi"
    queries = [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
    assert queries == ["SELECT pgworkers.backlog('default')", "SELECT pgworkers.backlog('odd ''name'' #[x]')"]
    assert [trigger["metadata"]["targetQueryValue"] for trigger in scaled["spec"]["triggers"]] == ["3", "1"]
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"] == "my-reports"
    assert scaled["spec"]["minReplicaCount"] == 1


def test_s15_only_prometheus_reaches_the_port_of_a_pod(cli: Command) -> None:
    text = cli("export", "k8s", "--monitoring-namespace", "prom").out
    assert "0.0.0.0" not in text
    deployment, policy, _ = parsed(text)
    assert (policy["kind"], policy["spec"]["policyTypes"]) == ("NetworkPolicy", ["Ingress"])
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (port,) = container["ports"]
    (rule,) = policy["spec"]["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": port["containerPort"]}]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "prom"}}}]
    variables = [one["name"] for one in container["env"]]
    assert variables.index("POD_IP") < variables.index("PGWORKERS_METRICS_ADDRESS"), (
        "it is made of the one before"
    )
    values = {one["name"]: one.get("value") for one in container["env"]}
    assert values["PGWORKERS_METRICS_ADDRESS"] == f"$(POD_IP):{port['containerPort']}"
    for address in ("10.0.0.7", "fd00::7"):  # what Kubernetes writes there
        assert http.parse_address(f"{address}:9911") == (address, 9911)


def test_s15_a_container_answers_only_inside_of_it(cli: Command) -> None:
    lines = [line for line in cli("export", "docker").out.splitlines() if not line.startswith("#")]
    assert not [line for line in lines if "0.0.0.0" in line or line.startswith("EXPOSE")]


def test_a_manifest_with_a_mistake_is_noticed(cli: Command) -> None:
    kubernetes = module("kubernetes_validate")
    deployment, *_ = parsed(cli("export", "k8s").out)
    deployment["spec"]["template"]["spec"]["terminationGracePeriodSecond"] = 1
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate(deployment, "1.31", strict=True)


def test_a_pod_has_room_for_all_workers_that_are_counted_over_all_hosts() -> None:
    spec = AppSpec("a", "1", (QueueSpec("api", cluster_workers=6, memory=100 << 20), QueueSpec("b")), ())
    app = deployment_of("a", "app.py", load_settings(environ={}), spec)
    assert (app.workers_per_queue, app.memory_bytes) == ({"api": 6, "b": 1}, 600 << 20)


def test_hostile_names_stay_strings() -> None:
    spec = AppSpec("a", "1", (QueueSpec('x": {}\n- evil: "'),), ())
    text = render_kubernetes(
        deployment_of("a", "app.py", load_settings(environ={}), spec),
        image='i"\nkind: Evil',
        secret="s",
        max_pods=3,
    )
    deployment, _, scaled = parsed(text)
    assert deployment["kind"] == "Deployment"
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == 'i"\nkind: Evil'
    assert len(scaled["spec"]["triggers"]) == 1
    assert dns_label("Ünïcode -- name!") == "n-code-name"
    assert dns_label("---") == "pgworkers"


def test_a_dockerfile_without_a_complaint(cli: Command) -> None:
    text = cli("export", "docker", "--python", "3.12").out
    assert "FROM python:3.12-slim\n" in text
    assert "\nUSER 10001\n" in text
    (entry,) = (line for line in text.splitlines() if line.startswith("ENTRYPOINT "))
    assert json.loads(entry.removeprefix("ENTRYPOINT ")) == ["pgworkers", "--config", "app.py"]
    done = subprocess.run(
        [tool("hadolint"), "-"], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout


def test_a_procfile_and_exports_without_an_app(tmp_path: Path) -> None:
    cli = Command(tmp_path)
    assert cli("export", "procfile").out == "worker: pgworkers run --config app.py\n"
    bare = cli("export", "k8s")
    assert "there is no app.py here" in bare.err
    assert len(parsed(bare.out)) == 3
    (tmp_path / "app.py").write_text("raise RuntimeError('broken')")
    broken = cli("export", "systemd")
    assert "written without what it says" in broken.err
    assert f"TimeoutStopSec={stop_of(25)}" in broken.out
