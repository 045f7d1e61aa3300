"""Routes and sends, through the seam."""

import gzip
import time

import pytest

from ogive.broker import Broker
from ogive.proxy import rocketmq_pb2 as pb
from ogive.proxy.publishing import consistent_hash
from tests.unit.proxy.conftest import make_topic
from tests.unit.proxy.sdk import ENDPOINTS, Sdk, message


async def test_a_route_names_each_queue_and_the_endpoints_of_the_request(sdk: Sdk) -> None:
    response = await sdk.route("M")
    assert response.status.code == pb.OK
    assert [queue.id for queue in response.message_queues] == [0, 1, 2, 3]
    for queue in response.message_queues:
        assert queue.permission == pb.READ_WRITE
        assert queue.broker.endpoints == ENDPOINTS
        assert list(queue.accept_message_types) == [
            pb.NORMAL,
            pb.FIFO,
            pb.DELAY,
            pb.TRANSACTION,
        ]


async def test_a_route_of_a_topic_without_a_type_is_for_normal_messages(
    sdk: Sdk, broker: Broker
) -> None:
    make_topic(broker, "untyped")
    response = await sdk.route("untyped")
    assert list(response.message_queues[0].accept_message_types) == [pb.NORMAL]


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("missing", pb.TOPIC_NOT_FOUND),
        (" ", pb.ILLEGAL_TOPIC),
        ("t" * 128, pb.ILLEGAL_TOPIC),
        ("a b", pb.ILLEGAL_TOPIC),
        ("SCHEDULE_TOPIC_XXXX", pb.ILLEGAL_TOPIC),
    ],
)
async def test_routes_that_do_not_exist(sdk: Sdk, topic: str, code: int) -> None:
    assert (await sdk.route(topic)).status.code == code


async def test_a_sent_message_is_received_with_all_it_had(sdk: Sdk) -> None:
    sent = message("T", b"body", tag="a", keys=["k1", "k2"], trace_context="trace")
    sent.user_properties["color"] = "blue"
    response = await sdk.send(sent)
    assert response.status.code == pb.OK
    (entry,) = response.entries
    assert entry.message_id == sent.system_properties.message_id
    code, (received,) = await sdk.receive("T")
    assert code == pb.OK
    system = received.system_properties
    assert (received.topic.name, received.body) == ("T", b"body")
    assert dict(received.user_properties) == {"color": "blue"}
    assert (system.tag, list(system.keys), system.trace_context) == ("a", ["k1", "k2"], "trace")
    assert system.message_id == entry.message_id
    assert (system.message_type, system.body_encoding) == (pb.NORMAL, pb.IDENTITY)
    assert (system.queue_offset, system.delivery_attempt) == (entry.offset, 1)
    assert system.body_digest.type == pb.MD5
    # md5sum of "body"
    assert system.body_digest.checksum == "841A2D689AD86BD1611447453C22C6FC"
    assert system.born_host == "127.0.0.1:40000"
    assert received.system_properties.receipt_handle


@pytest.mark.parametrize(
    ("fields", "body", "code"),
    [
        ({}, b"", pb.MESSAGE_BODY_EMPTY),
        ({}, bytes(4 * 1024 * 1024 + 1), pb.MESSAGE_BODY_TOO_LARGE),
        ({"message_id": ""}, b"x", pb.ILLEGAL_MESSAGE_ID),
        ({"tag": " "}, b"x", pb.ILLEGAL_MESSAGE_TAG),
        ({"tag": "a|b"}, b"x", pb.ILLEGAL_MESSAGE_TAG),
        ({"tag": "a\x01b"}, b"x", pb.ILLEGAL_MESSAGE_TAG),
        ({"keys": ["a", " "]}, b"x", pb.ILLEGAL_MESSAGE_KEY),
        ({"keys": ["a\x02"]}, b"x", pb.ILLEGAL_MESSAGE_KEY),
        ({"message_group": " "}, b"x", pb.ILLEGAL_MESSAGE_GROUP),
        ({"message_group": "g" * 64}, b"x", pb.ILLEGAL_MESSAGE_GROUP),
        ({"message_group": "a\nb"}, b"x", pb.ILLEGAL_MESSAGE_GROUP),
        ({"trace_context": "a\x02UNIQ_KEY\x01b"}, b"x", pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"tag": "t" * (16 * 1024 + 1)}, b"x", pb.MESSAGE_PROPERTIES_TOO_LARGE),
    ],
)
async def test_messages_that_are_refused(
    sdk: Sdk, fields: dict[str, object], body: bytes, code: int
) -> None:
    response = await sdk.send(message("T", body, **fields))
    assert response.status.code == code
    assert response.status.message
    assert not response.entries


@pytest.mark.parametrize(
    "name", ["UNIQ_KEY", "TIMER_DELIVER_MS", "__LITE_TOPIC", "a\x01", "PGROUP"]
)
async def test_reserved_names_of_properties_are_refused(sdk: Sdk, name: str) -> None:
    sent = message("T")
    sent.user_properties[name] = "x"
    assert (await sdk.send(sent)).status.code == pb.ILLEGAL_MESSAGE_PROPERTY_KEY


async def test_more_than_128_properties_are_refused(sdk: Sdk) -> None:
    sent = message("T")
    for number in range(129):
        sent.user_properties[f"p{number}"] = "x"
    assert (await sdk.send(sent)).status.code == pb.MESSAGE_PROPERTIES_TOO_LARGE


@pytest.mark.parametrize("field", ["born_timestamp", "delivery_timestamp"])
@pytest.mark.parametrize("seconds", [-(2**62), 2**62])
async def test_times_that_cannot_be_are_refused(sdk: Sdk, field: str, seconds: int) -> None:
    odd = message("D")
    getattr(odd.system_properties, field).seconds = seconds
    assert (await sdk.send(odd)).status.code == pb.BAD_REQUEST


async def test_a_recovery_time_above_an_hour_is_refused(sdk: Sdk) -> None:
    sent = message("X", message_type=pb.TRANSACTION)
    sent.system_properties.orphaned_transaction_recovery_duration.FromSeconds(3601)
    assert (await sdk.send(sent)).status.code == pb.BAD_REQUEST


async def test_sends_without_a_message_or_with_two_topics_are_corrupted(sdk: Sdk) -> None:
    assert (await sdk.send()).status.code == pb.MESSAGE_CORRUPTED
    assert (await sdk.send(message("T"), message("M"))).status.code == pb.MESSAGE_CORRUPTED


@pytest.mark.parametrize("topic", ["T", "D", "X"])
async def test_a_message_must_have_the_type_of_its_topic(sdk: Sdk, topic: str) -> None:
    sent = message(topic, message_group="group", message_type=pb.FIFO)
    response = await sdk.send(sent)
    assert response.status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert "FIFO" in response.status.message


async def test_a_topic_for_mixed_messages_takes_each_type(sdk: Sdk) -> None:
    delayed = message("M")
    delayed.system_properties.delivery_timestamp.FromSeconds(int(time.time()) + 60)
    for sent in (
        message("M"),
        message("M", message_group="a"),
        delayed,
        message("M", message_type=pb.TRANSACTION),
    ):
        assert (await sdk.send(sent)).status.code == pb.OK


async def test_a_topic_that_nobody_may_write_to_is_forbidden(sdk: Sdk, broker: Broker) -> None:
    make_topic(broker, "closed", "NORMAL")
    config = broker.context.topics.get("closed")
    assert config is not None
    broker.context.topics.create_or_update(type(config)(name="closed", perm=4))
    assert (await sdk.send(message("closed"))).status.code == pb.FORBIDDEN


async def test_a_send_to_a_missing_topic_is_not_found(sdk: Sdk) -> None:
    response = await sdk.send(message("missing"))
    assert response.status.code == pb.TOPIC_NOT_FOUND
    assert "ogive topic create" in response.status.message


async def test_a_batch_has_one_entry_for_each_message(sdk: Sdk) -> None:
    sent = [message("T", b"%d" % number) for number in range(3)]
    response = await sdk.send(*sent)
    assert response.status.code == pb.OK
    ids = [one.system_properties.message_id for one in sent]
    assert [entry.message_id for entry in response.entries] == ids
    first = response.entries[0].offset
    assert [entry.offset for entry in response.entries] == [first, first + 1, first + 2]
    _, received = await sdk.receive("T")
    assert sorted(one.body for one in received) == [b"0", b"1", b"2"]
    assert {one.system_properties.message_id for one in received} == set(ids)


async def test_messages_of_one_group_go_to_one_queue(sdk: Sdk) -> None:
    for number in range(6):
        await sdk.send(message("F", b"%d" % number, message_group="same"))
    _, received = await sdk.receive("F")
    assert len({one.system_properties.queue_id for one in received}) == 1
    assert [one.body for one in received] == [b"%d" % number for number in range(6)]
    assert received[0].system_properties.message_group == "same"


def test_groups_have_the_queue_that_guava_chooses() -> None:
    # com.google.common.hash.Hashing.consistentHash
    assert [consistent_hash(value, 1) for value in (0, 1, -5)] == [0, 0, 0]
    moved = [(consistent_hash(n, 9), consistent_hash(n, 10)) for n in range(2000)]
    assert all(before == after or after == 9 for before, after in moved)
    assert 100 < sum(after == 9 for _, after in moved) < 300


async def test_a_body_of_gzip_is_stored_plain(sdk: Sdk) -> None:
    await sdk.send(message("T", gzip.compress(b"plain" * 100), body_encoding=pb.GZIP))
    _, (received,) = await sdk.receive("T")
    assert received.body == b"plain" * 100
    assert received.system_properties.body_encoding == pb.IDENTITY


async def test_a_gzip_bomb_is_refused(sdk: Sdk) -> None:
    bomb = gzip.compress(bytes(8 * 1024 * 1024))
    response = await sdk.send(message("T", bomb, body_encoding=pb.GZIP))
    assert response.status.code == pb.MESSAGE_BODY_TOO_LARGE


async def test_a_batch_of_gzip_bombs_is_refused(sdk: Sdk) -> None:
    """Each one alone may be sent: 4,096 of them would take the machine's memory."""
    bomb = gzip.compress(bytes(4 * 1024 * 1024))
    response = await sdk.send(*(message("T", bomb, body_encoding=pb.GZIP) for _ in range(10)))
    assert response.status.code == pb.MESSAGE_BODY_TOO_LARGE


@pytest.mark.parametrize(
    "body",
    [b"not packed", gzip.compress(b"x" * 99, mtime=0)[:10] + b"\xff" * 20],
    ids=["no gzip", "damaged gzip"],
)
async def test_plain_bytes_that_are_marked_gzip_come_back_unchanged(sdk: Sdk, body: bytes) -> None:
    await sdk.send(message("T", body, body_encoding=pb.GZIP))
    _, (received,) = await sdk.receive("T")
    assert received.body == body
    assert received.system_properties.body_encoding == pb.GZIP


async def test_a_call_without_a_client_id_is_refused(sdk: Sdk) -> None:
    sdk.metadata["x-mq-client-id"] = " "
    assert (await sdk.send(message("T"))).status.code == pb.CLIENT_ID_REQUIRED
    assert (await sdk.receive("T"))[0] == pb.CLIENT_ID_REQUIRED


async def test_lite_topics_are_not_implemented(sdk: Sdk) -> None:
    response = await sdk.call("SyncLiteSubscription", pb.SyncLiteSubscriptionRequest())
    assert response.status.code == pb.NOT_IMPLEMENTED


async def test_the_four_methods_that_no_sdk_calls_are_not_served(sdk: Sdk) -> None:
    names = {path.rpartition("/")[2] for path in sdk.methods}
    assert len(names) == 13
    assert not names & {"PullMessage", "UpdateOffset", "GetOffset", "QueryOffset"}
