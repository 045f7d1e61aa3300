"""Sends over a socket: what is stored, what is answered, what is refused."""

import asyncio
from unittest.mock import Mock

import pytest

from ogive.broker import Broker
from ogive.errors import ResponseCode, StoreBusy, StoreFailed
from ogive.model import MAX_BODY_BYTES, MessageExt, MessageQueue, PropertyName
from ogive.store.types import NewMessage, PutDone
from ogive.wire.codes import RequestCode, SerializeType, SysFlag
from ogive.wire.message import MAX_PROPERTIES_BYTES, BatchItem, encode_batch, encode_properties
from tests.raw_client import RawClient, messages
from tests.unit.broker.conftest import StartBroker

LONG = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "m": "batch",
}


async def stored(client: RawClient, topic: str, offset: int = 0, queue: int = 0) -> MessageExt:
    return messages(await client.pull("looker", topic, offset, queue=queue))[0]


@pytest.mark.parametrize("codec", SerializeType)
async def test_a_message_is_stored_as_it_was_sent_with_what_the_broker_adds(
    client: RawClient, codec: SerializeType
) -> None:
    client.codec = codec
    sent = {
        "UNIQ_KEY": "7F00000100002A139A55AB9C3C3C0000",
        "TAGS": "blue",
        "KEYS": "k1 k2",
        "own": "grün",
    }
    answer = await client.send("T", b"body", sent, queue=1, h=-7, j=2)
    message = await stored(client, "T", queue=1)
    assert answer.ext_fields == {
        "queueId": "1",
        "queueOffset": "0",
        "msgId": message.offset_id,
        "transactionId": "7F00000100002A139A55AB9C3C3C0000",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    added = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
    assert {
        name: value for name, value in message.properties.items() if name != PropertyName.RECORD_CRC
    } == sent | added
    assert (message.body, message.flag, message.reconsume_times) == (b"body", -7, 2)
    assert message.born_timestamp_ms == 1_795_230_231_293
    assert message.born_host.startswith("127.0.0.1:")


async def test_the_long_names_of_code_10_mean_the_same(client: RawClient) -> None:
    fields = {
        LONG[name]: value
        for name, value in client.send_fields("T", 2, "UNIQ_KEY\x01AB\x02TAGS\x01t").items()
    }
    answer = await client.ok(RequestCode.SEND_MESSAGE, b"long", **fields)
    assert (answer.ext_fields["queueId"], answer.ext_fields["transactionId"]) == ("2", "AB")
    message = await stored(client, "T", queue=2)
    assert (message.body, message.tag, message.id) == (b"long", "t", "AB")


async def test_numbers_may_be_bare_as_clients_in_cpp_write_them(client: RawClient) -> None:
    """Their ``batch`` and ``unitMode`` are 0 and 1, and the properties end without a separator or
    with one.
    """
    fields = {
        LONG[name]: value
        for name, value in client.send_fields(
            "T", 0, "KEYS\x01k\x02UNIQ_KEY\x01AB12\x02WAIT\x01true\x02"
        ).items()
    }
    answer = await client.ok(
        RequestCode.SEND_MESSAGE,
        b"x",
        **(fields | {"batch": "0", "unitMode": "0", "AccessKey": ""}),
    )
    assert answer.ext_fields["transactionId"] == "AB12"


async def test_a_message_without_a_unique_key_gets_one(client: RawClient) -> None:
    answer = await client.send("T", b"x", {"TAGS": "t"})
    message = await stored(client, "T")
    assert len(message.properties["UNIQ_KEY"]) == 32
    assert answer.ext_fields["transactionId"] == message.id


async def test_a_name_that_only_ends_like_a_special_one_is_an_ordinary_property(
    client: RawClient,
) -> None:
    sent = {
        "MY_UNIQ_KEY": "1",
        "XDELAY": "5",
        "NO_TRAN_MSG": "true",
        "OLD_CLUSTER": "c",
        "UNIQ_KEY": "AB",
    }
    await client.send("T", b"x", sent)
    message = await stored(client, "T")
    assert {name: message.properties[name] for name in sent} == sent


async def test_properties_of_a_message_that_went_through_a_broker_before_are_not_doubled(
    client: RawClient,
) -> None:
    await client.send(
        "T",
        b"x",
        {
            "UNIQ_KEY": "AB",
            "CLUSTER": "Old",
            "MSG_REGION": "Mars",
            "TRACE_ON": "false",
            "POP_CK": "1 2 3",
        },
    )
    message = await stored(client, "T")
    assert message.properties["CLUSTER"] == "DefaultCluster"
    assert message.properties["MSG_REGION"] == "DefaultRegion"
    assert "POP_CK" not in message.properties
    assert message.properties.raw.count(b"CLUSTER\x01") == 1  # type: ignore[attr-defined]


async def test_a_unique_key_that_needs_escaping_stays_readable_json(client: RawClient) -> None:
    answer = await client.send("T", b"x", {"UNIQ_KEY": 'a"b\\ü'})
    assert answer.ext_fields["transactionId"] == 'a"b\\ü'


async def test_pipelined_sends_keep_their_order_and_get_consecutive_offsets(
    client: RawClient,
) -> None:
    answers = await asyncio.gather(
        *[client.start_send("Fresh", b"%d" % number) for number in range(500)]
    )
    assert [int(answer.ext_fields["queueOffset"]) for answer in answers] == list(range(500))
    pulled = messages(await client.pull("looker", "Fresh", 0, count=1000))
    assert [message.body for message in pulled] == [b"%d" % number for number in range(500)]


async def test_sends_of_several_clients_in_one_turn_are_one_write(
    server: Broker, client: RawClient, another: RawClient
) -> None:
    for sender in (client, another):
        await sender.send("T", b"first")
    groups = server.context.store.stats().groups
    await asyncio.gather(
        client.start_send("T", b"1"), another.start_send("T", b"2"), client.start_send("T", b"3")
    )
    assert server.context.store.stats().groups == groups + 1


async def test_sends_in_a_turn_that_is_held_go_to_the_writer_with_it(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without another turn of the loop, and all of them together."""
    await client.send("T", b"first")
    ctx, submitted = server.context, Mock(wraps=server.context.store.submit)
    monkeypatch.setattr(ctx.store, "submit", submitted)
    assert ctx.turn.hold()
    for body in (b"second", b"third"):
        ctx.put(
            [NewMessage("T", 0, body, b"", 0, 0, 0, bytes(8), bytes(8), 0)],
            "T",
            lambda result: None,
        )
    assert not submitted.called
    ctx.turn.run()
    submitted.assert_called_once()


async def test_a_oneway_send_is_stored_and_not_answered(client: RawClient) -> None:
    client.oneway(310, b"quiet", **client.send_fields("T", 0, "UNIQ_KEY\x01AB\x02"))
    await client.send("T", b"loud")
    assert [message.body for message in messages(await client.pull("looker", "T", 0))] == [
        b"quiet",
        b"loud",
    ]
    assert client.connection.received_frames == 2


# --- topics and queues ----------------------------------------------------------------------------


async def test_the_first_send_makes_the_topic_and_is_acknowledged_with_it_on_disk(
    server: Broker, client: RawClient
) -> None:
    await client.send("Fresh", d=3)
    assert not server.context.topics.unsaved
    assert b'"Fresh"' in (server.config.data / "config" / "topics.json").read_bytes()
    config = server.context.topics.get("Fresh")
    assert config is not None
    assert (config.read_queues, config.write_queues, config.perm) == (3, 3, 6)


async def test_no_topic_is_made_when_that_is_switched_off(start_broker: StartBroker) -> None:
    server = await start_broker(auto_create_topics=False)
    async with await RawClient.open(server.address) as client:
        answer = await client.start_send("Fresh")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert "Fresh" in (answer.remark or "")


@pytest.mark.parametrize("topic", ["", "a b", "../etc", "t" * 128, "ünï"])
async def test_a_bad_topic_name_is_an_invalid_parameter(client: RawClient, topic: str) -> None:
    assert (await client.start_send(topic)).code in (
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.SYSTEM_ERROR,
    )


@pytest.mark.parametrize(
    "topic",
    [
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "OFFSET_MOVED_EVENT",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        # else a lease that was made up copies a message of any topic to the retries of any group
        "rmq_sys_REVIVE_LOG_DefaultCluster",
    ],
)
async def test_reserved_topics_take_no_sends(client: RawClient, topic: str) -> None:
    assert (await client.start_send(topic)).code == ResponseCode.NO_PERMISSION


async def test_a_queue_beyond_the_topic_is_refused_and_a_negative_one_is_chosen(
    client: RawClient,
) -> None:
    await client.send("T")
    assert (await client.start_send("T", queue=4)).code == ResponseCode.INVALID_PARAMETER
    answer = await client.send("T", queue=-1)
    assert 0 <= int(answer.ext_fields["queueId"]) < 4


# --- what a message may be ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "properties", "code"),
    [
        ({"f": SysFlag.TRANSACTION_PREPARED}, None, ResponseCode.MESSAGE_ILLEGAL),
        ({"f": SysFlag.TRANSACTION_COMMIT}, None, ResponseCode.MESSAGE_ILLEGAL),
        (
            {"f": SysFlag.TRANSACTION_ROLLBACK},
            {"TRAN_MSG": "true", "PGROUP": "g", "UNIQ_KEY": "AB"},
            ResponseCode.MESSAGE_ILLEGAL,
        ),
        ({}, {"TRAN_MSG": "true", "UNIQ_KEY": "AB"}, ResponseCode.MESSAGE_ILLEGAL),
        (
            {},
            {"TRAN_MSG": "true", "PGROUP": "g" * 256, "UNIQ_KEY": "AB"},
            ResponseCode.MESSAGE_ILLEGAL,
        ),
        (
            {},
            {"TRAN_MSG": "true", "PGROUP": "g", "DELAY": "1", "UNIQ_KEY": "AB"},
            ResponseCode.MESSAGE_ILLEGAL,
        ),
        (
            {},
            {"TRAN_MSG": "true", "PGROUP": "g", "TIMER_DELAY_MS": "1", "UNIQ_KEY": "AB"},
            ResponseCode.MESSAGE_ILLEGAL,
        ),
        ({"f": SysFlag.INNER_BATCH}, None, ResponseCode.MESSAGE_ILLEGAL),
        (
            {"f": SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP},
            {"INNER_NUM": "2", "UNIQ_KEY": "AB"},
            ResponseCode.MESSAGE_ILLEGAL,
        ),
        ({}, {"INNER_NUM": "2", "INNER_BASE": "0", "UNIQ_KEY": "AB"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"f": -1}, None, ResponseCode.MESSAGE_ILLEGAL),
        ({"h": 1 << 31}, None, ResponseCode.SYSTEM_ERROR),
        ({"g": -1}, None, ResponseCode.MESSAGE_ILLEGAL),
        ({"g": 1 << 63}, None, ResponseCode.SYSTEM_ERROR),
        ({"j": -1}, None, ResponseCode.MESSAGE_ILLEGAL),
        ({}, {"TIMER_DELAY_MS": "5 s", "UNIQ_KEY": "AB"}, ResponseCode.MESSAGE_ILLEGAL),
        ({}, {"DELAY": "soon", "UNIQ_KEY": "AB"}, ResponseCode.SYSTEM_ERROR),
        (
            {},
            {"long": "p" * (MAX_PROPERTIES_BYTES - 40), "UNIQ_KEY": "AB"},
            ResponseCode.MESSAGE_ILLEGAL,
        ),
    ],
)
async def test_what_cannot_be_stored_is_refused_with_a_reason(
    server: Broker,
    client: RawClient,
    changed: dict[str, int],
    properties: dict[str, str] | None,
    code: int,
) -> None:
    answer = await client.start_send("T", b"x", properties, **changed)
    assert answer.code == code, answer
    assert answer.remark
    assert server.context.store.stats().puts == 0


async def test_a_body_of_the_limit_is_stored_and_one_byte_more_is_not(
    start_broker: StartBroker,
) -> None:
    server = await start_broker(segment_bytes=8 * 1024 * 1024)
    async with await RawClient.open(server.address) as client:
        await client.send("T", bytes(MAX_BODY_BYTES))
        assert (
            await client.start_send("T", bytes(MAX_BODY_BYTES + 1))
        ).code == ResponseCode.MESSAGE_ILLEGAL
        assert len((await stored(client, "T")).body) == MAX_BODY_BYTES


# --- batches --------------------------------------------------------------------------------------


async def test_a_batch_is_stored_in_order_with_its_items_as_they_are(client: RawClient) -> None:
    await client.send("T", b"first")
    answer = await client.send_batch("T", [b"a", b"b", b"c"], UNIQ_KEY="BATCH1")
    pulled = messages(await client.pull("looker", "T", 1))
    assert [message.body for message in pulled] == [b"a", b"b", b"c"]
    assert answer.ext_fields["msgId"] == ",".join(message.offset_id for message in pulled)
    assert (answer.ext_fields["queueOffset"], answer.ext_fields["transactionId"]) == ("1", "BATCH1")
    assert all("CLUSTER" not in message.properties for message in pulled)


async def test_a_batch_without_a_key_of_its_own_is_answered_without_one(client: RawClient) -> None:
    answer = await client.send_batch("T", [b"a", b"b"])
    pulled = messages(await client.pull("looker", "T", 0))
    assert (answer.ext_fields["msgId"], answer.ext_fields.get("transactionId")) == (
        ",".join(m.offset_id for m in pulled),
        None,
    )


async def test_a_batch_that_is_sent_one_way_is_stored_and_not_answered(client: RawClient) -> None:
    items = encode_batch([BatchItem(0, b"a", b""), BatchItem(0, b"b", b"")])
    client.oneway(320, items, **(client.send_fields("T", 0, "UNIQ_KEY\x01B\x02") | {"m": True}))
    answer = await client.send("T", b"c")
    assert (answer.ext_fields["queueOffset"], client.connection.received_frames) == ("2", 1)


async def test_a_batch_with_too_many_properties_is_refused_as_a_whole(
    server: Broker, client: RawClient
) -> None:
    items = encode_batch(
        [BatchItem(0, b"a", b""), BatchItem(0, b"b", b"K\x01" + b"v" * MAX_PROPERTIES_BYTES)]
    )
    answer = await client.call(320, items, **(client.send_fields("T", 0, "") | {"m": True}))
    assert (answer.code, server.context.store.stats().puts) == (ResponseCode.MESSAGE_ILLEGAL, 0)


@pytest.mark.parametrize("behind", ["", "{name}\x01\x02"], ids=["once", "and without a value"])
@pytest.mark.parametrize("name", ["DELAY", "TRAN_MSG", "TIMER_DELAY_SEC", "INNER_NUM"])
async def test_a_batch_with_a_special_item_is_refused_as_a_whole(
    server: Broker, client: RawClient, name: str, behind: str
) -> None:
    """A property without a value is none, and hides none of the same name before it."""
    properties = encode_properties({name: "1"}) + behind.format(name=name).encode()
    items = [BatchItem(0, b"plain", b""), BatchItem(0, b"special", properties)]
    answer = await client.call(
        320, encode_batch(items), **(client.send_fields("T", 0, "") | {"m": True})
    )
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert server.context.store.stats().puts == 0


@pytest.mark.parametrize("body", [b"", b"\x00\x00\x00\x05", bytes(22), b"\xff" * 30])
async def test_a_batch_that_does_not_add_up_is_refused(client: RawClient, body: bytes) -> None:
    answer = await client.call(320, body, **(client.send_fields("T", 0, "") | {"m": True}))
    assert answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL)


@pytest.mark.parametrize(
    "name", ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TRAN_MSG"]
)
async def test_a_batch_whose_own_properties_delay_it_is_refused(
    server: Broker, client: RawClient, name: str
) -> None:
    changed = {name: "3000000000000"}
    answer = await client.send_batch("T", [b"a", b"b"], **changed)  # type: ignore[arg-type]
    assert (answer.code, answer.remark) == (
        ResponseCode.MESSAGE_ILLEGAL,
        "a batch can be neither delayed nor transactional",
    )
    assert server.context.store.max_offset("T", 0) == 0


@pytest.mark.parametrize(
    ("text", "count"),
    [("true", 2), ("TRUE", 2), ("True", 2), ("1", 2), ("false", 1), ("0", 1), ("yes", 1)],
)
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
async def test_whether_a_send_is_a_batch_is_read_as_by_java(
    server: Broker, client: RawClient, code: RequestCode, text: str, count: int
) -> None:
    body = encode_batch([BatchItem(0, b"a", b""), BatchItem(0, b"b", b"")])
    fields = client.send_fields("T", 0, "UNIQ_KEY\x01AB\x02") | {"m": text}
    if code == RequestCode.SEND_MESSAGE:
        fields = {LONG[name]: value for name, value in fields.items()}
    await client.ok(code, body, **fields)
    assert server.context.store.max_offset("T", 0) == count


@pytest.mark.parametrize(("text", "flag"), [("true", 1), ("TRUE", 1), ("false", 0), ("", 0)])
async def test_whether_a_new_topic_is_of_a_unit_is_read_as_by_java(
    server: Broker, client: RawClient, text: str, flag: int
) -> None:
    await client.send("New", k=text)
    topic = server.context.topics.get("New")
    assert topic is not None
    assert topic.sys_flag == flag


async def test_a_batch_for_a_retry_topic_is_refused(client: RawClient) -> None:
    await client.heartbeat("c1", "G", "T")
    assert (await client.send_batch("%RETRY%G", [b"a"])).code == ResponseCode.MESSAGE_ILLEGAL


# --- retry topics ---------------------------------------------------------------------------------


async def test_a_retry_topic_of_an_unknown_group_is_refused_where_none_is_made(
    start_broker: StartBroker,
) -> None:
    server = await start_broker(auto_create_groups=False)
    async with await RawClient.open(server.address) as client:
        assert (
            await client.start_send("%RETRY%nobody")
        ).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert server.context.topics.get("%RETRY%nobody") is None


@pytest.mark.parametrize(
    ("reconsume_times", "limit", "dead"),
    [(0, None, False), (16, None, False), (17, None, True), (2, 1, True), (1, 1, False)],
)
async def test_a_message_with_too_many_retries_goes_to_the_dead_letters(
    client: RawClient, reconsume_times: int, limit: int | None, dead: bool
) -> None:
    await client.heartbeat("c1", "G", "T")
    changed = {"j": reconsume_times} | ({} if limit is None else {"l": limit})
    await client.send("%RETRY%G", b"again", {"UNIQ_KEY": "AB", "RETRY_TOPIC": "T"}, **changed)
    topic = "%DLQ%G" if dead else "%RETRY%G"
    message = await stored(client, topic)
    assert (message.body, message.reconsume_times) == (b"again", reconsume_times)
    assert message.properties.get("DELAY") == ("-1" if dead else None)


async def test_a_retry_of_an_orderly_group_goes_to_the_dead_letters_at_once(
    client: RawClient,
) -> None:
    await client.heartbeat("c1", "G", "T")
    await client.send("T")
    assert await client.lock("c1", "G", MessageQueue("T", "broker-a", 0)) == [0]
    await client.send("%RETRY%G", b"given up", {"UNIQ_KEY": "AB"}, j=1)
    assert (await stored(client, "%DLQ%G")).body == b"given up"


# --- a store that cannot --------------------------------------------------------------------------


async def test_a_busy_store_is_answered_as_busy(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(_messages: list[NewMessage], _done: PutDone) -> None:
        raise StoreBusy("too much waits")

    monkeypatch.setattr(server.context.store, "put", put)
    answer = await client.start_send("T")
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "too much waits" in (answer.remark or "")


async def test_too_many_waiting_sends_are_answered_as_busy(start_broker: StartBroker) -> None:
    server = await start_broker(max_sends_waiting=3)
    async with await RawClient.open(server.address) as client:
        await client.send("T")
        answers = await asyncio.gather(*[client.start_send("T") for _ in range(50)])
        codes = [answer.code for answer in answers]
        assert codes.count(ResponseCode.SUCCESS) >= 3
        assert set(codes) == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
        assert server.context.sends_waiting == 0
        await client.send("T")


async def test_a_failed_store_is_not_available_for_sends_and_still_serves_pulls(
    server: Broker, client: RawClient
) -> None:
    await client.send("T", b"kept")
    server.context.store._fail(StoreFailed("the disk is gone"))
    assert (await client.start_send("T")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (await stored(client, "T")).body == b"kept"
    assert isinstance(await server.failed, StoreFailed)


@pytest.mark.parametrize(
    "waits", [{"DELAY": "3"}, {"TIMER_DELAY_SEC": "60"}], ids=["delay level", "timer"]
)
async def test_what_could_not_be_delivered_later_is_refused_now(
    start_broker: StartBroker, waits: dict[str, str]
) -> None:
    """A record of its own topic, whose name is longer than that of the topic it waits in, does not
    fit a segment of this size.
    """
    server = await start_broker(segment_bytes=64 * 1024)
    store, topic = server.context.store, "L" * 120
    async with await RawClient.open(server.address) as client:
        await client.send(topic, b"x", {"UNIQ_KEY": "A"} | waits)
        end = store.stats().commitlog_end
        refused = await client.start_send(
            topic, bytes(64 * 1024 - end - 50), {"UNIQ_KEY": "A"} | waits
        )
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert "do not fit a commit-log segment of 65536 bytes" in (refused.remark or "")
        assert store.stats().commitlog_end == end
        await client.send(topic, bytes(64 * 1024 - end - 250), {"UNIQ_KEY": "A"} | waits)
        # of a short name
        await client.send("T", bytes(64 * 1024 - end - 50), {"UNIQ_KEY": "A"} | waits)


async def test_a_topic_without_write_queues_is_closed_for_who_names_no_queue_and_still_read(
    client: RawClient,
) -> None:
    await client.send("T", b"before")
    numbers: dict[str, object] = {
        "readQueueNums": 4,
        "writeQueueNums": 0,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "order": False,
    }
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_TOPIC, topic="T", defaultTopic="TBW102", **numbers
    )
    refused = await client.start_send("T", queue=-1)
    assert (refused.code, refused.remark) == (
        ResponseCode.INVALID_PARAMETER,
        "topic T has no write queues",
    )
    assert (await stored(client, "T")).body == b"before"
