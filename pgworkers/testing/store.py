"""The jobs of a box, in memory. What the SQL functions do to rows, `JobStore` does to records.

`transport` calls it for the client, `runner` for the jobs that run. One lock makes each operation atomic, because the code
under test may enqueue from several threads. Where an operation has a counterpart in `schema/`, its docstring names it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any

import msgspec

from pgworkers.errors import ArgumentError, DuplicateJob, NotFound
from pgworkers.job.finish import JobFinish, JobRetry
from pgworkers.job.model import TERMINAL_STATES, ClaimedJob, JobState, NewJob, Verdict
from pgworkers.job.queries import JobView
from pgworkers.testing.clock import BoxClock

DEFAULT_IDEMPOTENCY_WINDOW_SECONDS = 86400.0
MAX_REMEMBERED_ERRORS = 10
ENQUEUED_BY = "box"


@dataclass(eq=False, repr=False)
class CapturedJob:
    """A job that a box has captured. Its fields change when the box runs it."""

    id: int
    task: str  #: name of the task
    queue: str
    args_json: str
    priority: int
    state: JobState
    created_at: datetime
    run_at: datetime | None  #: not before this time; None: it waits for other jobs
    max_attempts: int
    max_crashes: int
    unique: str | None = None
    idempotency_key: str | None = None
    concurrency_key: str | None = None
    timeout: float | None = None
    memory: int | None = None
    deadline_at: datetime | None = None
    expires_at: datetime | None = None
    meta_json: str | None = None
    after: tuple[int, ...] = ()  #: the jobs that it was enqueued after
    on_failed: str = "cancel"
    batch_id: int | None = None
    is_held: bool = False
    pending: set[int] = field(default_factory=set)  # jobs that it still waits for
    attempt: int = 0
    crashes: int = 0
    lease: int = 0
    errors: list[str] = field(default_factory=list)  #: one line for each failed attempt, the newest last
    verdict: str | None = None  #: why its last attempt ended
    result_json: str | None = None
    checkpoint_json: str | None = None
    progress_json: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    cancel_at: datetime | None = None
    cancel_reason: str | None = None  #: what `job.cancel(reason)` was given

    @property
    def args(self) -> dict[str, Any]:
        """The stored arguments by parameter name, as plain data."""
        found: dict[str, Any] = msgspec.json.decode(self.args_json)
        return found

    @property
    def meta(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.meta_json or "{}")
        return found

    @property
    def checkpoint(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.checkpoint_json or "{}")
        return found

    @property
    def progress(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = msgspec.json.decode(self.progress_json or "null")
        return found

    @property
    def result(self) -> Any:
        """The stored result as plain data. `job.result()` of a handle returns it as the task's annotation says."""
        return msgspec.json.decode(self.result_json or "null")

    @property
    def delay(self) -> timedelta | None:
        """How long after its enqueue it starts at the earliest. None: it waits for other jobs."""
        return None if self.run_at is None else max(self.run_at - self.created_at, timedelta())

    @property
    def error(self) -> str | None:
        return self.errors[-1] if self.errors and self.state is not JobState.SUCCEEDED else None

    @property
    def is_live(self) -> bool:
        return self.state not in TERMINAL_STATES

    def call_text(self) -> str:
        """`render(report_id=7)`, for messages."""
        return f"{self.task}({', '.join(f'{name}={value!r}' for name, value in self.args.items())})"

    def __repr__(self) -> str:
        return f"<CapturedJob {self}>"

    def __str__(self) -> str:
        parts = [f"#{self.id} {self.call_text()} on queue {self.queue}: {self.state}"]
        if self.state is JobState.SCHEDULED:
            parts.append("waits for other jobs" if self.run_at is None else f"due {self.run_at.isoformat()}")
        parts += [
            f"{name}={value!r}" for name, value in (("unique", self.unique), ("error", self.error)) if value
        ]
        return ", ".join(parts)


@dataclass(eq=False)
class CapturedBatch:
    """A batch in a box."""

    id: int
    on_failed: str
    created_at: datetime
    total: int = 0
    then_id: int | None = None
    is_sealed: bool = False
    cancelled_at: datetime | None = None
    finished_at: datetime | None = None


class JobStore:
    """All jobs and batches of one box."""

    def __init__(self, clock: BoxClock) -> None:
        self.clock = clock
        self.jobs: dict[int, CapturedJob] = {}
        self.batches: dict[int, CapturedBatch] = {}
        self._throttled_until: dict[str, datetime] = {}
        self._idempotency_keys: dict[tuple[str, str], tuple[int, datetime]] = {}
        self._last_id = 0
        self._last_batch = 0
        self._lock = threading.RLock()

    def remove(self, job_ids: list[int], batch_ids: list[int]) -> None:
        """Remove what a failed transaction inserted."""
        with self._lock:
            for job_id in job_ids:
                self.jobs.pop(job_id, None)
            for batch_id in batch_ids:
                self.batches.pop(batch_id, None)

    # Enqueue.

    def enqueue(self, new: NewJob) -> tuple[int, bool]:
        """Insert one job. Returns its number, and whether it is new. Counterpart: `enqueue()`."""
        with self._lock:
            if found := self._job_of_idempotency_key(new):
                return found, False
            holder = self._holder_of_unique_key(new)
            if holder is not None:
                if new.on_conflict == "replace" and holder.state is not JobState.RUNNING:
                    holder.args_json, holder.meta_json = new.args_json, new.meta_json
                elif new.on_conflict == "raise":
                    raise DuplicateJob(holder.unique or "", holder.id)
                self._remember_idempotency_key(new, holder.id)
                return holder.id, False
            job = self._insert(new)
            self._remember_idempotency_key(new, job.id)
            self._wait_for_parents(job)
            return job.id, True

    def _job_of_idempotency_key(self, new: NewJob) -> int | None:
        if new.idempotency_key is None:
            return None
        known = self._idempotency_keys.get((new.task, new.idempotency_key))
        return known[0] if known is not None and known[1] > self.clock.now else None

    def _remember_idempotency_key(self, new: NewJob, job_id: int) -> None:
        if new.idempotency_key is not None:
            window = new.idempotency_window or DEFAULT_IDEMPOTENCY_WINDOW_SECONDS
            until = self.clock.now + timedelta(seconds=window)
            self._idempotency_keys[new.task, new.idempotency_key] = job_id, until

    def _holder_of_unique_key(self, new: NewJob) -> CapturedJob | None:
        if new.unique_key is None:
            return None
        live = (job for job in self.jobs.values() if job.is_live and job.task == new.task)
        return next((job for job in live if job.unique == new.unique_key), None)

    def _insert(self, new: NewJob) -> CapturedJob:
        now = self.clock.now
        for parent in new.after:
            if parent not in self.jobs:
                raise NotFound(f"there is no job #{parent} to come after; nothing was enqueued")
        try:
            due = (new.run_at or now) + timedelta(seconds=new.delay or 0.0)
            expires = None if new.expires is None else due + timedelta(seconds=new.expires)
            deadline = None if new.deadline is None else due + timedelta(seconds=new.deadline)
        except OverflowError:
            raise ArgumentError(
                f"{new.task}: its time, or its deadline or expiry, lies beyond the year 9999; nothing was enqueued"
            ) from None
        self._last_id += 1
        job = CapturedJob(
            id=self._last_id,
            task=new.task,
            queue=new.queue or "default",
            args_json=new.args_json,
            priority=new.priority or 0,
            state=JobState.SCHEDULED if due > now or new.is_held else JobState.READY,
            created_at=now,
            run_at=None if new.is_held else due,
            max_attempts=10 if new.max_attempts is None else new.max_attempts,
            max_crashes=3 if new.max_crashes is None else new.max_crashes,
            unique=new.unique_key,
            idempotency_key=new.idempotency_key,
            concurrency_key=new.concurrency_key,
            timeout=new.timeout,
            memory=new.memory,
            deadline_at=deadline,
            expires_at=expires,
            meta_json=new.meta_json,
            after=new.after,
            on_failed=new.on_failed,
            batch_id=new.batch_id,
            is_held=new.is_held,
        )
        self.jobs[job.id] = job
        return job

    def _wait_for_parents(self, job: CapturedJob) -> None:
        """Counterpart: `find_parents()` and `add_dependencies()`."""
        failed: int | None = None
        for parent in (self.jobs[one] for one in sorted(set(job.after))):
            has_failed = not parent.is_live and parent.state is not JobState.SUCCEEDED
            if parent.is_live or (has_failed and job.on_failed == "wait"):
                job.pending.add(parent.id)
            elif has_failed and job.on_failed == "cancel":
                failed = parent.id
        if job.pending or failed is not None:
            job.state, job.run_at = JobState.SCHEDULED, None
        if failed is not None:
            self._end(job, JobState.CANCELLED, Verdict.CANCELLED, _failed_parent_text(failed))

    # Batches.

    def open_batch(self, on_failed: str) -> int:
        with self._lock:
            self._last_batch += 1
            self.batches[self._last_batch] = CapturedBatch(self._last_batch, on_failed, self.clock.now)
            return self._last_batch

    def seal_batch(self, batch_id: int, total: int, then_id: int | None) -> None:
        with self._lock:
            batch = self.batches[batch_id]
            batch.total, batch.then_id, batch.is_sealed = total, then_id, True

    def settle_batch(self, batch_id: int) -> str:
        """Complete a batch of which nothing lives. Counterpart: `complete_batch()`."""
        with self._lock:
            batch = self.batches[batch_id]
            jobs = self.batch_jobs(batch_id)
            if batch.finished_at is not None:
                return "finished"
            if not batch.is_sealed or any(job.is_live for job in jobs):
                return "live"
            has_failed = any(job.state is not JobState.SUCCEEDED for job in jobs)
            then = None if batch.then_id is None else self.jobs[batch.then_id]
            if then is not None and has_failed and batch.on_failed == "wait":
                return "waiting"
            batch.finished_at = self.clock.now
            if then is not None and then.is_live:
                if has_failed and batch.on_failed == "cancel":
                    why = f"cancelled: batch #{batch_id} has jobs that did not succeed"
                    self._end(then, JobState.CANCELLED, Verdict.CANCELLED, why)
                else:
                    self._release(then)
            return "finished"

    def batch_jobs(self, batch_id: int) -> list[CapturedJob]:
        return [job for job in self.jobs.values() if job.batch_id == batch_id]

    def cancel_batch(self, batch_id: int) -> bool:
        """Mark a batch and cancel the job after it. False: there is no such batch."""
        with self._lock:
            batch = self.batches.get(batch_id)
            if batch is None:
                return False
            batch.cancelled_at = batch.cancelled_at or self.clock.now
            if batch.then_id is not None:
                self.cancel(batch.then_id)
            return True

    def cancel_batch_jobs(self, batch_id: int, limit: int) -> tuple[int, bool]:
        """Cancel at most `limit` jobs of a batch. Returns how many, and whether there are more."""
        with self._lock:
            live = [job for job in self.batch_jobs(batch_id) if job.is_live and job.cancel_at is None]
            for job in live[:limit]:
                self.cancel(job.id)
            return min(limit, len(live)), len(live) > limit

    # Operators.

    def cancel(self, job_id: int, reason: str | None = None) -> str | None:
        """Cancel a job, or ask for it if it runs. Returns the answer of `Job.cancel`; None: there is no such job."""
        with self._lock:
            job = self.jobs.get(job_id)
            if job is None:
                return None
            if not job.is_live:
                return str(job.state)
            job.cancel_reason = reason
            if job.state is JobState.RUNNING:
                job.cancel_at = self.clock.now
                return "cancelling"
            self._end(job, JobState.CANCELLED, Verdict.CANCELLED, None)
            return "cancelled"

    def set_deadline(self, job_id: int, seconds: float) -> str | None:
        with self._lock:
            job = self.jobs.get(job_id)
            if job is None:
                return None
            if job.is_live:
                job.deadline_at = self.clock.now + timedelta(seconds=seconds)
            return str(job.state)

    def throttle(self, queue: str, seconds: float) -> None:
        """Let no job of this queue start for that long."""
        with self._lock:
            until = self.clock.now + timedelta(seconds=seconds)
            self._throttled_until[queue] = max(until, self._throttled_until.get(queue, until))

    # Running.

    def claim(self, among: frozenset[int] | None = None) -> CapturedJob | None:
        """Take the job that is due now and comes first, by priority and number. None: nothing is due."""
        with self._lock:
            self._promote()
            ready = [
                job
                for job in self.jobs.values()
                if job.state is JobState.READY
                and (among is None or job.id in among)
                and self._cool_at(job.queue) <= self.clock.now
            ]
            if not ready:
                return None
            job = min(ready, key=lambda one: (-one.priority, one.id))
            job.state, job.started_at = JobState.RUNNING, self.clock.now
            job.attempt += 1
            job.lease += 1
            return job

    def next_due(self) -> datetime | None:
        """When the next job that waits for its time, or for a queue to cool down, can start."""
        with self._lock:
            times = [
                max(job.run_at, self._cool_at(job.queue))
                for job in self.jobs.values()
                if job.state in (JobState.SCHEDULED, JobState.READY) and job.run_at is not None
            ]
            return min(times, default=None)

    def _cool_at(self, queue: str) -> datetime:
        return self._throttled_until.get(queue, self.clock.now)

    def _promote(self) -> None:
        """Make due jobs ready, and end those that expired."""
        for job in list(self.jobs.values()):
            if job.state not in (JobState.SCHEDULED, JobState.READY):
                continue
            if job.expires_at is not None and job.expires_at <= self.clock.now:
                self._end(job, JobState.DEAD, Verdict.EXPIRED, "expired: it did not start in time")
            elif job.state is JobState.SCHEDULED and job.run_at is not None and job.run_at <= self.clock.now:
                job.state = JobState.READY

    def claimed_job(self, job: CapturedJob) -> ClaimedJob:
        """The job as a host would have claimed it. Its times are those of the box's clock."""
        left = None if job.deadline_at is None else (job.deadline_at - self.clock.now).total_seconds()
        return ClaimedJob(
            id=job.id,
            lease=job.lease,
            queue=job.queue,
            task=job.task,
            args=job.args_json,
            attempt=job.attempt,
            crashes=job.crashes,
            max_attempts=job.max_attempts,
            max_crashes=job.max_crashes,
            timeout_seconds=job.timeout,
            memory_bytes=job.memory,
            seconds_to_deadline=left,
            checkpoint=job.checkpoint_json,
            meta=job.meta_json,
            errors=list(job.errors),
            ready_seconds=0.0,
            is_cancel_requested=job.cancel_at is not None,
        )

    def save_progress(self, job: CapturedJob, progress: bytes | None, checkpoint: bytes | None) -> None:
        with self._lock:
            if progress is not None:
                job.progress_json = progress.decode()
            if checkpoint is not None:
                job.checkpoint_json = checkpoint.decode()

    def finish(self, job: CapturedJob, end: JobFinish) -> None:
        """Write the last attempt of a job, and enqueue its children. Counterpart: finish.sql."""
        with self._lock:
            job.result_json = end.result if end.state is JobState.SUCCEEDED else None
            for child in msgspec.json.decode(end.children or "[]", type=list[_Child]):
                self.enqueue(child.to_new_job())
            error = None if end.verdict is Verdict.SUCCEEDED else (end.error or str(end.verdict))
            job.crashes += end.is_crash
            self._end(job, end.state, end.verdict, error)

    def retry(self, job: CapturedJob, again: JobRetry) -> None:
        """Let a job run again. Counterpart: retry.sql."""
        with self._lock:
            job.crashes += again.is_crash
            if job.cancel_at is not None:
                self._end(job, JobState.CANCELLED, again.verdict, again.error)
                return
            self._add_error(job, again.error or str(again.verdict))
            job.verdict = str(again.verdict)
            job.attempt -= again.is_free
            job.run_at = self.clock.now + timedelta(seconds=again.delay_seconds)
            job.state = JobState.SCHEDULED if again.delay_seconds > 0 else JobState.READY
            job.started_at = job.expires_at = None

    def release(self, job: CapturedJob) -> None:
        """Return a job whose run was abandoned: the test was interrupted."""
        with self._lock:
            job.state, job.started_at = JobState.READY, None
            job.attempt -= 1

    def _end(self, job: CapturedJob, state: JobState, verdict: Verdict, error: str | None) -> None:
        if error is not None:
            self._add_error(job, error)
        job.state, job.verdict, job.finished_at = state, str(verdict), self.clock.now
        job.pending.clear()
        for follower in [one for one in self.jobs.values() if job.id in one.pending]:
            self._settle_follower(follower, job)
        if job.batch_id is not None:
            self.settle_batch(job.batch_id)

    def _settle_follower(self, follower: CapturedJob, parent: CapturedJob) -> None:
        """Counterpart: `settle_dependents()`."""
        if parent.state is not JobState.SUCCEEDED:
            if follower.on_failed == "wait":
                return
            if follower.on_failed == "cancel":
                self._end(follower, JobState.CANCELLED, Verdict.CANCELLED, _failed_parent_text(parent.id))
                return
        follower.pending.discard(parent.id)
        if not follower.pending and not follower.is_held:
            self._release(follower)

    def _release(self, job: CapturedJob) -> None:
        """Let a job begin that waited for others."""
        job.is_held, job.run_at, job.state = False, self.clock.now, JobState.READY

    @staticmethod
    def _add_error(job: CapturedJob, error: str) -> None:
        job.errors = [*job.errors, error][-MAX_REMEMBERED_ERRORS:]

    # Reading.

    def view_row(self, job_id: int) -> tuple[Any, ...] | None:
        """The job as a row of the view `jobs`: JSON as text, in the order of `JobView`."""
        with self._lock:
            job = self.jobs.get(job_id)
            if job is None:
                return None
            values: dict[str, Any] = {one.name: None for one in fields(JobView)} | {
                "id": job.id,
                "state": str(job.state),
                "queue": job.queue,
                "task": job.task,
                "args": job.args_json,
                "priority": job.priority,
                "attempt": job.attempt,
                "max_attempts": job.max_attempts,
                "crashes": job.crashes,
                "lease": job.lease,
                "created_at": job.created_at,
                "run_at": job.run_at,
                "started_at": job.started_at,
                "finished_at": job.finished_at,
                "verdict": None if job.is_live else job.verdict,
                "result": job.result_json,
                "error": job.error,
                "unique_key": job.unique,
                "progress": job.progress_json,
                "checkpoint": job.checkpoint_json,
                "meta": job.meta_json,
                "cancel_at": job.cancel_at,
                "batch_id": job.batch_id,
                "enqueued_by": ENQUEUED_BY,
            }
            return tuple(values.values())


class _Child(msgspec.Struct):
    """A job that a handler enqueued with its own end, as `model.encode_children` wrote it."""

    task: str
    args: msgspec.Raw
    meta: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    queue: str | None = None
    priority: int | None = None
    run_at: datetime | None = None
    delay: float | None = None
    max_attempts: int | None = None
    max_crashes: int | None = None
    timeout: float | None = None
    memory: int | None = None
    deadline: float | None = None
    expires: float | None = None
    concurrency_key: str | None = None

    def to_new_job(self) -> NewJob:
        options = {
            name: getattr(self, name) for name in self.__struct_fields__ if name not in ("args", "meta")
        }
        meta = None if isinstance(self.meta, msgspec.UnsetType) else bytes(self.meta).decode()
        return NewJob(**options, args_json=bytes(self.args).decode(), meta_json=meta)


def _failed_parent_text(parent: int) -> str:
    return f"cancelled: job #{parent}, which it waited for, did not succeed"
