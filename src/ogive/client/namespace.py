"""Namespaces of 4.x: names that carry a prefix on the wire, ``shop%Orders``, and none in the
application.

Source: NamespaceUtil.java, 5.3. Differs from Java: a name with the prefix is never prefixed again,
whoever wrote it.
"""

from dataclasses import dataclass, replace
from typing import Final

from ogive.errors import InvalidOption
from ogive.model import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    MessageExt,
    MessageQueue,
)

SEPARATOR: Final = "%"
_SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"


def validate_namespace(name: str | None) -> None:
    """Raise InvalidOption for an invalid namespace."""
    if name is not None and (
        not name or not name.isascii() or not name.replace("-", "").replace("_", "").isalnum()
    ):
        raise InvalidOption(f"namespace {name!r} may hold only letters, digits, - and _")


@dataclass(frozen=True, slots=True)
class Namespace:
    """Mapping of names in the application to names on the wire (``wrap``), and back (``strip``).

    Without a name it leaves everything alone.
    """

    name: str = ""

    def __bool__(self) -> bool:
        return bool(self.name)

    def wrap(self, name: str) -> str:
        """Return the name of a topic or group on the wire. The brokers' own stay as they are; retry
        and dead-letter topics keep their prefix first.
        """
        kind, bare = _split(name)
        if not self.name or not bare or _is_system(bare) or bare.startswith(self.name + SEPARATOR):
            return name
        return f"{kind}{self.name}{SEPARATOR}{bare}"

    def strip(self, name: str) -> str:
        kind, bare = _split(name)
        return kind + bare.removeprefix(self.name + SEPARATOR) if self.name else name

    def holds(self, name: str) -> bool:
        """Return True if a name on the wire belongs to this namespace."""
        return not self.name or _split(name)[1].startswith(self.name + SEPARATOR)

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        return (
            MessageQueue(self.wrap(queue.topic), queue.broker_name, queue.queue_id)
            if self.name
            else queue
        )

    def strip_queue(self, queue: MessageQueue) -> MessageQueue:
        return (
            MessageQueue(self.strip(queue.topic), queue.broker_name, queue.queue_id)
            if self.name
            else queue
        )

    def strip_message(self, message: MessageExt) -> MessageExt:
        """Return the message as the application knows it; the properties are as they were sent."""
        if not self.name:
            return message
        return replace(
            message, topic=self.strip(message.topic), queue=self.strip_queue(message.queue)
        )


def _split(name: str) -> tuple[str, str]:
    """Return the prefix of a retry or dead-letter topic, and the rest."""
    for kind in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(kind):
            return kind, name[len(kind) :]
    return "", name


def _is_system(name: str) -> bool:
    return name in SYSTEM_TOPICS or name.startswith((SYSTEM_TOPIC_PREFIX, _SYSTEM_GROUP_PREFIX))
