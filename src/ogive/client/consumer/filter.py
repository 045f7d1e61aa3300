"""Subscriptions by tags or SQL92, and the client's own check of what the broker let through.

Pure, but for one warning.
"""

import functools
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from ogive.errors import InvalidOption
from ogive.model import RETRY_PREFIX, MessageExt, PropertyName, parse_tags
from ogive.sql92 import compile_expression
from ogive.wire.bodies.clients import SQL92, SubscriptionData

log = logging.getLogger(__name__)

_OTHER_SEPARATORS: Final = re.compile(r"\s*[,;]\s*|\s+or\s+", re.IGNORECASE)


def validate_filter(tags: str, sql: str | None) -> None:
    """Check a filter. Raises InvalidOption for tags and SQL at once, or for invalid tags;
    InvalidExpression for SQL that no broker would accept.
    """
    parse_tags(tags)
    if sql is not None:
        if not isinstance(sql, str):
            raise TypeError(f"sql must be str, not {type(sql).__name__}")
        if tags != "*":
            raise InvalidOption(
                "a consumer filters by tags or in SQL, not by both: in SQL a tag is TAGS, as in "
                "TAGS IN ('paid', 'refunded')"
            )
        _compiled(sql)


def warn_of_tags(tags: str) -> None:
    """Warn of a valid tag that holds a separator: usually several tags were meant, and the group
    would skip all of their messages.
    """
    for tag in parse_tags(tags):
        several = [word for word in _OTHER_SEPARATORS.split(tag) if word]
        if len(several) > 1:
            log.warning(
                "tags %r: %r is one tag; several are separated by ||, as in %r",
                tags,
                tag,
                " || ".join(several),
            )


def subscription(topic: str, tags: str, sql: str | None, version: int) -> SubscriptionData:
    """Return the filter as brokers read it."""
    return (
        SubscriptionData.of_tags(topic, tags, version)
        if sql is None
        else SubscriptionData.of_sql(topic, sql, version)
    )


def select(messages: Sequence[MessageExt], subscription: SubscriptionData) -> Sequence[MessageExt]:
    """Return the messages that match the subscription, under the application's topic name."""
    if subscription.tags:
        wanted = frozenset(subscription.tags)
        messages = [message for message in messages if message.tag in wanted]
    elif subscription.expression_type == SQL92:
        matches = _compiled(subscription.expression)
        messages = [message for message in messages if matches(message)]
    if subscription.topic.startswith(RETRY_PREFIX):
        messages = [
            replace(message, topic=message.properties.get(PropertyName.RETRY_TOPIC, message.topic))
            for message in messages
        ]
    return messages


@functools.lru_cache(256)
def _compiled(sql: str) -> Callable[[MessageExt], bool]:
    matches = compile_expression(sql).matches
    return lambda message: matches(message.properties)
