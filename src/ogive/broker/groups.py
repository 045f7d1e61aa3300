"""The consumer groups of one broker. Source: SubscriptionGroupManager.java, 5.3.

Differs from Java: retry policies, group attributes and fixed subscriptions of 5.x are read and not kept.
"""

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from ogive.broker.saving import Render, TableWriter
from ogive.errors import InvalidOption, ProtocolError
from ogive.model import TOOLS_GROUP, validate_group
from ogive.store.tables import JsonTable
from ogive.wire.bodies import DataVersion, SubscriptionGroupConfig

log = logging.getLogger(__name__)

BUILT_IN: Final = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)
MAX_RETRY_QUEUES: Final = 1024


class GroupTable:
    """Name to configuration. Event-loop only; the file is written off the loop. *changed* callbacks run after each change."""

    def __init__(self, table: JsonTable, *, auto_create: bool, now_ms: Callable[[], int], max_groups: int = 20_000) -> None:
        """Loads the file, ours or one of Apache's (blocking). Raises StoreError, ProtocolError."""
        self._now_ms = now_ms
        self.auto_create = auto_create
        self._max_groups = max_groups
        self._writer = TableWriter("groups", table, self._snapshot)
        self.changed: list[Callable[[], None]] = []
        stored = table.load() or {}
        loaded = _configs(stored.get("subscriptionGroupTable"))
        self._groups = {name: SubscriptionGroupConfig(name=name) for name in BUILT_IN} | loaded
        forbidden = stored.get("forbiddenTable")
        self.forbidden: Mapping[str, Any] = forbidden if isinstance(forbidden, dict) else {}
        """Group to topic to permission bits, as Apache's tools wrote it: kept, not used."""
        self.data_version = DataVersion.from_json(stored.get("dataVersion") or {})
        if any(name not in loaded for name in BUILT_IN):
            self.data_version = self.data_version.next(now_ms())
            self._writer.mark()

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        return self._groups.get(name)

    def find_or_create(self, name: str) -> SubscriptionGroupConfig | None:
        """None when there is no such group and none may be made. Raises InvalidOption for a bad name or a full table."""
        found = self._groups.get(name)
        if found is not None or not self.auto_create:
            return found
        return self._put(SubscriptionGroupConfig(name=validate_group(name)))

    def create_or_update(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """Raises InvalidOption for a bad name, impossible numbers, or a full table."""
        self.check(config)
        return self._put(config)

    def check(self, config: SubscriptionGroupConfig) -> None:
        """Raises InvalidOption for a bad name or impossible numbers."""
        validate_group(config.name)
        if not 1 <= config.retry_queues <= MAX_RETRY_QUEUES:
            raise InvalidOption(f"group {config.name}: {config.retry_queues} retry queues, 1 to {MAX_RETRY_QUEUES} are possible")
        if config.retry_max_times < -1:
            raise InvalidOption(f"group {config.name}: {config.retry_max_times} retries, -1 or more are possible")

    def delete(self, name: str) -> bool:
        """Whether there was such a group. Raises InvalidOption for a built-in one."""
        if name in BUILT_IN:
            raise InvalidOption(f"group {name} belongs to the broker: it cannot be deleted")
        if self._groups.pop(name, None) is None:
            return False
        self._note_change()
        return True

    def all(self) -> Mapping[str, SubscriptionGroupConfig]:
        """The live table: do not keep it across an await."""
        return self._groups

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    def __iter__(self) -> Iterator[SubscriptionGroupConfig]:
        return iter(self._groups.values())

    def __len__(self) -> int:
        return len(self._groups)

    def _put(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        known = self._groups.get(config.name)
        if known == config:
            return known
        if known is None and len(self._groups) >= self._max_groups:
            raise InvalidOption(f"group {config.name}: the broker holds {len(self._groups)} groups, its limit is {self._max_groups}")
        self._groups[config.name] = config
        self._note_change()
        return config

    def _note_change(self) -> None:
        self.data_version = self.data_version.next(self._now_ms())
        self._writer.start()
        for callback in self.changed:
            callback()

    @property
    def unsaved(self) -> bool:
        """Whether a change has not reached stable storage yet."""
        return self._writer.unsaved

    async def saved(self) -> None:
        """Return when every change made before the call is on stable storage. Raises StoreError."""
        await self._writer.saved()

    def to_json(self, first: int = 0, end: int | None = None) -> dict[str, Any]:
        """The table as the file and GET_ALL_SUBSCRIPTIONGROUP_CONFIG hold it, or the groups of one page of it."""
        return self._render(list(itertools.islice(self._groups.values(), first, end)))()

    def _snapshot(self) -> Render:
        return self._render(list(self._groups.values()))

    def _render(self, groups: list[SubscriptionGroupConfig]) -> Render:
        version, forbidden = self.data_version, self.forbidden
        return lambda: {
            "dataVersion": version.to_json(),
            "forbiddenTable": dict(forbidden),
            "subscriptionGroupTable": {group.name: group.to_json() for group in groups},
        }


def _configs(stored: object) -> dict[str, SubscriptionGroupConfig]:
    """The groups of a file; an entry that no command could have made is left out with a warning."""
    configs: dict[str, SubscriptionGroupConfig] = {}
    if not isinstance(stored, dict):
        return configs
    for name, value in stored.items():
        try:
            config = SubscriptionGroupConfig.from_json(value)
            configs[validate_group(str(name))] = replace(config, name=str(name))
        except (InvalidOption, ProtocolError) as exc:
            log.warning("groups file: entry %.80r is left out: %s", name, exc)
    return configs
