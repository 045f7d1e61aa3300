"""Topics over a socket: create, change, delete, show, statistics."""

import asyncio
import errno
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from ogive.broker import Broker
from ogive.broker.startup import Machine
from ogive.broker.state.topic_table import TopicTable
from ogive.errors import ResponseCode
from ogive.model import MessageQueue
from ogive.namesrv import NameServer, NameServerConfig
from ogive.store.types import NewMessage
from ogive.transport import event_loop
from ogive.wire.bodies.clients import group_list_loads
from ogive.wire.bodies.configs import TopicConfig
from ogive.wire.bodies.json_fields import dumps, loads_object
from ogive.wire.bodies.routes import TopicRouteData, topic_list_loads
from ogive.wire.bodies.stats import topic_stats_loads
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from tests.chaos.faults import FailFrom, FaultyFs
from tests.raw_client import RawClient, messages
from tests.unit.broker.conftest import StartBroker, crash_image


async def create(client: RawClient, topic: str, **changed: str | int | bool) -> RemotingCommand:
    fields: dict[str, object] = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        "attributes": "",
    }
    return await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, **(fields | changed))


async def commit(client: RawClient, group: str, queue: int, offset: int) -> None:
    """Progress on T of a group that is made before."""
    await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, dumps({"groupName": group}))
    await client.ok(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        consumerGroup=group,
        topic="T",
        queueId=queue,
        commitOffset=offset,
    )


async def shown(client: RawClient, topic: str) -> TopicConfig:
    return TopicConfig.from_json(
        loads_object((await client.ok(RequestCode.GET_TOPIC_CONFIG, topic=topic, lo=True)).body)
    )


async def test_a_topic_is_made_changed_and_shown(client: RawClient) -> None:
    assert (await create(client, "T", attributes="+message.type=FIFO")).code == ResponseCode.SUCCESS
    assert await shown(client, "T") == TopicConfig(name="T", attributes={"message.type": "FIFO"})
    await create(
        client,
        "T",
        readQueueNums=8,
        writeQueueNums=2,
        perm=4,
        order=True,
        attributes="-message.type",
    )
    assert await shown(client, "T") == TopicConfig(
        name="T", read_queues=8, write_queues=2, perm=4, order=True
    )


async def test_a_made_topic_is_on_disk_and_in_the_routes_before_the_answer(
    start_broker: Callable[..., Awaitable[Broker]], cleanup: AsyncExitStack
) -> None:
    name_server = NameServer(NameServerConfig(port=0))
    await name_server.start()
    cleanup.push_async_callback(name_server.stop)
    broker = await start_broker(name_servers=(name_server.address,))
    client = await cleanup.enter_async_context(await RawClient.open(broker.address))
    asking = await cleanup.enter_async_context(await RawClient.open(name_server.address))
    for number in range(3):
        await create(client, f"T{number}", readQueueNums=number + 1)
        stored = json.loads(Path(broker.config.data, "config", "topics.json").read_text())
        assert stored["topicConfigTable"][f"T{number}"]["readQueueNums"] == number + 1
        answer = await asking.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=f"T{number}")
        route = TopicRouteData.from_json(json.loads(answer.body))
        assert (route.queues[0].read_queues, route.brokers[0].addresses) == (
            number + 1,
            {0: broker.address},
        )


@pytest.mark.parametrize(
    ("topic", "changed"),
    [
        ("../T", {}),
        ("", {}),
        ("TBW102", {}),
        ("rmq_sys_x", {}),
        ("T", {"perm": 9}),
        ("T", {"readQueueNums": -1}),
        ("T", {"attributes": "x"}),
    ],
)
async def test_a_topic_that_makes_no_sense_is_an_invalid_parameter(
    client: RawClient, topic: str, changed: dict[str, str | int]
) -> None:
    answer = await create(client, topic, **changed)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert answer.remark


async def test_a_send_that_makes_a_topic_again_while_it_is_deleted_loses_nothing(
    server: Broker, client: RawClient, another: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, and may come again: what is acknowledged then is in the new topic."""
    await client.send("T", b"before")
    ctx = server.context
    saved, save_offsets = ctx.topics.saved, ctx.save_offsets
    refused: list[RemotingCommand] = []

    async def send_meanwhile() -> None:
        refused.append(await another.start_send("T", b"refused"))
        refused.append(await create(another, "T"))

    async def saved_meanwhile(_: TopicTable) -> None:
        await saved()
        await send_meanwhile()

    async def offsets_meanwhile() -> None:
        await save_offsets()
        await send_meanwhile()

    monkeypatch.setattr(TopicTable, "saved", saved_meanwhile)
    monkeypatch.setattr(ctx, "save_offsets", offsets_meanwhile)
    both = [client.start(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T") for _ in range(2)]
    assert [(await answer).code for answer in both] == [ResponseCode.SUCCESS] * 2
    monkeypatch.undo()
    assert len(refused) == 8
    assert {(answer.code, answer.remark) for answer in refused} == {
        (
            ResponseCode.SERVICE_NOT_AVAILABLE,
            "topic T is being deleted: it can be made again in a moment",
        )
    }
    assert ctx.store.max_offset("T", 0) == 0
    assert (await another.send("T", b"acknowledged")).ext_fields["queueOffset"] == "0"


async def progressed(start_broker: StartBroker) -> Broker:
    """A broker whose files say that G has consumed the 40 messages of T."""
    server = await start_broker()
    async with await RawClient.open(server.address) as client:
        await client.send_batch("T", [b"old"] * 40)
        await commit(client, "G", 0, 40)
    await server.stop()
    return await start_broker()


@pytest.mark.parametrize("count", [0, 10, 60])
async def test_a_crash_after_a_deletion_brings_back_neither_messages_nor_progress(
    start_broker: StartBroker, tmp_path: Path, count: int
) -> None:
    """Progress in the old topic would pass over the first messages of the new one."""
    server = await progressed(start_broker)
    async with await RawClient.open(server.address) as client:
        await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
        if count:
            await client.send_batch("T", [b"new"] * count)
    server = await start_broker(data=crash_image(server, tmp_path))
    assert server.context.offsets.get("G", "T", 0) is None
    async with await RawClient.open(server.address) as client:
        assert (await client.send("T", b"newest")).ext_fields["queueOffset"] == str(count)


async def test_a_crash_after_the_cleaning_brings_nothing_back(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    server = await progressed(start_broker)
    # as a file that lost it
    del server.context.topics._configs["T"]
    async with await RawClient.open(server.address) as client:
        await client.ok(RequestCode.CLEAN_UNUSED_TOPIC)
        await client.send("T", b"new")
    server = await start_broker(data=crash_image(server, tmp_path))
    assert (server.context.offsets.get("G", "T", 0), server.context.store.max_offset("T", 0)) == (
        None,
        1,
    )


@pytest.mark.parametrize("crash", [False, True], ids=["stop", "crash"])
async def test_a_member_that_outlives_a_restart_behind_the_deletion_begins_anew(
    start_broker: StartBroker, tmp_path: Path, crash: bool
) -> None:
    server = await start_broker()
    async with await RawClient.open(server.address) as client:
        await client.heartbeat("c1", "G", "T")
        await client.send_batch("T", [b"old"] * 40)
        await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
    if crash:
        server = await start_broker(data=crash_image(server, tmp_path))
    else:
        await server.stop()
        server = await start_broker()
    async with await RawClient.open(server.address) as client:
        await client.heartbeat("c1", "G", "T")
        await client.send_batch("T", [b"new"] * 60)
        told = await client.pull("G", "T", 40, commit=40)
        assert (told.code, told.ext_fields["nextBeginOffset"]) == (
            ResponseCode.PULL_OFFSET_MOVED,
            "0",
        )
        assert server.context.offsets.get("G", "T", 0) is None
        assert (await client.pull("G", "T", 0)).remark == "FOUND"


@pytest.mark.parametrize("restart", [False, True])
async def test_every_broadcasting_member_begins_anew_in_a_topic_that_is_made_again(
    restart: bool, start_broker: StartBroker
) -> None:
    """Once each; one that comes later keeps the place that it asks for."""
    server = await start_broker()
    async with (
        await RawClient.open(server.address) as client,
        await RawClient.open(server.address) as second,
    ):
        await client.heartbeat("c1", "G", "T", model="BROADCASTING")
        await second.heartbeat("c2", "G", "T", model="BROADCASTING")
        await client.send_batch("T", [b"old"] * 40)
        await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
    if restart:
        await server.stop()
        server = await start_broker()
    async with AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(await RawClient.open(server.address)) for _ in range(3)
        ]
        for number, member in enumerate(members, 1):
            await member.heartbeat(f"c{number}", "G", "T", model="BROADCASTING")
        await members[0].send_batch("T", [b"new"] * 60)
        told = [
            (await member.pull("G", "T", 40)).ext_fields["nextBeginOffset"] for member in members
        ]
        again = [
            (await member.pull("G", "T", 40)).ext_fields["nextBeginOffset"] for member in members
        ]
    assert (told, again) == (["0", "0", "60"], ["60"] * 3)


@pytest.mark.parametrize("part", ["topics.json", "consumerOffset.json", "queues.json"])
async def test_a_deletion_that_finds_no_room_is_refused_and_goes_on_with_the_next_try(
    start_broker: StartBroker, tmp_path: Path, part: str
) -> None:
    full = FailFrom("create", part, 0, 1_000_000, errno.ENOSPC)
    server = await start_broker(machine=Machine(fs=FaultyFs(full)))
    async with await RawClient.open(server.address) as client:
        await client.heartbeat("c1", "G", "T")
        await client.send_batch("T", [b"old"] * 40)
        await client.ok(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup="G",
            topic="T",
            queueId=0,
            commitOffset=40,
        )
        await server.context.save_offsets()
        full.armed = True
        for _ in range(2):
            answer = await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
            assert (answer.code, "its disk is full" in str(answer.remark)) == (
                ResponseCode.SERVICE_NOT_AVAILABLE,
                True,
            )
        full.armed = False
        await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
    server = await start_broker(data=crash_image(server, tmp_path))
    assert "T" not in server.context.topics
    assert (server.context.offsets.get("G", "T", 0), bool(server.context.offsets.resets)) == (
        None,
        True,
    )
    async with await RawClient.open(server.address) as client:
        assert (await client.send("T", b"new")).ext_fields["queueOffset"] == "0"


async def test_a_deleted_topic_takes_its_queues_and_everybody_s_offsets_with_it(
    server: Broker, client: RawClient
) -> None:
    await create(client, "T")
    await client.send("T", queue=1)
    await commit(client, "G", 1, 1)
    await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
    assert (
        await client.call(RequestCode.GET_TOPIC_CONFIG, topic="T")
    ).code == ResponseCode.TOPIC_NOT_EXIST
    assert server.context.offsets.topics_of("G") == []
    assert (await client.ok(RequestCode.GET_MAX_OFFSET, topic="T", queueId=1)).ext_fields == {
        "offset": "0"
    }
    await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
    stored = json.loads(Path(server.config.data, "config", "topics.json").read_text())
    assert "T" not in stored["topicConfigTable"]


async def waited(server: Broker, topic: str, queue: int, body: bytes) -> None:
    """A message whose time has come is stored."""
    stored = asyncio.Event()
    server.context.put_counted((NewMessage(topic, queue, body),), lambda _: stored.set())
    await stored.wait()


async def test_what_waited_for_a_queue_that_is_gone_goes_to_one_that_is_read(
    server: Broker, client: RawClient
) -> None:
    """Delayed, timed and transactional messages, however many of the topic's queues are written or
    read by now.
    """
    await create(client, "T", readQueueNums=8, writeQueueNums=8)
    own = {"TRAN_MSG": "true", "PGROUP": "shop"}
    halves = [
        await client.send("T", b"half %d" % n, own | {"UNIQ_KEY": f"K{n}"}, queue=7, f=4)
        for n in range(2)
    ]
    await create(client, "T", readQueueNums=6, writeQueueNums=4)
    # the first comes from the log
    server.context.transactions._ready.drop(0)
    for half in halves:
        place = {
            "commitLogOffset": int(half.ext_fields["msgId"][-16:], 16),
            "tranStateTableOffset": half.ext_fields["queueOffset"],
        }
        await client.ok(
            RequestCode.END_TRANSACTION, producerGroup="shop", commitOrRollback=8, **place
        )
    for queue in (7, 5, 0):
        await waited(server, "T", queue, b"for %d" % queue)
    found = {
        queue: [m.body for m in messages(await client.pull("G", "T", 0, queue=queue))]
        for queue in (0, 3, 5)
    }
    assert found == {0: [b"for 0"], 3: [b"half 0", b"half 1", b"for 7"], 5: [b"for 5"]}
    assert {queue for topic, queue in server.context.store.queues if topic == "T"} == {0, 3, 5}


async def test_what_waited_for_a_deleted_topic_is_told_once_and_there_when_it_is_made_again(
    server: Broker, client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    for round_ in (1, 2):
        await create(client, "T")
        await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
        for n in range(3):
            await waited(server, "T", 3, b"%d" % n)
        assert caplog.text.count("delivered to topic T, which does not exist") == round_
        await create(client, "T")
        assert [m.body for m in messages(await client.pull("G", "T", 0, queue=0))] == [
            b"0",
            b"1",
            b"2",
        ]


@pytest.mark.parametrize("restart", [False, True])
async def test_what_waited_for_a_deleted_topic_is_there_however_few_queues_it_is_made_again_with(
    restart: bool, start_broker: StartBroker
) -> None:
    """Delayed, timed and committed messages for queues that the topic does not have any more."""
    server = await start_broker()
    async with await RawClient.open(server.address) as client:
        await create(client, "T", readQueueNums=8, writeQueueNums=8)
        half = await client.send(
            "T", b"half", {"TRAN_MSG": "true", "PGROUP": "shop", "UNIQ_KEY": "K"}, queue=7
        )
        await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
        for queue in (6, 5, 1):
            await waited(server, "T", queue, b"for %d" % queue)
        place = {
            "commitLogOffset": int(half.ext_fields["msgId"][-16:], 16),
            "tranStateTableOffset": half.ext_fields["queueOffset"],
        }
        await client.ok(
            RequestCode.END_TRANSACTION, producerGroup="shop", commitOrRollback=8, **place
        )
    if restart:
        await server.stop()
        server = await start_broker()
    async with await RawClient.open(server.address) as client:
        await create(client, "T", readQueueNums=1, writeQueueNums=1)
        assert [m.body for m in messages(await client.pull("G", "T", 0))] == [
            b"for 6",
            b"for 5",
            b"for 1",
            b"half",
        ]


async def test_a_topic_is_not_made_as_the_other_kind_over_what_came_after_its_deletion(
    server: Broker, client: RawClient
) -> None:
    """Its queues would have to go. A cleaning on command takes them, and then it may be."""
    batches = {"attributes": "+queue.type=BatchCQ"}
    await create(client, "T")
    await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
    await waited(server, "T", 0, b"late")
    refused = await create(client, "T", **batches)
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert "1 messages are kept for it as a topic without queue.type=BatchCQ" in (
        refused.remark or ""
    )
    listed = dumps(
        {"topicConfigList": [{"topicName": "T", "attributes": {"+queue.type": "BatchCQ"}}]}
    )
    assert (
        await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, listed)
    ).code == ResponseCode.INVALID_PARAMETER
    assert server.context.store.max_offset("T", 0) == 1
    await client.ok(RequestCode.CLEAN_UNUSED_TOPIC)
    assert (await create(client, "T", **batches)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("topic", ["", "TBW102", "SCHEDULE_TOPIC_XXXX"])
async def test_the_broker_s_own_topics_are_not_deleted(client: RawClient, topic: str) -> None:
    assert (
        await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)
    ).code == ResponseCode.INVALID_PARAMETER


async def test_all_topics_come_whole_or_by_pages(client: RawClient) -> None:
    await create(client, "T")
    whole = await client.ok(RequestCode.GET_ALL_TOPIC_CONFIG)
    table = loads_object(whole.body)["topicConfigTable"]
    assert whole.ext_fields == {"totalTopicNum": str(len(table))}
    assert {"T", "TBW102"} <= table.keys()
    pages: dict[str, object] = {}
    while len(pages) < len(table):
        page = await client.ok(
            RequestCode.GET_ALL_TOPIC_CONFIG, topicSeq=len(pages), maxTopicNum=3, dataVersion=""
        )
        part = loads_object(page.body)["topicConfigTable"]
        assert 1 <= len(part) <= 3
        pages |= part
    assert pages == table
    for first, most, found in (
        (0, 2**31 - 1, len(table)),
        (1, 2**31 - 1, len(table) - 1),
        (2**31 - 1, 2**31 - 1, 0),
        (-(2**31), 0, 1),
    ):
        page = await client.ok(RequestCode.GET_ALL_TOPIC_CONFIG, topicSeq=first, maxTopicNum=most)
        assert len(loads_object(page.body)["topicConfigTable"]) == found
    system = topic_list_loads((await client.ok(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)).body)
    assert "TBW102" in system
    assert "T" not in system


async def test_statistics_show_where_each_queue_begins_and_ends_and_when_it_grew(
    server: Broker, client: RawClient
) -> None:
    await create(client, "T", readQueueNums=3, writeQueueNums=2)
    for _ in range(5):
        await client.send("T", queue=1)
    table = topic_stats_loads((await client.ok(RequestCode.GET_TOPIC_STATS_INFO, topic="T")).body)
    assert [(queue, row.min_offset, row.max_offset) for queue, row in sorted(table.items())] == [
        (MessageQueue("T", "broker-a", 0), 0, 0),
        (MessageQueue("T", "broker-a", 1), 0, 5),
        (MessageQueue("T", "broker-a", 2), 0, 0),
    ]
    times = [row.last_update_timestamp for _, row in sorted(table.items())]
    assert times == [0, server.context.store.store_time("T", 1, 4), 0]
    assert (
        await client.call(RequestCode.GET_TOPIC_STATS_INFO, topic="nowhere")
    ).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_topic_s_consumers_are_those_online_and_those_with_progress(
    client: RawClient,
) -> None:
    await create(client, "T")
    await client.heartbeat("c1", "online", "T")
    await client.heartbeat("c1", "elsewhere", "U")
    await commit(client, "offline", 0, 0)
    groups = group_list_loads(
        (await client.ok(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T")).body
    )
    assert groups == ["offline", "online"]


async def test_topics_are_created_by_the_list_all_or_none(
    server: Broker, client: RawClient
) -> None:
    def body(*names: str) -> bytes:
        topics = [
            {
                "topicName": name,
                "readQueueNums": 3,
                "writeQueueNums": 2,
                "attributes": {"+message.type": "FIFO"},
            }
            for name in names
        ]
        return dumps({"topicConfigList": topics})

    await client.ok(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body("A", "B"))
    for name in ("A", "B"):
        config = server.context.topics.get(name)
        assert config is not None
        assert (config.read_queues, config.write_queues, config.attributes) == (
            3,
            2,
            {"message.type": "FIFO"},
        )
    answer = await client.call(
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body("C", "SCHEDULE_TOPIC_XXXX")
    )
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "C" not in server.context.topics


async def test_what_a_group_consumes(server: Broker, client: RawClient) -> None:
    for topic in ("U", "T"):
        server.context.offsets.commit("G", topic, 0, 0)
    answer = await client.ok(RequestCode.QUERY_TOPICS_BY_CONSUMER, group="G")
    assert loads_object(answer.body)["topicList"] == ["T", "U"]
    await client.heartbeat("c1", "G", "T", expression="A || B")
    for topic, expected in (("T", "A || B"), ("U", None)):
        body = loads_object(
            (
                await client.ok(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="G", topic=topic)
            ).body
        )
        assert (
            body["group"],
            body["topic"],
            (body["subscriptionData"] or {}).get("subString"),
        ) == ("G", topic, expected)


async def test_queues_and_offsets_without_a_topic_are_cleaned_on_command(
    server: Broker, client: RawClient
) -> None:
    for topic in ("T", "U"):
        await client.send(topic)
        server.context.offsets.commit("G", topic, 0, 1)
    # as a file that lost it
    del server.context.topics._configs["U"]
    await client.ok(RequestCode.CLEAN_UNUSED_TOPIC)
    assert {topic for topic, _ in server.context.store.queues} == {"T"}
    assert list(server.context.offsets.topics_of("G")) == ["T"]


async def test_the_loop_turns_between_topics_that_are_cleaned(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each looks at all queues: a thousand topics stopped everybody for 0.4 s."""
    ctx, now, turns = server.context, 0.0, 0
    topics = [f"T{n}" for n in range(20)]
    for topic in topics:
        await client.send(topic)
        del ctx.topics._configs[topic]
    cleaned: list[int] = []
    delete = ctx.store.topics.delete

    def delete_topic(topic: str) -> None:
        nonlocal now
        now += 1.0
        cleaned.append(turns)
        delete(topic)

    monkeypatch.setattr(event_loop, "SLICE_S", 0.01)
    monkeypatch.setattr(ctx.slices, "_now", lambda: now)
    monkeypatch.setattr(ctx.store.topics, "delete", delete_topic)
    answer = client.start(RequestCode.CLEAN_UNUSED_TOPIC)
    async with asyncio.timeout(60):
        while not answer.done():
            await asyncio.sleep(0)
            turns += 1
    assert len(set(cleaned)) == 20
    assert not ctx.store.topics.has("T0")


async def test_a_topic_that_is_not_there_is_deleted_without_a_search(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where nothing of it is left; what an interrupted deletion left is found."""
    ctx = server.context
    await client.send("T")
    searched: list[str] = []
    delete = ctx.store.topics.delete

    def noted(topic: str) -> None:
        searched.append(topic)
        delete(topic)

    monkeypatch.setattr(ctx.store.topics, "delete", noted)
    await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="nothing")
    assert not searched
    ctx.offsets.commit("G", "left", 0, 1)
    ctx.topics.delete("T")
    for topic in ("left", "T", "T"):
        await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)
    assert searched == ["left", "T", "T"]
    assert not ctx.offsets.has_topic("left")
