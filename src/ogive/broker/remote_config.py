"""Which settings may be changed over the network while the broker runs, and how that is done:
UPDATE_BROKER_CONFIG (25).

Only the settings listed here: through those for files, addresses or programs, strangers ran
commands on brokers (CVE-2023-33246).

A change outlives the broker in a file of its own, beside what the configuration said when it was
made. Once the configuration says something else, that is the newer word, and the change is
forgotten. Java writes into broker.conf itself, where the last writer counts, too.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from ogive.broker.config import MAX_PULL_BYTES, BrokerConfig
from ogive.broker.replies import Rejected
from ogive.broker.saving import Render, TableWriter
from ogive.errors import InvalidOption, ResponseCode
from ogive.model import MAX_BODY_BYTES as MAX_MESSAGE_BYTES
from ogive.store.tables import JsonTable
from ogive.wire.bodies import DataVersion
from ogive.wire.java_properties import parse_properties
from ogive.wire.numbers import parse_int

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 16 * 1024


def _count(most: int = 999_999_999) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            value = parse_int(text)
        except ValueError:
            value = 0
        if not 1 <= value <= most:
            raise ValueError(f"a number from 1 to {most} is needed")
        return value

    return read


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false is needed")
    return text.lower() == "true"


CHANGEABLE: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "autoCreateSubscriptionGroup": ("auto_create_groups", _switch),
    "autoCreateTopicEnable": ("auto_create_topics", _switch),
    "maxMessageSize": ("max_message_bytes", _count(MAX_MESSAGE_BYTES)),
    "maxTransferBytesOnMessageInMemory": ("max_pull_bytes", _count(MAX_PULL_BYTES)),
    "maxTransferCountOnMessageInMemory": ("max_pull_messages", _count()),
    "sendThreadPoolQueueCapacity": ("max_sends_waiting", _count()),
    "storeReplyMessageEnable": ("store_replies", _switch),
}
"""Name in Apache's broker.conf -> name in BrokerConfig, and how its text is read: as narrowly as
BrokerConfig takes it, so that a refusal speaks of the name that was asked for.
"""


class RemoteSettings:
    """The settings that were changed over the network.

    Event-loop only; the file is written off the loop.
    """

    def __init__(
        self, table: JsonTable, configured: BrokerConfig, now_ms: Callable[[], int]
    ) -> None:
        """Loads the file (blocking).

        *configured*: what the command line, a file or a program says. Raises StoreError.
        """
        self._now_ms = now_ms
        self.version = DataVersion(0, now_ms())
        """Of this run: moves with each change."""
        self.config = self._configured = configured
        """Both together: what counts."""
        self._changed: dict[str, str] = {}
        self._writer = TableWriter("remote settings", table, self._snapshot)
        self._load((table.load() or {}).get("settings"))

    def _load(self, stored: object) -> None:
        entries: dict[Any, Any] = stored if isinstance(stored, dict) else {}
        for name, entry in entries.items():
            value = entry.get("value") if isinstance(entry, dict) else None
            if name not in CHANGEABLE or not isinstance(value, str):
                log.warning("remote settings file: entry %.80r is left out", name)
            elif entry.get("insteadOf") != self._configured_as(name):
                log.warning(
                    "%s=%.80s, set over the network, counts no more: the configuration was changed "
                    "since",
                    name,
                    value,
                )
            else:
                self._apply_stored(name, value)
        if entries.keys() != self._changed.keys():
            self._writer.mark()
        if self._changed:
            log.warning(
                "settings changed over the network count instead of the configuration's: %s",
                ", ".join(f"{name}={value}" for name, value in sorted(self._changed.items())),
            )

    def _apply_stored(self, name: str, value: str) -> None:
        try:
            self.config = _with(self.config, {name: value})
        except (Rejected, InvalidOption) as exc:
            log.warning("remote settings file: %s=%.80s is left out: %s", name, value, exc)
        else:
            self._changed[name] = value

    def change(self, body: bytes) -> BrokerConfig:
        """Carry out all lines ``name=value`` of *body*, or none.

        Returns what counts then. Raises Rejected, InvalidOption.
        """
        asked = _properties(body)
        self.config = _with(self.config, asked)
        self.version = self.version.next(self._now_ms())
        for name in asked:
            value = setting_text(self.config, name)
            if value == self._configured_as(name):
                self._changed.pop(name, None)
            else:
                self._changed[name] = value
        self._writer.mark()
        return self.config

    async def saved(self) -> None:
        """Return when every change made before the call is on stable storage. Raises StoreError."""
        await self._writer.saved()

    def _configured_as(self, name: str) -> str:
        return setting_text(self._configured, name)

    def _snapshot(self) -> Render:
        settings = {
            name: {"value": value, "insteadOf": self._configured_as(name)}
            for name, value in self._changed.items()
        }
        return lambda: {"settings": settings}


def setting_text(config: BrokerConfig, name: str) -> str:
    """A setting as it stands in broker.conf."""
    value = getattr(config, CHANGEABLE[name][0])
    return str(value).lower() if isinstance(value, bool) else str(value)


def _with(config: BrokerConfig, asked: Mapping[str, str]) -> BrokerConfig:
    """Raises Rejected, which names the setting, and InvalidOption."""
    changes: dict[str, Any] = {}
    for name, text in asked.items():
        known = CHANGEABLE.get(name)
        if known is None:
            allowed = ", ".join(CHANGEABLE)
            raise Rejected(
                ResponseCode.NO_PERMISSION,
                f"{name[:80]} cannot be changed over the network; these can: {allowed}",
            )
        field, read = known
        try:
            changes[field] = read(text)
        except ValueError as exc:
            raise Rejected(ResponseCode.INVALID_PARAMETER, f"{name}={text[:80]}: {exc}") from None
    # raises InvalidOption, which is answered as INVALID_PARAMETER
    return replace(config, **changes)


def _properties(body: bytes) -> dict[str, str]:
    if len(body) > MAX_BODY_BYTES:
        raise InvalidOption(f"{len(body)} bytes of settings, {MAX_BODY_BYTES} are allowed")
    found = {name: value.strip() for name, value in parse_properties(body).items()}
    if not found:
        raise InvalidOption("no line of the form name=value")
    return found
