"""Orders: a row, and a message once the row is committed."""

import functools
import sys
from functools import partial

import django
from django.conf import settings
from django.db import transaction

import ogive


@functools.cache
def producer() -> ogive.Producer:
    """Return the producer of this process. Call after a fork, not before."""
    made = ogive.Producer(settings.NAME_SERVER)
    made.start()
    return made


def send(number: str) -> None:
    producer().send("Orders", number.encode(), keys=number)


def place_order(number: str, amount: int) -> None:
    """Store an order, and send it if the transaction around this commits."""
    from shop.models import Order

    with transaction.atomic():
        Order.objects.create(number=number, amount=amount)
        transaction.on_commit(partial(send, number))


if __name__ == "__main__":
    django.setup()
    place_order(sys.argv[1], int(sys.argv[2]))
