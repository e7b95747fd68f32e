"""Fill in the templates of `pgworkers export` from the app and its settings.

Values that an app can choose freely, such as names of queues, are written as JSON strings, which are YAML strings as well.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

from pgworkers.deploy.template_files import fill_template
from pgworkers.master.drain import max_stop_seconds
from pgworkers.settings import LoadedSettings, format_setting
from pgworkers.specs import AppSpec

#: Seconds that a service manager should allow in addition to the longest stop.
STOP_MARGIN_SECONDS = 5
#: Settings that determine how long a stop takes. An export contains those that are set, so that its timeout stays true.
_STOP_SETTINGS = ("drain_timeout", "ask_grace", "raise_grace", "statement_timeout")


@dataclass(frozen=True, slots=True)
class Deployment:
    """What the templates need to know about an app."""

    name: str  # of the service, the deployment and the image
    config: str  # the value of --config
    workers_per_queue: dict[str, int]  # at most, on one host
    memory_bytes: int  # limit of all workers together; 0 if no queue has one
    start_timeout_seconds: int
    stop_timeout_seconds: int  # from SIGTERM to SIGKILL
    schema: str
    variables: dict[str, str]  # settings that were set during the export and that it depends on


def deployment_of(name: str, config: str, loaded: LoadedSettings, app: AppSpec | None) -> Deployment:
    settings = loaded.settings
    queues = app.queues if app is not None else ()
    variables = {
        f"PGWORKERS_{setting.upper()}": format_setting(setting, getattr(settings, setting))
        for setting in _STOP_SETTINGS
        if loaded.sources[setting] not in ("default", "app")
    }
    return Deployment(
        name=name,
        config=config,
        workers_per_queue={queue.name: queue.max_workers_per_host for queue in queues} or {"default": 1},
        memory_bytes=sum((queue.memory or 0) * queue.max_workers_per_host for queue in queues),
        start_timeout_seconds=math.ceil(settings.startup_connect_timeout + 2 * settings.import_timeout) + 30,
        stop_timeout_seconds=math.ceil(max_stop_seconds(settings)) + STOP_MARGIN_SECONDS,
        schema=settings.schema,
        variables=variables,
    )


METRICS_PORT = 9911
#: Memory of the master and its supervisors.
MASTER_MEMORY_BYTES = 256 << 20


def render_dockerfile(app: Deployment, *, python: str) -> str:
    return fill_template(
        "Dockerfile",
        python=python,
        port=METRICS_PORT,
        config=json.dumps(app.config),
        start_timeout=app.start_timeout_seconds,
        stop_timeout=app.stop_timeout_seconds,
    )


def render_kubernetes(
    app: Deployment, *, image: str, secret: str, max_pods: int, monitoring_namespace: str = "monitoring"
) -> str:
    """A Deployment, a NetworkPolicy that lets only Prometheus in, and a ScaledObject for KEDA."""
    variables = {
        **app.variables,
        "PGWORKERS_METRICS_ADDRESS": f"$(POD_IP):{METRICS_PORT}",
        "PGWORKERS_SERVICE_STOP_TIMEOUT": f"{app.stop_timeout_seconds}s",
    }
    lines = [
        f"            - name: {name}\n              value: {json.dumps(value)}"
        for name, value in variables.items()
    ]
    triggers = "".join(
        _render_keda_trigger(app.schema, queue, workers) for queue, workers in app.workers_per_queue.items()
    )
    cores = sum(app.workers_per_queue.values())
    memory = math.ceil((MASTER_MEMORY_BYTES + (app.memory_bytes or cores * (256 << 20))) / (1 << 20))
    return fill_template(
        "kubernetes.yaml",
        name=dns_label(app.name),
        image=json.dumps(image),
        secret=secret,
        variables="\n".join(lines),
        port=METRICS_PORT,
        cores=cores,
        memory=memory,
        startup_failures=math.ceil(app.start_timeout_seconds / 5),
        stop_timeout=app.stop_timeout_seconds,
        monitoring_namespace=monitoring_namespace,
        max_pods=max_pods,
        triggers=triggers.rstrip("\n"),
    )


def _render_keda_trigger(schema: str, queue: str, workers: int) -> str:
    literal = queue.replace("'", "''")
    query = f"SELECT {schema}.backlog('{literal}')"
    return fill_template("keda_trigger.yaml", query=json.dumps(query), workers=workers)


def dns_label(text: str) -> str:
    """A name that Kubernetes accepts: at most 63 lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-") or "pgworkers"


def render_systemd_unit(
    app: Deployment, *, program: str, user: str, directory: str, environment_file: str
) -> str:
    lines = [f"Environment={_systemd_quote(f'{name}={value}')}" for name, value in app.variables.items()]
    return fill_template(
        "systemd.service",
        name=app.name,
        description=_systemd_escape(app.config),
        program=_systemd_quote(program),
        config=_systemd_quote(app.config),
        user=user,
        directory=_systemd_escape(directory),
        environment_file=environment_file,
        escaped_environment_file=_systemd_escape(environment_file),
        variables="".join(f"\n{line}" for line in lines),
        start_timeout=app.start_timeout_seconds,
        stop_timeout=app.stop_timeout_seconds,
    )


def _systemd_escape(text: str) -> str:
    """Escape %, which is a specifier for systemd."""
    return text.replace("%", "%%")


def _systemd_quote(word: str) -> str:
    """Quote a word of a command line, or an assignment."""
    text = _systemd_escape(word)
    if all(c.isalnum() or c in "/._-=:,@+" for c in text.replace("%%", "")):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{escaped}"'
