"""What the tables of topics and of groups have in common: configurations by name, a limit, a data
version, and a file.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar

from ogive.broker.saving import Render, TableWriter
from ogive.errors import InvalidOption, ProtocolError
from ogive.store.tables import JsonTable
from ogive.wire.bodies import DataVersion, SubscriptionGroupConfig, TopicConfig

log = logging.getLogger(__name__)

# names come from clients and messages
_MAX_MISSED: Final = 1_000

C = TypeVar("C", TopicConfig, SubscriptionGroupConfig)


class ConfigTable(ABC, Generic[C]):
    """Name to configuration. Event-loop only; the file is written off the loop.

    *changed* callbacks run after each change, on the loop, and must be short.
    """

    def __init__(
        self, kind: str, table: JsonTable, *, now_ms: Callable[[], int], limit: int
    ) -> None:
        """*kind*: "topic" or "group", for messages."""
        self._kind, self._now_ms, self._limit = kind, now_ms, limit
        self._configs: dict[str, C] = {}
        self._missed: set[str] = set()
        self._writer = TableWriter(f"{kind}s", table, self._snapshot)
        self.changed: list[Callable[[], None]] = []
        self.data_version = DataVersion()

    def _begin(
        self,
        built_in: Mapping[str, C],
        loaded: Mapping[str, C],
        version: object,
        *,
        differs: bool = False,
    ) -> None:
        """What the file held, however much, and what it has to hold in any case.

        *differs*: the file does not hold all of *loaded*.
        """
        self._configs = {**built_in, **loaded}
        if len(self._configs) > self._limit:
            log.warning(
                "the broker holds %d %ss, its limit is %d: all are kept, new ones are refused",
                len(self._configs),
                self._kind,
                self._limit,
            )
        self.data_version = self._read_version(version)
        if differs or not built_in.keys() <= loaded.keys():
            self.data_version = self.data_version.next(self._now_ms())
            self._writer.mark()

    def _read_version(self, version: object) -> DataVersion:
        try:
            return DataVersion.from_json(version or {})
        except ProtocolError as exc:
            log.warning("%ss file: its version counts from now on: %s", self._kind, exc)
            return DataVersion().next(self._now_ms())

    # --- reading ----------------------------------------------------------------------------------

    def get(self, name: str) -> C | None:
        return self._configs.get(name)

    def all(self) -> Mapping[str, C]:
        """The live table: do not keep it across an await."""
        return self._configs

    def __contains__(self, name: str) -> bool:
        return name in self._configs

    def __iter__(self) -> Iterator[C]:
        return iter(self._configs.values())

    def __len__(self) -> int:
        return len(self._configs)

    def _is_new_miss(self, name: str) -> bool:
        """Whether to tell that *name*, which somebody needs, is not here: once, until it is
        made.
        """
        if name in self._missed or len(self._missed) >= _MAX_MISSED:
            return False
        self._missed.add(name)
        return True

    # --- changing ---------------------------------------------------------------------------------

    @abstractmethod
    def check(self, config: C) -> None:
        """Raises InvalidOption for a bad or reserved name, or impossible numbers."""

    def create_or_update(self, config: C) -> C:
        """Raises InvalidOption for a bad or reserved name, impossible numbers, or a full table."""
        self.check(config)
        return self._put(config)

    def _put(self, config: C, *, beyond_limit: bool = False) -> C:
        known = self._configs.get(config.name)
        if known == config:
            return known
        if known is None and len(self._configs) >= self._limit and not beyond_limit:
            raise InvalidOption(
                f"{self._kind} {config.name}: the broker holds {len(self._configs)} {self._kind}s, "
                f"its limit is {self._limit}"
            )
        self._configs[config.name] = config
        self._missed.discard(config.name)
        self._note_change()
        return config

    def _remove(self, name: str) -> bool:
        """Whether there was one of that name."""
        if self._configs.pop(name, None) is None:
            return False
        self._note_change()
        return True

    def _note_change(self) -> None:
        self.data_version = self.data_version.next(self._now_ms())
        self._writer.start()
        for callback in self.changed:
            callback()

    # --- the file ---------------------------------------------------------------------------------

    @property
    def unsaved(self) -> bool:
        """Whether a change has not reached stable storage yet."""
        return self._writer.unsaved

    async def saved(self) -> None:
        """Return when every change made before the call is on stable storage. Raises StoreError."""
        await self._writer.saved()

    def save_again(self) -> None:
        """Try again in the background to save what could not be saved."""
        self._writer.save_again()

    @abstractmethod
    def _snapshot(self) -> Render: ...


def read_configs(
    stored: object, kind: type[C], validate: Callable[[str], str], file: str
) -> dict[str, C]:
    """What a file holds by name; an entry that no command could have made is left out with a
    warning.
    """
    configs: dict[str, C] = {}
    entries: dict[Any, Any] = stored if isinstance(stored, dict) else {}
    for name, value in entries.items():
        try:
            config = kind.from_json(value)
            configs[validate(str(name))] = replace(config, name=str(name))
        except (InvalidOption, ProtocolError) as exc:
            log.warning("%s file: entry %.80r is left out: %s", file, name, exc)
    return configs
