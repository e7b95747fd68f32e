"""One batch of ends into the database, and what it answered.

Data that Postgres refuses never stops a job from finishing: `ends` halves the batch until the guilty row stands alone, and
that row is written without its texts. If it is refused even so, or by code of the user's in the database, or takes longer
than a statement may, it is told and kept (`aside`), to be sent again later as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import psycopg
from msgspec.structs import replace

from pgworkers.events import EndRefused, FinishRejected, JobEnded
from pgworkers.facts import Facts
from pgworkers.job.claim import Claimed, Fence
from pgworkers.job.finish import End, finish
from pgworkers.job.retry import Again, retry
from pgworkers.job.state import State, Verdict
from pgworkers.job.unwritten import unwritten_attempts, unwritten_ends
from pgworkers.master.aside import Aside
from pgworkers.master.held import Held
from pgworkers.master.line import Line, raised, timed_out

Pending = tuple[Held, End | Again]
#: Verdicts as plain text: whoever counts by them hashes no enum.
_WORDS = {verdict: verdict.value for verdict in Verdict}
_SUCCEEDED = Verdict.SUCCEEDED


class Writing:
    def __init__(
        self, host: str, line: Line, facts: Facts, again: Callable[[Pending], None], *, log_args: bool = True
    ) -> None:
        self._host = host
        self._line = line
        self._facts = facts
        self._log_args = log_args
        self._again = again  # for an end that must be the first of the next batch
        self.aside: Aside[Held, End | Again] = Aside()

    async def write(self, batch: list[Pending]) -> None:
        """Write them all. Raises `psycopg.Error`: none is written as the database refuses one, or took too long; `LineDown`:
        it is not known which are written."""
        self._written(batch, await self._sent([end for _, end in batch]))

    async def write_alone(self, held: Held, end: End | Again, error: psycopg.Error) -> None:
        """It was not written by itself: without its texts, unless code in the database or the time said no; else later."""
        try:
            if not raised(error) and not timed_out(error):
                await self._write_bare(held, end, error)
                return
        except psycopg.Error as still:
            error = still
        reason = f"{type(error).__name__}: {error.diag.message_primary or error}"
        self._facts.tell(EndRefused(*held.named, reason, self.aside.put_refused(held, end)))

    async def _write_bare(self, held: Held, end: End | Again, error: psycopg.Error) -> None:
        """The same end without anything that came from the handler."""
        text = f"{type(error).__name__}: the database refused what the handler left; it was dropped"
        bare = replace(
            end,
            error=text,
            traceback=None,
            stack=None,
            output=None,
            progress=None,
            checkpoint=None,
            rungs=None,
        )
        if isinstance(bare, End) and (bare.result is not None or bare.children is not None):
            bare = replace(bare, result=None, children=None, state=State.DEAD, verdict=Verdict.ERROR)
        self._written([(held, bare)], await self._sent([bare]))

    async def _sent(self, both: Sequence[End | Again]) -> dict[Fence, str]:
        """Write them. Answers for each that was not written "already", "locked", "lost" or "again"; mostly for none."""
        ends = [end for end in both if isinstance(end, End)]
        agains = [end for end in both if isinstance(end, Again)]
        answers = await self._finished(ends) if ends else {}
        return answers | await self._retried(agains) if agains else answers

    async def _finished(self, ends: list[End]) -> dict[Fence, str]:
        answers = await self._line.ask(finish(self._host, ends), refusable=True)
        missing = [end for end in ends if answers.get(end.fence) == "missing"] if answers else []
        if not missing:
            return answers
        return answers | await self._line.ask(unwritten_ends(self._host, missing), timeouts=True)

    async def _retried(self, agains: list[Again]) -> dict[Fence, str]:
        answers = await self._line.ask(retry(self._host, agains), refusable=True)
        missing = [end for end in agains if end.fence in answers] if answers else []
        if not missing:
            return answers
        return await self._line.ask(unwritten_attempts(self._host, missing), timeouts=True)

    def _written(self, batch: list[Pending], answers: dict[Fence, str]) -> None:
        if answers or self.aside.knows:
            batch = self._answered(batch, answers)
        for held, _ in batch:
            if held.then is not None:
                held.then()
        self._facts.tell_all([_ended(held.claimed, end, self._log_args) for held, end in batch])

    def _answered(self, batch: list[Pending], answers: dict[Fence, str]) -> list[Pending]:
        """One by one: those whose end stands in the database."""
        found: list[Pending] = []
        for held, end in batch:
            answer = answers.get(held.fence, "written")
            if answer == "again":  # it changed under the statement: the first of the next one
                self._again((held, end))
                continue
            if answer == "locked":
                self.aside.put_locked(held, end)
                continue
            self.aside.forget(held.fence)
            if answer != "lost":
                found.append((held, end))
                continue
            if held.then is not None:
                held.then()
            self._facts.tell(FinishRejected(*held.named))
        return found


def _ended(job: Claimed, end: End | Again, log_args: bool) -> JobEnded:
    if isinstance(end, End):
        state, again_in = end.state, None
    else:
        state, again_in = State.SCHEDULED if end.after > 0 else State.READY, end.after
    return JobEnded(
        job.id,
        job.lease,
        job.queue,
        job.task,
        job.args if log_args else "",
        job.attempt,
        job.max_attempts,
        "succeeded" if end.verdict is _SUCCEEDED else _WORDS[end.verdict],
        state,
        end.duration,
        end.cpu,
        end.peak_rss,
        end.error,
        again_in,
    )
