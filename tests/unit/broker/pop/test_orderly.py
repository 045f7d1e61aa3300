"""Orderly popping over the wire, and what the table of batches keeps."""

from pathlib import Path
from typing import Any

import pytest

from ogive.broker.pop.order import Batch, OrderBook
from ogive.errors import ResponseCode
from ogive.wire.bodies.stats import OffsetWrapper, consume_stats_loads
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.pop import ORDERLY_QUEUE, BatchAck, BatchAckBody, PopHandle
from tests.pop import GROUP, acknowledging, leased, pop, popping
from tests.raw_client import RawClient
from tests.unit.broker.conftest import StartBroker, crash_image

PLACE = (GROUP, "T", 0)


async def in_order(client: RawClient, **changed: Any) -> list[tuple[bytes, PopHandle]]:
    found = await pop(client, order=True, queueId=0, **changed)
    return [(message.body, handle) for message, handle in found]


async def fill(client: RawClient, *bodies: bytes) -> None:
    for body in bodies:
        await client.send("T", body)


async def test_one_batch_of_a_queue_is_out_at_a_time(client: RawClient) -> None:
    await fill(client, b"a", b"b", b"c")
    (first, one), (second, two) = await in_order(client, maxMsgNums=2)
    assert (first, second, one.revive_queue) == (b"a", b"b", ORDERLY_QUEUE)
    assert await in_order(client) == []
    waiting = client.start(
        RequestCode.POP_MESSAGE, **popping(order=True, queueId=0, pollTime=30_000)
    )
    # out of order: the offset moves when the first is acknowledged
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(two))
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(one))
    answer = await waiting
    assert [message.body for message, _ in leased(answer)] == [b"c"]
    assert answer.ext_fields["orderCountInfo"] == "0 0 0"


async def test_a_batch_that_is_out_is_in_flight(client: RawClient) -> None:
    await fill(client, b"a", b"b", b"c")
    (_, one), (_, two) = await in_order(client, maxMsgNums=2)

    async def row() -> OffsetWrapper:
        answer = await client.ok(RequestCode.GET_CONSUME_STATS, consumerGroup=GROUP, topic="T")
        (found,) = (r for q, r in consume_stats_loads(answer.body).items() if q.queue_id == 0)
        return found

    found = await row()
    assert (found.consumer_offset, found.pull_offset) == (0, 2)
    assert found.pop_timestamp == one.pop_time_ms
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(one))
    assert ((await row()).consumer_offset, (await row()).pull_offset) == (1, 2)
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(two))
    found = await row()
    assert (found.consumer_offset, found.pull_offset, found.pop_timestamp) == (2, 2, 0)


async def test_what_is_not_acknowledged_comes_again_first(client: RawClient) -> None:
    await fill(client, b"a", b"b")
    (_, one), (_, two) = await in_order(client, invisibleTime=500)
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(one))
    await fill(client, b"c")
    answer = await client.call(
        RequestCode.POP_MESSAGE, **popping(order=True, queueId=0, pollTime=30_000)
    )
    assert [message.body for message, _ in leased(answer)] == [b"b", b"c"]
    assert answer.ext_fields["orderCountInfo"] == "0 qo0%1 1;0 0 0"
    # of the batch before: it says nothing
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(two))
    assert await in_order(client) == []


async def test_a_repeated_request_gets_the_same_batch_and_no_count_rises(client: RawClient) -> None:
    await fill(client, b"a", b"b")
    first = await in_order(client, attemptId="one", maxMsgNums=1)
    answer = await client.call(
        RequestCode.POP_MESSAGE,
        **popping(order=True, queueId=0, attemptId="one", maxMsgNums=1),
    )
    (again,) = leased(answer)
    assert again[0].body == first[0][0] == b"a"
    assert answer.ext_fields["orderCountInfo"] == "0 0 0"
    assert await in_order(client, attemptId="two") == []


async def test_a_change_shows_a_message_again_at_another_time(client: RawClient) -> None:
    await fill(client, b"a")
    ((_, handle),) = await in_order(client)
    fields = acknowledging(handle, invisibleTime=50)
    answer = await client.ok(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **fields)
    assert int(answer.ext_fields["popTime"]) == handle.pop_time_ms
    assert answer.ext_fields["reviveQid"] == str(ORDERLY_QUEUE)
    answer = await client.call(
        RequestCode.POP_MESSAGE, **popping(order=True, queueId=0, pollTime=30_000)
    )
    assert [message.body for message, _ in leased(answer)] == [b"a"]
    assert answer.ext_fields["orderCountInfo"] == "0 qo0%0 1;0 0 1"
    # the handle before it says nothing any more
    await client.ok(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **fields)


async def test_messages_that_are_not_of_the_batch(client: RawClient) -> None:
    await fill(client, b"a", b"b")
    ((_, handle),) = await in_order(client, maxMsgNums=1)
    wrong = handle._replace(offset=1)
    answer = await client.call(RequestCode.ACK_MESSAGE, **acknowledging(wrong))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    for forged in (
        handle._replace(pop_time_ms=handle.pop_time_ms - 1),
        handle._replace(broker="another"),
    ):
        await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(forged))
    assert await in_order(client) == []


async def test_many_are_acknowledged_by_one_request(client: RawClient) -> None:
    await fill(client, b"a", b"b", b"c")
    ((_, handle), *_) = await in_order(client)
    ack = BatchAck(
        group=GROUP, topic="T", start=handle.start, queue_id=0, revive_queue=ORDERLY_QUEUE,
        pop_time_ms=handle.pop_time_ms, invisible_ms=handle.invisible_ms, bits=0b111,
    )  # fmt: skip
    await client.ok(RequestCode.BATCH_ACK_MESSAGE, BatchAckBody(acks=(ack,)).encode())
    await fill(client, b"d")
    assert [body for body, _ in await in_order(client)] == [b"d"]


@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_a_batch_outlives_a_kill(
    flush: str, start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = await start_broker(flush=flush)
    async with await RawClient.open(broker.address) as client:
        await fill(client, b"a", b"b")
        (_, one), (_, two) = await in_order(client, invisibleTime=60_000)
        await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(one))
        await broker.context.topics.saved()
        await broker.context.groups.saved()
        left = crash_image(broker, tmp_path)
    broker = await start_broker(flush=flush, data=left)
    async with await RawClient.open(broker.address) as client:
        assert broker.context.offsets.get(*PLACE) == 1
        assert await in_order(client) == []
        await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(two))
        assert broker.context.offsets.get(*PLACE) == 2


async def test_a_reset_frees_the_queue(client: RawClient) -> None:
    await fill(client, b"a", b"b")
    ((_, one), _) = await in_order(client)
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(one))
    await client.ok(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        group=GROUP, topic="T", timestamp=0, isForce=True, queueId=0, offset=0,
    )  # fmt: skip
    assert [body for body, _ in await in_order(client)] == [b"a", b"b"]


# --- notifications, and looks ---------------------------------------------------------------------


def notifying(**changed: Any) -> dict[str, object]:
    fields = popping(**changed)
    return {name: value for name, value in fields.items() if name != "maxMsgNums"}


async def has_message(client: RawClient, **changed: object) -> str:
    answer = await client.ok(RequestCode.NOTIFICATION, **notifying(**changed))
    return answer.ext_fields["hasMsg"]


async def test_a_notification_says_whether_there_is_something_to_pop(client: RawClient) -> None:
    await client.send("T", b"a", {"UNIQ_KEY": "K", "TAGS": "red"})
    assert await has_message(client) == "true"
    assert await has_message(client, exp="blue", expType="TAG") == "false"
    assert await has_message(client, exp="red", expType="TAG") == "true"
    await pop(client, invisibleTime=1000)
    assert await has_message(client) == "false"
    # the message comes again
    assert await has_message(client, pollTime=30_000) == "true"
    waiting = client.start(RequestCode.NOTIFICATION, **notifying(pollTime=30_000, group="new"))
    assert (await waiting).ext_fields["hasMsg"] == "true"


async def test_a_queue_whose_batch_is_out_has_nothing(client: RawClient) -> None:
    await fill(client, b"a", b"b")
    ((_, handle),) = await in_order(client, maxMsgNums=1)
    assert await has_message(client, order=True, queueId=0) == "false"
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(handle))
    assert await has_message(client, order=True, queueId=0) == "true"


async def test_looking_changes_nothing(client: RawClient) -> None:
    await fill(client, b"a", b"b")
    fields = {"consumerGroup": GROUP, "topic": "T", "queueId": -1, "maxMsgNums": 1}

    async def peek() -> RemotingCommand:
        return await client.call(RequestCode.PEEK_MESSAGE, **fields)

    for _ in range(2):
        answer = await peek()
        assert (answer.code, answer.ext_fields["restNum"]) == (ResponseCode.SUCCESS, "1")
        assert b"a" in answer.body
    await pop(client)
    assert (await peek()).code == ResponseCode.PULL_NOT_FOUND


async def test_how_many_requests_wait(client: RawClient) -> None:
    await fill(client, b"a")
    await pop(client)
    waiting = client.start(RequestCode.POP_MESSAGE, **popping(pollTime=30_000))
    fields = {"consumerGroup": GROUP, "topic": "T", "queueId": -1}
    answer = await client.ok(RequestCode.POLLING_INFO, **fields)
    assert answer.ext_fields["pollingNum"] == "1"
    await fill(client, b"b")
    await waiting
    answer = await client.ok(RequestCode.POLLING_INFO, **fields)
    assert answer.ext_fields["pollingNum"] == "0"


# --- the table and its file -----------------------------------------------------------------------


def test_the_file_is_apaches() -> None:
    """As Java writes it, integer keys without quotes included when it is read."""
    now_ms, clock_s = 10**12, 1000.0
    book = OrderBook(lambda: clock_s, lambda: now_ms)
    record: dict[str, Any] = {
        "a": "attempt", "cm": 1, "i": 60_000, "l": now_ms, "o": [7, 1, 3], "oc": {"8": 2},
        "ot": {"10": now_ms + 5000}, "popTime": now_ms,
    }  # fmt: skip
    book.load({"table": {"T@G": {"0": record}, "bad": {"0": record}, "U@G": {"0": {"o": []}}}})
    assert len(book) == 1
    batch = book.get(PLACE)
    assert batch is not None
    assert (batch.offsets, batch.next_offset(), batch.counts) == ((7, 8, 10), 8, {8: 2})
    assert batch.visible[10] == (now_ms + 5000, clock_s + 5)
    assert book.snapshot()() == {"table": {"T@G": {"0": record}}}
    again = OrderBook(lambda: clock_s, lambda: now_ms)
    again.take(True, *book.record(PLACE))
    assert again.get(PLACE) is not None
    assert again.record(PLACE) == book.record(PLACE)


def test_what_apaches_broker_did_since_counts() -> None:
    book = OrderBook(lambda: 1000.0, lambda: 10**12)
    book.put(PLACE, Batch(500, 1000, (1, 2), 0.0))
    book.load({"table": {"T@G": {"0": {"popTime": 500, "i": 1000, "o": [1, 1], "cm": 2}}}})
    batch = book.get(PLACE)
    assert batch is not None
    assert batch.acked == 2
    book.load({"table": {"T@G": {"0": {"popTime": 499, "i": 1, "o": [9], "cm": 0}}}})
    assert book.get(PLACE) is batch
    book.load({"table": {"T@G": {"0": {"popTime": 501, "i": 1, "o": [9], "cm": 0}}}})
    newer = book.get(PLACE)
    assert newer is not None
    assert newer.offsets == (9,)


def test_old_batches_that_block_nobody_are_forgotten() -> None:
    now_ms = 10**12
    book = OrderBook(lambda: 1000.0, lambda: now_ms)
    day_ms = 24 * 3600 * 1000
    book.put(PLACE, Batch(1, 1, (0,), 999.0, used_ms=now_ms - day_ms - 1))
    book.put((GROUP, "T", 1), Batch(1, 1, (0,), 1001.0, used_ms=now_ms - day_ms - 1))
    book.put((GROUP, "T", 2), Batch(1, 1, (0,), 999.0, used_ms=now_ms))
    assert book.forget_old() == [PLACE]
