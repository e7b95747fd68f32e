"""Facts as log lines: text for people, JSON for machines; one fact, one line (docs/logging.md).

Texts that come from jobs are escaped, so that no payload can forge a line. Lines of one kind that come faster than
anybody reads are counted instead of listed: what is told per job must never be what limits the jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

from pgworkers import events, lives
from pgworkers.clock import monotonic
from pgworkers.facts import Hearing, each
from pgworkers.observe import lines
from pgworkers.observe.escape import escape, json_line, printable
from pgworkers.sightings import SIGHTINGS

#: The keys of every JSON line, in this order; null where a line has no such thing.
KEYS = ("at", "level", "host", "pid", "fact", "job", "task", "queue", "attempt", "message", "data")
#: How much larger the share of lines is that are not about a success.
FAILURES = 5
SECOND = 1.0
#: Tasks that a summary names; the others are counted together.
NAMED = 5
#: Keys of a line that are not told again in its data, and the arguments: the message shows what a person needs of them.
ABOVE = frozenset({"job", "task", "queue", "attempt", "args"})
#: Facts for metrics and tests, some of them told thousands of times a second: they have no line.
SILENT: frozenset[type] = frozenset(
    {
        events.JobStarted,
        events.StatementRun,
        events.Claimed,
        events.Notified,
        events.DutyDone,
        events.LinesDropped,  # the writer says it, when it can
        events.JobStopped,
        lives.WorkerForked,
        lives.WorkerReady,
        lives.SupervisorStarted,
        lives.SupervisorBooted,
        events.TickFired,
        *SIGHTINGS,
    }
)


def record(
    *,
    level: str,
    host: str,
    pid: int,
    fact: str,
    message: str,
    job: int | None = None,
    task: str | None = None,
    queue: str | None = None,
    attempt: int | None = None,
    data: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """One JSON line before it is encoded; its keys are `KEYS`."""
    return {
        "at": stamp(time.time()),
        "level": level,
        "host": host,
        "pid": pid,
        "fact": fact,
        "job": job,
        "task": task,
        "queue": queue,
        "attempt": attempt,
        "message": message,
        "data": data or {},
    }


def stamp(now: float) -> str:
    """UTC, with milliseconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"


class Share:
    """How many lines of one kind a second may have, and what was counted instead. Pure: it is told the time."""

    __slots__ = ("hidden", "left", "most", "since")

    def __init__(self, most: int, now: float) -> None:
        self.most = most
        self.left = most
        self.since = now
        self.hidden: dict[str, int] = {}

    def may(self, what: str) -> bool:
        """May one more be told? If not it is counted under `what`."""
        if self.left:
            self.left -= 1
            return True
        self.hidden[what] = self.hidden.get(what, 0) + 1
        return False

    def turn(self, now: float) -> dict[str, int]:
        """When its second is over: what was counted in it, and a fresh share."""
        if now - self.since < SECOND:
            return {}
        hidden, self.hidden = self.hidden, {}
        self.since, self.left = now, self.most
        return hidden


class Log:
    """The listener that writes lines.

    `tick` is called a few times a second: it tells what was counted and opens the next second. No fact looks at a clock
    for it.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        style: str = "text",
        quiet: bool = False,
        rate: int = 0,
        host: str = "localhost",
        pid: int = 0,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._write = write
        self._json = style == "json"
        self._quiet = quiet
        self._rate = rate
        self._host = escape(host, 64)
        self._pid = pid
        self._now = now
        self._shares: dict[str, Share] = {}
        self._clock = (0, "")

    def say(self, text: str) -> None:
        """A line that is no fact: the start, for instance."""
        self.put("info", "said", text, {})

    def put(self, level: str, fact: str, message: str, data: dict[str, Any]) -> None:
        """A line about no job."""
        if self._json:
            host, pid = self._host, self._pid
            self._write(
                json_line(record(level=level, host=host, pid=pid, fact=fact, message=message, data=data))
            )
        else:
            self._write(printable(message if fact == "said" else f"{self._time()} {message}"))

    def hears(self, kind: type) -> Hearing | None:
        if kind is events.JobEnded:
            return self._ended
        return None if kind in SILENT else each(self)

    def __call__(self, fact: events.Fact) -> None:
        if type(fact) in SILENT:
            return
        if isinstance(fact, events.JobEnded):
            self._ended(iter((fact,)))
            return
        told = lines.tell(fact)
        if told is not None and self._may(type(fact).__name__, ""):
            self._tell(fact, told)

    def _ended(self, facts: Iterator[events.JobEnded]) -> None:
        quiet = self._quiet
        for fact in facts:
            if fact.state == "succeeded":
                if not quiet and self._may("done", fact.task):
                    self._tell(fact, lines.tell(fact))
            elif self._may("not done", f"{fact.task} {fact.verdict}"):
                self._tell(fact, lines.tell(fact))

    def _tell(self, fact: events.Fact, told: lines.Told | None) -> None:
        if told is None:
            return
        level, text = told
        if self._json:
            self._write(json_line(self._record(level, fact, text)))
        else:
            # whatever a sentence forgot to escape: one fact is one line, and only what is below has bars
            line = printable(f"{self._time()} {text}{lines.where(fact, self._host)}")
            self._write(line + lines.below(fact))

    def finish(self) -> None:
        """Tell all that was counted."""
        self.tick(inf)

    def tick(self, now: float | None = None) -> None:
        """Tell what was counted in seconds that are over."""
        now = self._now() if now is None else now
        for kind, share in self._shares.items():
            hidden = share.turn(now)
            if hidden:
                self._sum_up(kind, hidden)

    def dropped(self, count: int, why: str) -> str:
        """The line that says how many others were lost; the writer asks for it when the output flows again."""
        text = f"{count:,} log lines were dropped: {why}"
        if self._json:
            data = {"count": count, "why": why}
            host, pid = self._host, self._pid
            return json_line(
                record(level="warning", host=host, pid=pid, fact="LinesDropped", message=text, data=data)
            )
        return f"{self._time()} {text}"

    def _may(self, kind: str, what: str) -> bool:
        if not self._rate:
            return True
        share = self._shares.get(kind)
        if share is None:
            most = self._rate if kind == "done" else self._rate * FAILURES
            share = self._shares[kind] = Share(most, self._now())
        return share.may(what)

    def _sum_up(self, kind: str, hidden: dict[str, int]) -> None:
        count = sum(hidden.values())
        ranked = sorted(hidden.items(), key=lambda one: -one[1])
        named = [f"{escape(name, 60)} {number:,}" for name, number in ranked[:NAMED]]
        if len(ranked) > NAMED:
            named.append(f"{len(ranked) - NAMED} others {sum(n for _, n in ranked[NAMED:]):,}")
        jobs = kind in ("done", "not done")
        what = f"job{'s' * (count != 1)} {kind} ({', '.join(named)})" if jobs else kind
        text = f"… and {count:,} more {what} in the last second"
        data = {"kind": kind, "count": count, "of": dict(ranked[:NAMED])}
        self.put("info" if kind == "done" else "warning", "summary", text, data)

    def _record(self, level: str, fact: events.Fact, text: str) -> dict[str, Any]:
        known: dict[str, Any] = {name: getattr(fact, name) for name in type(fact).__match_args__}
        data = {name: value for name, value in known.items() if name not in ABOVE}
        return record(
            level=level,
            host=self._host,
            pid=self._pid,
            fact=type(fact).__name__,
            message=text,
            job=known.get("job") or None,
            task=known.get("task") or None,
            queue=known.get("queue"),
            attempt=known.get("attempt") or None,
            data=data,
        )

    def _time(self) -> str:
        second = int(time.time())
        if second != self._clock[0]:
            self._clock = (second, time.strftime("%H:%M:%S", time.localtime(second)))
        return self._clock[1]
