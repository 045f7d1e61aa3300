"""What type checkers must understand: this file is checked by mypy --strict with all others, and
run by nobody.
"""

from dataclasses import dataclass
from typing import assert_type

import ogive
from ogive import aio


@dataclass
class Order:
    id: str


def dump(order: Order) -> bytes:
    return order.id.encode()


def sends(anything: ogive.Producer) -> None:
    assert_type(anything, ogive.Producer[bytes])
    assert_type(ogive.Producer(), ogive.Producer[bytes])
    orders = ogive.Producer(serializer=dump)
    assert_type(orders, ogive.Producer[Order])
    orders.send("Orders", Order("1"))
    orders.send("Orders", b"1")  # type: ignore[arg-type]  # the point
    anything.send("Orders", Order("1"))  # type: ignore[arg-type]  # the point
    named: ogive.Producer[Order] = ogive.Producer(serializer=ogive.to_json)
    named.send_batch("Orders", [Order("1"), ogive.Message("Orders", b"1")])
    assert_type(aio.Producer(serializer=dump), aio.Producer[Order])


@ogive.listener("Orders", group="billing", as_=Order)
def bill(order: Order, message: ogive.MessageExt) -> None:
    assert_type(order.id, str)


@ogive.listener("Orders", group="dispatch")
async def dispatch(message: ogive.MessageExt) -> ogive.ConsumeResult:
    return ogive.LATER if message.body else None


@ogive.listener("Orders", group="archive", orderly=True)
def archive(message: ogive.MessageExt) -> ogive.Reply:
    return ogive.Reply(message.body)


# the point: it would count as failed
@ogive.listener("Orders", group="wrong")  # type: ignore[type-var]
def confirmed(message: ogive.MessageExt) -> bool:
    return bool(message.body)


def hands_on(listeners: list[ogive.Listener]) -> ogive.PushConsumer:
    return ogive.PushConsumer(*listeners, bill)


def calls() -> None:
    hands_on([bill])
    bill(Order("1"), "no message")  # type: ignore[arg-type]  # the point
