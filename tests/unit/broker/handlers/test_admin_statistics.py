"""Figures by topic and group."""

from collections.abc import Callable
from typing import Any, Literal

import pytest

from ogive.broker import Broker
from ogive.errors import ResponseCode, StoreError
from ogive.store.file_reader import Place
from ogive.wire import java_json
from ogive.wire.bodies.configs import SubscriptionGroupConfig
from ogive.wire.bodies.json_fields import dumps, loads_object
from ogive.wire.codes import RequestCode
from tests.raw_client import RawClient
from tests.unit.broker.cold_disk import ColdDisk


async def figures(client: RawClient, name: str, key: str) -> list[int]:
    """Sums of the last minute, hour and day."""
    answer = await client.ok(RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
    return [
        loads_object(answer.body)[window]["sum"]
        for window in ("statsMinute", "statsHour", "statsDay")
    ]


async def test_sends_and_pulls_count_for_their_topic_and_group(
    server: Broker, client: RawClient
) -> None:
    for _ in range(3):
        await client.send("T", b"x" * 100)
    await client.send_batch("T", [b"y"] * 4)
    pulled = await client.pull("G", "T", 0, count=5)
    stored = server.context.store.stats()
    assert await figures(client, "TOPIC_PUT_NUMS", "T") == [7] * 3
    assert await figures(client, "TOPIC_PUT_SIZE", "T") == [stored.put_bytes] * 3
    assert await figures(client, "GROUP_GET_NUMS", "T@G") == [5] * 3
    assert await figures(client, "GROUP_GET_SIZE", "T@G") == [len(pulled.body)] * 3
    assert await figures(client, "BROKER_PUT_NUMS", "DefaultCluster") == [7] * 3
    assert await figures(client, "BROKER_GET_NUMS", "DefaultCluster") == [5] * 3
    answer = await client.ok(
        RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="T"
    )
    minute = loads_object(answer.body)["statsMinute"]
    # of a broker that is less than a second old
    assert (minute["tps"], minute["avgpt"]) == (7.0, 7 / 4)
    topic_stats = loads_object((await client.ok(RequestCode.GET_TOPIC_STATS_INFO, topic="T")).body)
    assert topic_stats["topicPutTps"] == 7.0


async def test_what_is_sent_back_and_what_comes_by_itself_counts_too(
    server: Broker, client: RawClient
) -> None:
    sent = await client.send("T", b"x", {"UNIQ_KEY": "K" * 32, "DELAY": "1"})
    assert sent.ext_fields["queueOffset"] == "0"
    assert await figures(client, "TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX") == [1] * 3
    await client.send("U")
    offset = server.context.store.entries("U", 0, 0, 1)[0].commitlog_offset
    await client.ok(
        RequestCode.CONSUMER_SEND_MSG_BACK, offset=offset, group="G", delayLevel=0, originTopic="U"
    )
    assert await figures(client, "SNDBCK_PUT_NUMS", "U@G") == [1] * 3


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("TOPIC_PUT_NUMS", "T"),
        ("GROUP_GET_NUMS", "T@G"),
        ("NO_SUCH", "T"),
        ("BROKER_PUT_NUMS", "x"),
    ],
)
async def test_what_nothing_was_counted_for_is_java_s_error(
    client: RawClient, name: str, key: str
) -> None:
    answer = await client.call(RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        f"The stats <{name}> <{key}> not exist",
    )


async def test_every_group_s_place_on_every_topic_in_one_answer(
    server: Broker, client: RawClient
) -> None:
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        dumps(SubscriptionGroupConfig(name="G").to_json()),
    )
    for topic, order in (("T", False), ("U", True)):
        await client.ok(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            topic=topic,
            readQueueNums=1,
            writeQueueNums=1,
            order=order,
        )
        for _ in range(3):
            await client.send(topic)
        await client.ok(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup="G",
            topic=topic,
            queueId=0,
            commitOffset=1,
        )

    async def rows(order: bool) -> tuple[int, list[list[int]]]:
        answer = loads_object(
            (await client.ok(RequestCode.GET_BROKER_CONSUME_STATS, isOrder=order)).body
        )
        assert answer["brokerAddr"] == server.address
        (mine,) = [group["G"] for group in answer["consumeStatsList"] if "G" in group]
        found = [
            [row["brokerOffset"], row["consumerOffset"]]
            for stats in mine
            for row in stats["offsetTable"].values()
        ]
        return answer["totalDiff"], found

    assert await rows(False) == (4, [[3, 1], [3, 1]])
    assert await rows(True) == (2, [[3, 1]])


async def test_times_that_a_group_s_queues_span(server: Broker, client: RawClient) -> None:
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_TOPIC, topic="T", readQueueNums=1, writeQueueNums=1
    )
    for _ in range(3):
        await client.send("T")
    server.context.offsets.commit("G", "T", 0, 2)
    answer = await client.ok(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="G")
    (span,) = java_json.loads(answer.body)["consumeTimeSpanSet"]
    times = [server.context.store.store_time("T", 0, offset) for offset in range(3)]
    assert [span["minTimeStamp"], span["consumeTimeStamp"], span["maxTimeStamp"]] == times
    assert span["delayTime"] >= 0
    assert (
        await client.call(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="none", group="G")
    ).code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G"}),
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False}),
        (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "G"}),
        (
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            {"topic": "T", "group": "G", "timestamp": 1, "isForce": True},
        ),
    ],
)
async def test_what_many_queues_have_on_disk_only_is_asked_for_together(
    server: Broker,
    client: RawClient,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    fields: dict[str, Any],
) -> None:
    """Begun again for each, the request would end with reads that stop everybody: after 256 of them
    it waits for the disk.
    """
    queues = range(300)
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        dumps(SubscriptionGroupConfig(name="G").to_json()),
    )
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic="T",
        readQueueNums=len(queues),
        writeQueueNums=len(queues),
        order=False,
    )
    for sent in [client.start_send("T", b"x", queue=queue) for queue in queues]:
        await sent
    ctx = server.context
    for queue in queues:
        ctx.offsets.commit("G", "T", queue, 1)
    in_memory = await client.ok(code, **fields)
    disk = ColdDisk(ctx.store)
    places: list[Place] = []
    turns: list[int] = []

    def fetch(place: Place, then: Callable[[StoreError | None], None]) -> None:
        places.append(place)
        disk.fetch(place, then)
        disk.bring_in()

    async def counted() -> Literal[True]:
        turns.append(1)
        return await acquire()

    acquire = ctx.large_replies.turn.acquire
    monkeypatch.setattr(ctx.cold_reads, "fetch", fetch)
    monkeypatch.setattr(ctx.large_replies.turn, "acquire", counted)
    monkeypatch.setattr(ctx.store, "waiting", None)
    disk.forget()
    assert (
        loads_object((await client.ok(code, **fields)).body).keys()
        == loads_object(in_memory.body).keys()
    )
    # one for each read of the disk, and the first
    assert (len(places) >= len(queues), len(turns) <= 5) == (True, True)
