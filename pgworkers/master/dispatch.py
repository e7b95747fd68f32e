"""Who runs what, on this host: claimed jobs wait in a small buffer per queue until a worker of it is idle.

The buffer belongs to the queue and not to a worker, so no job waits behind a long one. It is deeper than the
idle workers only while the queue's jobs are short, and what nobody took in time is given back to the other
hosts. No SQL here and no waiting: claims come in through `take`, ends go out through `Ends`.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import Callable, Iterable

import msgspec
from msgspec import Raw

from pgworkers.clock import monotonic
from pgworkers.events import Facts, JobStarted, JobStopped, LeaseLost, StopWished, WorkerReady
from pgworkers.job.claim import Claimed, Wants
from pgworkers.job.progress import Saved
from pgworkers.job.state import Verdict
from pgworkers.master import verdict
from pgworkers.master.crew import Worker
from pgworkers.master.desk import AHEAD, PATIENCE, QueueDesk, ahead
from pgworkers.master.ends import Ends
from pgworkers.master.held import Held
from pgworkers.process.frames import Frame
from pgworkers.settings import Settings
from pgworkers.specs import TaskSpec
from pgworkers.supervisor.messages import Died
from pgworkers.worker.messages import Kind, Order, Progress, Report

_order = msgspec.json.Encoder().encode
_report = msgspec.json.Decoder(Report).decode
_progress = msgspec.json.Decoder(Progress).decode
_NULL = Raw(b"null")


class Dispatch:
    def __init__(
        self,
        settings: Settings,
        facts: Facts,
        tasks: dict[str, TaskSpec],
        queues: Iterable[str],
        ends: Ends,
        want_claim: Callable[[], None],
        stop: Callable[[Worker, Held, str], None],
    ) -> None:
        self.tasks = tasks
        self.desks = {name: QueueDesk(name) for name in queues}
        self.claiming = True
        self._watching = False
        self._settings = settings
        self._facts = facts
        self._ends = ends
        self._want_claim = want_claim
        self._stop = stop

    # -- what the claimer asks and brings ----------------------------------------------------------------------

    def wants(self) -> list[Wants]:
        """How many jobs of each queue this host could use now."""
        if not self.claiming:
            return []
        wanted = []
        for desk in self.desks.values():
            room = desk.may_begin() - len(desk.buffer)
            alive = min(len(desk.idle) + desk.running, desk.cap)
            if alive and desk.trusted():
                room += ahead(alive, desk.typical, self._settings.claim_batch)
            if room > 0:
                wanted.append(Wants(desk.name, min(room, self._settings.claim_batch)))
        return wanted

    def take(self, claimed: Iterable[Claimed]) -> None:
        for job in claimed:
            held = Held(job, self.tasks[job.task])
            if job.cancelled:
                self._end_unstarted(held, "cancel")
            elif not self.claiming:
                self._ends.release([held.key], "the host is draining")
            else:
                self.desks[job.queue].buffer.append(held)
        for desk in self.desks.values():
            self._feed(desk)
        self._watch_buffers()

    def _watch_buffers(self) -> None:
        if not self._watching and any(desk.buffer for desk in self.desks.values()):
            self._watching = True
            asyncio.get_running_loop().call_later(PATIENCE, self._give_back_waiting)

    def _give_back_waiting(self) -> None:
        """Release buffered jobs that no worker took in time; another host may have an idle one."""
        self._watching = False
        now = monotonic()
        back: list[tuple[int, int]] = []
        for desk in self.desks.values():
            if desk.buffer and now - desk.buffer[0].since > PATIENCE:
                back += [held.key for held in desk.buffer]
                desk.buffer.clear()
                desk.typical = max(desk.typical or 0.0, AHEAD * 2)  # it was not short after all
        if back:
            self._ends.release(back, "no worker was free for them")
        self._watch_buffers()

    def give_back_all(self, why: str) -> None:
        back = [held.key for desk in self.desks.values() for held in desk.buffer]
        for desk in self.desks.values():
            desk.buffer.clear()
        if back:
            self._ends.release(back, why)

    # -- what workers and supervisors say ------------------------------------------------------------------------

    def shrink(self, queue: str, target: int) -> None:
        """Fewer workers: idle ones leave now, busy ones after their job."""
        desk = self.desks[queue]
        desk.target = target
        while desk.count() > target and desk.idle:
            desk.idle.pop().leave()

    def retire(self, worker: Worker) -> None:
        """Its supervisor was replaced by one with newer code: it leaves now, or after its job."""
        worker.retiring = True
        desk = self.desks[worker.queue]
        if worker in desk.idle:
            desk.idle.remove(worker)
            worker.leave()

    def adopt(self, tasks: dict[str, TaskSpec], queues: Iterable[str]) -> None:
        """A newer version of the app: other tasks, perhaps other queues."""
        self.tasks = tasks
        for name in queues:
            self.desks.setdefault(name, QueueDesk(name))

    def joined(self, worker: Worker) -> None:
        self.desks[worker.queue].workers.append(worker)

    def heard(self, worker: Worker, frame: Frame) -> None:
        match frame.kind:
            case Kind.READY:
                self._facts.tell(
                    WorkerReady(worker.queue, worker.slot, worker.pid, monotonic() - worker.since)
                )
                self._idle(worker)
            case Kind.REPORT:
                self._reported(worker, frame)
            case Kind.PROGRESS:
                held = worker.held
                if held is not None and held.key == (frame.job, frame.lease):
                    said = _progress(frame.body)
                    self._ends.save(
                        Saved(
                            frame.job,
                            frame.lease,
                            verdict.json_of(said.progress),
                            verdict.json_of(said.checkpoint),
                        )
                    )

    def died(self, worker: Worker, died: Died) -> Verdict | None:
        """A worker is gone. What it had reported counts; otherwise its death is the end of its job."""
        worker.drain_frames()
        worker.hang_up()
        desk = self.desks[worker.queue]
        if worker in desk.workers:
            desk.workers.remove(worker)
        if worker in desk.idle:
            desk.idle.remove(worker)
        worker.become("gone")
        held, worker.held = worker.held, None
        if held is None:
            return None
        if (died.job, died.lease) != held.key and died.signal == signal.SIGKILL:
            # The order was still in the socket: the handler never began. Only a kill from outside is not its doing.
            self._ends.release([held.key], f"its worker ended by {died.status} before the job began")
            return None
        self._ends.silence([held.key])
        if died.reason is not None and died.stopped:
            self._facts.tell(JobStopped(*held.key, worker.queue, died.reason, died.stopped))
        ending = verdict.of_death(died, held)
        self._settle(worker, held, ending)
        return ending.verdict

    # -- wishes ----------------------------------------------------------------------------------------------------

    def cancel(self, job: int) -> bool:
        """A cancel for a job of this host: end it, running or not. False: it is not here."""
        for desk in self.desks.values():
            for held in desk.buffer:
                if held.claimed.id == job:
                    desk.buffer.remove(held)
                    self._end_unstarted(held, "cancel")
                    return True
            for worker in desk.busy():
                if worker.held is not None and worker.held.claimed.id == job:
                    self.wish(worker, "cancel")
                    return True
        return False

    def lost(self, key: tuple[int, int]) -> None:
        """The database says another host owns it: whatever runs here is stopped, nothing of it is written."""
        for desk in self.desks.values():
            for held in list(desk.buffer):
                if held.key == key:
                    desk.buffer.remove(held)
                    self._facts.tell(LeaseLost(*held.named, running=False))
            for worker in desk.busy():
                if worker.held is not None and worker.held.key == key and worker.held.wish != "lease":
                    self._facts.tell(LeaseLost(*worker.held.named, running=True))
                    self.wish(worker, "lease")

    def wish(self, worker: Worker, reason: str) -> None:
        """Latched: the first wish is told and sent once; a harder one may follow."""
        held = worker.held
        if held is None or held.wish == reason:
            return
        if held.wish not in ("cancel", "lease"):
            held.wish = reason
        self._facts.tell(StopWished(*held.named, reason))
        self._stop(worker, held, reason)

    # -- for renewal and the process view ----------------------------------------------------------------------------

    def busy(self) -> list[Worker]:
        return [w for desk in self.desks.values() for w in desk.busy()]

    def all_workers(self) -> list[Worker]:
        return [w for desk in self.desks.values() for w in desk.workers]

    def held_keys(self) -> list[tuple[int, int]]:
        keys = [held.key for desk in self.desks.values() for held in desk.buffer]
        keys += [w.held.key for w in self.busy() if w.held is not None]
        return keys

    # -- inside ------------------------------------------------------------------------------------------------------

    def _idle(self, worker: Worker) -> None:
        worker.become("idle")
        desk = self.desks[worker.queue]
        if not self.claiming or worker.retiring or desk.count() > desk.target:
            worker.leave()
            return
        desk.idle.append(worker)
        self._feed(desk)
        if not desk.buffer:
            self._want_claim()

    def _feed(self, desk: QueueDesk) -> None:
        while desk.buffer and desk.may_begin():
            worker = desk.idle.pop()
            if not worker.open:
                continue
            self._order(worker, desk.buffer.popleft())

    def _order(self, worker: Worker, held: Held) -> None:
        job = held.claimed
        timeout = held.timeout()
        if timeout is not None and timeout <= 0:
            self._end_unstarted(held, "deadline")
            self._idle(worker)
            return
        held.started = monotonic()
        worker.held = held
        worker.become("busy")
        worker.jobs += 1
        order = Order(
            task=job.task,
            args=Raw(job.args.encode()),
            queue=job.queue,
            attempt=job.attempt,
            crashes=job.crashes,
            timeout=timeout,
            memory=job.memory if job.memory is not None else held.spec.memory,
            checkpoint=_NULL if job.checkpoint is None else Raw(job.checkpoint.encode()),
            meta=_NULL if job.meta is None else Raw(job.meta.encode()),
            errors=job.errors,
            exclusive=held.spec.exclusive,
            stall_timeout=held.spec.stall_timeout,
        )
        worker.send(Kind.ORDER, job.id, job.lease, _order(order))
        waited = job.waited + held.started - held.since
        self._facts.tell(JobStarted(job.id, job.lease, job.queue, job.task, job.attempt, waited))

    def _reported(self, worker: Worker, frame: Frame) -> None:
        held = worker.held
        if held is None or held.key != (frame.job, frame.lease):
            return  # a report for a lease this worker no longer has
        report = _report(frame.body)
        worker.held = None
        if report.reason is not None:
            self._facts.tell(JobStopped(*held.key, worker.queue, report.reason, report.stopped))
        self.desks[worker.queue].learn(report.duration)
        self._settle(worker, held, verdict.of_report(report, held))
        if report.last:
            worker.become("leaving")
        else:
            self._idle(worker)

    def _settle(self, worker: Worker, held: Held, ending: verdict.Ending) -> None:
        desk = self.desks[worker.queue]
        if desk.cap != sys.maxsize:  # its end may be what another, idle worker waits for
            asyncio.get_running_loop().call_soon(self._feed, desk)
            self._want_claim()
        if held.wish == "lease":
            return  # the database said so: not ours to write
        if not ending.started and ending.verdict is Verdict.INTERRUPTED:
            self._ends.release([held.key], "stopped before it began")
            return
        if ending.verdict is Verdict.THROTTLED:
            self._ends.throttle(worker.queue, ending.after)
        name = f"{worker.name} pid {worker.pid}"
        self._ends.put(held, verdict.settle(held, ending, random.random(), name, worker.version))

    def _end_unstarted(self, held: Held, reason: str) -> None:
        ending = verdict.of_report(Report("stopped", 0.0, 0.0, 0, reason=reason, started=False), held)
        held.wish = reason if reason == "cancel" else held.wish
        self._ends.put(held, verdict.settle(held, ending, random.random(), "", ""))
