"""What orders with the same head have in common: read once, then used by every job that has it."""

from __future__ import annotations

from typing import Any

from pgworkers.clock import MAX_SECONDS
from pgworkers.errors import UsageError
from pgworkers.task import Task
from pgworkers.worker.birth import Birth
from pgworkers.worker.messages import Order, parted, read_head

#: So many are kept; heads that hold a checkpoint, a trace or a deadline are seen once.
MOST = 100


class Plan:
    """An order but for its arguments, in the units of the scoreboard."""

    __slots__ = ("deadline", "exclusive", "memory", "order", "stall", "takes_ctx", "task", "timeout")

    def __init__(self, birth: Birth, order: Order) -> None:
        self.order = order
        self.task: Task[..., Any] | None = birth.app.tasks.get(order.task)
        self.takes_ctx = _takes_ctx(self.task)
        self.memory = order.memory or birth.queue.memory or 0
        self.deadline = order.deadline
        self.timeout = None if order.timeout is None else int(min(max(0.0, order.timeout), MAX_SECONDS) * 1e9)
        self.stall = int(order.stall_timeout * 1e9) if order.stall_timeout else 0
        self.exclusive = int(order.exclusive)

    def due(self, now: int) -> int:
        """The deadline of an attempt that begins now; 0: none."""
        if self.timeout is None:
            return self.deadline
        own = now + self.timeout
        return min(self.deadline, own) if self.deadline else own


class Plans:
    def __init__(self, birth: Birth) -> None:
        self._birth = birth
        self._known: dict[bytes, Plan] = {}

    def of(self, body: bytes) -> tuple[Plan, bytes]:
        """The plan and the arguments of an order. Raises what makes it unreadable."""
        head, args = parted(body)
        plan = self._known.get(head)
        return (self._learn(head) if plan is None else plan), args

    def _learn(self, head: bytes) -> Plan:
        if len(self._known) >= MOST:
            self._known.clear()
        plan = self._known[head] = Plan(self._birth, read_head(head))
        return plan


def _takes_ctx(task: Task[..., Any] | None) -> bool:
    try:
        return task is not None and task.arguments.reserved is not None
    except UsageError:
        return False  # the call will say what is wrong with it
