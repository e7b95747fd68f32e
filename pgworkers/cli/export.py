"""`pgworkers export …`: files for the tools around pgworkers. None needs a database; those of a host ask the app."""

from __future__ import annotations

from pathlib import Path

import click

from pgworkers.cli.deploying import docker, k8s, procfile, systemd
from pgworkers.cli.invocation import Group
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
    click.echo(shipped("alerts.yml").read_text(encoding="utf-8"), nl=False)
