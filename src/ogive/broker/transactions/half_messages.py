"""Half messages: how a producer's message becomes one, which message consumers get, and how its
copies are recognised.

Source: TransactionalMessageBridge.java, EndTransactionProcessor.java, 5.3.
"""

import hashlib
from collections.abc import Mapping
from typing import Final

from ogive.broker.deferred.waiting import stored_again
from ogive.broker.replies import Rejected
from ogive.errors import ResponseCode, StoreError
from ogive.model import HALF_TOPIC, PropertyName
from ogive.store.message_store import MessageStore
from ogive.store.types import NewMessage
from ogive.wire.codes import SysFlag
from ogive.wire.command import parse_long
from ogive.wire.message import StoredMessage, decode_properties, decode_stored, encode_properties

_MAX_IMMUNITY_S: Final = 7 * 24 * 3600
_NO_TRANSACTION: Final = ~int(SysFlag.TRANSACTION_MASK)
_COMMIT: Final = int(SysFlag.TRANSACTION_COMMIT)
_REAL_PLACE: Final = (
    f"{PropertyName.REAL_TOPIC}\x01%b\x02{PropertyName.REAL_QUEUE_ID}\x01%b\x02".encode()
)
_TRANSACTION_ID: Final = f"{PropertyName.TRANSACTION_ID}\x01".encode()
# not in what consumers get
_BESIDE: Final = (PropertyName.REAL_TOPIC, PropertyName.REAL_QUEUE_ID, PropertyName.RECORD_CRC)
# a third of what the call of a named tuple costs
_new_message: Final = tuple.__new__


def redirect_half(properties: dict[str, str], topic: str, queue_id: int) -> tuple[str, int]:
    """Return the topic and queue in which a message with TRAN_MSG=true is stored, and add its real
    place.

    Raises Rejected for one that no commit could deliver.
    """
    if not properties.get(PropertyName.PRODUCER_GROUP):
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL,
            "a transactional message needs the property PGROUP: nobody could end it",
        )
    if PropertyName.DELAY in properties or "TIMER_" in "\x02".join(properties):
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL, "a message is either transactional or delayed, not both"
        )
    for name in (PropertyName.TRANSACTION_CHECKS, PropertyName.TRANSACTION_FIRST_OFFSET):
        properties.pop(name, None)
    properties |= {
        PropertyName.TRANSACTION_ID: properties[PropertyName.UNIQ_KEY],
        PropertyName.REAL_TOPIC: topic,
        PropertyName.REAL_QUEUE_ID: str(queue_id),
    }
    return HALF_TOPIC, 0


def half_as_sent(message: NewMessage, key: str, own: bytes) -> tuple[NewMessage, NewMessage]:
    """Return the results of redirect_half() and for_consumers() for a message of SendKind.HALF: the
    half message, and the message for consumers.

    *own* are the broker's properties. The size of neither is checked.
    """
    topic, queue_id, body, text, sys_flag, *others = message
    separator = b"" if text[-1] == 2 else b"\x02"
    shared = b"".join((text, separator, _TRANSACTION_ID, key.encode(), b"\x02"))
    stored = shared + _REAL_PLACE % (topic.encode(), b"%d" % queue_id) + own
    flags = sys_flag & _NO_TRANSACTION
    half = _new_message(NewMessage, (HALF_TOPIC, 0, body, stored, flags, *others))
    return half, _ready_message(half, topic, queue_id, shared + own)


def identity_of(topic: str, properties: Mapping[str, str], born_ms: int, body_crc: int) -> bytes:
    """Return 16 bytes that all copies of one half message, and the message for consumers, have in
    common.
    """
    # a committed message has only its own
    real_topic = properties.get(PropertyName.REAL_TOPIC, topic)
    return identity(
        real_topic,
        properties.get(PropertyName.UNIQ_KEY, ""),
        properties.get(PropertyName.PRODUCER_GROUP, ""),
        born_ms,
        body_crc,
    )


def identity(topic: str, key: str, group: str, born_ms: int, body_crc: int) -> bytes:
    """Return identity_of() for a message for consumers of *topic*."""
    return hashlib.blake2b(
        f"{topic}\x02{key}\x02{group}\x02{born_ms}\x02{body_crc}".encode(), digest_size=16
    ).digest()


def identity_of_record(stored: StoredMessage) -> bytes:
    return identity_of(
        stored.topic,
        decode_properties(stored.properties),
        stored.born_timestamp_ms,
        stored.body_crc,
    )


def find_half_message(store: MessageStore, commitlog_offset: int) -> StoredMessage | None:
    """Return the half message; None if the log no longer has it. Raises StoreError if it cannot be
    read.
    """
    record = store.record_at(commitlog_offset)
    return decode_stored(record) if record is not None else None


def half_message(store: MessageStore, commitlog_offset: int) -> StoredMessage:
    """Return the half message at an offset. Raises StoreError if the log no longer has it."""
    half = find_half_message(store, commitlog_offset)
    if half is None:
        raise StoreError(f"the log has no half message at {commitlog_offset} any more")
    return half


def committed(half: StoredMessage, store_host: bytes) -> NewMessage:
    """Return the message for consumers.

    It keeps TRAN_MSG and __transactionId__, as in Java, whose clients use them.
    """
    message = as_it_is(half, store_host)._replace(prepared_transaction_offset=half.commitlog_offset)
    return for_consumers(message, decode_properties(half.properties))


def as_it_is(half: StoredMessage, store_host: bytes) -> NewMessage:
    """Return the half message for another place in its topic."""
    return stored_again(half, (half.topic, half.queue_id), half.properties, store_host)


def for_consumers(half: NewMessage, properties: Mapping[str, str]) -> NewMessage:
    """Return *half* in its committed form; *properties* are those of its client, and those that
    redirect_half() added.
    """
    topic, queue = properties[PropertyName.REAL_TOPIC], properties[PropertyName.REAL_QUEUE_ID]
    before, found, behind = half.properties.partition(
        _REAL_PLACE % (topic.encode(), queue.encode())
    )
    # as redirect_half() leaves them
    if found and before.endswith(b"\x02") and PropertyName.RECORD_CRC not in properties:
        text = before + behind
    else:
        own = decode_properties(half.properties)
        text = encode_properties(
            {name: value for name, value in own.items() if name not in _BESIDE}
        )
    return _ready_message(half, topic, int(queue), text)


def _ready_message(half: NewMessage, topic: str, queue_id: int, properties: bytes) -> NewMessage:
    """Return *half* for consumers of this queue, with these properties."""
    _, _, body, _, sys_flag, *others = half
    return _new_message(
        NewMessage,
        (topic, queue_id, body, properties, sys_flag & _NO_TRANSACTION | _COMMIT, *others),
    )


def immunity_ms(properties: Mapping[str, str]) -> int | None:
    """Return CHECK_IMMUNITY_TIME_IN_SECONDS in milliseconds, which applies until the first check.

    None if it is missing, -1 or not a number: then the broker's transaction timeout applies.
    """
    text = properties.get(PropertyName.TRANSACTION_IMMUNITY)
    if text is None or PropertyName.TRANSACTION_CHECKS in properties:
        return None
    try:
        seconds = parse_long(text)
    except ValueError:
        return None
    return None if seconds == -1 else max(0, min(seconds, _MAX_IMMUNITY_S)) * 1000
