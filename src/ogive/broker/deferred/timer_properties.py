"""The properties of messages with a delivery time, and the handle that cancels one.

Source: HookUtils.transformTimerMessage, RecallMessageHandle.java, 5.5.

Behaviour
- Of TIMER_DELAY_SEC, TIMER_DELAY_MS and TIMER_DELIVER_MS the first present one counts. A time in
  the past means now.
- TIMER_DELIVER_MS is a time of the machine's clock. A delay is measured, and its end given, by the
  store's clock, which is never set back: so it may be ahead of the machine's.

Differs from Java
- TIMER_OUT_MS is written as Java writes it (whole seconds, an exact one a second earlier), but
  delivery is at the exact time, which is in TIMER_DELIVER_MS.
"""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from ogive.broker.replies import Rejected
from ogive.errors import ResponseCode
from ogive.model import RETRY_PREFIX, TIMER_TOPIC, PropertyName
from ogive.store.record import strip_crc
from ogive.wire.command import parse_long
from ogive.wire.message import MAX_PROPERTIES_BYTES, StoredMessage

DELAY_SEC: Final = "TIMER_DELAY_SEC"
DELAY_MS: Final = "TIMER_DELAY_MS"
DELIVER_MS: Final = "TIMER_DELIVER_MS"
OUT_MS: Final = "TIMER_OUT_MS"
DELETE_KEY: Final = "TIMER_DEL_UNIQKEY"
_PRECISION_MS: Final = 1000
_TIME_DIGITS: Final = 18
TIMES_BYTES: Final = len("TIMER_ENQUEUE_MS__TIMER_DEQUEUE_MS___") + 2 * _TIME_DIGITS
"""Largest growth of a message at its delivery."""

# characters; clients' own have 32 or 56
_LONG_KEY: Final = 128
Name = tuple[str, str, str]
"""Topic, unique key and TIMER_OUT_MS: the name by which a message is recalled, so only clients that
may write to its topic can do so. Built by name_of().
"""


def name_of(topic: str, unique_key: str, out_ms: str) -> Name:
    """Replace a long key by a digest: the name of each waiting message is in memory."""
    if len(unique_key) > _LONG_KEY:
        # no key holds \x02
        unique_key = (
            "\x02"
            + hashlib.blake2b(unique_key.encode(errors="surrogatepass"), digest_size=16).hexdigest()
        )
    return topic, unique_key, out_ms


def timed(
    properties: dict[str, str],
    topic: str,
    queue_id: int,
    *,
    wall_ms: int,
    store_ms: int,
    max_delay_s: float,
) -> tuple[str, int]:
    """Return the topic and queue in which a message with these properties is stored.

    A message that has to wait gets TIMER_OUT_MS, REAL_TOPIC and REAL_QID. *wall_ms* is the time of
    the machine's clock, *store_ms* that of the store's. Raises Rejected for a time that is not a
    number, or too far away.
    """
    if OUT_MS in properties or topic == TIMER_TOPIC:
        # it has waited already, and is sent again with all its properties
        return topic, queue_id
    now_ms = store_ms if is_delay(properties) else wall_ms
    deliver_ms = _asked_time(properties, now_ms)
    if deliver_ms is None:
        return topic, queue_id
    if deliver_ms <= now_ms:
        if DELETE_KEY in properties:
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL, "too late to take back a message whose time has come"
            )
        return topic, queue_id
    if deliver_ms - now_ms > max_delay_s * 1000:
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL,
            "timer message illegal, the delay time should not be bigger than the max delay "
            f"{max_delay_s * 1000:.0f}ms",
        )
    out_ms = deliver_ms // _PRECISION_MS * _PRECISION_MS
    if out_ms == deliver_ms:
        out_ms -= _PRECISION_MS
    properties |= {
        DELIVER_MS: str(deliver_ms),
        OUT_MS: str(out_ms),
        PropertyName.REAL_TOPIC: topic,
        PropertyName.REAL_QUEUE_ID: str(queue_id),
    }
    return TIMER_TOPIC, 0


def _asked_time(properties: Mapping[str, str], now_ms: int) -> int | None:
    for name, unit, start in ((DELAY_SEC, 1000, now_ms), (DELAY_MS, 1, now_ms), (DELIVER_MS, 1, 0)):
        text = properties.get(name)
        if text is not None:
            try:
                return start + parse_long(text) * unit
            except ValueError:
                raise Rejected(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"timer message illegal, property {name} is not a number: {text[:40]!r}",
                ) from None
    return None


def is_delay(properties: Mapping[str, str]) -> bool:
    """Return True if a message with these properties waits for a duration, not until a time: then
    its TIMER_DELIVER_MS is a time of the store's clock.
    """
    return DELAY_SEC in properties or DELAY_MS in properties


def is_time(text: str) -> bool:
    """Return True if *text* is a time in milliseconds."""
    return text.isdecimal() and len(text) <= _TIME_DIGITS


def exact_time(out_ms: int, deliver_ms: str) -> int:
    """Return the requested time, if it is still known; otherwise the end of the second that begins
    at TIMER_OUT_MS: late, never early.
    """
    try:
        exact_ms = parse_long(deliver_ms)
    except ValueError:
        exact_ms = 0
    return exact_ms if out_ms < exact_ms <= out_ms + _PRECISION_MS else out_ms + _PRECISION_MS


def delivered_properties(stored: StoredMessage, now_ms: int) -> bytes:
    """Add TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS, as Java does, if there is room."""
    properties = strip_crc(stored.properties)
    end = b"" if properties.endswith(b"\x02") else b"\x02"
    times = b"%bTIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02" % (
        end,
        stored.store_timestamp_ms,
        now_ms,
    )
    return (
        properties + times if len(properties) + len(times) <= MAX_PROPERTIES_BYTES else properties
    )


# --- taking back ----------------------------------------------------------------------------------


def recall_handle(properties: Mapping[str, str], broker_name: str) -> str | None:
    """Return the handle that recalls this message while it waits for its time.

    The additional millisecond is Java's: it finds the slot again.
    """
    out_ms, topic = properties.get(OUT_MS), properties.get(PropertyName.REAL_TOPIC)
    if out_ms is None or topic is None or topic.startswith(RETRY_PREFIX):
        return None
    text = f"v1 {topic} {broker_name} {int(out_ms) + 1} {properties.get(PropertyName.UNIQ_KEY, '')}"
    return base64.urlsafe_b64encode(text.encode()).decode()


class RecallHandle(NamedTuple):
    topic: str
    broker_name: str
    time_ms: int
    unique_key: str

    @property
    def name(self) -> Name:
        """See Name."""
        return name_of(self.topic, self.unique_key, str(self.time_ms - 1))


def read_handle(text: str) -> RecallHandle:
    """Read the parts of a recall handle. Raises ValueError for one that no broker issued."""
    try:
        if "+" in text or "/" in text:
            raise ValueError("not of the alphabet for URLs")
        padded = text if text.endswith("=") else text + "=" * (-len(text) % 4)
        words = (
            base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True)
            .decode()
            .split(" ", 4)
        )
        # The key is the client's, and may hold spaces.
        version, topic, broker_name, text_ms, unique_key = words
        time_ms = parse_long(text_ms)
    except (UnicodeError, binascii.Error, ValueError):
        raise ValueError("recall handle is invalid") from None
    if version != "v1" or not unique_key:
        raise ValueError("recall handle is invalid")
    return RecallHandle(topic, broker_name, time_ms, unique_key)
