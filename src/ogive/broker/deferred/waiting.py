"""Store waiting messages again under their real topic: shared by delay levels, timers and
transactions.
"""

from collections.abc import Callable
from typing import Final

from ogive.store.types import NewMessage, PutDone
from ogive.wire.message import StoredMessage

# the clock may be set on, or the machine sleep: look again, which takes some microseconds
MAX_WAIT_S: Final = 1.0

Put = Callable[[tuple[NewMessage], PutDone], None]
"""Stores one message, and reports when it is safe."""

Served = Callable[[str, int], int]
"""Returns the queue id of a topic for a message that was sent to another queue id."""


def stored_again(
    stored: StoredMessage, place: tuple[str, int], properties: bytes, store_host: bytes
) -> NewMessage:
    """Return *stored* as a new message for *place*."""
    return NewMessage(
        *place,
        stored.body,
        properties,
        stored.sys_flag,
        stored.flag,
        stored.born_timestamp_ms,
        stored.born_host,
        store_host,
        stored.reconsume_times,
    )
