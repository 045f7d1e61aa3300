"""Messages of the SDKs to those of brokers, and back.

Source: SendMessageActivity.java, GrpcConverter.java, GrpcValidator.java, 5.5.

Differs from Apache's proxy
- Bodies that a remoting client has compressed are decompressed; a body of GZIP is stored plain.
- Properties of transactions and retries are not shown among the user's own.
"""

import gzip
import hashlib
import io
import time
import zlib
from collections.abc import Mapping
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from ogive.broker.state.topic_table import message_type
from ogive.errors import InvalidOption
from ogive.model import (
    RESERVED_PROPERTIES,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    MessageExt,
    PropertyName,
    is_system_group,
    validate_group,
    validate_topic,
)
from ogive.proxy import rocketmq_pb2 as pb
from ogive.proxy.status import Illegal
from ogive.wire.codes import SysFlag
from ogive.wire.pop import PopHandle

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
MAX_PROPERTIES: Final = 128
MAX_PROPERTIES_BYTES: Final = 16 * 1024
MAX_MESSAGE_GROUP: Final = 64
MAX_RECOVERY_S: Final = 3600
LITE_TOPIC: Final = "__LITE_TOPIC"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
_BORN_HOST, _BORN_TIMESTAMP = "__BORNHOST", "BORN_TIMESTAMP"
_DLQ_TOPIC, _DLQ_MESSAGE_ID = "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"
_GZIP: Final = b"\x1f\x8b"

RESERVED: Final = RESERVED_PROPERTIES - {
    PropertyName.TRANSACTION_ID,
    PropertyName.TRANSACTION_CHECKS,
    PropertyName.TRANSACTION_IMMUNITY,
    PropertyName.SHARDING_KEY,
} | {
    *(_BORN_HOST, _BORN_TIMESTAMP, _DLQ_TOPIC, _DLQ_MESSAGE_ID, LITE_TOPIC, PRIORITY),
    *("ORIGIN_GROUP", "INNER_MULTI_QUEUE_OFFSET"),
    *("TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_OUT_MS"),
    *("TIMER_DEL_UNIQKEY", "TIMER_DELAY_LEVEL"),
}
"""Names that a sender must not use. Source: MessageConst.STRING_HASH_SET."""
_HIDDEN: Final = RESERVED | RESERVED_PROPERTIES | {TRACE_CONTEXT, "INNER_MULTI_DISPATCH"}

# as Apache's proxy orders them, see message_type()
TYPES: Final = {
    "NORMAL": pb.NORMAL,
    "FIFO": pb.FIFO,
    "DELAY": pb.DELAY,
    "TRANSACTION": pb.TRANSACTION,
    "LITE": pb.LITE,
    "PRIORITY": pb.PRIORITY,
}


# --- names ----------------------------------------------------------------------------------------


def name_of(resource: pb.Resource) -> str:
    """Return the name as brokers know it, with its namespace."""
    if resource.resource_namespace:
        return f"{resource.resource_namespace}%{resource.name}"
    return resource.name


def resource(name: str) -> pb.Resource:
    namespace, separator, rest = name.partition("%")
    if separator and namespace:
        return pb.Resource(resource_namespace=namespace, name=rest)
    return pb.Resource(name=name)


def topic_of(asked: pb.Resource) -> str:
    """Return the name of a topic. Raises Illegal."""
    name = name_of(asked)
    try:
        if not name.strip():
            raise InvalidOption("a topic is needed")
        validate_topic(name)
        if name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX):
            raise InvalidOption(f"topic {name} is the broker's own")
    except InvalidOption as exc:
        raise Illegal(pb.ILLEGAL_TOPIC, str(exc)) from None
    return name


def group_of(asked: pb.Resource) -> str:
    """Return the name of a consumer group. Raises Illegal."""
    name = name_of(asked)
    try:
        if not name.strip():
            raise InvalidOption("a consumer group is needed")
        validate_group(name)
        if is_system_group(name):
            raise InvalidOption(f"group {name} is the broker's own")
    except InvalidOption as exc:
        raise Illegal(pb.ILLEGAL_CONSUMER_GROUP, str(exc)) from None
    return name


# --- from a client --------------------------------------------------------------------------------


def _is_control(text: str) -> bool:
    return any(ord(character) < 32 or ord(character) == 127 for character in text)


def check_message(message: pb.Message) -> None:
    """Raise Illegal for a message that no broker would store, or no consumer could get."""
    system, size = message.system_properties, len(message.body)
    if not size:
        raise Illegal(pb.MESSAGE_BODY_EMPTY, "the body is empty: a message needs at least one byte")
    if size > MAX_BODY_BYTES:
        raise Illegal(
            pb.MESSAGE_BODY_TOO_LARGE, f"a body of {size} bytes: at most {MAX_BODY_BYTES}"
        )
    if not system.message_id.strip() or _is_control(system.message_id):
        raise Illegal(
            pb.ILLEGAL_MESSAGE_ID, "a message needs an id, which has no control characters"
        )
    tag = system.tag
    if system.HasField("tag") and (not tag.strip() or "|" in tag or _is_control(tag)):
        raise Illegal(
            pb.ILLEGAL_MESSAGE_TAG,
            f"tag {tag[:80]!r}: must have a character, and neither | nor control characters",
        )
    for key in system.keys:
        if not key.strip() or " " in key or _is_control(key):
            raise Illegal(
                pb.ILLEGAL_MESSAGE_KEY,
                f"key {key[:80]!r}: must have a character, and neither blanks nor control "
                "characters",
            )
    group = system.message_group
    if system.HasField("message_group") and (
        not group.strip() or len(group.encode()) >= MAX_MESSAGE_GROUP or _is_control(group)
    ):
        raise Illegal(
            pb.ILLEGAL_MESSAGE_GROUP,
            f"message group {group[:80]!r}: must have a character, less than {MAX_MESSAGE_GROUP} "
            "bytes, and no control characters",
        )
    for name in ("born_timestamp", "delivery_timestamp"):
        at = getattr(system, name)
        try:
            at.ToMilliseconds()
        except ValueError as exc:
            raise Illegal(pb.BAD_REQUEST, f"{name}: {exc}") from None
    _check_properties(message.user_properties, system)
    recovery = system.orphaned_transaction_recovery_duration
    if recovery.ToMilliseconds() > MAX_RECOVERY_S * 1000 or recovery.seconds < 0:
        raise Illegal(
            pb.BAD_REQUEST,
            f"a transaction recovery time of {recovery.seconds} s: must be between 0 and "
            f"{MAX_RECOVERY_S}",
        )


def _check_properties(user: Mapping[str, str], system: pb.SystemProperties) -> None:
    if len(user) > MAX_PROPERTIES:
        raise Illegal(
            pb.MESSAGE_PROPERTIES_TOO_LARGE, f"{len(user)} properties: at most {MAX_PROPERTIES}"
        )
    size = len(system.tag.encode()) + sum(len(key.encode()) for key in system.keys)
    for name, value in user.items():
        if name in RESERVED or not name or _is_control(name) or _is_control(value):
            raise Illegal(
                pb.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"property {name[:80]!r}: the name is reserved, or there are control characters",
            )
        size += len(name.encode()) + len(value.encode())
    if size > MAX_PROPERTIES_BYTES:
        raise Illegal(
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties of {size} bytes: at most {MAX_PROPERTIES_BYTES}",
        )


def to_properties(message: pb.Message, topic: str, peer: str) -> dict[str, str]:
    """Return the properties of a message as brokers store them."""
    system = message.system_properties
    properties = {name: value for name, value in message.user_properties.items() if value}
    texts = {
        PropertyName.UNIQ_KEY: system.message_id,
        PropertyName.TAGS: system.tag,
        PropertyName.KEYS: " ".join(system.keys),
        PropertyName.SHARDING_KEY: system.message_group,
        LITE_TOPIC: system.lite_topic,
        TRACE_CONTEXT: system.trace_context,
        _BORN_HOST: system.born_host or peer,
        _BORN_TIMESTAMP: str(system.born_timestamp.ToMilliseconds()),
    }
    if system.message_type == pb.TRANSACTION:
        texts[PropertyName.TRANSACTION_PREPARED] = "true"
        texts[PropertyName.PRODUCER_GROUP] = topic
        seconds = system.orphaned_transaction_recovery_duration.seconds
        texts[PropertyName.TRANSACTION_IMMUNITY] = str(seconds) if seconds else ""
    if system.HasField("delivery_timestamp"):
        texts[PropertyName.TIMER_DELIVER_MS] = str(system.delivery_timestamp.ToMilliseconds())
    if system.HasField("priority"):
        texts[PRIORITY] = str(max(0, system.priority))
    for name, text in texts.items():
        if _is_control(text):
            raise Illegal(
                pb.ILLEGAL_MESSAGE_PROPERTY_KEY, f"control characters in the text for {name}"
            )
        if text:
            properties[name] = text
    return properties


def stored_body(message: pb.Message) -> tuple[bytes, int]:
    """Return the body to store, and the flags for it.

    Remoting clients inflate zlib only: a body of gzip is stored plain, if it is one.
    """
    body = message.body
    if message.system_properties.body_encoding != pb.GZIP:
        return body, 0
    if not body.startswith(_GZIP):
        return body, SysFlag.COMPRESSED
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as packed:
            plain = packed.read(MAX_BODY_BYTES + 1)
    except (OSError, EOFError, zlib.error):
        return body, SysFlag.COMPRESSED
    if len(plain) > MAX_BODY_BYTES:
        raise Illegal(
            pb.MESSAGE_BODY_TOO_LARGE, f"the body inflates to more than {MAX_BODY_BYTES} bytes"
        )
    return plain, 0


def type_of(properties: Mapping[str, str]) -> str:
    """Return the type of a message by its properties."""
    found = message_type(properties)
    if found in ("NORMAL", "FIFO") and PropertyName.SHARDING_KEY not in properties:
        return (
            "PRIORITY" if PRIORITY in properties else "LITE" if LITE_TOPIC in properties else found
        )
    return found


# --- to a client ----------------------------------------------------------------------------------


def handle_text(handle: PopHandle, message: MessageExt) -> str:
    """Return a receipt handle; its last part says where the message is in the commit log."""
    return f"{handle} {message.commitlog_offset}"


def to_message(message: MessageExt, topic: str) -> pb.Message:
    """Return a message as SDKs read it, without a receipt handle."""
    properties = message.properties
    found = pb.Message(topic=resource(topic), body=message.body)
    for name, value in properties.items():
        if name not in _HIDDEN:
            found.user_properties[name] = value
    system = found.system_properties
    system.message_id = message.id
    system.keys.extend(message.keys)
    system.body_digest.type = pb.MD5
    system.body_digest.checksum = hashlib.md5(message.body).hexdigest().upper()  # noqa: S324
    system.body_encoding = pb.GZIP if message.is_compressed else pb.IDENTITY
    system.message_type = TYPES[type_of(properties)]
    born_ms = max(0, min(message.born_timestamp_ms, _LATEST_MS))
    system.born_timestamp.FromMilliseconds(_number(properties.get(_BORN_TIMESTAMP), born_ms))
    system.born_host = properties.get(_BORN_HOST, message.born_host)
    system.store_timestamp.FromMilliseconds(message.store_timestamp_ms)
    system.store_host = message.store_host
    system.queue_id = message.queue.queue_id
    system.queue_offset = message.queue_offset
    system.delivery_attempt = message.reconsume_times + 1
    if message.tag is not None:
        system.tag = message.tag
    if message.sharding_key is not None:
        system.message_group = message.sharding_key
    if TRACE_CONTEXT in properties:
        system.trace_context = properties[TRACE_CONTEXT]
    if PropertyName.TIMER_DELIVER_MS in properties:
        system.delivery_timestamp.FromMilliseconds(
            _number(properties[PropertyName.TIMER_DELIVER_MS], 0)
        )
    if PRIORITY in properties:
        system.priority = min(_number(properties[PRIORITY], 0), _MOST_PRIORITY)
    if _DLQ_TOPIC in properties:
        system.dead_letter_queue.topic = properties[_DLQ_TOPIC]
        system.dead_letter_queue.message_id = properties.get(_DLQ_MESSAGE_ID, "")
    return found


def now_timestamp() -> Timestamp:
    found = Timestamp()
    found.FromMilliseconds(time.time_ns() // 1_000_000)
    return found


_LONGEST: Final = 18
# Timestamp ends with the year 9999
_LATEST_MS: Final = 253_402_300_799_000
_MOST_PRIORITY: Final = 2**31 - 1


def _number(text: str | None, default: int) -> int:
    """Return the number that any sender may have written."""
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > _LONGEST:
        return default
    return min(int(text), _LATEST_MS)
