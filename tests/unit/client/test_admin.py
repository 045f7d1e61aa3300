"""Topics, offsets and lag as an operator asks for them."""

import inspect

import pytest

import ogive
from ogive.aio import Admin
from ogive.cli.parser import build_parser
from ogive.client.admin import QueueLag, QueueOffsets, TopicSummary
from ogive.client.config import ClientConfig
from ogive.errors import IllegalStateError, InvalidOption, NoPermission, NoRoute, ResponseCode
from ogive.model import MessageQueue
from ogive.testing.fake_broker import FakeBroker, error, ok
from ogive.wire.bodies.stats import (
    OffsetWrapper,
    TopicOffset,
    consume_stats_dumps,
    topic_stats_dumps,
)
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand

QUEUE = MessageQueue("Orders", "broker-a", 0)
OTHER = MessageQueue("Orders", "broker-b", 0)


async def test_a_topic_is_created_on_every_master_and_there_when_the_call_returns(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    await admin.create_topic("New", queues=3)
    assert [broker.topics["New"] for broker in brokers] == [3, 3]
    assert len(await admin.client.routes.publish_queues("New")) == 6


def test_a_topic_gets_as_many_queues_from_a_program_as_from_the_command() -> None:
    """Or one of them would be refused where the other was first."""
    command = build_parser(["topic", "create", "New"]).parse_args(["topic", "create", "New"])
    defaults = [
        inspect.signature(kind.create_topic).parameters["queues"].default
        for kind in (Admin, ogive.Admin)
    ]
    assert defaults == [command.queues, command.queues]


async def test_a_topic_that_the_name_server_never_shows_is_reported(
    brokers: tuple[FakeBroker, FakeBroker],
) -> None:
    for broker in brokers:
        broker.on(RequestCode.UPDATE_AND_CREATE_TOPIC, ok())
    async with Admin(
        client=ClientConfig(name_server=brokers[0].address, request_timeout_s=1.0)
    ) as admin:
        with pytest.raises(
            NoRoute, match=r'"New" is created, but .* does not show it after 1\.0 s'
        ):
            await admin.create_topic("New")


async def test_names_and_clusters_that_cannot_be_are_refused(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    with pytest.raises(InvalidOption):
        await admin.create_topic("two words")
    with pytest.raises(InvalidOption, match="at least 1"):
        await admin.create_topic("New", queues=0)
    with pytest.raises(InvalidOption, match='"Elsewhere" is unknown; there are: DefaultCluster'):
        await admin.create_topic("New", cluster="Elsewhere")
    assert brokers[0].of(RequestCode.UPDATE_AND_CREATE_TOPIC) == []


async def test_a_topic_is_deleted_everywhere(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    for broker in brokers:
        broker.on(RequestCode.DELETE_TOPIC_IN_BROKER, ok())
        broker.on(RequestCode.DELETE_TOPIC_IN_NAMESRV, ok())
    await admin.delete_topic("Orders")
    assert [len(broker.of(RequestCode.DELETE_TOPIC_IN_BROKER)) for broker in brokers] == [1, 1]
    assert len(brokers[0].of(RequestCode.DELETE_TOPIC_IN_NAMESRV)) == 1


async def test_topics_are_listed_without_the_systems_own(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    own = [
        "TBW102",
        "%RETRY%billing",
        "%DLQ%billing",
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_wheel_timer",
        "DefaultCluster",
        "broker-a",
    ]
    brokers[0].topics |= dict.fromkeys(own, 1)
    assert await admin.topics() == [TopicSummary("Orders", ("broker-a", "broker-b"), 2, 2)]
    assert [row.name for row in await admin.topics(system=True)] == sorted([*own, "Orders"])


async def test_offsets_of_all_brokers_are_put_together(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    for broker, queue, stored in zip(brokers, (QUEUE, OTHER), (9, 0), strict=True):
        row = TopicOffset(min_offset=1, max_offset=5, last_update_timestamp=stored)
        broker.on(RequestCode.GET_TOPIC_STATS_INFO, ok(body=topic_stats_dumps({queue: row})))
    assert await admin.offsets("Orders") == [
        QueueOffsets(QUEUE, 1, 5, 9),
        QueueOffsets(OTHER, 1, 5, None),
    ]
    with pytest.raises(NoRoute):
        await admin.offsets("Nowhere")


async def test_lag_counts_what_a_group_has_not_consumed(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    first, second = brokers

    def stats(queue: MessageQueue, end: int, at: int) -> RemotingCommand:
        row = OffsetWrapper(broker_offset=end, consumer_offset=at, last_timestamp=0)
        return ok(body=consume_stats_dumps({queue: row}, 0.0))

    first.on(RequestCode.GET_CONSUME_STATS, stats(QUEUE, 10, 4))
    second.on(RequestCode.GET_CONSUME_STATS, stats(OTHER, 10, -1))
    assert await admin.lag("billing", members=False) == [
        QueueLag(QUEUE, 4, 10, 6, None),
        QueueLag(OTHER, -1, 10, 10, None),
    ]
    second.on(RequestCode.GET_CONSUME_STATS, error(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST))
    assert [row.queue for row in await admin.lag("billing", "Orders", members=False)] == [QUEUE]
    assert first.of(RequestCode.GET_CONSUME_STATS)[1].ext_fields["topic"] == "Orders"


async def test_a_group_without_members_is_no_error(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    for broker in brokers:
        broker.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, error(ResponseCode.CONSUMER_NOT_ONLINE))
    assert await admin.members("billing") is None


async def test_a_cluster_without_brokers_is_an_error() -> None:
    async with FakeBroker() as broker, Admin(broker.address) as admin:
        broker.on(
            RequestCode.GET_BROKER_CLUSTER_INFO,
            ok(body=b'{"brokerAddrTable":{},"clusterAddrTable":{}}'),
        )
        with pytest.raises(NoRoute, match="knows no broker yet"):
            await admin.create_topic("New")


async def test_an_admin_says_what_is_wrong_with_its_use() -> None:
    admin = Admin()
    with pytest.raises(IllegalStateError, match="not started"):
        await admin.topics()
    await admin.start()
    with pytest.raises(IllegalStateError, match="started before"):
        await admin.start()
    await admin.close()
    with pytest.raises(IllegalStateError, match="closed"):
        await admin.topics()


async def test_delay_levels_are_those_that_every_broker_of_the_topic_has(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    brokers[0].on(
        RequestCode.GET_BROKER_CONFIG, ok(body=b"brokerName=broker-a\nmessageDelayLevel=1s 5s 1m\n")
    )
    brokers[1].on(RequestCode.GET_BROKER_CONFIG, ok(body=b"messageDelayLevel=2s 3s\n"))
    for topic in ("Orders", "NotYetCreated"):
        assert (await admin.delay_levels(topic)).delays_ms == (2000, 3000)
    brokers[1].on(RequestCode.GET_BROKER_CONFIG, error(ResponseCode.NO_PERMISSION))
    with pytest.raises(NoPermission):
        await admin.delay_levels("Orders")
