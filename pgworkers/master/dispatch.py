"""Who runs what, on this host: claimed jobs wait in a small buffer per queue until a worker of it can have them.

The buffer belongs to the queue and not to a worker, so no job waits behind a long one. It is deeper than the idle workers
only while the queue's jobs are short or their ends foreseen, and what nobody took in time is given back to the other
hosts. Of short jobs a few milliseconds' worth wait in front of each worker (`handing`); they are taken back when the job
before them runs long. No SQL here and no waiting: claims come in through `take`, ends go out through `Ends`.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import msgspec

from pgworkers.clock import monotonic
from pgworkers.events import DeadlineMoved, JobStarted, JobStopped, LeaseLost, StopWished
from pgworkers.facts import Facts
from pgworkers.job.claim import Claimed, Fence, Wants
from pgworkers.job.finish import End
from pgworkers.job.progress import Saved
from pgworkers.job.renew import Deadline
from pgworkers.job.retry import Again
from pgworkers.job.state import Verdict
from pgworkers.lives import WorkerBurned, WorkerReady
from pgworkers.master import verdict
from pgworkers.master.crew import Worker
from pgworkers.master.desk import Problem, QueueDesk
from pgworkers.master.ends import Ends
from pgworkers.master.handing import GIVEN_TWICE, Handing
from pgworkers.master.held import Held
from pgworkers.process.frames import Frame, FrameError
from pgworkers.settings import Settings
from pgworkers.sightings import HandlerMeasured
from pgworkers.specs import QueueSpec, TaskSpec
from pgworkers.supervisor.messages import Died, MoveDeadline
from pgworkers.worker.messages import Kind, Progress, Report, Unstarted, check_done, read_done

_report = msgspec.json.Decoder(Report).decode
_progress = msgspec.json.Decoder(Progress).decode
_unstarted = msgspec.json.Decoder(Unstarted).decode
_DONE = int(Kind.DONE)  # with every job: to ask an enum takes longer


class Dispatch(Handing):
    def __init__(
        self,
        settings: Settings,
        facts: Facts,
        tasks: dict[str, TaskSpec],
        queues: Mapping[str, QueueSpec],
        ends: Ends,
        want_claim: Callable[[str], None],
        stop: Callable[[Worker, Held, str], None],
    ) -> None:
        super().__init__(facts, tasks, queues, ends, want_claim)
        self._batch = settings.claim_batch
        self._stop = stop

    # -- what the claimer asks ---------------------------------------------------------------------------------

    def wants(self) -> list[Wants]:
        """How many jobs of each queue this host could use now."""
        if not self.claiming:
            return []
        wanted = [(desk.name, desk.wanted(self._batch, alone=self.alone)) for desk in self.desks.values()]
        return [Wants(name, count) for name, count in wanted if count]

    def take(self, claimed: Iterable[Claimed]) -> None:
        """What a claim has brought. Of a job that this host already has, the earlier claim is lost.

        After a failover the number of a lost claim may be given again, to another job even. The processes of this host know
        an execution by that number, so this claim is given back: the next one has another number.
        """
        fresh = []
        for job in claimed:
            known = self.held.get(job.id)
            if known is not None:
                self.lost(known.fence)
            if (known is not None and known.key == job[:2]) or job[:2] in self._taken_back:
                self._ends.release([job.fence], GIVEN_TWICE)
            else:
                fresh.append(job)
        super().take(fresh)

    def give_back_all(self, why: str) -> None:
        """Everything that has not begun, wherever it waits."""
        for desk in self.desks.values():
            for worker in list(desk.busy()):
                self._unload(desk, worker)
            self._release_buffer(desk, why)

    # -- what supervisors say ------------------------------------------------------------------------------------

    def shrink(self, queue: str, target: int) -> None:
        """Fewer workers: idle ones leave now, busy ones after their job."""
        desk = self.desks[queue]
        desk.target = target
        while desk.idle and desk.too_many():
            desk.idle.pop().leave()
        if desk.too_many():
            for worker in list(desk.busy()):
                self._unload(desk, worker)

    def retire(self, worker: Worker) -> None:
        """Newer code, an operator's wish, threads that burn: it leaves now, or after its job."""
        worker.retiring = True
        desk = self.desks[worker.queue]
        if worker in desk.idle:
            desk.idle.remove(worker)
            worker.leave()
        else:
            self._unload(desk, worker)
            self.feed(desk)

    def _unload(self, desk: QueueDesk, worker: Worker) -> None:
        """Take what it has not begun. If that was all it had, nothing will come from it: it rests, or leaves, now."""
        had = bool(worker.orders)
        self.reclaim(worker)
        if had and not worker.orders:
            self._go_on(desk, worker)

    def joined(self, worker: Worker) -> None:
        self.desks[worker.queue].workers.append(worker)

    def recover(self, worker: Worker) -> None:
        """It begins nothing more: what it has not begun goes to others, and costs nothing."""
        desk = self.desks[worker.queue]
        if worker in desk.idle:
            desk.idle.remove(worker)
        self.reclaim(worker)
        if worker.broken and worker.held is not None and worker.state != "gone":
            self._stop(worker, worker.held, "kill")
        self.feed(desk)

    def died(self, worker: Worker, died: Died) -> Verdict | None:
        """A worker is gone. What it had reported counts; otherwise its death is the end of its job."""
        worker.become("gone")  # it gets nothing more, whatever is still read from it
        worker.catch_up()
        desk = self.desks[worker.queue]
        if worker in desk.workers:
            desk.workers.remove(worker)
        self.recover(worker)
        worker.bury()
        if not died.ready and died.status != "exit 0" and desk.problem is None:
            why = f"a worker ended by {died.status} before it was ready"
            desk.problem = Problem(why, died.stack or died.output or "")
        ended = None
        while worker.orders:
            held = worker.orders.popleft()
            self._had(desk, worker, [held])
            if (died.job, died.lease) != held.key and died.signal == signal.SIGKILL:
                # Its order was taken, and its handler never began. Only a kill from outside is not its doing.
                self._ends.release([held.fence], f"its worker ended by {died.status} before the job began")
                continue
            self._begun(held, held.began or held.since)
            self._ends.silence([held.key])
            if died.reason is not None and died.stopped:
                self._facts.tell(JobStopped(*held.key, worker.queue, died.reason, died.stopped))
            ending = verdict.of_death(died, held, broken=worker.broken)
            self._settle(desk, worker, held, ending)
            ended = ending.verdict
        return ended

    # -- what workers say ------------------------------------------------------------------------------------------

    def heard(self, worker: Worker, frames: list[Frame]) -> None:
        desk = self.desks[worker.queue]
        done: list[Frame] = []
        for frame in frames:
            if frame.kind == _DONE:
                check_done(frame.body)
                done.append(frame)
            else:
                self._done(desk, worker, done)
                done = []
                self._said(desk, worker, frame)
        self._done(desk, worker, done)
        if worker.state != "booting":  # else it has only said that it cannot start
            self._go_on(desk, worker)

    def _said(self, desk: QueueDesk, worker: Worker, frame: Frame) -> None:
        match frame.kind:
            case Kind.REPORT:
                report = _report(frame.body)  # first: what cannot be read ends nothing
                for held, _ in worker.ended([frame]):
                    self._had(desk, worker, [held])
                    self._reported(desk, worker, held, report)
            case Kind.READY:
                if worker.state == "booting":
                    took = monotonic() - worker.since
                    self._facts.tell(WorkerReady(worker.queue, worker.slot, worker.pid, took))
                worker.become("ready")
                desk.problem = None
            case Kind.UNSTARTED:
                said = _unstarted(frame.body)
                desk.problem = Problem(said.error, said.traceback)
            case Kind.PROGRESS:
                self._progressed(worker, frame)
            case Kind.BURNS:
                worker.burns = True
                self._facts.tell(WorkerBurned(worker.queue, worker.slot, worker.pid, *worker.last))
                self.retire(worker)
            case Kind.METRICS:
                if (known := self.held.get(frame.job)) is not None:
                    self._facts.tell(HandlerMeasured(known.claimed.task, frame.body))
            case _:
                raise FrameError(f"a frame of an unknown kind ({frame.kind})")

    def _go_on(self, desk: QueueDesk, worker: Worker) -> None:
        """It has reported what it had to: more, or rest, or leave."""
        if worker.orders:
            if desk.buffer and desk.looks_ahead() and self._may_have_more(worker):
                self._fill(desk, worker, len(desk.buffer))
        elif worker.state not in ("leaving", "gone", "silent") and not worker.settling:
            self._idle(desk, worker)
        if desk.wanted(self._batch, alone=self.alone):
            self._want_claim(desk.name)

    def _idle(self, desk: QueueDesk, worker: Worker) -> None:
        if worker.state == "idle":
            return
        if not self.claiming or worker.retiring or desk.too_many():
            worker.leave()
            return
        worker.become("idle")
        desk.idle.append(worker)
        self.feed(desk)

    def _had(self, desk: QueueDesk, worker: Worker, jobs: list[Held]) -> None:
        """Their orders are out of the worker's hands."""
        desk.running -= len(jobs)
        desk.occupied -= not worker.orders
        self._forget(jobs)
        if desk.cap != sys.maxsize or worker.retiring:  # its end may be what another, idle worker waits for
            asyncio.get_running_loop().call_soon(self.feed, desk)
            self._want_claim(desk.name)

    def _progressed(self, worker: Worker, frame: Frame) -> None:
        held = worker.held
        if held is not None and held.key == (frame.job, frame.lease):
            said = _progress(frame.body)
            held.extended = said.extended
            progress, checkpoint = verdict.json_of(said.progress), verdict.json_of(said.checkpoint)
            if progress is not None or checkpoint is not None:
                self._ends.save(Saved(*held.fence, progress, checkpoint))

    def _done(self, desk: QueueDesk, worker: Worker, frames: list[Frame]) -> None:
        """Jobs that went well and had nothing more to say, in their order: of very short ones many at once."""
        ended = worker.ended(frames)
        if not ended:
            return
        self._had(desk, worker, [held for held, _ in ended])
        now = worker.since
        begun: list[JobStarted] = []
        ends: list[tuple[Held, End | Again]] = []
        took: dict[str, list[float]] = {}
        for held, frame in ended:
            duration, cpu, peak, result = read_done(frame.body)
            if (durations := took.get(held.claimed.task)) is None:
                durations = took[held.claimed.task] = []
            durations.append(duration)
            if not held.told:
                begun.append(self._start_of(held, now - duration))
            keep_args = held.spec.keep_args
            ends.append((held, verdict.success(held.claimed, duration, cpu, peak, result, keep_args)))
        self._learn(desk, worker, ended[0][0], took)
        self._facts.tell_all(begun)
        self._write(desk, worker, ends)

    def _reported(self, desk: QueueDesk, worker: Worker, held: Held, report: Report) -> None:
        if report.reason is not None:
            self._facts.tell(JobStopped(*held.key, worker.queue, report.reason, report.stopped))
        if report.started:
            self._learn(desk, worker, held, {held.claimed.task: [report.duration]})
            self._begun(held, worker.since - report.duration)
        self._settle(desk, worker, held, verdict.of_report(report, held))
        if report.last:
            worker.become("leaving")
            worker.hear_no_more()
            self.recover(worker)

    def _settle(self, desk: QueueDesk, worker: Worker, held: Held, ending: verdict.Ending) -> None:
        if not ending.started and ending.verdict is Verdict.INTERRUPTED and held.wish != "lease":
            self._ends.release([held.fence], "stopped before it began")
            return
        if ending.verdict is Verdict.THROTTLED and held.wish != "lease":
            self._ends.throttle(worker.queue, ending.after)
        end = verdict.settle(held, ending, random.random(), worker.label, worker.version)
        self._write(desk, worker, [(held, end)])

    def _write(self, desk: QueueDesk, worker: Worker, ends: list[tuple[Held, End | Again]]) -> None:
        ours = [
            pair for pair in ends if pair[0].wish != "lease"
        ]  # else the database said so: not ours to write
        if ours and not desk.spec.batch and worker.state != "gone":
            worker.settling = True
            ours[-1][0].then = partial(self._settled, desk, worker)
        elif desk.spec.max_jobs == 1:  # a process each: a statement each would be the dearer half of the rest
            for held, _ in ours:
                held.patient = True
        self._ends.put_all(ours)

    def _settled(self, desk: QueueDesk, worker: Worker) -> None:
        """The end is written, on a queue where nothing begins before that."""
        worker.settling = False
        if worker.open:
            self._go_on(desk, worker)

    # -- wishes ----------------------------------------------------------------------------------------------------

    def cancel(self, fence: Fence) -> bool:
        """A cancel for a job of this host: end it, running or not. False: it is not here."""
        held = self.held.get(fence.id)
        if held is None or held.fence != fence:
            return False
        worker = held.worker
        if self.withdraw(held):
            self._end_unstarted(held, "cancel")
            if worker is not None:
                self._go_on(self.desks[worker.queue], worker)
        elif worker is not None:
            self._wish(worker, held, "cancel")
        return True

    def read_deadline(self, found: Deadline) -> None:
        """A renewal read a deadline that this host did not know: the job gets it, running or not."""
        held = self.held.get(found.fence.id)
        if held is None or held.fence != found.fence or not held.read_deadline(found):
            return
        worker = held.worker
        if worker is None:
            return  # its order is made when a worker gets it
        if self.withdraw(held):
            held.worker = None
            desk = self.desks[worker.queue]
            desk.put(held)
            self._go_on(desk, worker)
            self.feed(desk)
        else:
            worker.tell(MoveDeadline(worker.slot, worker.incarnation, *held.key, held.attempt_deadline()))
        left = held.claimed.remaining
        self._facts.tell(
            DeadlineMoved(*held.named, None if left is None else max(0.0, found.remaining or 0.0))
        )

    def lost(self, fence: Fence, *, rescued: bool = False) -> None:
        """The database says another host owns it: whatever runs here is stopped, nothing of it is written."""
        held = self.held.get(fence.id)
        if held is None or held.fence != fence or held.wish == "lease":
            return
        worker = held.worker
        if self.withdraw(held):
            self._forget([held])
            self._facts.tell(LeaseLost(*held.named, running=False, rescued=rescued))
            if worker is not None:
                self._go_on(self.desks[worker.queue], worker)
        elif worker is not None:
            self._facts.tell(LeaseLost(*held.named, running=True, rescued=rescued))
            self._wish(worker, held, "lease")

    def wish(self, worker: Worker, reason: str) -> None:
        """What the worker runs should stop."""
        worker.catch_up()
        if worker.held is not None:
            self._wish(worker, worker.held, reason)

    def _wish(self, worker: Worker, held: Held, reason: str) -> None:
        """Latched: the first wish is told and sent once; a harder one may follow."""
        if held.wish == reason:
            return
        if held.wish not in ("cancel", "lease"):
            held.wish = reason
        self._facts.tell(StopWished(*held.named, reason))
        self._stop(worker, held, reason)

    # -- for renewal and the process view ----------------------------------------------------------------------------

    def busy(self) -> list[Worker]:
        return [w for desk in self.desks.values() for w in desk.busy()]
