"""The pages of docs/reference that come from declarations: cli.md, settings.md and metrics.md.

`scripts/gen-docs` writes them. A law test fails when a page is stale.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import fields

import click

from pgworkers import settings
from pgworkers.cli.root import HELP_EPILOG, root, walk_commands
from pgworkers.observe import metrics_catalog

GENERATED_NOTE = "<!-- Made by scripts/gen-docs; do not edit. -->"
_SETTINGS_INTRODUCTION = """\
A value comes from the command line, else from its variable, else from the app (`App(drain_timeout="1m")`), else it is
the default. `pgworkers config show` shows every value and its source. Durations read `30s`, `5m`,
`1h30m` or seconds; sizes read `512MB`, `2GB` or bytes."""


_METRICS_INTRODUCTION = """\
What `/metrics` of a master exports (`--metrics HOST:PORT`, by default 127.0.0.1:9911), as text or as OpenMetrics with the id
of a job as exemplar. Counters begin at 0 with the master and outlive its workers and supervisors; series of every queue and
task of the app are there from the start. What is marked *cluster* is told by the leader alone, so that a sum over all hosts
counts nothing twice; other hosts have no such series. A metric holds at most 500 names (queues, pairs of queue and task,
schedules); more are counted as `other`. How to use them: [how-to/monitor.md](../how-to/monitor.md)."""
_LABEL_VALUES = {
    "verdict": metrics_catalog.VERDICTS,
    "state of `workers`": metrics_catalog.WORKER_STATES,
    "state of `queue_jobs`": metrics_catalog.QUEUE_STATES,
    "state of `master_state`": metrics_catalog.HOST_STATES,
    "reason of `worker_exits_total`": metrics_catalog.WORKER_EXIT_REASONS,
    "reason of `job_stop_seconds`": metrics_catalog.STOP_REASONS,
    "reason of `jobs_rescued_total`": ("host_lost",),
    "result": metrics_catalog.TICK_RESULTS,
    "role": metrics_catalog.CONNECTION_ROLES,
    "class": metrics_catalog.DATABASE_ERROR_CLASSES,
    "what": metrics_catalog.CAPPED_LABELS,
}


def cli_page() -> str:
    """docs/reference/cli.md"""
    parts = ["# The command line", GENERATED_NOTE, root.help or "", *_help_as_markdown(HELP_EPILOG)]
    for name, command, ctx in walk_commands():
        parts.append("## Global options" if command is root else f"{'#' * (1 + len(name.split()))} `{name}`")
        if command is not root:
            usage = " ".join(command.collect_usage_pieces(ctx))
            parts.append(f"```\n{name} {usage}\n```")
            parts.extend(_help_as_markdown(inspect.cleandoc(command.help or "")))
        parts.extend(_options(command, ctx))
    return "\n\n".join(filter(None, parts)) + "\n"


def settings_page() -> str:
    """docs/reference/settings.md"""
    rows = ["| setting | default | variable | meaning |", "|---|---|---|---|"]
    for declared in fields(settings.Settings):
        default = settings.format_setting(declared.name, declared.default)
        variable = settings.ENVIRONMENT_PREFIX + declared.name.upper()
        cells = (
            f"`{declared.name}`",
            f"`{default}`" if default else "",
            f"`{variable}`",
            _table_cell(declared.metadata["doc"]),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n\n".join(["# Settings", GENERATED_NOTE, _SETTINGS_INTRODUCTION, "\n".join(rows)]) + "\n"


def metrics_page() -> str:
    """docs/reference/metrics.md"""
    parts = ["# Metrics", GENERATED_NOTE, _METRICS_INTRODUCTION]
    for title, section in metrics_catalog.METRIC_SECTIONS.items():
        rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
        for metric in section:
            doc = metric.help + (" *cluster*" if metric.is_cluster_wide else "")
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            rows.append(f"| `{metric.full_name}` | {metric.kind} | {labels} | {_table_cell(doc)} |")
        parts += [f"## {title}", "\n".join(rows)]
    values = [
        f"| {label} | {', '.join(f'`{value}`' for value in known)} |"
        for label, known in _LABEL_VALUES.items()
    ]
    parts += [
        "## Labels with a closed set of values",
        "\n".join(["| label | values |", "|---|---|", *values]),
    ]
    return "\n\n".join(parts) + "\n"


def _help_as_markdown(text: str) -> list[str]:
    """Help text as Markdown. A paragraph that click does not wrap (after \\b) becomes a code block."""
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip()):
        if not block.strip().startswith("\b"):
            blocks.append(re.sub(r"\s*\n\s*", " ", block.strip()))
            continue
        lines = block.strip().removeprefix("\b").strip("\n").splitlines()
        if lines and re.fullmatch(r"Examples?:", lines[0].strip()):
            lines = lines[1:]
        blocks.append("```\n" + "\n".join(line.removeprefix("  ") for line in lines) + "\n```")
    return blocks


def _options(command: click.Command, ctx: click.Context) -> list[str]:
    records = [
        record
        for param in command.get_params(ctx)
        if isinstance(param, click.Option) and "--help" not in param.opts
        if (record := param.get_help_record(ctx)) is not None
    ]
    if not records:
        return []
    return [
        "\n".join(
            [
                "| option | meaning |",
                "|---|---|",
                *(f"| `{_table_cell(a)}` | {_table_cell(b)} |" for a, b in records),
            ]
        )
    ]


def _table_cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")
