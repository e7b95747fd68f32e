"""How a host looks from outside: the process view for operators, its health, its title and its gauges."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from pgworkers.clock import monotonic
from pgworkers.master.assignment import StartProblem
from pgworkers.master.boot import PACKAGE_VERSION, ServedApp
from pgworkers.master.connection import ReconnectingConnection
from pgworkers.master.dispatcher import Dispatcher
from pgworkers.master.finisher import Finisher
from pgworkers.master.handler_metrics_page import HandlerMetricsPage
from pgworkers.master.held_job import HeldJob
from pgworkers.master.http import HttpResponse
from pgworkers.master.leadership import Leadership
from pgworkers.master.lifecycle import HostLifecycle
from pgworkers.master.process_usage import ProcessUsage
from pgworkers.master.supervisors import SupervisorPool
from pgworkers.master.worker_channel import STARTED_STATES, WorkerChannel
from pgworkers.observe.escape import printable
from pgworkers.observe.metrics import Metrics
from pgworkers.observe.metrics_catalog import HOST_STATES, WORKER_STATES
from pgworkers.observe.metrics_exposition import OPENMETRICS_END, is_openmetrics_preferred
from pgworkers.states import ConnectionRole, HostState, WorkerState
from pgworkers.units import format_duration

#: A job that has run for this long should be in the process view.
NEW_JOB_SHOWN_SECONDS = 1.0
#: Characters of an error and of a traceback that a renewal carries.
MAX_PROBLEM_CHARACTERS = 4000
#: How long a text of /metrics is reused.
METRICS_PAGE_SECONDS = 0.1
#: States of a worker that has had its first chance at a job.
_SERVING_STATES = frozenset({WorkerState.IDLE, WorkerState.BUSY, WorkerState.SUSPENDED})


class HostSnapshot(NamedTuple):
    """What a renewal writes about the host."""

    state: str
    workers_json: str
    load: float  # of the machine, over a minute
    cores: int
    problems_json: str  # why workers cannot start, by queue


class HostStatus:
    """Reads the parts of a host and describes them. It changes nothing."""

    def __init__(
        self,
        *,
        lifecycle: HostLifecycle,
        served: ServedApp,
        label: str,
        schema_text: str,
        dispatcher: Dispatcher,
        finisher: Finisher,
        supervisors: SupervisorPool,
        leadership: Leadership,
        connections: Mapping[ConnectionRole, ReconnectingConnection],
    ) -> None:
        self._lifecycle = lifecycle
        self._served = served
        self._label = label
        self._schema_text = schema_text
        self._dispatcher = dispatcher
        self._finisher = finisher
        self._supervisors = supervisors
        self._leadership = leadership
        self._connections = connections
        self._usage = ProcessUsage()
        self._shown_jobs: frozenset[int] = frozenset()  # jobs of workers in the last snapshot

    # -- the process view --------------------------------------------------------------------------------------------

    def snapshot(self, is_watched: bool) -> HostSnapshot:
        """Describe the host for its row. Remembers which running jobs it shows."""
        problems = [
            {
                "queue": queue,
                "error": problem.error[:MAX_PROBLEM_CHARACTERS],
                "traceback": problem.traceback[-MAX_PROBLEM_CHARACTERS:],
            }
            for queue, problem in self.start_problems().items()
        ]
        return HostSnapshot(
            state=self._lifecycle.state.value,
            workers_json=self._worker_rows_json(is_watched=is_watched),
            load=os.getloadavg()[0],
            cores=len(os.sched_getaffinity(0)),
            problems_json=msgspec.json.encode(problems).decode(),
        )

    def has_unshown_jobs(self) -> bool:
        """True if a job has been running for a while that the last snapshot did not show."""
        long_ago = monotonic() - NEW_JOB_SHOWN_SECONDS
        return any(
            held.began_at is not None and held.began_at < long_ago and held.job.id not in self._shown_jobs
            for worker in self._dispatcher.busy_workers()
            if (held := worker.current_job) is not None
        )

    def start_problems(self) -> dict[str, StartProblem]:
        """By queue: why its workers cannot start."""
        found = {
            name: buffer.start_problem
            for name, buffer in self._dispatcher.buffers.items()
            if buffer.start_problem is not None and self._supervisors.target_workers(name)
        }
        for queue, error in self._supervisors.errors.items():
            found[queue] = StartProblem(error, self._supervisors.tracebacks.get(queue, ""))
        return found

    def _worker_rows_json(self, *, is_watched: bool) -> str:
        """The rows of the process view as JSON. While it is watched, idle workers are measured as well."""
        now = monotonic()
        workers = self._dispatcher.all_workers()
        usage = self._usage.sample({w.pid: None if is_watched else w.idle_mark for w in workers}, now)
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
                **_usage_columns(usage.get(w.pid)),
                **(_job_columns(w, w.current_job, now) if w.current_job else {}),
            }
            for w in workers
        ]
        self._shown_jobs = frozenset(row["job_id"] for row in rows if row["job_id"] is not None)
        return msgspec.json.encode(rows).decode()

    # -- health ------------------------------------------------------------------------------------------------------

    def is_serving(self) -> bool:
        """True if the host runs and a worker can have jobs, or no queue wants workers."""
        return self._lifecycle.state is HostState.RUNNING and (
            not self._target_workers()
            or any(worker.state in _SERVING_STATES for worker in self._dispatcher.all_workers())
        )

    def is_quiet(self, *, is_burst: bool) -> bool:
        """True if the host serves and is idle, so housekeeping may run less often.

        Never in a burst, which must end soon.
        """
        return not is_burst and self.is_serving() and not self._dispatcher.busy_workers()

    def are_workers_up(self) -> bool:
        """True if as many workers have started as the host should have."""
        return self._started_workers() >= self._target_workers()

    def not_ready_reasons(self) -> list[str]:
        reasons = [
            f"database: the {role} connection is down"
            for role, connection in self._connections.items()
            if connection.is_lost
        ]
        if self._lifecycle.state is not HostState.RUNNING:
            reasons.append(f"the master is {self._lifecycle.state}")
        for queue, buffer in self._dispatcher.buffers.items():
            if self._supervisors.target_workers(queue) and not any(
                worker.state in STARTED_STATES for worker in buffer.workers
            ):
                reasons.append(f"queue {queue}: no worker is ready")
        reasons += [
            f"queue {queue}: its supervisor is unresponsive"
            for queue in self._supervisors.unresponsive_queues()
        ]
        for queue, problem in self.start_problems().items():
            reasons.append(f"queue {queue}: {problem.error}")
            reasons += [f"  {printable(line)}" for line in problem.traceback.splitlines()]
        return reasons

    def ready_text(self) -> str:
        up = sum(connection.is_up for connection in self._connections.values())
        text = (
            f"database: {up} connections up\nschema: {self._schema_text}\n"
            f"workers: {self._started_workers()} ready\nthe master is running\n"
        )
        if (holder := self._leadership.lock_holder) is not None:
            session = f"pid {holder.pid}, role {printable(holder.user)}, application {printable(holder.application)}"
            text += f"the leader's lock is held by a session that does not lead ({session}); duties go on\n"
        return text

    # -- title, gauges, log ------------------------------------------------------------------------------------------

    def title(self) -> str:
        """The title of the master's process."""
        busy = len(self._dispatcher.busy_workers())
        state: str = self._lifecycle.state
        if self._lifecycle.state is HostState.RUNNING:
            if not any(connection.is_up for connection in self._connections.values()):
                state = "no database"
            elif self._leadership.is_leader:
                state = "leader"
        label = f", {printable(self._label)[:40]}" if self._label else ""
        return (
            f"pgworkers: master {self._served.app.name} [{state}] {busy}/{self._target_workers()} busy{label}"
        )

    def log_state(self) -> None:
        """Log every worker and every connection (SIGUSR1)."""
        now = monotonic()
        for worker in self._dispatcher.all_workers():
            job = f" #{worker.current_job.job.id} {worker.current_job.job.task}" if worker.current_job else ""
            duration = format_duration(now - worker.since)
            self._lifecycle.note(f"{worker.name} pid {worker.pid} {worker.state}{job} for {duration}")
        connections = ", ".join(
            f"{role} {'up' if connection.is_up else 'down'}" for role, connection in self._connections.items()
        )
        self._lifecycle.note(f"{len(self._finisher)} results waiting; connections: {connections}")

    def update_gauges(self, metrics: Metrics) -> None:
        """Bring the gauges up to date for a scrape."""
        now = monotonic()
        app = self._served.app
        metrics.declare(
            ((task.queue, task.name) for task in app.tasks),
            self._dispatcher.buffers,
            (schedule.name for schedule in app.schedules),
        )
        for name, buffer in self._dispatcher.buffers.items():
            states: list[str] = [
                WorkerState.IDLE if worker.state is WorkerState.READY else worker.state
                for worker in buffer.workers
            ]
            for state in WORKER_STATES:
                metrics.set("workers", states.count(state), name, state)
            jobs = [worker.current_job for worker in buffer.busy_workers() if worker.current_job is not None]
            began = [held.began_at for held in jobs if held.began_at is not None]
            metrics.set("jobs_running", len(began), name)
            metrics.set("job_oldest_running_seconds", now - min(began) if began else 0, name)
            metrics.set("worker_stalled", sum(held.is_stalled for held in jobs), name)
        metrics.set("leader", self._leadership.is_leader)
        for state in HOST_STATES:
            metrics.set("master_state", self._lifecycle.state == state, state)
        metrics.families["build_info"].clear()
        metrics.set("build_info", 1, PACKAGE_VERSION, app.version, self._label)

    def _started_workers(self) -> int:
        return sum(worker.state in STARTED_STATES for worker in self._dispatcher.all_workers())

    def _target_workers(self) -> int:
        return sum(self._supervisors.target_workers(queue) for queue in self._dispatcher.buffers)


def _usage_columns(found: tuple[float | None, int] | None) -> dict[str, Any]:
    return {"cpu": found[0], "rss": found[1]} if found is not None else {}


def _job_columns(worker: WorkerChannel, held: HeldJob, now: float) -> dict[str, Any]:
    """The columns that only a worker with a job has. A suspended job uses up no time."""
    left = held.seconds_left(worker.since if worker.is_suspended else now)
    return {
        "attempt": held.job.attempt,
        "max_attempts": held.job.max_attempts,
        "running": round(now - held.began_at, 3) if held.began_at is not None else None,
        "seconds_left": round(left, 3) if left is not None else None,
        "stalled": held.is_stalled,
        "stop_reason": held.stop_reason.word if held.stop_reason is not None else None,
    }


class HttpPages:
    """The pages of the HTTP port: /metrics, /livez and /readyz."""

    def __init__(self, status: HostStatus, metrics: Metrics, handler_metrics: HandlerMetricsPage) -> None:
        self._status = status
        self._metrics = metrics
        self._handler_metrics = handler_metrics
        self._last_scrapes: dict[bool, tuple[float, HttpResponse]] = {}  # by format: when, and what

    def respond(self, path: str, accept: str) -> HttpResponse | asyncio.Future[HttpResponse]:
        path, _, query = path.partition("?")
        if path == "/metrics":
            return self._scrape(accept)
        if path == "/livez":
            return 200, "text/plain", b"ok\n"
        if path == "/readyz":
            return self._readiness(is_verbose="verbose" in query)
        return 404, "text/plain", b"/metrics /livez /readyz\n"

    def _readiness(self, *, is_verbose: bool) -> HttpResponse:
        reasons = self._status.not_ready_reasons()
        if not reasons:
            text = f"ok\n{self._status.ready_text()}" if is_verbose else "ok\n"
            return 200, "text/plain", text.encode()
        text = "\n".join(reasons) if is_verbose else "not ready; ?verbose says why"
        return 503, "text/plain", f"{text}\n".encode()

    def _scrape(self, accept: str) -> HttpResponse | asyncio.Future[HttpResponse]:
        """The text of /metrics.

        Each format is made at most ten times a second, however many clients ask.
        """
        is_openmetrics, now = is_openmetrics_preferred(accept), monotonic()
        made_at, response = self._last_scrapes.get(is_openmetrics, (0.0, (0, "", b"")))
        if now - made_at > METRICS_PAGE_SECONDS:
            self._status.update_gauges(self._metrics)
            body, content_type = self._metrics.scrape(accept)
            response = 200, content_type, body
            self._last_scrapes[is_openmetrics] = now, response
        merged = self._handler_metrics.request(is_openmetrics=is_openmetrics)
        if merged is None:
            return response
        if merged.done():
            return _with_handler_metrics(response, merged.result())
        answer: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
        merged.add_done_callback(
            lambda done: answer.set_result(_with_handler_metrics(response, done.result()))
        )
        return answer


def _with_handler_metrics(response: HttpResponse, text: bytes) -> HttpResponse:
    """The page with the metrics of handlers before the end mark of OpenMetrics."""
    status, kind, body = response
    own = body.removesuffix(OPENMETRICS_END)
    return status, kind, own + text + body[len(own) :]
