"""Buying something: the order and its jobs exist together, or none of them."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse

from orders.models import Order
from orders.tasks import thank, write_receipt


def buy(request: HttpRequest, item: str) -> JsonResponse:
    with transaction.atomic():
        order = Order.objects.create(item=item)
        job = write_receipt.enqueue(order.pk)
        thanks = thank.enqueue(order.pk)
        if item == "unicorn":
            raise LookupError("sold out")  # rolls back the order and both jobs
    return JsonResponse({"order": order.pk, "job": job.id, "thanks": thanks.id})
