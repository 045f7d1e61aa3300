"""Putting groups elsewhere, and finding messages: what is asked of whom, and what is refused."""

import asyncio
import json
import zlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from ogive.aio import Admin
from ogive.client.admin import OffsetReset, ResetTarget
from ogive.errors import (
    BrokerInternalError,
    ConnectError,
    GroupNotExist,
    InvalidOption,
    NoRoute,
    NotSupported,
    QueryNotFound,
    ResponseCode,
)
from ogive.model import MessageQueue
from ogive.testing.fake_broker import FakeBroker, error, ok
from ogive.wire.codes import RequestCode, SysFlag, version_number
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.pull import OffsetResponse
from ogive.wire.message import (
    decode_properties,
    encode_host,
    encode_properties,
    encode_stored,
    offset_message_id,
)
from tests.unit.client.test_admin_groups import OTHER, QUEUE, connect

AT = datetime(2026, 11, 1, tzinfo=UTC)


# --- offsets --------------------------------------------------------------------------------------


@pytest.fixture
def positions(brokers: tuple[FakeBroker, FakeBroker]) -> tuple[FakeBroker, FakeBroker]:
    """Five messages in each queue; *billing* stands at 3 in the first; nobody is online."""
    for broker in brokers:
        for _ in range(5):
            broker.put("Orders", b"x")
        connect(broker)
        broker.on(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ok(OffsetResponse(offset=2)))
    brokers[0].offsets["billing", "Orders", 0] = 3
    return brokers


@pytest.mark.parametrize(
    ("to", "place"), [("earliest", 0), ("latest", 5), (AT, 2), ({QUEUE: 1, OTHER: 1}, 1)]
)
async def test_a_group_without_members_is_put_elsewhere_by_its_offsets(
    admin: Admin, positions: tuple[FakeBroker, FakeBroker], to: ResetTarget, place: int
) -> None:
    plan = [OffsetReset(QUEUE, 3, place), OffsetReset(OTHER, None, place)]
    assert await admin.reset_offsets("billing", "Orders", to, dry_run=True) == plan
    assert all(broker.of(RequestCode.UPDATE_CONSUMER_OFFSET) == [] for broker in positions)
    assert await admin.reset_offsets("billing", "Orders", to) == plan
    assert [broker.offsets["billing", "Orders", 0] for broker in positions] == [place, place]


async def test_a_broker_that_can_puts_a_group_elsewhere_whoever_is_online(
    admin: Admin, positions: tuple[FakeBroker, FakeBroker]
) -> None:
    """What is written is lost on one that keeps an earlier reset for members that are not back."""
    first, second = positions
    first.on(RequestCode.GET_BROKER_CONFIG, ok(body=b"useServerSideResetOffset=true\n"))
    first.on(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ok(body=b'{"offsetTable":{}}'))
    second.on(RequestCode.GET_BROKER_CONFIG, error(ResponseCode.NO_PERMISSION))
    await admin.reset_offsets("billing", "Orders", "earliest")
    codes = (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET)
    assert [[len(broker.of(code)) for code in codes] for broker in positions] == [[1, 0], [0, 1]]


async def test_a_group_with_members_is_put_elsewhere_by_a_broker_that_can(
    admin: Admin, positions: tuple[FakeBroker, FakeBroker]
) -> None:
    for broker in positions:
        connect(broker, "c1")
        broker.on(RequestCode.GET_BROKER_CONFIG, ok(body=b"useServerSideResetOffset=true\n"))
        broker.on(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ok(body=b'{"offsetTable":{}}'))
    await admin.reset_offsets("billing", "Orders", {OTHER: 4})
    (request,) = positions[1].of(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    assert (request.ext_fields["queueId"], request.ext_fields["offset"]) == ("0", "4")
    assert all(broker.of(RequestCode.UPDATE_CONSUMER_OFFSET) == [] for broker in positions)
    assert positions[0].of(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET) == []


async def test_members_at_an_older_broker_can_be_told_a_time_only(
    admin: Admin, positions: tuple[FakeBroker, FakeBroker]
) -> None:
    first, second = positions
    first.on(RequestCode.GET_BROKER_CONFIG, ok(body=b"brokerName=broker-a\n"))
    connect(first, "c1")
    with pytest.raises(InvalidOption, match="stop the members, or reset to"):
        await admin.reset_offsets("billing", "Orders", {QUEUE: 1, OTHER: 1})
    # nothing is done by halves
    assert all(broker.of(RequestCode.UPDATE_CONSUMER_OFFSET) == [] for broker in positions)
    first.on(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ok(body=b'{"offsetTable":{}}'))
    targets: list[ResetTarget] = ["earliest", "latest", AT]
    for to in targets:
        await admin.reset_offsets("billing", "Orders", to)
    asked = [request.ext_fields for request in first.of(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)]
    # 4.9 would begin at any message of exactly the time
    before = str(int(AT.timestamp() * 1000) - 1)
    assert [row["timestamp"] for row in asked] == ["0", "-1", before]
    assert {row["queueId"] for row in asked} == {"-1"}
    assert len(second.of(RequestCode.UPDATE_CONSUMER_OFFSET)) == 3


async def test_an_older_broker_that_misses_progress_is_explained(
    admin: Admin, positions: tuple[FakeBroker, FakeBroker]
) -> None:
    """4.9 takes a group without progress in one of the queues for one that does not exist."""
    first, _ = positions
    first.on(RequestCode.GET_BROKER_CONFIG, ok(body=b"brokerName=broker-a\n"))
    connect(first, "c1")
    first.on(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        error(ResponseCode.SYSTEM_ERROR, "THe consumer group <billing> not exist"),
    )
    with pytest.raises(
        BrokerInternalError, match="a queue of Orders has no progress yet: try again"
    ):
        await admin.reset_offsets("billing", "Orders", "earliest")


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("yesterday", "is not a place in a queue"),
        (AT.replace(tzinfo=None), "needs a time zone"),
        ({QUEUE: 6}, "holds the offsets 0 to 5: it cannot go on at 6"),
        ({MessageQueue("Orders", "broker-a", 7): 0}, "is not a queue of Orders, which has 2"),
    ],
)
async def test_a_place_that_is_none_is_refused(
    admin: Admin, positions: tuple[FakeBroker, FakeBroker], to: Any, words: str
) -> None:
    with pytest.raises(InvalidOption, match=words):
        await admin.reset_offsets("billing", "Orders", to)
    assert all(broker.of(RequestCode.UPDATE_CONSUMER_OFFSET) == [] for broker in positions)


async def test_a_clone_takes_the_positions_that_there_are(
    admin: Admin, positions: tuple[FakeBroker, FakeBroker]
) -> None:
    assert await admin.clone_offsets("billing", "audit", "Orders") == [OffsetReset(QUEUE, None, 3)]
    assert await admin.positions("audit", "Orders") == {QUEUE: 3, OTHER: None}
    assert await admin.offsets_at("Orders", AT) == {QUEUE: 2, OTHER: 2}
    with pytest.raises(InvalidOption, match='"nobody" has no position in topic "Orders"'):
        await admin.clone_offsets("nobody", "audit", "Orders")


async def test_the_first_offset_of_a_new_group_goes_alone() -> None:
    """Of several at once Apache's broker may keep one: each makes the group's table for the
    topic.
    """
    async with FakeBroker({"Orders": 3}) as broker, Admin(broker.address) as admin:
        connect(broker)
        broker.hold(RequestCode.UPDATE_CONSUMER_OFFSET)
        resetting = asyncio.create_task(admin.reset_offsets("billing", "Orders", "earliest"))
        await broker.received(RequestCode.UPDATE_CONSUMER_OFFSET)
        # whatever was sent beside the first has come before this
        await admin.positions("billing", "Orders")
        assert len(broker.of(RequestCode.UPDATE_CONSUMER_OFFSET)) == 1
        broker.release(RequestCode.UPDATE_CONSUMER_OFFSET)
        assert len(await resetting) == 3
        assert sorted(queue_id for _, _, queue_id in broker.offsets) == [0, 1, 2]


async def test_a_group_that_a_broker_refuses_is_to_be_created_first(
    admin: Admin, positions: tuple[FakeBroker, FakeBroker]
) -> None:
    positions[1].on(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        error(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no such group"),
    )
    with pytest.raises(
        GroupNotExist, match=r"no such group; create it first, with .* `ogive group create billing`"
    ):
        await admin.reset_offsets("billing", "Orders", "latest")


# --- messages -------------------------------------------------------------------------------------


async def test_an_id_s_address_is_asked_only_if_it_is_a_broker_of_the_cluster(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    stored = brokers[1].put("Orders", b"here")
    brokers[1].on(RequestCode.VIEW_MESSAGE_BY_ID, ok(body=encode_stored(stored)))
    found = await admin.message(offset_message_id(stored.store_host, stored.commitlog_offset))
    assert (found.body, found.queue) == (b"here", OTHER)
    for broker in brokers:
        broker.on(RequestCode.QUERY_MESSAGE, error(ResponseCode.QUERY_NOT_FOUND))
    async with FakeBroker() as stranger:
        with pytest.raises(QueryNotFound, match=r"no message .* in the one topic"):
            await admin.message(offset_message_id(encode_host("127.0.0.1", stranger.port), 0))
        assert stranger.requests == []


async def test_a_broker_that_is_listed_by_a_name_finds_the_ids_of_its_messages(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    """The id holds the address that the broker's machine has for the name; others may have
    another.
    """
    table = {
        broker.name: {
            "brokerAddrs": {"0": f"broker.internal.invalid:{broker.port}"},
            "brokerName": broker.name,
            "cluster": "C",
        }
        for broker in brokers
    }
    table["broker-a"]["brokerAddrs"] = {"0": f"localhost:{brokers[0].port}"}
    cluster = {"brokerAddrTable": table, "clusterAddrTable": {"C": list(table)}}
    brokers[0].on(RequestCode.GET_BROKER_CLUSTER_INFO, ok(body=json.dumps(cluster).encode()))
    stored = replace(
        brokers[0].put("Orders", b"here"), store_host=encode_host("10.1.2.3", brokers[0].port)
    )
    brokers[0].on(RequestCode.VIEW_MESSAGE_BY_ID, ok(body=encode_stored(stored)))
    found = await admin.message(offset_message_id(stored.store_host, stored.commitlog_offset))
    assert (found.body, found.queue) == (b"here", QUEUE)
    # of another address, and of another port
    for broker in brokers:
        broker.on(RequestCode.QUERY_MESSAGE, error(ResponseCode.QUERY_NOT_FOUND))
    for host, port in (("10.1.2.4", brokers[0].port), ("10.1.2.3", 1)):
        with pytest.raises(QueryNotFound, match="no message"):
            await admin.message(offset_message_id(encode_host(host, port), stored.commitlog_offset))
    with pytest.raises(ConnectError, match=r"broker\.internal\.invalid"):
        await admin.message(offset_message_id(encode_host("10.1.2.3", brokers[1].port), 0))


async def test_a_unique_key_is_not_taken_for_the_id_of_a_broker(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    key = "7F000001FFFF6E92AEAE8C533FF70001"
    wanted = brokers[0].put("Orders", b"1", properties=encode_properties({"UNIQ_KEY": key}))
    brokers[0].on(RequestCode.QUERY_MESSAGE, ok(body=encode_stored(wanted)))
    brokers[1].on(RequestCode.QUERY_MESSAGE, error(ResponseCode.QUERY_NOT_FOUND))
    assert (await admin.message(key)).body == b"1"


async def test_an_id_whose_offset_no_broker_can_have_is_not_taken_for_the_id_of_a_broker(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    for broker in brokers:
        broker.on(RequestCode.QUERY_MESSAGE, error(ResponseCode.QUERY_NOT_FOUND))
    with pytest.raises(QueryNotFound, match="no message"):
        await admin.message(offset_message_id(encode_host("127.0.0.1", brokers[0].port), 2**63))
    assert brokers[0].of(RequestCode.VIEW_MESSAGE_BY_ID) == []


@pytest.mark.parametrize("host", ["[0:0:0:0:0:0:0:1]", "0:0:0:0:0:0:0:1"])
async def test_an_ipv6_address_of_a_broker_may_be_listed_as_java_writes_it(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker], host: str
) -> None:
    table = {
        "broker-a": {
            "brokerAddrs": {"0": f"{host}:{brokers[0].port}"},
            "brokerName": "broker-a",
            "cluster": "C",
        }
    }
    cluster = {"brokerAddrTable": table, "clusterAddrTable": {"C": ["broker-a"]}}
    brokers[0].on(RequestCode.GET_BROKER_CLUSTER_INFO, ok(body=json.dumps(cluster).encode()))
    # it listens on 127.0.0.1 only: that it was dialled is seen from the failure
    with pytest.raises(
        ConnectError, match=rf"no connection to \[?{host.strip('[]')}\]?:{brokers[0].port}"
    ):
        await admin.message(offset_message_id(encode_host("::1", brokers[0].port), 0))


async def test_what_the_index_has_under_another_key_with_the_same_hash_is_left_out(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    wanted = brokers[0].put(
        "Orders", b"1", properties=encode_properties({"KEYS": "4711 x", "UNIQ_KEY": "A1"})
    )
    other = brokers[0].put(
        "Orders", b"2", properties=encode_properties({"KEYS": "4712", "UNIQ_KEY": "A2"})
    )
    brokers[0].on(RequestCode.QUERY_MESSAGE, ok(body=encode_stored(other) + encode_stored(wanted)))
    brokers[1].on(RequestCode.QUERY_MESSAGE, error(ResponseCode.QUERY_NOT_FOUND))
    assert [message.body for message in await admin.messages("Orders", key="4711")] == [b"1"]
    assert (await admin.message("A2", topic="Orders")).body == b"2"
    for request in brokers[0].of(RequestCode.QUERY_MESSAGE):
        # brokers of 4.9 and of 5.x want it signed differently
        assert "_UNIQUE_KEY_QUERY" not in request.ext_fields
    late = datetime.fromtimestamp(wanted.store_timestamp_ms / 1000 + 60, UTC)
    assert await admin.messages("Orders", key="4711", start=late) == []
    brokers[1].on(RequestCode.QUERY_MESSAGE, error(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
    with pytest.raises(NotSupported, match="broker-b keeps no index of keys"):
        await admin.messages("Orders", key="4711")
    with pytest.raises(InvalidOption, match="limit is 0: must be"):
        await admin.messages("Orders", limit=0)


async def test_messages_found_by_key_are_inflated_up_to_a_bound(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    properties = encode_properties({"KEYS": "4711"})
    packed = zlib.compress(bytes(1024 * 1024))
    stored = [
        brokers[0].put("Orders", packed, properties=properties, sys_flag=SysFlag.COMPRESSED)
        for _ in range(36)
    ]
    brokers[0].on(RequestCode.QUERY_MESSAGE, ok(body=b"".join(map(encode_stored, stored))))
    brokers[1].on(RequestCode.QUERY_MESSAGE, error(ResponseCode.QUERY_NOT_FOUND))
    found = await admin.messages("Orders", key="4711")
    assert [message.is_compressed for message in found] == [False] * 33 + [True] * 3
    assert {message.body for message in found[33:]} == {packed}


async def test_messages_of_a_time_are_read_until_it_is_over(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    stored = [brokers[0].put("Orders", b"%d" % i) for i in range(100)]
    for broker in brokers:
        broker.on(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ok(OffsetResponse(offset=0)))
    end = datetime.fromtimestamp(stored[40].store_timestamp_ms / 1000, UTC)
    found = await admin.messages("Orders", end=end, limit=1000)
    assert [message.body for message in found] == [b"%d" % i for i in range(40)]
    # the second shows that the time is over
    assert len(brokers[0].of(RequestCode.PULL_MESSAGE)) == 2
    assert [m.queue_offset for m in await admin.messages("Orders", limit=5)] == list(range(5))


async def test_no_message_of_the_first_millisecond_is_passed_over(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    """Apache's 4.9 answers a time that several messages have with the offset of any of them."""
    early, *others = [brokers[0].put("Orders", b"%d" % i) for i in range(4)]
    at_ms = early.store_timestamp_ms + 10
    same = [replace(message, store_timestamp_ms=at_ms) for message in others]
    brokers[0].stored["Orders", 0][:] = [early, *same]

    def search(request: RemotingCommand) -> RemotingCommand:
        offset = 2 if int(request.ext_fields["timestamp"]) == at_ms else 1
        return replace(ok(OffsetResponse(offset=offset)), version=version_number("4.9.7"))

    brokers[0].on(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
    found = await admin.messages("Orders", start=datetime.fromtimestamp(at_ms / 1000, UTC))
    assert [message.body for message in found] == [b"1", b"2", b"3"]


async def test_a_trace_is_put_together_from_all_brokers(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    with pytest.raises(NoRoute, match="no client has written a trace yet"):
        await admin.trace("A1")

    def record(*fields: str) -> bytes:
        return "\x01".join(fields).encode() + b"\x02"

    sent = record("Pub", "10", "r", "g", "Orders", "A1") + record(
        "Pub", "10", "r", "g", "Orders", "A2"
    )
    for broker, body in zip(
        brokers, (record("SubBefore", "20", "r", "g", "R", "A1", "0", "k"), sent), strict=True
    ):
        broker.topics["RMQ_SYS_TRACE_TOPIC"] = 1
        broker.on(
            RequestCode.QUERY_MESSAGE,
            ok(body=encode_stored(broker.put("RMQ_SYS_TRACE_TOPIC", body))),
        )
    assert [(step.step, step.at_ms, step.message_id) for step in await admin.trace("A1")] == [
        ("sent", 10, "A1"),
        ("delivered", 20, "A1"),
    ]
    assert [step.step for step in await admin.trace("k")] == ["delivered"]


async def test_only_a_dead_letter_of_the_group_is_given_to_it_again(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    brokers[0].topics |= {"%DLQ%billing": 1, "%RETRY%billing": 1}
    properties = {
        "UNIQ_KEY": "A1",
        "RETRY_TOPIC": "Orders",
        "DELAY": "0",
        "MAX_RECONSUME_TIMES": "3",
        "colour": "red",
    }
    brokers[0].put("%DLQ%billing", b"poison", properties=encode_properties(properties))
    dead = await admin.message_at(MessageQueue("%DLQ%billing", "broker-a", 0), 0)
    with pytest.raises(InvalidOption, match="not a queue of the dead letters"):
        await admin.send_again("audit", dead)
    assert (await admin.send_again("billing", dead)).queue == MessageQueue(
        "%RETRY%billing", "broker-a", 0
    )
    (again,) = brokers[0].stored["%RETRY%billing", 0]
    kept = decode_properties(again.properties)
    assert (again.body, kept["RETRY_TOPIC"], kept["colour"], kept["UNIQ_KEY"]) == (
        b"poison",
        "Orders",
        "red",
        "A1",
    )
    assert not kept.keys() & {"DELAY", "MAX_RECONSUME_TIMES"}


async def test_a_dead_letter_without_a_unique_key_can_be_found_after_it_was_sent_again(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    brokers[0].topics |= {"%DLQ%billing": 1, "%RETRY%billing": 1}
    brokers[0].put("%DLQ%billing", b"poison")
    dead = await admin.message_at(MessageQueue("%DLQ%billing", "broker-a", 0), 0)
    await admin.send_again("billing", dead)
    (again,) = brokers[0].stored["%RETRY%billing", 0]
    assert decode_properties(again.properties)["UNIQ_KEY"] == dead.id == dead.offset_id


@pytest.mark.parametrize(
    ("key", "earlier_ms", "retries", "sent"),
    [("A1", 0, 0, True), ("A2", 0, 0, False), ("A1", 1, 0, False), ("A1", 0, 1, False)],
    ids=["again", "of another letter", "before it was dead", "retry"],
)
async def test_a_copy_in_the_retry_topic_tells_that_a_dead_letter_was_sent_again(
    admin: Admin,
    brokers: tuple[FakeBroker, FakeBroker],
    key: str,
    earlier_ms: int,
    retries: int,
    sent: bool,
) -> None:
    brokers[0].topics |= {"%DLQ%billing": 1, "%RETRY%billing": 1}
    stored = brokers[0].put(
        "%DLQ%billing", b"poison", properties=encode_properties({"UNIQ_KEY": "A1"})
    )
    dead = await admin.message_at(MessageQueue("%DLQ%billing", "broker-a", 0), 0)
    copy = replace(
        stored,
        topic="%RETRY%billing",
        properties=encode_properties({"UNIQ_KEY": key}),
        store_timestamp_ms=dead.store_timestamp_ms - earlier_ms,
        reconsume_times=retries,
    )
    brokers[0].on(RequestCode.QUERY_MESSAGE, ok(body=encode_stored(copy)))
    assert await admin.was_sent_again("billing", dead) is sent
    (request,) = brokers[0].of(RequestCode.QUERY_MESSAGE)
    # Apache's index rounds the time of a copy down to seconds
    assert int(request.ext_fields["beginTimestamp"]) <= dead.store_timestamp_ms - 999


@pytest.mark.parametrize("apart_ms", [0, 400, 60_000])
async def test_more_retries_than_a_broker_gives_do_not_hide_that_a_dead_letter_was_sent_again(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker], apart_ms: int
) -> None:
    brokers[0].topics |= {"%DLQ%billing": 1, "%RETRY%billing": 1}
    stored = brokers[0].put(
        "%DLQ%billing", b"poison", properties=encode_properties({"UNIQ_KEY": "A1"})
    )
    dead = await admin.message_at(MessageQueue("%DLQ%billing", "broker-a", 0), 0)
    first_ms = dead.store_timestamp_ms + 5_000
    copies = [
        replace(
            stored,
            topic="%RETRY%billing",
            store_timestamp_ms=first_ms + apart_ms * tries + (1_000 if tries else 0),
            reconsume_times=tries,
        )
        for tries in range(100)
    ]

    def query(request: RemotingCommand) -> RemotingCommand:
        end_ms = int(request.ext_fields["endTimestamp"])
        found = [copy for copy in copies if copy.store_timestamp_ms // 1000 * 1000 <= end_ms]
        newest = found[: -int(request.ext_fields["maxNum"]) - 1 : -1]
        return ok(body=b"".join(map(encode_stored, newest)))

    brokers[0].on(RequestCode.QUERY_MESSAGE, query)
    assert await admin.was_sent_again("billing", dead)
    del copies[0]
    assert not await admin.was_sent_again("billing", dead)


async def test_a_dead_letter_that_its_broker_puts_back_at_once_is_an_error(
    admin: Admin, brokers: tuple[FakeBroker, FakeBroker]
) -> None:
    """As brokers do for groups that hold locks of queues, without a word."""
    brokers[0].topics |= {"%DLQ%billing": 1, "%RETRY%billing": 1}
    stored = brokers[0].put(
        "%DLQ%billing",
        b"poison",
        properties=encode_properties({"UNIQ_KEY": "A1", "RETRY_TOPIC": "Orders"}),
    )
    dead = await admin.message_at(MessageQueue("%DLQ%billing", "broker-a", 0), 0)
    brokers[0].on(RequestCode.VIEW_MESSAGE_BY_ID, ok(body=encode_stored(stored)))
    with pytest.raises(
        InvalidOption, match=r'group "billing" has orderly members online: .* Stop the members'
    ):
        await admin.send_again("billing", dead)
