"""Sending: what goes over the wire, where it goes, in which order, and what a caller learns when
something fails.
"""

import asyncio
import gc
import itertools
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from ogive.client.config import ClientConfig, ProducerConfig
from ogive.client.instance import ClientInstance
from ogive.client.producer import Producer
from ogive.client.sending.pending import FAILED_S, Lane
from ogive.errors import (
    BrokerBusy,
    BrokerInternalError,
    IllegalStateError,
    InvalidOption,
    MessageIllegal,
    NoNameServer,
    NoRoute,
    ProtocolError,
    ResponseCode,
    SendFailed,
    SendTimeout,
)
from ogive.model import Message, MessageQueue, SendStatus, parse_tags
from ogive.testing.fake_broker import HANG_UP, SILENT, WAIT_S, FakeBroker, error, ok
from ogive.transport.connection import Connection
from ogive.wire.bodies.json_fields import PERM_READ, dumps
from ogive.wire.bodies.routes import QueueData, TopicRouteData
from ogive.wire.codes import RequestCode, SerializeType, SysFlag
from ogive.wire.command import RemotingCommand
from ogive.wire.compression import CompressionType, decompress
from ogive.wire.headers.codec import decode_header
from ogive.wire.headers.send import SendMessageRequestV2
from ogive.wire.message import decode_batch, decode_properties, java_hash

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE
BUSY = error(ResponseCode.SYSTEM_BUSY, "[TIMEOUT_CLEAN_QUEUE]broker busy")
CONFIG = ProducerConfig()


GO_AWAY = error(ResponseCode.GO_AWAY, "please go away")


def stored(code: ResponseCode) -> RemotingCommand:
    return RemotingCommand(code, {"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"})


@asynccontextmanager
async def producing(
    *topics: str, queues: int = 1, brokers: int = 1, config: ProducerConfig = CONFIG
) -> AsyncIterator[tuple[Producer, list[FakeBroker]]]:
    """A producer, and brokers that all hold *topics* (and TBW102 if it is among them)."""
    fakes = [
        FakeBroker(dict.fromkeys(topics, queues), name=f"broker-{chr(ord('a') + i)}")
        for i in range(brokers)
    ]
    try:
        for fake in fakes:
            await fake.start()
        fakes[0].peers += fakes[1:]
        async with Producer(fakes[0].address, config=config) as producer:
            yield producer, fakes
    finally:
        for fake in fakes:
            await fake.stop()


async def stop_and_be_noticed(broker: FakeBroker, producer: Producer) -> None:
    """The producer's end of the connection is gone, too."""
    connection = producer.client.pool.existing(broker.address)
    await broker.stop()
    if connection is not None:
        await connection.wait_closed()


def header_of(request: RemotingCommand) -> SendMessageRequestV2:
    return decode_header(SendMessageRequestV2, request.ext_fields)


def properties_of(request: RemotingCommand) -> dict[str, str]:
    return decode_properties((header_of(request).properties or "").encode())


# --- on the wire ----------------------------------------------------------------------------------


async def test_a_message_arrives_with_everything_that_describes_it() -> None:
    async with producing("Orders") as (producer, [broker]):
        sent = await producer.send(
            "Orders",
            b"4711: 2 x espresso",
            tag="paid",
            keys=["4711", "x"],
            properties={"size": "XL"},
            sharding_key="7",
            delay_level=3,
        )
        [request] = broker.of(SEND)
    header = header_of(request)
    assert (request.body, request.serialize_type) == (b"4711: 2 x espresso", SerializeType.ROCKETMQ)
    assert (header.producer_group, header.topic, header.queue_id, header.sys_flag, header.flag) == (
        "ogive-producer",
        "Orders",
        0,
        0,
        0,
    )
    assert (header.default_topic, header.default_topic_queue_nums, header.broker_name) == (
        "TBW102",
        4,
        "broker-a",
    )
    assert properties_of(request) == {
        "UNIQ_KEY": sent.id,
        "TAGS": "paid",
        "KEYS": "4711 x",
        "size": "XL",
        "__SHARDINGKEY": "7",
        "DELAY": "3",
    }
    assert (sent.status, sent.queue, sent.queue_offset) == (
        SendStatus.SEND_OK,
        MessageQueue("Orders", "broker-a", 0),
        0,
    )
    assert (len(sent.id), len(sent.offset_id)) == (32, 32)


async def test_a_message_object_and_arguments_say_the_same() -> None:
    async with producing("Orders") as (producer, [broker]):
        await producer.send(
            Message("Orders", b"a", tag="paid", keys=("1",), sharding_key="7", delay_level=1)
        )
        await producer.send("Orders", b"a", tag="paid", keys="1", sharding_key="7", delay_level=1)
        first, second = (properties_of(request) for request in broker.of(SEND))
        assert first.pop("UNIQ_KEY") != second.pop("UNIQ_KEY")
        assert first == second
        await producer.send(Message("Orders", b"a", flag=9, wait_store_ok=False))
        assert (header_of(broker.of(SEND)[2]).flag, properties_of(broker.of(SEND)[2])["WAIT"]) == (
            9,
            "false",
        )


@pytest.mark.feature(141)
async def test_weaker_guarantees_are_results_and_no_errors() -> None:
    async with producing("Orders") as (producer, [broker]):
        broker.script(
            SEND,
            RemotingCommand(
                ResponseCode.FLUSH_DISK_TIMEOUT, {"msgId": "M", "queueId": "0", "queueOffset": "5"}
            ),
        )
        sent = await producer.send("Orders", b"a")
        assert (sent.status, sent.queue_offset, len(broker.of(SEND))) == (
            SendStatus.FLUSH_DISK_TIMEOUT,
            5,
            1,
        )


async def test_long_bodies_are_compressed_where_that_makes_them_shorter() -> None:
    noise = bytes(java_hash(str(i)) & 0xFF for i in range(5000))
    async with producing("Orders") as (producer, [broker]):
        await producer.send("Orders", b"x" * 4096)
        await producer.send("Orders", b"x" * 4095)
        await producer.send("Orders", noise[::-1])
        long, short, odd = broker.of(SEND)
    assert header_of(long).sys_flag == SysFlag.COMPRESSED | SysFlag.ZLIB
    assert decompress(long.body, header_of(long).sys_flag) == b"x" * 4096
    assert (header_of(short).sys_flag, short.body) == (0, b"x" * 4095)
    assert (
        decompress(odd.body, header_of(odd).sys_flag) == noise[::-1]
        if header_of(odd).sys_flag
        else odd.body == noise[::-1]
    )


@pytest.mark.parametrize(
    ("flag", "expected"), [("9", TypeError), (2**31, InvalidOption), (-(2**31) - 1, InvalidOption)]
)
def test_a_flag_that_no_batch_can_carry_is_refused_at_once(
    flag: object, expected: type[Exception]
) -> None:
    """On its way it would cost the messages beside it their outcome."""
    with pytest.raises(expected, match="flag"):
        Message("Orders", b"", flag=flag)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "flag"), [("zlib", SysFlag.ZLIB), ("lz4", SysFlag.LZ4), ("zstd", SysFlag.ZSTD)]
)
async def test_bodies_are_compressed_in_the_way_that_is_wished(
    kind: CompressionType, flag: int
) -> None:
    async with producing("Orders", config=ProducerConfig(compression=kind)) as (producer, [broker]):
        await producer.send("Orders", b"x" * 5000)
        (request,) = broker.of(SEND)
    assert header_of(request).sys_flag == SysFlag.COMPRESSED | flag
    assert decompress(request.body, header_of(request).sys_flag) == b"x" * 5000


@pytest.mark.parametrize(
    ("topic", "arguments", "expected"),
    [
        ("Orders", {}, TypeError),
        ("Orders", {"body": "text"}, TypeError),
        ("Orders", {"body": 1}, TypeError),
        (None, {"body": b""}, TypeError),
        ("Orders", {"body": b"", "tag": 1}, TypeError),
        (
            "Orders",
            {"body": b"", "tag": 1, "keys": "4711", "sharding_key": "a", "delay_level": 1},
            TypeError,
        ),
        ("Orders", {"body": b"", "keys": 4711}, TypeError),
        ("Orders", {"body": b"", "keys": ["4711", None]}, TypeError),
        ("Orders", {"body": b"", "sharding_key": 4711}, TypeError),
        ("Orders", {"body": b"", "properties": {"amount": 3}}, TypeError),
        ("Orders", {"body": b"", "delay_s": "3"}, TypeError),
        ("Orders", {"body": b"", "timeout_s": "3"}, TypeError),
        ("Ord ers", {"body": b""}, InvalidOption),
        ("Orders", {"body": bytes(4 * 1024 * 1024 + 1)}, MessageIllegal),
        ("Orders", {"body": b"", "tag": ""}, MessageIllegal),
        ("Orders", {"body": b"", "tag": "a\x01b"}, MessageIllegal),
        ("Orders", {"body": b"", "keys": "two words"}, MessageIllegal),
        ("Orders", {"body": b"", "keys": ("",)}, MessageIllegal),
        ("Orders", {"body": b"", "sharding_key": "\x02"}, MessageIllegal),
        ("Orders", {"body": b"", "properties": {"TAGS": "x"}}, MessageIllegal),
        ("Orders", {"body": b"", "properties": {"long": "x" * 40_000}}, MessageIllegal),
        ("Orders", {"body": b"", "tag": "\ud800"}, MessageIllegal),
        ("Orders", {"body": b"", "delay_level": -1}, InvalidOption),
        (Message("Orders", b""), {"body": b""}, InvalidOption),
        (Message("Orders", b""), {"tag": "a"}, InvalidOption),
    ],
)
async def test_a_message_that_no_broker_would_take_is_refused_before_it_leaves(
    topic: str | Message, arguments: dict[str, object], expected: type[Exception]
) -> None:
    async with producing("Orders") as (producer, [broker]):
        with pytest.raises(expected) as caught:
            await producer.submit(topic, **arguments)  # type: ignore[arg-type]
        # and not an operator's
        assert (
            expected is not TypeError
            or " must be " in str(caught.value)
            or "is missing" in str(caught.value)
        )
        assert (producer.in_flight, broker.requests) == (0, [])


# --- where it goes --------------------------------------------------------------------------------


@pytest.mark.feature(161)
async def test_messages_go_round_all_queues_of_all_brokers() -> None:
    async with producing("Orders", queues=2, brokers=2) as (producer, _):
        sent = [await producer.send("Orders", b"") for _ in range(8)]
        counts = [
            sum(result.queue == queue for result in sent)
            for queue in {result.queue for result in sent}
        ]
        assert counts == [2, 2, 2, 2]


async def test_equal_sharding_keys_share_the_queue_that_javas_hash_names() -> None:
    async with producing("Orders", queues=2, brokers=2) as (producer, _):
        order = [
            MessageQueue("Orders", name, i) for name in ("broker-a", "broker-b") for i in (0, 1)
        ]
        for key in ("N14228", "N24211", "", "中文", "polygenelubricants"):
            sent = (
                {(await producer.send("Orders", b"", sharding_key=key)).queue for _ in range(3)}
                if key
                else set()
            )
            assert sent == ({order[abs(java_hash(key)) % 4]} if key else set())


@pytest.mark.feature(134)
async def test_a_named_queue_is_kept_and_an_impossible_one_refused() -> None:
    async with producing("Orders", queues=3) as (producer, _):
        queue = MessageQueue("Orders", "broker-a", 2)
        assert {(await producer.send("Orders", b"", queue=queue)).queue for _ in range(3)} == {
            queue
        }
        with pytest.raises(
            NoRoute,
            match="Orders/broker-a/3 is not a writable queue of Orders, which has 0 to 2 on "
            "broker-a",
        ):
            await producer.send("Orders", b"", queue=replace(queue, queue_id=3))
        with pytest.raises(
            TypeError,
            match=r"queue must be an ogive.MessageQueue \(sent.queue, or MessageQueue\('Orders', "
            r".*, not int",
        ):
            await producer.send("Orders", b"", queue=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"tag": "a || b"}, "no consumer could select it; a message has one tag"),
        ({"tag": " a"}, "no consumer could select it; a message has one tag"),
        (
            {"sharding_key": "a", "queue": MessageQueue("Orders", "broker-a", 0)},
            "only one of them can choose the queue",
        ),
    ],
)
async def test_arguments_of_which_one_would_do_nothing_are_refused(
    arguments: dict[str, Any], said: str
) -> None:
    async with producing("Orders") as (producer, _):
        with pytest.raises(InvalidOption, match=re.escape(said)):
            await producer.send("Orders", b"", **arguments)
        with pytest.raises(InvalidOption, match=re.escape(said)):
            await producer.send_batch("Orders", [b""], **arguments)


async def test_new_queues_are_used_once_the_route_shows_them() -> None:
    async with producing("Orders") as (producer, [broker]):
        await producer.send("Orders", b"")
        broker.topics["Orders"] = 3
        await producer.client.routes.refresh("Orders")
        assert {(await producer.send("Orders", b"")).queue.queue_id for _ in range(3)} == {0, 1, 2}


async def test_a_topic_that_brokers_create_on_first_use_needs_no_route() -> None:
    async with producing("TBW102", queues=8) as (producer, [broker]):
        assert len({(await producer.send("New", b"")).queue for _ in range(8)}) == 4
        assert broker.topics["New"] == 4


async def test_a_topic_that_may_not_be_written_to_is_not_taken_for_a_new_one() -> None:
    """Its queues would be made up after TBW102, and brokers do not look at the permission of a
    topic.
    """
    read_only = TopicRouteData(
        queues=(QueueData(broker_name="broker-a", read_queues=1, write_queues=1, perm=PERM_READ),),
        brokers=(),
    )
    async with producing("Orders", "TBW102") as (producer, [broker]):
        broker.script(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, *[ok(body=dumps(read_only.to_json()))] * 2
        )
        with pytest.raises(NoRoute, match='"Orders" may not be written to'):
            await producer.send("Orders", b"")
        assert broker.of(RequestCode.SEND_MESSAGE_V2) == []


async def test_a_missing_topic_is_explained() -> None:
    async with producing("Orders") as (producer, [broker]):
        with pytest.raises(
            NoRoute,
            match=rf'"Ordres" has no route on {broker.address}\. Similar topics: Orders\. Create '
            r"it with",
        ):
            await producer.send("Ordres", b"")
        broker.topics["Ordres"] = 1
        assert (await producer.send("Ordres", b"")).queue_offset == 0


async def test_a_broker_that_moved_is_found_by_its_new_route() -> None:
    async with producing("Orders") as (producer, [first]):
        await producer.send("Orders", b"1")
        async with FakeBroker({"Orders": 1}) as second:
            first.peers.append(second)
            del first.topics["Orders"]
            await producer.client.routes.refresh("Orders")
            await producer.send("Orders", b"2")
            assert second.bodies("Orders") == {0: [b"2"]}


# --- order ----------------------------------------------------------------------------------------


async def test_messages_of_a_key_keep_their_order_from_the_first_one_on() -> None:
    """Before the route is known, before the connection stands, with little room, and from many
    tasks at once.
    """
    async with producing("Orders", "Prices", queues=4, config=ProducerConfig(max_in_flight=7)) as (
        producer,
        [broker],
    ):
        names = [b"%d" % i for i in range(500)]
        futures = await asyncio.gather(
            *(producer.submit("Orders", name, sharding_key="N14228") for name in names)
        )
        await asyncio.gather(*futures)
        assert list(broker.bodies("Orders").values()) == [names]


async def test_messages_of_a_queue_have_one_request_on_its_way_and_the_next_has_what_came() -> None:
    """Brokers may carry out two requests of one connection at the same time: only one at a time
    keeps the order.
    """
    async with producing("Orders", queues=1) as (producer, [broker]):
        await producer.send("Orders", b"the way is open", sharding_key="a")
        broker.hold(SEND)
        futures = [await producer.submit("Orders", b"0", sharding_key="key 0", tag="t")]
        await broker.received(SEND, 2)
        futures += [
            await producer.submit("Orders", b"%d" % i, sharding_key=f"key {i}", tag="t")
            for i in range(1, 50)
        ]
        await asyncio.sleep(0)
        assert (len(broker.of(SEND)), len(broker.of(BATCH))) == (2, 0)
        broker.release(SEND)
        results = await asyncio.gather(*futures)
        assert (len(broker.of(SEND)), len(broker.of(BATCH))) == (2, 1)
        items = decode_batch(broker.of(BATCH)[0].body)
    assert [item.body for item in items] == [b"%d" % i for i in range(1, 50)]
    assert [decode_properties(item.properties)["UNIQ_KEY"] for item in items] == [
        result.id for result in results[1:]
    ]
    assert [result.queue_offset for result in results] == list(range(1, 51))
    assert len({result.offset_id for result in results}) == 50


async def test_a_run_ends_before_a_message_that_cannot_stand_in_a_batch() -> None:
    config = ProducerConfig(max_batch_bytes=4096)
    async with producing("Orders", config=config) as (producer, [broker]):
        await producer.send("Orders", b"the way is open", sharding_key="a")
        broker.hold(SEND)
        bodies = [b"0", b"1", b"2", b"z" * 5000, b"3", b"4", bytes(3000), b"5", bytes(3000)]
        futures = [
            await producer.submit("Orders", body, sharding_key="a", delay_level=int(body == b"3"))
            for body in bodies
        ]
        broker.release(SEND)
        await asyncio.gather(*futures)
        requests = [request for request in broker.requests if request.code in (SEND, BATCH)]
    counts = [
        len(decode_batch(request.body)) if request.code == BATCH else 1 for request in requests
    ]
    assert counts == [1, 3, 1, 1, 3, 1]


async def test_a_failed_run_is_repeated_before_anything_that_came_later() -> None:
    async with producing("Orders") as (producer, [broker]):
        broker.script(SEND, BUSY, BUSY)
        broker.script(BATCH, HANG_UP)
        futures = [await producer.submit("Orders", b"%d" % i, sharding_key="a") for i in range(20)]
        await asyncio.gather(*futures)
        assert broker.bodies("Orders") == {0: [b"%d" % i for i in range(20)]}


async def test_a_refused_batch_goes_message_by_message_and_only_the_culprit_fails() -> None:
    async with producing("Orders") as (producer, [broker]):
        broker.script(BATCH, error(ResponseCode.MESSAGE_ILLEGAL, "one of them"))
        refused = error(ResponseCode.MESSAGE_ILLEGAL, "this one")
        broker.on(SEND, lambda request: refused if request.body == b"3" else None)
        futures = [await producer.submit("Orders", b"%d" % i, sharding_key="a") for i in range(5)]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert [isinstance(outcome, MessageIllegal) for outcome in outcomes] == [
            False,
            False,
            False,
            True,
            False,
        ]
        assert broker.bodies("Orders") == {0: [b"0", b"1", b"2", b"4"]}


async def test_each_message_of_a_run_keeps_its_own_deadline() -> None:
    async with producing("Orders") as (producer, [broker]):
        await producer.send("Orders", b"0", sharding_key="a")
        broker.script(SEND, SILENT)
        on_its_way = await producer.submit("Orders", b"1", sharding_key="a", timeout_s=0.8)
        waiting = await producer.submit("Orders", b"2", sharding_key="a", timeout_s=0.3)
        patient = await producer.submit("Orders", b"3", sharding_key="a", timeout_s=WAIT_S)
        with pytest.raises(SendTimeout, match="after 1 try on 1 broker"):
            await on_its_way
        with pytest.raises(
            SendFailed,
            match=r"was not sent within 0\.\d s: earlier messages for Orders/broker-a/0 were still "
            r"being sent",
        ):
            await waiting
        await patient
        assert broker.bodies("Orders") == {0: [b"0", b"3"]}


async def test_a_queue_that_leaves_the_route_and_comes_back_keeps_the_order_of_its_messages() -> (
    None
):
    async with producing("Orders", queues=2) as (producer, [broker]):
        queue = MessageQueue("Orders", "broker-a", 1)
        await producer.send("Orders", b"0", queue=queue)
        broker.hold(SEND)
        first = await producer.submit("Orders", b"1", queue=queue)
        await broker.received(SEND, 2)
        second = await producer.submit("Orders", b"2", queue=queue)
        for count in (1, 2):
            broker.topics["Orders"] = count
            await producer.client.routes.refresh("Orders")
        third = await producer.submit("Orders", b"3", queue=queue)
        # nothing that was sent before it is missing now
        await producer.client.routes.refresh("Orders")
        assert [request.body for request in broker.of(SEND)] == [b"0", b"1"]
        broker.release(SEND)
        await asyncio.gather(first, second, third)
        assert broker.bodies("Orders") == {1: [b"0", b"1", b"2", b"3"]}


async def test_messages_of_a_queue_that_left_the_route_end_in_time_and_nothing_goes_on_trying() -> (
    None
):
    async with (
        producing("Orders") as (producer, [broker]),
        FakeBroker({"Orders": 1}, name="broker-b") as leaving,
    ):
        broker.peers.append(leaving)
        await producer.client.routes.refresh("Orders")
        await leaving.stop()
        future = await producer.submit(
            "Orders", b"1", queue=MessageQueue("Orders", "broker-b", 0), timeout_s=0.3
        )
        broker.peers.clear()
        await producer.send("Orders", b"", queue=MessageQueue("Orders", "broker-a", 0))
        await producer.client.routes.refresh("Orders")
        with pytest.raises(SendFailed):
            await future
        async with asyncio.timeout(WAIT_S):
            while any("connection to broker-b" in task.get_name() for task in asyncio.all_tasks()):
                await asyncio.sleep(0.01)


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.feature(136, 140)
async def test_a_busy_broker_is_passed_over_and_the_retry_names_the_other_brokers_queue() -> None:
    async with producing("Orders", brokers=2) as (producer, brokers):
        brokers[0].on(SEND, BUSY)
        for _ in range(4):
            assert (await producer.send("Orders", b"x")).queue.broker_name == "broker-b"
        keys = [
            properties_of(request)["UNIQ_KEY"] for broker in brokers for request in broker.of(SEND)
        ]
        assert len(set(keys)) == 4 < len(keys)
        assert {header_of(request).broker_name for request in brokers[1].of(SEND)} == {"broker-b"}


async def test_a_message_whose_topic_was_forgotten_meanwhile_is_tried_again() -> None:
    async with producing("Orders") as (producer, [broker]):
        await producer.send("Orders", b"")
        broker.script(SEND, BUSY)
        handle = await producer.submit("Orders", b"again")
        await broker.received(SEND, 2)
        # as if there were ten thousand others
        del producer.publisher.destinations.topics["Orders"]
        await handle
        assert broker.bodies("Orders")[0] == [b"", b"again"]


async def test_an_unknown_outcome_stays_unknown_when_the_topic_is_gone_at_the_next_try() -> None:
    async with producing("Orders") as (producer, _):
        pending = producer.builder.message("Ordres", b"", None, (), None, None, None)
        handle = producer.publisher.handle_of(pending, None)
        pending.tries, pending.tried, pending.unknown = 1, {"broker-a"}, True
        await producer.publisher.accept(pending, WAIT_S)
        with pytest.raises(SendTimeout, match="may or may not be stored"):
            await handle


@pytest.mark.feature(131)
async def test_the_number_of_tries_is_what_was_configured() -> None:
    async with producing("Orders", config=ProducerConfig(retries=1)) as (producer, [broker]):
        broker.on(SEND, error(ResponseCode.SYSTEM_ERROR))
        with pytest.raises(
            SendFailed,
            match=r"was not stored after 2 tries on 1 broker within .* at last: .* SYSTEM_ERROR: "
            r"scripted",
        ) as failed:
            await producer.send("Orders", b"")
        assert isinstance(failed.value.__cause__, BrokerInternalError)
        assert len(broker.of(SEND)) == 2


@pytest.mark.parametrize("key", [None, "a"])
async def test_a_busy_broker_is_asked_again_as_long_as_the_budget_lasts(key: str | None) -> None:
    async with producing("Orders") as (producer, [broker]):
        broker.script(SEND, *[BUSY] * 4)
        sent = await producer.send("Orders", b"", sharding_key=key, timeout_s=WAIT_S)
        assert sent.queue_offset == 0
        assert len(broker.of(SEND)) == 5
        broker.on(SEND, BUSY)
        with pytest.raises(
            SendFailed, match=r"tries on 1 broker within \d\.\d s; at last: .* SYSTEM_BUSY"
        ):
            # tries after 0, 0.1 and 0.3 s: none is under way then
            await producer.send("Orders", b"", sharding_key=key, timeout_s=0.5)


async def test_without_retries_a_busy_broker_is_not_asked_again() -> None:
    async with producing("Orders", config=ProducerConfig(retries=0)) as (producer, [broker]):
        broker.on(SEND, BUSY)
        with pytest.raises(BrokerBusy):
            await producer.send("Orders", b"")
        assert len(broker.of(SEND)) == 1


@pytest.mark.feature(135)
@pytest.mark.parametrize("wished", [True, False])
async def test_a_weaker_guarantee_is_tried_elsewhere_where_that_is_wished(wished: bool) -> None:
    """All brokers alike, it is still no error: the message is stored."""
    async with producing(
        "Orders", brokers=2, config=ProducerConfig(retry_when_not_stored_ok=wished)
    ) as (producer, brokers):
        for broker in brokers:
            broker.script(SEND, stored(ResponseCode.FLUSH_DISK_TIMEOUT))
        sent = [await producer.send("Orders", b"x") for _ in range(2)]
        assert [one.status for one in sent] == [
            SendStatus.SEND_OK if wished else SendStatus.FLUSH_DISK_TIMEOUT
        ] * 2
        for broker in brokers:
            broker.on(SEND, stored(ResponseCode.SLAVE_NOT_AVAILABLE))
        assert (await producer.send("Orders", b"x")).status is SendStatus.SLAVE_NOT_AVAILABLE
        assert sum(len(broker.of(SEND)) for broker in brokers) == (2 + 2 + 3 if wished else 3)


@pytest.mark.feature(139)
@pytest.mark.parametrize("watched", [True, False])
async def test_a_broker_that_failed_is_avoided_for_a_while_where_that_is_wished(
    watched: bool,
) -> None:
    async with producing(
        "Orders", brokers=2, config=ProducerConfig(avoid_slow_brokers=watched)
    ) as (producer, brokers):
        brokers[0].script(SEND, BUSY)
        for _ in range(10):
            await producer.send("Orders", b"x")
        assert len(brokers[0].of(SEND)) in ([1] if watched else [5, 6])
        brokers[1].on(SEND, BUSY)
        # all are avoided: none is
        assert (await producer.send("Orders", b"x")).queue.broker_name == "broker-a"


@pytest.mark.feature(139)
@pytest.mark.parametrize(
    ("latency_s", "pause_s"),
    [(0.0, 0), (0.549, 0), (0.55, 2), (1.8, 5), (3.0, 6), (FAILED_S, 10), (60.0, 30)],
)
def test_the_slower_an_answer_the_longer_its_broker_is_avoided(
    latency_s: float, pause_s: float
) -> None:
    lane = Lane("broker-a")
    lane.note(latency_s, 100.0)
    assert lane.avoid_until == (100.0 + pause_s if pause_s else 0.0)
    lane.note(0.6, 90.0)
    assert lane.avoid_until == (100.0 + pause_s if pause_s else 92.0)


async def test_an_answer_that_no_retry_can_change_is_raised_at_once() -> None:
    async with producing("Orders") as (producer, [broker]):
        broker.script(SEND, error(ResponseCode.MESSAGE_ILLEGAL, "too long"))
        with pytest.raises(MessageIllegal, match="too long"):
            await producer.send("Orders", b"")
        assert len(broker.of(SEND)) == 1


@pytest.mark.feature(132)
async def test_a_lost_connection_is_followed_by_another_try() -> None:
    async with producing("Orders") as (producer, [broker]):
        broker.script(SEND, HANG_UP)
        await producer.send("Orders", b"1")
        assert broker.bodies("Orders") == {0: [b"1"]}


@pytest.mark.feature(132)
async def test_a_message_is_tried_three_times_and_not_four() -> None:
    async with producing("Orders") as (producer, [broker]):
        broker.script(SEND, HANG_UP, HANG_UP)
        await producer.send("Orders", b"1")
        assert (len(broker.of(SEND)), broker.bodies("Orders")) == (3, {0: [b"1"]})
        broker.script(SEND, HANG_UP, HANG_UP, HANG_UP)
        with pytest.raises(SendTimeout, match="after 3 tries on 1 broker"):
            await producer.send("Orders", b"2")
        assert (len(broker.of(SEND)), broker.bodies("Orders")) == (6, {0: [b"1"]})


async def test_a_lost_connection_without_retries_says_that_nobody_knows() -> None:
    async with producing("Orders", config=ProducerConfig(retries=0)) as (producer, [broker]):
        broker.script(SEND, HANG_UP)
        with pytest.raises(SendTimeout) as caught:
            await producer.send("Orders", b"1")
        assert caught.value.outcome_unknown
        key = properties_of(broker.of(SEND)[0])["UNIQ_KEY"]
        assert f"after 1 try on 1 broker: connection to {broker.address} was" in str(caught.value)
        assert f"The message may or may not be stored: its id is {key}." in str(caught.value)


@pytest.mark.feature(137)
async def test_a_silent_broker_costs_the_whole_budget_and_not_more() -> None:
    async with producing("Orders", brokers=2) as (producer, brokers):
        for _ in brokers:
            # connecting is no part of what follows
            await producer.send("Orders", b"")
        for broker in brokers:
            broker.on(SEND, SILENT)
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(
            SendTimeout,
            match=r"no answer from broker-. \(127.* within \d+\.\d s after 1 try on 1 broker",
        ):
            await producer.send("Orders", b"1", timeout_s=1.0)
        assert loop.time() - started < WAIT_S
        assert sum(len(broker.of(SEND)) for broker in brokers) == 1 + len(brokers)


@pytest.mark.parametrize("key", [None, "a"])
async def test_a_name_server_that_refuses_or_talks_nonsense_stops_neither_message_nor_client(
    key: str | None,
) -> None:
    """A retry asks for a fresh route, but the old one may still be good."""
    async with producing("Orders") as (producer, [broker]):
        await producer.send("Orders", b"0")
        broker.script(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, error(ResponseCode.SYSTEM_BUSY), ok(body=b"[]")
        )
        broker.script(SEND, HANG_UP, HANG_UP)
        await producer.send("Orders", b"1", sharding_key=key)
        assert len(broker.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)) >= 3
        assert producer.client.running


async def test_a_name_server_that_refuses_while_a_broker_is_away_does_not_stop_the_client() -> None:
    async with (
        producing("Orders") as (producer, [broker]),
        FakeBroker({"Orders": 1}, name="broker-b") as away,
    ):
        broker.peers.append(away)
        await producer.client.routes.refresh("Orders")
        await away.stop()
        broker.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, error(ResponseCode.SYSTEM_ERROR))
        with pytest.raises(SendFailed, match="no connection"):
            await producer.send(
                "Orders", b"", queue=MessageQueue("Orders", "broker-b", 0), timeout_s=0.3
            )
        assert producer.client.running


async def test_a_patient_message_outlives_the_route_lookup_of_an_impatient_one() -> None:
    """Both wait for the same answer of a name server that is just starting."""
    async with producing("Orders", config=ProducerConfig(send_timeout_s=WAIT_S)) as (
        producer,
        [broker],
    ):
        broker.hold(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        impatient = await producer.submit("Orders", b"1", timeout_s=0.2)
        patient = await producer.submit("Orders", b"2")
        # whichever notices it first: the lookup, or the end of the message's time
        with pytest.raises((NoNameServer, SendFailed), match="no name server answered"):
            await impatient
        broker.release(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        await patient
        assert broker.bodies("Orders") == {0: [b"2"]}


async def test_a_name_server_is_waited_for_as_long_as_the_message_may_wait() -> None:
    """Longer than one request to it may take."""
    async with FakeBroker({"Orders": 1}) as broker:
        client = ClientConfig(name_server=broker.address, request_timeout_s=0.1)
        async with Producer(
            client=client, config=ProducerConfig(send_timeout_s=WAIT_S)
        ) as producer:
            broker.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, SILENT)
            future = await producer.submit("Orders", b"1")
            await broker.received(RequestCode.GET_ROUTEINFO_BY_TOPIC, 2)
            broker.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, None)
            assert (await future).queue_offset == 0


async def test_a_silent_name_server_is_named_within_the_messages_own_budget() -> None:
    async with producing("Orders") as (producer, [broker]):
        broker.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, SILENT)
        with pytest.raises((NoNameServer, SendFailed), match=broker.address):
            await producer.send("Orders", b"1", timeout_s=0.3)


async def test_without_a_name_server_the_error_names_it() -> None:
    async with FakeBroker() as gone:
        address = gone.address
    async with Producer(address) as producer:
        with pytest.raises(NoNameServer, match=rf"at {address} within .*refused"):
            await producer.send("Orders", b"1", timeout_s=1.0)


async def test_a_broker_that_restarts_is_waited_for() -> None:
    async with producing("Orders") as (producer, [broker]):
        await producer.send("Orders", b"0")
        await stop_and_be_noticed(broker, producer)
        futures = [await producer.submit("Orders", b"%d" % i, sharding_key="a") for i in (1, 2, 3)]
        await broker.start()
        await asyncio.gather(*futures)
        assert broker.bodies("Orders") == {0: [b"0", b"1", b"2", b"3"]}


async def test_a_broker_that_stays_away_fails_its_messages_as_certainly_not_stored() -> None:
    async with producing("Orders") as (producer, [broker]):
        await producer.send("Orders", b"0")
        await stop_and_be_noticed(broker, producer)
        with pytest.raises(
            SendFailed,
            match=rf"was not sent within \d+\.\d s: no connection to {broker.address}: .*refused",
        ):
            await producer.send("Orders", b"1", timeout_s=1.0)


async def test_messages_that_may_go_anywhere_leave_a_broker_that_is_gone() -> None:
    async with producing("Orders", brokers=2) as (producer, brokers):
        for _ in range(2):
            await producer.send("Orders", b"")
        await brokers[1].stop()
        sent = await asyncio.gather(*[await producer.submit("Orders", b"") for _ in range(20)])
        assert {result.queue.broker_name for result in sent} == {"broker-a"}
        await brokers[1].start()
        async with asyncio.timeout(WAIT_S):
            while (await producer.send("Orders", b"")).queue.broker_name != "broker-b":
                await asyncio.sleep(0.01)


async def test_an_address_that_swallows_connections_holds_up_only_what_must_go_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No refusal comes, only silence: messages that may go anywhere leave after a third of the
    usual budget.
    """
    config = ProducerConfig(send_timeout_s=1.5)
    async with producing("Orders", brokers=2, config=config) as (producer, brokers):
        pool = producer.client.pool
        get = pool.get

        async def swallow(address: str) -> Connection:
            if address == brokers[1].address:
                await asyncio.Event().wait()
            return await get(address)

        monkeypatch.setattr(pool, "get", swallow)
        free = [await producer.submit("Orders", b"free", timeout_s=WAIT_S) for _ in range(10)]
        bound = await producer.submit(
            "Orders", b"bound", queue=MessageQueue("Orders", "broker-b", 0)
        )
        await (
            await producer.submit("Orders", b"good", queue=MessageQueue("Orders", "broker-a", 0))
        )
        assert not bound.done()
        assert {result.queue.broker_name for result in await asyncio.gather(*free)} == {"broker-a"}
        with pytest.raises(
            SendFailed,
            match=rf"was not sent within \d\.\d s: no connection to {brokers[1].address} yet",
        ):
            await bound


async def test_a_message_whose_time_is_up_before_there_is_a_connection_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with producing("Orders") as (producer, [broker]):
        pool = producer.client.pool
        await producer.client.routes.find("Orders")

        async def swallow(address: str) -> Connection:
            return await asyncio.Event().wait()  # type: ignore[return-value]

        monkeypatch.setattr(pool, "get", swallow)
        with pytest.raises(
            SendFailed,
            match=rf"was not sent within \d\.\d s: no connection to {broker.address} yet",
        ):
            await producer.send("Orders", b"", timeout_s=0.05)


async def test_an_answer_without_a_position_is_a_protocol_error() -> None:
    async with producing("Orders") as (producer, [broker]):
        broker.script(SEND, ok())
        with pytest.raises(
            ProtocolError, match="stored the message, but its answer cannot be read"
        ):
            await producer.send("Orders", b"")


# --- room -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config", [ProducerConfig(max_in_flight=2), ProducerConfig(max_in_flight_bytes=3_000)]
)
async def test_submit_waits_while_too_much_is_in_flight_and_serves_waiters_in_their_order(
    config: ProducerConfig,
) -> None:
    async with producing("Orders", config=config) as (producer, [broker]):
        broker.hold(SEND)
        names = [b"%03d" % i + bytes(500) for i in range(6)]
        tasks = [asyncio.create_task(producer.submit("Orders", name)) for name in names]
        await broker.received(SEND, 2)
        assert (producer.in_flight, sum(task.done() for task in tasks)) == (2, 2)
        broker.release(SEND)
        await asyncio.gather(*await asyncio.gather(*tasks))
        assert broker.bodies("Orders") == {0: names}


async def test_waiting_for_room_is_part_of_the_budget() -> None:
    async with producing("Orders", config=ProducerConfig(max_in_flight=1)) as (producer, [broker]):
        broker.hold(SEND)
        first = await producer.submit("Orders", b"1")
        with pytest.raises(
            SendFailed, match=r"not sent: 1 messages of \d+ bytes were in flight for 0\.1 s"
        ):
            await producer.submit("Orders", b"2", timeout_s=0.1)
        await broker.received(SEND)
        broker.release(SEND)
        await first
        await producer.send("Orders", b"3")
        assert broker.bodies("Orders") == {0: [b"1", b"3"]}


async def test_a_cancelled_wait_sends_nothing_and_leaves_its_room_to_the_next() -> None:
    async with producing("Orders", config=ProducerConfig(max_in_flight=1)) as (producer, [broker]):
        broker.hold(SEND)
        await producer.submit("Orders", b"1")
        cancelled, next_one = (
            asyncio.create_task(producer.send("Orders", name)) for name in (b"2", b"3")
        )
        await broker.received(SEND)
        cancelled.cancel()
        broker.release(SEND)
        await next_one
        assert broker.bodies("Orders") == {0: [b"1", b"3"]}


async def test_a_message_larger_than_all_room_still_goes_alone() -> None:
    async with producing(
        "Orders", config=ProducerConfig(max_in_flight_bytes=100, compress_over_bytes=None)
    ) as (producer, _):
        assert (await producer.send("Orders", bytes(10_000))).queue_offset == 0


async def test_a_cancelled_send_ignores_its_answer() -> None:
    async with producing("Orders") as (producer, [broker]):
        broker.hold(SEND)
        task = asyncio.create_task(producer.send("Orders", b"1"))
        await broker.received(SEND)
        task.cancel()
        broker.release(SEND)
        await producer.flush()
        assert producer.in_flight == 0


# --- batches and one-way --------------------------------------------------------------------------


async def test_a_batch_gives_each_message_its_own_result() -> None:
    async with producing("Orders", queues=2) as (producer, [broker]):
        results = await producer.send_batch(
            "Orders", [b"1", b"2", Message("Orders", b"3", tag="paid", flag=4)], tag="new"
        )
        [request] = broker.of(BATCH)
        items = decode_batch(request.body)
    assert [item.body for item in items] == [b"1", b"2", b"3"]
    assert [item.flag for item in items] == [0, 0, 4]
    assert [decode_properties(item.properties)["TAGS"] for item in items] == ["new", "new", "paid"]
    assert [decode_properties(item.properties)["UNIQ_KEY"] for item in items] == [
        result.id for result in results
    ]
    assert [result.queue_offset for result in results] == [0, 1, 2]
    assert len({result.offset_id for result in results}) == 3
    assert len({result.queue for result in results}) == 1
    assert request.ext_fields["i"] == "WAIT\x01true\x02"


async def test_a_batch_that_is_to_stay_whole_has_a_key_of_its_own() -> None:
    """Only where that is asked for: brokers of 4.9 give it to every message of the batch."""
    async with producing("Orders", queues=2, config=ProducerConfig(whole_batches=True)) as (
        producer,
        [broker],
    ):
        results = await producer.send_batch("Orders", [b"1", b"2"])
        [request] = broker.of(BATCH)
    own = decode_properties(request.ext_fields["i"].encode())
    assert (
        own["WAIT"],
        own["UNIQ_KEY"] in {result.id for result in results},
        len(own["UNIQ_KEY"]),
    ) == ("true", False, 32)


async def test_submitted_messages_with_flags_share_a_request_and_keep_them() -> None:
    flags = [0, 7, -(2**31), 0, 1]
    async with producing("Orders", queues=1) as (producer, [broker]):
        await producer.send("Orders", b"the way is open")
        broker.script(BATCH, error(ResponseCode.MESSAGE_ILLEGAL, "no"))
        for _ in range(2):
            handles = [
                await producer.submit(Message("Orders", b"%d" % i, flag=flag))
                for i, flag in enumerate(flags)
            ]
            await asyncio.gather(*handles)
        await (await producer.submit(Message("Orders", b"alone", flag=9)))
    for request in broker.of(BATCH):
        assert [item.flag for item in decode_batch(request.body)] == flags
    assert len(broker.of(BATCH)) == 2
    # of the refused batch
    assert [header_of(one).flag for one in broker.of(SEND)[1:]] == [*flags, 9]


async def test_messages_that_share_a_request_by_chance_are_no_batch() -> None:
    """A topic of batches would keep them as one record, which one filter passes or does not."""
    async with producing("Orders", queues=1, config=ProducerConfig(max_requests=1)) as (
        producer,
        [broker],
    ):
        await asyncio.gather(*[producer.send("Orders", b"%d" % n) for n in range(40)])
        assert {request.ext_fields["i"] for request in broker.of(BATCH)} == {"WAIT\x01true\x02"}


async def test_a_batch_is_split_by_size() -> None:
    async with producing("Orders", queues=4, config=ProducerConfig(max_batch_bytes=1024)) as (
        producer,
        [broker],
    ):
        bodies = [bytes([i]) * 300 for i in range(10)]
        results = await producer.send_batch("Orders", bodies)
        assert [len(decode_batch(request.body)) for request in broker.of(BATCH)] == [2, 2, 2, 2, 2]
        found = {
            (r.queue.queue_id, r.queue_offset): body
            for r, body in zip(results, bodies, strict=True)
        }
        assert found == {
            (q, i): body
            for q, rows in broker.bodies("Orders").items()
            for i, body in enumerate(rows)
        }


async def test_a_batch_keeps_each_keys_messages_on_their_queue_and_in_order() -> None:
    async with producing("Orders", queues=4) as (producer, [broker]):
        messages = [
            Message("Orders", b"%s%d" % (key.encode(), i), sharding_key=key)
            for i in range(5)
            for key in "abcd"
        ]
        await producer.send_batch("Orders", messages)
        rows = broker.bodies("Orders").values()
        for key in "abcd":
            assert [b"%s%d" % (key.encode(), i) for i in range(5)] in [
                [b for b in row if b.startswith(key.encode())] for row in rows
            ]


async def test_a_batch_is_read_as_far_as_there_is_room() -> None:
    read: list[int] = []

    def bodies() -> Iterator[bytes]:
        for i in range(50):
            read.append(i)
            yield b"%02d" % i + bytes(500)

    config = ProducerConfig(max_batch_bytes=1024, max_in_flight_bytes=8 * 1024)
    async with producing("Orders", config=config) as (producer, [broker]):
        broker.hold(BATCH)
        sending = asyncio.create_task(producer.send_batch("Orders", bodies()))
        await broker.received(BATCH)
        await asyncio.sleep(0)
        assert 1 < len(read) < 20
        broker.release(BATCH)
        results = await sending
        assert [result.queue_offset for result in results] == list(range(50))
        stored = broker.bodies("Orders")[0]
        assert [body[:2] for body in stored] == [b"%02d" % i for i in range(50)]


async def test_keys_of_a_batch_share_a_limited_number_of_begun_requests() -> None:
    config = ProducerConfig(max_batch_bytes=1024)
    async with producing("Orders", queues=4, config=config) as (producer, _):
        messages = [
            Message("Orders", b"%02d" % i + bytes(300), sharding_key=f"key {i % 30}")
            for i in range(90)
        ]
        results = await producer.send_batch("Orders", iter(messages))
        assert len({(result.queue, result.queue_offset) for result in results}) == 90
        for key in range(30):
            mine = [result for i, result in enumerate(results) if i % 30 == key]
            assert len({result.queue for result in mine}) == 1
            assert [one.queue_offset for one in mine] == sorted(one.queue_offset for one in mine)


async def test_what_cannot_stand_in_a_batch_is_refused() -> None:
    async with producing("Orders") as (producer, [broker]):
        with pytest.raises(InvalidOption, match="delayed messages"):
            await producer.send_batch("Orders", [Message("Orders", b"", delay_level=1)])
        with pytest.raises(InvalidOption, match="Prices"):
            await producer.send_batch("Orders", [Message("Prices", b"")])
        for single in (b"body", "body"):
            with pytest.raises(
                TypeError,
                match=r"a batch is a list of bodies or Messages, not (bytes|str): "
                r"send_batch\(topic, \[body\]\)",
            ):
                await producer.send_batch("Orders", single)  # type: ignore[arg-type]
        assert await producer.send_batch("Orders", []) == []
        assert broker.of(BATCH) == []


async def test_a_batch_that_fails_raises_after_the_rest_has_its_outcome() -> None:
    config = ProducerConfig(max_batch_bytes=1024, retries=0)
    async with producing("Orders", config=config) as (producer, [broker]):
        broker.script(BATCH, error(ResponseCode.NO_PERMISSION))
        with pytest.raises(Exception, match="NO_PERMISSION"):
            await producer.send_batch("Orders", [bytes(600)] * 3)
        assert (len(broker.of(BATCH)), producer.in_flight) == (3, 0)


async def test_the_errors_of_a_batch_in_several_requests_are_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with producing("Orders", config=replace(CONFIG, max_batch_bytes=1024)) as (
        producer,
        [broker],
    ):
        broker.on(BATCH, error(ResponseCode.MESSAGE_ILLEGAL))
        broker.on(SEND, error(ResponseCode.MESSAGE_ILLEGAL))
        with pytest.raises(MessageIllegal):
            await producer.send_batch("Orders", [bytes(400)] * 6)
        gc.collect()
    assert [record.message for record in caplog.records] == []


async def test_a_cancelled_batch_does_not_wait_for_what_is_under_way() -> None:
    config = replace(CONFIG, max_batch_bytes=1024, max_in_flight=1)
    async with producing("Orders", config=config) as (producer, [broker]):
        await producer.send("Orders", b"")
        broker.hold(BATCH)
        sending = asyncio.create_task(producer.send_batch("Orders", [bytes(400)] * 6))
        await broker.received(BATCH)
        sending.cancel()
        done, _ = await asyncio.wait([sending], timeout=WAIT_S)
        assert (done, sending.cancelled()) == ({sending}, True)
        broker.release(BATCH)


@pytest.mark.parametrize("key", ["k" * 40_000, "\ud800"])
async def test_keys_of_an_iterator_that_no_broker_takes_are_refused_and_not_dropped(
    key: str,
) -> None:
    async with producing("Orders") as (producer, [broker]):
        await producer.send("Orders", b"")
        with pytest.raises(MessageIllegal):
            await producer.submit("Orders", b"", keys=iter([key]))
        assert len(broker.of(SEND)) == 1


@pytest.mark.feature(133)
async def test_one_way_asks_for_no_answer() -> None:
    async with producing("Orders", queues=2) as (producer, [broker]):
        broker.on(SEND, SILENT)
        for i in range(4):
            await producer.send_oneway("Orders", b"%d" % i, tag="t")
        requests = await broker.received(SEND, 4)
        assert all(request.is_oneway for request in requests)
        assert sorted(header_of(request).queue_id for request in requests) == [0, 0, 1, 1]


# --- life -----------------------------------------------------------------------------------------


async def test_leaving_the_block_waits_for_what_was_submitted() -> None:
    async with FakeBroker({"Orders": 1}) as broker:
        async with Producer(broker.address) as producer:
            futures = [await producer.submit("Orders", b"%d" % i) for i in range(50)]
        assert [future.result().queue_offset for future in futures] == list(range(50))
        assert [
            r.ext_fields["producerGroup"] for r in broker.of(RequestCode.UNREGISTER_CLIENT)
        ] == ["ogive-producer"]


async def test_flush_waits_for_what_came_before_it_only() -> None:
    async with producing("Orders") as (producer, [broker]):
        broker.hold(SEND)
        first = await producer.submit("Orders", b"1")
        await broker.received(SEND)
        flushed = asyncio.create_task(producer.flush())
        await asyncio.sleep(0)
        broker.release(SEND)
        broker.hold(SEND)
        later = await producer.submit("Orders", b"2")
        await flushed
        assert (first.done(), later.done()) == (True, False)
        await broker.received(SEND, 2)
        broker.release(SEND)
        await producer.flush()
        assert later.done()


async def test_a_producer_says_what_is_wrong_with_its_use() -> None:
    producer = Producer()
    with pytest.raises(IllegalStateError, match="not started"):
        await producer.send("Orders", b"")
    await producer.start()
    with pytest.raises(IllegalStateError, match="started before"):
        await producer.start()
    await producer.close()
    await producer.close()
    with pytest.raises(IllegalStateError, match="closed"):
        await producer.send("Orders", b"")


@pytest.mark.feature(6)
async def test_a_shared_client_outlives_its_producers() -> None:
    async with (
        FakeBroker({"Orders": 1}) as broker,
        ClientInstance(ClientConfig(name_server=broker.address)) as client,
    ):
        listening = list(client.routes.on_change)
        for _ in range(2):
            async with (
                Producer(client=client, group="sellers") as one,
                Producer(client=client, group="buyers") as other,
            ):
                await one.send("Orders", b"")
                await other.send("Orders", b"")
        assert client.running
        left = [
            request.ext_fields["producerGroup"]
            for request in broker.of(RequestCode.UNREGISTER_CLIENT)
        ]
        assert left == ["buyers", "sellers"] * 2
        assert client.routes.on_change == listening


async def test_a_second_close_waits_for_the_first() -> None:
    """A signal handler may close while the block ends: whoever is second must not end the program
    under the first.
    """
    async with FakeBroker({"Orders": 1}) as broker:
        producer = Producer(broker.address)
        await producer.start()
        broker.hold(SEND)
        sent = await producer.submit("Orders", b"pay")
        closes = [asyncio.create_task(producer.close()) for _ in range(2)]
        await broker.until(lambda: len(broker.of(SEND)) == 1)
        done, _ = await asyncio.wait(closes, timeout=0.05)
        assert not done
        broker.release(SEND)
        await asyncio.gather(*closes)
        assert sent.done()
        assert (await sent).status is SendStatus.SEND_OK
        await producer.close()


async def test_a_closed_producer_leaves_nothing_behind_on_a_shared_client() -> None:
    """Its broker is away, and stays away."""
    async with (
        FakeBroker({"Orders": 1}) as broker,
        ClientInstance(ClientConfig(name_server=broker.address)) as client,
    ):
        async with FakeBroker({"Orders": 1}, name="broker-b") as away:
            broker.peers.append(away)
            await client.routes.find("Orders")
        async with Producer(client=client) as producer:
            with pytest.raises(SendFailed):
                await producer.send(
                    "Orders", b"", queue=MessageQueue("Orders", "broker-b", 0), timeout_s=0.2
                )
        async with asyncio.timeout(WAIT_S):
            while any("connection to broker-b" in task.get_name() for task in asyncio.all_tasks()):
                await asyncio.sleep(0.01)


async def test_a_message_that_reaches_the_engine_of_a_closed_producer_is_refused() -> None:
    """Another thread may have looked up the engine just before."""
    async with (
        FakeBroker({"Orders": 1}) as broker,
        ClientInstance(ClientConfig(name_server=broker.address)) as client,
    ):
        async with Producer(client=client) as producer:
            await producer.send("Orders", b"")
            publisher, late = (
                producer.publisher,
                producer.builder.message("Orders", b"late", None, (), None, None, None, 0),
            )
        with pytest.raises(IllegalStateError, match="closed"):
            await publisher.accept(late, 1.0)
        assert (publisher.in_flight, broker.bodies("Orders")) == (0, {0: [b""]})


async def test_closing_a_shared_client_under_a_producer_ends_its_messages(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeBroker({"Orders": 1}) as broker:
        client = ClientInstance(ClientConfig(name_server=broker.address))
        await client.start()
        async with Producer(client=client) as producer:
            await producer.send("Orders", b"")
            broker.hold(SEND)
            futures = [
                await producer.submit("Orders", b"", sharding_key=key, timeout_s=1.0)
                for key in (None, "a")
            ]
            await broker.received(SEND, 3)
            await client.close()
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [SendTimeout, SendTimeout]
    assert [record.message for record in caplog.records if record.levelname == "CRITICAL"] == []


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("inf"), float("nan"), 1e9])
async def test_a_time_budget_that_cannot_work_is_refused(timeout_s: float) -> None:
    async with producing("Orders") as (producer, [broker]):
        calls = [
            producer.send("Orders", b"", timeout_s=timeout_s),
            producer.send_oneway("Orders", b"", timeout_s=timeout_s),
            producer.send_batch("Orders", [b""], timeout_s=timeout_s),
        ]
        for call in calls:
            with pytest.raises(InvalidOption, match="timeout_s"):
                await call
        assert (producer.in_flight, broker.of(SEND)) == (0, [])
    for make in (
        lambda: ProducerConfig(send_timeout_s=timeout_s),
        lambda: ClientConfig(request_timeout_s=timeout_s),
    ):
        with pytest.raises(InvalidOption):
            make()


async def test_a_client_that_stopped_after_a_bug_says_so() -> None:
    async def bug() -> None:
        raise ZeroDivisionError

    async with producing("Orders") as (producer, _):
        await asyncio.wait([producer.client.spawn(bug(), "counting")])
        await asyncio.sleep(0)
        with pytest.raises(IllegalStateError, match="ZeroDivisionError"):
            await producer.send("Orders", b"")


async def test_many_clients_come_and_go_without_leaving_tasks_behind() -> None:
    async with FakeBroker({"Orders": 1}) as broker:
        before = len(asyncio.all_tasks())
        for _ in range(20):
            async with Producer(broker.address) as producer:
                await producer.send("Orders", b"")
        async with asyncio.timeout(WAIT_S):
            while len(asyncio.all_tasks()) > before:
                await asyncio.sleep(0.01)
        assert broker.bodies("Orders") == {0: [b""] * 20}
        assert (
            len(
                {
                    request.ext_fields["clientID"]
                    for request in broker.of(RequestCode.UNREGISTER_CLIENT)
                }
            )
            == 20
        )


@pytest.mark.parametrize(
    "options",
    [
        {"send_timeout_s": 0},
        {"retries": -1},
        {"max_in_flight": 0},
        {"max_in_flight_bytes": 0},
        {"compress_level": 10},
        {"max_batch_bytes": 5},
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(InvalidOption):
        ProducerConfig(**options)  # type: ignore[arg-type]


def test_busy_polling_is_accepted_with_a_warning_that_names_the_callers_line() -> None:
    with pytest.warns(DeprecationWarning, match="busy_poll_s") as caught:
        ProducerConfig(busy_poll_s=0.0)
    assert [warning.filename for warning in caught] == [__file__]


def test_the_group_argument_wins_over_the_configuration() -> None:
    names = itertools.starmap(
        lambda group, config: Producer(group=group, config=config).config.group,
        [("a", CONFIG), (None, CONFIG)],
    )
    assert list(names) == ["a", "ogive-producer"]


async def test_a_refused_message_gives_its_room_back() -> None:
    """Its properties are too long, which shows when it is accepted; else the producer would stand
    still after enough of them.
    """
    async with producing("Orders", config=replace(CONFIG, max_in_flight=2)) as (producer, [broker]):
        for _ in range(3):
            with pytest.raises(MessageIllegal, match="bytes of properties"):
                await producer.send("Orders", b"a", properties={"long": "x" * 40_000})
        assert (await producer.send("Orders", b"b", timeout_s=WAIT_S)).queue_offset == 0
        assert broker.bodies("Orders") == {0: [b"b"]}


@pytest.mark.parametrize("sharding_key", [None, "7"], ids=["anywhere", "in order"])
async def test_a_message_that_a_leaving_broker_refused_goes_out_again_on_a_new_connection(
    sharding_key: str | None,
) -> None:
    async with producing("Orders") as (producer, [broker]):
        await producer.send("Orders", b"first")
        left = producer.client.pool.existing(broker.address)
        assert left is not None
        broker.script(SEND, GO_AWAY)
        await producer.send("Orders", b"second", sharding_key=sharding_key)
        assert producer.client.pool.existing(broker.address) is not left
        await left.wait_closed()
        assert broker.bodies("Orders") == {0: [b"first", b"second"]}


@pytest.mark.parametrize("tag", [" a", "a ", "a|b", "a||b", "*", "\ta"])
def test_a_tag_that_no_subscription_can_select_is_refused(tag: str) -> None:
    with pytest.raises(InvalidOption, match="no consumer could select it"):
        Message("Orders", b"x", tag=tag)


@pytest.mark.parametrize("tag", ["a b", "a*b", "\u3000a", "é"])
def test_a_tag_that_a_subscription_selects_is_taken(tag: str) -> None:
    assert parse_tags(f"other || {Message('Orders', b'x', tag=tag).tag}") == ("other", tag)
