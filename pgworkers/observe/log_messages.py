"""The level and the sentence of each event, or None for an event that has no line. Pure."""

from __future__ import annotations

import json
from enum import StrEnum

import msgspec

from pgworkers import events
from pgworkers.job.model import RETRY_REQUESTED_PREFIX
from pgworkers.observe.escape import escape_line, printable
from pgworkers.states import WorkerExitReason
from pgworkers.units import format_duration, format_size


class LogLevel(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


INFO, WARNING, ERROR = LogLevel
LogMessage = tuple[LogLevel, str]


def show_call(task: str, args: str) -> str:
    """`render(report_id=7)`, cut to a readable length; `render(…)` if the arguments are not to be shown (log_args)."""
    if len(args) > 400 or not args:
        return f"{escape_line(task)}(…)"
    if args == "{}":
        return f"{escape_line(task)}()"
    try:
        values = msgspec.json.decode(args)
    except (msgspec.DecodeError, RecursionError):
        values = {}
    shown = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    return f"{escape_line(task)}({escape_line(shown, 80)})"


def message_of(event: events.Event) -> LogMessage | None:
    """The level and sentence of an event, without the time and without the suffix of its job."""
    match event:
        case events.AttemptEnded():
            return _job_ended(event)
        case events.JobRescued():
            return WARNING, f"{_job_prefix(event)} rescued: its host was lost; now {event.state}"
        case events.LeaseLost(is_running=True):
            why = (
                "the job was rescued, as this host had not renewed in time"
                if event.is_rescued
                else "another host owns it"
            )
            return WARNING, f"{_job_prefix(event)} lease lost: {why}; the handler here is stopped"
        case events.FinishRejected():
            return WARNING, f"{_job_prefix(event)} result refused: the lease {event.lease} is no longer valid"
        case events.FinishFailed():
            text = f"{_job_prefix(event)} has ended, and the database refuses to write it: {escape_line(event.error, 300)}"
            return ERROR, f"{text}; again in {format_duration(event.retry_in)}"
        case events.ProgressRefused():
            text = f"job #{event.job}: the database refuses its progress or checkpoint: {escape_line(event.error, 300)}"
            return WARNING, f"{text}; again in {format_duration(event.retry_in)}"
        case events.StopRequested():
            return INFO, f"{_job_prefix(event)} stopping: {event.reason}"
        case events.DeadlineMoved():
            if event.seconds is None:
                return INFO, f"{_job_prefix(event)} deadline removed: only its timeout counts"
            if event.seconds <= 0:
                return INFO, f"{_job_prefix(event)} deadline moved: it must end now"
            return INFO, f"{_job_prefix(event)} deadline moved: {format_duration(event.seconds)} from now"
        case events.JobStallChanged(is_stalled=True):
            return WARNING, f"{_job_prefix(event)} stalled: no heartbeat and no CPU"
        case events.JobStallChanged(is_stalled=False):
            return INFO, f"{_job_prefix(event)} goes on: no longer stalled"
        case events.JobsReleased():
            return INFO, f"released {event.count} unstarted job{'s' * (event.count != 1)}: {event.why}"
        case events.WorkerDied():
            return _worker_died(event)
        case events.WorkerLeakedThreads():
            last = f"#{event.job} {escape_line(event.task)}"
            text = f"leftover threads use CPU while the worker has no job; its last was {last}"
            return WARNING, f"worker {event.queue}/{event.slot} (pid {event.pid}) is replaced: {text}"
        case events.WorkerStackDumped():
            return (
                INFO,
                f"{_worker_job_prefix(event)}worker {event.queue}/{event.slot} (pid {event.pid}) is here:",
            )
        case events.SupervisorBootFailed():
            return ERROR, f"queue {event.queue}: {escape_line(event.error, 600)}"
        case events.SupervisorDied():
            if event.restart_in is None:
                return None
            text = f"queue {event.queue}: its supervisor (pid {event.pid}) died: {event.status}"
            return ERROR, f"{text}; the next in {format_duration(event.restart_in)}"
        case events.SupervisorUnresponsive():
            silence = format_duration(event.seconds)
            text = f"queue {event.queue}: its supervisor (pid {event.pid}) has not responded for {silence}"
            return ERROR, f"{text}: it is stopped or starved of CPU"
        case events.WorkerRestartDelayed():
            what = "left before a first job" if event.were_ready else "died before being ready"
            text = f"queue {event.queue}: {event.deaths} worker{'s' * (event.deaths != 1)} {what}"
            return ERROR, f"{text}; the next in {format_duration(event.seconds)}"
        case events.OutputDropped():
            text = f"queue {event.queue}: {event.count:,} bytes that handlers printed were not shown"
            return WARNING, f"{text}: stderr did not accept them in time"
        case events.ReporterDied():
            why = f": {escape_line(event.why, 600)}" if event.why else ""
            text = f"the reporter (pid {event.pid}), which runs on_job_end hooks, ended: {event.status}{why}"
            return ERROR, f"{text}; the next in {format_duration(event.restart_in)}"
        case events.ReportsDropped():
            text = f"{event.count} end{'s' * (event.count != 1)} of attempts not reported to on_job_end hooks"
            return WARNING, f"{text}: the reporter was too slow, hung or died"
        case events.OrphansKilled():
            return WARNING, f"{event.count} orphaned process{'es' * (event.count != 1)} killed"
        case events.FormerHostProcessesKilled():
            if not event.count:
                what = f"{event.remaining} process{'es' * (event.remaining != 1)} left by a former host of this machine"
                return (
                    WARNING,
                    f"{what} did not end: they belong to another user or do not respond to SIGKILL",
                )
            text = f"{event.count} process{'es' * (event.count != 1)} left by a former host of this machine killed"
            return WARNING, f"{text}, {event.remaining} did not end" if event.remaining else text
        case events.DatabaseConnectionLost():
            text = f"database: lost the {event.role} connection ({escape_line(event.error)})"
            return ERROR, f"{text}; running jobs continue and their results are kept until it is back"
        case events.DatabaseConnectionRestored():
            return (
                INFO,
                f"database: the {event.role} connection is back after {format_duration(event.seconds)}",
            )
        case events.FinishTooSlow():
            text = f"database: the ends of {event.jobs} jobs could not be written within {format_duration(event.seconds)}"
            return WARNING, f"{text}; they are written in smaller batches, and fewer jobs are claimed"
        case events.DutyFailed(is_connection_lost=False):
            return ERROR, f"duty {event.duty} failed: {escape_line(event.error)}"
        case events.ScheduleFailed():
            whose = f" ({escape_line(event.scope)})" if event.scope else ""
            return (
                ERROR,
                f"schedule {escape_line(event.schedule)}{whose} cannot fire: {escape_line(event.error)}",
            )
        case events.TicksMissed():
            whose = f" ({escape_line(event.scope)})" if event.scope else ""
            ticks = f"{event.count:,} missed tick{'s' * (event.count != 1)}"
            return WARNING, f"schedule {escape_line(event.schedule)}{whose}: skipped {ticks}"
        case events.QueueThrottled():
            effect = f"no job of it starts for {format_duration(event.seconds)}"
            nth = f" (throttle {event.throttle_level} in a row)" if event.throttle_level > 1 else ""
            return WARNING, f"queue {escape_line(event.queue)} is throttled: {effect}{nth}"
        case events.RowsPurged():
            what = (
                f"{event.count:,} {escape_line(event.what)}"
                if event.count != 1
                else f"1 row ({escape_line(event.what)})"
            )
            what = escape_line(event.what) if event.what.startswith("partition ") else what
            return INFO, f"purged {what}: past the retention"
        case events.ClaimTooSlow():
            queues = ", ".join(map(escape_line, event.queues))
            took = f"no answer to a claim of {queues} within {format_duration(event.seconds)}"
            return WARNING, f"{took}; looking for jobs of unknown tasks, then claiming queue by queue"
        case events.JobsParked():
            jobs = f"{event.jobs:,} job{'s' * (event.jobs != 1)} of a task that this host does not know"
            moved = "were moved" if event.is_done else "and more are being moved"
            return WARNING, f"{jobs} {moved} out of the way in {event.queue}: {escape_line(event.task)}"
        case events.UnknownTaskFound():
            jobs = f"{event.jobs} job{'s' * (event.jobs != 1)} of a task that no host of the queue has"
            wait = f"{jobs} wait{'s' * (event.jobs == 1)} in {event.queue}: {escape_line(event.task)}"
            return WARNING, f"{wait}; pgworkers doctor says what to do"
        case events.ReloadRefused():
            return ERROR, f"reload refused, the old code goes on: {escape_line(event.why, 600)}"
        case events.LeadershipChanged():
            return INFO, escape_line(event.why)
        case events.LeaderLockTaken():
            application = escape_line(event.application) or "(none)"
            whose = f"pid {event.pid}, role {escape_line(event.user)}, application {application}"
            return (
                WARNING,
                f"the leader's lock is held by a session that does not lead ({whose}); duties go on",
            )
        case events.LeaderLockFreed():
            return INFO, f"the session that held the leader's lock (pid {event.pid}) has let it go"
        case events.HostStateChanged():
            return INFO, f"{event.state}: {escape_line(event.why, 600)}"
        case _:
            return None


def job_suffix(event: events.Event, host: str) -> str:
    """` [reports, attempt 1 of 5, web-1]`: the end of every line of a job."""
    match event:
        case events.AttemptEnded():
            return f" [{event.queue}, attempt {event.attempt} of {event.max_attempts}, {host}]"
        case events.JobEvent():
            return f" [{event.queue}, attempt {event.attempt}, {host}]"
        case events.WorkerDied() | events.WorkerStackDumped() if event.job:
            return f" [{event.queue}, attempt {event.attempt}, {host}]"
        case _:
            return ""


def stack_lines(event: events.Event) -> str:
    """The lines of a stack, each after a bar, so that none can be taken for another event."""
    if not isinstance(event, events.WorkerStackDumped):
        return ""
    return "".join(f"\n  | {printable(line)}" for line in event.stack.splitlines())


def _job_prefix(event: events.JobEvent) -> str:
    return f"#{event.job} {escape_line(event.task)}"


def _worker_job_prefix(event: events.WorkerDied | events.WorkerStackDumped) -> str:
    return f"#{event.job} {escape_line(event.task)} " if event.job else ""


def _leftover_processes(count: int) -> str:
    return "1 process it left was" if count == 1 else f"{count} processes it left were"


def _worker_died(event: events.WorkerDied) -> LogMessage | None:
    if (
        event.reason in (WorkerExitReason.LEFT, WorkerExitReason.THREADS)
        and not event.unkillable
        and not event.foreign
    ):
        return None
    swept = f", {_leftover_processes(event.orphans_killed)} killed" if event.orphans_killed else ""
    text = f"worker {event.queue}/{event.slot} (pid {event.pid}) died: {event.status} ({event.reason}){swept}"
    if event.unkillable:
        stuck = escape_line(", ".join(event.unkillable))
        text += f"; SIGKILL does not end {stuck}: its slot stays empty until they are gone"
    if event.foreign:
        text += (
            f"; {escape_line(', '.join(event.foreign))}: they belong to another user and were left running"
        )
    return WARNING, _worker_job_prefix(event) + text


def _job_ended(event: events.AttemptEnded) -> LogMessage:
    what = f"#{event.job} {show_call(event.task, event.args)}"
    cost = f"cpu {format_duration(event.cpu)} peak {format_size(event.peak_rss)}"
    if event.state == "succeeded":
        return INFO, f"{what} done in {format_duration(event.duration)} {cost}"
    why = escape_line(event.error or "")
    if event.retry_in is not None:
        return WARNING, f"{what} {_retry_sentence(event.verdict, why, event.retry_in)}"
    level = INFO if event.state == "cancelled" else ERROR
    text = f"{what} {event.state} after {format_duration(event.duration)} {cost}"
    if event.verdict != event.state:
        return level, f"{text}: {event.verdict}{rest_of_reason(event.verdict, why)}"
    return level, f"{text}{rest_of_reason(event.verdict, why)}"


def _retry_sentence(verdict: str, why: str, seconds: float) -> str:
    """`error: ValueError: no such report (again in 15s)`; without the retry for a stop that was requested."""
    if verdict == "snoozed":
        return f"snoozed for {format_duration(seconds)}{rest_of_reason(verdict, why)}"
    when = f"in {format_duration(seconds)}" if seconds > 0 else "at once"
    if verdict == "throttled" and seconds <= 0:
        when = "when its queue has cooled down"
    if verdict == "error" and (
        why == RETRY_REQUESTED_PREFIX or why.startswith(f"{RETRY_REQUESTED_PREFIX}: ")
    ):
        return f"{RETRY_REQUESTED_PREFIX} {when}{rest_of_reason(RETRY_REQUESTED_PREFIX, why)}"
    return f"{verdict}{rest_of_reason(verdict, why)} (again {when})"


def rest_of_reason(said: str, why: str) -> str:
    """The part of a reason that follows a word which it may begin with: `: no such report`, or nothing."""
    if why.startswith(said) and why[len(said) : len(said) + 1] in ("", ":", ";"):
        return why[len(said) :]
    return f": {why}" if why else ""
