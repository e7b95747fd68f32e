"""What a worker reads of an order once, and how it finds it again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pgworkers import App, Ctx
from pgworkers.worker import attempt
from pgworkers.worker.attempt import OrderTemplate, OrderTemplates
from pgworkers.worker.messages import JSON_NULL, Order, encode_order_header

app = App()


@app.task
def plain(number: int) -> None: ...


@app.task
def with_context(ctx: Ctx) -> None: ...


QUEUE_MEMORY = 1 << 20


def order(task: str = plain.name, **more: Any) -> Order:
    return msgspec.structs.replace(
        Order(
            task=task,
            queue="q",
            attempt=1,
            crashes=0,
            timeout=None,
            memory=None,
            checkpoint=JSON_NULL,
            meta=JSON_NULL,
            errors=[],
        ),
        **more,
    )


def test_the_same_head_is_read_once_and_the_arguments_are_what_is_behind_it() -> None:
    plans = OrderTemplates(app.tasks, QUEUE_MEMORY)
    first, args = plans.of(encode_order_header(order()) + b'{"number":1}')
    again, other = plans.of(encode_order_header(order()) + b'{"number":22}')
    assert first is again
    assert (args, other) == (b'{"number":1}', b'{"number":22}')
    assert plans.of(encode_order_header(order(attempt=2)) + b"{}")[0] is not first


def test_heads_that_are_seen_once_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "MAX_CACHED_TEMPLATES", 3)
    plans = OrderTemplates(app.tasks, QUEUE_MEMORY)
    for number in range(1, 20):
        plans.of(encode_order_header(order(attempt=number)) + b"{}")
        assert len(plans._known) <= 3


def test_the_nearer_deadline_holds() -> None:
    assert OrderTemplate(app.tasks, QUEUE_MEMORY, order()).deadline_at(100) == 0
    assert OrderTemplate(app.tasks, QUEUE_MEMORY, order(timeout=2.0)).deadline_at(100) == 2_000_000_100
    assert OrderTemplate(app.tasks, QUEUE_MEMORY, order(timeout=2.0, deadline=500)).deadline_at(100) == 500
    assert OrderTemplate(app.tasks, QUEUE_MEMORY, order(timeout=1e-7, deadline=500)).deadline_at(100) == 200
    assert OrderTemplate(app.tasks, QUEUE_MEMORY, order(deadline=500)).deadline_at(100) == 500
    assert OrderTemplate(app.tasks, QUEUE_MEMORY, order(timeout=-1.0)).deadline_at(100) == 100, (
        "at once, not before it began"
    )


def test_what_a_task_needs() -> None:
    assert not OrderTemplate(app.tasks, QUEUE_MEMORY, order()).takes_ctx
    assert OrderTemplate(app.tasks, QUEUE_MEMORY, order(with_context.name)).takes_ctx
    assert OrderTemplate(app.tasks, QUEUE_MEMORY, order("nobody knows it")).task is None
    assert (
        OrderTemplate(app.tasks, QUEUE_MEMORY, order()).memory_limit,
        OrderTemplate(app.tasks, QUEUE_MEMORY, order(memory=7)).memory_limit,
    ) == (1 << 20, 7)


@pytest.mark.parametrize(
    "body", [b"", b"\0\0", b"\4\0\0\0", b"\x05\0\0\0[", encode_order_header(order())[:9]]
)
def test_an_invalid_order_is_an_error(body: bytes) -> None:
    with pytest.raises(Exception, match=r".+"):
        OrderTemplates(app.tasks, QUEUE_MEMORY).of(body)
