"""Attributes of topics and groups: which exist, how commands change them, and which messages
message.type admits.

Source: AttributeParser.java, AttributeUtil.java, TopicAttributes.java,
SubscriptionGroupAttributes.java, TopicMessageType.java, DefaultTopicMessageTypeValidator.java, 5.5.
As there, reserve.time is refused by a store without tiers (TopicConfigManager.java).

Differs from Java
- enforce_message_types makes the broker refuse messages of another type than message.type; in Java
  only the proxy does. Without it, as in Java's broker, every topic accepts every message.
- FIFO also takes messages without a sharding key: Apache's remoting clients choose the queue by
  themselves and mark nothing.
- A clean-up policy that this store does not have, COMPACTION, is refused.
- The attributes of groups are kept and shown: they are for POP and lite topics, which do not exist
  here.
"""

import re
from collections.abc import Mapping
from typing import Final, get_args

from ogive.broker.replies import Rejected
from ogive.errors import InvalidOption, ResponseCode
from ogive.model import BATCHES, QUEUE_TYPE, MessageType
from ogive.wire.message import decode_properties

MESSAGE_TYPE: Final = "message.type"
MESSAGE_TYPES: Final = get_args(MessageType)
_KNOWN: Final = {
    MESSAGE_TYPE: MESSAGE_TYPES,
    QUEUE_TYPE: ("SimpleCQ", BATCHES),
    "cleanup.policy": ("DELETE",),
}
_FIXED: Final = (QUEUE_TYPE, "cleanup.policy")
_SWITCH: Final = ("true", "false")
_COUNT: Final = 1 << 63
_OF_GROUPS: Final[Mapping[str, range | tuple[str, ...] | None]] = {
    "priority.factor": range(101),
    "lite.bind.topic": None,
    "lite.sub.model": ("Shared", "Exclusive"),
    "lite.sub.reset.offset.exclusive": _SWITCH,
    "lite.sub.reset.offset.unsubscribe": _SWITCH,
    "lite.sub.client.quota": range(-1, _COUNT),
    "lite.sub.client.max.event.cnt": range(10, _COUNT),
    "lite.sub.wildcard": None,
}
"""With the values that each may have; None: any text."""
_DELAYS: Final = ("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")


def keeps_batches(attributes: Mapping[str, str]) -> bool:
    """Whether a topic with these is a topic of batches. Source: QueueTypeUtils.isBatchCq, 5.5."""
    return attributes.get(QUEUE_TYPE) == BATCHES


def change_attributes(current: Mapping[str, str] | None, text: str | None) -> dict[str, str]:
    """*current* (None for a new topic) after ``+name=value,-name``. Raises InvalidOption."""
    attributes = dict(current or {})
    seen: set[str] = set()
    for change in filter(None, (text or "").split(",")):
        sign, (name, _, value) = change[0], change[1:].partition("=")
        if (sign == "+") != bool(value) or sign not in "+-" or not name:
            raise InvalidOption(
                f"attribute change {change[:80]!r} is neither +name=value nor -name"
            )
        if name in seen:
            raise InvalidOption(f"attribute {name[:80]} is changed twice")
        seen.add(name)
        _check(current, sign, name, value)
        if sign == "+":
            attributes[name] = value
        else:
            attributes.pop(name, None)
    return attributes


def _check(current: Mapping[str, str] | None, sign: str, name: str, value: str) -> None:
    if name == "reserve.time":
        raise InvalidOption(
            "attribute reserve.time is for stores with tiers; this one keeps all messages for "
            "--keep-hours"
        )
    if name not in _KNOWN:
        raise InvalidOption(f"attribute {name[:80]!r} is not known: there are {', '.join(_KNOWN)}")
    if sign == "-":
        if current is None or name not in current:
            raise InvalidOption(
                f"attribute {name} cannot be taken away: the topic does not have it"
            )
    elif value not in _KNOWN[name]:
        raise InvalidOption(
            f"attribute {name}={value[:80]}: this broker has {', '.join(_KNOWN[name])}"
        )
    if (
        current is not None
        and name in _FIXED
        and (sign == "-" or current.get(name, _KNOWN[name][0]) != value)
    ):
        raise InvalidOption(f"attribute {name} is decided when a topic is made")


def change_group_attributes(
    current: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str]:
    """*current* (None for a new group) after ``{"+name": value, "-name": anything}``.

    Raises InvalidOption.
    """
    attributes = dict(current or {})
    seen: set[str] = set()
    for change, value in changes.items():
        sign, name = change[:1], change[1:]
        if sign not in ("+", "-") or not name:
            raise InvalidOption(f"attribute change {change[:80]!r} is neither +name nor -name")
        if name in seen:
            raise InvalidOption(f"attribute {name[:80]} is changed twice")
        seen.add(name)
        if name not in _OF_GROUPS:
            raise InvalidOption(
                f"attribute {name[:80]!r} is not known: there are {', '.join(_OF_GROUPS)}"
            )
        if sign == "+":
            _check_of_group(name, value)
            attributes[name] = value
        elif attributes.pop(name, None) is None:
            raise InvalidOption(
                f"attribute {name} cannot be taken away: the group does not have it"
            )
    return attributes


def _check_of_group(name: str, value: str) -> None:
    allowed = _OF_GROUPS[name]
    if isinstance(allowed, range):
        fits, expected = (
            re.fullmatch(r"[+-]?[0-9]{1,19}", value) and int(value) in allowed,
            f"a number from {allowed[0]} to {allowed[-1]}",
        )
    elif allowed is not None:
        fits, expected = (
            (value.lower() if allowed is _SWITCH else value) in allowed,
            " or ".join(allowed),
        )
    else:
        return
    if not fits:
        raise InvalidOption(f"attribute {name}={value[:80]}: {expected} is expected")


def check_message_type(topic: str, expected: str, properties: bytes) -> None:
    """Raises Rejected for a message of another type than the topic's."""
    if expected not in MESSAGE_TYPES or expected in ("UNSPECIFIED", "MIXED"):
        return
    actual = message_type(decode_properties(properties))
    if actual != expected and not (expected == "FIFO" and actual == "NORMAL"):
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"TopicMessageType validate failed, the expected type is {expected}, but actual type "
            f"is {actual} (topic {topic})",
        )


def message_type(properties: Mapping[str, str]) -> str:
    if properties.get("TRAN_MSG") == "true":
        return "TRANSACTION"
    if any(name in properties for name in _DELAYS):
        return "DELAY"
    return "FIFO" if "__SHARDINGKEY" in properties else "NORMAL"
