"""Receives, acknowledgements, renewals, dead letters, through the seam."""

import asyncio
import contextlib
import time
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ogive.broker import Broker
from ogive.client import rpc
from ogive.proxy import rocketmq_pb2 as pb
from ogive.proxy.backend import ClientIdentity
from ogive.proxy.calls import Method
from ogive.proxy.local import LocalBackend
from ogive.proxy.service import PATH, build
from ogive.wire.bodies.configs import SubscriptionGroupConfig
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.send import SendMessageRequestV2
from ogive.wire.message import join_properties
from tests.unit.proxy.conftest import StartBroker
from tests.unit.proxy.sdk import ENDPOINTS, Sdk, Telemetry, message, receive_request, subscribing


async def test_acknowledged_messages_do_not_come_again(sdk: Sdk) -> None:
    await sdk.send(*(message("T", b"%d" % number) for number in range(3)))
    _, received = await sdk.receive("T")
    response = await sdk.ack("T", *received)
    assert response.status.code == pb.OK
    assert [entry.status.code for entry in response.entries] == [pb.OK] * 3
    assert (await sdk.receive("T"))[0] == pb.MESSAGE_NOT_FOUND


async def test_a_receive_waits_for_a_message(sdk: Sdk) -> None:
    waiting = asyncio.ensure_future(sdk.receive("T", poll_s=20))
    await asyncio.sleep(0)
    await sdk.send(message("T", b"late"))
    code, (received,) = await waiting
    assert (code, received.body) == (pb.OK, b"late")


async def test_what_a_slow_reader_leaves_counts_as_its_memory(
    sdk: Sdk, methods: Mapping[str, Method]
) -> None:
    await sdk.send(*(message("T", bytes(10_000)) for _ in range(3)))
    kept: list[int] = []
    call = replace(sdk.context(), keep=kept.append)
    handler: Any = methods[PATH + "ReceiveMessage"].handler
    responses = handler(receive_request("T"), call)
    status = await anext(responses)
    assert status.status.code == pb.OK
    assert sum(kept) >= 10_000
    async for _ in responses:
        pass
    assert sum(kept) == 0


async def test_a_filter_by_tag_and_one_by_sql(sdk: Sdk) -> None:
    for tag in ("a", "b", "c"):
        await sdk.send(message("T", tag.encode(), tag=tag))
    _, received = await sdk.receive("T", expression="a || c")
    assert sorted(one.body for one in received) == [b"a", b"c"]
    _, received = await sdk.receive("T", "sql", expression="TAGS = 'b'", sql=True)
    assert [one.body for one in received] == [b"b"]


async def test_another_tag_with_the_same_hash_is_not_delivered(sdk: Sdk) -> None:
    # "Aa" and "BB" have the same hash in Java
    await sdk.send(message("T", b"1", tag="Aa"), message("T", b"2", tag="BB"))
    _, received = await sdk.receive("T", expression="BB")
    assert [one.body for one in received] == [b"2"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"expression": "a >", "sql": True}, pb.ILLEGAL_FILTER_EXPRESSION),
        ({"expression": "", "sql": True}, pb.ILLEGAL_FILTER_EXPRESSION),
        ({"invisible_s": 9}, pb.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_s": 12 * 3600 + 1}, pb.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_s": None}, pb.ILLEGAL_INVISIBLE_TIME),
        ({"group": " "}, pb.ILLEGAL_CONSUMER_GROUP),
        ({"group": "g" * 121}, pb.ILLEGAL_CONSUMER_GROUP),
        ({"group": "CID_RMQ_SYS_TRANS"}, pb.ILLEGAL_CONSUMER_GROUP),
        ({"timeout_s": 4.0}, pb.ILLEGAL_POLLING_TIME),
    ],
)
async def test_receives_that_are_refused(sdk: Sdk, fields: dict[str, object], code: int) -> None:
    assert (await sdk.receive("T", **fields))[0] == code  # type: ignore[arg-type]


async def test_an_old_client_gets_another_code_for_a_short_deadline(
    methods: Mapping[str, Method],
) -> None:
    sdk = Sdk(methods, version="5.0.2")
    assert (await sdk.receive("T", timeout_s=4.0))[0] == pb.BAD_REQUEST


async def test_a_receive_of_a_missing_topic_is_not_found(sdk: Sdk) -> None:
    assert (await sdk.receive("missing"))[0] == pb.TOPIC_NOT_FOUND


async def test_a_missing_group_is_not_found(start_broker: StartBroker) -> None:
    sdk = Sdk(build(await start_broker(auto_create_groups=False)).methods())
    await sdk.send(message("T"))
    assert (await sdk.receive("T", "nobody"))[0] == pb.CONSUMER_GROUP_NOT_FOUND


async def test_a_receive_without_a_polling_time_takes_the_deadline(sdk: Sdk) -> None:
    assert (await sdk.receive("T", poll_s=None, timeout_s=6.0))[0] == pb.MESSAGE_NOT_FOUND


async def test_a_changed_message_has_a_handle_whose_acknowledgement_works(sdk: Sdk) -> None:
    await sdk.send(message("T"))
    _, (received,) = await sdk.receive("T")
    old = received.system_properties.receipt_handle
    response = await sdk.change("T", received, 60)
    assert response.status.code == pb.OK
    assert response.receipt_handle != old
    received.system_properties.receipt_handle = response.receipt_handle
    assert (await sdk.ack("T", received)).status.code == pb.OK
    assert (await sdk.receive("T"))[0] == pb.MESSAGE_NOT_FOUND


async def test_a_message_that_is_changed_to_0_comes_again_at_once(sdk: Sdk) -> None:
    await sdk.send(message("T", b"again"))
    _, (received,) = await sdk.receive("T")
    assert (await sdk.change("T", received, 0)).status.code == pb.OK
    _, (second,) = await sdk.receive("T")
    assert (second.topic.name, second.body) == ("T", b"again")
    assert second.system_properties.delivery_attempt == 2
    assert (await sdk.ack("T", second)).status.code == pb.OK


async def test_a_change_that_does_not_count_as_an_attempt(sdk: Sdk) -> None:
    await sdk.send(message("T"))
    _, (received,) = await sdk.receive("T")
    await sdk.change("T", received, 0, suspend=True)
    _, (second,) = await sdk.receive("T")
    assert second.system_properties.delivery_attempt == 1


@pytest.mark.parametrize("seconds", [-1, 12 * 3600 + 1])
async def test_changes_to_a_time_that_no_message_can_have(sdk: Sdk, seconds: int) -> None:
    await sdk.send(message("T"))
    _, (received,) = await sdk.receive("T")
    response = await sdk.change("T", received, seconds)
    assert response.status.code == pb.ILLEGAL_INVISIBLE_TIME
    assert (await sdk.ack("T", received)).status.code == pb.OK


@pytest.mark.parametrize("handle", ["", "no handle", "0 1 1 0 0 broker 0 0 0"])
async def test_invalid_and_expired_handles(sdk: Sdk, handle: str) -> None:
    received = message("T", receipt_handle=handle)
    response = await sdk.ack("T", received)
    assert response.status.code == pb.INVALID_RECEIPT_HANDLE
    assert response.entries[0].status.code == pb.INVALID_RECEIPT_HANDLE
    assert (await sdk.change("T", received, 10)).status.code == pb.INVALID_RECEIPT_HANDLE


async def test_a_handle_of_an_acknowledged_message_cannot_be_changed(sdk: Sdk) -> None:
    await sdk.send(message("T"))
    _, (received,) = await sdk.receive("T")
    await sdk.ack("T", received)
    response = await sdk.change("T", received, 10)
    assert response.status.code == pb.INVALID_RECEIPT_HANDLE


async def test_different_results_of_one_acknowledgement(sdk: Sdk) -> None:
    await sdk.send(message("T"))
    _, (received,) = await sdk.receive("T")
    response = await sdk.ack("T", received, message("T", receipt_handle="bad"))
    assert response.status.code == pb.MULTIPLE_RESULTS
    codes = [entry.status.code for entry in response.entries]
    assert codes == [pb.OK, pb.INVALID_RECEIPT_HANDLE]


async def test_an_acknowledgement_of_nothing_is_refused(sdk: Sdk) -> None:
    assert (await sdk.ack("T")).status.code == pb.BAD_REQUEST


async def test_a_receive_that_is_cancelled_while_it_waits_takes_nothing(sdk: Sdk) -> None:
    waiting = asyncio.ensure_future(sdk.receive("T", poll_s=20))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    await sdk.send(message("T", b"for the next"))
    _, (received,) = await sdk.receive("T")
    assert received.body == b"for the next"
    assert received.system_properties.delivery_attempt == 1


async def test_messages_that_a_broken_stream_did_not_take_come_again(sdk: Sdk) -> None:
    await sdk.send(*(message("T", b"%d" % number) for number in range(3)))
    stream = sdk.receiving(receive_request("T", invisible_s=600))
    assert (await anext(stream)).status.code == pb.OK
    first = (await anext(stream)).message
    # the second is being written
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    _, again = await sdk.receive("T")
    while len(again) < 2:
        again += (await sdk.receive("T"))[1]
    assert {one.body for one in again} == {b"0", b"1", b"2"} - {first.body}
    assert {one.system_properties.delivery_attempt for one in again} == {1}


async def test_a_receive_that_is_cancelled_at_any_moment_loses_nothing(sdk: Sdk) -> None:
    for number in range(40):
        await sdk.send(message("T", b"%d" % number))
    got: set[bytes] = set()
    for turns in range(12):
        task = asyncio.ensure_future(sdk.receive("T", batch_size=4, invisible_s=600))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            got |= {one.body for one in (await task)[1]}
    while len(got) < 40:
        code, received = await sdk.receive("T", invisible_s=600)
        assert code == pb.OK, f"{40 - len(got)} messages are missing"
        got |= {one.body for one in received}


async def test_messages_of_a_group_in_order(sdk: Sdk, broker: Broker) -> None:
    broker.context.groups.create_or_update(
        SubscriptionGroupConfig(name="ordered", consume_message_orderly=True)
    )
    for number in range(4):
        await sdk.send(message("F", b"%d" % number, message_group="same"))
    request = pb.QueryAssignmentRequest(endpoints=ENDPOINTS)
    request.topic.name, request.group.name = "F", "ordered"
    assignment = await sdk.call("QueryAssignment", request)
    assert [one.message_queue.id for one in assignment.assignments] == [0, 1, 2, 3]
    _, first = await sdk.receive("F", "ordered", batch_size=2, attempt_id="one")
    assert [one.body for one in first] == [b"0", b"1"]
    # the same attempt, whose answer was lost
    _, same = await sdk.receive("F", "ordered", batch_size=2, attempt_id="one")
    assert [one.body for one in same] == [b"0", b"1"]
    # the queue is blocked for any other
    code, _ = await sdk.receive("F", "ordered", attempt_id="two")
    assert code == pb.MESSAGE_NOT_FOUND
    await sdk.ack("F", *same, group="ordered")
    _, rest = await sdk.receive("F", "ordered", attempt_id="three")
    assert [one.body for one in rest] == [b"2", b"3"]


async def test_one_assignment_for_all_queues(sdk: Sdk) -> None:
    request = pb.QueryAssignmentRequest(endpoints=ENDPOINTS)
    request.topic.name, request.group.name = "T", "g"
    response = await sdk.call("QueryAssignment", request)
    assert [one.message_queue.id for one in response.assignments] == [-1]


async def test_a_message_that_had_all_attempts_becomes_a_dead_letter(
    sdk: Sdk, broker: Broker
) -> None:
    broker.context.groups.create_or_update(SubscriptionGroupConfig(name="g", retry_max_times=1))
    await sdk.send(message("T", b"poison"))
    for attempt in (1, 2):
        _, (received,) = await sdk.receive("T")
        assert received.system_properties.delivery_attempt == attempt
        await sdk.change("T", received, 0)
    assert (await sdk.receive("T"))[1] == []
    assert broker.context.store.max_offset("%DLQ%g", 0) == 1


async def test_a_client_forwards_a_message_to_the_dead_letters(sdk: Sdk, broker: Broker) -> None:
    await sdk.send(message("T", b"poison"))
    _, (received,) = await sdk.receive("T")
    system = received.system_properties
    request = pb.ForwardMessageToDeadLetterQueueRequest(
        receipt_handle=system.receipt_handle, message_id=system.message_id
    )
    request.group.name, request.topic.name = "g", "T"
    response = await sdk.call("ForwardMessageToDeadLetterQueue", request)
    assert response.status.code == pb.OK
    assert broker.context.store.max_offset("%DLQ%g", 0) == 1
    assert (await sdk.receive("T"))[1] == []


async def test_a_handle_without_a_place_in_the_log_cannot_be_forwarded(sdk: Sdk) -> None:
    request = pb.ForwardMessageToDeadLetterQueueRequest(
        receipt_handle=f"0 {time.time_ns() // 1_000_000} 60000 0 0 b 0 0", message_id="x"
    )
    request.group.name, request.topic.name = "g", "T"
    response = await sdk.call("ForwardMessageToDeadLetterQueue", request)
    assert response.status.code == pb.INVALID_RECEIPT_HANDLE


async def test_a_renewed_message_comes_again_when_its_client_goes(sdk: Sdk) -> None:
    async with Telemetry(sdk) as stream:
        await stream.settings(subscribing("T", client_type=pb.PUSH_CONSUMER))
        await sdk.send(message("T", b"held"))
        _, (received,) = await sdk.receive("T", auto_renew=True, invisible_s=None)
        request = pb.NotifyClientTerminationRequest()
        request.group.name = "g"
        response = await sdk.call("NotifyClientTermination", request)
        assert response.status.code == pb.OK
    other = Sdk(sdk.methods, "other@2")
    _, (again,) = await other.receive("T")
    assert again.body == b"held"
    # the first handle is not the lease's any more
    assert (await sdk.ack("T", received)).entries


@pytest.mark.parametrize(
    ("born_ms", "properties"),
    [
        (2**62, {}),
        (0, {"_SYS_MSG_PRIORITY_": "9" * 18, "BORN_TIMESTAMP": "9" * 30}),
    ],
)
async def test_numbers_of_remoting_clients_that_are_too_large_stop_no_group(
    sdk: Sdk, broker: Broker, born_ms: int, properties: dict[str, str]
) -> None:
    async def refuse(_: RemotingCommand) -> RemotingCommand:
        raise AssertionError("a producer is asked nothing")

    identity = ClientIdentity("remoting", "", "127.0.0.1:1", 0, 0)
    sender = LocalBackend(broker).link(identity, refuse, lambda _: None, lambda: None)
    header = SendMessageRequestV2(
        producer_group="p",
        topic="T",
        queue_id=0,
        born_timestamp=born_ms,
        properties=join_properties(properties).decode(),
    )
    await rpc.send_message(sender, broker.config.name, header, b"odd", broker_name="b")
    code, (received,) = await sdk.receive("T")
    assert (code, received.body) == (pb.OK, b"odd")


async def test_a_receive_that_is_too_large_is_refused(sdk: Sdk) -> None:
    assert (await sdk.receive("T", attempt_id="a" * 70_000))[0] == pb.BAD_REQUEST


async def test_bodies_that_a_remoting_client_has_compressed_arrive_plain(
    sdk: Sdk, broker: Broker
) -> None:
    packed = zlib.compress(b"plain" * 1000)
    # as the SDK for C++ marks a body that it has compressed
    await sdk.send(message("T", packed, body_encoding=pb.GZIP))
    _, (received,) = await sdk.receive("T")
    assert received.body == b"plain" * 1000
    assert received.system_properties.body_encoding == pb.IDENTITY
