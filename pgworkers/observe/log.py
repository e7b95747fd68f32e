"""Facts as log lines: text for people, JSON for machines; one fact, one line.

Texts that come from jobs are escaped, so that no payload can forge a line. When successes come faster than a
person reads, they are counted instead of listed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict

import msgspec

from pgworkers import events
from pgworkers.clock import monotonic, show_seconds, show_size

#: Lines of successful jobs per second before they are only counted.
SUCCESSES = 50


def escape(text: str, limit: int = 300) -> str:
    """One printable line, whatever a job put into it."""
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode()
        for c in text[:limit]
    )
    return shown + ("…" if len(text) > limit else "")


def call(task: str, args: str) -> str:
    """`render(report_id=7)`, cut to a readable length."""
    if len(args) > 400:
        return f"{escape(task)}(…)"
    try:
        values = msgspec.json.decode(args)
    except (msgspec.DecodeError, RecursionError):
        values = {}
    shown = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    return f"{escape(task)}({escape(shown, 80)})"


class Log:
    """The listener that writes lines."""

    def __init__(self, write: Callable[[str], None], *, style: str = "text", quiet: bool = False) -> None:
        self._write = write
        self._json = style == "json"
        self._quiet = quiet
        self._second = 0.0
        self._shown = 0
        self._hidden = 0

    def say(self, text: str) -> None:
        """A line that is no fact: the start, for instance."""
        self._write(json.dumps({"at": _wall(), "message": text}) if self._json else text)

    def __call__(self, fact: events.Fact) -> None:
        if self._json:
            if not isinstance(fact, (events.StatementRun, events.Claimed, events.Notified, events.DutyDone)):
                self._write(
                    json.dumps({"at": _wall(), "fact": type(fact).__name__, **asdict(fact)}, default=str)
                )
            return
        if (
            isinstance(fact, events.JobEnded)
            and fact.state == "succeeded"
            and (self._quiet or self._too_fast())
        ):
            return
        text = line(fact)
        if text is not None:
            self._write(f"{time.strftime('%H:%M:%S')} {text}")

    def _too_fast(self) -> bool:
        now = monotonic()
        if now - self._second >= 1.0:
            if self._hidden:
                self._write(f"{time.strftime('%H:%M:%S')} … and {self._hidden} more done")
            self._second, self._shown, self._hidden = now, 0, 0
        self._shown += 1
        if self._shown > SUCCESSES:
            self._hidden += 1
            return True
        return False


def _wall() -> str:
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"


def line(fact: events.Fact) -> str | None:
    """One fact as a person reads it; None: not worth a line."""
    match fact:
        case events.JobEnded():
            return _ended(fact)
        case events.JobRescued():
            return f"#{fact.job} {escape(fact.task)} rescued: its host was lost; now {fact.state}"
        case events.LeaseLost(running=True):
            return f"#{fact.job} lease lost: another host owns it; the handler here is stopped"
        case events.FinishRejected():
            return f"#{fact.job} result refused: the lease {fact.lease} is no longer valid"
        case events.StopWished():
            return f"#{fact.job} {escape(fact.task)} stopping: {fact.reason}"
        case events.JobStalled(stalled=True):
            return f"#{fact.job} stalled: no heartbeat and no CPU"
        case events.JobsReleased():
            return f"{fact.count} unstarted job{'s' * (fact.count != 1)} given back: {fact.why}"
        case events.WorkerDied():
            if fact.why in ("recycled", "left"):
                return None
            swept = (
                f", {fact.swept} process{'es' * (fact.swept != 1)} it left were killed" if fact.swept else ""
            )
            return f"worker {fact.queue}/{fact.slot} (pid {fact.pid}) died: {fact.status} ({fact.why}){swept}"
        case events.SupervisorFailed():
            return f"queue {fact.queue}: {escape(fact.error, 600)}"
        case events.SupervisorDied():
            if fact.restart_in is None:
                return None
            when = show_seconds(fact.restart_in)
            return (
                f"queue {fact.queue}: its supervisor (pid {fact.pid}) died: {fact.status}; the next in {when}"
            )
        case events.SupervisorSilent():
            silence = show_seconds(fact.seconds)
            return f"queue {fact.queue}: its supervisor (pid {fact.pid}) has said nothing for {silence}: stopped or starved"
        case events.WorkersResting():
            when = show_seconds(fact.seconds)
            return (
                f"queue {fact.queue}: {fact.deaths} workers died before they were ready; the next in {when}"
            )
        case events.OrphansKilled():
            return f"{fact.count} orphaned process{'es' * (fact.count != 1)} killed"
        case events.DatabaseLost():
            why = escape(fact.error)
            return (
                f"database: no answer on the {fact.role} connection ({why}); running jobs go on, results wait"
            )
        case events.DatabaseBack():
            return f"database: the {fact.role} connection is back after {show_seconds(fact.seconds)}"
        case events.DutyFailed(cut=False):
            return f"duty {fact.duty} failed: {escape(fact.error)}"
        case events.ScheduleFailed():
            whose = f" ({escape(fact.scope)})" if fact.scope else ""
            return f"schedule {escape(fact.schedule)}{whose} cannot fire: {escape(fact.error)}"
        case events.ReloadRefused():
            return f"reload refused, the old code goes on: {escape(fact.why, 600)}"
        case events.LeaderChanged():
            return fact.why
        case events.HostChanged():
            return f"{fact.state}: {fact.why}"
        case _:
            return None


def _ended(fact: events.JobEnded) -> str:
    what = f"#{fact.job} {call(fact.task, fact.args)}"
    cost = f"cpu {show_seconds(fact.cpu)} peak {show_size(fact.peak_rss)}"
    if fact.state == "succeeded":
        return f"{what} done in {show_seconds(fact.duration)} {cost}"
    why = f": {escape(fact.error)}" if fact.error else ""
    if fact.again_in is not None:
        when = f"again in {show_seconds(fact.again_in)}" if fact.again_in > 0 else "again at once"
        return f"{what} {fact.verdict}{why} (attempt {fact.attempt} of {fact.max_attempts}, {when})"
    after = f"after {show_seconds(fact.duration)}, {fact.verdict}{why}"
    return f"{what} {fact.state} {after} (attempt {fact.attempt} of {fact.max_attempts}) {cost}"
