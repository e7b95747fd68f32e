"""Results as tables: for the terminal, for docs/performance, and as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.measurement import Result, ResultFile
from bench.targets import JudgedTarget

#: Fields worth a column, in this order, wherever a measurement has them.
FIELDS = {
    "total_per_s": "jobs/s (committed)",
    "handlers_per_s": "jobs/s (handlers)",
    "per_s": "1/s",
    "steady_per_s": "jobs/s (steady)",
    "p50": "p50 ms",
    "p95": "p95 ms",
    "p99": "p99 ms",
    "e2e_p50": "p50 ms from the call",
    "e2e_p99": "p99 ms from the call",
    "eff": "% of bare forks",
    "w2_pss": "PSS MiB, 2 workers",
    "per_extra_pss": "PSS MiB per extra worker",
    "first20": "first 20 s",
    "last20": "last 20 s",
    "ratio": "last / first",
    "cpu_percent": "CPU % of a core",
    "statements_per_s": "statements/s",
    "pss_mib": "PSS MiB",
    "pace_us": "the machine's pace us",
    "paced_ratio": "last / first, at the machine's pace",
    "store_ratio": "last / first, as the store's growth alone makes it",
    "store_us": "store CPU us/job",
    "tree_us": "tree CPU us/job",
    "store_share": "store / tree",
    "start_s": "until the first job s",
    "worst_ms": "worst ms",
    "mixed_ms": "worst ms, mixed jobs",
    "behind_ms": "worst ms, behind a long job",
    "commit_max_ms": "longest commit of a probe ms",
    "sleep_max_ms": "longest oversleep of a probe ms",
    "lag_ms": "loop lag p99 ms",
    "lag_max_ms": "loop lag max ms",
    "master_us_per_job": "master us/job",
    "worker_cpu_ms_per_job": "tree CPU ms/job",
    "sys_cpu_ms_per_job": "machine CPU ms/job",
    "wal_bytes_per_job": "WAL bytes/job",
    "dead_tuples_per_job": "dead tuples/job",
    "commits_per_job": "commits/job",
    "others_per_s": "other queues, jobs/s",
}


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Markdown that reads well as plain text, too."""
    widths = [max(len(row[at]) for row in [heads, *rows]) for at in range(len(heads))]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in [heads, *rows]]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    shown = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([shown[0], rule, *shown[1:]])


def bars(judged: list[JudgedTarget]) -> str:
    rows = [
        [
            one.measure,
            one.bar,
            one.aim,
            "-" if one.value is None else f"{number(one.value)} {one.unit}",
            one.verdict,
        ]
        for one in judged
    ]
    return table(["measure", "bar", "aim", "reached", ""], rows)


def figures(kept: ResultFile, phase: str) -> str:
    """Everything that was measured in a phase: the median, and least to most where there are more rounds."""
    names = list(dict.fromkeys(line["name"] for line in kept.lines if line["phase"] == phase))
    groups = {name: kept.of(f"{phase}|{name}") for name in names}
    fields = [
        field
        for field in FIELDS
        if any(isinstance(line.get(field), int | float) for g in groups.values() for line in g)
    ]
    rows = []
    for name, lines in groups.items():
        good = [line for line in lines if "error" not in line]
        rows.append(
            [
                name,
                next((str(line["version"]) for line in good if line.get("version")), "-"),
                str(len(good)),
                *(spread(good, field) for field in fields),
                "; ".join(dict.fromkeys(str(line["error"]) for line in lines if "error" in line)),
            ]
        )
    heads = ["who", "version", "rounds", *(FIELDS[field] for field in fields), "errors"]
    if not any(row[-1] for row in rows):
        rows, heads = [row[:-1] for row in rows], heads[:-1]
    more = [
        f"{name}: {key} {line[key]}"
        for name, lines in groups.items()
        for line in lines
        for key in line
        if key.endswith("per20s")
    ]
    return table(heads, rows) + "".join(f"\n\n{text}" for text in more)


def spread(lines: list[Result], field: str) -> str:
    found = sorted(line[field] for line in lines if isinstance(line.get(field), int | float))
    if not found:
        return "-"
    shown = number(statistics.median(found))
    return shown if len(found) == 1 else f"{shown} [{number(found[0])}..{number(found[-1])}]"


def number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def document(
    title: str,
    about: dict[str, Any],
    judged: list[JudgedTarget],
    kept: ResultFile,
    command: str,
    figures: Callable[[ResultFile, str], str] = figures,
) -> str:
    """The page of one run. `figures` makes the table of a phase."""
    phases = list(dict.fromkeys(line["phase"] for line in kept.lines))
    loads = [line["load"] for line in kept.lines]
    parts = [
        f"# {title}",
        f"Made by `{command}`. Medians [least..most] of the rounds; ratios are medians of the ratios of each round. "
        "Compare ratios within this run only.",
        "## The machine",
        table(["", ""], [[name, str(value)] for name, value in about.items()]),
        f"Load average while measuring: {min(loads):.1f} to {max(loads):.1f}.",
    ]
    if judged:
        missed = [one.measure for one in judged if one.verdict in ("MISSED", "NOT MEASURED")]
        parts += [
            "## Bars",
            bars(judged),
            "Missed or not measured: " + ("; ".join(missed) + "." if missed else "none."),
        ]
    for phase in phases:
        parts += [f"## {phase}", figures(kept, phase)]
    return "\n\n".join(parts) + "\n"


def publish(folder: Path, name: str, page: str) -> Path:
    """Write a page of docs/performance. It replaces the page of the run before it of the same kind."""
    path = folder / f"results-{name}.md"
    for older in folder.glob(f"results-{name.partition('-')[0]}-*"):
        older.unlink()
    path.write_text(page)
    return path


def write(
    folder: Path, name: str, page: str, about: dict[str, Any], judged: list[JudgedTarget], kept: ResultFile
) -> Path:
    """Write the page of a run and its figures as JSON next to it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.md"
    path.write_text(page)
    data = {"machine": about, "bars": [vars(one) for one in judged], "results": kept.lines}
    (folder / f"{name}.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    return path
