"""What a worker reads of an order once, and how it finds it again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from pgworkers import App, Ctx
from pgworkers.specs import QueueSpec
from pgworkers.worker import plan
from pgworkers.worker.messages import NULL, Order, head
from pgworkers.worker.plan import Plan, Plans

app = App()


@app.task
def plain(number: int) -> None: ...


@app.task
def with_context(ctx: Ctx) -> None: ...


BIRTH = cast("Any", SimpleNamespace(app=app, queue=QueueSpec("q", memory=1 << 20)))


def order(task: str = plain.name, **more: Any) -> Order:
    return msgspec.structs.replace(Order(task, "q", 1, 0, None, None, NULL, NULL, []), **more)


def test_the_same_head_is_read_once_and_the_arguments_are_what_is_behind_it() -> None:
    plans = Plans(BIRTH)
    first, args = plans.of(head(order()) + b'{"number":1}')
    again, other = plans.of(head(order()) + b'{"number":22}')
    assert first is again
    assert (args, other) == (b'{"number":1}', b'{"number":22}')
    assert plans.of(head(order(attempt=2)) + b"{}")[0] is not first


def test_heads_that_are_seen_once_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MOST", 3)
    plans = Plans(BIRTH)
    for attempt in range(1, 20):
        plans.of(head(order(attempt=attempt)) + b"{}")
        assert len(plans._known) <= 3


def test_the_nearer_deadline_holds() -> None:
    assert Plan(BIRTH, order()).due(100) == 0
    assert Plan(BIRTH, order(timeout=2.0)).due(100) == 2_000_000_100
    assert Plan(BIRTH, order(timeout=2.0, deadline=500)).due(100) == 500
    assert Plan(BIRTH, order(timeout=1e-7, deadline=500)).due(100) == 200
    assert Plan(BIRTH, order(deadline=500)).due(100) == 500
    assert Plan(BIRTH, order(timeout=-1.0)).due(100) == 100, "at once, not before it began"


def test_what_a_task_needs() -> None:
    assert not Plan(BIRTH, order()).takes_ctx
    assert Plan(BIRTH, order(with_context.name)).takes_ctx
    assert Plan(BIRTH, order("nobody knows it")).task is None
    assert (Plan(BIRTH, order()).memory, Plan(BIRTH, order(memory=7)).memory) == (1 << 20, 7)


@pytest.mark.parametrize("body", [b"", b"\0\0", b"\4\0\0\0", b"\x05\0\0\0[", head(order())[:9]])
def test_what_is_no_order_is_an_error(body: bytes) -> None:
    with pytest.raises(Exception, match=r".+"):
        Plans(BIRTH).of(body)
