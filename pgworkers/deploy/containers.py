"""A Dockerfile and Kubernetes manifests. JSON strings are YAML strings: whatever an app calls its queues, they stay one."""

from __future__ import annotations

import json
import math
import re

from pgworkers.deploy.around import Around

PORT = 9911
#: What the master and its supervisors take, besides the workers.
BESIDES = 256 << 20


def dockerfile(app: Around, *, python: str) -> str:
    return f"""\
# Made by `pgworkers export docker`. The master is PID 1: it reaps, and passes signals on itself; no init is needed.
# Stop it with patience: docker run --stop-timeout {app.stop}, or stop_grace_period: {app.stop}s in a compose file.
# /metrics answers inside the container only. For a Prometheus outside: -e PGWORKERS_METRICS=0.0.0.0:{PORT}, on a network
# that only it shares; if it asks by a name, -e PGWORKERS_METRICS_HOSTS=NAME.
FROM python:{python}-slim
RUN useradd --system --uid 10001 --create-home --shell /usr/sbin/nologin pgworkers
WORKDIR /app
COPY requirements.txt ./
RUN pip install --no-cache-dir -r requirements.txt
COPY . .
USER 10001
ENV PYTHONUNBUFFERED=1 \\
    PGWORKERS_METRICS=127.0.0.1:{PORT} \\
    PGWORKERS_STOP_TIMEOUT={app.stop}s
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period={app.start}s \\
    CMD ["python", "-P", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:{PORT}/livez', timeout=3)"]
ENTRYPOINT ["pgworkers", "--config", {json.dumps(app.config)}]
CMD ["run"]
"""


def manifests(app: Around, *, image: str, secret: str, most: int, monitoring: str = "monitoring") -> str:
    """A Deployment, a NetworkPolicy that lets only Prometheus in, and a ScaledObject for KEDA."""
    name = label(app.name)
    said = {**app.said, "PGWORKERS_METRICS": f"$(POD_IP):{PORT}", "PGWORKERS_STOP_TIMEOUT": f"{app.stop}s"}
    variables = "".join(
        f"            - name: {key}\n              value: {json.dumps(value)}\n"
        for key, value in said.items()
    )
    triggers = "".join(_trigger(app.schema, queue, workers) for queue, workers in app.workers.items())
    cores = sum(app.workers.values())
    memory = math.ceil((BESIDES + (app.memory or cores * (256 << 20))) / (1 << 20))
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
      annotations: {{prometheus.io/scrape: "true", prometheus.io/port: "{PORT}"}}
    spec:
      # drain + stop graces + writing what is left, and a margin: later the kubelet kills, and running jobs count as lost.
      terminationGracePeriodSeconds: {app.stop}
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
            - {{name: metrics, containerPort: {PORT}}}
          # /livez: the loop ticked; never the database, so an outage restarts nobody.
          startupProbe:
            httpGet: {{path: /livez, port: metrics}}
            periodSeconds: 5
            failureThreshold: {math.ceil(app.start / 5)}
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
            matchLabels: {{kubernetes.io/metadata.name: {monitoring}}}
      ports:
        - {{protocol: TCP, port: {PORT}}}
---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: {name}
spec:
  scaleTargetRef: {{name: {name}}}
  # One stays: somebody must lead, fire schedules and rescue. One that goes drains first.
  minReplicaCount: 1
  maxReplicaCount: {most}
  pollingInterval: 15
  cooldownPeriod: 120
  triggers:
{triggers}"""


def _trigger(schema: str, queue: str, workers: int) -> str:
    literal = queue.replace("'", "''")
    query = f"SELECT {schema}.backlog('{literal}')"
    return f"""\
    - type: postgresql
      metadata:
        connectionFromEnv: DATABASE_URL
        query: {json.dumps(query)}
        targetQueryValue: "{workers}"
"""


def label(text: str) -> str:
    """A name that Kubernetes takes: lower-case letters, digits and dashes, at most 63."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-") or "pgworkers"
