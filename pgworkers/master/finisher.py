"""Writes the results of jobs to Postgres, in batches, on the connection `finish`.

Results are kept through any outage and sent until the database answers. Sending twice is harmless, because each write names
its lease. `Finisher` collects results and forms batches, `ResultWriter` writes one batch, `BatchSize` says how many go
into it, and `DeferredResults` keeps the results that cannot be written now.

Releases, throttles and the progress of running jobs (unsaved_progress.py) take the same connection. None of them waits for a
row that another session has locked, and none is forgotten because it could not be written: each is sent again later.

A batch that the database refuses, or that takes too long, is halved until the halves pass or one result stands alone. That
one is written without its texts, so data that Postgres refuses never stops a job from finishing. If it is still refused, or
refused by the user's code in the database, or takes longer than a statement may, it is deferred: the event `FinishFailed` is
emitted, and the result is sent again later as it was.

Deferred results do not delay others. An operator who left a transaction open must not stop this host from writing results
of other jobs: a row that another session has locked is skipped, and tried again soon. A trigger of the user that raises
must not stop it either: what it refuses is sent again after growing pauses, for as long as this host lives. After that the
lease runs out, and the job is rescued.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from math import inf

import psycopg
from msgspec.structs import replace

from pgworkers.clock import monotonic
from pgworkers.events import (
    AttemptEnded,
    EventBus,
    FinishFailed,
    FinishRejected,
    FinishTooSlow,
    JobsReleased,
    ProgressRefused,
)
from pgworkers.job.finish import (
    FinishAnswer,
    JobFinish,
    JobRetry,
    ProgressUpdate,
    check_unwritten_finishes,
    check_unwritten_retries,
    finish,
    release,
    retry,
    save_progress,
)
from pgworkers.job.handler_sessions import end_handler_sessions
from pgworkers.job.model import Fence, JobState, Verdict
from pgworkers.job.queues import CoolDown, ThrottleAnswer, throttle_queue
from pgworkers.master.batch_size import BatchSize
from pgworkers.master.connection import (
    ConnectionDown,
    ReconnectingConnection,
    is_raised_by_database_code,
    is_statement_timeout,
)
from pgworkers.master.deferred_results import MAX_LOCKED_RETRY_SECONDS, DeferredResults
from pgworkers.master.held_job import HeldJob
from pgworkers.master.unsaved_progress import UnsavedProgress
from pgworkers.postgres.session import StatementTimedOut
from pgworkers.secret_arguments import hide_secrets_in_json

#: After a batch of at least this many results, the next one waits for this long, unless it is full.
LARGE_BATCH_RESULTS = 16
RESULT_GATHER_SECONDS = 0.004
#: Results of jobs with a process each: minimum time between the starts of two batches.
PROCESS_PER_JOB_BATCH_SECONDS = 0.02
#: No jobs are claimed while more batches than this wait or are deferred; or while more than one waits and a write takes
#: this long.
MAX_BATCHES_PENDING = 2
SLOW_WRITE_SECONDS = 0.25
#: A batch is full with this many characters of jobs that its results enqueue: thousands of rows.
MAX_BATCH_CHILDREN_CHARACTERS = 256 << 10


class Finisher:
    def __init__(
        self,
        host_id: str,
        connection: ReconnectingConnection,
        events: EventBus,
        batch: int,
        cooldown: CoolDown | None = None,
        *,
        log_args: bool = True,
    ) -> None:
        self._host_id = host_id
        self._connection = connection
        self._events = events
        self._batch_size = BatchSize(batch, connection.statement_timeout)
        self._cooldown = cooldown
        self._pending: deque[PendingResult] = deque()
        self._batch: list[PendingResult] = []
        self._writer = ResultWriter(host_id, connection, events, self._pending.appendleft, log_args=log_args)
        self._releases: list[Fence] = []
        self._deferred_releases: list[Fence] = []  # not written because of a lock or a refusal
        self._deferred_releases_at = 0.0  # when they are sent again
        self._progress = UnsavedProgress()
        self._progress_batch_size = BatchSize(batch, connection.statement_timeout)
        self._throttles: dict[str, float | None] = {}
        self._deferred_throttles: dict[str, float | None] = {}  # not written because of a lock or a refusal
        self._deferred_throttles_at = 0.0  # when they are sent again
        self._sessions_to_end: list[tuple[int, int]] = []
        self._last_batch_results = 0  # in the last batch
        self._is_holding_claims = False  # too many ends wait
        self._batch_started_at = -inf  # when it was sent
        self._work_added = asyncio.Event()
        self.all_written = asyncio.Event()
        self.all_written.set()
        #: Called when results of jobs behind a limit were written, so that others may start; and when jobs may be claimed
        #: again.
        self.on_claims_possible: Callable[[], None] = lambda: None

    def report_results_to(self, receive: Callable[[list[PendingResult]], None]) -> None:
        """Call `receive` with all results that stand in the database."""
        self._writer.report_results = receive

    def __len__(self) -> int:
        count = len(self._pending) + len(self._batch) + len(self._writer.deferred)
        return count + len(self._releases) + len(self._deferred_releases)

    @property
    def is_writing(self) -> bool:
        """True while results wait only for their turn, and the database answers."""
        return self._connection.is_up and bool(self._pending or self._batch)

    def has_capacity(self) -> bool:
        """False while jobs end faster than the database takes their results.

        `on_claims_possible` is called when that changes. Jobs whose results are not written run again if this host is lost.
        A database that keeps up is allowed some batches, because results come in bursts. Deferred results count as well,
        but compared with the full size of a batch: a few refused results make batches small, and only other results make
        them large again.
        """
        is_slow = self._batch_size.is_slow or (
            self._batch and monotonic() - self._batch_started_at > SLOW_WRITE_SECONDS
        )
        max_results = self._batch_size.current if is_slow else MAX_BATCHES_PENDING * self._batch_size.current
        unwritten = len(self._pending) + len(self._writer.deferred)
        self._is_holding_claims = (
            len(self._pending) > max_results or unwritten > MAX_BATCHES_PENDING * self._batch_size.max_results
        )
        return not self._is_holding_claims

    def pending_fences(self) -> list[Fence]:
        """The jobs whose results or releases are not written yet."""
        results = (*self._pending, *self._batch)
        return (
            [held.fence for held, _ in results]
            + self._writer.deferred.fences()
            + self._releases
            + self._deferred_releases
        )

    def add(self, held: HeldJob, result: JobFinish | JobRetry) -> None:
        # What is not saved yet is written with the result, and an older update must not overwrite it.
        update = self._progress.pop(held.fence) if self._progress else None
        if update is not None:
            result = replace(
                result,
                progress=result.progress or update.progress,
                checkpoint=result.checkpoint or update.checkpoint,
            )
        self._pending.append((held, result))
        self._wake()

    def add_all(self, results: Sequence[PendingResult]) -> None:
        """Results that came together, in their order."""
        if self._progress:
            for held, result in results:
                self.add(held, result)
        elif results:
            self._pending.extend(results)
            self._wake()

    def release(self, fences: list[Fence], why: str) -> None:
        self._releases += fences
        self._events.emit(JobsReleased(len(fences), why))
        self._wake()

    def end_sessions_of(self, keys: list[tuple[int, int]]) -> None:
        """End the database sessions of dead workers before anything is written. `keys`: job and lease of each execution."""
        self._sessions_to_end += keys
        self._wake()

    def throttle(self, queue: str, after: float | None) -> None:
        """Throttle the queue on every host; for `after` seconds, if the handler asked for that."""
        self._add_throttle(queue, after)
        self._wake()

    def _add_throttle(self, queue: str, after: float | None) -> None:
        requested = [seconds for seconds in (after, self._throttles.get(queue)) if seconds is not None]
        self._throttles[queue] = max(requested, default=None)

    def save_progress(self, update: ProgressUpdate) -> None:
        self._progress.add(update)
        self._wake()

    async def run(self) -> None:
        """Send until the task is cancelled."""
        while True:
            await self._wait_for_work()
            while self._has_work():
                await self._wait_for_more()
                try:
                    await self._send_once()
                except ConnectionDown:
                    await self._connection.wait_for_backoff()
                self._requeue_deferred()
            if not (self._writer.deferred or self._deferred_releases or self._deferred_throttles):
                self.all_written.set()

    async def _wait_for_work(self) -> None:
        """Wait until there is something to send, or something deferred is due."""
        now = monotonic()
        pauses = [
            self._writer.deferred.seconds_until_due(),
            self._progress.seconds_until_due(),
            max(0.0, self._deferred_releases_at - now) if self._deferred_releases else None,
            max(0.0, self._deferred_throttles_at - now) if self._deferred_throttles else None,
        ]
        try:
            async with asyncio.timeout(min((pause for pause in pauses if pause is not None), default=None)):
                await self._work_added.wait()
        except TimeoutError:
            pass
        self._work_added.clear()
        self._requeue_deferred()

    def _requeue_deferred(self) -> None:
        """Put what is deferred and due into the next batch. Called after each batch, too: a busy host never waits."""
        if self._writer.deferred:
            self._pending.extend(self._writer.deferred.pop_due())
        if self._progress:
            self._progress.requeue_due()
        if self._deferred_releases and monotonic() >= self._deferred_releases_at:
            self._releases, self._deferred_releases = self._releases + self._deferred_releases, []
        if self._deferred_throttles and monotonic() >= self._deferred_throttles_at:
            deferred, self._deferred_throttles = self._deferred_throttles, {}
            for queue, after in deferred.items():
                self._add_throttle(queue, after)

    async def _wait_for_more(self) -> None:
        """Wait a few milliseconds after a large batch: more results are on their way, and fewer statements write them."""
        if (
            self._last_batch_results >= LARGE_BATCH_RESULTS
            and not self._batch
            and len(self._pending) < self._batch_size.current
        ):
            self._last_batch_results = 0  # once: the last results do not wait
            await asyncio.sleep(RESULT_GATHER_SECONDS)
        elif self._pending and all(held.may_delay_write for held, _ in self._pending):
            rest = self._batch_started_at + PROCESS_PER_JOB_BATCH_SECONDS - monotonic()
            if rest > 0:
                await asyncio.sleep(rest)
        self._batch_started_at = monotonic()

    def _has_work(self) -> bool:
        waiting = self._pending or self._batch or self._releases or self._progress.has_waiting
        return bool(waiting or self._throttles or self._sessions_to_end)

    def _wake(self) -> None:
        self.all_written.clear()
        self._work_added.set()

    async def _send_once(self) -> None:
        if self._sessions_to_end:
            keys = self._sessions_to_end[:]
            await self._connection.execute(end_handler_sessions(keys))
            del self._sessions_to_end[: len(keys)]
        if self._throttles:
            await self._send_throttles()
        if not self._batch:
            self._fill_batch()
        if self._batch:
            await self._write_batch()
        if self._releases:
            await self._release_batch()
        if self._progress.has_waiting:
            await self._save_batch()

    async def _send_throttles(self) -> None:
        """Throttle queues, before the results of the throttled jobs make them ready again.

        A throttle does not wait for a lock (queue_throttle.sql). One that is locked or refused is sent again later.
        """
        for queue, after in list(self._throttles.items()):
            try:
                answer = await self._connection.execute(
                    throttle_queue(queue, after, self._cooldown), raise_refusals=True
                )
            except psycopg.Error:
                answer = ThrottleAnswer.LOCKED
            del self._throttles[queue]
            if answer is ThrottleAnswer.LOCKED:
                left = None if after is None else max(0.0, after - MAX_LOCKED_RETRY_SECONDS)
                self._deferred_throttles[queue] = left
                self._deferred_throttles_at = monotonic() + MAX_LOCKED_RETRY_SECONDS

    def _fill_batch(self) -> None:
        """Take the next batch from the pending results."""
        room = MAX_BATCH_CHILDREN_CHARACTERS
        pending, sending = self._pending, self._batch
        while pending and len(sending) < self._batch_size.current and room > 0:
            sending.append(pending.popleft())
            result = sending[-1][1]
            if isinstance(result, JobFinish) and result.children is not None:
                room -= len(result.children)
        self._last_batch_results = len(sending)

    async def _write_batch(self) -> None:
        batch, began = self._batch, monotonic()
        try:
            await self._writer.write(batch)
        except ConnectionDown as down:
            if isinstance(down.__cause__, StatementTimedOut):  # slow, or cut off: a smaller batch may pass
                self._split_batch(batch, slow=False)
            raise
        except psycopg.Error as error:
            await self._on_batch_refused(batch, error)
            return
        self._batch = []
        self._batch_size.record_written(len(batch), monotonic() - began)
        self._notify_claimer(batch)

    async def _on_batch_refused(self, batch: list[PendingResult], error: psycopg.Error) -> None:
        """Halve a batch that was refused or too slow, until one result stands alone."""
        if len(batch) > 1:
            self._split_batch(batch, slow=is_statement_timeout(error))
            return
        await self._writer.write_single(*batch[0], error)
        self._batch = []
        self._notify_claimer(batch)

    def _notify_claimer(self, batch: list[PendingResult]) -> None:
        limited = any(held.job.is_limited for held, _ in batch)
        if limited or (self._is_holding_claims and self.has_capacity()):
            self.on_claims_possible()

    def _split_batch(self, batch: list[PendingResult], *, slow: bool) -> None:
        self._pending.extendleft(reversed(batch))
        self._batch = []
        if self._batch_size.record_failed(len(batch), slow=slow):
            self._events.emit(FinishTooSlow(len(batch), self._connection.statement_timeout))

    async def _release_batch(self) -> None:
        """Release jobs. A batch that is refused or too slow is halved, until one stands alone and is deferred."""
        releases = self._releases[: self._batch_size.current]
        try:
            locked = (
                await self._connection.execute(release(self._host_id, releases), raise_refusals=True)
            ).locked_fences
        except psycopg.Error as error:
            self._batch_size.record_failed(len(releases), slow=is_statement_timeout(error))
            if len(releases) > 1:
                return
            locked = releases
        del self._releases[: len(releases)]
        if locked:
            self._deferred_releases += locked
            self._deferred_releases_at = monotonic() + MAX_LOCKED_RETRY_SECONDS

    async def _save_batch(self) -> None:
        """Save progress. A batch that is refused or too slow is halved, until one update stands alone and is deferred."""
        size, began = self._progress_batch_size, monotonic()
        updates = self._progress.take(size.current)
        try:
            answer = await self._connection.execute(
                save_progress(self._host_id, updates), raise_refusals=True
            )
        except ConnectionDown:
            self._progress.restore()
            raise
        except psycopg.Error as error:
            size.record_failed(len(updates), slow=is_statement_timeout(error))
            if len(updates) > 1:
                self._progress.restore()
            else:
                self._defer_refused_update(updates[0], error)
            return
        size.record_written(len(updates), monotonic() - began)
        self._progress.settle(answer.locked_fences)

    def _defer_refused_update(self, update: ProgressUpdate, error: psycopg.Error) -> None:
        is_invalid = not is_raised_by_database_code(error) and not is_statement_timeout(error)
        retry_in = self._progress.defer_refused(is_invalid=is_invalid)
        if retry_in is not None:
            self._events.emit(ProgressRefused(update.id, update.lease, _reason(error), retry_in))


def _reason(error: psycopg.Error) -> str:
    return f"{type(error).__name__}: {error.diag.message_primary or error}"


PendingResult = tuple[HeldJob, JobFinish | JobRetry]
#: Verdicts as plain text, for the events.
_VERDICT_WORDS = {verdict: verdict.value for verdict in Verdict}
_SUCCEEDED = Verdict.SUCCEEDED


class ResultWriter:
    def __init__(
        self,
        host_id: str,
        connection: ReconnectingConnection,
        events: EventBus,
        resend_first: Callable[[PendingResult], None],
        *,
        log_args: bool = True,
    ) -> None:
        self._host_id = host_id
        self._connection = connection
        self._events = events
        self._log_args = log_args
        self._resend_first = resend_first  # for a result that must be the first of the next batch
        self.deferred: DeferredResults[HeldJob, JobFinish | JobRetry] = DeferredResults()
        self.report_results: Callable[[list[PendingResult]], None] = lambda results: None

    async def write(self, batch: list[PendingResult]) -> None:
        """Write them all.

        `psycopg.Error`: none is written, because the database refuses one or took too long. `ConnectionDown`: it is not
        known which are written.
        """
        self._on_written(batch, await self._execute([result for _, result in batch]))

    async def write_single(self, held: HeldJob, result: JobFinish | JobRetry, error: psycopg.Error) -> None:
        """Write a result that was refused alone: without its texts if these may be the reason, else later as it is."""
        try:
            if not is_raised_by_database_code(error) and not is_statement_timeout(error):
                await self._write_without_texts(held, result, error)
                return
        except psycopg.Error as still:
            error = still
        retry_in = self.deferred.defer_refused(held, result)
        self._events.emit(FinishFailed(*held.event_fields, _reason(error), retry_in))

    async def _write_without_texts(
        self, held: HeldJob, result: JobFinish | JobRetry, error: psycopg.Error
    ) -> None:
        """Write the result without anything that came from the handler."""
        text = f"{type(error).__name__}: the database refused what the handler left; it was dropped"
        bare = replace(
            result,
            error=text,
            traceback=None,
            stack=None,
            output=None,
            progress=None,
            checkpoint=None,
            rungs=None,
        )
        if isinstance(bare, JobFinish) and (bare.result is not None or bare.children is not None):
            bare = replace(bare, result=None, children=None, state=JobState.DEAD, verdict=Verdict.ERROR)
        self._on_written([(held, bare)], await self._execute([bare]))

    async def _execute(self, results: Sequence[JobFinish | JobRetry]) -> dict[Fence, FinishAnswer]:
        """Write them. Returns ALREADY, LOCKED, LOST or AGAIN for each that was not written; mostly nothing."""
        finishes = [result for result in results if isinstance(result, JobFinish)]
        retries = [result for result in results if isinstance(result, JobRetry)]
        answers = await self._execute_finish(finishes) if finishes else {}
        return answers | await self._execute_retry(retries) if retries else answers

    async def _execute_finish(self, finishes: list[JobFinish]) -> dict[Fence, FinishAnswer]:
        answers = await self._connection.execute(finish(self._host_id, finishes), raise_refusals=True)
        if not answers:
            return answers
        missing = [result for result in finishes if answers.get(result.fence) is FinishAnswer.MISSING]
        if not missing:
            return answers
        return answers | await self._connection.execute(
            check_unwritten_finishes(self._host_id, missing), raise_timeouts=True
        )

    async def _execute_retry(self, retries: list[JobRetry]) -> dict[Fence, FinishAnswer]:
        answers = await self._connection.execute(retry(self._host_id, retries), raise_refusals=True)
        missing = [result for result in retries if result.fence in answers] if answers else []
        if not missing:
            return answers
        return await self._connection.execute(
            check_unwritten_retries(self._host_id, missing), raise_timeouts=True
        )

    def _on_written(self, batch: list[PendingResult], answers: dict[Fence, FinishAnswer]) -> None:
        if answers or self.deferred.has_retries:
            batch = self._split_by_answer(batch, answers)
        for held, _ in batch:
            if held.on_written is not None:
                held.on_written()
        self._events.emit_all([_attempt_ended(held, result, self._log_args) for held, result in batch])
        self.report_results(batch)

    def _split_by_answer(
        self, batch: list[PendingResult], answers: dict[Fence, FinishAnswer]
    ) -> list[PendingResult]:
        """Act on each answer. Returns the results that stand in the database."""
        found: list[PendingResult] = []
        for held, result in batch:
            answer = answers.get(held.fence, FinishAnswer.WRITTEN)
            if answer is FinishAnswer.AGAIN:  # its row changed under the statement: first in the next batch
                self._resend_first((held, result))
                continue
            if answer is FinishAnswer.LOCKED:
                self.deferred.defer_locked(held, result)
                continue
            self.deferred.forget(held.fence)
            if answer is not FinishAnswer.LOST:
                found.append((held, result))
                continue
            if held.on_written is not None:
                held.on_written()
            self._events.emit(FinishRejected(*held.event_fields))
        return found


def _attempt_ended(held: HeldJob, result: JobFinish | JobRetry, log_args: bool) -> AttemptEnded:
    job = held.job
    if isinstance(result, JobFinish):
        state, again_in = result.state, None
    else:
        state, again_in = (
            JobState.SCHEDULED if result.delay_seconds > 0 else JobState.READY,
            result.delay_seconds,
        )
    return AttemptEnded(
        job.id,
        job.lease,
        job.queue,
        job.task,
        hide_secrets_in_json(job.args, held.task.secret) if log_args else "",
        job.attempt,
        job.max_attempts,
        "succeeded" if result.verdict is _SUCCEEDED else _VERDICT_WORDS[result.verdict],
        state,
        result.duration_seconds,
        result.cpu_seconds,
        result.peak_rss_bytes,
        result.error,
        again_in,
    )
