"""What delay levels and timers share: messages that wait in a topic of the broker's own, and are stored again where they belong."""

from collections.abc import Callable, Mapping
from typing import Final

from ogive.model import MAX_RESOURCE_LENGTH, PropertyName
from ogive.store.model import NewMessage, PutDone
from ogive.wire.message import StoredMessage

QUEUE_DIGITS: Final = 9  # of a queue id or a level as text; more fit no record
MAX_WAIT_S: Final = 60.0  # the clock may be set on, or the machine sleep: look again

Put = Callable[[tuple[NewMessage], PutDone], None]
"""Stores one message, and tells when it is safe."""


def real_place(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """REAL_TOPIC and REAL_QID; None where they are missing, or are no topic and no queue."""
    topic, queue = properties.get(PropertyName.REAL_TOPIC), properties.get(PropertyName.REAL_QUEUE_ID, "")
    if not topic or len(topic) > MAX_RESOURCE_LENGTH or not queue.isdecimal() or len(queue) > QUEUE_DIGITS:
        return None
    return topic, int(queue)


def stored_again(stored: StoredMessage, place: tuple[str, int], properties: bytes, store_host: bytes) -> NewMessage:
    """The message that stands for *stored* in *place*."""
    return NewMessage(
        *place, stored.body, properties, stored.sys_flag, stored.flag, stored.born_timestamp_ms, stored.born_host, store_host,
        stored.reconsume_times,
    )  # fmt: skip
