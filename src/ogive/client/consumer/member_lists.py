"""The members of a group, as the brokers of its topics list them.

Behaviour
- A broker that has started again knows only the members that are back. After a new connection to
  it, those that it listed before count as well for three seconds: members try each second to be
  back.

Differs from Java
- There the first member that is back takes the queues of all.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

RETURN_S: Final = 3.0


class MemberCalls(Protocol):
    """Calls to the broker that lists the members."""

    async def members(self, topic: str) -> tuple[list[str], object]:
        """Return the client ids, sorted, and the connection that they came by."""
        ...


@dataclass(slots=True)
class _Listed:
    """A list of members.

    *counts_until*: how long it counts beside those of a newer connection, once there is one.
    """

    connection: object
    members: Sequence[str]
    counts_until: float | None = None


class MemberLists:
    """The lists of one member, *me*, by topic."""

    def __init__(self, calls: MemberCalls, me: str) -> None:
        self._calls = calls
        self._me = me
        self._loop = asyncio.get_running_loop()
        self._lists: dict[str, _Listed] = {}

    @property
    def largest(self) -> int:
        """The number of members on the longest list."""
        return max((len(known.members) for known in self._lists.values()), default=1)

    async def of(self, topic: str) -> list[str]:
        """Return the client ids, sorted. Raises OgiveError.

        This member is among them only if the broker lists it now.
        """
        members, connection = await self._calls.members(topic)
        known, now = self._lists.get(topic), self._loop.time()
        if known is not None and known.connection is not connection:
            if known.counts_until is None:
                known.counts_until = now + RETURN_S
            if now < known.counts_until:
                return sorted(({*known.members} - {self._me}) | {*members})
        self._lists[topic] = _Listed(connection, members)
        return members

    def is_certain(self, topic: str) -> bool:
        """Return True if no list of an older connection counts."""
        return self._lists[topic].counts_until is None

    def forget(self, topic: str) -> None:
        self._lists.pop(topic, None)
