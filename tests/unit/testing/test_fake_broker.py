"""The scripted broker: it behaves well by itself, and does what it is told."""

import asyncio
import time

import pytest

import ogive
from ogive import aio
from ogive.client.config import ProducerConfig
from ogive.errors import NoPermission, OgiveError, ResponseCode
from ogive.testing import FakeBroker
from ogive.testing.fake_broker import HANG_UP, After, Raw, error
from ogive.wire.codes import RequestCode

SEND = RequestCode.SEND_MESSAGE_V2


async def test_what_is_sent_is_delivered_and_every_request_is_recorded_with_its_time() -> None:
    got = asyncio.Event()

    @ogive.listener("Orders", group="billing", start="earliest")
    async def bill(message: ogive.MessageExt) -> None:
        got.set()

    before = time.monotonic()
    async with FakeBroker({"Orders": 1}) as broker:
        async with (
            aio.Producer(broker.address) as producer,
            aio.PushConsumer(bill, name_server=broker.address),
        ):
            await producer.send("Orders", b"4711")
            await asyncio.wait_for(got.wait(), 60)
            assert broker.connections
        (sent,) = broker.of(SEND)
        assert (sent.body, broker.bodies("Orders")) == (b"4711", {0: [b"4711"]})
        (at,) = broker.times(SEND)
        assert before <= at <= time.monotonic()
    assert not broker.connections


async def test_answers_are_scripted_one_by_one_and_for_good() -> None:
    once = ProducerConfig(retries=0, max_requests=1)
    async with (
        FakeBroker({"Orders": 1}) as broker,
        aio.Producer(broker.address, config=once) as producer,
    ):
        broker.script(SEND, After(0.01), error(ResponseCode.NO_PERMISSION, "not you"), HANG_UP)
        await producer.send("Orders", b"1")
        with pytest.raises(NoPermission, match="not you"):
            await producer.send("Orders", b"2")
        with pytest.raises(OgiveError) as lost:
            await producer.send("Orders", b"3")
        assert lost.value.outcome_unknown
        broker.on(SEND, error(ResponseCode.NO_PERMISSION))
        for _ in range(2):
            with pytest.raises(NoPermission):
                await producer.send("Orders", b"4")
        broker.on(SEND, None)
        await producer.send("Orders", b"5")
        assert broker.bodies("Orders") == {0: [b"1", b"5"]}


@pytest.mark.parametrize("garbage", [b"\xff" * 64, b"\0\0\0\x08\0\0\0\x04{}{}"])
async def test_garbage_is_written_as_it_is(garbage: bytes) -> None:
    async with FakeBroker({"Orders": 1}) as broker, aio.Producer(broker.address) as producer:
        broker.on(SEND, Raw(garbage))
        with pytest.raises(OgiveError):
            await producer.send("Orders", b"4711", timeout_s=1.0)


async def test_a_mute_broker_takes_everything_and_answers_nothing() -> None:
    async with FakeBroker({"Orders": 1}) as broker, aio.Producer(broker.address) as producer:
        await producer.send("Orders", b"1")
        broker.mute = True
        with pytest.raises(OgiveError):
            await producer.send("Orders", b"2", timeout_s=0.8)
        assert len(broker.of(SEND)) >= 2
        broker.mute = False
        await producer.send("Orders", b"3")
        assert broker.bodies("Orders") == {0: [b"1", b"3"]}
