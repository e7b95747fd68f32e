"""How a host looks from outside: its process view for operators, its health, its gauges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pgworkers.clock import monotonic
from pgworkers.observe.metrics import HOST_STATES, WORKER_STATES, Metrics

if TYPE_CHECKING:
    from pgworkers.master.host import Host


def workers(host: Host) -> str:
    """The rows of the view `worker`, as JSON."""
    now = monotonic()
    rows = [
        {
            "queue": w.queue,
            "slot": w.slot,
            "pid": w.pid,
            "state": w.state,
            "job_id": w.held.claimed.id if w.held else None,
            "task": w.held.claimed.task if w.held else None,
            "since": round(now - w.since, 3),
            "jobs": w.jobs,
        }
        for w in host.dispatch.all_workers()
    ]
    return msgspec.json.encode(rows).decode()


def title(host: Host) -> str:
    busy = len(host.dispatch.busy())
    total = sum(host.supervisors.target(queue) for queue in host.dispatch.desks)
    state = "leader" if host.state == "running" and host.leadership.leads else host.state
    if host.state == "running" and not any(line.up for line in host.lines.values()):
        state = "no database"
    return f"pgworkers: master {host.plan.app.name} [{state}] {busy}/{total} busy"


def answer(host: Host, metrics: Metrics, path: str, accept: str) -> tuple[int, str, bytes]:
    """What HTTP asks for."""
    path, _, query = path.partition("?")
    if path == "/metrics":
        measure(host, metrics)
        body, kind = metrics.scrape(accept)
        return 200, kind, body
    if path == "/livez":
        return 200, "text/plain", b"ok\n"
    if path == "/readyz":
        reasons = not_ready(host)
        if not reasons:
            text = (
                "ok\ndatabase: 4 connections up\nworkers ready\nnot draining\n"
                if "verbose" in query
                else "ok\n"
            )
            return 200, "text/plain", text.encode()
        text = "\n".join(reasons) if "verbose" in query else "not ready; ?verbose says why"
        return 503, "text/plain", f"{text}\n".encode()
    return 404, "text/plain", b"/metrics /livez /readyz\n"


def not_ready(host: Host) -> list[str]:
    reasons = [f"database: the {role} connection is down" for role, line in host.lines.items() if not line.up]
    if host.state != "running":
        reasons.append(f"the master is {host.state}")
    for queue, desk in host.dispatch.desks.items():
        if host.supervisors.target(queue) and not any(
            w.state in ("idle", "busy", "suspended") for w in desk.workers
        ):
            reasons.append(f"queue {queue}: no worker is ready")
    reasons += [f"queue {queue}: its supervisor is silent" for queue in host.supervisors.silent()]
    reasons += [f"queue {queue}: {error}" for queue, error in host.supervisors.errors.items()]
    return reasons


def measure(host: Host, metrics: Metrics) -> None:
    """Bring the gauges up to date for a scrape."""
    now = monotonic()
    for name, desk in host.dispatch.desks.items():
        for state in WORKER_STATES:
            metrics.workers.labels(name, state).set(sum(w.state == state for w in desk.workers))
        began = [w.held.started for w in desk.busy() if w.held is not None and w.held.started is not None]
        metrics.running.labels(name).set(len(began))
        metrics.oldest.labels(name).set(now - min(began) if began else 0)
    metrics.leader.set(host.leadership.leads)
    for state in HOST_STATES:
        metrics.state.labels(state).set(host.state == state)
