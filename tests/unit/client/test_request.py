"""Requests: what goes over the wire, how the reply finds its way, and how each request ends within
its time.
"""

import asyncio
import gc
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ogive.client import broker_requests as replies_module
from ogive.client.config import ClientConfig, ProducerConfig
from ogive.client.instance import ClientInstance
from ogive.client.producer import Producer
from ogive.errors import (
    IllegalStateError,
    MessageIllegal,
    NoRoute,
    ProtocolError,
    ReplyTimeout,
    ResponseCode,
    SendFailed,
    TooManyRequests,
)
from ogive.model import Message
from ogive.testing.fake_broker import SILENT, WAIT_S, FakeBroker, error
from ogive.transport.connection import Connection
from ogive.wire.bodies.clients import HeartbeatData
from ogive.wire.codes import RequestCode, SysFlag
from ogive.wire.command import RemotingCommand
from ogive.wire.compression import compress
from ogive.wire.headers.codec import decode_header, encode_header
from ogive.wire.headers.send import PushReplyMessageRequest, SendMessageRequestV2
from ogive.wire.message import decode_properties

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE
HEARTBEAT = RequestCode.HEART_BEAT
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


class ReplyingBroker(FakeBroker):
    """Also remembers by which connection each client sends heartbeats, and pushes replies there."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.clients: dict[str, Connection] = {}

    def _heartbeat(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.clients[HeartbeatData.decode(request.body).client_id] = connection
        return super()._heartbeat(connection, request)

    async def asked(self, count: int = 1) -> list[dict[str, str]]:
        """The properties of the requests, once there are *count*."""
        return [properties_of(request) for request in await self.received(SEND, count)]

    async def push(
        self, properties: dict[str, str], body: bytes = b"2.20", *, sys_flag: int = 0, **own: str
    ) -> RemotingCommand:
        """Bring a reply to the request with *properties*; returns the client's answer."""
        text = "".join(
            f"{name}\x01{value}\x02"
            for name, value in (properties | {"MSG_TYPE": "reply"} | own).items()
        )
        header = PushReplyMessageRequest(
            producer_group="CLIENT_INNER_PRODUCER",
            topic=REPLY_TOPIC,
            queue_id=0,
            sys_flag=sys_flag,
            born_timestamp=1_700_000_000_000,
            flag=0,
            properties=text,
            reconsume_times=0,
            unit_mode=False,
            born_host="127.0.0.1:50000",
            store_host=self.address,
            store_timestamp=1_700_000_000_001,
        )
        connection = self.clients[properties["REPLY_TO_CLIENT"]]
        return await connection.call(
            RemotingCommand(header.code, encode_header(header), body), WAIT_S
        )


def properties_of(request: RemotingCommand) -> dict[str, str]:
    return decode_properties(
        (decode_header(SendMessageRequestV2, request.ext_fields).properties or "").encode()
    )


@pytest.fixture
async def broker() -> AsyncIterator[ReplyingBroker]:
    async with ReplyingBroker({"Prices": 1, REPLY_TOPIC: 1}) as broker:
        yield broker


@asynccontextmanager
async def asking(broker: FakeBroker, **settings: Any) -> AsyncIterator[Producer]:
    async with Producer(
        broker.address, config=ProducerConfig(send_timeout_s=WAIT_S, **settings)
    ) as producer:
        yield producer


async def test_a_request_is_a_message_with_three_properties_and_gets_its_reply(
    broker: ReplyingBroker,
) -> None:
    async with asking(broker) as producer:
        request = asyncio.create_task(
            producer.request(
                "Prices", b"espresso", tag="menu", keys="k", properties={"size": "XL"}, timeout_s=4
            )
        )
        [properties] = await broker.asked()
        assert not request.done()
        answer = await broker.push(properties, tag="x", UNIQ_KEY="AB12", currency="EUR")
        reply = await request
        assert (properties["TAGS"], properties["KEYS"], properties["size"]) == ("menu", "k", "XL")
        assert re.fullmatch(
            r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}",
            properties["CORRELATION_ID"],
        )
        assert properties["REPLY_TO_CLIENT"] == producer.client.client_id
        assert 3000 < int(properties["TTL"]) <= 4000  # milliseconds
        assert answer.code == ResponseCode.SUCCESS
        assert (reply.topic, reply.body, reply.id, reply.properties["currency"]) == (
            REPLY_TOPIC,
            b"2.20",
            "AB12",
            "EUR",
        )
        assert reply.properties["CORRELATION_ID"] == properties["CORRELATION_ID"]
        assert int(reply.properties["ARRIVE_TIME"]) > 1_700_000_000_000
        assert len(producer.client.requests.replies) == 0


async def test_a_message_object_may_be_a_request(broker: ReplyingBroker) -> None:
    async with asking(broker) as producer:
        request = asyncio.create_task(
            producer.request(Message("Prices", b"espresso", tag="menu", sharding_key="7"))
        )
        [properties] = await broker.asked()
        await broker.push(properties)
        assert ((await request).body, properties["TAGS"], properties["__SHARDINGKEY"]) == (
            b"2.20",
            "menu",
            "7",
        )


async def test_the_brokers_that_replies_may_come_from_know_the_client_before_it_asks(
    broker: ReplyingBroker,
) -> None:
    """The topic lives on one broker only, the cluster's reply topic on two."""
    async with ReplyingBroker({REPLY_TOPIC: 1}, name="broker-b") as other:
        broker.peers.append(other)
        async with asking(broker) as producer:
            request = asyncio.create_task(producer.request("Prices", b"espresso"))
            [properties] = await broker.asked()
            order = [r.code for r in broker.requests if r.code in (HEARTBEAT, SEND)]
            assert (order[0], len(other.of(HEARTBEAT)) > 0) == (HEARTBEAT, True)
            assert HeartbeatData.decode(other.of(HEARTBEAT)[0].body).producers == (
                "ogive-producer",
            )
            await other.push(properties)
            assert (await request).body == b"2.20"
            beats, routes = (
                len(broker.of(HEARTBEAT)),
                len(broker.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)),
            )
            again = asyncio.create_task(producer.request("Prices", b"latte"))
            await broker.push((await broker.asked(2))[1])
            await again
            assert (
                len(broker.of(HEARTBEAT)),
                len(broker.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)),
            ) == (beats, routes)


async def test_a_broker_that_hangs_does_not_hold_up_a_request_to_another(
    broker: ReplyingBroker,
) -> None:
    async with ReplyingBroker({REPLY_TOPIC: 1}, name="broker-b") as other:
        other.on(HEARTBEAT, SILENT)
        broker.peers.append(other)
        async with asking(broker) as producer:
            request = asyncio.create_task(producer.request("Prices", b"espresso", timeout_s=3.0))
            [properties] = await broker.asked()
            await broker.push(properties)
            assert (await request).body == b"2.20"


async def test_a_topic_that_its_first_message_creates_may_be_asked() -> None:
    async with ReplyingBroker({"TBW102": 4, REPLY_TOPIC: 1}) as broker, asking(broker) as producer:
        request = asyncio.create_task(producer.request("Fresh", b"espresso"))
        [properties] = await broker.asked()
        await broker.push(properties)
        assert (await request).body == b"2.20"


async def test_without_a_reply_topic_requests_are_sent_all_the_same() -> None:
    async with ReplyingBroker({"Prices": 1}) as broker, asking(broker) as producer:
        request = asyncio.create_task(producer.request("Prices", b"espresso"))
        await broker.push((await broker.asked())[0])
        assert (await request).body == b"2.20"


async def test_replies_find_their_requests_in_any_order(broker: ReplyingBroker) -> None:
    """More of them than a client carries out requests of brokers at a time."""
    async with asking(broker) as producer:
        requests = [asyncio.create_task(producer.request("Prices", b"%d" % i)) for i in range(400)]
        await broker.received(SEND, 400)
        questions = {
            properties_of(request)["CORRELATION_ID"]: request for request in broker.of(SEND)
        }
        pushes = [
            broker.push(properties_of(request), b"re " + request.body)
            for request in reversed(questions.values())
        ]
        assert {answer.code for answer in await asyncio.gather(*pushes)} == {ResponseCode.SUCCESS}
        assert [(await request).body for request in requests] == [b"re %d" % i for i in range(400)]


async def test_requests_with_a_sharding_key_do_not_travel_in_batches(
    broker: ReplyingBroker,
) -> None:
    """Batched messages do not carry the cluster's name, and nobody could answer them."""
    async with asking(broker) as producer:
        first = asyncio.create_task(producer.request("Prices", b"0", sharding_key="7"))
        await broker.push((await broker.asked())[0])
        await first
        broker.hold(SEND)
        requests = [
            asyncio.create_task(producer.request("Prices", b"%d" % i, sharding_key="7"))
            for i in range(1, 6)
        ]
        # and the others wait behind it
        await broker.received(SEND, 2)
        broker.release(SEND)
        for properties in (await broker.asked(6))[1:]:
            await broker.push(properties)
        assert len([await request for request in requests]) == 5
        assert broker.of(BATCH) == []


async def test_no_reply_in_time_is_an_error_that_names_the_request(broker: ReplyingBroker) -> None:
    async with asking(broker) as producer:
        with pytest.raises(ReplyTimeout) as caught:
            await producer.request("Prices", b"espresso", timeout_s=1.0)
        [properties] = await broker.asked()
        assert caught.value.correlation_id == properties["CORRELATION_ID"]
        assert caught.value.outcome_unknown
        key = properties["UNIQ_KEY"]
        assert str(caught.value) == (
            f"no reply to request {properties['CORRELATION_ID']} to Prices within 1.0 s: it is "
            f"stored (id {key}), "
            "and it may or may not be carried out"
        )
        assert len(producer.client.requests.replies) == 0


async def test_a_late_reply_is_dropped_and_the_broker_is_satisfied(
    broker: ReplyingBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with asking(broker) as producer:
        with pytest.raises(ReplyTimeout):
            await producer.request("Prices", b"espresso", timeout_s=0.5)
        [properties] = await broker.asked()
        with caplog.at_level(logging.DEBUG, "ogive.client.broker_requests"):
            assert (await broker.push(properties)).code == ResponseCode.SUCCESS
    assert f"nobody waits for the reply to request {properties['CORRELATION_ID']}" in caplog.text


async def test_a_send_without_an_answer_is_waited_for_and_then_of_unknown_fate(
    broker: ReplyingBroker,
) -> None:
    broker.script(SEND, SILENT)
    async with asking(broker, retries=0) as producer:
        with pytest.raises(
            ReplyTimeout, match="did not confirm it, so it may or may not be stored"
        ):
            await producer.request("Prices", b"espresso", timeout_s=0.5)
        broker.hold(SEND)
        request = asyncio.create_task(producer.request("Prices", b"latte"))
        # its broker stored it, and the consumer was quicker than the answer
        await broker.push((await broker.asked(2))[1])
        assert (await request).body == b"2.20"
        broker.release(SEND)


async def test_a_request_that_is_not_stored_fails_at_once(broker: ReplyingBroker) -> None:
    async with asking(broker) as producer:
        broker.script(SEND, error(ResponseCode.MESSAGE_ILLEGAL, "no"))
        with pytest.raises(MessageIllegal):
            await producer.request("Prices", b"espresso")
        with pytest.raises(NoRoute):
            await producer.request("Pirces", b"espresso")
        assert len(producer.client.requests.replies) == 0


async def test_closing_the_producer_ends_its_requests_and_no_others(broker: ReplyingBroker) -> None:
    async with ClientInstance(ClientConfig(name_server=broker.address)) as client:
        first, second = (
            Producer(client=client, group="first"),
            Producer(client=client, group="second"),
        )
        await first.start()
        await second.start()
        ended = asyncio.create_task(first.request("Prices", b"1", timeout_s=WAIT_S))
        goes_on = asyncio.create_task(second.request("Prices", b"2", timeout_s=WAIT_S))
        await broker.received(SEND, 2)
        await first.close()
        with pytest.raises(IllegalStateError, match="closed before the reply came"):
            await ended
        await broker.push(
            next(properties_of(request) for request in broker.of(SEND) if request.body == b"2")
        )
        assert (await goes_on).body == b"2.20"
        await second.close()


async def test_a_cancelled_request_leaves_nothing_behind(broker: ReplyingBroker) -> None:
    async with asking(broker) as producer:
        request = asyncio.create_task(producer.request("Prices", b"espresso"))
        [properties] = await broker.asked()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert (len(producer.client.requests.replies), (await broker.push(properties)).code) == (
            0,
            ResponseCode.SUCCESS,
        )


async def test_waiting_requests_are_bounded(
    broker: ReplyingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies_module, "MAX_WAITING", 1)
    async with asking(broker) as producer:
        request = asyncio.create_task(producer.request("Prices", b"1"))
        [properties] = await broker.asked()
        with pytest.raises(TooManyRequests, match="this one was not sent"):
            await producer.request("Prices", b"2")
        await broker.push(properties)
        assert ((await request).body, len(broker.of(SEND))) == (b"2.20", 1)


async def test_a_compressed_reply_is_inflated(broker: ReplyingBroker) -> None:
    body, bits = compress(b"espresso " * 1000)
    async with asking(broker) as producer:
        request = asyncio.create_task(producer.request("Prices", b"menu"))
        await broker.push((await broker.asked())[0], body, sys_flag=bits)
        reply = await request
    assert (reply.body, reply.is_compressed) == (b"espresso " * 1000, False)


async def test_a_reply_that_cannot_be_read_ends_its_request_and_the_broker_hears_of_it(
    broker: ReplyingBroker,
) -> None:
    async with asking(broker) as producer:
        request = asyncio.create_task(producer.request("Prices", b"menu"))
        [properties] = await broker.asked()
        answer = await broker.push(properties, b"no zlib", sys_flag=SysFlag.COMPRESSED)
        with pytest.raises(
            ProtocolError,
            match=f"the reply to request {properties['CORRELATION_ID']} cannot be read",
        ):
            await request
        assert answer.code == ResponseCode.SYSTEM_ERROR
        connection = broker.clients[properties["REPLY_TO_CLIENT"]]
        empty = await connection.call(
            RemotingCommand(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT), WAIT_S
        )
        assert (empty.code, "producerGroup" in (empty.remark or "")) == (
            ResponseCode.SYSTEM_ERROR,
            True,
        )


async def test_a_request_that_waits_for_room_ends_with_one_error_when_the_producer_is_closed(
    broker: ReplyingBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.hold(SEND)
    async with asking(broker, max_in_flight=1) as producer:
        sending = await producer.submit("Prices", b"first")
        request = asyncio.create_task(producer.request("Prices", b"second", timeout_s=1.0))
        while not len(producer.client.requests.replies):
            await asyncio.sleep(0)
        closing = asyncio.create_task(producer.close())
        with pytest.raises(SendFailed, match="were in flight for"):
            await request
        broker.release(SEND)
        await closing
        assert (await sending).queue_offset == 0
        del request
        gc.collect()
    assert "never retrieved" not in caplog.text
