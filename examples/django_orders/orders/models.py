"""An order, and whether its receipt was written."""

from django.db import models


class Order(models.Model):
    item = models.CharField(max_length=100)
    receipt = models.TextField(blank=True)
    is_thanked = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"order {self.pk}: {self.item}"
