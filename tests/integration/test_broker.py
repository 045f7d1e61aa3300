"""What a broker answers to raw requests, ours and Apache's alike.

Run with ``--broker apache`` to ask theirs.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ogive.errors import ResponseCode
from ogive.model import MessageQueue
from ogive.wire.bodies.clients import consumer_ids_loads
from ogive.wire.codes import RequestCode, SerializeType
from tests.peers import Flavour, RunningBroker
from tests.raw_client import RawClient, messages, unique_key

# Apache's broker answers a send a moment before pulls see the message
HOLD_MS = 15_000


@pytest.fixture(params=list(SerializeType), ids=["json", "binary"])
async def client(request: pytest.FixtureRequest, broker: RunningBroker) -> AsyncIterator[RawClient]:
    """A connection whose requests have JSON headers, then one with binary headers."""
    async with await RawClient.open(broker.address, request.param) as client:
        yield client


@pytest.fixture
async def another(broker: RunningBroker) -> AsyncIterator[RawClient]:
    """A second connection."""
    async with await RawClient.open(broker.address) as client:
        yield client


@pytest.fixture
def topic(topic: str, request: pytest.FixtureRequest) -> str:
    """A new one for each codec too."""
    return f"{topic}_{request.node.callspec.id}" if hasattr(request.node, "callspec") else topic


@pytest.fixture
def group(topic: str) -> str:
    return f"G_{topic}"


async def test_what_is_sent_is_pulled_unchanged(client: RawClient, topic: str, group: str) -> None:
    answer = await client.send(
        topic,
        b"body",
        {"UNIQ_KEY": "7F00000100002A139A55AB9C3C3C0000", "TAGS": "blue", "own": "grün"},
        h=7,
    )
    assert answer.serialize_type == SerializeType.JSON
    pulled = await client.pull(group, topic, 0, suspend_ms=HOLD_MS)
    (message,) = messages(pulled)
    assert (message.body, message.flag, message.tag, message.properties["own"]) == (
        b"body",
        7,
        "blue",
        "grün",
    )
    assert answer.ext_fields["transactionId"] == message.id == "7F00000100002A139A55AB9C3C3C0000"
    assert answer.ext_fields["msgId"] == message.offset_id
    assert (answer.ext_fields["MSG_REGION"], answer.ext_fields["TRACE_ON"]) == (
        "DefaultRegion",
        "true",
    )
    assert {name: message.properties[name] for name in ("MSG_REGION", "TRACE_ON", "CLUSTER")} == {
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
    }
    assert (
        pulled.remark,
        pulled.ext_fields["nextBeginOffset"],
        pulled.ext_fields["maxOffset"],
    ) == ("FOUND", "1", "1")


@pytest.mark.parametrize(
    "properties", [{}, {"DELAY": "1"}, {"TIMER_DELAY_MS": "5"}, {"__SHARDINGKEY": "s"}]
)
async def test_every_topic_takes_messages_of_every_type(
    client: RawClient, topic: str, properties: dict[str, str]
) -> None:
    for kind in ("NORMAL", "FIFO", "DELAY", "TRANSACTION"):
        await client.ok(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            topic=f"{topic}{kind}",
            defaultTopic="TBW102",
            readQueueNums=1,
            writeQueueNums=1,
            perm=6,
            topicFilterType="SINGLE_TAG",
            order=False,
            attributes=f"+message.type={kind}",
        )
        await client.send(f"{topic}{kind}", b"x", properties | {"UNIQ_KEY": unique_key()})


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS"])
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("0" * 18 + "100", ResponseCode.SUCCESS),
        ("+100", ResponseCode.SUCCESS),
        ("\u0661\u0660\u0660", ResponseCode.SUCCESS),
        ("1_000", ResponseCode.MESSAGE_ILLEGAL),
        (" 100", ResponseCode.MESSAGE_ILLEGAL),
        ("100 ", ResponseCode.MESSAGE_ILLEGAL),
        ("9223372036854775808", ResponseCode.MESSAGE_ILLEGAL),
    ],
    ids=["zeros", "plus", "arabic", "underscore", "before", "behind", "long"],
)
@pytest.mark.since("5.3.2", what="recall handles")
async def test_a_delay_is_read_as_java_reads_a_long(
    client: RawClient, topic: str, name: str, text: str, code: int
) -> None:
    answer = await client.start_send(topic, b"x", {name: text, "UNIQ_KEY": unique_key()})
    assert (answer.code, "recallHandle" in answer.ext_fields) == (
        code,
        code == ResponseCode.SUCCESS,
    ), answer


@pytest.mark.parametrize(
    "text", ["1_0", " 0", "0 ", "", "2147483648", "\U0001d7d8"], ids=["1", "2", "3", "4", "5", "6"]
)
async def test_a_queue_id_that_java_does_not_read_is_refused(
    client: RawClient, topic: str, text: str
) -> None:
    await client.send(topic)
    for code, name in ((310, "e"), (10, "queueId")):
        fields = client.send_fields(topic, 0, "UNIQ_KEY\x01AB\x02") | {
            "topic": topic,
            "producerGroup": "P",
            "defaultTopic": "TBW102",
        }
        long = {"defaultTopicQueueNums": 4, "sysFlag": 0, "bornTimestamp": 1, "flag": 0}
        assert (
            await client.call(code, b"x", **(fields | long | {name: text}))
        ).code == ResponseCode.SYSTEM_ERROR


async def test_a_batch_gets_offsets_that_follow_each_other(
    client: RawClient, topic: str, group: str
) -> None:
    answer = await client.send_batch(topic, [b"a", b"b", b"c"], UNIQ_KEY="AB")
    # held until it is there; one further ahead is answered at once
    for offset in range(3):
        await client.pull(group, topic, offset, suspend_ms=HOLD_MS)
    pulled = messages(await client.pull(group, topic, 0))
    assert [(message.body, message.queue_offset) for message in pulled] == [
        (b"a", 0),
        (b"b", 1),
        (b"c", 2),
    ]
    assert answer.ext_fields["msgId"] == ",".join(message.offset_id for message in pulled)


async def test_a_oneway_send_is_stored(client: RawClient, topic: str, group: str) -> None:
    await client.send(topic, b"first")
    client.oneway(310, b"quiet", **client.send_fields(topic, 0, "UNIQ_KEY\x01AB\x02"))
    assert [
        message.body for message in messages(await client.pull(group, topic, 1, suspend_ms=HOLD_MS))
    ] == [b"quiet"]


@pytest.mark.parametrize(
    ("offset", "code", "remark"),
    [
        (2, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE"),
        (9, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY"),
    ],
)
async def test_offsets_past_the_end(
    client: RawClient, topic: str, group: str, offset: int, code: int, remark: str
) -> None:
    for _ in range(2):
        await client.send(topic)
    await client.pull(group, topic, 1, suspend_ms=HOLD_MS)
    answer = await client.pull(group, topic, offset)
    assert (answer.code, answer.remark, answer.ext_fields["nextBeginOffset"]) == (code, remark, "2")


async def test_an_empty_queue(client: RawClient, topic: str, group: str) -> None:
    await client.send(topic, queue=1)
    answers = [await client.pull(group, topic, offset) for offset in (0, 5)]
    assert [(answer.code, answer.remark) for answer in answers] == [
        (ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE"),
        (ResponseCode.PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE"),
    ]


async def test_tags_are_filtered_by_the_broker(client: RawClient, topic: str, group: str) -> None:
    for tag in ("red", "blue", "red"):
        await client.send(topic, tag.encode(), {"TAGS": tag, "UNIQ_KEY": "AB"})
    await client.pull(group, topic, 2, suspend_ms=HOLD_MS)
    answer = await client.pull(group, topic, 0, subscription="blue || green")
    assert [message.tag for message in messages(answer)] == ["blue"]
    answer = await client.pull(group, topic, 0, subscription="green")
    assert (answer.code, answer.remark) == (
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        "NO_MATCHED_MESSAGE",
    )
    assert answer.ext_fields["nextBeginOffset"] == "3"


async def test_a_held_pull_gets_the_next_message(
    client: RawClient, another: RawClient, topic: str, group: str
) -> None:
    await client.send(topic, b"old")
    await client.pull(group, topic, 0, suspend_ms=HOLD_MS)
    pull = client.start_pull(group, topic, 1, suspend_ms=HOLD_MS)
    await client.call(RequestCode.GET_MAX_OFFSET, topic=topic, queueId=0)
    assert not pull.done()
    await another.send(topic, b"new")
    assert [message.body for message in messages(await pull)] == [b"new"]


async def test_a_delayed_message_comes_when_it_is_due(
    client: RawClient, topic: str, group: str
) -> None:
    await client.send(topic, b"now")
    await client.send(topic, b"later", {"DELAY": "1", "UNIQ_KEY": "AB"})
    (message,) = messages(await client.pull(group, topic, 1, suspend_ms=HOLD_MS))
    assert message.body == b"later"
    assert (
        message.properties["DELAY"],
        message.properties["REAL_TOPIC"],
        message.properties["REAL_QID"],
    ) == ("1", topic, "0")
    assert message.queue_offset == 1


async def test_a_message_sent_back_comes_again_and_then_rests_with_the_dead_letters(
    client: RawClient, topic: str, group: str
) -> None:
    await client.heartbeat(f"c@{group}", group, topic)
    await client.send(topic, b"order", {"UNIQ_KEY": "AB", "TAGS": "paid"})
    (first,) = messages(await client.pull(group, topic, 0, suspend_ms=HOLD_MS))
    back = {
        "group": group,
        "originMsgId": first.id,
        "originTopic": topic,
        "unitMode": False,
        "maxReconsumeTimes": 1,
    }
    await client.ok(
        RequestCode.CONSUMER_SEND_MSG_BACK, **back, offset=first.commitlog_offset, delayLevel=0
    )
    (again,) = messages(await client.pull(group, f"%RETRY%{group}", 0, suspend_ms=HOLD_MS))
    assert (again.body, again.id, again.tag, again.reconsume_times) == (b"order", "AB", "paid", 1)
    assert (again.properties["RETRY_TOPIC"], again.properties["ORIGIN_MESSAGE_ID"]) == (
        topic,
        first.offset_id,
    )
    await client.ok(
        RequestCode.CONSUMER_SEND_MSG_BACK, **back, offset=again.commitlog_offset, delayLevel=0
    )
    (dead,) = messages(await client.pull(group, f"%DLQ%{group}", 0, suspend_ms=HOLD_MS))
    assert (dead.body, dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (b"order", 2, topic)
    assert dead.properties["ORIGIN_MESSAGE_ID"] == first.offset_id


async def test_members_see_each_other_and_hear_of_changes(
    client: RawClient, broker: RunningBroker, topic: str, group: str
) -> None:
    answer = await client.heartbeat("c1", group, topic)
    assert answer.ext_fields["IS_SUPPORT_HEART_BEAT_V2"] == "true"
    async with await RawClient.open(broker.address) as other:
        await other.heartbeat("c2", group, topic)
        assert (await client.next_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)).ext_fields[
            "consumerGroup"
        ] == group
        listed = consumer_ids_loads(
            (await client.ok(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)).body
        )
        assert sorted(listed) == ["c1", "c2"]
        await other.ok(RequestCode.UNREGISTER_CLIENT, clientID="c2", consumerGroup=group)
    listed = consumer_ids_loads(
        (await client.ok(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)).body
    )
    assert listed == ["c1"]


@pytest.mark.feature(95)
async def test_one_client_locks_a_queue(client: RawClient, topic: str, group: str) -> None:
    await client.send(topic)
    queues = [MessageQueue(topic, "broker-a", number) for number in range(2)]
    assert await client.lock("c1", group, queues[0]) == [0]
    assert await client.lock("c2", group, *queues) == [1]
    await client.unlock("c1", group, queues[0])
    assert await client.lock("c2", group, queues[0]) == [0]


async def test_progress_is_kept_and_a_new_group_starts_at_zero(
    client: RawClient, topic: str, group: str
) -> None:
    await client.send(topic)
    await client.heartbeat("c1", group, topic)
    position = {"consumerGroup": group, "topic": topic, "queueId": 0}
    assert (await client.ok(RequestCode.QUERY_CONSUMER_OFFSET, **position)).ext_fields[
        "offset"
    ] == "0"
    answer = await client.call(
        RequestCode.QUERY_CONSUMER_OFFSET, **position, setZeroIfNotFound=False
    )
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **position, commitOffset=1)
    assert (await client.ok(RequestCode.QUERY_CONSUMER_OFFSET, **position)).ext_fields[
        "offset"
    ] == "1"
    await client.pull(group, topic, 0, commit=0)
    assert (await client.ok(RequestCode.QUERY_CONSUMER_OFFSET, **position)).ext_fields[
        "offset"
    ] == "0"


async def test_offsets_by_time(client: RawClient, topic: str, group: str) -> None:
    for _ in range(3):
        await client.send(topic)
    queue = {"topic": topic, "queueId": 0}
    await client.pull(group, topic, 2, suspend_ms=HOLD_MS)
    (first, *_) = messages(await client.pull(group, topic, 0, suspend_ms=HOLD_MS))
    found = {
        name: int(
            (
                await client.ok(
                    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                    **queue,
                    timestamp=time_ms,
                    boundaryType=name,
                )
            ).ext_fields["offset"]
        )
        for name, time_ms in (("LOWER", 0), ("UPPER", 4_000_000_000_000))
    }
    assert found == {"LOWER": 0, "UPPER": 2}
    assert (await client.ok(RequestCode.GET_MAX_OFFSET, **queue)).ext_fields["offset"] == "3"
    assert (await client.ok(RequestCode.GET_MIN_OFFSET, **queue)).ext_fields["offset"] == "0"
    answer = await client.ok(RequestCode.GET_EARLIEST_MSG_STORETIME, **queue)
    assert answer.ext_fields["timestamp"] == str(first.store_timestamp_ms)


async def test_a_message_is_viewed_by_its_offset(client: RawClient, topic: str, group: str) -> None:
    await client.send(topic, b"look")
    (message,) = messages(await client.pull(group, topic, 0, suspend_ms=HOLD_MS))
    assert messages(
        await client.ok(RequestCode.VIEW_MESSAGE_BY_ID, offset=message.commitlog_offset)
    ) == [message]


async def test_refusals_have_the_same_codes(client: RawClient, topic: str, group: str) -> None:
    await client.send(topic)
    answers = await asyncio.gather(
        client.call(4_711),
        client.start_send("SCHEDULE_TOPIC_XXXX"),
        client.start_send(topic, queue=99),
        client.start_send("no such name"),
        client.pull(group, f"{topic}_missing", 0),
        client.pull(group, topic, 0, queue=99),
        client.pull(group, topic, 0, subscription=None),
        client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=f"{group}_nobody"),
        client.call(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup=f"{group}_nobody",
            topic=topic,
            queueId=0,
            commitOffset=0,
        ),
    )
    assert [answer.code for answer in answers] == [
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.NO_PERMISSION,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ]


async def test_a_big_pull_is_served_to_who_asks_for_it(
    client: RawClient, flavour: Flavour, topic: str, group: str
) -> None:
    if flavour == "apache":
        pytest.skip(
            "Apache's broker gives at most 32 messages a pull, its "
            "maxTransferCountOnMessageInMemory: there is no larger one to compare"
        )
    await client.send_batch(topic, [b"x"] * 1_000)
    assert len(messages(await client.pull(group, topic, 0, count=4096))) == 1_000
    assert len(messages(await client.pull(group, topic, 0, count=32))) == 32
