"""Listeners of the shop: ``ogive run shop.listeners``."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import django

import ogive

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
django.setup()

# models can be imported after the setup only
from django.db import close_old_connections, transaction  # noqa: E402

from shop.models import Order  # noqa: E402


@contextmanager
def fresh_connections() -> Iterator[None]:
    """Do what Django does around a request: close connections that are too old or broken."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


@ogive.listener("Orders", group="billing", start="earliest")
@fresh_connections()
def bill(message: ogive.MessageExt) -> None:
    """Bill an order once, even if its message comes twice."""
    with transaction.atomic():
        order = Order.objects.select_for_update().get(number=message.text)
        if not order.billed:
            order.billed = True
            order.save()
            print(f"billed {order.number}: {order.amount}")
