"""How a host looks from outside: its process view for operators, its health, its gauges."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from pgworkers.clock import monotonic
from pgworkers.events import HostStateChanged
from pgworkers.master.boot import PACKAGE_VERSION
from pgworkers.master.queue_buffer import StartProblem
from pgworkers.master.worker_channel import STARTED_STATES, WorkerState
from pgworkers.observe.escape import printable
from pgworkers.observe.metrics import Metrics
from pgworkers.observe.metrics_catalog import HOST_STATES, WORKER_STATES
from pgworkers.observe.metrics_exposition import is_openmetrics_preferred
from pgworkers.units import format_duration

if TYPE_CHECKING:
    from pgworkers.master.held_job import HeldJob
    from pgworkers.master.host import Host
    from pgworkers.master.process_usage import ProcessUsage
    from pgworkers.master.worker_channel import WorkerChannel


def log_state(host: Host) -> None:
    now = monotonic()
    for worker in host.dispatcher.all_workers():
        job = f" #{worker.current_job.job.id} {worker.current_job.job.task}" if worker.current_job else ""
        why = f"{worker.name} pid {worker.pid} {worker.state}{job} for {format_duration(now - worker.since)}"
        host.events.emit(HostStateChanged(host.state, why))
    lines = ", ".join(f"{role} {'up' if line.is_up else 'down'}" for role, line in host.connections.items())
    host.events.emit(HostStateChanged(host.state, f"{len(host.finisher)} ends waiting; connections: {lines}"))


def is_serving(host: Host) -> bool:
    """Does a worker wait for jobs, or does nobody want one?"""
    wanted = any(host.supervisors.target_workers(queue) for queue in host.dispatcher.buffers)
    return host.state == "running" and (
        not wanted
        or any(
            worker.state in (WorkerState.IDLE, WorkerState.BUSY, WorkerState.SUSPENDED)
            for worker in host.dispatcher.all_workers()
        )
    )


#: The pause between two renewals while jobs begin that operators cannot see yet.
NEW_JOB_SHOWN_SECONDS = 1.0


HostSnapshot = tuple[str, str, float, int, str]  # state, workers as JSON, load, cores, problems as JSON

#: Characters of an error and of a traceback that a renewal carries.
MAX_PROBLEM_CHARACTERS = 4000
#: Seconds that a text of /metrics is given again.
METRICS_PAGE_SECONDS = 0.1


def snapshot(host: Host, usage: ProcessUsage) -> tuple[str, str, float, int, str]:
    """What a renewal tells of this host: its state, its processes, the load of its machine, its cores, its problems."""
    shown = [
        {
            "queue": queue,
            "error": one.error[:MAX_PROBLEM_CHARACTERS],
            "traceback": one.traceback[-MAX_PROBLEM_CHARACTERS:],
        }
        for queue, one in start_problems(host).items()
    ]
    cores = len(os.sched_getaffinity(0))
    return (
        host.state,
        _worker_rows_json(host, usage),
        os.getloadavg()[0],
        cores,
        msgspec.json.encode(shown).decode(),
    )


def start_problems(host: Host) -> dict[str, StartProblem]:
    """By queue: why its workers cannot start."""
    found = {
        name: desk.start_problem
        for name, desk in host.dispatcher.buffers.items()
        if desk.start_problem is not None and host.supervisors.target_workers(name)
    }
    for queue, error in host.supervisors.errors.items():
        found[queue] = StartProblem(error, host.supervisors.tracebacks.get(queue, ""))
    return found


def _worker_rows_json(host: Host, usage: ProcessUsage) -> str:
    """The rows of the view `worker`, as JSON."""
    now = monotonic()
    watched = host.lease_keeper.is_watched  # then what idles is looked at as well
    used = usage.sample({w.pid: None if watched else w.idle_mark for w in host.dispatcher.all_workers()}, now)
    rows = [
        {
            "queue": w.queue,
            "slot": w.slot,
            "pid": w.pid,
            "state": w.state,
            "job_id": w.current_job.job.id if w.current_job else None,
            "task": w.current_job.job.task if w.current_job else None,
            "since": round(now - w.since, 3),
            "jobs": w.jobs_reported,
            "version": w.version,
            **_usage_columns(used.get(w.pid)),
            **(_job_columns(w, w.current_job, now) if w.current_job else {}),
        }
        for w in host.dispatcher.all_workers()
    ]
    host.lease_keeper._shown_jobs = frozenset(row["job_id"] for row in rows if row["job_id"] is not None)
    return msgspec.json.encode(rows).decode()


def _usage_columns(found: tuple[float | None, int] | None) -> dict[str, Any]:
    return {"cpu": found[0], "rss": found[1]} if found is not None else {}


def _job_columns(worker: WorkerChannel, held: HeldJob, now: float) -> dict[str, Any]:
    """What only a worker with a job has. A suspended job's clock stands still."""
    until = worker.since if worker.is_suspended else now
    left = held.seconds_left(until)
    return {
        "attempt": held.job.attempt,
        "max_attempts": held.job.max_attempts,
        "running": round(now - held.began_at, 3) if held.began_at is not None else None,
        "left_over": round(left, 3) if left is not None else None,
        "stalled": held.is_stalled,
        "wish": held.stop_reason.word if held.stop_reason is not None else None,
    }


def has_unshown_jobs(host: Host) -> bool:
    """Does a job run here that operators would still take for one that waits?"""
    long_ago = monotonic() - NEW_JOB_SHOWN_SECONDS
    return any(
        held.began_at is not None
        and held.began_at < long_ago
        and held.job.id not in host.lease_keeper._shown_jobs
        for worker in host.dispatcher.busy_workers()
        if (held := worker.current_job) is not None
    )


def title(host: Host) -> str:
    busy = len(host.dispatcher.busy_workers())
    total = sum(host.supervisors.target_workers(queue) for queue in host.dispatcher.buffers)
    state = "leader" if host.state == "running" and host.leadership.is_leader else host.state
    if host.state == "running" and not any(line.is_up for line in host.connections.values()):
        state = "no database"
    label = f", {printable(host.settings.host_label)[:40]}" if host.settings.host_label else ""
    return f"pgworkers: master {host.plan.app.name} [{state}] {busy}/{total} busy{label}"


def are_workers_up(host: Host) -> bool:
    """Are as many workers up as are wanted?"""
    up = [worker for worker in host.dispatcher.all_workers() if worker.state in STARTED_STATES]
    return len(up) >= sum(host.supervisors.target_workers(queue) for queue in host.dispatcher.buffers)


class MetricsPage:
    """The text of /metrics. However many ask at once, it is made a few times a second."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._last: dict[bool, tuple[float, tuple[int, str, bytes]]] = {}  # by format

    def __call__(self, host: Host, accept: str) -> tuple[int, str, bytes]:
        openmetrics, now = is_openmetrics_preferred(accept), monotonic()
        made, text = self._last.get(openmetrics, (0.0, (0, "", b"")))
        if now - made > METRICS_PAGE_SECONDS:
            update_gauges(host, self._metrics)
            body, kind = self._metrics.scrape(accept)
            text = 200, kind, body
            self._last[openmetrics] = now, text
        return text


def respond(host: Host, scrapes: MetricsPage, path: str, accept: str) -> tuple[int, str, bytes]:
    """What HTTP asks for."""
    path, _, query = path.partition("?")
    if path == "/metrics":
        return scrapes(host, accept)
    if path == "/livez":
        return 200, "text/plain", b"ok\n"
    if path == "/readyz":
        reasons = not_ready_reasons(host)
        if not reasons:
            text = f"ok\n{ready_text(host)}" if "verbose" in query else "ok\n"
            return 200, "text/plain", text.encode()
        text = "\n".join(reasons) if "verbose" in query else "not ready; ?verbose says why"
        return 503, "text/plain", f"{text}\n".encode()
    return 404, "text/plain", b"/metrics /livez /readyz\n"


def ready_text(host: Host) -> str:
    ready = sum(worker.state in STARTED_STATES for worker in host.dispatcher.all_workers())
    up = sum(line.is_up for line in host.connections.values())
    text = f"database: {up} connections up\nschema: {host.plan.schema_text}\nworkers: {ready} ready\nthe master is running\n"
    if (holder := host.leadership.lock_holder) is not None:
        whose = (
            f"pid {holder.pid}, role {printable(holder.user)}, application {printable(holder.application)}"
        )
        text += f"the leader's lock is held by a session that does not lead ({whose}); duties go on\n"
    return text


def not_ready_reasons(host: Host) -> list[str]:
    reasons = [
        f"database: the {role} connection is down" for role, line in host.connections.items() if line.is_lost
    ]
    if host.state != "running":
        reasons.append(f"the master is {host.state}")
    for queue, desk in host.dispatcher.buffers.items():
        if host.supervisors.target_workers(queue) and not any(
            w.state in STARTED_STATES for w in desk.workers
        ):
            reasons.append(f"queue {queue}: no worker is ready")
    reasons += [
        f"queue {queue}: its supervisor is silent" for queue in host.supervisors.unresponsive_queues()
    ]
    for queue, problem in start_problems(host).items():
        reasons.append(f"queue {queue}: {problem.error}")
        reasons += [f"  {printable(line)}" for line in problem.traceback.splitlines()]
    return reasons


def update_gauges(host: Host, metrics: Metrics) -> None:
    """Bring the gauges up to date for a scrape."""
    now = monotonic()
    app = host.plan.app
    metrics.declare(
        ((task.queue, task.name) for task in app.tasks),
        host.dispatcher.buffers,
        (one.name for one in app.schedules),
    )
    for name, desk in host.dispatcher.buffers.items():
        states: list[str] = [
            WorkerState.IDLE if worker.state is WorkerState.READY else worker.state for worker in desk.workers
        ]
        for state in WORKER_STATES:
            metrics.set("workers", states.count(state), name, state)
        held = [worker.current_job for worker in desk.busy_workers() if worker.current_job is not None]
        began = [one.began_at for one in held if one.began_at is not None]
        metrics.set("jobs_running", len(began), name)
        metrics.set("job_oldest_running_seconds", now - min(began) if began else 0, name)
        metrics.set("worker_stalled", sum(one.is_stalled for one in held), name)
    metrics.set("leader", host.leadership.is_leader)
    for state in HOST_STATES:
        metrics.set("master_state", host.state == state, state)
    metrics.families["build_info"].clear()
    metrics.set("build_info", 1, PACKAGE_VERSION, app.version, host.settings.host_label)
