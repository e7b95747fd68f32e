"""One fact as a person reads it. Pure: how bad it is and the sentence, or None where it is not worth a line."""

from __future__ import annotations

import json

import msgspec

from pgworkers import events, lives
from pgworkers.clock import show_seconds, show_size
from pgworkers.job.state import ASKED
from pgworkers.observe.escape import escape, printable

Told = tuple[str, str]  # level, sentence
INFO, WARNING, ERROR = "info", "warning", "error"


def call(task: str, args: str) -> str:
    """`render(report_id=7)`, cut to a readable length."""
    if len(args) > 400:
        return f"{escape(task)}(…)"
    if args == "{}":
        return f"{escape(task)}()"
    try:
        values = msgspec.json.decode(args)
    except (msgspec.DecodeError, RecursionError):
        values = {}
    shown = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    return f"{escape(task)}({escape(shown, 80)})"


def tell(fact: events.Fact) -> Told | None:
    """The sentence of a fact, without time and without where the job is."""
    match fact:
        case events.JobEnded():
            return _ended(fact)
        case events.JobRescued():
            return WARNING, f"{_job(fact)} rescued: its host was lost; now {fact.state}"
        case events.LeaseLost(running=True):
            return WARNING, f"{_job(fact)} lease lost: another host owns it; the handler here is stopped"
        case events.FinishRejected():
            return WARNING, f"{_job(fact)} result refused: the lease {fact.lease} is no longer valid"
        case events.EndRefused():
            text = f"{_job(fact)} has ended, and the database refuses to write it: {escape(fact.error, 300)}"
            return ERROR, f"{text}; again in {show_seconds(fact.again_in)}"
        case events.StopWished():
            return INFO, f"{_job(fact)} stopping: {fact.reason}"
        case events.JobStalled(stalled=True):
            return WARNING, f"{_job(fact)} stalled: no heartbeat and no CPU"
        case events.JobStalled(stalled=False):
            return INFO, f"{_job(fact)} goes on: no longer stalled"
        case events.JobsReleased():
            return INFO, f"{fact.count} unstarted job{'s' * (fact.count != 1)} given back: {fact.why}"
        case lives.WorkerDied():
            return _died(fact)
        case lives.WorkerBurned():
            text = f"threads left behind use CPU while it has no job; its last was #{fact.job} {escape(fact.task)}"
            return WARNING, f"worker {fact.queue}/{fact.slot} (pid {fact.pid}) is replaced: {text}"
        case lives.WorkerDumped():
            return INFO, f"{_whose(fact)}worker {fact.queue}/{fact.slot} (pid {fact.pid}) is here:"
        case lives.SupervisorFailed():
            return ERROR, f"queue {fact.queue}: {escape(fact.error, 600)}"
        case lives.SupervisorDied():
            if fact.restart_in is None:
                return None
            text = f"queue {fact.queue}: its supervisor (pid {fact.pid}) died: {fact.status}"
            return ERROR, f"{text}; the next in {show_seconds(fact.restart_in)}"
        case lives.SupervisorSilent():
            silence = show_seconds(fact.seconds)
            text = f"queue {fact.queue}: its supervisor (pid {fact.pid}) has said nothing for {silence}"
            return ERROR, f"{text}: stopped or starved"
        case lives.WorkersResting():
            text = f"queue {fact.queue}: {fact.deaths} workers died before they were ready"
            return ERROR, f"{text}; the next in {show_seconds(fact.seconds)}"
        case events.OutputDropped():
            text = f"queue {fact.queue}: {fact.count:,} bytes that handlers printed were not shown"
            return WARNING, f"{text}: stderr did not take them in time"
        case lives.OrphansKilled():
            return WARNING, f"{fact.count} orphaned process{'es' * (fact.count != 1)} killed"
        case events.DatabaseLost():
            text = f"database: no answer on the {fact.role} connection ({escape(fact.error)})"
            return ERROR, f"{text}; running jobs go on, results wait"
        case events.DatabaseBack():
            return INFO, f"database: the {fact.role} connection is back after {show_seconds(fact.seconds)}"
        case events.DutyFailed(cut=False):
            return ERROR, f"duty {fact.duty} failed: {escape(fact.error)}"
        case events.ScheduleFailed():
            whose = f" ({escape(fact.scope)})" if fact.scope else ""
            return ERROR, f"schedule {escape(fact.schedule)}{whose} cannot fire: {escape(fact.error)}"
        case events.TaskUnknown():
            jobs = f"{fact.jobs} job{'s' * (fact.jobs != 1)} of a task that no host of the queue has"
            wait = f"{jobs} wait{'s' * (fact.jobs == 1)} in {fact.queue}: {escape(fact.task)}"
            return WARNING, f"{wait}; pgworkers doctor says what to do"
        case events.ReloadRefused():
            return ERROR, f"reload refused, the old code goes on: {escape(fact.why, 600)}"
        case events.LeaderChanged():
            return INFO, escape(fact.why)
        case events.HostChanged():
            return INFO, f"{fact.state}: {escape(fact.why, 600)}"
        case _:
            return None


def where(fact: events.Fact, host: str) -> str:
    """` [reports, attempt 1 of 5, web-1]`: what stands at the end of every line of a job."""
    match fact:
        case events.JobEnded():
            return f" [{fact.queue}, attempt {fact.attempt} of {fact.max_attempts}, {host}]"
        case events.OfJob():
            return f" [{fact.queue}, attempt {fact.attempt}, {host}]"
        case lives.WorkerDied() | lives.WorkerDumped() if fact.job:
            return f" [{fact.queue}, attempt {fact.attempt}, {host}]"
        case _:
            return ""


def below(fact: events.Fact) -> str:
    """What follows the line of a stack, each line behind a bar: nothing in it can pass for another fact."""
    if not isinstance(fact, lives.WorkerDumped):
        return ""
    return "".join(f"\n  | {printable(line)}" for line in fact.stack.splitlines())


def _job(fact: events.OfJob) -> str:
    return f"#{fact.job} {escape(fact.task)}"


def _whose(fact: lives.WorkerDied | lives.WorkerDumped) -> str:
    return f"#{fact.job} {escape(fact.task)} " if fact.job else ""


def _died(fact: lives.WorkerDied) -> Told | None:
    if fact.why in ("left", "threads"):
        return None
    swept = f", {fact.swept} process{'es' * (fact.swept != 1)} it left were killed" if fact.swept else ""
    text = f"worker {fact.queue}/{fact.slot} (pid {fact.pid}) died: {fact.status} ({fact.why}){swept}"
    return WARNING, _whose(fact) + text


def _ended(fact: events.JobEnded) -> Told:
    what = f"#{fact.job} {call(fact.task, fact.args)}"
    cost = f"cpu {show_seconds(fact.cpu)} peak {show_size(fact.peak_rss)}"
    if fact.state == "succeeded":
        return INFO, f"{what} done in {show_seconds(fact.duration)} {cost}"
    why = escape(fact.error or "")
    if fact.again_in is not None:
        return WARNING, f"{what} {_again(fact.verdict, why, fact.again_in)}"
    level = INFO if fact.state == "cancelled" else ERROR
    told = f"{what} {fact.state} after {show_seconds(fact.duration)} {cost}"
    if fact.verdict != fact.state:
        return level, f"{told}: {fact.verdict}{rest(fact.verdict, why)}"
    return level, f"{told}{rest(fact.verdict, why)}"


def _again(verdict: str, why: str, seconds: float) -> str:
    """`error: ValueError: no such report (again in 15s)`; who asked for it is not told that it failed."""
    if verdict == "snoozed":
        return f"snoozed for {show_seconds(seconds)}{rest(verdict, why)}"
    when = f"in {show_seconds(seconds)}" if seconds > 0 else "at once"
    if verdict == "error" and (why == ASKED or why.startswith(f"{ASKED}: ")):
        return f"{ASKED} {when}{rest(ASKED, why)}"
    return f"{verdict}{rest(verdict, why)} (again {when})"


def rest(said: str, why: str) -> str:
    """What is left to tell of a reason behind a word that it may itself begin with: `: no such report`, or nothing."""
    if why.startswith(said) and why[len(said) : len(said) + 1] in ("", ":", ";"):
        return why[len(said) :]
    return f": {why}" if why else ""
