"""The jobs and workers that this host holds, and what reports, deaths and stop requests mean for them.

A job goes from the claimer to `accept`, to a worker that `assignment` chooses, and through its `worker_channel`. What the
worker or its supervisor reports comes back to `on_frames` and `on_worker_died`, becomes a result in `verdict`, and goes out
through `finisher`. There is no SQL here, and no waiting.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from pgworkers.clock import monotonic
from pgworkers.events import (
    AttemptStarted,
    DeadlineMoved,
    EventBus,
    HandlerMetricsReceived,
    LeaseLost,
    StopCompleted,
    StopRequested,
    WorkerLeakedThreads,
    WorkerReady,
)
from pgworkers.ipc.frames import Frame, FrameError
from pgworkers.ipc.scoreboard import StopReason
from pgworkers.job.claim import QueueCapacity
from pgworkers.job.finish import JobFinish, JobRetry, ProgressUpdate
from pgworkers.job.hosts import ChangedDeadline
from pgworkers.job.model import ClaimedJob, Fence, Verdict
from pgworkers.master import verdict
from pgworkers.master.assignment import (
    UNKNOWN_TASK_REASON,
    Assigner,
    ClusterView,
    QueueBuffer,
    StartProblem,
)
from pgworkers.master.finisher import Finisher
from pgworkers.master.held_job import HeldJob
from pgworkers.master.worker_channel import WorkerChannel
from pgworkers.settings import Settings
from pgworkers.specs import QueueSpec, TaskSpec
from pgworkers.states import WorkerState
from pgworkers.supervisor.messages import Died, SetDeadline
from pgworkers.worker.messages import (
    FrameKind,
    Outcome,
    Progress,
    Report,
    StartFailed,
    check_success,
    decode_success,
)

_decode_report = msgspec.json.Decoder(Report).decode
_decode_progress = msgspec.json.Decoder(Progress).decode
_decode_start_failure = msgspec.json.Decoder(StartFailed).decode
_SUCCESS_KIND = int(FrameKind.SUCCESS)
#: States in which a worker without orders does not become idle.
_GETS_NO_ORDERS = frozenset({WorkerState.LEAVING, WorkerState.GONE, WorkerState.UNRESPONSIVE})
LEASE_REUSED_REASON = "after a failover the number of an earlier claim was given again"


class Dispatcher:
    """Holds the jobs of this host. Reports, deaths and stop requests come in here."""

    def __init__(
        self,
        settings: Settings,
        events: EventBus,
        tasks: dict[str, TaskSpec],
        queues: Mapping[str, QueueSpec],
        finisher: Finisher,
        on_capacity: Callable[[str], None],
        send_stop: Callable[[WorkerChannel, HeldJob, StopReason], None],
    ) -> None:
        self.tasks = tasks
        self.buffers = {name: QueueBuffer(spec) for name, spec in queues.items()}
        self.held_jobs: dict[int, HeldJob] = {}  # every job of this host that has no result yet
        self.is_claiming = True
        self.cluster = ClusterView()
        self.unstarted = UnstartedJobs(held_jobs=self.held_jobs, finisher=finisher, events=events)
        self.assigner = Assigner(
            buffers=self.buffers,
            unstarted=self.unstarted,
            tasks=lambda: self.tasks,
            cluster=self.cluster,
            is_claiming=lambda: self.is_claiming,
            on_capacity=on_capacity,
        )
        self._max_jobs_per_claim = settings.claim_batch_size
        self._events = events
        self._finisher = finisher
        self._on_capacity = on_capacity
        self._send_stop = send_stop

    # -- what the claimer asks ---------------------------------------------------------------------------------

    def capacity(self) -> list[QueueCapacity]:
        """How many jobs of each queue to claim now."""
        if not self.is_claiming:
            return []
        wanted = [
            (buffer.name, buffer.capacity(self._max_jobs_per_claim, is_only_host=self.cluster.is_only_host))
            for buffer in self.buffers.values()
        ]
        return [QueueCapacity(name, count) for name, count in wanted if count]

    def accept(self, claimed: Iterable[ClaimedJob]) -> None:
        """Take the jobs of a claim into the buffers, and assign them."""
        fresh = [job for job in claimed if not self._release_if_lease_reused(job)]
        filled: dict[str, QueueBuffer] = {}
        now = monotonic()
        for job in fresh:
            spec = self.tasks.get(job.task)
            if spec is None:  # the code was replaced while the claim was on its way
                self._finisher.release([job.fence], UNKNOWN_TASK_REASON)
                continue
            held = HeldJob(job, spec, now)
            if job.is_cancel_requested:
                self.unstarted.finish_stopped(held, StopReason.CANCEL)
            elif not self.is_claiming:
                self._finisher.release([held.fence], "the host is draining")
            else:
                buffer = filled[job.queue] = self.buffers[job.queue]
                buffer.add(held)
                self.held_jobs[job.id] = held
        for buffer in filled.values():
            self.assigner.assign_waiting(buffer)
        self.assigner.start_buffer_timer()

    def _release_if_lease_reused(self, job: ClaimedJob) -> bool:
        """Release a claim whose lease number this host still knows.

        If it holds the job, the earlier claim is lost.

        After a failover the lease number of a lost claim may be used again, even for another job. The processes of this host
        identify an execution by job and lease, so such a claim is released: the next one has another number.
        """
        key = job.id, job.lease
        known = self.held_jobs.get(job.id)
        if known is not None:
            self.on_lease_lost(known.fence)
        if not (known is not None and known.key == key) and not self.assigner.was_reclaimed(key):
            return False
        self._finisher.release([job.fence], LEASE_REUSED_REASON)
        return True

    def release_unstarted(self, why: str) -> None:
        """Release every job that has not started, in buffers and at workers."""
        for buffer in self.buffers.values():
            for worker in list(buffer.busy_workers()):
                self._reclaim_and_continue(buffer, worker)
            self.assigner.release_buffer(buffer, why)

    # -- workers that come and go ------------------------------------------------------------------------------------

    def set_target_workers(self, queue: str, target: int) -> None:
        """Fewer workers: idle ones leave now, busy ones after their job."""
        buffer = self.buffers[queue]
        buffer.target_workers = target
        while buffer.idle_workers and buffer.has_too_many_workers():
            buffer.idle_workers.pop().dismiss()
        if buffer.has_too_many_workers():
            for worker in list(buffer.busy_workers()):
                self._reclaim_and_continue(buffer, worker)

    def retire(self, worker: WorkerChannel) -> None:
        """Let a worker leave, now or after its job: its code was replaced, an operator asked, or its threads use CPU."""
        worker.is_retiring = True
        buffer = self.buffers[worker.queue]
        if worker in buffer.idle_workers:
            buffer.idle_workers.remove(worker)
            worker.dismiss()
        else:
            self._reclaim_and_continue(buffer, worker)
            self.assigner.assign_waiting(buffer)

    def _reclaim_and_continue(self, buffer: QueueBuffer, worker: WorkerChannel) -> None:
        """Reclaim what a worker has not started.

        If that was all, no report will come: it becomes idle, or leaves, now.
        """
        had = bool(worker.orders)
        self.assigner.reclaim(worker)
        if had and not worker.orders:
            self._continue_worker(buffer, worker)

    def add_worker(self, worker: WorkerChannel) -> None:
        self.buffers[worker.queue].workers.append(worker)

    def on_channel_closed(self, worker: WorkerChannel) -> None:
        """The worker takes no more orders: what it has not started goes to others, at no cost to the jobs."""
        buffer = self.buffers[worker.queue]
        if worker in buffer.idle_workers:
            buffer.idle_workers.remove(worker)
        self.assigner.reclaim(worker)
        if worker.protocol_error and worker.current_job is not None and worker.state is not WorkerState.GONE:
            self._send_stop(worker, worker.current_job, StopReason.KILL)
        self.assigner.assign_waiting(buffer)

    def on_worker_died(self, worker: WorkerChannel, died: Died) -> Verdict | None:
        """A worker is gone.

        If it had reported its job, the report counts; otherwise its death ends the job.
        """
        worker.move_to(WorkerState.GONE)  # frames that are still read do not make it idle again
        worker.read_all()
        buffer = self.buffers[worker.queue]
        if worker in buffer.workers:
            buffer.workers.remove(worker)
        self.on_channel_closed(worker)
        worker.dispose()
        if not died.was_ready and died.status != "exit 0" and buffer.start_problem is None:
            why = f"a worker ended by {died.status} before it was ready"
            buffer.start_problem = StartProblem(why, died.stack or died.output or "")
        ended = None
        while worker.orders:
            held = worker.orders.popleft()
            self._forget_orders(buffer, worker, [held])
            if (died.job, died.lease) != held.key and died.signal == signal.SIGKILL:
                # It had the ticket, but its handler never started. Only a kill from outside is not caused by the job.
                self._finisher.release(
                    [held.fence], f"its worker ended by {died.status} before the job began"
                )
                continue
            self.unstarted.mark_started(held, held.began_at or held.claimed_at_monotonic)
            self._finisher.end_sessions_of([held.key])
            if died.reason is not None and died.stop_seconds:
                self._events.emit(StopCompleted(*held.key, worker.queue, died.reason.word, died.stop_seconds))
            ending = verdict.from_death(died, held, protocol_error=worker.protocol_error)
            self._finish_attempt(buffer, worker, held, ending)
            ended = ending.verdict
        return ended

    # -- what workers report ------------------------------------------------------------------------------------------

    def on_frames(self, worker: WorkerChannel, frames: list[Frame]) -> None:
        buffer = self.buffers[worker.queue]
        successes: list[Frame] = []
        for frame in frames:
            if frame.kind == _SUCCESS_KIND:
                check_success(frame.body)
                successes.append(frame)
            else:
                self._on_successes(buffer, worker, successes)
                successes = []
                self._on_frame(buffer, worker, frame)
        self._on_successes(buffer, worker, successes)
        if worker.state is not WorkerState.BOOTING:  # else it has only reported that it cannot start
            self._continue_worker(buffer, worker)

    def _on_frame(self, buffer: QueueBuffer, worker: WorkerChannel, frame: Frame) -> None:
        match frame.kind:
            case FrameKind.REPORT:
                report = _decode_report(frame.body)  # first: a report that cannot be read ends nothing
                for held, _ in worker.pop_reported([frame]):
                    self._forget_orders(buffer, worker, [held])
                    self._on_report(buffer, worker, held, report)
            case FrameKind.READY:
                if worker.state is WorkerState.BOOTING:
                    took = monotonic() - worker.since
                    self._events.emit(WorkerReady(worker.queue, worker.slot, worker.pid, took))
                worker.move_to(WorkerState.READY)
                buffer.start_problem = None
            case FrameKind.START_FAILED:
                failure = _decode_start_failure(frame.body)
                buffer.start_problem = StartProblem(failure.error, failure.traceback)
            case FrameKind.PROGRESS:
                self._on_progress(worker, frame)
            case FrameKind.BUSY_THREADS:
                worker.has_leaked_threads = True
                self._events.emit(
                    WorkerLeakedThreads(worker.queue, worker.slot, worker.pid, *worker.last_job_id)
                )
                self.retire(worker)
            case FrameKind.METRICS:
                if (known := self.held_jobs.get(frame.job)) is not None:
                    self._events.emit(HandlerMetricsReceived(known.job.task, frame.body))
            case _:
                raise FrameError(f"a frame of an unknown kind ({frame.kind})")

    def _continue_worker(self, buffer: QueueBuffer, worker: WorkerChannel) -> None:
        """Send the worker more orders, or make it idle, or let it leave."""
        if worker.orders:
            self.assigner.top_up(buffer, worker)
        elif worker.state not in _GETS_NO_ORDERS and not worker.is_awaiting_write:
            self._make_idle(buffer, worker)
        if buffer.capacity(self._max_jobs_per_claim, is_only_host=self.cluster.is_only_host):
            self._on_capacity(buffer.name)

    def _make_idle(self, buffer: QueueBuffer, worker: WorkerChannel) -> None:
        if worker.state is WorkerState.IDLE:
            return
        if not self.is_claiming or worker.is_retiring or buffer.has_too_many_workers():
            worker.dismiss()
            return
        worker.move_to(WorkerState.IDLE)
        buffer.idle_workers.append(worker)
        self.assigner.assign_waiting(buffer)

    def _forget_orders(self, buffer: QueueBuffer, worker: WorkerChannel, jobs: list[HeldJob]) -> None:
        """Note that the worker no longer has the orders of these jobs."""
        buffer.assigned_jobs -= len(jobs)
        buffer.occupied_workers -= not worker.orders
        self.unstarted.forget(jobs)
        if (
            buffer.max_assigned_jobs != sys.maxsize or worker.is_retiring
        ):  # an idle worker may have waited for this
            asyncio.get_running_loop().call_soon(self.assigner.assign_waiting, buffer)
            self._on_capacity(buffer.name)

    def _on_progress(self, worker: WorkerChannel, frame: Frame) -> None:
        held = worker.current_job
        if held is not None and held.key == (frame.job, frame.lease):
            sent = _decode_progress(frame.body)
            held.extended_seconds = sent.extended
            progress, checkpoint = verdict.json_text_of(sent.progress), verdict.json_text_of(sent.checkpoint)
            if progress is not None or checkpoint is not None:
                self._finisher.save_progress(ProgressUpdate(*held.fence, progress, checkpoint))

    def _on_successes(self, buffer: QueueBuffer, worker: WorkerChannel, frames: list[Frame]) -> None:
        """Handle successes without anything but a result, in their order.

        Of very short jobs many come at once.
        """
        ended = worker.pop_reported(frames)
        if not ended:
            return
        self._forget_orders(buffer, worker, [held for held, _ in ended])
        now = worker.since
        begun: list[AttemptStarted] = []
        results: list[tuple[HeldJob, JobFinish | JobRetry]] = []
        took: dict[str, list[float]] = {}
        for held, frame in ended:
            duration, cpu, peak, result = decode_success(frame.body)
            if (durations := took.get(held.job.task)) is None:
                durations = took[held.job.task] = []
            durations.append(duration)
            if not held.has_emitted_start:
                begun.append(self.unstarted.started_event(held, now - duration))
            keep_args = held.task.keep_args
            results.append((held, verdict.success_end(held.job, duration, cpu, peak, result, keep_args)))
        self.assigner.record_durations(buffer, worker, ended[0][0], took)
        self._events.emit_all(begun)
        self._pass_to_finisher(buffer, worker, results)

    def _on_report(self, buffer: QueueBuffer, worker: WorkerChannel, held: HeldJob, report: Report) -> None:
        if report.reason is not None:
            self._events.emit(StopCompleted(*held.key, worker.queue, report.reason.word, report.stop_seconds))
        if report.has_started:
            self.assigner.record_durations(buffer, worker, held, {held.job.task: [report.duration]})
            self.unstarted.mark_started(held, worker.since - report.duration)
        self._finish_attempt(buffer, worker, held, verdict.from_report(report, held))
        if report.is_last:
            worker.move_to(WorkerState.LEAVING)
            worker.stop_reading()
            self.on_channel_closed(worker)

    def _finish_attempt(
        self, buffer: QueueBuffer, worker: WorkerChannel, held: HeldJob, ending: verdict.AttemptOutcome
    ) -> None:
        """Decide what an ended attempt means for its job, and write it.

        A stopped job that never began is released.
        """
        if (
            not ending.has_started
            and ending.verdict is Verdict.INTERRUPTED
            and held.stop_reason is not StopReason.LEASE
        ):
            self._finisher.release([held.fence], "stopped before it began")
            return
        if ending.verdict is Verdict.THROTTLED and held.stop_reason is not StopReason.LEASE:
            self._finisher.throttle(worker.queue, ending.retry_after_seconds)
        end = verdict.decide_end(held, ending, random.random(), worker.label, worker.version)
        self._pass_to_finisher(buffer, worker, [(held, end)])

    def _pass_to_finisher(
        self, buffer: QueueBuffer, worker: WorkerChannel, results: list[tuple[HeldJob, JobFinish | JobRetry]]
    ) -> None:
        ours = [
            pair for pair in results if pair[0].stop_reason is not StopReason.LEASE
        ]  # another host owns a lost job
        if ours and not buffer.spec.lookahead and worker.state is not WorkerState.GONE:
            worker.is_awaiting_write = True
            ours[-1][0].on_written = partial(self._on_result_written, buffer, worker)
        elif (
            buffer.spec.max_jobs == 1
        ):  # a process for each job: a statement for each would cost as much again
            for held, _ in ours:
                held.may_delay_write = True
        self._finisher.add_all(ours)

    def _on_result_written(self, buffer: QueueBuffer, worker: WorkerChannel) -> None:
        """The result is written, on a queue where the worker waits for that."""
        worker.is_awaiting_write = False
        if worker.is_open:
            self._continue_worker(buffer, worker)

    # -- stop requests ----------------------------------------------------------------------------------------------------

    def cancel(self, fence: Fence) -> bool:
        """Cancel a job, running or not. False: this host does not hold it."""
        held = self.held_jobs.get(fence.id)
        if held is None or held.fence != fence:
            return False
        worker = held.worker
        if self.assigner.reclaim_one(held):
            self.unstarted.finish_stopped(held, StopReason.CANCEL)
            if worker is not None:
                self._continue_worker(self.buffers[worker.queue], worker)
        elif worker is not None:
            self._request_stop(worker, held, StopReason.CANCEL)
        return True

    def update_deadline(self, found: ChangedDeadline) -> None:
        """Apply a deadline that a renewal has read, whether the job runs or not."""
        held = self.held_jobs.get(found.fence.id)
        if held is None or held.fence != found.fence or not held.update_deadline(found):
            return
        worker = held.worker
        if worker is None:
            return  # its order is encoded when a worker gets it
        if self.assigner.reclaim_one(held):
            held.worker = None
            buffer = self.buffers[worker.queue]
            buffer.add(held)
            self._continue_worker(buffer, worker)
            self.assigner.assign_waiting(buffer)
        else:
            worker.send_to_supervisor(
                SetDeadline(
                    slot=worker.slot,
                    incarnation=worker.incarnation,
                    job=held.job.id,
                    lease=held.job.lease,
                    at=held.attempt_deadline_ns(),
                )
            )
        left = held.job.seconds_to_deadline
        self._events.emit(
            DeadlineMoved(
                *held.event_fields, None if left is None else max(0.0, found.seconds_to_deadline or 0.0)
            )
        )

    def on_lease_lost(self, fence: Fence, *, rescued: bool = False) -> None:
        """Another host owns the job: stop it here, and write nothing of it."""
        held = self.held_jobs.get(fence.id)
        if held is None or held.fence != fence or held.stop_reason is StopReason.LEASE:
            return
        worker = held.worker
        if self.assigner.reclaim_one(held):
            self.unstarted.forget([held])
            self._events.emit(LeaseLost(*held.event_fields, is_running=False, is_rescued=rescued))
            if worker is not None:
                self._continue_worker(self.buffers[worker.queue], worker)
        elif worker is not None:
            self._events.emit(LeaseLost(*held.event_fields, is_running=True, is_rescued=rescued))
            self._request_stop(worker, held, StopReason.LEASE)

    def request_stop(self, worker: WorkerChannel, reason: StopReason) -> None:
        """Stop the job that the worker runs."""
        worker.read_all()
        if worker.current_job is not None:
            self._request_stop(worker, worker.current_job, reason)

    def _request_stop(self, worker: WorkerChannel, held: HeldJob, reason: StopReason) -> None:
        """Each reason is emitted and sent once.

        A cancel or a lost lease stays the reason, whatever is sent after it.
        """
        if held.stop_reason is reason:
            return
        if held.stop_reason not in (StopReason.CANCEL, StopReason.LEASE):
            held.stop_reason = reason
        self._events.emit(StopRequested(*held.event_fields, reason.word))
        self._send_stop(worker, held, reason)

    def replace_app(self, tasks: dict[str, TaskSpec], queues: Mapping[str, QueueSpec]) -> None:
        """Serve another version of the app: other tasks, perhaps other queues."""
        self.tasks = tasks
        for name, spec in queues.items():
            self.buffers.setdefault(name, QueueBuffer(spec)).spec = spec
        for buffer in self.buffers.values():
            unknown = [held for held in buffer.waiting if held.job.task not in tasks]
            if unknown:
                buffer.waiting = deque(held for held in buffer.waiting if held.job.task in tasks)
                self.unstarted.release(unknown, UNKNOWN_TASK_REASON)

    # -- for renewal and the process view ----------------------------------------------------------------------------

    def busy_workers(self) -> list[WorkerChannel]:
        return [w for buffer in self.buffers.values() for w in buffer.busy_workers()]

    def all_workers(self) -> list[WorkerChannel]:
        return [w for buffer in self.buffers.values() for w in buffer.workers]

    def held_fences(self) -> list[Fence]:
        return [held.fence for held in self.held_jobs.values()]

    def held_deadlines(self) -> list[float | None]:
        """The deadlines of `held_fences`, in the same order, as they were last read."""
        return [held.job.deadline_epoch for held in self.held_jobs.values()]


class UnstartedJobs:
    """Ends or releases held jobs that no worker has started."""

    def __init__(self, *, held_jobs: dict[int, HeldJob], finisher: Finisher, events: EventBus) -> None:
        self._held_jobs = held_jobs
        self._finisher = finisher
        self._events = events

    def release(self, jobs: Sequence[HeldJob], why: str) -> None:
        self.forget(jobs)
        self._finisher.release([held.fence for held in jobs], why)

    def mark_started(self, held: HeldJob, at: float) -> None:
        """Emit, once, that the handler has started."""
        if not held.has_emitted_start:
            self._events.emit(self.started_event(held, at))

    def started_event(self, held: HeldJob, at: float) -> AttemptStarted:
        """The event that the handler has started. It must be emitted."""
        held.has_emitted_start = True
        job = held.job
        late = at - held.claimed_at_monotonic
        waited = job.ready_seconds + late if late > 0.0 else job.ready_seconds
        return AttemptStarted(job.id, job.lease, job.queue, job.task, job.attempt, waited)

    def finish_stopped(self, held: HeldJob, reason: StopReason) -> None:
        self.forget([held])
        ending = verdict.from_report(
            Report(
                outcome=Outcome.STOPPED,
                duration=0.0,
                cpu=0.0,
                peak_rss=0,
                reason=reason,
                has_started=False,
            ),
            held,
        )
        held.stop_reason = reason if reason is StopReason.CANCEL else held.stop_reason
        self._finisher.add(held, verdict.decide_end(held, ending, random.random(), "", ""))

    def finish_unfit(self, held: HeldJob, reason: str) -> None:
        """End a job that no worker can be sent, so that others are not delayed."""
        self.forget([held])
        ending = verdict.AttemptOutcome(
            verdict=Verdict.UNFIT,
            duration=0.0,
            cpu=0.0,
            peak_rss=0,
            error=f"no worker can have it: {reason}",
            has_started=False,
        )
        self._finisher.add(held, verdict.decide_end(held, ending, random.random(), "", ""))

    def finish_stop_requested(self, held: HeldJob) -> None:
        """End or release a job that was to be stopped before it had started."""
        if held.stop_reason is StopReason.CANCEL:
            self.finish_stopped(held, StopReason.CANCEL)
            return
        self.forget([held])
        if held.stop_reason is not StopReason.LEASE:  # else another host owns it
            self._finisher.release([held.fence], "stopped before it began")

    def forget(self, jobs: Sequence[HeldJob]) -> None:
        """Forget jobs that are no longer this host's, or whose results are on the way."""
        known = self._held_jobs
        for held in jobs:
            job = held.job.id
            if known.get(job) is held:
                del known[job]
