"""Write the report of a run: Markdown for people, JSON for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chaos.checks import Judgement
from chaos.quiet_phase import Phase


def write(
    directory: Path,
    about: dict[str, Any],
    judgement: Judgement,
    phases: list[Phase],
    faults: list[dict[str, Any]],
) -> None:
    data = {
        **about,
        "green": not judgement.wrong,
        "wrong": judgement.wrong,
        "figures": judgement.figures,
        "quiet": [asdict(phase) for phase in phases],
        "faults": faults,
    }
    (directory / "report.json").write_text(json.dumps(data, indent=1, default=str, ensure_ascii=False) + "\n")
    (directory / "report.md").write_text(markdown(data))


def markdown(data: dict[str, Any]) -> str:
    figures = dict(data["figures"])
    hits, kinds = figures.pop("hits", {}), figures.pop("kinds of jobs", {})
    errors = figures.pop("errors of enqueues", {})
    lines = [
        f"# Chaos, {data['minutes']:g} minutes, seed {data['seed']}: {'green' if data['green'] else 'RED'}",
        "",
        f"Replay (the faults follow from the seed, their timing does not): `{data['replay']}`",
        "",
        f"{data['at']}, commit {data['commit']}, {data['machine']}.",
        "",
        "| figure | |",
        "|---|---|",
        *(f"| {name} | {_plain(value)} |" for name, value in figures.items()),
        "",
        "## What was wrong",
        "",
        *([f"- {text}" for text in data["wrong"]] or ["Nothing: the audit is empty."]),
        "",
        "## Quiet phases: everything alive had to end within the bound",
        "",
        "| at | alive | took | bound |",
        "|---|---|---|---|",
        *(f"| {p['at']} s | {p['alive']} | {p['took']} s | {p['bound']} s |" for p in data["quiet"]),
        "",
        "## Faults that hit something",
        "",
        "| kind | times |",
        "|---|---|",
        *(f"| {name} | {count} |" for name, count in hits.items()),
        "",
        "Jobs by kind: " + _plain(kinds) + ".",
        "",
        "Errors of enqueues that returned no id: " + (_plain(errors) or "none") + ".",
        "",
    ]
    return "\n".join(lines)


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in sorted(value.items()))
    return str(value)
