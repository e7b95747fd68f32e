"""The reference pages, made from the declarations: docs/cli.md from the commands, docs/settings.md, docs/metrics.md.

`scripts/gen-docs` writes them and a law test compares them, so that no page can be forgotten or wrong.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields

import click

from pgworkers import settings
from pgworkers.cli.invocation import CONTEXT
from pgworkers.cli.root import EXAMPLES, SECTIONS, root
from pgworkers.observe import catalog

MADE = "<!-- Made by scripts/gen-docs; do not edit. -->"
_INTRODUCTION = """\
A value comes from the command line, else from its variable, else from the app (`App(drain="1m")`), else it is
the default. `pgworkers config show` tells what holds and where it came from. Durations read `30s`, `5m`,
`1h30m` or seconds; sizes read `512MB`, `2GB` or bytes."""


_METRICS = """\
What `/metrics` of a master exports (`--metrics HOST:PORT`, by default 127.0.0.1:9911), as text or as OpenMetrics with the id
of a job as exemplar. Counters begin at 0 with the master and outlive its workers and supervisors; series of every queue and
task of the app are there from the start. What is marked *cluster* is told by the leader alone, so that a sum over all hosts
counts nothing twice; other hosts have no such series. A metric holds at most 500 names (queues, pairs of queue and task,
schedules); more are counted as `other`. How to use them: [observability.md](observability.md)."""
_VALUES = {
    "verdict": catalog.VERDICTS,
    "state of `workers`": catalog.WORKER_STATES,
    "state of `queue_jobs`": catalog.STATES,
    "state of `master_state`": catalog.HOST_STATES,
    "reason of `worker_exits_total`": catalog.EXITS,
    "reason of `job_stop_seconds`": catalog.STOP_REASONS,
    "reason of `jobs_rescued_total`": ("host_lost",),
    "result": catalog.TICK_RESULTS,
    "role": catalog.ROLES,
    "class": catalog.ERRORS,
    "what": catalog.CAPPED,
}


def commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command with its full name, groups before their commands."""
    top = click.Context(root, info_name="pgworkers", **CONTEXT)  # type: ignore[arg-type]
    yield "pgworkers", root, top
    for section in SECTIONS.values():
        for name in section:
            command = root.get_command(top, name)
            assert command is not None
            ctx = click.Context(command, info_name=name, parent=top)
            yield f"pgworkers {name}", command, ctx
            if isinstance(command, click.Group):
                for below_name in command.list_commands(ctx):
                    below = command.get_command(ctx, below_name)
                    assert below is not None
                    yield (
                        f"pgworkers {name} {below_name}",
                        below,
                        click.Context(below, info_name=below_name, parent=ctx),
                    )


def cli_page() -> str:
    """docs/cli.md"""
    parts = ["# The command line", MADE, root.help or "", *_blocks(EXAMPLES)]
    for name, command, ctx in commands():
        parts.append("## Global options" if command is root else f"{'#' * (1 + len(name.split()))} `{name}`")
        if command is not root:
            usage = " ".join(command.collect_usage_pieces(ctx))
            parts.append(f"```\n{name} {usage}\n```")
            parts.extend(_blocks(inspect.cleandoc(command.help or "")))
        parts.extend(_options(command, ctx))
    return "\n\n".join(filter(None, parts)) + "\n"


def settings_page() -> str:
    """docs/settings.md"""
    rows = ["| setting | default | variable | meaning |", "|---|---|---|---|"]
    for declared in fields(settings.Settings):
        default = settings.show(declared.name, declared.default)
        variable = settings.PREFIX + declared.name.upper()
        cells = (
            f"`{declared.name}`",
            f"`{default}`" if default else "",
            f"`{variable}`",
            _cell(declared.metadata["doc"]),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n\n".join(["# Settings", MADE, _INTRODUCTION, "\n".join(rows)]) + "\n"


def metrics_page() -> str:
    """docs/metrics.md"""
    parts = ["# Metrics", MADE, _METRICS]
    for title, section in catalog.SECTIONS.items():
        rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
        for metric in section:
            doc = metric.doc + (" *cluster*" if metric.cluster else "")
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            rows.append(f"| `{metric.full}` | {metric.kind} | {labels} | {_cell(doc)} |")
        parts += [f"## {title}", "\n".join(rows)]
    values = [
        f"| {label} | {', '.join(f'`{value}`' for value in known)} |" for label, known in _VALUES.items()
    ]
    parts += [
        "## Labels with a closed set of values",
        "\n".join(["| label | values |", "|---|---|", *values]),
    ]
    return "\n\n".join(parts) + "\n"


def _blocks(text: str) -> list[str]:
    """Help text as Markdown: what click keeps as it is (after \\b) becomes a code block."""
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
            ["| option | meaning |", "|---|---|", *(f"| `{_cell(a)}` | {_cell(b)} |" for a, b in records)]
        )
    ]


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")
