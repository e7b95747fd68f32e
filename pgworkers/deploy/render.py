"""What every export needs to know of the app and of how long a stop takes.

A Dockerfile and Kubernetes manifests. JSON strings are YAML strings: whatever an app calls its queues, they stay one.

A systemd unit. Each line that is not obvious says why.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

from pgworkers.master.drain import max_stop_seconds
from pgworkers.settings import LoadedSettings
from pgworkers.settings import format_setting as show_setting
from pgworkers.specs import AppSpec

#: What a service manager should allow beyond the longest stop.
STOP_MARGIN_SECONDS = 5
#: Settings that the time of a stop is made of: an export says them, so that it stays true.
_STOP_SETTINGS = ("drain_timeout", "ask_grace", "raise_grace", "statement_timeout")


@dataclass(frozen=True, slots=True)
class Deployment:
    """An app as its surroundings see it."""

    name: str  # "reports": of the service, the deployment, the image
    config: str  # what --config gets
    workers_per_queue: dict[str, int]  # on one host at most, by queue
    memory_bytes: int  # bytes that its workers may use together; 0: no queue says
    start_timeout_seconds: int  # seconds a start may take
    stop_timeout_seconds: int  # seconds from SIGTERM to SIGKILL
    schema: str
    variables: dict[str, str]  # variables that were set where the export was made and that it depends on


def deployment_of(name: str, config: str, loaded: LoadedSettings, app: AppSpec | None) -> Deployment:
    settings = loaded.settings
    queues = app.queues if app is not None else ()
    said = {
        f"PGWORKERS_{setting.upper()}": show_setting(setting, getattr(settings, setting))
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
        variables=said,
    )


METRICS_PORT = 9911
#: What the master and its supervisors take, besides the workers.
MASTER_MEMORY_BYTES = 256 << 20


def render_dockerfile(app: Deployment, *, python: str) -> str:
    stop, port = app.stop_timeout_seconds, METRICS_PORT
    return f"""\
# Made by `pgworkers export docker`. The master is PID 1: it reaps, and passes signals on itself; no init is needed.
# Stop it with patience: docker run --stop-timeout {stop}, or stop_grace_period: {stop}s in a compose file.
# /metrics answers inside the container only. For a Prometheus outside: -e PGWORKERS_METRICS_ADDRESS=0.0.0.0:{port}, on a
# network that only it shares; if it asks by a name, -e PGWORKERS_METRICS_ALLOWED_HOSTS=NAME.
FROM python:{python}-slim
RUN useradd --system --uid 10001 --create-home --shell /usr/sbin/nologin pgworkers
WORKDIR /app
COPY requirements.txt ./
RUN pip install --no-cache-dir -r requirements.txt
COPY . .
USER 10001
ENV PYTHONUNBUFFERED=1 \\
    PGWORKERS_METRICS_ADDRESS=127.0.0.1:{METRICS_PORT} \\
    PGWORKERS_SERVICE_STOP_TIMEOUT={app.stop_timeout_seconds}s
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period={app.start_timeout_seconds}s \\
    CMD ["python", "-P", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:{METRICS_PORT}/livez', timeout=3)"]
ENTRYPOINT ["pgworkers", "--config", {json.dumps(app.config)}]
CMD ["run"]
"""


def render_kubernetes(
    app: Deployment, *, image: str, secret: str, max_pods: int, monitoring_namespace: str = "monitoring"
) -> str:
    """A Deployment, a NetworkPolicy that lets only Prometheus in, and a ScaledObject for KEDA."""
    name = dns_label(app.name)
    said = {
        **app.variables,
        "PGWORKERS_METRICS_ADDRESS": f"$(POD_IP):{METRICS_PORT}",
        "PGWORKERS_SERVICE_STOP_TIMEOUT": f"{app.stop_timeout_seconds}s",
    }
    variables = "".join(
        f"            - name: {key}\n              value: {json.dumps(value)}\n"
        for key, value in said.items()
    )
    triggers = "".join(
        _render_keda_trigger(app.schema, queue, workers) for queue, workers in app.workers_per_queue.items()
    )
    cores = sum(app.workers_per_queue.values())
    memory = math.ceil((MASTER_MEMORY_BYTES + (app.memory_bytes or cores * (256 << 20))) / (1 << 20))
    return f"""\
# Made by `pgworkers export k8s`. Apply: kubectl apply -f -
# The secret holds the address of the database: kubectl create secret generic {secret} --from-literal=DATABASE_URL=postgresql://…
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
  labels: {{app.kubernetes.io/name: {name}, app.kubernetes.io/component: worker}}
spec:
  # no replicas: KEDA's to say (without it: add them)
  selector:
    matchLabels: {{app.kubernetes.io/name: {name}}}
  strategy:
    type: RollingUpdate
    rollingUpdate: {{maxSurge: 1, maxUnavailable: 0}}
  template:
    metadata:
      labels: {{app.kubernetes.io/name: {name}, app.kubernetes.io/component: worker}}
      annotations: {{prometheus.io/scrape: "true", prometheus.io/port: "{METRICS_PORT}"}}
    spec:
      # drain + stop graces + writing what is left, and a margin: later the kubelet kills, and running jobs count as lost.
      terminationGracePeriodSeconds: {app.stop_timeout_seconds}
      automountServiceAccountToken: false
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001
        seccompProfile: {{type: RuntimeDefault}}
      containers:
        - name: worker
          image: {json.dumps(image)}
          args: ["run"]
          env:
            - name: DATABASE_URL
              valueFrom:
                secretKeyRef: {{name: {secret}, key: DATABASE_URL}}
            - name: POD_IP
              valueFrom:
                fieldRef: {{fieldPath: status.podIP}}
{variables}\
          ports:
            - {{name: metrics, containerPort: {METRICS_PORT}}}
          # /livez: the loop ticked; never the database, so an outage restarts nobody.
          startupProbe:
            httpGet: {{path: /livez, port: metrics}}
            periodSeconds: 5
            failureThreshold: {math.ceil(app.start_timeout_seconds / 5)}
          livenessProbe:
            httpGet: {{path: /livez, port: metrics}}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet: {{path: /readyz, port: metrics}}
            periodSeconds: 5
            timeoutSeconds: 5
          resources:
            requests: {{cpu: "{cores}", memory: {memory}Mi}}
            limits: {{memory: {memory}Mi}}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {{drop: ["ALL"]}}
          volumeMounts:
            - {{name: tmp, mountPath: /tmp}}
      volumes:
        - {{name: tmp, emptyDir: {{}}}}
---
# Nothing may connect to the pods but Prometheus, to the metrics port. The kubelet's probes come from the node and are not
# subject to it. It needs a network plugin that enforces policies.
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {name}
spec:
  podSelector:
    matchLabels: {{app.kubernetes.io/name: {name}}}
  policyTypes: ["Ingress"]
  ingress:
    - from:
        - namespaceSelector:
            matchLabels: {{kubernetes.io/metadata.name: {monitoring_namespace}}}
      ports:
        - {{protocol: TCP, port: {METRICS_PORT}}}
---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: {name}
spec:
  scaleTargetRef: {{name: {name}}}
  # One stays: somebody must lead, fire schedules and rescue. One that goes drains first.
  minReplicaCount: 1
  maxReplicaCount: {max_pods}
  pollingInterval: 15
  cooldownPeriod: 120
  triggers:
{triggers}"""


def _render_keda_trigger(schema: str, queue: str, workers: int) -> str:
    literal = queue.replace("'", "''")
    query = f"SELECT {schema}.backlog('{literal}')"
    return f"""\
    - type: postgresql
      metadata:
        connectionFromEnv: DATABASE_URL
        query: {json.dumps(query)}
        targetQueryValue: "{workers}"
"""


def dns_label(text: str) -> str:
    """A name that Kubernetes takes: lower-case letters, digits and dashes, at most 63."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-") or "pgworkers"


def render_systemd_unit(
    app: Deployment, *, program: str, user: str, directory: str, environment_file: str
) -> str:
    said = "".join(
        f"Environment={_systemd_quote(f'{name}={value}')}\n" for name, value in app.variables.items()
    )
    return f"""\
# {app.name}.service, made by `pgworkers export systemd`. Install:
#   pgworkers export systemd > /etc/systemd/system/{app.name}.service
#   systemctl daemon-reload && systemctl enable --now {app.name}
# DATABASE_URL and other secrets belong into {environment_file} (mode 0600), one NAME=value a line.
[Unit]
Description=pgworkers {_systemd_escape(app.config)}
Wants=network-online.target
After=network-online.target postgresql.service

[Service]
# READY comes when a worker waits for jobs; STATUS shows in `systemctl status`.
Type=notify
NotifyAccess=main
ExecStart={_systemd_quote(program)} --config {_systemd_quote(app.config)} run
ExecReload=/bin/kill -HUP $MAINPID
User={user}
WorkingDirectory={_systemd_escape(directory)}
EnvironmentFile=-{_systemd_escape(environment_file)}
{said}\
# Only the master gets SIGTERM: it drains, and ends its workers itself.
KillMode=mixed
# Connecting and importing the app, twice.
TimeoutStartSec={app.start_timeout_seconds}
# drain + stop graces + writing what is left, and a margin: later systemd kills, and running jobs count as lost.
TimeoutStopSec={app.stop_timeout_seconds}
# The master's loop feeds it, whatever the database does.
WatchdogSec=60
Restart=on-failure
RestartSec=2
# A wrong command line, and an app that cannot be imported, are not mended by trying again.
RestartPreventExitStatus=2 6
# One worker that is out of memory costs one attempt, not the host.
OOMPolicy=continue
TasksMax=infinity
LimitNOFILE=65536
# A core dump would hold arguments of jobs and the password of the database.
LimitCORE=0

# What neither the tree nor most handlers need. Handlers that write outside /tmp want ReadWritePaths=; those that call
# sudo want NoNewPrivileges=no.
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=full
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
LockPersonality=yes

[Install]
WantedBy=multi-user.target
"""


def _systemd_escape(text: str) -> str:
    """systemd reads % as a specifier."""
    return text.replace("%", "%%")


def _systemd_quote(word: str) -> str:
    """One word of a command line, or an assignment."""
    text = _systemd_escape(word)
    if all(c.isalnum() or c in "/._-=:,@+" for c in text.replace("%%", "")):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{escaped}"'
