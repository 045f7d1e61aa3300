"""Messages with a priority, from the producer to the request."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from ogive import aio
from ogive.errors import InvalidOption, MessageIllegal
from ogive.model import Message
from ogive.testing.fake_broker import FakeBroker, message
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.message import decode_properties

SEND = RequestCode.SEND_MESSAGE_V2


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 1}) as broker:
        yield broker


def priority_of(request: RemotingCommand) -> str | None:
    return decode_properties(request.ext_fields["i"].encode()).get("_SYS_MSG_PRIORITY_")


async def test_each_way_to_send_carries_the_priority(broker: FakeBroker) -> None:
    async with aio.Producer(broker.address) as producer:
        await producer.send("Orders", b"1", priority=3)
        await (await producer.submit("Orders", b"2", priority=0))
        await producer.send(Message("Orders", b"3", priority=7))
        await producer.send("Orders", b"4")
    assert [priority_of(request) for request in broker.of(SEND)] == ["3", "0", "7", None]


async def test_they_share_no_request(broker: FakeBroker) -> None:
    """Brokers choose one queue for a batch, and not by the priority."""
    async with aio.Producer(broker.address) as producer:
        broker.hold(SEND)
        plain = [await producer.submit("Orders", b"%d" % i) for i in range(8)]
        urgent = [await producer.submit("Orders", b"u%d" % i, priority=9) for i in range(8)]
        whole = [Message("Orders", b"m%d" % i, priority=9) for i in range(8)]
        urgent += [await producer.submit(one) for one in whole]
        await broker.received(SEND)
        broker.release(SEND)
        for handle in plain + urgent:
            await handle
        with pytest.raises(InvalidOption, match="a priority cannot be sent in a batch"):
            await producer.send_batch("Orders", [Message("Orders", b"x", priority=1)])
        with pytest.raises(InvalidOption, match="a priority cannot be transactional"):
            producer.transaction(Message("Orders", b"x", priority=1))
    assert [priority_of(request) for request in broker.of(SEND)].count("9") == 16


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"priority": -1}, "priority is -1: must be between 0 and"),
        ({"priority": 1 << 31}, "must be between 0 and"),
        ({"priority": 1, "sharding_key": "k"}, "neither a delay nor a sharding key"),
        ({"priority": 1, "delay_level": 1}, "neither a delay nor a sharding key"),
        ({"priority": 1, "deliver_at": datetime.now(UTC)}, "neither a delay nor a sharding key"),
    ],
)
def test_a_priority_that_brokers_would_ignore_is_refused(how: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        Message("Orders", b"x", **how)
    with pytest.raises(TypeError, match="priority must be int, not str"):
        Message("Orders", b"x", priority="high")  # type: ignore[arg-type]
    with pytest.raises(MessageIllegal, match="_SYS_MSG_PRIORITY_' is reserved"):
        Message("Orders", b"x", properties={"_SYS_MSG_PRIORITY_": "1"})


@pytest.mark.parametrize(
    ("text", "priority"), [("7", 7), ("", None), ("-1", None), ("1" * 11, None), ("high", None)]
)
def test_a_received_message_shows_its_priority(text: str, priority: int | None) -> None:
    received = message("Orders", b"x", properties={"_SYS_MSG_PRIORITY_": text})
    assert received.priority == priority
