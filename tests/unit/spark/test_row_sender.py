"""Rows on their way to brokers: order where it counts, a bounded window, and what happens when an
answer never comes.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow as pa

from ogive.client import rpc
from ogive.errors import (
    ConnectionLost,
    NoPermission,
    OgiveError,
    ResponseCode,
    SendFailed,
    SendTimeout,
    TopicNotExist,
    broker_error,
)
from ogive.model import MessageQueue, SendResult, SendStatus
from ogive.spark import row_sender, sink
from ogive.spark import rows as spark_rows
from ogive.spark.cluster import Cluster
from ogive.spark.options import SinkOptions
from ogive.spark.row_sender import Half, Sending, end_transactions
from ogive.spark.rows import Encoded, Keys, Row, form
from ogive.spark.sink import BatchSink
from ogive.wire.codes import Decision
from ogive.wire.headers.send import EndTransactionRequest, SendMessageRequestV2
from ogive.wire.message import decode_batch, decode_properties, encode_batch

QUEUES = tuple(MessageQueue("Orders", "broker-a", number) for number in range(4))
Fault = Callable[[int], OgiveError | None]


class Brokers:
    """A cluster of one broker that keeps what it is sent.

    *fault* says what goes wrong with the n-th request; it is stored all the same where the outcome
    is unknown.
    """

    def __init__(self, fault: Fault = lambda _: None) -> None:
        self.pool = None
        # queue id, unique key, body
        self.stored: list[tuple[int, str, bytes]] = []
        self.headers: list[SendMessageRequestV2] = []
        self.ended: list[EndTransactionRequest] = []
        self.sending = self.most = self.requests = 0
        self._fault = fault

    async def writable(self, _: str) -> tuple[MessageQueue, ...]:
        return QUEUES

    async def master_of(self, _: MessageQueue) -> str:
        return "broker-a:10911"

    def forget_route(self, _: str) -> None: ...

    async def _busy(self) -> OgiveError | None:
        self.requests += 1
        fault = self._fault(self.requests)
        self.sending += 1
        self.most = max(self.most, self.sending)
        for _ in range(3):
            await asyncio.sleep(0)
        self.sending -= 1
        return fault

    async def send_message(
        self,
        _: Any,
        __: str,
        header: SendMessageRequestV2,
        body: bytes,
        *,
        batch: bool = False,
        **___: Any,
    ) -> SendResult:
        self.headers.append(header)
        fault = await self._busy()
        if fault is None or fault.outcome_unknown:
            items = (
                [(item.properties, item.body) for item in decode_batch(body)]
                if batch
                else [((header.properties or "").encode(), body)]
            )
            self.stored += [
                (header.queue_id, decode_properties(raw)["UNIQ_KEY"], text) for raw, text in items
            ]
        if fault is not None:
            raise fault
        return SendResult(
            SendStatus.SEND_OK, "", "7F00000100002A9F00000000000004D2", QUEUES[header.queue_id], 5
        )

    async def end_transaction(
        self, _: Any, __: str, header: EndTransactionRequest, **___: Any
    ) -> None:
        self.ended.append(header)
        fault = await self._busy()
        if fault is not None:
            raise fault

    @property
    def numbers(self) -> list[int]:
        return sorted(int(body) for _, __, body in self.stored)


def rows(count: int, first: int = 0, **columns: Any) -> list[Row]:
    names = ["body", *columns]
    arrays = [
        pa.array([str(first + i) for i in range(count)]),
        *(pa.array([value] * count) for value in columns.values()),
    ]
    return form(
        pa.RecordBatch.from_arrays(arrays, names),
        "Orders",
        first,
        0,
        Keys("q", 0, partition=0, of_content=False),
    )


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Brokers]:
    def make(fault: Fault = lambda _: None) -> Brokers:
        made = Brokers(fault)
        monkeypatch.setattr(rpc, "send_message", made.send_message)
        monkeypatch.setattr(rpc, "end_transaction", made.end_transaction)
        return made

    return make


def task(brokers: Brokers, **settings: Any) -> Sending:
    return Sending(cast(Cluster, brokers), "g", 0, **{"max_in_flight": 3, **settings})


async def test_rows_travel_in_batches(brokers: Callable[..., Brokers]) -> None:
    cluster = brokers()
    await task(cluster).send(rows(1000))
    assert (cluster.numbers, cluster.requests) == (list(range(1000)), 1)


async def test_large_rows_are_cut_into_requests(
    brokers: Callable[..., Brokers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_sender, "BATCH_BYTES", 1000)
    cluster = brokers()
    await task(cluster, max_in_flight=2).send(rows(100))
    assert cluster.numbers == list(range(100))
    assert cluster.requests > 5
    assert cluster.most == 2
    assert {header.queue_id for header in cluster.headers} == {0, 1, 2, 3}


async def test_rows_of_a_queue_keep_their_order(
    brokers: Callable[..., Brokers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several calls, small requests, and one that fails in the middle."""
    monkeypatch.setattr(row_sender, "BATCH_BYTES", 500)
    cluster = brokers(lambda n: broker_error(ResponseCode.SYSTEM_BUSY, "", "b") if n == 3 else None)
    sent = task(cluster)
    await asyncio.gather(
        *(sent.send(rows(50, 50 * part, shardingKey="plane")) for part in range(4))
    )
    assert [int(body) for _, __, body in cluster.stored] == list(range(200))
    assert len({queue for queue, _, __ in cluster.stored}) == 1


async def test_a_row_with_a_delay_travels_alone(brokers: Callable[..., Brokers]) -> None:
    cluster = brokers()
    await task(cluster).send(rows(5, delayTimeLevel=1))
    assert (cluster.numbers, cluster.requests, cluster.most) == (list(range(5)), 5, 3)
    assert all("DELAY\x011" in (header.properties or "") for header in cluster.headers)


def lost(n: int) -> OgiveError | None:
    return ConnectionLost("gone", "broker-a:10911") if n == 1 else None


async def test_an_answer_that_never_came_is_sent_again_where_twice_is_allowed(
    brokers: Callable[..., Brokers],
) -> None:
    cluster = brokers(lost)
    await task(cluster).send(rows(3))
    assert cluster.numbers == [0, 0, 1, 1, 2, 2]
    # by key the second ones can be told
    assert len({key for _, key, __ in cluster.stored}) == 3


async def test_an_answer_that_never_came_is_looked_up_where_once_is_asked_for(
    brokers: Callable[..., Brokers],
) -> None:
    cluster = brokers(lost)

    async def recall() -> set[str]:
        return {key for _, key, __ in cluster.stored}

    await task(cluster, recall=recall).send(rows(3))
    assert cluster.numbers == [0, 1, 2]


async def test_a_failure_names_the_rows_and_ends_the_sending(
    brokers: Callable[..., Brokers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_sender, "BATCH_BYTES", 500)
    cluster = brokers(
        lambda n: NoPermission(ResponseCode.NO_PERMISSION, "no", "b") if n == 2 else None
    )
    with pytest.raises(
        SendFailed,
        match=r"one or more of the rows 5 to 9 of partition 0 for topic Orders: b answered 16",
    ):
        await task(cluster, max_in_flight=1).send(rows(30, shardingKey="plane"))
    assert cluster.numbers == list(range(5))


async def test_a_broker_that_stays_away_leaves_the_outcome_open(
    brokers: Callable[..., Brokers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_sender, "SENDING", replace(row_sender.SENDING, window_s=0.0))
    with pytest.raises(SendTimeout, match="row 0 of partition 0"):
        await task(brokers(lost)).send(rows(1))


# --- rows that are encoded already ----------------------------------------------------------------


def encoded(*counts: int) -> list[Encoded]:
    batches, first = [], 0
    for count in counts:
        items = [(0, row.body, row.properties) for row in rows(count, first)]
        batches.append(Encoded(first, count, encode_batch(items)))
        first += count
    return batches


async def test_encoded_rows_travel_as_they_are(brokers: Callable[..., Brokers]) -> None:
    cluster = brokers(lost)
    await task(cluster, max_in_flight=2).send_encoded("Orders", encoded(3, 2, 1, 4))
    # the first answer never came
    assert cluster.numbers == sorted([*range(10), 0, 1, 2])
    assert (cluster.requests, cluster.most) == (5, 2)
    assert {header.queue_id for header in cluster.headers} == {0, 1, 2, 3}
    assert {header.topic for header in cluster.headers} == {"Orders"}


async def test_a_single_encoded_row_travels_like_any_single_row(
    brokers: Callable[..., Brokers],
) -> None:
    """A batch of one has a longer body, against which brokers hold their limit, and lacks what they
    add to single messages.
    """
    cluster = brokers()
    await task(cluster).send(rows(1))
    await task(cluster).send_encoded("Orders", encoded(1))
    plain, encoded_one = cluster.headers
    assert not plain.batch
    assert (encoded_one.batch, encoded_one.properties) == (plain.batch, plain.properties)
    assert cluster.numbers == [0, 0]


@pytest.mark.parametrize(
    ("failing", "named"), [(2, "one or more of the rows 3 to 4"), (3, "row 5")]
)
async def test_a_failure_names_encoded_rows(
    brokers: Callable[..., Brokers], failing: int, named: str
) -> None:
    cluster = brokers(
        lambda n: NoPermission(ResponseCode.NO_PERMISSION, "no", "b") if n == failing else None
    )
    with pytest.raises(SendFailed, match=f"{named} of partition 0 for topic Orders: b answered 16"):
        await task(cluster, max_in_flight=1).send_encoded("Orders", encoded(3, 2, 1, 4))
    assert cluster.numbers == list(range(3 if failing == 2 else 5))


async def test_a_topic_without_route_names_the_first_encoded_row(
    brokers: Callable[..., Brokers],
) -> None:
    cluster = brokers()

    async def writable(_: str) -> tuple[MessageQueue, ...]:
        raise TopicNotExist(17, "no route")

    cluster.writable = writable  # type: ignore[method-assign]
    with pytest.raises(SendFailed, match=r"row 0 of partition 0 for topic Orders: .*no route"):
        await task(cluster).send_encoded("Orders", encoded(3))


# --- transactions ---------------------------------------------------------------------------------


async def test_rows_of_a_transaction_are_half_messages(brokers: Callable[..., Brokers]) -> None:
    cluster = brokers()
    halves = await task(cluster, immunity_s=60.0).send(rows(2))
    assert [(half.key, half.queue_offset, half.commitlog_offset) for half in halves] == [
        (row.key, 5, 1234) for row in rows(2)
    ]
    assert {header.sys_flag for header in cluster.headers} == {4}
    fields = decode_properties((cluster.headers[0].properties or "").encode())
    assert (fields["TRAN_MSG"], fields["PGROUP"], fields["CHECK_IMMUNITY_TIME_IN_SECONDS"]) == (
        "true",
        "g",
        "60",
    )


HALVES = [Half("Orders", "broker-a", f"key {number}", number, 100 * number) for number in range(10)]


async def end(cluster: Brokers, **settings: Any) -> None:
    await end_transactions(
        cast(Cluster, cluster), "g", HALVES, Decision.COMMIT, max_in_flight=3, **settings
    )


async def test_all_transactions_are_ended_a_few_at_a_time(brokers: Callable[..., Brokers]) -> None:
    cluster = brokers()
    await end(cluster)
    assert sorted(header.tran_state_table_offset for header in cluster.ended) == list(range(10))
    assert cluster.most == 3


async def test_a_commit_without_an_answer_is_repeated_only_if_it_did_not_arrive(
    brokers: Callable[..., Brokers],
) -> None:
    """A second commit makes Apache's brokers deliver the message once more."""
    cluster = brokers(lost)

    async def delivered() -> set[str]:
        return {"key 0"}

    await end(cluster, recall=delivered)
    assert len(cluster.ended) == 10
    again = brokers(lost)

    async def nothing() -> set[str]:
        return set()

    await end(again, recall=nothing)
    assert [header.msg_id for header in again.ended].count("key 0") == 2


async def test_a_commit_without_an_answer_is_looked_up_after_a_refusal_too(
    brokers: Callable[..., Brokers],
) -> None:
    """The refusal of the second try says nothing about the first."""
    busy = broker_error(ResponseCode.SYSTEM_BUSY, "busy", "broker-a:10911")
    cluster = brokers(lambda n: busy if n == 11 else lost(n))
    looks = [set[str](), {"key 0"}]

    async def late() -> set[str]:
        return looks.pop(0)

    await end(cluster, recall=late)
    assert [header.msg_id for header in cluster.ended].count("key 0") == 2
    assert not looks


# --- a task ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("namespace", [{}, {"namespace": "shop"}])
@pytest.mark.parametrize("columns", [["body"], ["body", "keys"], ["body", "keys", "shardingKey"]])
def test_a_task_sends_the_same_with_and_without_the_compiled_part(
    brokers: Callable[..., Brokers],
    monkeypatch: pytest.MonkeyPatch,
    columns: list[str],
    namespace: dict[str, str],
) -> None:
    def written() -> tuple[Any, ...]:
        cluster = brokers()
        monkeypatch.setattr(sink, "cluster", lambda _: cluster)
        writer = BatchSink(SinkOptions.parse({"topic": "Orders", **namespace}))
        writer._write_id = "w"
        batches = [
            pa.RecordBatch.from_pydict(
                {name: [str(100 * part + n) for n in range(100)] for name in columns}
            )
            for part in range(3)
        ]
        sent = writer.write(iter([*batches, batches[0][:0], batches[0][:1]]))
        return (
            sent,
            sorted(cluster.stored, key=lambda one: one[1]),
            {header.topic for header in cluster.headers},
        )

    ours = written()
    monkeypatch.setattr(spark_rows, "native", None)
    assert ours == written()
    assert ours[0].rows == len(ours[1]) == 301


@pytest.mark.parametrize(
    ("asked", "rows"),
    [
        ({"invalidRows": "drop"}, 2),
        ({"invalidRows": "dead-letter", "deadLetterTopic": "Bad"}, 3),
    ],
)
def test_a_task_tells_how_many_rows_are_stored_and_how_many_no_broker_would_take(
    brokers: Callable[..., Brokers],
    monkeypatch: pytest.MonkeyPatch,
    asked: dict[str, str],
    rows: int,
) -> None:
    """A row that went to the topic of dead letters is stored as well."""
    cluster = brokers()
    monkeypatch.setattr(sink, "cluster", lambda _: cluster)
    writer = BatchSink(SinkOptions.parse({"topic": "Orders", **asked}))
    sent = writer.write(iter([pa.RecordBatch.from_pydict({"body": ["2", None, "5"]})]))
    assert (sent.rows, sent.invalid) == (rows, 1)
    bodies = [body for _, _, body in cluster.stored]
    assert sorted(int(body) for body in bodies if body.isdigit()) == [2, 5]
    assert len(bodies) == rows


def test_a_task_that_fails_leaves_nothing_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what it still sends comes between the rows of the attempt that Spark starts next."""
    stored: list[int] = []

    class Slow:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        async def send(self, rows: list[Row]) -> list[Half]:
            for _turn in range(50_000):
                await asyncio.sleep(0)
            stored.extend(row.number for row in rows)
            return []

    monkeypatch.setattr(sink, "Sending", Slow)
    batches = (
        pa.RecordBatch.from_arrays([pa.array([body], pa.string())], ["body"])
        for body in ("a", "b", None)
    )
    with pytest.raises(SendFailed, match="row 2 of partition 0 cannot be sent: its body is null"):
        BatchSink(SinkOptions.parse({"topic": "Orders"})).write(batches)
    assert stored == [0, 1]
