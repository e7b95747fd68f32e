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
    """`render(report_id=7)`, cut to a readable length; `render(…)` if the arguments are not to be shown (log_args)."""
    if len(args) > 400 or not args:
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
            why = (
                "the job was rescued, as this host had not renewed in time"
                if fact.rescued
                else "another host owns it"
            )
            return WARNING, f"{_job(fact)} lease lost: {why}; the handler here is stopped"
        case events.FinishRejected():
            return WARNING, f"{_job(fact)} result refused: the lease {fact.lease} is no longer valid"
        case events.EndRefused():
            text = f"{_job(fact)} has ended, and the database refuses to write it: {escape(fact.error, 300)}"
            return ERROR, f"{text}; again in {show_seconds(fact.again_in)}"
        case events.StopWished():
            return INFO, f"{_job(fact)} stopping: {fact.reason}"
        case events.DeadlineMoved():
            if fact.seconds is None:
                return INFO, f"{_job(fact)} deadline removed: only its timeout counts"
            if fact.seconds <= 0:
                return INFO, f"{_job(fact)} deadline moved: it must end now"
            return INFO, f"{_job(fact)} deadline moved: {show_seconds(fact.seconds)} from now"
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
            what = "left before a first job" if fact.unused else "died before being ready"
            text = f"queue {fact.queue}: {fact.deaths} worker{'s' * (fact.deaths != 1)} {what}"
            return ERROR, f"{text}; the next in {show_seconds(fact.seconds)}"
        case events.OutputDropped():
            text = f"queue {fact.queue}: {fact.count:,} bytes that handlers printed were not shown"
            return WARNING, f"{text}: stderr did not take them in time"
        case lives.OrphansKilled():
            return WARNING, f"{fact.count} orphaned process{'es' * (fact.count != 1)} killed"
        case lives.FormerHostEnded():
            if not fact.count:
                what = f"{fact.left} process{'es' * (fact.left != 1)} left by a former host of this machine"
                return WARNING, f"{what} did not end: they are not ours to end, or hang"
            text = (
                f"{fact.count} process{'es' * (fact.count != 1)} left by a former host of this machine killed"
            )
            return WARNING, f"{text}, {fact.left} did not end" if fact.left else text
        case events.DatabaseLost():
            text = f"database: no answer on the {fact.role} connection ({escape(fact.error)})"
            return ERROR, f"{text}; running jobs go on, results wait"
        case events.DatabaseBack():
            return INFO, f"database: the {fact.role} connection is back after {show_seconds(fact.seconds)}"
        case events.DatabaseSlow():
            text = f"database: the ends of {fact.jobs} jobs could not be written within {show_seconds(fact.seconds)}"
            return WARNING, f"{text}; they are written in smaller batches, and fewer jobs are claimed"
        case events.DutyFailed(cut=False):
            return ERROR, f"duty {fact.duty} failed: {escape(fact.error)}"
        case events.ScheduleFailed():
            whose = f" ({escape(fact.scope)})" if fact.scope else ""
            return ERROR, f"schedule {escape(fact.schedule)}{whose} cannot fire: {escape(fact.error)}"
        case events.TicksSkipped():
            whose = f" ({escape(fact.scope)})" if fact.scope else ""
            ticks = f"{fact.count:,} missed tick{'s' * (fact.count != 1)}"
            return WARNING, f"schedule {escape(fact.schedule)}{whose}: {ticks} passed by without a job"
        case events.QueueThrottled():
            again = f"no job of it starts for {show_seconds(fact.seconds)}"
            nth = f" (throttle {fact.throttles} in a row)" if fact.throttles > 1 else ""
            return WARNING, f"queue {escape(fact.queue)} is throttled: {again}{nth}"
        case events.Purged():
            what = (
                f"{fact.count:,} {escape(fact.what)}" if fact.count != 1 else f"1 row ({escape(fact.what)})"
            )
            what = escape(fact.what) if fact.what.startswith("partition ") else what
            return INFO, f"purged {what}: past the retention"
        case events.ClaimTooSlow():
            queues = ", ".join(map(escape, fact.queues))
            took = f"no answer to a claim of {queues} within {show_seconds(fact.seconds)}"
            return WARNING, f"{took}; looking for jobs of unknown tasks, then claiming queue by queue"
        case events.JobsParked():
            jobs = f"{fact.jobs:,} job{'s' * (fact.jobs != 1)} of a task that this host does not know"
            moved = "were moved" if fact.done else "and more are being moved"
            return WARNING, f"{jobs} {moved} out of the way in {fact.queue}: {escape(fact.task)}"
        case events.TaskUnknown():
            jobs = f"{fact.jobs} job{'s' * (fact.jobs != 1)} of a task that no host of the queue has"
            wait = f"{jobs} wait{'s' * (fact.jobs == 1)} in {fact.queue}: {escape(fact.task)}"
            return WARNING, f"{wait}; pgworkers doctor says what to do"
        case events.ReloadRefused():
            return ERROR, f"reload refused, the old code goes on: {escape(fact.why, 600)}"
        case events.LeaderChanged():
            return INFO, escape(fact.why)
        case events.LeaderLockHeld():
            whose = f"pid {fact.pid}, role {escape(fact.user)}, application {escape(fact.application) or '(none)'}"
            return (
                WARNING,
                f"the leader's lock is held by a session that does not lead ({whose}); duties go on",
            )
        case events.LeaderLockFree():
            return INFO, f"the session that held the leader's lock (pid {fact.pid}) has let it go"
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


def _left(count: int) -> str:
    return "1 process it left was" if count == 1 else f"{count} processes it left were"


def _died(fact: lives.WorkerDied) -> Told | None:
    if fact.why in ("left", "threads") and not fact.stuck and not fact.foreign:
        return None
    swept = f", {_left(fact.swept)} killed" if fact.swept else ""
    text = f"worker {fact.queue}/{fact.slot} (pid {fact.pid}) died: {fact.status} ({fact.why}){swept}"
    if fact.stuck:
        text += f"; SIGKILL does not end {escape(', '.join(fact.stuck))}: its slot stays empty until they are gone"
    if fact.foreign:
        text += f"; {escape(', '.join(fact.foreign))}: another user's, not ours to end, so left behind"
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
    if verdict == "throttled" and seconds <= 0:
        when = "when its queue has cooled down"
    if verdict == "error" and (why == ASKED or why.startswith(f"{ASKED}: ")):
        return f"{ASKED} {when}{rest(ASKED, why)}"
    return f"{verdict}{rest(verdict, why)} (again {when})"


def rest(said: str, why: str) -> str:
    """What is left to tell of a reason behind a word that it may itself begin with: `: no such report`, or nothing."""
    if why.startswith(said) and why[len(said) : len(said) + 1] in ("", ":", ";"):
        return why[len(said) :]
    return f": {why}" if why else ""
