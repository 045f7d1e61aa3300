"""Send the rows of one task: in batches, with many requests in flight, and wait for every
acknowledgement.

Behaviour
- Rows with a sharding key or a queue keep their order: one request of a queue at a time. Others are
  distributed round robin.
- If a broker cannot be reached, its request is repeated for SEND_TIMEOUT_S; one that may go to any
  queue is sent to another.
- After a request without an answer, *recall* returns the rows that are stored all the same; only
  the others are sent again. Without it (at least once) all are.
- After the first failure nothing more is sent: the next attempt finds its rows in order.
- A batch that its broker refuses is sent in halves, so that only the invalid row fails: a broker
  may have lower limits than ours, and its own properties need room. *replace* returns the rows to
  send in place of that row.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from ogive.client import rpc
from ogive.client.routes import choose_queue, split_by_size
from ogive.errors import (
    MessageIllegal,
    OgiveError,
    SendFailed,
    SendTimeout,
)
from ogive.model import MessageQueue, PropertyName, SendResult
from ogive.spark.cluster import Cluster
from ogive.spark.patience import Patience
from ogive.spark.rows import OTHER_WAYS, Encoded, Row, queue_of
from ogive.wire.codes import Decision, SysFlag
from ogive.wire.headers.send import EndTransactionRequest, SendMessageRequestV2
from ogive.wire.message import (
    MAX_BATCH_MESSAGES,
    decode_batch,
    decode_properties,
    encode_batch,
    parse_offset_message_id,
)

SEND_TIMEOUT_S: Final = 30.0
"""The whole budget of one request, retries included.

Longer outages end the task; Spark then tries the task again.
"""

CALL_TIMEOUT_S: Final = 10.0
BATCH_BYTES: Final = 1024 * 1024
MAX_IN_FLIGHT_BYTES: Final = 32 * 1024 * 1024
_BATCH_PROPERTIES: Final = "WAIT\x01true\x02"
SENDING: Final = Patience(SEND_TIMEOUT_S, settled=True, doubtful=True, known=True)

Recall = Callable[[], Awaitable[set[str]]]
"""Function that returns the unique keys of the rows that are already stored."""

Replace = Callable[[Row, MessageIllegal], Awaitable[Sequence[Row]]]
"""Function that returns the rows to send in place of a row that its broker refuses."""


@dataclass(frozen=True, slots=True)
class Half:
    """A stored half message: the data to end its transaction."""

    topic: str
    broker_name: str
    key: str
    queue_offset: int
    commitlog_offset: int


class Sending:
    """One task's rows in flight. Its coroutines run on the cluster's loop."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        partition: int,
        *,
        max_in_flight: int,
        recall: Recall | None = None,
        immunity_s: float | None = None,
        replace: Replace | None = None,
    ) -> None:
        """Send rows as half messages with *immunity_s*: the broker does not ask about them
        before that age.
        """
        self._cluster, self._group, self._partition = cluster, group, partition
        self._recall, self._immunity_s, self._replace = recall, immunity_s, replace
        self._room = asyncio.Semaphore(
            min(max_in_flight, MAX_IN_FLIGHT_BYTES // BATCH_BYTES)
            if immunity_s is None
            else max_in_flight
        )
        # rows are taken over in the order of calls
        self._in_turn = asyncio.Lock()
        self._lines: dict[MessageQueue, asyncio.Lock] = {}
        self._next = partition
        self._failed: OgiveError | None = None

    async def send(self, rows: Sequence[Row]) -> list[Half]:
        """Send rows, and return when all are stored.

        If some are not, raise the error of the first of them after all have an outcome.
        """
        async with self._in_turn:
            work = [asyncio.create_task(one) for one in await self._requests(rows)]
        return await _ended(work)

    async def send_encoded(self, topic: str, batches: Sequence[Encoded]) -> list[Half]:
        """Send rows without queues and sharding keys, as send() does."""
        async with self._in_turn:
            await self._queues(topic, batches[0].first)
            work = [asyncio.create_task(self._insist(topic, None, batch)) for batch in batches]
        return await _ended(work)

    async def _requests(self, rows: Sequence[Row]) -> list[Coroutine[None, None, list[Half]]]:
        firsts = {row.topic: row.number for row in reversed(rows)}
        queues = {topic: await self._queues(topic, number) for topic, number in firsts.items()}
        groups: dict[tuple[str, MessageQueue | None, bool], list[Row]] = {}
        for row in rows:
            topic = row.topic
            pinned = (
                None
                if row.sharding_key is None and row.queue is None
                else self._pinned(row, queues[topic])
            )
            groups.setdefault((topic, pinned, row.alone), []).append(row)
        requests: list[Coroutine[None, None, list[Half]]] = []
        for (topic, queue, alone), group in groups.items():
            one_by_one = alone or self._immunity_s is not None
            parts = split_by_size(
                (row.size for row in group), BATCH_BYTES, 1 if one_by_one else MAX_BATCH_MESSAGES
            )
            requests += [self._deliver(topic, queue, group[part]) for part in parts]
        return requests

    def _pinned(self, row: Row, queues: tuple[MessageQueue, ...]) -> MessageQueue | None:
        """Return the queue in the row, or the one that every client chooses for its sharding
        key.
        """
        if row.sharding_key is not None:
            return choose_queue(row.sharding_key, queues) if queues else None
        try:
            return queue_of(row, queues)
        except ValueError as exc:
            raise SendFailed(
                f"row {row.number} of partition {self._partition} cannot be sent: {exc}"
            ) from None

    async def _queues(self, topic: str, number: int) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic. *number* is that of the first row that needs them."""
        try:
            return await self._cluster.writable(topic)
        except OgiveError as exc:
            raise self._failure(exc, (number, number), topic) from exc

    # --- one request ------------------------------------------------------------------------------

    async def _deliver(
        self, topic: str, queue: MessageQueue | None, rows: Sequence[Row]
    ) -> list[Half]:
        if queue is None:
            return await self._insist(topic, None, rows)
        async with self._lines.setdefault(queue, asyncio.Lock()):
            return await self._insist(topic, queue, rows)

    async def _insist(
        self,
        topic: str,
        queue: MessageQueue | None,
        rows: Sequence[Row] | Encoded,
        *,
        replaced: bool = False,
    ) -> list[Half]:
        """Send one request, or several if its broker refuses some of *rows*. *replaced*: these
        stand in place of another row.
        """
        refused: MessageIllegal
        async with self._room:
            if self._failed is not None:
                raise self._failed
            unknown = False

            async def send() -> list[Half]:
                nonlocal rows, unknown
                if unknown and self._recall is not None and not isinstance(rows, Encoded):
                    stored = await self._recall()
                    rows = [row for row in rows if row.key not in stored]
                if not rows:
                    return []
                try:
                    return await self._once(topic, queue, rows)
                except OgiveError as exc:
                    unknown = unknown or exc.outcome_unknown
                    raise

            try:
                return await SENDING.insist(send, partial(self._cluster.forget_route, topic))
            except OgiveError as exc:
                count = rows.count if isinstance(rows, Encoded) else len(rows)
                if not isinstance(exc, MessageIllegal) or (
                    count == 1 and (self._replace is None or replaced)
                ):
                    self._failed = self._failure(exc, _span(rows), topic, unknown=unknown)
                    raise self._failed from exc
                refused = exc
        single = _rows_of(topic, rows)
        if len(single) > 1:
            middle = len(single) // 2
            first = await self._insist(topic, queue, single[:middle])
            return first + await self._insist(topic, queue, single[middle:])
        assert self._replace is not None
        halves: list[Half] = []
        for row in await self._replace(single[0], refused):
            halves += await self._insist(row.topic, None, [row], replaced=True)
        return halves

    async def _once(
        self, topic: str, queue: MessageQueue | None, rows: Sequence[Row] | Encoded
    ) -> list[Half]:
        if queue is None:
            queues = await self._cluster.writable(topic)
            self._next += 1
            queue = queues[self._next % len(queues)]
        address = await self._cluster.master_of(queue)
        if isinstance(rows, Encoded) and rows.count > 1:
            await self._store(queue, address, rows.body, _BATCH_PROPERTIES, batch=True)
        elif isinstance(rows, Encoded):
            (item,) = decode_batch(rows.body)
            await self._store(queue, address, item.body, item.properties.decode())
        elif self._immunity_s is not None:
            return [await self._send_half(queue, address, rows[0])]
        elif len(rows) == 1:
            await self._store(queue, address, rows[0].body, rows[0].properties.decode())
        else:
            body = encode_batch([(0, row.body, row.properties) for row in rows])
            await self._store(queue, address, body, _BATCH_PROPERTIES, batch=True)
        return []

    async def _send_half(self, queue: MessageQueue, address: str, row: Row) -> Half:
        properties = (
            f"{row.properties.decode()}{PropertyName.TRANSACTION_PREPARED}\x01true\x02"
            f"{PropertyName.PRODUCER_GROUP}\x01{self._group}\x02"
            f"{PropertyName.TRANSACTION_IMMUNITY}\x01{self._immunity_s:.0f}\x02"
        )
        stored = await self._store(
            queue, address, row.body, properties, sys_flag=SysFlag.TRANSACTION_PREPARED
        )
        commitlog_offset = parse_offset_message_id(stored.offset_id)[1]
        return Half(queue.topic, queue.broker_name, row.key, stored.queue_offset, commitlog_offset)

    async def _store(
        self,
        queue: MessageQueue,
        address: str,
        body: bytes,
        properties: str,
        *,
        sys_flag: int = 0,
        batch: bool = False,
    ) -> SendResult:
        """Send one request, and return when its message or batch is stored."""
        header = SendMessageRequestV2(
            producer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            sys_flag=sys_flag,
            born_timestamp=time.time_ns() // 1_000_000,
            properties=properties,
            batch=batch,
            broker_name=queue.broker_name,
        )
        return await rpc.send_message(
            self._cluster.pool,
            address,
            header,
            body,
            broker_name=queue.broker_name,
            batch=batch,
            timeout_s=CALL_TIMEOUT_S,
        )

    def _failure(
        self, cause: OgiveError, span: tuple[int, int], topic: str, *, unknown: bool = False
    ) -> OgiveError:
        first, last = span
        rows = f"row {first}" if first == last else f"one or more of the rows {first} to {last}"
        kind = SendTimeout if unknown or cause.outcome_unknown else SendFailed
        ways = OTHER_WAYS if isinstance(cause, MessageIllegal) and self._replace is None else ""
        return kind(f"{rows} of partition {self._partition} for topic {topic}: {cause}{ways}")


async def _ended(work: Iterable[asyncio.Task[list[Half]]]) -> list[Half]:
    halves: list[Half] = []
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        halves += outcome
    return halves


def _rows_of(topic: str, rows: Sequence[Row] | Encoded) -> Sequence[Row]:
    if not isinstance(rows, Encoded):
        return rows
    return [
        Row(number, topic, body, decode_properties(properties)[PropertyName.UNIQ_KEY], properties)
        for number, (_, body, properties) in enumerate(decode_batch(rows.body), rows.first)
    ]


def _span(rows: Sequence[Row] | Encoded) -> tuple[int, int]:
    """Return the first and the last row number."""
    if isinstance(rows, Encoded):
        return rows.first, rows.first + rows.count - 1
    return rows[0].number, rows[-1].number


# --- ending transactions --------------------------------------------------------------------------


async def end_transactions(
    cluster: Cluster,
    group: str,
    halves: Iterable[Half],
    decision: Decision,
    *,
    max_in_flight: int,
    recall: Recall | None = None,
) -> None:
    """Commit or roll back all.

    A commit without an answer is repeated only if *recall* does not find its message: otherwise
    Apache's brokers would deliver it a second time. Raises the first failure after all have an
    outcome.
    """
    room = asyncio.Semaphore(max_in_flight)

    async def end(half: Half) -> None:
        queue = MessageQueue(half.topic, half.broker_name, 0)
        header = EndTransactionRequest(
            producer_group=group,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.commitlog_offset,
            commit_or_rollback=decision,
            msg_id=half.key,
            transaction_id=half.key,
            topic=half.topic,
            broker_name=half.broker_name,
        )
        unknown = False

        async def tell() -> None:
            nonlocal unknown
            if unknown and recall is not None and half.key in await recall():
                return
            try:
                address = await cluster.master_of(queue)
                await rpc.end_transaction(cluster.pool, address, header, timeout_s=CALL_TIMEOUT_S)
            except OgiveError as exc:
                unknown = unknown or exc.outcome_unknown
                raise

        async with room:
            await SENDING.insist(tell, partial(cluster.forget_route, half.topic))

    for outcome in await asyncio.gather(*(end(half) for half in halves), return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
