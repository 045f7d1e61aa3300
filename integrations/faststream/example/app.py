"""Paid orders become bills: a FastStream application over RocketMQ.

In two shells, from the folder of this file:

    ogive up
    faststream run app:app
"""

import os

from faststream import FastStream
from pydantic import BaseModel

from ogive_faststream import RocketMQBroker, RocketMQMessage

broker = RocketMQBroker(os.environ.get("NAME_SERVER", "127.0.0.1:9876"))
app = FastStream(broker)


class Order(BaseModel):
    """What a customer bought."""

    number: str
    amount: int


class Bill(BaseModel):
    """What a customer pays."""

    order: str
    amount: int


# an error has the order delivered again, five times, and then moved to the topic %DLQ%billing
@broker.subscriber("Orders", group="billing", tags="paid", start="earliest", max_retries=5)
@broker.publisher("Bills")
async def bill(order: Order, message: RocketMQMessage) -> Bill:
    """Make a bill, which is published to Bills."""
    print(f"order {order.number}, try {message.raw_message.reconsume_times + 1}")
    return Bill(order=order.number, amount=order.amount)


@broker.subscriber("Bills", group="printing", start="earliest")
async def show(bill: Bill) -> None:
    """Print a bill."""
    print(f"bill for order {bill.order}: {bill.amount}")


@app.after_startup
async def sell() -> None:
    """Publish an order when the application has started."""
    await broker.publish(Order(number="4711", amount=20), "Orders", tag="paid", keys="4711")
