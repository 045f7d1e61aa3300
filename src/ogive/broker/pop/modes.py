"""Modes of consumption by topic and group: SET_ (401) and GET_ALL_MESSAGE_REQUEST_MODE (402).

Source: MessageRequestModeManager.java, QueryAssignmentProcessor.java, 5.5. The file,
config/messageRequestMode.json, is Apache's.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from ogive.broker.replies import Rejected
from ogive.broker.state.config_table import Render, TableWriter
from ogive.errors import ProtocolError, ResponseCode
from ogive.store.tables import JsonTable
from ogive.wire.bodies.clients import RequestMode

log = logging.getLogger(__name__)

MAX_MODES: Final = 20_000
POP, PULL = "POP", "PULL"


class RequestModes:
    """Table of the modes in which groups consume topics. Owner: the event loop.

    The file is written off the loop.
    """

    def __init__(self, table: JsonTable) -> None:
        """Load the file. Blocking. Raises StoreError."""
        self._modes: dict[tuple[str, str], RequestMode] = {}
        topics = (table.load() or {}).get("messageRequestModeMap")
        for topic, groups in topics.items() if isinstance(topics, dict) else ():
            for group, value in groups.items() if isinstance(groups, dict) else ():
                try:
                    self._modes[str(topic), str(group)] = RequestMode.from_json(value)
                except ProtocolError as exc:
                    log.warning("ignored the request mode of %.80r: %s", group, exc)
        self._writer = TableWriter("request modes", table, self._snapshot)

    def get(self, topic: str, group: str) -> RequestMode | None:
        return self._modes.get((topic, group))

    def set(self, mode: RequestMode) -> None:
        """Raises Rejected if the table is full."""
        key = mode.topic, mode.group
        if key not in self._modes and len(self._modes) >= MAX_MODES:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY, f"this broker keeps {MAX_MODES} request modes already"
            )
        if self._modes.get(key) != mode:
            self._modes[key] = mode
            self._writer.mark()

    def forget(self, wanted: Callable[[str, str], bool]) -> None:
        """Forget what is deleted; *wanted* gets topic and group."""
        gone = [key for key in self._modes if wanted(*key)]
        for key in gone:
            del self._modes[key]
        if gone:
            self._writer.start()

    async def saved(self) -> None:
        """Return when every change made before is on stable storage. Raises StoreError."""
        await self._writer.saved()

    def to_json(self) -> dict[str, Any]:
        """The table as the file and the answer of 402 hold it."""
        topics: dict[str, dict[str, Any]] = {}
        for (topic, group), mode in self._modes.items():
            topics.setdefault(topic, {})[group] = mode.to_json()
        return {"messageRequestModeMap": topics}

    def _snapshot(self) -> Render:
        content = self.to_json()
        return lambda: content
