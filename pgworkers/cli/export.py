"""`pgworkers export`: files for other tools.

Dashboards and alerts need neither a database nor an app. The systemd unit, the Kubernetes manifests, the Dockerfile and
the Procfile are made for an app.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pgworkers import settings
from pgworkers.cli import database, output
from pgworkers.cli.invocation import CliCommand, CliGroup, Invocation, invocation_of
from pgworkers.cli.parameters import parse_printable
from pgworkers.deploy.template_files import render_procfile
from pgworkers.errors import AppNotLoaded, NotFound, UsageError

if TYPE_CHECKING:
    from pgworkers.deploy.render import Deployment


@click.group(cls=CliGroup)
def export() -> None:
    """Files for other tools: dashboards, alerts, systemd, Kubernetes, Docker."""


@click.command("docker", cls=CliCommand)
@click.option(
    "--python",
    metavar="VERSION",
    type=parse_printable,
    default=f"{sys.version_info[0]}.{sys.version_info[1]}",
    help="Of the image python:VERSION-slim; by default the one that runs this.",
)
@click.pass_context
def docker(ctx: click.Context, *, python: str) -> None:
    """Print a Dockerfile. Not root, no shell in between, the master is PID 1.

    \b
    Examples:
      pgworkers export docker > Dockerfile
      docker build -t app . && docker run -e DATABASE_URL --stop-timeout 75 app
    """
    from pgworkers.deploy.render import render_dockerfile

    output.print_script(render_dockerfile(_deployment(invocation_of(ctx), None), python=python))


@click.command("k8s", cls=CliCommand)
@click.option("--name", metavar="NAME", help="Of the deployment; by default after the app.")
@click.option(
    "--image", metavar="IMAGE", default="registry.example/app:latest", show_default=True, help="What it runs."
)
@click.option(
    "--secret",
    metavar="NAME",
    default="pgworkers",
    show_default=True,
    help="The secret with DATABASE_URL in it.",
)
@click.option(
    "--max-pods",
    metavar="N",
    type=click.IntRange(1, 10_000),
    default=10,
    show_default=True,
    help="Maximum number of pods.",
)
@click.option(
    "--monitoring-namespace",
    metavar="NAMESPACE",
    default="monitoring",
    show_default=True,
    help="The namespace of Prometheus, which alone may connect to the pods.",
)
@click.pass_context
def k8s(
    ctx: click.Context, *, name: str | None, image: str, secret: str, max_pods: int, monitoring_namespace: str
) -> None:
    """Print Kubernetes manifests. A Deployment with probes and grace, a NetworkPolicy, a ScaledObject for KEDA.

    KEDA asks the SQL function pgworkers.backlog(queue) how much there is to do. The NetworkPolicy lets nothing but
    Prometheus connect to the pods.

    \b
    Examples:
      pgworkers export k8s --image registry.example/app:1.4 | kubectl apply -f -
    """
    from pgworkers.deploy.render import dns_label, render_kubernetes

    app = _deployment(invocation_of(ctx), name)
    text = render_kubernetes(
        app,
        image=image,
        secret=dns_label(secret),
        max_pods=max_pods,
        monitoring_namespace=dns_label(monitoring_namespace),
    )
    output.print_script(text)


@click.command("procfile", cls=CliCommand)
@click.pass_context
def procfile(ctx: click.Context) -> None:
    """Print a Procfile, for Heroku, foreman, honcho and the like.

    \b
    Examples:
      pgworkers export procfile >> Procfile
    """
    output.print_script(render_procfile(_printable_config(invocation_of(ctx)) or database.DEFAULT_CONFIG))


@click.command("systemd", cls=CliCommand)
@click.option("--name", metavar="NAME", help="Of the service; by default after the app.")
@click.option(
    "--user",
    metavar="USER",
    type=parse_printable,
    default="pgworkers",
    show_default=True,
    help="The account it runs as.",
)
@click.option(
    "--directory", metavar="DIR", type=parse_printable, help="Where it runs; by default the app's directory."
)
@click.option(
    "--environment-file",
    metavar="FILE",
    type=parse_printable,
    help="File with secrets, one NAME=value per line. Default: /etc/NAME.env.",
)
@click.pass_context
def systemd(
    ctx: click.Context, *, name: str | None, user: str, directory: str | None, environment_file: str | None
) -> None:
    """Print a systemd unit. Notify, drain, watchdog; one worker's OOM is its own.

    The time for a stop follows from the settings of the app and of the environment.

    \b
    Examples:
      pgworkers -c /srv/app/app.py export systemd > /etc/systemd/system/app.service
      pgworkers export systemd --user www-data | systemd-analyze verify /dev/stdin
    """
    from pgworkers.deploy.render import render_systemd_unit

    invocation = invocation_of(ctx)
    path = Path((database.find_config(invocation) or database.DEFAULT_CONFIG).partition(":")[0])
    app = _deployment(invocation, name, absolute=True)
    text = render_systemd_unit(
        app,
        program=_pgworkers_program(),
        user=user,
        directory=directory or str(path.resolve().parent if path.suffix == ".py" else Path.cwd()),
        environment_file=environment_file or f"/etc/{app.name}.env",
    )
    output.print_script(text)


export.add_command(systemd)
export.add_command(k8s)
export.add_command(docker)
export.add_command(procfile)


def shipped_file(name: str) -> Path:
    """A file of `grafana/`: inside the package when it is installed, next to it in a source tree."""
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
    output.print_script(shipped_file("alerts.yml").read_text(encoding="utf-8"))


@export.command("grafana")
@click.argument("directory", default="grafana", type=click.Path(file_okay=False, path_type=Path))
@click.pass_context
def grafana(ctx: click.Context, directory: Path) -> None:
    """Write the dashboards into a directory. With the files that make Grafana and Prometheus find them.

    A file that exists is overwritten; other files are left alone.

    \b
    Examples:
      pgworkers export grafana
      pgworkers export grafana /etc/grafana/pgworkers
    """
    home = shipped_file("dashboards").parent
    made = []
    for file in sorted(path for path in home.rglob("*") if path.suffix in (".json", ".yml")):
        name = file.relative_to(home)
        if name.name.endswith("_test.yml"):
            continue
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
        made.append({"file": str(target)})
    invocation = invocation_of(ctx)
    output.print_rows(invocation, made, [("file", lambda row: row["file"])], if_empty="", quiet_column="file")
    output.print_note(invocation, "import the dashboards, or provision them: docs/how-to/monitor.md")


def _deployment(invocation: Invocation, name: str | None, *, absolute: bool = False) -> Deployment:
    """The app if it can be described; else what the settings say alone, with a warning."""
    from pgworkers.deploy.render import deployment_of, dns_label

    loaded, found = database.load_command_settings(invocation), _printable_config(invocation)
    config = found or database.DEFAULT_CONFIG
    app = None
    if found is None:
        output.print_warning(
            invocation,
            f"there is no {database.DEFAULT_CONFIG} here; written for one with a queue default of one worker",
        )
    else:
        from pgworkers.supervisor.describe import describe

        try:
            app = describe(
                found,
                loaded.settings.import_timeout,
                on_slow=lambda text: output.print_note(invocation, text),
            )
            loaded = settings.load_settings(flags=invocation.flags(), app=app.settings)
        except AppNotLoaded as error:
            output.print_warning(invocation, f"{error}; written without what it says")
    path, colon, attribute = config.partition(":")
    stem = (
        Path(path).resolve().parent.name
        if path == database.DEFAULT_CONFIG
        else Path(path).stem.replace(".", "-")
    )
    if absolute and path.endswith(".py"):
        config = f"{Path(path).resolve()}{colon}{attribute}"
    return deployment_of(dns_label(name or stem), config, loaded, app)


def _printable_config(invocation: Invocation) -> str | None:
    """The app that is meant, if its name can stand in a line of a file."""
    found = database.find_config(invocation)
    if found is not None and not found.isprintable():
        raise UsageError(f"--config: {found!r} cannot stand in a line; rename what cannot be printed")
    return found


def _pgworkers_program() -> str:
    beside = Path(sys.executable).with_name("pgworkers")
    return (
        str(beside) if os.access(beside, os.X_OK) else shutil.which("pgworkers") or "/usr/bin/env pgworkers"
    )
