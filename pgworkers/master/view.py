"""How a host looks from outside: its process view for operators, its health, its gauges."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from pgworkers.clock import monotonic
from pgworkers.master.boot import VERSION
from pgworkers.master.desk import Problem
from pgworkers.master.renewal import BEGUN_RENEW_SECONDS
from pgworkers.observe.catalog import HOST_STATES, WORKER_STATES
from pgworkers.observe.escape import printable
from pgworkers.observe.exposition import wants_openmetrics
from pgworkers.observe.metrics import Metrics

if TYPE_CHECKING:
    from pgworkers.master.crew import Worker
    from pgworkers.master.held import Held
    from pgworkers.master.host import Host
    from pgworkers.process.measure import Usage

#: Characters of an error and of a traceback that a renewal carries.
MOST_PROBLEM = 4000
#: Seconds that a text of /metrics is given again.
FRESH = 0.1
#: States of a worker that has booted and stays.
READY = ("ready", "idle", "busy", "suspended")


def told(host: Host, usage: Usage) -> tuple[str, str, float, int, str]:
    """What a renewal tells of this host: its state, its processes, the load of its machine, its cores, its problems."""
    shown = [
        {"queue": queue, "error": one.error[:MOST_PROBLEM], "traceback": one.traceback[-MOST_PROBLEM:]}
        for queue, one in problems(host).items()
    ]
    cores = len(os.sched_getaffinity(0))
    return host.state, workers(host, usage), os.getloadavg()[0], cores, msgspec.json.encode(shown).decode()


def problems(host: Host) -> dict[str, Problem]:
    """By queue: why its workers cannot start."""
    found = {
        name: desk.problem
        for name, desk in host.dispatch.desks.items()
        if desk.problem is not None and host.supervisors.target(name)
    }
    for queue, error in host.supervisors.errors.items():
        found[queue] = Problem(error, host.supervisors.tracebacks.get(queue, ""))
    return found


def workers(host: Host, usage: Usage) -> str:
    """The rows of the view `worker`, as JSON."""
    now = monotonic()
    watched = host.renewal.watched  # then what idles is looked at as well
    used = usage.of({w.pid: None if watched else w.rest for w in host.dispatch.all_workers()}, now)
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
            "version": w.version,
            **_used(used.get(w.pid)),
            **(_held(w, w.held, now) if w.held else {}),
        }
        for w in host.dispatch.all_workers()
    ]
    host.renewal.shown_jobs = frozenset(row["job_id"] for row in rows if row["job_id"] is not None)
    return msgspec.json.encode(rows).decode()


def _used(found: tuple[float | None, int] | None) -> dict[str, Any]:
    return {"cpu": found[0], "rss": found[1]} if found is not None else {}


def _held(worker: Worker, held: Held, now: float) -> dict[str, Any]:
    """What only a worker with a job has. A suspended job's clock stands still."""
    until = worker.since if worker.state == "suspended" else now
    left = held.left(until)
    return {
        "attempt": held.claimed.attempt,
        "max_attempts": held.claimed.max_attempts,
        "running": round(now - held.began, 3) if held.began is not None else None,
        "left_over": round(left, 3) if left is not None else None,
        "stalled": held.stalled,
        "wish": held.wish,
    }


def unseen(host: Host) -> bool:
    """Does a job run here that operators would still take for one that waits?"""
    long_ago = monotonic() - BEGUN_RENEW_SECONDS
    return any(
        held.began is not None and held.began < long_ago and held.claimed.id not in host.renewal.shown_jobs
        for worker in host.dispatch.busy()
        if (held := worker.held) is not None
    )


def title(host: Host) -> str:
    busy = len(host.dispatch.busy())
    total = sum(host.supervisors.target(queue) for queue in host.dispatch.desks)
    state = "leader" if host.state == "running" and host.leadership.leads else host.state
    if host.state == "running" and not any(line.up for line in host.lines.values()):
        state = "no database"
    label = f", {printable(host.settings.label)[:40]}" if host.settings.label else ""
    return f"pgworkers: master {host.plan.app.name} [{state}] {busy}/{total} busy{label}"


def settled(host: Host) -> bool:
    """Are as many workers up as are wanted?"""
    up = [worker for worker in host.dispatch.all_workers() if worker.state in READY]
    return len(up) >= sum(host.supervisors.target(queue) for queue in host.dispatch.desks)


class Scrapes:
    """The text of /metrics. However many ask at once, it is made a few times a second."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._last: dict[bool, tuple[float, tuple[int, str, bytes]]] = {}  # by format

    def __call__(self, host: Host, accept: str) -> tuple[int, str, bytes]:
        openmetrics, now = wants_openmetrics(accept), monotonic()
        made, text = self._last.get(openmetrics, (0.0, (0, "", b"")))
        if now - made > FRESH:
            measure(host, self._metrics)
            body, kind = self._metrics.scrape(accept)
            text = 200, kind, body
            self._last[openmetrics] = now, text
        return text


def answer(host: Host, scrapes: Scrapes, path: str, accept: str) -> tuple[int, str, bytes]:
    """What HTTP asks for."""
    path, _, query = path.partition("?")
    if path == "/metrics":
        return scrapes(host, accept)
    if path == "/livez":
        return 200, "text/plain", b"ok\n"
    if path == "/readyz":
        reasons = not_ready(host)
        if not reasons:
            text = f"ok\n{_well(host)}" if "verbose" in query else "ok\n"
            return 200, "text/plain", text.encode()
        text = "\n".join(reasons) if "verbose" in query else "not ready; ?verbose says why"
        return 503, "text/plain", f"{text}\n".encode()
    return 404, "text/plain", b"/metrics /livez /readyz\n"


def _well(host: Host) -> str:
    ready = sum(worker.state in READY for worker in host.dispatch.all_workers())
    up = sum(line.up for line in host.lines.values())
    text = f"database: {up} connections up\nschema: {host.plan.schema}\nworkers: {ready} ready\nthe master is running\n"
    if (holder := host.leadership.lock_holder) is not None:
        whose = (
            f"pid {holder.pid}, role {printable(holder.user)}, application {printable(holder.application)}"
        )
        text += f"the leader's lock is held by a session that does not lead ({whose}); duties go on\n"
    return text


def not_ready(host: Host) -> list[str]:
    reasons = [f"database: the {role} connection is down" for role, line in host.lines.items() if line.down]
    if host.state != "running":
        reasons.append(f"the master is {host.state}")
    for queue, desk in host.dispatch.desks.items():
        if host.supervisors.target(queue) and not any(w.state in READY for w in desk.workers):
            reasons.append(f"queue {queue}: no worker is ready")
    reasons += [f"queue {queue}: its supervisor is silent" for queue in host.supervisors.silent()]
    for queue, problem in problems(host).items():
        reasons.append(f"queue {queue}: {problem.error}")
        reasons += [f"  {printable(line)}" for line in problem.traceback.splitlines()]
    return reasons


def measure(host: Host, metrics: Metrics) -> None:
    """Bring the gauges up to date for a scrape."""
    now = monotonic()
    app = host.plan.app
    metrics.know(
        ((task.queue, task.name) for task in app.tasks),
        host.dispatch.desks,
        (one.name for one in app.schedules),
    )
    for name, desk in host.dispatch.desks.items():
        states = ["idle" if worker.state == "ready" else worker.state for worker in desk.workers]
        for state in WORKER_STATES:
            metrics.set("workers", states.count(state), name, state)
        held = [worker.held for worker in desk.busy() if worker.held is not None]
        began = [one.began for one in held if one.began is not None]
        metrics.set("jobs_running", len(began), name)
        metrics.set("job_oldest_running_seconds", now - min(began) if began else 0, name)
        metrics.set("worker_stalled", sum(one.stalled for one in held), name)
    metrics.set("leader", host.leadership.leads)
    for state in HOST_STATES:
        metrics.set("master_state", host.state == state, state)
    metrics.families["build_info"].clear()
    metrics.set("build_info", 1, VERSION, app.version, host.settings.label)
