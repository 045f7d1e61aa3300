"""What a consume queue holds."""

import pytest

from ogive.broker import Broker
from ogive.broker.pulls import lookup
from ogive.errors import ResponseCode
from ogive.wire.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from ogive.wire.bodies.json_fields import loads_object
from ogive.wire.codes import RequestCode
from tests.raw_client import RawClient


async def test_entries_with_the_group_s_filter(server: Broker, client: RawClient) -> None:
    for tag in ("A", "B", "A"):
        await client.send("T", b"x", {"UNIQ_KEY": tag * 32, "TAGS": tag})
    await client.heartbeat("c1", "G", "T", expression="A")
    answer = await client.ok(
        RequestCode.QUERY_CONSUME_QUEUE, topic="T", queueId=0, index=1, count=5, consumerGroup="G"
    )
    body = loads_object(answer.body)
    assert (body["minQueueIndex"], body["maxQueueIndex"], body["filterData"]) == (0, 3, "null")
    entries = server.context.store.entries("T", 0, 1, 2)
    shown = [
        (row["physicOffset"], row["physicSize"], row["tagsCode"], row["eval"])
        for row in body["queueData"]
    ]
    assert shown == [
        (entry.commitlog_offset, entry.size, entry.tags_code, tag == "A")
        for entry, tag in zip(entries, "BA", strict=True)
    ]
    assert body["subscriptionData"]["subString"] == "A"


async def test_a_group_that_is_not_online_is_named(client: RawClient) -> None:
    await client.send("T")
    answer = await client.ok(
        RequestCode.QUERY_CONSUME_QUEUE, topic="T", queueId=0, index=0, count=1, consumerGroup="G"
    )
    body = loads_object(answer.body)
    assert (body["filterData"], body["subscriptionData"], len(body["queueData"])) == (
        "G@T is not online!",
        None,
        1,
    )


async def test_places_where_nothing_is(client: RawClient) -> None:
    await client.send("T")
    for queue_id, index, remark in (
        (3, 0, "3@T is not exist!"),
        (0, 1, "Index 1 of 0@T is not exist!"),
    ):
        answer = await client.ok(
            RequestCode.QUERY_CONSUME_QUEUE, topic="T", queueId=queue_id, index=index, count=1
        )
        assert (answer.remark, answer.body) == (remark, b"")
    for index, count in ((-1, 1), (0, 0)):
        answer = await client.call(
            RequestCode.QUERY_CONSUME_QUEUE, topic="T", queueId=0, index=index, count=count
        )
        assert answer.code == ResponseCode.INVALID_PARAMETER


async def test_an_expression_that_takes_long_leaves_entries_for_the_next_request(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request over a thousand messages with thousands of properties stopped the broker for two
    seconds.
    """
    monkeypatch.setattr(lookup, "LOOK_S", -1.0)
    await client.send_batch("T", [b"x"] * 3)
    data = SubscriptionData(
        topic="T", expression="colour = 'red'", expression_type="SQL92", version=1
    )
    await client.ok(
        RequestCode.HEART_BEAT,
        HeartbeatData(
            client_id="c1", consumers=(ConsumerData(group="G", subscriptions=(data,)),)
        ).encode(),
    )
    answer = await client.ok(
        RequestCode.QUERY_CONSUME_QUEUE, topic="T", queueId=0, index=0, count=5, consumerGroup="G"
    )
    assert [row["eval"] for row in loads_object(answer.body)["queueData"]] == [False]
