"""Trace records: the records of clients in the trace topic about each message, and how to read
them.

Records end with the character 2, their fields with the character 1; a field without a value in Java
is the text "null". Source: TraceDataEncoder.java, 5.5.
"""

from dataclasses import dataclass
from typing import Final

from ogive.errors import ProtocolError
from ogive.model import split_keys

_FIELD, _RECORD = "\x01", "\x02"
# by the ordinals of ConsumeReturnType.java
CALL_RESULTS: Final = ("success", "timeout", "exception", "invalid", "later")
MESSAGE_KINDS: Final = ("normal", "half", "commit", "delay", "order")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRecord:
    """One step in the life of a message.

    *step* is ``sent``, ``delivered`` (to a listener), ``consumed`` (the listener ended) or
    ``transaction ended``. Fields that a step does not have are None; *request_id* joins a
    ``consumed`` with its ``delivered``. *client* is the address from which the client sent the
    record, *host* the broker's address for ``sent`` and ``transaction ended``.

    *result* says how a call ended (one of CALL_RESULTS), *error* why it failed, if the client wrote
    that.
    """

    step: str
    message_id: str
    at_ms: int | None
    group: str | None
    topic: str | None = None
    tag: str | None = None
    keys: tuple[str, ...] = ()
    client: str | None = None
    host: str | None = None
    cost_ms: int | None = None
    success: bool | None = None
    request_id: str | None = None
    retries: int | None = None
    message_type: str | None = None
    offset_id: str | None = None
    transaction_state: str | None = None
    result: str | None = None
    error: str | None = None


_STEPS: Final = ("sent", "transaction ended", "delivered", "consumed")


def by_time(record: TraceRecord) -> tuple[int, int]:
    """Return a sort key: steps within one millisecond are in the order in which they happen."""
    return record.at_ms or 0, _STEPS.index(record.step)


def decode_trace(body: bytes) -> list[TraceRecord]:
    """Read the records of one message of the trace topic. Unknown steps are left out.

    Raises ProtocolError.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as exc:
        raise ProtocolError(f"trace is not UTF-8: {exc.reason}") from None
    read = (_record(line.split(_FIELD)) for line in text.split(_RECORD) if line)
    return [record for record in read if record is not None]


def _record(fields: list[str]) -> TraceRecord | None:
    """Read fields by their place in each kind of record; newer clients append more."""
    kind, at = fields[0], _Fields(fields)
    match kind:
        case "Pub":
            return TraceRecord(
                step="sent",
                at_ms=at.number(1),
                group=at.text(3),
                topic=at.text(4),
                message_id=at.needed(5),
                tag=at.text(6),
                keys=at.keys(7),
                host=at.text(8),
                cost_ms=at.number(10),
                message_type=at.name(11, MESSAGE_KINDS),
                offset_id=at.text(12),
                success=at.flag(13),
            )
        case "SubBefore":
            return TraceRecord(
                step="delivered",
                at_ms=at.number(1),
                group=at.text(3),
                request_id=at.text(4),
                message_id=at.needed(5),
                retries=at.number(6),
                keys=at.keys(7),
            )
        case "SubAfter":
            return TraceRecord(
                step="consumed",
                request_id=at.text(1),
                message_id=at.needed(2),
                cost_ms=at.number(3),
                success=at.flag(4),
                keys=at.keys(5),
                result=at.name(6, CALL_RESULTS),
                at_ms=at.number(7),
                group=at.text(8),
                error=at.text(9),
            )
        case "EndTransaction":
            return TraceRecord(
                step="transaction ended",
                at_ms=at.number(1),
                group=at.text(3),
                topic=at.text(4),
                message_id=at.needed(5),
                tag=at.text(6),
                keys=at.keys(7),
                host=at.text(8),
                message_type=at.name(9, MESSAGE_KINDS),
                transaction_state=at.text(11),
            )
        case _:
            return None


class _Fields:
    """A record's fields by number; one that is absent, empty or "null" is None."""

    def __init__(self, fields: list[str]) -> None:
        self._fields = fields

    def text(self, place: int) -> str | None:
        value = self._fields[place] if place < len(self._fields) else ""
        return value if value not in ("", "null") else None

    def needed(self, place: int) -> str:
        value = self.text(place)
        if value is None:
            raise ProtocolError(f"trace record {self._fields[0][:40]!r} names no message")
        return value

    def keys(self, place: int) -> tuple[str, ...]:
        return split_keys(self.text(place) or "")

    def number(self, place: int) -> int | None:
        value = self.text(place)
        try:
            return None if value is None else int(value)
        except ValueError:
            raise ProtocolError(
                f"trace record {self._fields[0][:40]!r}: field {place} is not an integer"
            ) from None

    def flag(self, place: int) -> bool | None:
        value = self.text(place)
        return None if value is None else value == "true"

    def name(self, place: int, names: tuple[str, ...]) -> str | None:
        number = self.number(place)
        return names[number] if number is not None and 0 <= number < len(names) else None
