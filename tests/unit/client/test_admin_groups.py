"""Topics and groups with all their settings, members, and who holds which queue."""

import json
from typing import Any

import pytest

from ogive.aio import Admin
from ogive.client import rpc
from ogive.client.admin import SettingChange
from ogive.errors import ConsumerNotOnline, GroupNotExist, InvalidOption, NoRoute, ResponseCode
from ogive.model import MessageQueue
from ogive.testing.fake_broker import FakeBroker, error, ok
from ogive.wire.bodies.clients import (
    ConnectionInfo,
    ConsumerConnection,
    SubscriptionData,
    group_list_dumps,
    producer_connections_dumps,
)
from ogive.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from ogive.wire.bodies.json_fields import dumps, queue_map_dumps
from ogive.wire.bodies.routes import BrokerData, ClusterInfo
from ogive.wire.bodies.stats import OffsetWrapper, consume_stats_dumps, kv_table_dumps
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.admin import AllGroupsResponse

QUEUE = MessageQueue("Orders", "broker-a", 0)
OTHER = MessageQueue("Orders", "broker-b", 0)


# --- topics and brokers ---------------------------------------------------------------------------


def show_config(broker: FakeBroker, config: TopicConfig, *, by_name: bool = True) -> None:
    """*by_name* False: as brokers of 4.x, which only show all topics."""
    by_itself = (
        ok(body=dumps(config.to_json()))
        if by_name
        else error(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    )
    broker.on(RequestCode.GET_TOPIC_CONFIG, by_itself)
    table = {"dataVersion": {}, "topicConfigTable": {config.name: config.to_json()}}
    broker.on(RequestCode.GET_ALL_TOPIC_CONFIG, ok(body=dumps(table)))
    broker.on(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, ok(body=group_list_dumps(["billing"])))


async def test_settings_of_a_topic_travel_with_its_creation(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    await admin.create_topic("New", order=True, message_type="FIFO", whole_batches=True)
    fields = brokers[0].of(RequestCode.UPDATE_AND_CREATE_TOPIC)[0].ext_fields
    assert (fields["order"], fields["attributes"], fields["perm"]) == (
        "true",
        "+message.type=FIFO,+queue.type=BatchCQ",
        "6",
    )
    with pytest.raises(InvalidOption, match="permission 'x' is not one of rw, r, w"):
        await admin.create_topic("New", perm="x")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="message type 'fifo' is not one of"):
        await admin.create_topic("New", message_type="fifo")  # type: ignore[arg-type]


async def test_a_rule_is_for_addresses_and_networks(admin: Admin) -> None:
    with pytest.raises(
        InvalidOption,
        match=r"'10\.0\.0' is neither an address nor a network such as 10\.0\.0\.0/24",
    ):
        await admin.allow("billing", "Topic:Orders", ["Pub"], source_ips=["10.0.0.1", "10.0.0"])


@pytest.mark.parametrize("by_name", [True, False])
async def test_a_topic_that_is_there_with_other_settings_is_not_overwritten(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker], by_name: bool
) -> None:
    """Its last queues would go, with messages that nobody gets then, and that no lag counts."""
    for broker in brokers:
        show_config(
            broker,
            TopicConfig(
                name="Orders", read_queues=8, write_queues=8, attributes={"message.type": "FIFO"}
            ),
            by_name=by_name,
        )
    refused: list[tuple[dict[str, Any], str]] = [
        ({"queues": 4}, "read queues 8, write queues 8"),
        ({"perm": "r"}, "perm rw"),
        ({"order": True}, "order off"),
        ({"message_type": "NORMAL"}, "message type FIFO"),
    ]
    for other, known in refused:
        text = (
            f"topic Orders exists already on broker-a, with {known}: update_topic or `ogive "
            "topic update` changes it"
        )
        with pytest.raises(InvalidOption, match=text):
            await admin.create_topic("Orders", **other)
    with pytest.raises(
        InvalidOption,
        match="with whole batches off: whole batches are decided when it is made: take another "
        "name, or delete",
    ):
        await admin.create_topic("Orders", whole_batches=True)
    assert [broker.of(RequestCode.UPDATE_AND_CREATE_TOPIC) for broker in brokers] == [[], []]


async def test_a_topic_of_batches_says_so_and_is_not_taken_for_an_ordinary_one(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    for broker in brokers:
        broker.topics["Orders"] = 8
        show_config(
            broker,
            TopicConfig(
                name="Orders", read_queues=8, write_queues=8, attributes={"queue.type": "BatchCQ"}
            ),
        )
    assert (await admin.topic("Orders")).whole_batches
    with pytest.raises(
        InvalidOption, match="with whole batches on: whole batches are decided when it is made"
    ):
        await admin.create_topic("Orders")


async def test_a_topic_that_is_there_with_equal_settings_is_created_where_it_is_not(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    brokers[0].topics["New"] = 8
    for _ in range(2):
        await admin.create_topic("New")
    assert [broker.topics["New"] for broker in brokers] == [8, 8]
    assert [len(broker.of(RequestCode.UPDATE_AND_CREATE_TOPIC)) for broker in brokers] == [0, 1]


@pytest.mark.parametrize("by_name", [True, False])
async def test_an_update_changes_what_is_named_and_nothing_else(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker], by_name: bool
) -> None:
    for broker, queues in zip(brokers, (3, 5), strict=True):
        show_config(
            broker,
            TopicConfig(
                name="Orders", read_queues=queues, write_queues=queues, attributes={"a": "b"}
            ),
            by_name=by_name,
        )
    await admin.update_topic("Orders", order=True)
    asked = [broker.of(RequestCode.UPDATE_AND_CREATE_TOPIC)[0].ext_fields for broker in brokers]
    assert [
        (row["readQueueNums"], row["writeQueueNums"], row["order"], row["perm"]) for row in asked
    ] == [
        ("3", "3", "true", "6"),
        ("5", "5", "true", "6"),
    ]
    # fixed ones would be refused
    assert "attributes" not in asked[0]
    assert await admin.update_topic("Orders", read_queues=5, message_type="FIFO", dry_run=True) == [
        SettingChange("broker-a", "read_queues", 3, 5),
        SettingChange("broker-a", "message_type", None, "FIFO"),
        SettingChange("broker-b", "message_type", None, "FIFO"),
    ]
    assert await admin.update_topic("Orders", perm="rw") == []
    assert [len(broker.of(RequestCode.UPDATE_AND_CREATE_TOPIC)) for broker in brokers] == [1, 1]
    with pytest.raises(InvalidOption, match="name a setting"):
        await admin.update_topic("Orders")


async def test_a_topic_is_shown_as_each_broker_holds_it(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    show_config(brokers[0], TopicConfig(name="Orders", perm=6, attributes={"message.type": "FIFO"}))
    show_config(brokers[1], TopicConfig(name="Orders", perm=4), by_name=False)
    shown = await admin.topic("Orders")
    assert [(row.broker, row.perm, row.address) for row in shown.brokers] == [
        ("broker-a", "rw", brokers[0].address),
        ("broker-b", "r", brokers[1].address),
    ]
    assert (shown.message_type, shown.groups, shown.kind) == ("FIFO", ("billing",), "application")
    with pytest.raises(NoRoute, match="Similar topics: Orders"):
        await admin.topic("Ordres")


async def test_tables_of_several_pages_are_read_whole(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    def page(request: RemotingCommand) -> RemotingCommand:
        name = f"G{request.ext_fields['groupSeq']}"
        rows = {name: SubscriptionGroupConfig(name=name).to_json()}
        return ok(
            AllGroupsResponse(total_group_num=3 * rpc.PAGE),
            dumps({"subscriptionGroupTable": rows}),
        )

    for broker in brokers:
        broker.on(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, page)
    assert {row.name for row in await admin.groups()} == {"G0", f"G{rpc.PAGE}", f"G{2 * rpc.PAGE}"}


async def test_a_broker_that_does_not_answer_is_shown_with_its_trouble(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    figures = {
        "brokerVersionDesc": "V4_9_7",
        "putTps": "2.5 1.0 0.5",
        "getTransferedTps": "3.5 1 1",
        "msgPutTotalTodayNow": "10",
        "msgPutTotalTodayMorning": "4",
        "commitLogDiskRatio": "0.25",
        "earliestMessageTimeStamp": "-1",
    }
    brokers[0].on(RequestCode.GET_BROKER_RUNTIME_INFO, ok(body=kv_table_dumps(figures)))
    brokers[1].on(RequestCode.GET_BROKER_RUNTIME_INFO, error(ResponseCode.NO_PERMISSION, "not you"))
    first, second = await admin.brokers()
    assert (
        first.version,
        first.puts_per_s,
        first.gets_per_s,
        first.puts_today,
        first.gets_today,
    ) == ("4.9.7", 2.5, 3.5, 6, None)
    assert (first.disk_used, first.oldest_message_ms, first.trouble) == (0.25, None, None)
    assert (second.name, second.version) == ("broker-b", None)
    assert "not you" in (second.trouble or "")


# --- groups ---------------------------------------------------------------------------------------


def show_groups(broker: FakeBroker, *rows: dict[str, Any]) -> None:
    broker.on(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        ok(body=dumps({"subscriptionGroupTable": {r["groupName"]: r for r in rows}})),
    )


def connect(broker: FakeBroker, *client_ids: str, model: str = "CLUSTERING") -> None:
    """Members of whatever group is asked for; without any, nobody is online."""
    one = ConsumerConnection(
        connections=tuple(
            ConnectionInfo(client_id=i, address="10.0.0.1:5", language="JAVA", version=513)
            for i in client_ids
        ),
        subscriptions={"Orders": SubscriptionData.of_tags("Orders", "paid")},
        consume_type="CONSUME_PASSIVELY",
        message_model=model,
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
    )
    broker.on(
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        ok(body=one.encode()) if client_ids else error(ResponseCode.CONSUMER_NOT_ONLINE),
    )


async def test_an_update_of_a_group_keeps_what_only_its_broker_knows(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    config = SubscriptionGroupConfig(name="billing").to_json() | {
        "novelty": [1],
        "attributes": {"lite": "x"},
    }
    show_groups(brokers[0], config)
    show_groups(brokers[1])
    brokers[0].on(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, ok())
    changes = [
        SettingChange("broker-a", "max_retries", 16, 3),
        SettingChange("broker-a", "enabled", True, False),
    ]
    assert (
        await admin.update_group("billing", max_retries=3, enabled=False, dry_run=True) == changes
    )
    assert await admin.update_group("billing", max_retries=3, enabled=False) == changes
    assert await admin.update_group("billing", max_retries=16) == []
    (request,) = brokers[0].of(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    assert json.loads(request.body) == config | {
        "retryMaxTimes": 3,
        "consumeEnable": False,
        "attributes": {},
    }
    assert brokers[1].of(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP) == []
    with pytest.raises(
        GroupNotExist, match=r"Similar groups: billing\. Create it with `ogive group create biling`"
    ):
        await admin.update_group("biling", enabled=True)


async def test_a_group_that_is_there_with_other_settings_is_not_overwritten(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    show_groups(
        brokers[0],
        SubscriptionGroupConfig(name="billing", retry_max_times=3, consume_enable=False).to_json(),
    )
    show_groups(brokers[1])
    text = (
        "group billing exists already on broker-a, with max retries 3, enabled off: "
        "update_group or `ogive group update` changes it"
    )
    with pytest.raises(InvalidOption, match=text):
        await admin.create_group("billing")
    brokers[1].on(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, ok())
    await admin.create_group("billing", max_retries=3, enabled=False)
    assert [
        len(broker.of(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)) for broker in brokers
    ] == [0, 1]


async def test_a_group_is_shown_with_the_members_of_all_brokers(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    for broker, members, queue in zip(
        brokers, (("c1", "c2"), ("c2", "c3")), (QUEUE, OTHER), strict=True
    ):
        show_groups(broker, SubscriptionGroupConfig(name="billing", retry_max_times=3).to_json())
        connect(broker, *members)
        row = OffsetWrapper(broker_offset=10, consumer_offset=4, last_timestamp=0)
        broker.on(RequestCode.GET_CONSUME_STATS, ok(body=consume_stats_dumps({queue: row}, 1.5)))
    shown = await admin.group("billing")
    assert [(m.client_id, m.version, m.language) for m in shown.members] == [
        (i, "5.5.0", "JAVA") for i in ("c1", "c2", "c3")
    ]
    assert (shown.lag, shown.messages_per_s, shown.max_retries, shown.brokers) == (
        12,
        3.0,
        3,
        ("broker-a", "broker-b"),
    )
    assert dict(shown.subscriptions) == {"Orders": "paid"}


async def test_a_group_with_members_is_not_deleted(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    for broker in brokers:
        show_groups(broker, SubscriptionGroupConfig(name="billing").to_json())
        connect(broker)
        broker.on(RequestCode.DELETE_SUBSCRIPTIONGROUP, ok())
    connect(brokers[1], "c1")
    with pytest.raises(InvalidOption, match=r"stop them first \(c1\)"):
        await admin.delete_group("billing")
    connect(brokers[1])
    await admin.delete_group("billing", offsets=True)
    asked = [broker.of(RequestCode.DELETE_SUBSCRIPTIONGROUP)[0].ext_fields for broker in brokers]
    assert asked == [{"groupName": "billing", "cleanOffset": "true", "removeOffset": "true"}] * 2
    with pytest.raises(
        GroupNotExist,
        match=r'no broker knows a consumer group "billin". Similar groups: billing. There is '
        r"nothing to delete.",
    ):
        await admin.delete_group("billin")


async def test_lag_names_the_member_that_holds_a_queue_where_it_tells(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    first, second = brokers
    for broker, queue in zip(brokers, (QUEUE, OTHER), strict=True):
        row = OffsetWrapper(broker_offset=10, consumer_offset=4, last_timestamp=0)
        broker.on(RequestCode.GET_CONSUME_STATS, ok(body=consume_stats_dumps({queue: row}, 0.0)))
    connect(first, "c1", "c2")
    connect(second)

    def tell(request: RemotingCommand) -> RemotingCommand:
        if request.ext_fields["clientId"] == "c2":
            return error(ResponseCode.CONSUME_MSG_TIMEOUT)
        return ok(body=f'{{"mqTable":{queue_map_dumps([(QUEUE, "{}")])}}}'.encode())

    first.on(RequestCode.GET_CONSUMER_RUNNING_INFO, tell)
    assert [(row.queue, row.member) for row in await admin.lag("billing")] == [
        (QUEUE, "c1"),
        (OTHER, None),
    ]
    assert list((await admin.running_info("billing", "c1")).queues) == [QUEUE]
    with pytest.raises(ConsumerNotOnline, match='no member "c9" of group "billing" is online'):
        await admin.running_info("billing", "c9")
    connect(first, "c1", model="BROADCASTING")
    assert {row.member for row in await admin.lag("billing")} == {None}


async def test_producers_of_all_brokers_are_shown(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    one = ConnectionInfo(client_id="p1", address="10.0.0.1:5", language="GO", version=317)
    brokers[0].on(
        RequestCode.GET_PRODUCER_CONNECTION_LIST, ok(body=producer_connections_dumps([one]))
    )
    brokers[1].on(RequestCode.GET_PRODUCER_CONNECTION_LIST, error(ResponseCode.SYSTEM_ERROR))
    assert [(m.client_id, m.language, m.version) for m in await admin.producers("shop")] == [
        ("p1", "GO", "4.5.2")
    ]


async def test_the_lag_of_a_group_that_does_not_exist_is_an_error_with_similar_names(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    for broker in brokers:
        broker.on(RequestCode.GET_CONSUME_STATS, ok(body=consume_stats_dumps({}, 0.0)))
        groups = {"subscriptionGroupTable": {"billing": {"groupName": "billing"}}}
        broker.on(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, ok(body=dumps(groups)))
    with pytest.raises(GroupNotExist, match="billing"):
        await admin.lag("billling")
    assert await admin.lag("billing") == []


async def test_the_dead_letters_of_a_group_that_does_not_exist_are_an_error_with_similar_names(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    for broker in brokers:
        groups = {"subscriptionGroupTable": {"billing": {"groupName": "billing"}}}
        broker.on(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, ok(body=dumps(groups)))
    with pytest.raises(GroupNotExist, match=r"Similar groups: billing\."):
        await admin.dead_letters("billling")
    assert await admin.dead_letters("billing") == []


async def test_brokers_that_do_not_tell_of_groups_have_no_dead_letters_of_any(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    brokers[1].on(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, error(ResponseCode.NO_PERMISSION))
    assert await admin.dead_letters("billling") == []


async def test_calls_that_name_an_unknown_group_or_topic_name_similar_ones(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    """They answered that there is nothing."""
    for broker in brokers:
        show_groups(broker, SubscriptionGroupConfig(name="billing").to_json())
        connect(broker)
        broker.on(
            RequestCode.SET_MESSAGE_REQUEST_MODE, error(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        )
        broker.on(RequestCode.QUERY_CONSUMER_OFFSET, error(ResponseCode.QUERY_NOT_FOUND))
        broker.on(RequestCode.GET_CONSUME_STATS, ok(body=consume_stats_dumps({}, 0.0)))
        broker.on(RequestCode.DELETE_TOPIC_IN_BROKER, ok())
    for call in (
        admin.members("biling"),
        admin.running_info("biling", "me@1"),
        admin.positions("biling", "Orders"),
        admin.set_consume_mode("biling", "Orders", "pop"),
    ):
        with pytest.raises(GroupNotExist, match=r"Similar groups: billing\."):
            await call
    with pytest.raises(NoRoute, match=r"Similar topics: Orders\."):
        await admin.lag("billing", "Order")
    with pytest.raises(NoRoute, match=r"Similar topics: Orders\."):
        await admin.delete_topic("Order")
    assert await admin.members("billing") is None
    assert set((await admin.positions("billing", "Orders")).values()) == {None}


async def test_a_group_may_be_known_by_a_broker_that_is_away(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    """The error gave the advice to create it."""
    for broker in brokers:
        show_groups(broker)
        connect(broker)
    listed, lost, slave = (
        BrokerData(cluster="c", broker_name=name, addresses={number: brokers[0].address})
        for name, number in (("broker-a", 0), ("broker-x", 0), ("broker-s", 1))
    )
    cluster = ClusterInfo(
        brokers={"broker-a": listed, "broker-s": slave},
        clusters={"c": ("broker-a", "broker-s")},
        lost={"broker-x": lost},
    )
    brokers[0].on(RequestCode.GET_BROKER_CLUSTER_INFO, ok(body=cluster.encode()))
    for call in (
        admin.members("billing"),
        admin.update_group("billing", max_retries=3),
        admin.delete_group("billing"),
    ):
        with pytest.raises(GroupNotExist) as caught:
            await call
        assert str(caught.value).startswith(
            'no broker knows a consumer group "billing". Brokers that are away may know it: '
            "broker-s, broker-x."
        )


async def test_who_goes_through_a_list_of_groups_lists_them_once(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    for broker in brokers:
        show_groups(
            broker,
            SubscriptionGroupConfig(name="billing").to_json(),
            SubscriptionGroupConfig(name="shipping").to_json(),
        )
        connect(broker)
        broker.on(RequestCode.GET_CONSUME_STATS, ok(body=consume_stats_dumps({}, 0.0)))
    for group in await admin.groups():
        assert await admin.members(group.name) is None
        assert await admin.lag(group.name) == []
    assert len(brokers[0].of(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)) == 1


async def test_a_group_is_switched_to_popping_at_each_broker_of_the_topic(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    for broker in brokers:
        broker.topics["Orders"] = 1
        broker.on(RequestCode.SET_MESSAGE_REQUEST_MODE, ok())
    await admin.set_consume_mode("billing", "Orders", "pop", share_queues=2)
    asked = [
        json.loads(one.body)
        for broker in brokers
        for one in broker.of(RequestCode.SET_MESSAGE_REQUEST_MODE)
    ]
    assert asked
    for body in asked:
        assert body == {
            "topic": "Orders",
            "consumerGroup": "billing",
            "mode": "POP",
            "popShareQueueNum": 2,
        }
    wrong: list[dict[str, Any]] = [{"mode": "push"}, {"mode": "pop", "share_queues": -1}]
    for arguments in wrong:
        with pytest.raises(InvalidOption, match=r"mode is 'push'|share_queues is -1"):
            await admin.set_consume_mode("billing", "Orders", **arguments)
