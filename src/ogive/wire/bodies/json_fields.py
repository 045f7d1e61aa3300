"""Codec for JSON bodies, by the declarations of their dataclasses, and its parts."""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Self, TypeVar, cast

from ogive.errors import ProtocolError
from ogive.model import MessageQueue
from ogive.wire import java_json
from ogive.wire.headers.codec import camel

T = TypeVar("T")

MAX_REGISTERED_TOPICS: Final = 20_000
PERM_INHERIT, PERM_WRITE, PERM_READ = 1, 2, 4


class JsonObject:
    """Base of dataclasses that are JSON objects, with a member for each field.

    A member's name is the field's in camelCase unless ``member`` says otherwise. If a member is
    absent or null, the field gets its default, or "", 0 or False if it has none. None is not
    written.
    """

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return the members in the order of their names, as Java writes them."""
        return {
            one.wire: value if one.write is None else one.write(value)
            for one in _members(type(self))
            if (value := getattr(self, one.name)) is not None
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read an object. Raises ProtocolError."""
        obj, make = as_object(value, cls.__name__), cast(Callable[..., Self], cls)
        return make(**{one.name: one.read(obj, one.wire) for one in _members(cls)})

    def encode(self) -> bytes:
        return dumps(self.to_json())

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Read a body. Raises ProtocolError."""
        return cls.from_json(loads_object(body))


Read = Callable[[Mapping[str, Any], str], Any]
"""Function that reads a member of an object by its name. Raises ProtocolError."""


def member(
    wire: str = "",
    *,
    read: Read | None = None,
    write: Callable[[Any], Any] | None = None,
    absent: Any = dataclasses.MISSING,
    **options: Any,
) -> Any:
    """Declare a field whose member has another name, form, or default."""
    metadata = {"wire": wire, "read": read, "write": write, "absent": absent}
    return dataclasses.field(metadata=metadata, **options)


def listed(
    wire: str,
    item: Callable[[Any], Any],
    write: Callable[[Any], Any] | None = None,
    *,
    most: int | None = None,
    **options: Any,
) -> Any:
    """Declare a field that is a tuple of *item*s; see get_list()."""
    return member(
        wire,
        read=lambda obj, name: tuple(get_list(obj, name, item, most)),
        write=list if write is None else lambda values: [write(value) for value in values],
        **options,
    )


class _Member(NamedTuple):
    name: str
    wire: str
    read: Read
    write: Callable[[Any], Any] | None


def _declared(cls: Any) -> tuple[_Member, ...]:
    found = [
        _Member(
            field.name,
            field.metadata.get("wire") or camel(field.name),
            field.metadata.get("read") or _scalar(field),
            field.metadata.get("write"),
        )
        for field in dataclasses.fields(cls)
    ]
    return tuple(sorted(found, key=lambda one: one.wire))


_members: Final[Callable[[Any], tuple[_Member, ...]]] = functools.cache(_declared)


def _scalar(field: "dataclasses.Field[Any]") -> Read:
    kind = cast(type[Any], field.type)
    absent = field.metadata.get("absent", dataclasses.MISSING)
    if absent is dataclasses.MISSING:
        absent = kind() if field.default is dataclasses.MISSING else field.default
    return lambda obj, name: get_field(obj, name, kind, absent)


def dumps(value: Any) -> bytes:
    """Return *value* as compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def loads_object(raw: bytes | str) -> dict[str, Any]:
    """Read a JSON object from a peer, also in Java's dialect. Raises ProtocolError."""
    return as_object(java_json.loads(raw, bounded=True), "body")


def loads_table(raw: bytes | str) -> dict[str, Any]:
    """Read a JSON object with a table of all queues, topics or groups. Raises ProtocolError.

    It may have more values than one for loads_object(), because only commands and the console read
    it.
    """
    return as_object(
        java_json.loads(raw, bounded=True, java_values=java_json.MAX_TABLE_VALUES), "body"
    )


def as_object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolError(f"{name} is not a JSON object")
    return value


def get_field(obj: Mapping[str, Any], name: str, kind: type[T], default: T) -> T:
    """Return a member of the right type; absent and null mean the default.

    A number may also be text. Raises ProtocolError.
    """
    value = obj.get(name)
    if value is None:
        return default
    if kind is int and isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            raise ProtocolError(f"member {name} is not an integer") from None
    if isinstance(value, int):
        check_long(value, f"member {name}")
    if kind is float and type(value) is int:
        return cast(T, float(value))
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ProtocolError(f"member {name} is not of type {kind.__name__}")
    return value


def check_long(value: int, name: str) -> int:
    """Return *value*. Raises ProtocolError if it is not a number of 64 bits."""
    if not -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
        raise ProtocolError(f"{name} is outside 64 bits")
    return value


def get_list(
    obj: Mapping[str, Any], name: str, item: Callable[[Any], T], most: int | None = None
) -> list[T]:
    """Return a member that is a list of *item*s; absent and null mean an empty one.

    Raises ProtocolError for more than *most*, before any item is created: parsing a list of empty
    objects is 50 times faster than creating our objects.
    """
    values = get_field(obj, name, list, [])
    if most is not None and len(values) > most:
        raise ProtocolError(f"member {name} holds {len(values)}, {most} are the limit")
    return [item(value) for value in values]


def get_table(obj: Mapping[str, Any], name: str, row: Callable[[Any], T]) -> dict[str, T]:
    """Return a member that is a table with names as keys; absent and null mean an empty one."""
    return {str(key): row(value) for key, value in get_field(obj, name, dict, {}).items()}


def get_queue_table(
    obj: Mapping[str, Any], name: str, row: Callable[[Any], T]
) -> dict[MessageQueue, T]:
    """Return a member that is a table with queues as keys, as queue_map_dumps() writes it."""
    return {
        queue_from_json(java_json.loads(key) if isinstance(key, str) else key): row(value)
        for key, value in get_field(obj, name, dict, {}).items()
    }


def as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ProtocolError("a list of names holds something that is not text")
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
    """Return a map with queues as keys in the form that Java's parser expects: the keys are
    unquoted objects.

    Values are already JSON text.
    """
    # many keys have the same names
    quoted = functools.cache(json.dumps)
    rows = [
        f'{{"brokerName":{quoted(queue.broker_name)},"queueId":{queue.queue_id},'
        f'"topic":{quoted(queue.topic)}}}:{value}'
        for queue, value in table
    ]
    return f"{{{','.join(rows)}}}"
