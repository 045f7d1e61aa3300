"""A long stretch of a queue that was deleted before it was read is passed in one step, and told in
one line.
"""

import logging
from collections.abc import Iterator

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from ogive.client.portal import portal
from ogive.errors import DataLoss
from ogive.model import MessageQueue
from ogive.spark import source
from ogive.spark.compat import ReadMaxRows
from ogive.spark.schema import MESSAGE_COLUMNS
from ogive.testing import FakeBroker
from ogive.wire.bodies.stats import TopicOffset, topic_stats_dumps
from ogive.wire.codes import RequestCode, ResponseCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import decode_header, encode_header
from ogive.wire.headers.pull import PullMessageRequest, PullMessageResponse
from ogive.wire.message import StoredMessage, encode_stored

FIRST, END = 5_000_000, 5_000_010
START = '{"Orders": {"broker-a": {"0": 7}}}'


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """A queue that begins at FIRST and ends at END."""
    fake = FakeBroker({"Orders": 1})

    def stats(_: RemotingCommand) -> RemotingCommand:
        span = TopicOffset(
            min_offset=FIRST, max_offset=END, last_update_timestamp=1_700_000_000_000
        )
        return RemotingCommand(
            ResponseCode.SUCCESS,
            {},
            topic_stats_dumps({MessageQueue("Orders", "broker-a", 0): span}),
        )

    def pull(request: RemotingCommand) -> RemotingCommand:
        header = decode_header(PullMessageRequest, request.ext_fields)
        at = header.queue_offset
        end = min(END, at + header.max_msg_nums)
        if at < FIRST:
            answer = PullMessageResponse(next_begin_offset=FIRST, min_offset=FIRST, max_offset=END)
            return RemotingCommand(ResponseCode.PULL_OFFSET_MOVED, encode_header(answer))
        answer = PullMessageResponse(next_begin_offset=end, min_offset=FIRST, max_offset=END)
        body = b"".join(
            encode_stored(StoredMessage("Orders", b"x", queue_offset=offset))
            for offset in range(at, end)
        )
        return RemotingCommand(ResponseCode.SUCCESS, encode_header(answer), body)

    fake.on(RequestCode.GET_TOPIC_STATS_INFO, stats)
    fake.on(RequestCode.PULL_MESSAGE, pull)
    portal().call(fake.start())
    yield fake
    portal().call(fake.stop())


def options(broker: FakeBroker, **more: str) -> dict[str, str]:
    return {"nameServer": broker.address, "subscribe": "Orders", "startingOffsets": START, **more}


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_stream_jumps(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    """Not by maxOffsetsPerTrigger: five million offsets would be half a million batches."""
    reader = source.stream_reader(
        options(broker, failOnDataLoss="false", maxOffsetsPerTrigger="10"), MESSAGE_COLUMNS
    )
    at = reader.initialOffset()
    read: list[int] = []
    batches = 0
    while (end := reader.latestOffset(at, ReadMaxRows(10))) != at:
        for part in reader.partitions(at, end):
            read += [
                offset
                for batch in reader.read(part)
                for offset in batch.column("queueOffset").to_pylist()
            ]
        at = end
        batches += 1
    assert read == list(range(FIRST, END))
    assert batches == 2
    assert [f"offsets 7 to {FIRST - 1} were deleted" in line for line in lines(caplog)] == [True]


def test_a_stream_that_may_lose_nothing_names_the_whole_stretch(broker: FakeBroker) -> None:
    reader = source.stream_reader(options(broker), MESSAGE_COLUMNS)
    with pytest.raises(DataLoss, match=f"offsets 7 to {FIRST - 1} were deleted"):
        reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))


def test_a_batch_jumps(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    """So does one of a stream that was planned before the messages were deleted."""
    reader = source.batch_reader(options(broker, failOnDataLoss="false"), MESSAGE_COLUMNS)
    (part,) = reader.partitions()
    read = [
        offset for batch in reader.read(part) for offset in batch.column("queueOffset").to_pylist()
    ]
    assert read == list(range(FIRST, END))
    assert len(broker.of(RequestCode.PULL_MESSAGE)) < 100
    assert [f"offsets 7 to {FIRST - 1} were deleted" in line for line in lines(caplog)] == [True]


def test_a_batch_that_may_lose_nothing_names_the_whole_stretch(broker: FakeBroker) -> None:
    reader = source.batch_reader(options(broker), MESSAGE_COLUMNS)
    (part,) = reader.partitions()
    with pytest.raises(DataLoss, match=f"offsets 7 to {FIRST - 1} were deleted"):
        list(reader.read(part))
