"""Admin inside a namespace of 4.x: arguments and results have plain names, and lists show only what
is in the namespace.

Every public call of ``Admin`` translates at its border; between calls, and to brokers, names are
those on the wire.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, TypeVar

from ogive.client.admin.records import GroupSummary, TopicSummary
from ogive.client.namespace import Namespace
from ogive.model import MessageExt, MessageQueue, is_system_group

C = TypeVar("C", bound=type)

_inside: Final[ContextVar[bool]] = ContextVar("inside an operator's call", default=False)
# arguments that name a topic or a group
_NAMES: Final = frozenset({"topic", "group", "source", "target"})
# the same in results
_NAME_FIELDS: Final = frozenset({"name", "topic", "group", "groups", "subscriptions", "topics"})


def bordered(cls: C) -> C:
    """*cls*, with a border around each of its public coroutines."""
    for name, method in inspect.getmembers(cls, inspect.iscoroutinefunction):
        if not name.startswith("_") and name not in ("start", "close"):
            setattr(cls, name, _border(method))
    return cls


def _border(method: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        namespace: Namespace = self._namespace
        if not namespace or _inside.get():
            return await method(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        bound.arguments.update(
            {
                name: wrapped(name, value, namespace)
                for name, value in bound.arguments.items()
                if name != "self"
            }
        )
        token = _inside.set(True)
        try:
            result = await method(*bound.args, **bound.kwargs)
        finally:
            _inside.reset(token)
        if isinstance(result, list):
            result = [row for row in result if _is_ours(row, namespace)]
        return stripped(result, namespace)

    return call


def wrapped(name: str, value: Any, namespace: Namespace) -> Any:
    """An argument as the wire knows it."""
    if isinstance(value, MessageQueue):
        return namespace.wrap_queue(value)
    if isinstance(value, Mapping):
        return {wrapped("", key, namespace): item for key, item in value.items()}
    if isinstance(value, MessageExt):
        return replace(
            value, topic=namespace.wrap(value.topic), queue=namespace.wrap_queue(value.queue)
        )
    return namespace.wrap(value) if name in _NAMES and isinstance(value, str) else value


def _is_ours(row: Any, namespace: Namespace) -> bool:
    if isinstance(row, TopicSummary):
        return row.kind == "system" or namespace.holds(row.name)
    return (
        not isinstance(row, GroupSummary) or is_system_group(row.name) or namespace.holds(row.name)
    )


def stripped(value: Any, namespace: Namespace) -> Any:
    """A result as the application knows it."""
    if isinstance(value, MessageQueue):
        return namespace.strip_queue(value)
    if isinstance(value, MessageExt):
        return namespace.strip_message(value)
    if isinstance(value, Mapping):
        return {stripped(key, namespace): stripped(item, namespace) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([stripped(item, namespace) for item in value])
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value,
            **{
                one.name: _field(one.name, getattr(value, one.name), namespace)
                for one in fields(value)
                if one.init
            },
        )
    return value


def _field(name: str, value: Any, namespace: Namespace) -> Any:
    if name not in _NAME_FIELDS:
        return stripped(value, namespace)
    if isinstance(value, Mapping):
        return {namespace.strip(key): item for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(
            namespace.strip(item) if isinstance(item, str) else stripped(item, namespace)
            for item in value
        )
    return namespace.strip(value) if isinstance(value, str) else stripped(value, namespace)
