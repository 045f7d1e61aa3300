"""Message traces: who sent a message and who consumed it, when and how, kept as messages of
RMQ_SYS_TRACE_TOPIC.

Source: AsyncTraceDispatcher.java, SendMessageTraceHookImpl.java, ConsumeMessageTraceHookImpl.java,
5.3.

Behaviour
- Records are collected in a bounded queue and sent in the background, many in a message: when
  enough are there, every few seconds, and at the close. What finds the queue full is dropped and
  counted; what cannot be sent is dropped. Neither delays or fails a message.
- Only what was stored is recorded as sent; one-way sends, traces themselves and messages that say
  TRACE_ON=false are not recorded.

Differs from Java
- A batch has a record for each of its messages, so that each is found by its id.
- Traces travel on the connections of the client that they are about; Java's have a client of their
  own.

Records are text that Apache's tools read (TraceDataEncoder.java, 5.3): fields are separated by
0x01, records ended by 0x02; a field without a value is the text ``null``.
"""

import asyncio
import enum
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ogive.client.config import ProducerConfig
from ogive.client.ids import UniqueKeys
from ogive.client.instance import ClientInstance
from ogive.client.sending.message_builder import MessageBuilder
from ogive.client.sending.pending import PendingSend
from ogive.client.sending.publisher import Publisher
from ogive.errors import OgiveError
from ogive.model import TRACE_TOPIC, MessageExt, PropertyName, SendResult, SendStatus, split_keys
from ogive.wire.command import RemotingCommand
from ogive.wire.message import decode_batch, decode_properties

log = logging.getLogger(__name__)

# of one trace message; Java's producer of traces allows 128,000 with everything
MAX_BODY_BYTES: Final = 120_000
# the keys of a message are properties, and all properties together have 32,767 bytes
MAX_KEYS_CHARS: Final = 8_000
# of the reason why a call failed
MAX_WHY_CHARS: Final = 200


class MessageKind(enum.IntEnum):
    """Source: MessageType.java; its ordinals."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3


class CallEnd(enum.IntEnum):
    """Result of a listener's call. Source: ConsumeReturnType.java; its ordinals."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    # Java: RETURNNULL
    NONSENSE = 3
    # Java: FAILED
    LATER = 4


@dataclass(frozen=True, slots=True)
class EncodedTrace:
    """Trace record as text, and the keys to find it by: the message's id and its own keys."""

    keys: tuple[str, ...]
    text: str


def sent(
    *,
    timestamp_ms: int,
    region: str,
    group: str,
    tags: str | None,
    keys: tuple[str, ...],
    broker: str,
    body_bytes: int,
    cost_ms: int,
    kind: MessageKind,
    result: SendResult,
) -> EncodedTrace:
    """Return a record of type Pub: a message was stored."""
    stored_ok = result.status is SendStatus.SEND_OK
    return _record(
        (result.id, *keys),
        "Pub",
        timestamp_ms,
        region,
        group,
        result.queue.topic,
        result.id,
        tags,
        " ".join(keys) or None,
        broker,
        body_bytes,
        cost_ms,
        int(kind),
        result.offset_id,
        stored_ok,
    )


def begun(message: MessageExt, *, timestamp_ms: int, group: str, request_id: str) -> EncodedTrace:
    """Return a record of type SubBefore: a listener gets the message."""
    region = message.properties.get(PropertyName.MSG_REGION)
    return _record(
        (message.id, *message.keys),
        "SubBefore",
        timestamp_ms,
        region,
        group,
        request_id,
        message.id,
        message.reconsume_times,
        " ".join(message.keys) or None,
    )


def ended(
    message: MessageExt,
    *,
    timestamp_ms: int,
    group: str,
    request_id: str,
    cost_ms: int,
    success: bool,
    end: CallEnd,
    why: str = "",
) -> EncodedTrace:
    """Return a record of type SubAfter: the call is over. One that succeeded too late is a success
    that timed out.

    *why* says why it failed, in a field behind those of Java, which Java's tools pass over.
    """
    return _record(
        (message.id, *message.keys),
        "SubAfter",
        request_id,
        message.id,
        cost_ms,
        success,
        " ".join(message.keys) or None,
        int(end),
        timestamp_ms,
        group,
        *([_one_line(why)] if why else []),
    )


def _one_line(text: str) -> str:
    """Return the beginning of the text, without the characters that separate fields and records."""
    return "".join(c if c.isprintable() else " " for c in text[:MAX_WHY_CHARS])


def _record(keys: tuple[str, ...], *fields: object) -> EncodedTrace:
    return EncodedTrace(keys, "\x01".join(map(_field, fields)) + "\x02")


def _field(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def packed(records: Iterable[EncodedTrace]) -> Iterator[tuple[tuple[str, ...], bytes]]:
    """Pack the records into few messages: keys and body of each.

    A record is never split, and goes alone if it is over a limit.
    """
    keys: dict[str, None] = {}
    texts: list[bytes] = []
    size = key_chars = 0
    for record in records:
        text = record.text.encode("utf-8", "replace")
        new = [key for key in dict.fromkeys(record.keys) if key not in keys]
        new_chars = sum(map(len, new)) + len(new)
        if texts and (size + len(text) > MAX_BODY_BYTES or key_chars + new_chars > MAX_KEYS_CHARS):
            yield tuple(keys), b"".join(texts)
            keys = {}
            texts = []
            size = 0
            key_chars = 0
            new = list(dict.fromkeys(record.keys))
            new_chars = sum(map(len, new)) + len(new)
        keys.update(dict.fromkeys(new))
        texts.append(text)
        size += len(text)
        key_chars += new_chars
    if texts:
        yield tuple(keys), b"".join(texts)


# waiting, as in Java
MAX_RECORDS: Final = 2048
# records that are not kept waiting
ENOUGH: Final = 256
FLUSH_S: Final = 5.0
SEND_TIMEOUT_S: Final = 5.0
CLOSE_S: Final = 3.0
_numbers: Final = itertools.count()


class Tracer:
    """Collector of the trace records of one producer or consumer group, which sends them. ``add``
    may be called on any thread.
    """

    def __init__(
        self, client: ClientInstance, group: str, side: str, *, flush_s: float = FLUSH_S
    ) -> None:
        """Make a tracer of one *side*: PRODUCE or CONSUME."""
        self._client = client
        self._flush_s = flush_s
        self._loop = asyncio.get_running_loop()
        name = f"_INNER_TRACE_PRODUCER-{group[:80]}-{side}-{next(_numbers)}"
        config = ProducerConfig(
            group=name,
            send_timeout_s=SEND_TIMEOUT_S,
            max_in_flight=64,
            max_in_flight_bytes=16 * 1024 * 1024,
        )
        builder = MessageBuilder(config, client.namespace, None, None)
        self._publisher = Publisher(client, config, builder)
        self._records: deque[EncodedTrace] = deque()
        self._wake = asyncio.Event()
        self._woken = False
        self._sender = client.spawn(self._run(), f"trace of {group}")
        self._group = group
        self._failing = False
        self.dropped = 0

    def add(self, record: EncodedTrace) -> None:
        """Keep a record until it is sent; dropped if too many wait."""
        if len(self._records) >= MAX_RECORDS:
            self.dropped += 1
            return
        self._records.append(record)
        if len(self._records) >= ENOUGH and not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._wake.set)
            except RuntimeError:
                # the loop is closed: a listener call was left behind
                log.debug("a trace record of %s comes after the end", self._group)

    async def close(self) -> None:
        """Send what is left; what is not out within CLOSE_S is dropped."""
        self._sender.cancel()
        self._send_all()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._publisher.flush()
        except TimeoutError:
            log.warning("not all traces of %s could be sent", self._group)
        finally:
            self._publisher.close()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._flush_s):
                    await self._wake.wait()
            except TimeoutError:
                # nothing or little came
                pass
            self._woken = False
            self._wake.clear()
            self._send_all()

    def _send_all(self) -> None:
        if self.dropped:
            log.warning(
                "dropped %d trace records of %s: more than %d were waiting",
                self.dropped,
                self._group,
                MAX_RECORDS,
            )
            self.dropped = 0
        records = [self._records.popleft() for _ in range(len(self._records))]
        for keys, body in packed(records):
            text = f"{PropertyName.KEYS}\x01{' '.join(keys)}\x02"
            pending = PendingSend(TRACE_TOPIC, body, text, None, None)
            pending.future = future = self._loop.create_future()
            future.add_done_callback(self._told)
            if not self._publisher.has_room(pending.size):
                future.set_exception(OgiveError("too many traces are on their way already"))
                continue
            try:
                self._publisher.take(pending, SEND_TIMEOUT_S)
            except OgiveError as exc:
                future.set_exception(exc)

    def _told(self, future: asyncio.Future[SendResult]) -> None:
        """Log lost traces, once per outage."""
        error = future.exception()
        if error is not None:
            log.log(
                logging.DEBUG if self._failing else logging.WARNING,
                "traces of %s are lost: %s",
                self._group,
                error,
            )
        self._failing = error is not None


# --- the producer's side --------------------------------------------------------------------------


def record_sent(
    tracer: Tracer, pending: PendingSend, results: Sequence[SendResult], group: str
) -> None:
    """Record the *results* of a send, one for each message of *pending*."""
    answer = pending.answer
    if not isinstance(answer, RemotingCommand) or pending.topic == TRACE_TOPIC:
        return
    region = answer.ext_fields.get(PropertyName.MSG_REGION)
    if region is None or answer.ext_fields.get(PropertyName.TRACE_ON) == "false":
        return
    now_ms = int(time.time() * 1000)
    items = (
        [(pending.flag, pending.body, pending.properties)]
        if pending.batch is None
        else decode_batch(pending.body)
    )
    for (_, body, raw), result in zip(items, results, strict=True):
        properties = decode_properties(raw)
        tracer.add(
            sent(
                timestamp_ms=pending.born_ms,
                region=region,
                group=group,
                tags=properties.get(PropertyName.TAGS),
                keys=split_keys(properties.get(PropertyName.KEYS, "")),
                broker=pending.target.lane.address if pending.target is not None else "",
                body_bytes=len(body),
                cost_ms=max(0, now_ms - pending.born_ms) // len(items),
                kind=_kind(properties),
                result=result,
            )
        )


def _kind(properties: dict[str, str]) -> MessageKind:
    if properties.get(PropertyName.TRANSACTION_PREPARED) == "true":
        return MessageKind.HALF
    delayed = {
        PropertyName.DELAY,
        PropertyName.TIMER_DELAY_MS,
        PropertyName.TIMER_DELIVER_MS,
    } & properties.keys()
    return MessageKind.DELAY if delayed else MessageKind.NORMAL


# --- the consumer's side --------------------------------------------------------------------------


class ConsumeObserver(Protocol):
    """Observer of each call of a listener, on whatever thread it runs. It must not raise or
    block.
    """

    def begun(self, messages: Sequence[MessageExt]) -> Any:
        """Observe the begin of a call. The return value is handed to ``ended``."""
        ...

    def ended(
        self, call: Any, messages: Sequence[MessageExt], end: CallEnd, done: int, why: str = ""
    ) -> None:
        """Observe the end of a call: the first *done* messages are finished, the others have
        failed, and *why* says why.
        """
        ...

    def expired(self, messages: Sequence[MessageExt]) -> None:
        """Observe that a call runs for longer than the consume timeout, so its messages have
        failed.

        It ends later, or never.
        """
        ...


class ConsumeTrace:
    """Trace of the calls of one group's listeners."""

    def __init__(self, tracer: Tracer, group: str, timeouts_s: Mapping[str, float]) -> None:
        """Make a trace. *timeouts_s*: the time that a call may take, by topic."""
        self._tracer = tracer
        self._group = group
        self._timeouts_s = timeouts_s
        self._ids = UniqueKeys()
        # protects _ids: listeners run in many threads
        self._lock = threading.Lock()

    def begun(self, messages: Sequence[MessageExt]) -> tuple[str, float]:
        """Record the begin of a call. Return the id that joins both records, and the time."""
        # first: what the recording takes is the call's time to its worker, too
        since, now = time.monotonic(), time.time()
        with self._lock:
            request_id = self._ids.next(int(now * 1000))
        for message in messages:
            if _is_traced(message):
                self._tracer.add(
                    begun(
                        message,
                        timestamp_ms=int(now * 1000),
                        group=self._group,
                        request_id=request_id,
                    )
                )
        return request_id, since

    def ended(
        self,
        call: tuple[str, float],
        messages: Sequence[MessageExt],
        end: CallEnd,
        done: int,
        why: str = "",
    ) -> None:
        request_id, since = call
        cost_s, success = time.monotonic() - since, end is CallEnd.SUCCESS
        if cost_s >= self._timeouts_s.get(messages[0].topic, math.inf) and end in (
            CallEnd.SUCCESS,
            CallEnd.LATER,
        ):
            end = CallEnd.TIME_OUT
        now_ms, cost_ms = int(time.time() * 1000), int(cost_s * 1000) // len(messages)
        for number, message in enumerate(messages):
            if _is_traced(message):
                self._tracer.add(
                    ended(
                        message,
                        timestamp_ms=now_ms,
                        group=self._group,
                        request_id=request_id,
                        cost_ms=cost_ms,
                        success=success,
                        end=end,
                        why=why if number >= done else "",
                    )
                )

    def expired(self, messages: Sequence[MessageExt]) -> None:
        """Do nothing: the record is written at the end of the call."""


def _is_traced(message: MessageExt) -> bool:
    return message.topic != TRACE_TOPIC and message.properties.get(PropertyName.TRACE_ON) != "false"
