"""Which settings may be changed over the network while the broker runs, and how that is done: UPDATE_BROKER_CONFIG (25).

Only the settings listed here: through those for files, addresses or programs, strangers ran commands on brokers (CVE-2023-33246).
A change lasts until the broker stops; broker.conf is not written.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from ogive.broker.context import Context
from ogive.broker.replies import Rejected
from ogive.errors import InvalidOption, ProtocolError, ResponseCode

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 16 * 1024


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError("a number is needed")
    return int(text)


def _switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("true or false is needed")
    return text == "true"


CHANGEABLE: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "autoCreateSubscriptionGroup": ("auto_create_groups", _switch),
    "autoCreateTopicEnable": ("auto_create_topics", _switch),
    "maxMessageSize": ("max_message_bytes", _count),
    "maxTransferBytesOnMessageInMemory": ("max_pull_bytes", _count),
    "maxTransferCountOnMessageInMemory": ("max_pull_messages", _count),
    "sendThreadPoolQueueCapacity": ("max_sends_waiting", _count),
    "storeReplyMessageEnable": ("store_replies", _switch),
}
"""Name in Apache's broker.conf -> name in BrokerConfig, and how its text is read."""


def change(ctx: Context, body: bytes, who: str) -> None:
    """Carry out all lines ``name=value`` of *body*, or none. Raises Rejected, which names the setting."""
    changes: dict[str, Any] = {}
    asked = _properties(body)
    for name, text in asked.items():
        known = CHANGEABLE.get(name)
        if known is None:
            allowed = ", ".join(CHANGEABLE)
            raise Rejected(
                ResponseCode.NO_PERMISSION, f"{name[:80]} cannot be changed over the network; these can, until the broker stops: {allowed}"
            )
        field, read = known
        try:
            changes[field] = read(text)
        except ValueError as exc:
            raise Rejected(ResponseCode.INVALID_PARAMETER, f"{name}={text[:80]}: {exc}") from None
    ctx.config = replace(ctx.config, **changes)  # raises InvalidOption, which is answered as INVALID_PARAMETER
    ctx.groups.auto_create = ctx.config.auto_create_groups
    ctx.topics.switch_auto_create(ctx.config.auto_create_topics, ctx.config.default_topic_queues)
    log.warning("%s changed settings: %s", who, ", ".join(f"{name}={text}" for name, text in asked.items()))


def _properties(body: bytes) -> dict[str, str]:
    if len(body) > MAX_BODY_BYTES:
        raise InvalidOption(f"{len(body)} bytes of settings, {MAX_BODY_BYTES} are allowed")
    try:
        lines = body.decode().splitlines()
    except UnicodeDecodeError:
        raise ProtocolError("the settings are no UTF-8") from None
    found = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found[name.strip()] = value.strip()
    if not found:
        raise InvalidOption("no line of the form name=value")
    return found
