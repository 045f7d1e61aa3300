"""Messages, queues and topics that go before they were read: what a stream says of them, and how it
goes on.

The readers do here, in this process, what Spark has them do in its own ones. Runs on Apache's
broker as well.
"""

import itertools
import logging
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("pyspark")

from ogive.errors import DataLoss, InvalidOption, NoRoute
from ogive.model import MessageQueue
from ogive.spark import source
from ogive.spark.compat import ReadMaxRows
from ogive.spark.reader import StreamReader
from ogive.spark.schema import MESSAGE_COLUMNS
from tests.topics import Wire, bodies, eventually

pytestmark = [pytest.mark.timeout(240), pytest.mark.bridge]

LENIENT: dict[str, Any] = {"failOnDataLoss": "false"}


class Query:
    """A stream over one topic whose checkpoint outlives its processes."""

    _processes = itertools.count()

    def __init__(self, wire: Wire, topic: str, **options: str) -> None:
        self._options = {
            "nameServer": wire.name_server,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "pollTimeoutMs": "3000",
            **options,
        }
        self._options = {name: text for name, text in self._options.items() if text}
        self.at: dict[str, Any] | None = None

    def process(self, **options: str) -> StreamReader:
        """The reader of a process that Spark starts.

        Other credentials, which nobody asks for, keep it from sharing routes.
        """
        own = {"accessKey": f"process-{next(self._processes)}", "secretKey": "unused"}
        return source.stream_reader({**self._options, **own, **options}, MESSAGE_COLUMNS)

    def run(
        self, *, rows: int = 1000, batches: int = 100, available_now: bool = False, **options: str
    ) -> list[list[tuple[int, int]]]:
        """Queue and offset of each message of the batches of one run, until there is no news."""
        reader = self.process(**options)
        if available_now:
            reader.prepareForTriggerAvailableNow()
        self.at = self.at or reader.initialOffset()
        read: list[list[tuple[int, int]]] = []
        for _ in range(batches):
            end = reader.latestOffset(self.at, ReadMaxRows(rows))
            if end == self.at:
                break
            read.append(self.batch(reader, self.at, end))
            self.at = end
        return read

    def batch(
        self, reader: StreamReader, start: dict[str, Any], end: dict[str, Any]
    ) -> list[tuple[int, int]]:
        parts = reader.partitions(start, end)
        rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        return sorted((row["queueId"], row["queueOffset"]) for row in rows)


@pytest.fixture
def query(wire: Wire, topic: str) -> Query:
    return Query(wire, topic)


def ended(messages: Mapping[int, range]) -> list[tuple[int, int]]:
    return [(queue_id, offset) for queue_id, offsets in messages.items() for offset in offsets]


def plain(batches: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    return sorted(place for batch in batches for place in batch)


def delete(wire: Wire, topic: str, *, everywhere: bool) -> None:
    """From the broker, and if *everywhere* from the name server as mqadmin does."""
    wire.delete(topic)
    if everywhere:
        wire.delete_in_name_server(topic)


def put_off(wire: Wire, topic: str, count: int) -> None:
    """The topic was made with *count* messages in each of two queues."""
    wire.create(topic, 2)
    for queue_id in range(2):
        wire.send(topic, queue_id, bodies(count))


# --- queues that are taken from their topic -------------------------------------------------------


@pytest.mark.parametrize("available_now", [False, True])
def test_queues_taken_away_with_unread_messages_are_named(
    wire: Wire, topic: str, query: Query, available_now: bool, caplog: pytest.LogCaptureFixture
) -> None:
    wire.create(topic, 4)
    for queue_id in range(4):
        wire.send(topic, queue_id, bodies(5))
    assert len(plain(query.run())) == 20
    for queue_id in range(4):
        wire.send(topic, queue_id, bodies(3))
    wire.create(topic, 2)
    with pytest.raises(
        DataLoss,
        match=rf"{topic}/.*/2 is not a queue of its topic any more, and its offsets 5 to 7 were "
        r"not read",
    ):
        query.run(available_now=available_now)
    with caplog.at_level(logging.WARNING, "ogive"):
        assert plain(query.run(available_now=available_now, **LENIENT)) == ended(
            {0: range(5, 8), 1: range(5, 8)}
        )
    assert [
        caplog.text.count(f"/{queue_id} is not a queue of its topic any more")
        for queue_id in range(4)
    ] == [0, 0, 1, 1]


def test_queues_are_taken_away_under_a_running_query(
    wire: Wire, topic: str, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    """It has a route with those queues. If the topic gets them back, nothing is read twice."""
    put_off(wire, topic, 3)
    strict, lenient = query.process(), query.process(**LENIENT)
    start = strict.initialOffset()
    end = lenient.latestOffset(start, ReadMaxRows(1000))
    assert strict.latestOffset(start, ReadMaxRows(1000)) == end
    wire.send(topic, 1, bodies(2))
    wire.create(topic, 1)
    with pytest.raises(DataLoss, match="its offsets 3 to 4 were not read"):
        strict.latestOffset(end, ReadMaxRows(1000))
    with caplog.at_level(logging.WARNING, "ogive"):
        assert lenient.latestOffset(end, ReadMaxRows(1000)) == end
    assert "its offsets 3 to 4 were not read" in caplog.text
    wire.create(topic, 2)
    query.at = end
    assert plain(query.run(**LENIENT)) == ended({1: range(3, 5)})


def test_the_progress_of_a_group_goes_on_beside_queues_that_are_gone(
    wire: Wire, topic: str, group: str
) -> None:
    """Brokers take no position of those, and would be asked for them first."""
    other = f"{topic}_other"
    put_off(wire, topic, 4)
    put_off(wire, other, 4)
    query = Query(wire, f"{topic},{other}", consumerGroup=group)
    query.run()
    wire.create(topic, 1)
    wire.send(other, 1, bodies(3))
    reader = query.process(**LENIENT)
    assert query.at is not None
    end = reader.latestOffset(query.at, ReadMaxRows(1000))
    reader.latestOffset(end, ReadMaxRows(1000))
    reader.stop()
    assert wire.progress(group, MessageQueue(other, wire.broker_name(other), 1)) == 7


@pytest.mark.parametrize("assigned", [False, True])
def test_an_open_batch_of_queues_that_are_gone_names_its_offsets(
    wire: Wire, topic: str, assigned: bool
) -> None:
    """Spark repeats the batch as it was planned, in a new process."""
    queues = {"subscribe": "", "assign": f'{{"{topic}": [0, 1, 2, 3]}}'} if assigned else {}
    query = Query(wire, topic, **queues)
    wire.create(topic, 4)
    for queue_id in range(4):
        wire.send(topic, queue_id, bodies(5))
    reader = query.process()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(1000))
    wire.create(topic, 2)
    with pytest.raises(
        DataLoss,
        match=rf"{topic}/.*/[23] is not a queue of its topic any more, and its offsets 0 to 4 were "
        r"not read",
    ):
        query.batch(query.process(), start, end)
    assert query.batch(query.process(**LENIENT), start, end) == ended({0: range(5), 1: range(5)})
    query.at = end
    wire.send(topic, 0, bodies(2))
    assert plain(query.run(**LENIENT)) == [(0, 5), (0, 6)]


# --- topics that are deleted ----------------------------------------------------------------------


@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize("selection", ["subscribe", "subscribePattern", "assign"])
def test_a_deleted_topic_is_named_and_goes_on_when_it_is_made_again(
    wire: Wire, topic: str, everywhere: bool, available_now: bool, selection: str
) -> None:
    """At each restart, until the user says that what is lost does not matter."""
    given = {
        "subscribe": topic,
        "subscribePattern": f"{topic}.*",
        "assign": f'{{"{topic}": [0, 1]}}',
    }[selection]
    query = Query(wire, topic, **{"subscribe": "", selection: given})
    put_off(wire, topic, 4)
    assert len(plain(query.run())) == 8
    delete(wire, topic, everywhere=everywhere)
    for _ in range(2):
        with pytest.raises(
            DataLoss,
            match=rf"topic {topic} was deleted from broker .*: {topic}/.*/0 was read up to offset "
            r"4",
        ):
            query.run(available_now=available_now)
    assert plain(query.run(available_now=available_now, **LENIENT)) == []
    put_off(wire, topic, 3)
    found = eventually(lambda: plain(query.run(available_now=available_now, **LENIENT)) or None)
    assert found == ended({0: range(3), 1: range(3)})


def test_an_open_batch_of_a_deleted_topic_names_its_offsets(
    wire: Wire, topic: str, query: Query
) -> None:
    put_off(wire, topic, 4)
    reader = query.process()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(1000))
    delete(wire, topic, everywhere=True)
    with pytest.raises(DataLoss, match=rf"topic {topic} was deleted .* offsets 0 to 3 are lost"):
        query.batch(query.process(), start, end)
    assert query.batch(query.process(**LENIENT), start, end) == []
    query.at = end
    # the batch that leaves the queues out
    assert query.run(**LENIENT) == [[]]


def test_a_topic_is_deleted_under_a_running_query(wire: Wire, topic: str, query: Query) -> None:
    put_off(wire, topic, 4)
    reader = query.process(**LENIENT)
    at = reader.latestOffset(reader.initialOffset(), ReadMaxRows(1000))
    delete(wire, topic, everywhere=True)
    without = eventually(
        lambda: end if (end := reader.latestOffset(at, ReadMaxRows(1000))) != at else None
    )
    assert without is not None
    assert without["q"] == {}


def test_a_topic_that_never_was_is_no_loss(wire: Wire, topic: str, query: Query) -> None:
    for available_now in (False, True):
        with pytest.raises((NoRoute, InvalidOption), match=r"does not exist|has no route"):
            query.run(available_now=available_now, **LENIENT)


# --- topics that are made again -------------------------------------------------------------------


@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize(
    ("rows", "after"),
    [
        (1000, 7),
        (1000, 4),
        # a reader that is past the end waits for seconds before it says so
        pytest.param(1000, 2, marks=[pytest.mark.nightly, pytest.mark.apart(10)]),
        (3, 7),
        (3, 4),
        (3, 2),
    ],
)
def test_a_topic_that_was_made_again_is_told_from_the_one_that_was_read(
    wire: Wire, topic: str, query: Query, available_now: bool, after: int, rows: int
) -> None:
    """Longer than the one that was read, as long, and shorter; read to its end, and not."""
    put_off(wire, topic, 4)
    query.run(rows=rows, batches=2)
    delete(wire, topic, everywhere=True)
    put_off(wire, topic, after)
    for _ in range(2):
        with pytest.raises(
            DataLoss,
            match=rf"{topic}/.*/0 was read up to offset \d, and its topic was deleted and made "
            r"again since",
        ):
            query.run(available_now=available_now)
    assert plain(query.run(available_now=available_now, **LENIENT)) == ended(
        {0: range(after), 1: range(after)}
    )
    assert query.run(available_now=available_now) == []


def test_a_checkpoint_without_times_is_read(wire: Wire, topic: str, query: Query) -> None:
    """Those of releases before the times were in it."""
    put_off(wire, topic, 4)
    query.run()
    assert query.at is not None
    query.at = {name: value for name, value in query.at.items() if name != "t"}
    before = dict(query.at)
    assert query.run() == []
    assert query.at == before
    wire.send(topic, 0, bodies(2))
    assert plain(query.run()) == [(0, 4), (0, 5)]
    assert {
        queue_id
        for brokers in query.at["t"].values()
        for queues in brokers.values()
        for queue_id in queues
    } == {"0", "1"}
