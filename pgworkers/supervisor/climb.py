"""Doing what `ladder` and `watch` decided: writing wishes, sending signals, looking twice before a kill."""

from __future__ import annotations

import os
import signal
import time
from functools import partial

from pgworkers.process import limits, measure, scoreboard, signals, tree
from pgworkers.process.scoreboard import Reason, Running, State
from pgworkers.settings import Settings
from pgworkers.supervisor import ladder, suspend, watch
from pgworkers.supervisor.ladder import Climb, Rung, Seen
from pgworkers.supervisor.member import DumpWish, Worker
from pgworkers.supervisor.messages import Dump, Fact, Stack, Stalled, Stop
from pgworkers.worker.heartbeat import REST, YOUTH

_DUMP_STEP = 0.005
_CALL_EVERY = 1.0
#: After a look at the memory of a job within its limit, this many times the CPU time of that look pass before the next.
_MEASURE_PAUSE = 20
_MEASURE_PAUSE_SECONDS = 1.0  # at most
_NO_DUMPS = "no stack: the job's handler has closed the descriptor that stacks are written to"


def wish(worker: Worker, order: Stop, now: float) -> None:
    """A wish of the master. It may be for a job that is still in the worker's socket: it waits for it then."""
    key = (order.job, order.lease)
    hard = order.reason == "kill"
    known = worker.climbs.get(key)
    if known is not None:
        known.hurry(order.ask_grace, order.raise_grace, hard=hard)
        return
    suspend.go_on(worker, now)
    graces = max(0.0, order.ask_grace), max(0.0, order.raise_grace)
    worker.climbs[key] = Climb(*key, order.reason, now, *graces, hard=hard)
    running = worker.slot.running()
    if hard and running.state == State.RUNNING and (running.job, running.lease) == key:
        return  # a handler that hears of its kill could end before it, and its process would stay
    worker.slot.wish(*key, _reason(order.reason), int(now * 1e9))


def _reason(word: str) -> int:
    return Reason.__members__.get(word.upper(), Reason.KILL)


def tend(worker: Worker, now: float) -> None:
    """What only a worker needs that lives until somebody looks: the kernel's preference for it, and a heartbeat."""
    if not worker.grown:
        worker.grown = True
        limits.raise_oom_score(worker.pid)
    slot = worker.slot
    if slot.beat or slot.state != State.RUNNING or worker.suspended:
        return
    if now - slot.started / 1e9 >= YOUTH and now - worker.called >= _CALL_EVERY:
        worker.called = now
        signals.send(worker.pid, signal.SIGUSR1)


def check_limits(worker: Worker, settings: Settings, now: float, fence: float) -> None:
    """Deadline and memory limit travel in the slot: they hold without master and database.

    So does the fence of exclusive jobs, two thirds into the term (process/term) of the last renewal that held: they must be
    dead before the lease could be somebody else's.
    """
    running = worker.slot.running()
    key = (running.job, running.lease)
    if running.state == State.LEAVING and running.deadline and now * 1e9 > running.deadline:
        kill_group(worker, "kill")  # its stop hooks hang
    if worker.suspended:
        suspend.hold(worker, running)
    if running.job == 0:
        return
    used = _memory_over(worker, running, now)
    fenced = running.state == State.RUNNING and worker.slot.exclusive and now >= fence
    known = worker.climbs.get(key)
    if used:
        worker.slot.used = used if known is None else max(worker.slot.used, used)
    if known is not None:
        if watch.runs_away(running, used):
            known.hurry(0.0, 0.0)
        elif fenced:  # graces that were given to it before are longer than its lease may be
            known.hurry(0.0, settings.lease / 6)
        return
    clock = worker.suspended or now  # the deadline of a suspended job stands still
    reason = watch.broken_limit(int(clock * 1e9), running, used)
    ask, raise_ = settings.ask_grace, settings.raise_grace
    if reason is Reason.MEMORY:
        ask = 0.0  # who eats memory is not asked first: every second of grace is more of it
    elif fenced:
        reason, ask, raise_ = Reason.LEASE, 0.0, settings.lease / 6
    elif (
        reason is Reason.NONE
        and not worker.suspended
        and watch.stood_still(now, worker.pulse, worker.slot.stall)
    ):
        reason = Reason.STALL
    if reason is not Reason.NONE:
        suspend.go_on(worker, now)
        worker.climbs[key] = Climb(*key, reason.word, now, ask, raise_)


def _memory_over(worker: Worker, running: Running, now: float) -> int:
    """Bytes used if they are more than the limit, else 0.

    A job with thousands of processes is measured less often, unless it is over its limit or is being stopped.
    """
    key = (running.job, running.lease)
    if not running.memory:
        return 0
    if now < worker.measure_at and key == worker.measured_key and key not in worker.climbs:
        return 0
    before = time.thread_time()
    used = measure.over(worker.pid, running.memory)
    pause = min(_MEASURE_PAUSE_SECONDS, (time.thread_time() - before) * _MEASURE_PAUSE)
    worker.measure_at = now if used else now + pause
    worker.measured_key = key
    return used


def step(worker: Worker, now: float) -> None:
    """Climb as far as is due."""
    if not worker.climbs:
        return
    seen = _seen(worker, worker.slot.running())
    for key, climb in list(worker.climbs.items()):
        climb.met = climb.met or ladder.concerns(climb, seen)
        if ladder.over(climb, seen) or (not climb.met and now - climb.wished > 60):
            del worker.climbs[key]
            continue
        climb.looks += Rung.DUMP in climb.times
        while (rung := ladder.tick(now, climb, seen)) is not None:
            climb.times[rung] = now
            if not _do(worker, climb, rung, now):
                return


def _seen(worker: Worker, running: Running) -> Seen:
    """Once a tick. A process that stopped itself again before it could begin its dump is continued again."""
    size, began = worker.capture.dump_size(), worker.capture.dump_from
    awaited = any(Rung.DUMP in climb.times for climb in worker.climbs.values())
    if awaited and size == began and suspend.stands(worker):
        signals.send_group(worker.pid, signal.SIGCONT)
    dumped = size > began and size == worker.dump_seen and _is_whole(worker)
    worker.dump_seen = size
    return Seen(running.job, running.lease, running.state == State.RUNNING, dumped)


def _do(worker: Worker, climb: Climb, rung: Rung, now: float) -> bool:
    """False: the worker is dead or has gone on; look again at the next tick."""
    slot = worker.slot
    match rung:
        case Rung.ASK:
            slot.wish(climb.job, climb.lease, _reason(climb.reason), int(now * 1e9))
        case Rung.RAISE:
            slot.raised = int(now * 1e9)
            slot.rung = 2
            # the worker's own handler looks whether job and lease are still those of the wish
            signals.send(worker.pid, signal.SIGUSR1)
        case Rung.DUMP:
            dump(worker)
            return False
        case Rung.KILL:
            return _kill(worker, climb)
    return True


def dump(worker: Worker) -> None:
    """All stacks into the dump file, by faulthandler's C code. A stopped process is continued for it.

    The signals come first: they wait for the process and are the first thing it does, even if it stops itself again.
    """
    worker.capture.dump_from = worker.dump_seen = worker.capture.dump_size()
    _write_stacks(worker)
    if suspend.stands(worker):
        signals.send_group(worker.pid, signal.SIGCONT)


def _write_stacks(worker: Worker) -> bool:
    """By the main thread itself: another one could be stopped by it in the middle of the writing, and here
    faulthandler has finished before Python writes its part.

    False: the descriptor that faulthandler would write to is not the dump file any more, so nothing was asked for.
    """
    if not worker.capture.is_dump_of(worker.pid, worker.slot.dump):
        return False
    signals.send_main(worker.pid, signal.SIGUSR2)
    if worker.slot.loop:  # an event loop: only Python knows where its tasks wait
        worker.slot.tell += 1
        signals.send(worker.pid, signal.SIGUSR1)
    return True


def _is_whole(worker: Worker) -> bool:
    """Has the dump been written to its end? Where an event loop runs, what Python writes comes last."""
    if worker.slot.told != worker.slot.tell:
        return False
    return bool(worker.slot.loop) or worker.capture.dump_is_whole()


def _kill(worker: Worker, climb: Climb) -> bool:
    """SIGKILL to the group, unless the job has just ended.

    Between our look at the slot and the kill the worker could report, take the next order and begin it. So
    it is stopped first: a stopped process begins nothing. What the slot says then is still true when the
    kill arrives.
    """
    suspend.stand(worker)
    running = worker.slot.running()
    now_seen = Seen(running.job, running.lease, running.state == State.RUNNING)
    if not ladder.concerns(climb, now_seen):
        signals.send(worker.pid, signal.SIGCONT)
        climb.times.pop(Rung.KILL, None)  # should it be the same job after all, the next tick kills it
        return False
    kill_group(worker, climb.reason)
    return True


def kill_group(worker: Worker, why: str) -> None:
    """By pid as well: a handler may have moved its process to another group."""
    worker.killed = why
    worker.killed_at = worker.killed_at or scoreboard.now() / 1e9
    signals.send_group(worker.pid, signal.SIGKILL)
    signals.send(worker.pid, signal.SIGKILL)


def feel(worker: Worker, settings: Settings, now: float) -> Stalled | None:
    """Has the worker just stalled, or come back?"""
    slot = worker.slot
    rests = slot.state == State.IDLE
    patience = watch.patience(settings.heartbeat * (REST if rests else 1))
    sign = slot.beat + slot.started  # to take up a job is a sign of life as well
    if rests and worker.pulse.beats(now, sign, patience):
        return None
    found = tree.stat(worker.pid)
    if found is None or found.state == "Z" or worker.suspended:
        return None
    if not slot.beat and found.state not in "Tt":
        return None  # it has no heartbeat yet: its silence says nothing
    news = worker.pulse.feel(now, sign, found.ticks, patience, rests=rests)
    if news is None:
        return None
    running = slot.running()
    return Stalled(worker.index, worker.incarnation, running.job, running.lease, news)


def begin_dump(worker: Worker, order: Dump, now: float) -> Stack | None:
    """`Dump` of the master: the answer comes when the file stops growing."""
    said = partial(Stack, order.slot, order.incarnation, order.token)
    if suspend.stands(worker):
        return said("the worker is stopped (SIGSTOP); its stack cannot be read now")
    if not worker.ready:
        return said("the worker is starting; it has no job yet")
    size = worker.capture.dump_size()
    if not _write_stacks(worker):
        return said(_NO_DUMPS)
    worker.dumps.append(DumpWish(order.token, size, size, now + 1.0))
    return None


def finish_dumps(worker: Worker, now: float) -> list[Fact]:
    facts: list[Fact] = []
    size = worker.capture.dump_size()
    for wanted in list(worker.dumps):
        quiet = size > wanted.size and size == wanted.seen and _is_whole(worker)
        wanted.seen = size
        if not quiet and now < wanted.until:
            continue
        worker.dumps.remove(wanted)
        text = worker.capture.stack(wanted.size) or "no stack: the worker did not answer within a second"
        facts.append(Stack(worker.index, worker.incarnation, wanted.token, text))
        if not any(Rung.DUMP in climb.times for climb in worker.climbs.values()):
            worker.capture.dump_from = size  # it is not the stack of a later death
    return facts


def next_look(worker: Worker) -> float | None:
    """When this worker wants to be looked at, on the scoreboard's clock."""
    times = [due for climb in worker.climbs.values() if (due := climb.due()) is not None]
    if any(Rung.DUMP in climb.times for climb in worker.climbs.values()) or worker.dumps:
        times.append(scoreboard.now() / 1e9 + _DUMP_STEP)
    deadline = worker.slot.due()
    if deadline and not times:
        times.append(deadline / 1e9)
    return min(times) if times else None


def is_gone(worker: Worker) -> bool:
    """Dead, not reaped: its pid and its group are still its own."""
    try:
        return os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:
        return True
