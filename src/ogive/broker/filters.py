"""Filters of pulls: tag hashes, which the store compares, or SQL92 expressions over properties.

Source: ExpressionMessageFilter.java, ConsumerFilterManager.java, 5.3.

Differs from Java: there is no bloom filter before the expression. One read checks at most SCAN
records and SCAN_BYTES, for at most SCAN_S, and then reports its position, so that a filter without
matches blocks the loop for a few milliseconds at most.
"""

import functools
import time
from collections.abc import Callable
from typing import Final

from ogive.broker.replies import Rejected
from ogive.errors import InvalidExpression, ResponseCode
from ogive.sql92 import MAX_CHARACTERS, Expression, compile_expression
from ogive.store.types import GetResult, GetStatus
from ogive.wire.bodies.clients import SQL92, SubscriptionData
from ogive.wire.message import decode_properties, stored_properties

Wanted = frozenset[int] | Expression | None
"""Tag codes that match; None matches every message."""
Read = Callable[[int, int, int], GetResult]
"""(offset, most messages, most bytes) -> the messages there, unfiltered."""

MAX_EXPRESSION: Final = MAX_CHARACTERS
# of one subscription
MAX_TAGS: Final = 1000
# records looked at for one request; as many as Apache's broker does
SCAN: Final = 800
SCAN_BYTES: Final = 4 * 1024 * 1024
# three times what SCAN usual records take; thousands of properties, or of words in an expression,
# would take seconds
SCAN_S: Final = 0.02
# memory of a hash in a set
_CODE_BYTES: Final = 100
# memory of an expression that has been read: and a character, at most
_SQL_BYTES, _SQL_BYTES_EACH, _MAX_SQL_BYTES = 1_000, 100, 128 * 1024
# filters of pulls that bring their own, of either kind, for those that bring the same
_KEPT: Final = 256
# records read at once
_STEP: Final = 64
_STEP_BYTES: Final = 256 * 1024


def check_expression_type(expression_type: str | None, *, sql: bool) -> bool:
    """Return True for SQL92.

    *sql*: enablePropertyFilter. Raises Rejected for an unsupported type.
    """
    if expression_type in (None, "", "TAG"):
        return False
    if expression_type != SQL92:
        raise Rejected(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"a filter of type {expression_type[:40]} is not known: TAG and SQL92 are",
        )
    if not sql:
        raise Rejected(
            ResponseCode.SYSTEM_ERROR,
            "The broker does not support consumer to filter message by SQL92",
        )
    return True


def memory_of_filter(expression_type: str | None, expression: str, codes: int = 0) -> int:
    """Return the approximate size of a filter in bytes after it is parsed.

    *codes*: the number of hashes that were sent with it, which are kept in any case.
    """
    if expression_type == SQL92:
        return (
            min(_SQL_BYTES + _SQL_BYTES_EACH * len(expression), _MAX_SQL_BYTES)
            + _CODE_BYTES * codes
        )
    return _CODE_BYTES * max(codes, 0 if expression in ("", "*") else tag_count(expression))


def tag_count(expression: str) -> int:
    """Return the largest number of tags that *expression* can have."""
    return expression.count("||") + 1


def wanted_by(expression_type: str | None, expression: str, *, sql: bool) -> Wanted:
    """Return the filter of a pull that has its own. Raises Rejected."""
    if not check_expression_type(expression_type, sql=sql):
        if len(expression) > MAX_EXPRESSION or tag_count(expression) > MAX_TAGS:
            raise Rejected(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"a subscription of {len(expression)} characters and {tag_count(expression)} tags "
                f"is over the limits of {MAX_EXPRESSION} "
                f"and {MAX_TAGS}",
            )
        return _codes_of(expression)
    try:
        return compiled(expression)
    except InvalidExpression as exc:
        raise Rejected(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"parse the consumer's subscription failed: {exc}",
        ) from None


@functools.lru_cache(_KEPT)
def compiled(text: str) -> Expression:
    """Compile an SQL92 expression. Raises InvalidExpression."""
    return compile_expression(text)


@functools.lru_cache(_KEPT)
def _codes_of(expression: str) -> frozenset[int] | None:
    return tag_codes(SubscriptionData.of_tags("", expression))


def tag_codes(data: SubscriptionData) -> frozenset[int] | None:
    """Return the hashes that were sent.

    Clients in C++ send none with their tags: then return those of the expression.
    """
    if data.expression == "*" or not data.expression:
        return None
    return (
        frozenset(data.codes or SubscriptionData.of_tags(data.topic, data.expression).codes) or None
    )


def read_matching(
    read: Read, wanted: Expression, offset: int, max_messages: int, max_bytes: int
) -> GetResult:
    """Read with SQL92, which the store does not support: return the matching records from *offset*
    on, and the next offset.
    """
    matches, until = wanted.matches, time.monotonic() + SCAN_S
    parts: list[bytes | memoryview] = []
    count = size = scanned = scanned_bytes = 0
    looked = False
    while True:
        result = read(offset, min(_STEP, SCAN - scanned), _STEP_BYTES)
        if result.status is not GetStatus.FOUND:
            break
        for part in result.parts:
            view = memoryview(part)
            at = 0
            while at < len(view):
                record_bytes, queue_offset, properties = stored_properties(view, at)
                if looked and time.monotonic() > until:
                    return _so_far(result, queue_offset, parts, count, size)
                looked = True
                if matches(decode_properties(properties)):
                    if count and (count >= max_messages or size + record_bytes > max_bytes):
                        return _so_far(result, queue_offset, parts, count, size)
                    parts.append(view[at : at + record_bytes])
                    count += 1
                    size += record_bytes
                at += record_bytes
        scanned += result.count
        scanned_bytes += result.size
        offset = result.next_offset
        if scanned >= SCAN or scanned_bytes >= SCAN_BYTES or count >= max_messages:
            break
    return _so_far(result, offset, parts, count, size) if scanned else result


def lets_pass(wanted: Expression, record: bytes) -> bool:
    """Return True if a stored message matches."""
    _, _, properties = stored_properties(memoryview(record), 0)
    return wanted.matches(decode_properties(properties))


def _so_far(
    last: GetResult, next_offset: int, parts: list[bytes | memoryview], count: int, size: int
) -> GetResult:
    if not count:
        return GetResult(
            GetStatus.NO_MATCHED_MESSAGE, next_offset, last.min_offset, last.max_offset
        )
    return GetResult(
        GetStatus.FOUND, next_offset, last.min_offset, last.max_offset, parts, count, size
    )
