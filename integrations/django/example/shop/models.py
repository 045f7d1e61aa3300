"""Tables of the shop."""

from django.db import models


class Order(models.Model):
    """An order, and whether it is billed."""

    number = models.CharField(max_length=32, unique=True)
    amount = models.IntegerField()
    billed = models.BooleanField(default=False)
