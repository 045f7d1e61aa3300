"""Settings that operators keep at the name server: namespace to key to value.

Source: KVConfigManager.java, 5.3.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ogive.errors import InvalidOption, StoreError, StoreUnusable
from ogive.store.fs import Fs, OsFs, reason
from ogive.store.tables import JsonTable

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
MAX_TEXT_LENGTH: Final = 64 * 1024
# all settings: six bytes each in JSON at worst, so that a namespace fits one answer
MAX_CHARACTERS: Final = 2 * 1024 * 1024


class KvConfig:
    """KV settings in memory, and in a file (Apache's kvConfig.json) if a path is given."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        fs: Fs | None = None,
        max_entries: int = 10_000,
        max_characters: int = MAX_CHARACTERS,
    ) -> None:
        """Load the file (blocking). Raises StoreUnusable."""
        self._table = (
            None if path is None else JsonTable(fs or OsFs(), path, valid=_holds_namespaces)
        )
        self._max_entries = max_entries
        self._max_characters = max_characters
        # one save at a time, so that an older state never replaces a newer one
        self._saving = asyncio.Lock()
        stored = self._load() or {}
        self._spaces: dict[str, dict[str, str]] = {
            space: {key: str(value) for key, value in entries.items()}
            for space, entries in stored.get("configTable", {}).items()
        }
        self._entries = sum(map(len, self._spaces.values()))
        # length of all settings, each with its namespace
        self._characters = sum(
            len(space) + len(key) + len(value)
            for space, entries in self._spaces.items()
            for key, value in entries.items()
        )

    def _load(self) -> dict[str, Any] | None:
        try:
            return None if self._table is None else self._table.load()
        except NotADirectoryError:
            # the directory is empty: a broker reports this better, and without one the name server
            # reports it when a value is set
            return None
        except OSError as exc:
            raise StoreUnusable(f"the KV settings cannot be read: {reason(exc)}") from exc

    def get(self, namespace: str, key: str) -> str | None:
        return self._spaces.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str]:
        """Return the settings of a namespace; an empty table if there are none."""
        return self._spaces.get(namespace, {})

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value, and return when it is on stable storage.

        Raises InvalidOption. Raises StoreError if it cannot be saved; then it applies until the
        restart.
        """
        if not namespace or not key or len(namespace) + len(key) + len(value) > MAX_TEXT_LENGTH:
            raise InvalidOption(
                f"a KV setting needs a namespace and a key, and at most {MAX_TEXT_LENGTH} "
                "characters in all"
            )
        known = self.get(namespace, key)
        if known is None and self._entries >= self._max_entries:
            raise InvalidOption(
                f"the name server holds its limit of {self._max_entries} KV settings"
            )
        more = (
            len(value) - len(known) if known is not None else len(namespace) + len(key) + len(value)
        )
        if self._characters + more > self._max_characters:
            raise InvalidOption(
                "the name server's KV settings would be over their limit of "
                f"{self._max_characters} characters"
            )
        self._spaces.setdefault(namespace, {})[key] = value
        self._entries += known is None
        self._characters += more
        await self._save()

    async def delete(self, namespace: str, key: str) -> None:
        """Delete a value; do nothing if it does not exist. Raises StoreError."""
        entries = self._spaces.get(namespace, {})
        value = entries.pop(key, None)
        if value is None:
            return
        self._entries -= 1
        self._characters -= len(namespace) + len(key) + len(value)
        if not entries:
            del self._spaces[namespace]
        await self._save()

    async def _save(self) -> None:
        if self._table is None:
            return
        async with self._saving:
            state = {
                "configTable": {space: dict(entries) for space, entries in self._spaces.items()}
            }
            try:
                await asyncio.to_thread(self._table.save, state)
            except OSError as exc:
                raise StoreError(f"could not save the KV settings: {reason(exc)}") from exc


def _holds_namespaces(stored: dict[str, Any]) -> bool:
    spaces = stored.get("configTable")
    return isinstance(spaces, dict) and all(
        isinstance(entries, dict) for entries in spaces.values()
    )
