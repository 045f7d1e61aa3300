"""What operators see of a broker and its clients, and what they cannot do."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from ogive.broker import Broker
from ogive.broker.handlers import admin, clients
from ogive.broker.handlers.admin import runtime_info as run_info
from ogive.errors import ResponseCode
from ogive.model import HALF_TOPIC, MessageQueue
from ogive.wire.bodies.clients import (
    ConsumerConnection,
    SubscriptionData,
    producer_connections_loads,
)
from ogive.wire.bodies.json_fields import dumps, loads_object
from ogive.wire.bodies.stats import OffsetWrapper, consume_stats_loads, kv_table_loads
from ogive.wire.codes import VERSION, Decision, Flag, RequestCode, SerializeType
from ogive.wire.command import RemotingCommand
from tests.raw_client import RawClient, messages, unique_key
from tests.unit.broker.conftest import StartBroker

# What mqadmin's clusterList reads, and Apache's exporter.
READ_BY_TOOLS = {
    "EndTransactionQueueSize",
    "ackThreadPoolQueueHeadWaitTimeMills",
    "ackThreadPoolQueueSize",
    "bootTimestamp",
    "brokerActive",
    "brokerVersion",
    "brokerVersionDesc",
    "commitLogDirCapacity",
    "commitLogDiskRatio",
    "commitLogMaxOffset",
    "commitLogMinOffset",
    "consumeQueueDiskRatio",
    "dispatchBehindBytes",
    "earliestMessageTimeStamp",
    "getFoundTps",
    "getMissTps",
    "getTotalTps",
    "getMessageEntireTimeMax",
    "getTransferedTps",
    "putLatency99",
    "putLatency999",
    "putMessageDistributeTime",
    "putMessageEntireTimeMax",
    "putMessageFailedTimes",
    "queryThreadPoolQueueCapacity",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueCapacity",
    "dispatchMaxBuffer",
    "remainTransientStoreBufferNumbs",
    "getTransferredTps",
    "msgGetTotalTodayMorning",
    "msgGetTotalTodayNow",
    "msgGetTotalYesterdayMorning",
    "msgPutTotalTodayMorning",
    "msgPutTotalTodayNow",
    "msgPutTotalYesterdayMorning",
    "pageCacheLockTimeMills",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueSize",
    "putMessageAverageSize",
    "putMessageSizeTotal",
    "putMessageTimesTotal",
    "putTps",
    "queryThreadPoolQueueSize",
    "remainHowManyDataToFlush",
    "runtime",
    "sendThreadPoolQueueCapacity",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "sendThreadPoolQueueSize",
    "startAcceptSendRequestTimeStamp",
    "timerCongestNum",
    "timerDequeueTps",
    "timerEnqueueTps",
    "timerOffsetBehind",
    "timerReadBehind",
}


async def runtime_info(client: RawClient) -> dict[str, str]:
    return kv_table_loads((await client.ok(RequestCode.GET_BROKER_RUNTIME_INFO)).body)


# --- the broker -----------------------------------------------------------------------------------


async def test_the_runtime_figures_are_those_of_what_has_happened(
    server: Broker, client: RawClient
) -> None:
    before = await runtime_info(client)
    assert (before["earliestMessageTimeStamp"], before["commitLogMaxOffset"]) == ("-1", "0")
    for _ in range(10):
        await client.send("T")
    assert len(messages(await client.pull("G", "T", 4))) == 6
    info = await runtime_info(client)
    assert info.keys() >= READ_BY_TOOLS
    stats, store = server.context.store.stats(), server.context.store
    assert (
        info["msgPutTotalTodayNow"],
        info["putMessageTimesTotal"],
        info["msgGetTotalTodayNow"],
    ) == ("10", "10", "6")
    assert (int(info["commitLogMaxOffset"]), int(info["putMessageSizeTotal"])) == (
        stats.commitlog_end,
        stats.put_bytes,
    )
    assert float(info["putMessageAverageSize"]) == stats.put_bytes / 10
    assert int(info["earliestMessageTimeStamp"]) == store.store_time("T", 0, 0)
    steps = dict(step.rsplit(":", 1) for step in info["putMessageDistributeTime"].split())
    assert (len(steps), sum(map(int, steps.values())), "[0~10ms]" in steps) == (13, 10, True)
    assert (info["brokerVersion"], info["brokerActive"]) == (str(VERSION), "true")
    assert int(info["bootTimestamp"]) == server.context.started_ms
    for rate, count in (
        ("putTps", 10),
        ("getTransferredTps", 6),
        ("getFoundTps", 1),
        ("getMissTps", 0),
    ):
        ten_seconds, minute, ten_minutes = (float(number) for number in info[rate].split(" "))
        assert ten_seconds == minute == ten_minutes <= count
        assert bool(minute) is bool(count)


async def test_a_pull_finds_something_or_misses(client: RawClient) -> None:
    await client.send("T")
    for offset in (0, 1, 1):
        await client.pull("G", "T", offset)
    info = await runtime_info(client)
    found, missed, both = (
        float(info[rate].split(" ")[0]) for rate in ("getFoundTps", "getMissTps", "getTotalTps")
    )
    assert (missed / found, both / found) == pytest.approx((2, 3), rel=0.01)


async def test_every_key_of_apaches_answer_is_there(client: RawClient) -> None:
    """As 5.5.0 gave it; one has the directory of the log in its name."""
    vectors = Path(__file__).parents[3] / "vectors" / "conversations.jsonl"
    [recorded] = [
        line["response"]["body"]
        for line in map(json.loads, vectors.read_text("utf-8").splitlines())
        if line["server"] == "broker" and line["request"]["code"] == 28
    ]
    info = await runtime_info(client)
    wanted = {name.partition("_/")[0] for name in json.loads(recorded)["table"]}
    assert len(wanted) > 50
    assert wanted <= {name.partition("_/")[0] for name in info}


async def test_the_disk_is_as_full_as_df_and_retention_say(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept for root counts for nobody."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=100, used=50, free=10))
    info = await runtime_info(client)
    assert {info[name] for name in info if "DiskRatio" in name} == {"0.83"}


async def test_the_day_s_totals_are_without_the_broker_s_own_topics(
    server: Broker, client: RawClient
) -> None:
    """A delayed message counts once it is delivered."""
    await client.send("T")
    for properties in (
        {"DELAY": "18"},
        {"TRAN_MSG": "true", "PGROUP": "P"},
        {"TIMER_DELAY_SEC": "3600"},
    ):
        await client.send("T", b"x", {"UNIQ_KEY": unique_key(), **properties})
    assert len(messages(await client.pull("G", HALF_TOPIC, 0))) == 1
    info = await runtime_info(client)
    assert (
        info["msgPutTotalTodayNow"],
        info["putMessageTimesTotal"],
        info["msgGetTotalTodayNow"],
    ) == ("1", "4", "0")


async def test_the_configuration_is_shown_under_apache_s_names(
    server: Broker, client: RawClient
) -> None:
    answer = await client.ok(RequestCode.GET_BROKER_CONFIG)
    settings = dict(line.partition("=")[::2] for line in answer.body.decode().splitlines())
    assert settings["brokerName"] == "broker-a"
    assert settings["flushDiskType"] == "SYNC_FLUSH"
    assert settings["listenPort"] == server.address.rpartition(":")[2]
    assert settings["messageDelayLevel"] == server.config.delay_levels
    assert list(settings) == sorted(settings)
    assert (
        settings["fileReservedTime"],
        settings["deleteWhen"],
        settings["diskMaxUsedSpaceRatio"],
    ) == ("72", "04", "75")
    assert loads_object(answer.ext_fields["version"]).keys() == {
        "counter",
        "stateVersion",
        "timestamp",
    }
    await client.ok(RequestCode.UPDATE_BROKER_CONFIG, b"maxMessageSize=99")
    changed = await client.ok(RequestCode.GET_BROKER_CONFIG)
    assert (
        loads_object(changed.ext_fields["version"])["counter"]
        == loads_object(answer.ext_fields["version"])["counter"] + 1
    )


async def test_paths_are_shown_whole(
    start_broker: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads them stands in another directory."""
    monkeypatch.chdir(tmp_path)
    broker = await start_broker(data=Path("d1"))
    async with await RawClient.open(broker.address) as client:
        shown = (await client.ok(RequestCode.GET_BROKER_CONFIG)).body.decode()
        figures = await runtime_info(client)
    assert f"storePathRootDir={tmp_path / 'd1'}\n" in shown
    assert f"storePathCommitLog={tmp_path / 'd1' / 'commitlog'}\n" in shown
    assert f"commitLogDiskRatio_{tmp_path / 'd1' / 'commitlog'}" in figures


@pytest.mark.parametrize(
    "line",
    [
        "rocketmqHome=-c touch /tmp/x\nfilterServerNums=1",
        "storePathRootDir=/x",
        "brokerName=b",
        "nosuch=1",
    ],
)
async def test_settings_that_are_not_on_the_list_are_refused_by_name(
    server: Broker, client: RawClient, line: str
) -> None:
    """All or none: the first line of each body would be allowed."""
    before = server.context.config
    answer = await client.call(
        RequestCode.UPDATE_BROKER_CONFIG, b"maxMessageSize=7\n" + line.encode() + b"\n"
    )
    assert answer.code == ResponseCode.NO_PERMISSION
    assert (answer.remark or "").startswith(
        line.partition("=")[0] + " cannot be changed over the network; these can"
    )
    assert server.context.config is before


@pytest.mark.parametrize(
    ("body", "needed"),
    [
        ("", "no line of the form name=value"),
        ("#maxMessageSize=1", "no line of the form name=value"),
        ("maxMessageSize=0", "must be a number from 1 to 4194304"),
        ("maxMessageSize=-1", "must be a number from 1 to 4194304"),
        ("maxMessageSize=x", "must be a number from 1 to 4194304"),
        ("maxMessageSize=4194305", "must be a number from 1 to 4194304"),
        ("maxMessageSize=99999999999", "must be a number from 1 to 4194304"),
        (f"maxMessageSize={'9' * 5000}", "must be a number from 1 to 4194304"),
        (
            "maxTransferBytesOnMessageInMemory=16711681",
            "must be a number from 1 to 16711676",
        ),
        ("maxTransferCountOnMessageInMemory=0", "must be a number from 1 to 999999999"),
        ("autoCreateTopicEnable=yes", "must be true or false"),
    ],
)
async def test_values_that_make_no_sense_are_refused_by_the_asked_name_and_with_what_is_possible(
    server: Broker, client: RawClient, body: str, needed: str
) -> None:
    before = server.context.config
    answer = await client.call(RequestCode.UPDATE_BROKER_CONFIG, body.encode())
    remark = f"{body[:95]}: {needed}" if needed.startswith("must be ") else needed
    assert (answer.code, answer.remark) == (ResponseCode.INVALID_PARAMETER, remark)
    assert server.context.config is before


async def test_a_setting_on_the_list_counts_from_the_answer_on(
    server: Broker, client: RawClient
) -> None:
    await client.send("T", b"x" * 100)
    await client.ok(
        RequestCode.UPDATE_BROKER_CONFIG,
        b"maxMessageSize=99\nmaxTransferCountOnMessageInMemory=2\n",
    )
    assert (await client.start_send("T", b"x" * 100)).code == ResponseCode.MESSAGE_ILLEGAL
    assert server.context.config.max_pull_messages == 2
    shown = (await client.ok(RequestCode.GET_BROKER_CONFIG)).body.decode()
    assert "maxMessageSize=99\n" in shown


async def test_topics_and_groups_are_created_by_themselves_as_the_switches_say(
    server: Broker, client: RawClient
) -> None:
    await client.ok(
        RequestCode.UPDATE_BROKER_CONFIG,
        b"autoCreateTopicEnable=false\nautoCreateSubscriptionGroup=false\n",
    )
    assert (await client.start_send("New")).code == ResponseCode.TOPIC_NOT_EXIST
    assert "TBW102" not in server.context.topics
    assert server.context.groups.find_or_create("New") is None
    await client.ok(
        RequestCode.UPDATE_BROKER_CONFIG,
        b"autoCreateTopicEnable=TRUE\nautoCreateSubscriptionGroup True\n",
    )
    await client.send("New")
    assert "TBW102" in server.context.topics
    assert server.context.groups.find_or_create("New") is not None


# --- its clients ----------------------------------------------------------------------------------


async def test_members_of_a_group_are_shown_with_what_they_subscribe_to(
    client: RawClient, another: RawClient
) -> None:
    await client.heartbeat("c1", "G", "T", expression="a || b")
    await another.heartbeat("c2", "G", "T", expression="a || b")
    shown = ConsumerConnection.decode(
        (await client.ok(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="G")).body
    )
    assert sorted((info.client_id, info.language, info.version) for info in shown.connections) == [
        ("c1", "JAVA", VERSION),
        ("c2", "JAVA", VERSION),
    ]
    assert shown.subscriptions == {"T": SubscriptionData.of_tags("T", "a || b")}
    assert (shown.consume_type, shown.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    answer = await client.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="nobody")
    assert (answer.code, answer.remark) == (
        ResponseCode.CONSUMER_NOT_ONLINE,
        "the consumer group[nobody] not online",
    )


async def test_delay_levels_in_use_show_what_is_delivered_and_what_came_in(
    client: RawClient,
) -> None:
    for level in (3, 3, 18):
        await client.send("T", b"x", {"UNIQ_KEY": "K" * 32, "DELAY": str(level)})
    info = await runtime_info(client)
    assert {name: info[name] for name in info if name.startswith("scheduleMessageOffset")} == {
        "scheduleMessageOffset_3": "0,2",
        "scheduleMessageOffset_18": "0,1",
    }


async def test_messages_that_wait_for_their_time_are_shown(
    server: Broker, client: RawClient
) -> None:
    names = ("timerCongestNum", "timerOffsetBehind", "timerReadBehind")
    for _ in range(5):
        await client.send("T", b"x", {"UNIQ_KEY": unique_key(), "TIMER_DELAY_SEC": "3600"})
    info = await runtime_info(client)
    assert [info[name] for name in names] == ["5", "0", "0"]
    assert float(info["timerEnqueueTps"]) > 0
    assert float(info["timerDequeueTps"]) == 0
    await client.send("T", b"x", {"UNIQ_KEY": unique_key(), "TIMER_DELAY_MS": "1"})
    async with asyncio.timeout(60):
        while not server.context.store.max_offset("T", 0):
            await asyncio.sleep(0)
    info = await runtime_info(client)
    assert info["timerCongestNum"] == "5"
    assert float(info["timerEnqueueTps"]) > float(info["timerDequeueTps"]) > 0


async def test_ends_of_transactions_that_are_not_safe_yet_are_shown(
    server: Broker, client: RawClient
) -> None:
    """Those of Java's producers, too, who wait for no answer."""
    half = await client.send(
        "T", b"x", {"UNIQ_KEY": unique_key(), "TRAN_MSG": "true", "PGROUP": "P"}
    )
    assert (await runtime_info(client))["EndTransactionQueueSize"] == "0"
    (transaction,) = server.context.transactions.idle()
    assert half.ext_fields["queueOffset"] == str(transaction.queue_offset)
    server.context.transactions.end(transaction, Decision.COMMIT, None)
    assert run_info(server.context)["EndTransactionQueueSize"] == "1"
    async with asyncio.timeout(60):
        while len(server.context.transactions):
            await asyncio.sleep(0)
    assert (await runtime_info(client))["EndTransactionQueueSize"] == "0"


async def test_producers_of_a_group_are_shown(client: RawClient) -> None:
    await client.heartbeat("c1", "G", "T")
    answer = await client.ok(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="raw")
    assert [info.client_id for info in producer_connections_loads(answer.body)] == ["c1"]
    assert (
        await client.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="nobody")
    ).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("codec", list(SerializeType))
async def test_running_info_is_asked_of_the_client_and_its_answer_passed_on(
    client: RawClient, another: RawClient, codec: SerializeType
) -> None:
    await client.heartbeat("c1", "G", "T")
    asked = another.start(
        RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="G", clientId="c1", jstackEnable=True
    )
    request = await client.next_request(RequestCode.GET_CONSUMER_RUNNING_INFO)
    assert request.ext_fields == {"consumerGroup": "G", "clientId": "c1", "jstackEnable": "true"}
    client.connection.reply(
        RemotingCommand(
            ResponseCode.SUCCESS,
            {},
            b'{"mqTable":{}}',
            request.opaque,
            Flag.RESPONSE,
            serialize_type=codec,
        )
    )
    answer = await asked
    assert (answer.code, answer.body) == (ResponseCode.SUCCESS, b'{"mqTable":{}}')


async def test_a_client_that_is_not_there_or_says_nothing_is_an_answer(
    client: RawClient, another: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(client_id: str) -> RemotingCommand:
        return await another.call(
            RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="G", clientId=client_id
        )

    assert (await ask("c1")).remark == "The Consumer <G> <c1> not online"
    await client.heartbeat("c1", "G", "T")
    assert (await ask("c2")).remark == "The Consumer <G> <c2> not online"
    monkeypatch.setattr(clients, "CLIENT_ANSWER_S", 0.03)
    assert (await ask("c1")).code == ResponseCode.CONSUME_MSG_TIMEOUT


async def test_a_client_that_goes_while_it_is_asked_is_not_online(
    start_broker: Callable[..., Awaitable[Broker]], cleanup: AsyncExitStack
) -> None:
    broker = await start_broker()
    operator = await cleanup.enter_async_context(await RawClient.open(broker.address))
    async with await RawClient.open(broker.address) as client:
        await client.heartbeat("c1", "G", "T")
        asked = operator.start(
            RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="G", clientId="c1"
        )
        await client.next_request(RequestCode.GET_CONSUMER_RUNNING_INFO)
    async with asyncio.timeout(60):
        answer = await asked
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "not online" in str(answer.remark)


# --- progress -------------------------------------------------------------------------------------


async def stats(client: RawClient, **fields: str) -> dict[MessageQueue, OffsetWrapper]:
    return consume_stats_loads(
        (await client.ok(RequestCode.GET_CONSUME_STATS, consumerGroup="G", **fields)).body
    )


async def commit(client: RawClient, topic: str, queue: int, offset: int) -> None:
    """Progress of the group, which is made before."""
    await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, dumps({"groupName": "G"}))
    await client.ok(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        consumerGroup="G",
        topic=topic,
        queueId=queue,
        commitOffset=offset,
    )


async def test_a_group_s_progress_shows_ends_positions_and_the_time_of_what_was_consumed_last(
    server: Broker, client: RawClient
) -> None:
    for _ in range(5):
        await client.send("T", queue=1)
    await commit(client, "T", 1, 3)
    table = await stats(client)
    assert table[MessageQueue("T", "broker-a", 1)] == OffsetWrapper(
        broker_offset=5,
        consumer_offset=3,
        last_timestamp=server.context.store.store_time("T", 1, 2),
        pull_offset=3,
    )
    assert [table[MessageQueue("T", "broker-a", queue)] for queue in (0, 2, 3)] == [
        OffsetWrapper(broker_offset=0, consumer_offset=0, last_timestamp=0)
    ] * 3
    assert len(table) == 4


async def test_progress_is_shown_for_one_topic_for_some_or_for_all_with_progress(
    client: RawClient,
) -> None:
    for topic in ("T", "U", "V"):
        await client.send(topic)
    await commit(client, "T", 0, 1)
    await commit(client, "U", 0, 1)
    topics = [
        {queue.topic for queue in await stats(client, **fields)}
        for fields in ({}, {"topic": "V"}, {"topicList": "T;V"}, {"topic": "nowhere"})
    ]
    assert topics == [{"T", "U"}, {"V"}, {"T", "V"}, set()]
    await client.heartbeat("c1", "G", "U", "V")
    assert {queue.topic for queue in await stats(client)} == {"U"}
    too_many = ";".join(map(str, range(1001)))
    answer = await client.call(RequestCode.GET_CONSUME_STATS, consumerGroup="G", topicList=too_many)
    assert answer.code == ResponseCode.INVALID_PARAMETER


async def test_progress_in_more_queues_than_one_answer_shows_is_refused(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("T", "U"):
        await client.send(topic)
        await commit(client, topic, 0, 1)
    monkeypatch.setattr(admin, "MAX_QUEUES_SHOWN", 7)
    for answer in (
        await client.call(RequestCode.GET_CONSUME_STATS, consumerGroup="G"),
        await client.call(RequestCode.GET_BROKER_CONSUME_STATS, isOrder=False),
    ):
        assert (answer.code, "8 queues" in str(answer.remark)) == (
            ResponseCode.INVALID_PARAMETER,
            True,
        )
    assert len(await stats(client, topic="T")) == 4
    monkeypatch.setattr(admin, "MAX_QUEUES_SHOWN", 8)
    assert len(await stats(client)) == 8


async def test_the_group_s_rate_is_what_it_pulled(client: RawClient) -> None:
    for _ in range(10):
        await client.send("T")
    await client.pull("G", "T", 0)
    body = loads_object((await client.ok(RequestCode.GET_CONSUME_STATS, consumerGroup="G")).body)
    assert 0.0 < body["consumeTps"] <= 10.0
    assert body["offsetTable"] == {}
