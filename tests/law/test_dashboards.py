"""Dashboards and alerts speak of exactly what is exported; what is committed is what the code makes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pgworkers.observe.metrics_catalog import METRIC_PREFIX, METRICS

ROOT = Path(__file__).resolve().parents[2]
GRAFANA = ROOT / "grafana"
BOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
RULES = [
    rule
    for group in yaml.safe_load((GRAFANA / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
_NAME = re.compile(rf"\b(?:{METRIC_PREFIX}|process_)[a-z_]+")


def panels(board: Path) -> list[dict[str, Any]]:
    return [panel for panel in json.loads(board.read_text())["panels"] if panel["type"] != "row"]


def names(expression: str) -> set[str]:
    """The metrics of an expression, the series of a histogram under its own name."""
    found = set()
    for name in _NAME.findall(expression):
        base = re.sub(r"_(bucket|count|sum)$", "", name)
        found.add(base if base in known() and METRICS[known()[base]].kind == "histogram" else name)
    return found


def known() -> dict[str, str]:
    return {metric.full_name: name for name, metric in METRICS.items()}


def test_names_used_and_names_exported_are_equal_sets() -> None:
    used: set[str] = set()
    for board in BOARDS:
        for panel in panels(board):
            for target in panel["targets"]:
                used |= names(target["expr"])
    for rule in RULES:
        used |= names(rule["expr"])
    assert used == set(known())


def test_the_dashboards_are_current() -> None:
    pytest.importorskip(
        "grafana_foundation_sdk", reason="grafana-foundation-sdk is not installed; .ci/run has it"
    )
    command = [sys.executable, ROOT / "scripts" / "gen-grafana", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.stem)
def test_every_panel_explains_itself(board: Path) -> None:
    whole = json.loads(board.read_text())
    assert {"datasource", "job", "queue"} <= {variable["name"] for variable in whole["templating"]["list"]}
    assert whole["links"]
    ids = [panel["id"] for panel in whole["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels(board):
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_says_what_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert set(rule["annotations"]) == {"summary", "description", "action"}
    assert all(len(text) > 10 for text in rule["annotations"].values())
    assert rule["labels"]["severity"] in ("info", "warning", "critical")


def test_every_alert_has_a_unit_test() -> None:
    tests = yaml.safe_load((GRAFANA / "alerts_test.yml").read_text())["tests"]
    tested = {
        (case["alertname"], bool(case.get("exp_alerts")))
        for test in tests
        for case in test["alert_rule_test"]
    }
    for rule in RULES:
        assert (rule["alert"], True) in tested, f"{rule['alert']} is never seen to fire"
        assert (rule["alert"], False) in tested, f"{rule['alert']} is never seen to keep quiet"
