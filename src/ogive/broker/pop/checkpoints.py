"""Leases as Apache's broker keeps them: checkpoints in the revive topic.

A clean stop writes the leases that are out as checkpoints, each a timer message for the revive
topic, so that Apache's broker can go on with the directory. A start takes over what is in the
revive topic, and what waits for it, so that ogive can.

Source: PopCheckPoint.java, AckMsg.java, BatchAckMsg.java, PopReviveService.java, 5.5.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ogive.broker.deferred.timer_properties import DELETE_KEY, DELIVER_MS, Name, timed
from ogive.broker.deferred.timers import Timers
from ogive.broker.pop.leases import Lease, LeaseBook, LeaseKey
from ogive.broker.services import Context
from ogive.broker.state.offset_table import OffsetTable
from ogive.errors import OgiveError, ProtocolError, StoreError
from ogive.model import REVIVE_TOPIC_PREFIX, PropertyName
from ogive.store.message_store import MessageStore
from ogive.store.types import NewMessage
from ogive.wire.bodies.json_fields import dumps, loads_object
from ogive.wire.message import decode_properties, decode_stored, encode_properties, real_place
from ogive.wire.pop import MAX_POP_MESSAGES

log = logging.getLogger(__name__)

REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
CHECKPOINT, ACK, BATCH_ACK = "ck", "ack", "bAck"
# a checkpoint comes before its acknowledgements
_AHEAD_MS: Final = 1000
# of one put, and entries read at once
_AT_ONCE: Final = 256
# no timer is refused for its time
_ANY_TIME: Final = 1e12
_LONG: Final = {
    "ao": "ackOffset",
    "aol": "ackOffsetList",
    "so": "startOffset",
    "c": "consumerGroup",
    "t": "topic",
    "q": "queueId",
    "pt": "popTime",
}


def revive_topic(cluster: str) -> str:
    return REVIVE_TOPIC_PREFIX + cluster


def checkpoint(lease: Lease, broker: str) -> dict[str, Any]:
    """Return the JSON of a lease."""
    key = lease.key
    return {
        "bm": ~lease.open & (1 << len(lease.offsets)) - 1,
        "bn": broker,
        "c": key.group,
        "d": [offset - key.start for offset in lease.offsets],
        "it": lease.invisible_ms,
        "n": len(lease.offsets),
        "pt": key.pop_time_ms,
        "q": key.queue_id,
        "ro": 0,
        "so": key.start,
        "sp": lease.suspend,
        "t": key.topic,
    }


def lease_of(value: Mapping[str, Any], revive_queue: int) -> Lease:
    """Read a checkpoint; the caller sets when it is due. Raises ProtocolError."""
    try:
        count, start = int(value["n"]), int(value["so"])
        # an older broker wrote none
        distances = value.get("d") or range(count)
        offsets = tuple(start + int(distance) for distance in distances)[:count]
        key = LeaseKey(str(value["c"]), str(value["t"]), int(value["q"]), start, int(value["pt"]))
        bits = (1 << len(offsets)) - 1
        if not 0 <= len(offsets) <= MAX_POP_MESSAGES or min((start, *offsets)) < 0:
            raise ValueError("offsets")
        return Lease(
            key, offsets, max(0, int(value["it"])), 0.0, revive_queue,
            bool(value.get("sp", False)), bits & ~int(value.get("bm", 0)), 0,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as exc:
        raise ProtocolError(f"a checkpoint makes no sense: {exc!r}") from None


# --- at the stop ----------------------------------------------------------------------------------


async def export(ctx: Context) -> None:
    """Write all leases that are out as checkpoints. Raises OgiveError: then the journal alone has
    those that are missing.
    """
    leases = [lease for lease in ctx.leases.all() if lease.open]
    topic = revive_topic(ctx.config.cluster)
    refused: list[OgiveError] = []

    def written(result: object) -> None:
        if isinstance(result, OgiveError):
            refused.append(result)

    for at in range(0, len(leases), _AT_ONCE):
        for lease in leases[at : at + _AT_ONCE]:
            ctx.put_now((_message(ctx, lease, topic),), written)
        await ctx.synced()
        if refused:
            raise refused[0]
    await _noted(ctx)
    if leases:
        log.info("wrote %d leases as checkpoints of %s", len(leases), topic)


async def _noted(ctx: Context) -> None:
    """From here on a lease is out only while its checkpoint is there. Raises OgiveError."""
    done = ctx.loop.create_future()

    def end(error: OgiveError | None) -> None:
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    ctx.leases.note_export(end)
    await done


def _message(ctx: Context, lease: Lease, topic: str) -> NewMessage:
    key, broker = lease.key, ctx.config.name
    unique_key = "@".join(
        map(str, (key.topic, key.queue_id, key.start, key.group, key.pop_time_ms, broker, "ck"))
    )
    properties = {
        PropertyName.TAGS: CHECKPOINT,
        PropertyName.UNIQ_KEY: unique_key,
        DELIVER_MS: str(max(0, key.pop_time_ms + lease.invisible_ms - _AHEAD_MS)),
    }
    return _timed(ctx, properties, topic, lease.revive_queue, dumps(checkpoint(lease, broker)))


def _timed(
    ctx: Context, properties: dict[str, str], topic: str, queue_id: int, body: bytes
) -> NewMessage:
    now_ms = ctx.now_ms()
    topic, queue_id = timed(
        properties, topic, queue_id,
        wall_ms=now_ms, store_ms=now_ms, max_delay_s=_ANY_TIME,
    )  # fmt: skip
    return NewMessage(
        topic, queue_id, body, encode_properties(properties), 0, 0, now_ms,
        ctx.store_host, ctx.store_host,
    )  # fmt: skip


# --- at the start ---------------------------------------------------------------------------------


def take_over(
    store: MessageStore, timers: Timers, offsets: OffsetTable, leases: LeaseBook, cluster: str
) -> list[tuple[Name, str]]:
    """Turn what is in the revive topic, or waits for it, into leases. Blocking.

    Return the names of the timer messages, and when they are due, for cancel(). Raises StoreError.
    """
    topic = revive_topic(cluster)
    found: dict[LeaseKey, Lease] = {}
    acks: list[tuple[LeaseKey, list[int]]] = []
    waiting = timers.waiting(topic)
    records = [record for one in waiting if (record := store.record_at(one.commitlog_offset))]
    for queue_id in range(128):
        end = store.max_offset(topic, queue_id)
        if not end:
            continue
        done = offsets.get(REVIVE_GROUP, topic, queue_id)
        records += _records(store, topic, queue_id, -1 if done is None else done)
        offsets.note(REVIVE_GROUP, topic, queue_id, end - 1)
    for record in records:
        message = decode_stored(record)
        properties = decode_properties(message.properties)
        place = real_place(properties) if message.topic != topic else None
        queue_id = message.queue_id if place is None else place[1]
        try:
            value = loads_object(message.body)
            if properties.get(PropertyName.TAGS) == CHECKPOINT:
                lease = lease_of(value, queue_id)
                found[lease.key] = lease
            elif properties.get(PropertyName.TAGS) in (ACK, BATCH_ACK):
                acks.append(_ack_of(value))
        except ProtocolError as exc:
            log.warning("a record of %s is left out: %s", topic, exc)
    for key, wanted in acks:
        if key in found:
            found[key].open &= ~found[key].bits(wanted)
    leases.take_over(found)
    if found:
        log.info("took over %d leases from %s", len(found), topic)
    return [(one.name, str(one.deliver_ms)) for one in waiting]


def _records(store: MessageStore, topic: str, queue_id: int, done: int) -> Iterator[bytes]:
    """Yield what follows the offset that is done."""
    at = max(done + 1, store.min_offset(topic, queue_id))
    while entries := store.entries(topic, queue_id, at, _AT_ONCE):
        for entry in entries:
            if (record := store.record_at(entry.commitlog_offset)) is not None:
                yield record
        at += len(entries)


def _ack_of(value: Mapping[str, Any]) -> tuple[LeaseKey, list[int]]:
    """Return the lease and the offsets that are acknowledged. Raises ProtocolError."""

    def member(name: str) -> Any:
        return value.get(name, value.get(_LONG[name]))

    try:
        key = LeaseKey(
            str(member("c")), str(member("t")), int(member("q")), int(member("so")),
            int(member("pt")),
        )  # fmt: skip
        return key, [int(offset) for offset in (member("aol") or [member("ao")])]
    except (TypeError, ValueError) as exc:
        raise ProtocolError(f"an acknowledgement makes no sense: {exc!r}") from None


def cancel(ctx: Context, waiting: Sequence[tuple[Name, str]]) -> None:
    """Take back timer messages whose checkpoints are leases now; a task does that for Apache's
    broker as well.
    """
    for name, _ in waiting:
        ctx.timers.forget(name)
    if waiting:
        ctx.spawn(_cancel(ctx, waiting), "take back checkpoints")


async def _cancel(ctx: Context, waiting: Sequence[tuple[Name, str]]) -> None:
    """Write that timer messages are taken back, as many at once as may wait for the writer."""
    try:
        for at in range(0, len(waiting), _AT_ONCE):
            _put_cancels(ctx, waiting[at : at + _AT_ONCE])
            await ctx.synced()
    except StoreError as exc:
        log.warning("checkpoints that are leases now stay in the log: %s", exc)


def _put_cancels(ctx: Context, waiting: Iterable[tuple[Name, str]]) -> None:
    """Raises StoreError."""
    for (topic, key, _), deliver_ms in waiting:
        properties = {
            DELETE_KEY: key,
            PropertyName.UNIQ_KEY: key,
            PropertyName.TAGS: "_RECALL_TAG_",
            DELIVER_MS: deliver_ms,
        }
        if int(deliver_ms) > ctx.now_ms():
            message = _timed(ctx, properties, topic, 0, b"0")
            ctx.put_now((message,), lambda result: None)
