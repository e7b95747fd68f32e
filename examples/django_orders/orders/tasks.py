"""Two jobs of an order: one is a task of pgworkers, the other one of `django.tasks`."""

from orders.models import Order
from pgworkers.django import app

try:
    from django.tasks import task
except ImportError:  # before Django 6
    from django_tasks import task


@app.task(retries=3, timeout="1m")
def write_receipt(order_id: int) -> str:
    order = Order.objects.get(pk=order_id)
    receipt = f"Receipt for {order.item}"
    Order.objects.filter(pk=order_id).update(receipt=receipt)
    return receipt


@task(queue_name="mail", priority=10)
def thank(order_id: int) -> str:
    Order.objects.filter(pk=order_id).update(is_thanked=True)
    return f"thanked for order {order_id}"
