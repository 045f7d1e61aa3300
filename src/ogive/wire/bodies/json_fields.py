"""Reading and writing the fields of JSON bodies."""

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from ogive.errors import ProtocolError
from ogive.model import MessageQueue
from ogive.wire import java_json

T = TypeVar("T")

MAX_REGISTERED_TOPICS: Final = 20_000
PERM_INHERIT, PERM_WRITE, PERM_READ = 1, 2, 4


def dumps(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def loads_object(raw: bytes | str) -> dict[str, Any]:
    """A JSON object that a peer sent, also in Java's dialect. Raises ProtocolError."""
    return as_object(java_json.loads(raw, bounded=True), "body")


def loads_table(raw: bytes | str) -> dict[str, Any]:
    """The same of an answer with a table of all queues, topics or groups, which only commands and
    the console read.
    """
    return as_object(
        java_json.loads(raw, bounded=True, java_values=java_json.MAX_TABLE_VALUES), "body"
    )


def as_object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolError(f"{name} is no JSON object")
    return value


def get_field(obj: Mapping[str, Any], name: str, kind: type[T], default: T) -> T:
    """A member of the right type; absent and null mean the default.

    Numbers may also stand as text.
    """
    value = obj.get(name)
    if value is None:
        return default
    if kind is int and isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            raise ProtocolError(f"member {name} is no integer") from None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ProtocolError(f"member {name} is no {kind.__name__}")
    if isinstance(value, int) and not -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
        raise ProtocolError(f"member {name} is outside 64 bits")
    return value


def get_list(
    obj: Mapping[str, Any], name: str, item: Callable[[Any], T], most: int | None = None
) -> list[T]:
    """*most*: with more nothing is made of any of them.

    A list of empty objects is read 50 times faster than they become ours.
    """
    values = get_field(obj, name, list, [])
    if most is not None and len(values) > most:
        raise ProtocolError(f"member {name} holds {len(values)}, {most} are the limit")
    return [item(value) for value in values]


def as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ProtocolError("a list of names holds something that is no text")
    return value


def queue_to_json(queue: MessageQueue) -> dict[str, Any]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def queue_from_json(value: Any) -> MessageQueue:
    obj = as_object(value, "message queue")
    return MessageQueue(
        get_field(obj, "topic", str, ""),
        get_field(obj, "brokerName", str, ""),
        get_field(obj, "queueId", int, 0),
    )


def queue_map_dumps(table: Iterable[tuple[MessageQueue, str]]) -> str:
    """A map keyed by queue as Java's parser wants it: the key is an object, unquoted.

    Values are JSON text already.
    """
    # a name stands in the keys of many queues
    quoted = functools.cache(json.dumps)
    rows = [
        f'{{"brokerName":{quoted(queue.broker_name)},"queueId":{queue.queue_id},'
        f'"topic":{quoted(queue.topic)}}}:{value}'
        for queue, value in table
    ]
    return f"{{{','.join(rows)}}}"
