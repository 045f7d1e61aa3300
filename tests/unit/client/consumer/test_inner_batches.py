"""Queues of Apache's topics of batches: a broker answers with whole records, whatever place in them
was asked for.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ogive.aio import Admin
from ogive.client.listener import LATER
from ogive.errors import QueryNotFound, ResponseCode
from ogive.model import MessageExt, PullStatus
from ogive.testing.fake_broker import FakeBroker, ok
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import decode_header, encode_header
from ogive.wire.headers.pull import OffsetResponse, PullMessageRequest, PullMessageResponse
from ogive.wire.message import StoredMessage, encode_batch, encode_host, encode_stored
from tests.unit.client.consumer.polling import (
    PULL,
    Q0,
    collect,
    member,
    offsets,
    progress,
    pulls_of,
    reader,
)
from tests.unit.client.consumer.test_push_consumer import (
    RETRY,
    SEND,
    SEND_BACK,
    Seen,
    consumer,
    eventually,
    to,
)


class Batches:
    """What the only queue of Orders holds: (first offset, how many messages, the record)."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self.rows: list[tuple[int, int, bytes]] = []
        self.end = 0
        broker.on(PULL, self._pull)
        broker.on(RequestCode.GET_MAX_OFFSET, lambda _: ok(OffsetResponse(offset=self.end)))

    def put(self, count: int, *, wrapped: bool = True, said: int | None = None) -> None:
        """The body of each message is its offset."""
        items = [
            (
                0,
                b"%d" % (self.end + n),
                b"UNIQ_KEY\x01K%d\x02TAGS\x01t%d\x02" % (self.end + n, n % 2),
            )
            for n in range(count)
        ]
        body, properties = (
            (encode_batch(items), b"INNER_NUM\x01%d\x02" % (said or count))
            if wrapped
            else items[0][1:]
        )
        record = StoredMessage(
            "Orders",
            body,
            properties,
            queue_offset=self.end,
            commitlog_offset=1000 * len(self.rows),
            sys_flag=0xC0 if wrapped else 0,
            store_host=encode_host("127.0.0.1", self._broker.port),
        )
        self.rows.append((self.end, count, encode_stored(record)))
        self.end += count

    def _pull(self, request: RemotingCommand) -> RemotingCommand | None:
        """As DefaultMessageStore.getMessage of 5.5: the first record in any case, then those that
        the count has room for.
        """
        header = decode_header(PullMessageRequest, request.ext_fields)
        if header.topic != "Orders":
            return None
        found, count, at = b"", 0, header.queue_offset
        for first, many, record in self.rows:
            if found and count + many > header.max_msg_nums:
                break
            if first + many > at:
                found, count, at = found + record, count + many, first + many
        code = ResponseCode.SUCCESS if found else ResponseCode.PULL_NOT_FOUND
        return RemotingCommand(
            code,
            encode_header(
                PullMessageResponse(next_begin_offset=at, min_offset=0, max_offset=self.end)
            ),
            found,
        )


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 1, RETRY: 1}) as broker:
        yield broker


@pytest.fixture
def batches(broker: FakeBroker) -> Batches:
    """Offsets 0 to 4, 5, 6 to 45, 46 to 48."""
    queue = Batches(broker)
    queue.put(5)
    queue.put(1, wrapped=False)
    queue.put(40)
    queue.put(3)
    return queue


@pytest.mark.feature(40)
async def test_every_message_of_a_batch_comes_once_with_its_own_offset(
    broker: FakeBroker, batches: Batches
) -> None:
    async with member(broker) as consumer:
        found = await collect(consumer, batches.end)
        await consumer.commit()
        await broker.until(lambda: progress(broker) == batches.end)
    assert [(m.queue_offset, m.body, m.id) for m in found] == [
        (n, b"%d" % n, f"K{n}") for n in range(batches.end)
    ]


@pytest.mark.parametrize("begin", [1, 4, 5, 6, 30, 45, 47, 48])
async def test_a_group_that_stands_inside_a_batch_goes_on_there(
    broker: FakeBroker, batches: Batches, begin: int
) -> None:
    """The broker sends the whole record again; Java's client would deliver all of it again."""
    broker.offsets["replay", "Orders", 0] = begin
    async with member(broker) as consumer:
        assert offsets(await collect(consumer, batches.end - begin)) == list(
            range(begin, batches.end)
        )
    assert pulls_of(broker)[0] == begin


async def test_progress_never_passes_a_message_of_a_batch_that_is_not_finished(
    broker: FakeBroker, batches: Batches
) -> None:
    async with member(broker) as consumer:
        await collect(consumer, 3)
        await consumer.commit()
        await broker.until(lambda: progress(broker) == 3)
        assert offsets(await consumer.poll(max_messages=4)) == [3, 4, 5, 6]
    assert progress(broker) == 7


async def test_a_reader_seeks_into_a_batch_and_looks_at_it(
    broker: FakeBroker, batches: Batches
) -> None:
    async with reader(broker) as consumer:
        await consumer.assign([Q0])
        await consumer.seek(Q0, 44)
        assert offsets(await collect(consumer, 5)) == [44, 45, 46, 47, 48]
        result = await consumer.pull(Q0, 2, max_messages=1)
        assert (result.status, offsets(list(result.messages)), result.next_offset) == (
            PullStatus.FOUND,
            [2, 3, 4],
            5,
        )
        result = await consumer.pull(Q0, 6, max_messages=1, tags="t1")
        assert offsets(list(result.messages)) == list(range(7, 46, 2))


async def test_admin_finds_each_message_of_a_batch(broker: FakeBroker, batches: Batches) -> None:
    async with Admin(broker.address) as admin:
        assert [(await admin.message_at(Q0, n)).body for n in (0, 4, 5, 20, 48)] == [
            b"0",
            b"4",
            b"5",
            b"20",
            b"48",
        ]
        with pytest.raises(QueryNotFound):
            await admin.message_at(Q0, 49)
        broker.on(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ok(OffsetResponse(offset=3)))
        assert offsets(await admin.messages("Orders", limit=10)) == list(range(3, 13))


async def test_a_large_answer_of_batches_comes_in_parts(
    broker: FakeBroker, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ogive.wire.message.MAX_INNER_MESSAGES", 5)
    monkeypatch.setattr(batches, "rows", [])
    monkeypatch.setattr(batches, "end", 0)
    for _ in range(4):
        batches.put(4)
    async with member(broker) as consumer:
        assert offsets(await collect(consumer, 16)) == list(range(16))
        await broker.until(lambda: pulls_of(broker)[:3] == [0, 8, 16])


async def test_a_batch_in_front_of_the_asked_offset_is_no_answer(
    broker: FakeBroker, batches: Batches, caplog: Any
) -> None:
    """A broker that answers with what was read before must not move a queue."""
    stale = RemotingCommand(
        ResponseCode.SUCCESS,
        encode_header(PullMessageResponse(next_begin_offset=46, min_offset=0, max_offset=49)),
        batches.rows[0][2],
    )
    broker.script(PULL, stale)
    broker.offsets["replay", "Orders", 0] = 6
    async with member(broker) as consumer:
        assert offsets(await collect(consumer, 43)) == list(range(6, 49))
    assert "says it has offset 0, where 6" in caplog.text


async def test_a_queue_waits_in_front_of_a_batch_that_cannot_be_unwrapped(
    broker: FakeBroker, batches: Batches, caplog: Any
) -> None:
    """As in front of other bytes that are no message: what stands before it is delivered, nothing
    is skipped.
    """
    batches.put(3, said=4)
    batches.put(1)
    async with member(broker) as consumer:
        assert offsets(await collect(consumer, 49)) == list(range(49))
        await broker.until(lambda: pulls_of(broker).count(49) >= 3)
        await consumer.poll(0.0)
        await broker.until(lambda: progress(broker) == 49)
    assert "the batch at Orders/0/49 holds 3 messages, and its INNER_NUM is b'4'" in caplog.text
    assert "Orders/broker-a/0 stands still for replay in front of offset 49" in caplog.text


# --- retries --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [{}, {"orderly": True, "max_retries": 0, "suspend_s": 0.01}],
    ids=["concurrent", "orderly"],
)
async def test_a_failed_message_of_a_batch_goes_to_the_retry_topic_alone(
    broker: FakeBroker, batches: Batches, settings: dict[str, Any]
) -> None:
    """A broker would look up the record for its offset, all messages of the batch, and refuse
    it.
    """
    seen = Seen()

    def bill(message: MessageExt) -> Any:
        seen(message)
        return LATER if message.queue_offset == 2 and message.queue.topic == "Orders" else None

    async with consumer(broker, to(bill, **settings)):
        (request,) = await broker.received(SEND)
        await eventually(lambda: broker.offsets.get(("billing", "Orders", 0)) == batches.end)
    # f: sysFlag
    assert (request.body, request.ext_fields["b"], request.ext_fields["f"]) == (b"2", RETRY, "0")
    assert "UNIQ_KEY\x01K2\x02" in request.ext_fields["i"]
    assert "INNER_NUM" not in request.ext_fields["i"]
    assert not broker.of(SEND_BACK)
    assert sorted(m.queue_offset for m in seen.messages if m.queue.topic == "Orders") == list(
        range(batches.end)
    )
