"""ogive for asyncio: the same classes as in ``ogive``, with coroutines for methods."""

from ogive.client.admin import Admin
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.message_iterator import IncomingMessage
from ogive.client.consumer.pull_consumer import PullConsumer
from ogive.client.consumer.push_consumer import PushConsumer
from ogive.client.consumer.push_consumer import serve as run
from ogive.client.consumer.simple_consumer import SimpleConsumer
from ogive.client.producer import Producer
from ogive.client.transaction import Transaction

__all__ = [
    "Admin",
    "ConsumerConfig",
    "IncomingMessage",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SimpleConsumer",
    "Transaction",
    "run",
]
