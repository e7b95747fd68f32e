"""`pgworkers export systemd|k8s|docker|procfile`: what a host needs around it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pgworkers import settings
from pgworkers.cli import output, place
from pgworkers.cli.init import procfile_of
from pgworkers.cli.invocation import Command, Invocation, said
from pgworkers.cli.values import printed
from pgworkers.errors import AppNotLoaded, UsageError

if TYPE_CHECKING:
    from pgworkers.deploy.around import Around


@click.command("systemd", cls=Command)
@click.option("--name", metavar="NAME", help="Of the service; by default after the app.")
@click.option(
    "--user",
    metavar="USER",
    type=printed,
    default="pgworkers",
    show_default=True,
    help="The account it runs as.",
)
@click.option(
    "--directory", metavar="DIR", type=printed, help="Where it runs; by default the app's directory."
)
@click.option(
    "--environment",
    metavar="FILE",
    type=printed,
    help="Secrets, one NAME=value a line; /etc/NAME.env by default.",
)
@click.pass_context
def systemd(
    ctx: click.Context, *, name: str | None, user: str, directory: str | None, environment: str | None
) -> None:
    """Print a systemd unit. Notify, drain, watchdog; one worker's OOM is its own.

    The time for a stop follows from the settings of the app and of the environment.

    \b
    Examples:
      pgworkers -c /srv/app/app.py export systemd > /etc/systemd/system/app.service
      pgworkers export systemd --user www-data | systemd-analyze verify /dev/stdin
    """
    from pgworkers.deploy.systemd import unit

    invocation = said(ctx)
    path = Path((place.config(invocation) or place.DEFAULT_CONFIG).partition(":")[0])
    app = _around(invocation, name, absolute=True)
    text = unit(
        app,
        program=_program(),
        user=user,
        directory=directory or str(path.resolve().parent if path.suffix == ".py" else Path.cwd()),
        environment=environment or f"/etc/{app.name}.env",
    )
    output.script(text)


@click.command("k8s", cls=Command)
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
    "--most",
    metavar="N",
    type=click.IntRange(1, 10_000),
    default=10,
    show_default=True,
    help="The most pods.",
)
@click.option(
    "--monitoring",
    metavar="NAMESPACE",
    default="monitoring",
    show_default=True,
    help="The namespace of Prometheus, which alone may connect to the pods.",
)
@click.pass_context
def k8s(ctx: click.Context, *, name: str | None, image: str, secret: str, most: int, monitoring: str) -> None:
    """Print Kubernetes manifests. A Deployment with probes and grace, a NetworkPolicy, a ScaledObject for KEDA.

    KEDA asks the SQL function pgworkers.backlog(queue) how much there is to do. The NetworkPolicy lets nothing but
    Prometheus connect to the pods.

    \b
    Examples:
      pgworkers export k8s --image registry.example/app:1.4 | kubectl apply -f -
    """
    from pgworkers.deploy.containers import label, manifests

    app = _around(said(ctx), name)
    text = manifests(app, image=image, secret=label(secret), most=most, monitoring=label(monitoring))
    output.script(text)


@click.command("docker", cls=Command)
@click.option(
    "--python",
    metavar="VERSION",
    type=printed,
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
    from pgworkers.deploy.containers import dockerfile

    output.script(dockerfile(_around(said(ctx), None), python=python))


@click.command("procfile", cls=Command)
@click.pass_context
def procfile(ctx: click.Context) -> None:
    """Print a Procfile, for Heroku, foreman, honcho and the like.

    \b
    Examples:
      pgworkers export procfile >> Procfile
    """
    output.script(procfile_of(_config(said(ctx)) or place.DEFAULT_CONFIG))


def _around(said: Invocation, name: str | None, *, absolute: bool = False) -> Around:
    """The app if it can be described; else what the settings say alone, with a warning."""
    from pgworkers.deploy.around import around
    from pgworkers.deploy.containers import label

    loaded, found = place.load(said), _config(said)
    config = found or place.DEFAULT_CONFIG
    app = None
    if found is None:
        output.warn(
            said,
            f"there is no {place.DEFAULT_CONFIG} here; written for one with a queue default of one worker",
        )
    else:
        from pgworkers.supervisor.ask import describe

        try:
            app = describe(found, loaded.settings.boot, say=lambda text: output.note(said, text))
            loaded = settings.load(flags=said.flags(), app=app.settings)
        except AppNotLoaded as error:
            output.warn(said, f"{error}; written without what it says")
    path, colon, attribute = config.partition(":")
    stem = (
        Path(path).resolve().parent.name
        if path == place.DEFAULT_CONFIG
        else Path(path).stem.replace(".", "-")
    )
    if absolute and path.endswith(".py"):
        config = f"{Path(path).resolve()}{colon}{attribute}"
    return around(label(name or stem), config, loaded, app)


def _config(said: Invocation) -> str | None:
    """The app that is meant, if its name can stand in a line of a file."""
    found = place.config(said)
    if found is not None and not found.isprintable():
        raise UsageError(f"--config: {found!r} cannot stand in a line; rename what cannot be printed")
    return found


def _program() -> str:
    beside = Path(sys.executable).with_name("pgworkers")
    return (
        str(beside) if os.access(beside, os.X_OK) else shutil.which("pgworkers") or "/usr/bin/env pgworkers"
    )
