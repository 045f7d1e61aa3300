"""A FastStream broker for each test, on a broker of RocketMQ for all of them."""

import itertools
from collections.abc import AsyncIterator

import pytest

from ogive.testing import RocketMQ
from ogive_faststream import RocketMQBroker

_numbers = itertools.count(1)


@pytest.fixture
def topic(rocketmq: RocketMQ) -> str:
    """A new topic with one queue. Its name is also that of a group."""
    name = f"Topic{next(_numbers)}"
    rocketmq.admin.create_topic(name, queues=1)
    return name


@pytest.fixture
async def broker(rocketmq: RocketMQ) -> AsyncIterator[RocketMQBroker]:
    """A broker that is not started; it is stopped after the test."""
    made = RocketMQBroker(rocketmq.name_server, logger=None)
    yield made
    await made.stop()
