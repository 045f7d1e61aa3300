"""Broadcasting: every member of a group gets every message."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ogive.client.config import ClientConfig
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.offset_store import read_offsets
from ogive.client.consumer.push_consumer import PushConsumer
from ogive.client.listener import DEAD_LETTER, LATER, AnyListener, later
from ogive.errors import IllegalStateError, InvalidOption
from ogive.model import MessageExt, MessageQueue
from ogive.testing.fake_broker import WAIT_S, FakeBroker
from ogive.wire.bodies.clients import HeartbeatData
from ogive.wire.codes import RequestCode
from tests.unit.client.consumer.test_push_consumer import (
    QUICK,
    RETRY,
    SEND_BACK,
    UPDATE,
    Seen,
    eventually,
    to,
)

ORDERS = [MessageQueue("Orders", "broker-a", i) for i in range(2)]


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 2, RETRY: 1}) as broker:
        for i in range(20):
            broker.put("Orders", b"%d" % i, queue_id=i % 2)
        yield broker


@pytest.fixture
def config(tmp_path: Path) -> ConsumerConfig:
    return replace(QUICK, offsets_dir=tmp_path)


def shown(function: Any, **settings: Any) -> AnyListener:
    return to(function, broadcast=True, **settings)


def member(
    broker: FakeBroker,
    one: AnyListener | str,
    config: ConsumerConfig,
    name: str | None = None,
    **settings: Any,
) -> PushConsumer:
    return PushConsumer(
        one,
        client=ClientConfig(name_server=broker.address, instance_name=name),
        config=config,
        **settings,
    )


def saved(config: ConsumerConfig) -> dict[MessageQueue, int]:
    assert config.offsets_dir is not None
    files = [*config.offsets_dir.glob("*/billing/offsets.json")]
    return read_offsets(files[0]) if files else {}


@pytest.mark.feature(10)
async def test_every_member_gets_every_message(broker: FakeBroker, config: ConsumerConfig) -> None:
    left, right = Seen(), Seen()
    async with (
        member(broker, shown(left), config, "left") as one,
        member(broker, shown(right), config, "right") as other,
    ):
        for seen in (left, right):
            assert sorted(await seen.wait(20), key=int) == [b"%d" % i for i in range(20)]
        await eventually(lambda: one.assignment == other.assignment == {"billing": ORDERS})
        assert set(await one.lag()) == set(ORDERS)


@pytest.mark.feature(30, 32)
async def test_what_the_heartbeat_says(broker: FakeBroker, config: ConsumerConfig) -> None:
    """Broadcasting, and no retry topic; nobody is asked who else is there, and no progress goes to
    the broker.
    """
    seen = Seen()
    async with member(broker, shown(seen), config):
        await seen.wait(20)
    data = HeartbeatData.decode(broker.of(RequestCode.HEART_BEAT)[0].body).consumers[0]
    assert (data.consume_type, data.message_model) == ("CONSUME_PASSIVELY", "BROADCASTING")
    assert [subscription.topic for subscription in data.subscriptions] == ["Orders"]
    assert (
        not broker.of(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        + broker.of(UPDATE)
        + broker.of(RequestCode.QUERY_CONSUMER_OFFSET)
    )


@pytest.mark.feature(30)
async def test_a_member_that_comes_back_goes_on_where_it_was(
    broker: FakeBroker, config: ConsumerConfig
) -> None:
    seen = Seen()
    async with member(broker, shown(seen), config):
        await seen.wait(20)
    assert saved(config) == dict.fromkeys(ORDERS, 10)
    broker.put("Orders", b"new")
    async with member(broker, shown(seen), config):
        await seen.wait(21)
    assert [seen.bodies.count(b"%d" % i) for i in range(20)] == [1] * 20


@pytest.mark.feature(178)
async def test_progress_is_saved_while_the_member_runs(
    broker: FakeBroker, config: ConsumerConfig
) -> None:
    """The lowest unfinished message counts."""
    free, seen = threading.Event(), Seen()

    def show(message: MessageExt) -> None:
        if message.body == b"4":
            free.wait(WAIT_S)
        seen(message)

    async with member(broker, shown(show), config):
        await seen.wait(19)
        await eventually(lambda: saved(config) == {ORDERS[0]: 2, ORDERS[1]: 10})
        free.set()
        await eventually(lambda: saved(config) == dict.fromkeys(ORDERS, 10))


@pytest.mark.feature(57)
@pytest.mark.parametrize(
    "answer", [LATER, later(3), DEAD_LETTER, "nonsense", ValueError("boom")], ids=str
)
async def test_what_failed_is_logged_and_dropped(
    broker: FakeBroker, config: ConsumerConfig, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()

    def show(message: MessageExt) -> Any:
        seen(message)
        if message.body == b"7" and isinstance(answer, Exception):
            raise answer
        return answer if message.body == b"7" else None

    async with member(broker, shown(show), config):
        await seen.wait(20)
        await eventually(lambda: saved(config) == dict.fromkeys(ORDERS, 10))
    assert len(seen.messages) == 20
    assert caplog.text.count("dropped Orders") == 1
    assert not broker.of(SEND_BACK) + broker.of(RequestCode.SEND_MESSAGE_V2)


@pytest.mark.feature(57)
async def test_of_a_batch_only_what_is_not_done_is_dropped(
    broker: FakeBroker, config: ConsumerConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """7 at a time of 10 in a queue: the last batch is shorter."""
    seen = Seen()

    def show(messages: list[MessageExt]) -> Any:
        for message in messages:
            seen(message)
        return later(done=2)

    async with member(broker, shown(show, batch=7), config):
        await seen.wait(20)
        await eventually(lambda: saved(config) == dict.fromkeys(ORDERS, 10))
    assert caplog.text.count("dropped Orders") == 2 * (5 + 1)


async def test_a_call_that_takes_too_long_holds_nothing_back(
    broker: FakeBroker, config: ConsumerConfig
) -> None:
    free, seen = threading.Event(), Seen()

    def show(message: MessageExt) -> None:
        if message.body == b"0":
            free.wait(WAIT_S)
        seen(message)

    async with member(broker, shown(show, consume_timeout_s=0.05), config):
        await eventually(lambda: saved(config) == dict.fromkeys(ORDERS, 10))
        free.set()
    assert not broker.of(SEND_BACK)


async def test_in_order_without_locks_and_over_the_limit_dropped(
    broker: FakeBroker, config: ConsumerConfig
) -> None:
    seen = Seen()

    def show(message: MessageExt) -> Any:
        seen(message)
        return LATER if message.body == b"4" else None

    async with member(broker, shown(show, orderly=True, max_retries=2, suspend_s=0.01), config):
        await seen.wait(22)
        await eventually(lambda: saved(config) == dict.fromkeys(ORDERS, 10))
    assert [int(m.body) for m in seen.messages if m.queue == ORDERS[0]] == [
        0,
        2,
        4,
        4,
        4,
        6,
        8,
        10,
        12,
        14,
        16,
        18,
    ]
    assert (
        not broker.of(RequestCode.LOCK_BATCH_MQ)
        + broker.of(RequestCode.UNLOCK_BATCH_MQ)
        + broker.of(RequestCode.SEND_MESSAGE_V2)
    )


async def test_iteration(broker: FakeBroker, config: ConsumerConfig) -> None:
    async with (
        asyncio.timeout(WAIT_S),
        member(
            broker, "Orders", config, group="billing", start="earliest", broadcast=True
        ) as running,
    ):
        for _ in range(20):
            async with (await anext(running)).process():
                raise ValueError("dropped")
        await eventually(lambda: saved(config) == dict.fromkeys(ORDERS, 10))


async def test_two_members_with_one_name_are_refused(
    broker: FakeBroker, config: ConsumerConfig
) -> None:
    """They would overwrite each other's progress."""
    async with member(broker, shown(Seen()), config):
        with pytest.raises(IllegalStateError, match="instance_name"):
            async with member(broker, shown(Seen()), config):
                pass


def test_a_group_is_broadcasting_or_not() -> None:
    with pytest.raises(InvalidOption, match="one or the other"):
        PushConsumer(shown(print), to(print, topic="Refunds"))
