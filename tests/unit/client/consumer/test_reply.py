"""Listeners that answer requests: where the reply goes, and what becomes of the request."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

import ogive
from ogive.client.consumer.outcome import Failure, judge
from ogive.client.listener import Reply, listener
from ogive.errors import MessageIllegal, ResponseCode
from ogive.model import MessageExt
from ogive.testing.fake_broker import HANG_UP, FakeBroker, error, ok
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import decode_header
from ogive.wire.headers.send import SendReplyMessageRequestV2
from ogive.wire.message import decode_properties, encode_properties
from tests.unit.client.consumer.test_process_queue import message
from tests.unit.client.consumer.test_push_consumer import (
    RETRY,
    consumer,
    eventually,
    progress,
    rounds,
    to,
)

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
SEND_REPLY = RequestCode.SEND_REPLY_MESSAGE_V2
SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
REQUEST = {
    "CORRELATION_ID": "c-1",
    "REPLY_TO_CLIENT": "asker@1",
    "TTL": "3000",
    "CLUSTER": "DefaultCluster",
    "TAGS": "menu",
}


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 1, RETRY: 1, REPLY_TOPIC: 1}) as broker:
        broker.on(SEND_REPLY, ok())
        yield broker


def ask(broker: FakeBroker, **changed: str) -> None:
    broker.put("Orders", b"espresso", properties=encode_properties(REQUEST | changed))


def reply_of(request: RemotingCommand) -> tuple[SendReplyMessageRequestV2, dict[str, str]]:
    header = decode_header(SendReplyMessageRequestV2, request.ext_fields)
    return header, decode_properties((header.properties or "").encode())


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_what_a_listener_replies_goes_to_the_reply_topic_of_the_cluster(
    broker: FakeBroker, kind: str
) -> None:
    def price(request: MessageExt) -> ogive.Reply:
        return ogive.Reply(
            b"2.20 for " + request.body, tag="price", keys=("k",), properties={"currency": "EUR"}
        )

    async def price_later(request: MessageExt) -> ogive.Reply:
        return price(request)

    ask(broker)
    async with consumer(broker, to(price if kind == "plain" else price_later)):
        [request] = await broker.received(SEND_REPLY)
        await eventually(lambda: progress(broker) == 1)
    header, properties = reply_of(request)
    assert (request.body, header.topic, header.queue_id, header.broker_name) == (
        b"2.20 for espresso",
        REPLY_TOPIC,
        0,
        "broker-a",
    )
    assert len(properties.pop("UNIQ_KEY")) == 32
    assert properties == {
        "MSG_TYPE": "reply",
        "CORRELATION_ID": "c-1",
        "REPLY_TO_CLIENT": "asker@1",
        "TTL": "3000",
        "TAGS": "price",
        "KEYS": "k",
        "currency": "EUR",
    }


async def test_a_request_counts_as_finished_once_its_reply_is_out(broker: FakeBroker) -> None:
    broker.hold(SEND_REPLY)
    ask(broker)
    broker.put("Orders", b"no request")
    seen: list[bytes] = []

    async def price(request: MessageExt) -> Reply | None:
        seen.append(request.body)
        return Reply(b"2.20") if request.tag == "menu" else None

    async with consumer(broker, to(price)):
        await broker.received(SEND_REPLY)
        await eventually(lambda: len(seen) == 2)
        await rounds(broker)
        assert progress(broker) in (None, 0)
        broker.release(SEND_REPLY)
        await eventually(lambda: progress(broker) == 2)


async def test_a_close_waits_for_replies_on_their_way(broker: FakeBroker) -> None:
    broker.hold(SEND_REPLY)
    ask(broker)
    running = consumer(broker, to(lambda _: Reply(b"2.20")))
    await running.start()
    await broker.received(SEND_REPLY)
    closing = asyncio.create_task(running.close())
    finished, _ = await asyncio.wait((closing,), timeout=0.3)
    assert not finished
    broker.release(SEND_REPLY)
    await closing
    assert progress(broker) == 1


async def test_a_reply_that_nobody_takes_is_logged_and_the_request_is_not_repeated(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.on(
        SEND_REPLY,
        error(
            ResponseCode.SYSTEM_ERROR, "push reply message fail, channel of <asker@1> not found."
        ),
    )
    ask(broker)
    async with consumer(broker, to(lambda _: Reply(b"2.20"))):
        await eventually(lambda: progress(broker) == 1)
    assert "lost the reply to Orders/broker-a/0/0, request c-1" in caplog.text
    assert "channel of <asker@1> not found" in caplog.text
    assert broker.of(SEND_BACK) == []


async def test_another_broker_brings_the_reply_when_the_first_cannot(broker: FakeBroker) -> None:
    async with FakeBroker({REPLY_TOPIC: 2}, name="broker-b") as other:
        broker.peers.append(other)
        broker.on(SEND_REPLY, error(ResponseCode.SYSTEM_ERROR, "channel not found"))
        other.on(SEND_REPLY, ok())
        ask(broker)
        async with consumer(broker, to(lambda _: Reply(b"2.20"))):
            [request] = await other.received(SEND_REPLY)
            await eventually(lambda: progress(broker) == 1)
        assert (len(broker.of(SEND_REPLY)), reply_of(request)[0].broker_name) == (1, "broker-b")


async def test_a_reply_of_unknown_fate_is_not_sent_twice(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeBroker({REPLY_TOPIC: 1}, name="broker-b") as other:
        broker.peers.append(other)
        broker.script(SEND_REPLY, HANG_UP)
        ask(broker)
        async with consumer(broker, to(lambda _: Reply(b"2.20"))):
            await eventually(
                lambda: "lost the reply to Orders/broker-a/0/0, request c-1" in caplog.text
            )
        assert other.of(SEND_REPLY) == []


@pytest.mark.parametrize("missing", ["CORRELATION_ID", "REPLY_TO_CLIENT", "CLUSTER"])
async def test_a_reply_to_what_is_no_request_is_dropped(
    broker: FakeBroker, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    ask(broker, **{missing: ""})
    async with consumer(broker, to(lambda _: Reply(b"2.20"))):
        await eventually(lambda: progress(broker) == 1)
    assert f"which is not a request: its properties lack {missing}" in caplog.text
    assert broker.of(SEND_REPLY) == []


async def test_a_cluster_without_a_reply_topic_loses_the_reply_and_nothing_else(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    ask(broker, CLUSTER="Elsewhere")
    async with consumer(broker, to(lambda _: Reply(b"2.20"))):
        await eventually(lambda: progress(broker) == 1)
    assert 'topic "Elsewhere_REPLY_TOPIC" has no route' in caplog.text


@pytest.mark.parametrize("settings", [{"orderly": True}, {"batch": 2}])
def test_orderly_and_batch_listeners_cannot_reply(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Whom would a batch answer? And an order of messages is no place to wait for whoever asked."""
    one = listener("Orders", group="billing", **settings)(print)
    with caplog.at_level(logging.ERROR):
        assert judge(one, [message(0)], Reply(b"2.20")) == Failure()
    assert "which is not a result of" in caplog.text


def test_a_reply_that_no_broker_would_carry_is_refused_where_it_is_made() -> None:
    with pytest.raises(MessageIllegal, match="reserved"):
        Reply(b"", properties={"CORRELATION_ID": "mine"})
    with pytest.raises(TypeError):
        Reply("2.20")  # type: ignore[arg-type]
