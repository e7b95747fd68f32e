"""`pgworkers export …`: files for the tools around pgworkers. None needs a database; those of a host ask the app."""

from __future__ import annotations

from pathlib import Path

import click

from pgworkers.cli import output
from pgworkers.cli.deploying import docker, k8s, procfile, systemd
from pgworkers.cli.invocation import Group, said
from pgworkers.errors import NotFound


@click.group(cls=Group)
def export() -> None:
    """Files for the tools around it: dashboards, alerts, systemd, Kubernetes, Docker."""


for command in (systemd, k8s, docker, procfile):
    export.add_command(command)


def shipped(name: str) -> Path:
    """A file of `grafana/`: inside the package when it was installed, beside it in a source tree."""
    package = Path(__file__).resolve().parents[1]
    for home in (package / "grafana", package.parent / "grafana"):
        if (home / name).exists():
            return home / name
    raise NotFound(f"{name} was not installed with pgworkers; nothing was written. Install it again")


@export.command("alerts")
def alerts() -> None:
    """Print the alerting rules for Prometheus.

    \b
    Examples:
      pgworkers export alerts > /etc/prometheus/rules/pgworkers.yml
      pgworkers export alerts | promtool check rules /dev/stdin
    """
    output.script(shipped("alerts.yml").read_text(encoding="utf-8"))


@export.command("grafana")
@click.argument("directory", default="grafana", type=click.Path(file_okay=False, path_type=Path))
@click.pass_context
def grafana(ctx: click.Context, directory: Path) -> None:
    """Write the dashboards into a directory. With the files that make Grafana and Prometheus find them.

    A file that is already there is written anew; others are left alone.

    \b
    Examples:
      pgworkers export grafana
      pgworkers export grafana /etc/grafana/pgworkers
    """
    home = shipped("dashboards").parent
    made = []
    for file in sorted(path for path in home.rglob("*") if path.suffix in (".json", ".yml")):
        name = file.relative_to(home)
        if name.name.endswith("_test.yml"):
            continue
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
        made.append({"file": str(target)})
    invocation = said(ctx)
    output.rows(invocation, made, [("file", lambda row: row["file"])], empty="", key="file")
    output.note(invocation, "import the dashboards, or provision them: docs/observability.md")
