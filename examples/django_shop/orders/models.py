"""One table."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    customer = models.EmailField()
    is_confirmed = models.BooleanField(default=False)

    class Meta:
        app_label = "orders"
