"""The service on a broker in the test's own event loop."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ogive.access.user_table import AccessTable
from ogive.broker import Broker, BrokerConfig
from ogive.proxy.calls import Method
from ogive.proxy.service import build
from ogive.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from tests.unit.proxy.sdk import Sdk

StartBroker = Callable[..., Awaitable[Broker]]


@pytest.fixture
async def start_broker(tmp_path: Path) -> AsyncIterator[StartBroker]:
    """Starts a broker with topics T (NORMAL), F (FIFO), D (DELAY), X (TRANSACTION), M (MIXED)."""
    started: list[Broker] = []

    async def start(access: AccessTable | None = None, **settings: Any) -> Broker:
        defaults: dict[str, Any] = {"data": tmp_path / "store", "port": 0, "segment_bytes": 1 << 20}
        broker = Broker(BrokerConfig(**(defaults | settings)), access=access)
        await broker.start()
        started.append(broker)
        types = {"F": "FIFO", "D": "DELAY", "X": "TRANSACTION", "M": "MIXED"}
        for name in ("T", *types):
            make_topic(broker, name, types.get(name, "NORMAL"))
        broker.context.groups.create_or_update(SubscriptionGroupConfig(name="g"))
        return broker

    yield start
    for broker in started:
        await broker.stop()


def make_topic(broker: Broker, name: str, message_type: str = "", queues: int = 4) -> None:
    attributes = {"message.type": message_type} if message_type else {}
    broker.context.topics.create_or_update(
        TopicConfig(name=name, read_queues=queues, write_queues=queues, attributes=attributes)
    )


@pytest.fixture
async def broker(start_broker: StartBroker) -> Broker:
    return await start_broker()


@pytest.fixture
async def methods(broker: Broker) -> Mapping[str, Method]:
    return build(broker).methods()


@pytest.fixture
def sdk(methods: Mapping[str, Method]) -> Sdk:
    return Sdk(methods)
