"""The level and the sentence of each event, or None for an event that has no line. Pure."""

from __future__ import annotations

import json
from enum import StrEnum

import msgspec

from pgworkers import events
from pgworkers.job.model import RETRY_REQUESTED_PREFIX
from pgworkers.observe.escape import escape_line, printable
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


def message_of(fact: events.Event) -> LogMessage | None:
    """The level and sentence of an event, without the time and without the suffix of its job."""
    match fact:
        case events.AttemptEnded():
            return _job_ended(fact)
        case events.JobRescued():
            return WARNING, f"{_job_prefix(fact)} rescued: its host was lost; now {fact.state}"
        case events.LeaseLost(is_running=True):
            why = (
                "the job was rescued, as this host had not renewed in time"
                if fact.is_rescued
                else "another host owns it"
            )
            return WARNING, f"{_job_prefix(fact)} lease lost: {why}; the handler here is stopped"
        case events.FinishRejected():
            return WARNING, f"{_job_prefix(fact)} result refused: the lease {fact.lease} is no longer valid"
        case events.FinishFailed():
            text = f"{_job_prefix(fact)} has ended, and the database refuses to write it: {escape_line(fact.error, 300)}"
            return ERROR, f"{text}; again in {format_duration(fact.retry_in)}"
        case events.StopRequested():
            return INFO, f"{_job_prefix(fact)} stopping: {fact.reason}"
        case events.DeadlineMoved():
            if fact.seconds is None:
                return INFO, f"{_job_prefix(fact)} deadline removed: only its timeout counts"
            if fact.seconds <= 0:
                return INFO, f"{_job_prefix(fact)} deadline moved: it must end now"
            return INFO, f"{_job_prefix(fact)} deadline moved: {format_duration(fact.seconds)} from now"
        case events.JobStallChanged(is_stalled=True):
            return WARNING, f"{_job_prefix(fact)} stalled: no heartbeat and no CPU"
        case events.JobStallChanged(is_stalled=False):
            return INFO, f"{_job_prefix(fact)} goes on: no longer stalled"
        case events.JobsReleased():
            return INFO, f"released {fact.count} unstarted job{'s' * (fact.count != 1)}: {fact.why}"
        case events.WorkerDied():
            return _worker_died(fact)
        case events.WorkerLeakedThreads():
            text = f"leftover threads use CPU while the worker has no job; its last was #{fact.job} {escape_line(fact.task)}"
            return WARNING, f"worker {fact.queue}/{fact.slot} (pid {fact.pid}) is replaced: {text}"
        case events.WorkerStackDumped():
            return (
                INFO,
                f"{_worker_job_prefix(fact)}worker {fact.queue}/{fact.slot} (pid {fact.pid}) is here:",
            )
        case events.SupervisorBootFailed():
            return ERROR, f"queue {fact.queue}: {escape_line(fact.error, 600)}"
        case events.SupervisorDied():
            if fact.restart_in is None:
                return None
            text = f"queue {fact.queue}: its supervisor (pid {fact.pid}) died: {fact.status}"
            return ERROR, f"{text}; the next in {format_duration(fact.restart_in)}"
        case events.SupervisorUnresponsive():
            silence = format_duration(fact.seconds)
            text = f"queue {fact.queue}: its supervisor (pid {fact.pid}) has not responded for {silence}"
            return ERROR, f"{text}: it is stopped or starved of CPU"
        case events.WorkerRestartDelayed():
            what = "left before a first job" if fact.were_ready else "died before being ready"
            text = f"queue {fact.queue}: {fact.deaths} worker{'s' * (fact.deaths != 1)} {what}"
            return ERROR, f"{text}; the next in {format_duration(fact.seconds)}"
        case events.OutputDropped():
            text = f"queue {fact.queue}: {fact.count:,} bytes that handlers printed were not shown"
            return WARNING, f"{text}: stderr did not accept them in time"
        case events.ReporterDied():
            why = f": {escape_line(fact.why, 600)}" if fact.why else ""
            text = f"the reporter (pid {fact.pid}), which runs on_job_end hooks, ended: {fact.status}{why}"
            return ERROR, f"{text}; the next in {format_duration(fact.restart_in)}"
        case events.ReportsDropped():
            text = f"{fact.count} end{'s' * (fact.count != 1)} of attempts not reported to on_job_end hooks"
            return WARNING, f"{text}: the reporter was too slow, hung or died"
        case events.OrphansKilled():
            return WARNING, f"{fact.count} orphaned process{'es' * (fact.count != 1)} killed"
        case events.FormerHostProcessesKilled():
            if not fact.count:
                what = f"{fact.remaining} process{'es' * (fact.remaining != 1)} left by a former host of this machine"
                return (
                    WARNING,
                    f"{what} did not end: they belong to another user or do not respond to SIGKILL",
                )
            text = (
                f"{fact.count} process{'es' * (fact.count != 1)} left by a former host of this machine killed"
            )
            return WARNING, f"{text}, {fact.remaining} did not end" if fact.remaining else text
        case events.DatabaseConnectionLost():
            text = f"database: lost the {fact.role} connection ({escape_line(fact.error)})"
            return ERROR, f"{text}; running jobs continue and their results are kept until it is back"
        case events.DatabaseConnectionRestored():
            return INFO, f"database: the {fact.role} connection is back after {format_duration(fact.seconds)}"
        case events.FinishTooSlow():
            text = f"database: the ends of {fact.jobs} jobs could not be written within {format_duration(fact.seconds)}"
            return WARNING, f"{text}; they are written in smaller batches, and fewer jobs are claimed"
        case events.DutyFailed(is_connection_lost=False):
            return ERROR, f"duty {fact.duty} failed: {escape_line(fact.error)}"
        case events.ScheduleFailed():
            whose = f" ({escape_line(fact.scope)})" if fact.scope else ""
            return (
                ERROR,
                f"schedule {escape_line(fact.schedule)}{whose} cannot fire: {escape_line(fact.error)}",
            )
        case events.TicksMissed():
            whose = f" ({escape_line(fact.scope)})" if fact.scope else ""
            ticks = f"{fact.count:,} missed tick{'s' * (fact.count != 1)}"
            return WARNING, f"schedule {escape_line(fact.schedule)}{whose}: skipped {ticks}"
        case events.QueueThrottled():
            again = f"no job of it starts for {format_duration(fact.seconds)}"
            nth = f" (throttle {fact.throttle_level} in a row)" if fact.throttle_level > 1 else ""
            return WARNING, f"queue {escape_line(fact.queue)} is throttled: {again}{nth}"
        case events.RowsPurged():
            what = (
                f"{fact.count:,} {escape_line(fact.what)}"
                if fact.count != 1
                else f"1 row ({escape_line(fact.what)})"
            )
            what = escape_line(fact.what) if fact.what.startswith("partition ") else what
            return INFO, f"purged {what}: past the retention"
        case events.ClaimTooSlow():
            queues = ", ".join(map(escape_line, fact.queues))
            took = f"no answer to a claim of {queues} within {format_duration(fact.seconds)}"
            return WARNING, f"{took}; looking for jobs of unknown tasks, then claiming queue by queue"
        case events.JobsParked():
            jobs = f"{fact.jobs:,} job{'s' * (fact.jobs != 1)} of a task that this host does not know"
            moved = "were moved" if fact.is_done else "and more are being moved"
            return WARNING, f"{jobs} {moved} out of the way in {fact.queue}: {escape_line(fact.task)}"
        case events.UnknownTaskFound():
            jobs = f"{fact.jobs} job{'s' * (fact.jobs != 1)} of a task that no host of the queue has"
            wait = f"{jobs} wait{'s' * (fact.jobs == 1)} in {fact.queue}: {escape_line(fact.task)}"
            return WARNING, f"{wait}; pgworkers doctor says what to do"
        case events.ReloadRefused():
            return ERROR, f"reload refused, the old code goes on: {escape_line(fact.why, 600)}"
        case events.LeadershipChanged():
            return INFO, escape_line(fact.why)
        case events.LeaderLockTaken():
            whose = f"pid {fact.pid}, role {escape_line(fact.user)}, application {escape_line(fact.application) or '(none)'}"
            return (
                WARNING,
                f"the leader's lock is held by a session that does not lead ({whose}); duties go on",
            )
        case events.LeaderLockFreed():
            return INFO, f"the session that held the leader's lock (pid {fact.pid}) has let it go"
        case events.HostStateChanged():
            return INFO, f"{fact.state}: {escape_line(fact.why, 600)}"
        case _:
            return None


def job_suffix(fact: events.Event, host: str) -> str:
    """` [reports, attempt 1 of 5, web-1]`: the end of every line of a job."""
    match fact:
        case events.AttemptEnded():
            return f" [{fact.queue}, attempt {fact.attempt} of {fact.max_attempts}, {host}]"
        case events.JobEvent():
            return f" [{fact.queue}, attempt {fact.attempt}, {host}]"
        case events.WorkerDied() | events.WorkerStackDumped() if fact.job:
            return f" [{fact.queue}, attempt {fact.attempt}, {host}]"
        case _:
            return ""


def stack_lines(fact: events.Event) -> str:
    """The lines of a stack, each after a bar, so that none can be taken for another event."""
    if not isinstance(fact, events.WorkerStackDumped):
        return ""
    return "".join(f"\n  | {printable(line)}" for line in fact.stack.splitlines())


def _job_prefix(fact: events.JobEvent) -> str:
    return f"#{fact.job} {escape_line(fact.task)}"


def _worker_job_prefix(fact: events.WorkerDied | events.WorkerStackDumped) -> str:
    return f"#{fact.job} {escape_line(fact.task)} " if fact.job else ""


def _leftover_processes(count: int) -> str:
    return "1 process it left was" if count == 1 else f"{count} processes it left were"


def _worker_died(fact: events.WorkerDied) -> LogMessage | None:
    if fact.reason in ("left", "threads") and not fact.unkillable and not fact.foreign:
        return None
    swept = f", {_leftover_processes(fact.orphans_killed)} killed" if fact.orphans_killed else ""
    text = f"worker {fact.queue}/{fact.slot} (pid {fact.pid}) died: {fact.status} ({fact.reason}){swept}"
    if fact.unkillable:
        text += f"; SIGKILL does not end {escape_line(', '.join(fact.unkillable))}: its slot stays empty until they are gone"
    if fact.foreign:
        text += f"; {escape_line(', '.join(fact.foreign))}: they belong to another user and were left running"
    return WARNING, _worker_job_prefix(fact) + text


def _job_ended(fact: events.AttemptEnded) -> LogMessage:
    what = f"#{fact.job} {show_call(fact.task, fact.args)}"
    cost = f"cpu {format_duration(fact.cpu)} peak {format_size(fact.peak_rss)}"
    if fact.state == "succeeded":
        return INFO, f"{what} done in {format_duration(fact.duration)} {cost}"
    why = escape_line(fact.error or "")
    if fact.retry_in is not None:
        return WARNING, f"{what} {_retry_sentence(fact.verdict, why, fact.retry_in)}"
    level = INFO if fact.state == "cancelled" else ERROR
    told = f"{what} {fact.state} after {format_duration(fact.duration)} {cost}"
    if fact.verdict != fact.state:
        return level, f"{told}: {fact.verdict}{rest_of_reason(fact.verdict, why)}"
    return level, f"{told}{rest_of_reason(fact.verdict, why)}"


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
