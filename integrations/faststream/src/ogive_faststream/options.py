"""Options that several functions take."""

from collections.abc import Iterable
from datetime import datetime
from typing import TypedDict

from ogive.client.listener import Mode, Start


class SendOptions(TypedDict, total=False):
    """Options of a message to send, as in ``ogive.Message``."""

    tag: str | None
    keys: str | Iterable[str]
    sharding_key: str | None
    delay_level: int
    deliver_at: datetime | None
    delay_s: float | None
    priority: int | None


class PublishOptions(SendOptions, total=False):
    """Options of one call that publishes."""

    headers: dict[str, str] | None
    correlation_id: str | None
    timeout: float | None
    """Limit of the whole call in seconds; None: send_timeout_s of the producer."""


class ListenerOptions(TypedDict, total=False):
    """Options of a subscription, as in ``ogive.listener``."""

    tags: str
    sql: str | None
    orderly: bool
    broadcast: bool
    batch: int
    consume_timeout_s: float
    max_retries: int | None
    start: Start
    suspend_s: float
    mode: Mode
