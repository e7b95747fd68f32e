"""The order that a worker is sent for a job that this host holds."""

from __future__ import annotations

from msgspec import Raw

from pgworkers.master.held import Held
from pgworkers.process import frames
from pgworkers.specs import TaskSpec
from pgworkers.worker import messages
from pgworkers.worker.messages import Kind, Order

_ORDER = int(Kind.ORDER)
_NULL = Raw(b"null")

#: Of the last plain order of each task: the task, the queue, what else is known of the job, the text before its arguments.
#: Jobs of one task seldom differ in more than those.
_Last = tuple[TaskSpec, str, tuple[object, ...], bytes]
_last: dict[str, _Last] = {}


def frame(held: Held) -> bytes:
    """As it goes into the worker's socket. The same job makes the same frame, whenever it is sent."""
    job = held.claimed
    last = _last.get(job.task)
    if last is not None and last[0] is held.spec and last[1] == job.queue and last[2] == job[5:15]:
        head = last[3]
    else:
        head = messages.head(_order(held))
        if job.remaining is None and job.checkpoint is None and job.meta is None:
            _last[job.task] = held.spec, job.queue, job[5:15], head
    return frames.encode(_ORDER, job.id, job.lease, head + job.args.encode())


def _order(held: Held) -> Order:
    job, spec = held.claimed, held.spec
    return Order(
        job.task,
        job.queue,
        job.attempt,
        job.crashes,
        held.timeout(),
        job.memory if job.memory is not None else spec.memory,
        _NULL if job.checkpoint is None else Raw(job.checkpoint.encode()),
        _NULL if job.meta is None else Raw(job.meta.encode()),
        job.errors,
        spec.exclusive,
        spec.stall_timeout,
        held.deadline(),
    )
