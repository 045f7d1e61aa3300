"""Reading ranges by pulls: every message once and in order, whatever answers a broker cuts; what is
gone is noticed.
"""

import asyncio

import pytest

from ogive.client.rpc import RawPull
from ogive.errors import DataLoss
from ogive.model import MessageQueue, PullStatus
from ogive.spark import range_reader
from ogive.spark.range_reader import Reading, record_count, until
from ogive.spark.ranges import Chunks, QueueRange
from ogive.wire.message import StoredMessage, decode_messages, encode_stored

QUEUE = MessageQueue("Orders", "broker-a", 0)


def record(offset: int, tag: str) -> bytes:
    return encode_stored(
        StoredMessage("Orders", b"x", f"TAGS\x01{tag}\x02".encode(), queue_offset=offset)
    )


class ScriptedQueue:
    """One queue as a broker serves it: offsets *first* to *end*, at most *limit* entries looked at
    for one pull, tag *only* sent.
    """

    def __init__(
        self, first: int, end: int, limit: int = 32, gone: range = range(0), only: str = ""
    ) -> None:
        self.first, self.end, self.limit, self.gone, self.only = first, end, limit, gone, only
        self.pulls = 0

    async def pull(self, wanted: QueueRange) -> RawPull:
        self.pulls += 1
        at = wanted.start
        if at < self.first:
            return self._answer(PullStatus.OFFSET_ILLEGAL, self.first)
        if at > self.end:
            return self._answer(PullStatus.OFFSET_ILLEGAL, self.end)
        if at == self.end:
            return self._answer(PullStatus.NO_NEW_MSG, at)
        found: list[bytes] = []
        following = at
        while following < min(at + self.limit, self.end) and len(found) < len(wanted):
            tag = "odd" if following % 2 else "even"
            if following not in self.gone and self.only in ("", tag):
                found.append(record(following, tag))
            following += 1
        return self._answer(
            PullStatus.FOUND if found else PullStatus.NO_MATCHED_MSG, following, b"".join(found)
        )

    def _answer(self, status: PullStatus, following: int, body: bytes = b"") -> RawPull:
        return RawPull(status, following, self.first, self.end, 0, body)


async def read(queue: ScriptedQueue, start: int, end: int, *, fail: bool = True) -> list[int]:
    chunks = Chunks([QueueRange(QUEUE, start, end)])
    reading = Reading(queue.pull, chunks, filtered=bool(queue.only), fail_on_data_loss=fail)
    offsets: list[int] = []
    for chunk in chunks:
        at = chunk.start
        while at < chunk.end:
            answers, at = await reading.fetch(QueueRange(QUEUE, at, chunk.end))
            offsets += [
                message.queue_offset for _, body in answers for message in decode_messages(body)
            ]
    return offsets


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that is too short is looked at once more, without waiting."""
    monkeypatch.setattr(range_reader, "SETTLE_S", 0.0)


@pytest.mark.parametrize("limit", [1, 7, 32, 10_000])
async def test_a_range_is_read_whole_and_no_further(limit: int) -> None:
    assert await read(ScriptedQueue(0, 2000, limit), 100, 1500) == list(range(100, 1500))


async def test_a_chunk_of_large_messages_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk is counted in messages, but what is held of it is bounded in bytes."""
    monkeypatch.setattr(range_reader, "CHUNK_BYTES", 500)
    queue = QueueRange(QUEUE, 0, 256)
    reading = Reading(
        ScriptedQueue(0, 2000, 3).pull, Chunks([queue]), filtered=False, fail_on_data_loss=True
    )
    answers, at = await reading.fetch(queue)
    assert 500 <= sum(len(body) for _, body in answers) < 1000
    assert [covered.start for covered, _ in answers] + [at] == [
        0,
        *(covered.end for covered, _ in answers),
    ]
    assert [
        message.queue_offset for _, body in answers for message in decode_messages(body)
    ] == list(range(at))
    assert await read(ScriptedQueue(0, 2000, 3), 100, 1500) == list(range(100, 1500))


@pytest.mark.parametrize("limit", [1, 7, 32, 10_000])
async def test_a_filtered_range_is_read_to_its_end(limit: int) -> None:
    """A filtered pull may run past the end of its chunk: what lies behind belongs to the next
    one.
    """
    assert await read(ScriptedQueue(0, 2000, limit, only="odd"), 100, 1500) == list(
        range(101, 1500, 2)
    )
    assert await read(ScriptedQueue(0, 100, limit, only="nobody"), 0, 100) == []


async def test_a_group_that_is_put_elsewhere_while_it_is_read_loses_nothing() -> None:
    """The broker tells one pull where the group is now (OFFSET_RESET); the query goes by its own
    checkpoint.
    """
    queue = ScriptedQueue(0, 100, limit=10)
    usual = queue.pull
    told: list[QueueRange] = []

    async def pull(wanted: QueueRange) -> RawPull:
        if wanted.start == 40 and not told:
            told.append(wanted)
            return RawPull(PullStatus.OFFSET_ILLEGAL, 90, 0, 100, 0, b"")
        return await usual(wanted)

    queue.pull = pull  # type: ignore[method-assign]
    assert await read(queue, 0, 100) == list(range(100))
    assert told


async def test_messages_that_aged_out_are_data_loss() -> None:
    with pytest.raises(DataLoss, match="offsets 5 to 9 were deleted"):
        await read(ScriptedQueue(10, 50), 5, 50)


async def test_messages_that_aged_out_are_skipped_where_allowed() -> None:
    assert await read(ScriptedQueue(10, 50), 5, 50, fail=False) == list(range(10, 50))


async def test_a_pull_that_finds_nothing_among_messages_is_data_loss() -> None:
    """The log was deleted under the queue's entries.

    Smaller holes are found by who decodes the answers: see test_reader.py.
    """
    with pytest.raises(DataLoss, match="offsets 20 to 39 were deleted"):
        await read(ScriptedQueue(0, 50, 20, gone=range(20, 40)), 0, 50)
    holed = ScriptedQueue(0, 100, 20, gone=range(20, 60))
    assert await read(holed, 0, 100, fail=False) == [*range(20), *range(60, 100)]


async def test_a_queue_that_became_shorter_is_data_loss() -> None:
    with pytest.raises(DataLoss, match="offsets 30 to 49 were deleted"):
        await read(ScriptedQueue(0, 30), 0, 50)
    assert await read(ScriptedQueue(0, 30), 0, 50, fail=False) == list(range(30))


async def test_a_broker_that_shows_its_queue_bit_by_bit_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(range_reader, "SETTLE_S", 60.0)
    queue = ScriptedQueue(0, 30)
    reading = asyncio.create_task(read(queue, 0, 50))
    while queue.pulls < 4:
        await asyncio.sleep(0)
        if queue.pulls == 3:
            queue.end = 50
    assert await asyncio.wait_for(reading, 50) == list(range(50))


def test_records_are_counted() -> None:
    body = b"".join(record(offset, "t") for offset in (3, 5, 8))
    assert (record_count(body), record_count(b"")) == (3, 0)


def test_until_cuts_between_records() -> None:
    body = b"".join(record(offset, "t") for offset in (3, 5, 8))
    assert [message.queue_offset for message in decode_messages(until(body, 8))] == [3, 5]
    assert until(body, 3) == b""
    assert until(body, 100) == body


def test_until_ends_on_damage() -> None:
    """The decoder names the damage; cutting must only come to an end."""
    assert until(bytes(40), 5) == bytes(40)
