"""Option queues: only these queues of a topic are planned."""

from collections.abc import Iterator

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from ogive.client.portal import portal
from ogive.model import MessageQueue
from ogive.spark import source
from ogive.spark.schema import MESSAGE_COLUMNS
from ogive.testing import FakeBroker
from ogive.wire.bodies.stats import TopicOffset, topic_stats_dumps
from ogive.wire.codes import RequestCode, ResponseCode
from ogive.wire.command import RemotingCommand


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """A topic of four queues, each of which holds as many messages as its number says, and one
    more.
    """
    fake = FakeBroker({"Orders": 4})
    spans = {
        MessageQueue("Orders", "broker-a", i): TopicOffset(
            min_offset=0, max_offset=i + 1, last_update_timestamp=1
        )
        for i in range(4)
    }
    fake.on(
        RequestCode.GET_TOPIC_STATS_INFO,
        lambda _: RemotingCommand(ResponseCode.SUCCESS, {}, topic_stats_dumps(spans)),
    )
    portal().call(fake.start())
    yield fake
    portal().call(fake.stop())


@pytest.mark.parametrize(("chosen", "read"), [({}, [0, 1, 2, 3]), ({"queues": "3, 0"}, [0, 3])])
def test_only_the_named_queues_are_read(
    broker: FakeBroker, chosen: dict[str, str], read: list[int]
) -> None:
    options = {
        "nameServer": broker.address,
        "subscribe": "Orders",
        "startingOffsets": "earliest",
    } | chosen
    batch = source.batch_reader(options, MESSAGE_COLUMNS)
    assert (
        sorted({covered.queue.queue_id for part in batch.partitions() for covered in part.value})
        == read
    )
    stream = source.stream_reader(options, MESSAGE_COLUMNS)
    assert stream.initialOffset()["q"] == {
        "Orders": {"broker-a": {str(queue): 0 for queue in read}}
    }
