"""The jobs of the project, and the code that enqueues them."""

from __future__ import annotations

from django.db import transaction

from orders.models import Order
from pgworkers import App

app = App(dsn="host=the.database.of.the.developer")
app.queue("default", workers=2)


@app.task
def confirm(order_id: int) -> str:
    order = Order.objects.get(id=order_id)
    order.is_confirmed = True
    order.save()
    return order.customer


@transaction.atomic
def place_order(customer: str) -> Order:
    """What a view does. The job is enqueued when the order is committed."""
    order = Order.objects.create(customer=customer)
    transaction.on_commit(lambda: confirm.enqueue(order.id))
    return order
