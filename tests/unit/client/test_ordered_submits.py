"""Submitted messages with a sharding key, a queue or properties: order, outcomes, limits."""

import asyncio
import random
import threading
from collections import defaultdict

import pytest

import ogive
from ogive import aio
from ogive.client.config import ProducerConfig
from ogive.errors import (
    IllegalStateError,
    InvalidOption,
    MessageIllegal,
    ResponseCode,
    SendFailed,
    SendTimeout,
)
from ogive.model import Message, MessageQueue
from ogive.testing.fake_broker import HANG_UP, SILENT, FakeBroker, error
from ogive.wire.codes import RequestCode
from ogive.wire.headers.codec import decode_header
from ogive.wire.headers.send import SendMessageRequestV2
from ogive.wire.message import decode_batch, decode_properties
from tests.unit.client.serving import on_a_thread

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE
BUSY = error(ResponseCode.SYSTEM_BUSY, "busy")
Q0 = MessageQueue("Orders", "broker-a", 0)


def by_key(bodies: dict[int, list[bytes]]) -> dict[bytes, list[int]]:
    """Return the numbers of each key's messages, in the order of storing."""
    found: dict[bytes, list[int]] = defaultdict(list)
    for rows in bodies.values():
        for body in rows:
            key, number = body.split(b" ")
            found[key].append(int(number))
    return found


@pytest.mark.parametrize("seed", range(4))
async def test_the_messages_of_a_key_keep_their_order_through_failures(seed: int) -> None:
    """Some go alone, because of a delay or a time of their own; some are sent with properties."""
    chance = random.Random(seed)
    async with (
        FakeBroker({"Orders": 3}) as broker,
        aio.Producer(
            broker.address,
            config=ProducerConfig(max_batch_bytes=2000, send_timeout_s=30, retries=20),
        ) as producer,
    ):
        for code in (SEND, BATCH):
            broker.script(code, *[chance.choice((BUSY, HANG_UP, None, None)) for _ in range(8)])
        handles: list[ogive.SendHandle] = []
        for number in range(300):
            key = f"key{chance.randrange(5)}"
            body = f"{key} {number}".encode()
            match chance.randrange(6):
                case 0:
                    handle = await producer.submit("Orders", body, sharding_key=key, timeout_s=20)
                case 1:
                    handle = await producer.submit(
                        "Orders", body, sharding_key=key, properties={"a": "b"}
                    )
                case 2:
                    handle = await producer.submit(Message("Orders", body, sharding_key=key))
                case _:
                    handle = await producer.submit("Orders", body, sharding_key=key)
            handles.append(handle)
            if chance.random() < 0.05:
                await asyncio.sleep(0.001)
        results = await asyncio.gather(*handles)
        stored = broker.bodies("Orders")
    for numbers in by_key(stored).values():
        # a message whose answer was lost is stored again, with all of its request
        first = list(dict.fromkeys(numbers))
        assert first == sorted(first)
    assert {result.status.name for result in results} == {"SEND_OK"}
    assert len({body for rows in stored.values() for body in rows}) == 300


def test_threads_that_submit_keep_the_order_of_their_keys() -> None:
    """Blocking sends, and messages with a time of their own, between them."""
    with on_a_thread() as broker:
        with ogive.Producer(broker.address) as producer:

            def work(name: str) -> None:
                for number in range(400):
                    body = f"{name} {number}".encode()
                    if number % 97 == 0:
                        producer.send("Orders", body, sharding_key=name)
                    elif number % 13 == 0:
                        producer.submit("Orders", body, sharding_key=name, timeout_s=20.0)
                    else:
                        producer.submit("Orders", body, sharding_key=name)

            threads = [threading.Thread(target=work, args=(f"t{i}",)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert by_key(broker.bodies("Orders")) == {b"t%d" % i: list(range(400)) for i in range(4)}


async def test_properties_and_keys_are_stored_as_a_send_stores_them() -> None:
    async with (
        FakeBroker({"Orders": 1}) as broker,
        aio.Producer(broker.address) as producer,
    ):
        await producer.send("Orders", b"", sharding_key="k")
        message = Message(
            "Orders", b"1", tag="t", keys=("a", "b"), properties={"x": "y"}, sharding_key="k"
        )
        await producer.send(message)
        await (await producer.submit(message))
        await (
            await producer.submit(
                "Orders", b"1", tag="t", keys=["a", "b"], properties={"x": "y"}, sharding_key="k"
            )
        )
        headers = [
            decode_header(SendMessageRequestV2, one.ext_fields) for one in broker.of(SEND)[1:]
        ]
    rows = [decode_properties((header.properties or "").encode()) for header in headers]
    assert len({row.pop("UNIQ_KEY") for row in rows}) == 3
    assert rows[0] == rows[1] == rows[2]


async def test_messages_that_wait_behind_others_of_their_queue_end_in_time() -> None:
    config = ProducerConfig(send_timeout_s=0.4)
    async with (
        FakeBroker({"Orders": 1}) as broker,
        aio.Producer(broker.address, config=config) as producer,
    ):
        await producer.send("Orders", b"0", queue=Q0, timeout_s=20.0)
        broker.script(SEND, SILENT)
        patient = await producer.submit("Orders", b"1", queue=Q0, timeout_s=1.0)
        await broker.received(SEND, 2)
        behind = await producer.submit("Orders", b"2", queue=Q0)
        with pytest.raises(SendFailed, match="earlier messages for Orders/broker-a/0"):
            await behind
        with pytest.raises(SendTimeout):
            await patient
        assert (await producer.send("Orders", b"3", queue=Q0, timeout_s=20.0)).queue_offset == 1


async def test_a_refused_batch_of_a_key_goes_message_by_message_in_order() -> None:
    async with (
        FakeBroker({"Orders": 1}) as broker,
        aio.Producer(broker.address) as producer,
    ):
        await producer.send("Orders", b"way", sharding_key="k")
        broker.script(BATCH, error(ResponseCode.MESSAGE_ILLEGAL, "one of them"))
        refused = error(ResponseCode.MESSAGE_ILLEGAL, "this one")
        broker.on(SEND, lambda request: refused if request.body == b"2" else None)
        handles = [await producer.submit("Orders", b"%d" % i, sharding_key="k") for i in range(5)]
        ends = await asyncio.gather(*handles, return_exceptions=True)
        assert [isinstance(end, MessageIllegal) for end in ends] == [i == 2 for i in range(5)]
        assert broker.bodies("Orders") == {0: [b"way", b"0", b"1", b"3", b"4"]}


async def test_flush_and_close_reach_what_waits_behind_a_run() -> None:
    async with FakeBroker({"Orders": 1}) as broker:
        producer = aio.Producer(broker.address)
        await producer.start()
        await producer.send("Orders", b"way", sharding_key="k")
        broker.hold(SEND)
        handles = [await producer.submit("Orders", b"0", sharding_key="k")]
        await broker.received(SEND, 2)
        handles += [await producer.submit("Orders", b"%d" % i, sharding_key="k") for i in (1, 2)]
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        broker.release(SEND)
        await closing
        assert [(await handle).queue_offset for handle in handles] == [1, 2, 3]
        with pytest.raises(IllegalStateError, match="closed"):
            await producer.submit("Orders", b"4", sharding_key="k")


async def test_a_batch_of_one_queue_is_one_request() -> None:
    async with (
        FakeBroker({"Orders": 4}) as broker,
        aio.Producer(broker.address) as producer,
    ):
        await producer.send("Orders", b"way", sharding_key="k")
        handles = [await producer.submit("Orders", b"%d" % i, sharding_key="k") for i in range(50)]
        await asyncio.gather(*handles)
        [batch] = broker.of(BATCH)
        items = decode_batch(batch.body)
    assert [item.body for item in items] == [b"%d" % i for i in range(50)]
    assert {decode_properties(item.properties)["__SHARDINGKEY"] for item in items} == {"k"}


async def test_what_contradicts_itself_is_refused_as_ever() -> None:
    async with (
        FakeBroker({"Orders": 1}) as broker,
        aio.Producer(broker.address) as producer,
    ):
        await producer.send("Orders", b"", sharding_key="k")
        with pytest.raises(InvalidOption, match="only one of them"):
            await producer.submit("Orders", b"", sharding_key="k", queue=Q0)
        with pytest.raises(InvalidOption, match="nothing beside it"):
            await producer.submit(Message("Orders", b""), tag="t")
        with pytest.raises(MessageIllegal):
            await producer.submit("Orders", b"", properties={"KEYS": "reserved"})
        with pytest.raises(TypeError, match="body is missing"):
            await producer.submit("Orders", properties={"a": "b"})
        assert producer.in_flight == 0
