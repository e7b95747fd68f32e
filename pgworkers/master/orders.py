"""The order that a worker is sent for a job that this host holds."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from pgworkers.master.held import Held
from pgworkers.process import frames
from pgworkers.worker.messages import Kind, Order

_encode = msgspec.json.Encoder().encode
_NULL = Raw(b"null")


def frame(held: Held) -> bytes:
    """As it goes into the worker's socket. The same job makes the same frame, whenever it is sent."""
    job, spec = held.claimed, held.spec
    order = Order(
        job.task,
        Raw(job.args.encode()),
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
    return frames.encode(Kind.ORDER, job.id, job.lease, _encode(order))
