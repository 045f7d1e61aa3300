"""Queue locks of orderly consumers: leases that are not checked on pull.

Source: RebalanceLockManager.java, 5.3.

Differs from Java: the holders are kept in a file. Otherwise a restarted broker would give a queue
to the first member that asks, while its holder continues until its own lease ends: two members
would consume one queue at a time.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ogive.broker.replies import Rejected
from ogive.broker.state.config_table import Render, TableWriter
from ogive.errors import ResponseCode
from ogive.model import MessageQueue
from ogive.store.tables import JsonTable

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Lease:
    client_id: str
    expires_at: float
    # of the file that says so first
    version: int = 0


class QueueLocks:
    """At most one client of a group holds a queue.

    A lease expires after *lease_s*, and is renewed by each call of its owner.

    Event-loop only; the file is written off the loop, and only when a queue changes hands: after a
    restart every owner gets a whole lease.
    """

    def __init__(
        self,
        lease_s: float,
        max_locks: int,
        now: Callable[[], float],
        table: JsonTable,
        broker_name: str,
    ) -> None:
        """*broker_name*: whose queues these are."""
        self._lease_s, self._max, self._now = lease_s, max_locks, now
        self._broker_name = broker_name
        self._groups: dict[str, dict[MessageQueue, _Lease]] = {}
        self._count = 0
        self._writer = TableWriter("queue locks", table, self._snapshot)

    def load(self, stored: dict[str, Any]) -> None:
        """Load the contents of the file, also beyond the limit, because each lock is in use.
        Invalid entries are ignored: that costs a member its queue, not the broker its start.
        """
        expires_at = self._now() + self._lease_s
        for group, client_id, queue in _stored_locks(stored, self._broker_name):
            leases = self._groups.setdefault(group, {})
            self._count += queue not in leases
            leases[queue] = _Lease(client_id, expires_at)
        if self._count > self._max:
            log.warning(
                "the file has %d queue locks, more than the limit of %d: all are kept, new ones "
                "are refused",
                self._count,
                self._max,
            )

    async def saved(self) -> None:
        """Return when the holders are saved. Raises StoreError."""
        if self._writer.unsaved:
            await self._writer.saved()

    async def safe(self, group: str, queues: Iterable[MessageQueue]) -> None:
        """Return when the holders of *queues* of the group are saved.

        Raises StoreError, but not for holders that the file has already: while the disk is full,
        they continue.
        """
        leases = self._groups.get(group, {})
        if (
            max([leases[queue].version for queue in queues if queue in leases], default=0)
            > self._writer.written
        ):
            await self._writer.saved()

    def save_soon(self) -> None:
        """Save released and expired locks in the background: if a restart comes first, it only
        delays other members for one lease.
        """
        if self._writer.unsaved:
            self._writer.start()

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> list[MessageQueue]:
        """Lock *queues*, and return those that the client holds now.

        Raises Rejected if the table is full."""
        now = self._now()
        leases = self._groups.setdefault(group, {})
        held = []
        try:
            for queue in queues:
                lease = leases.get(queue)
                if lease is None:
                    self._make_room()
                    # making room forgets groups that hold nothing
                    leases = self._groups.setdefault(group, leases)
                    self._count += 1
                    lease = leases[queue] = _Lease("", now)
                elif lease.client_id != client_id and lease.expires_at > now:
                    continue
                if lease.client_id != client_id:
                    self._writer.mark()
                    lease.version = self._writer.version
                lease.client_id, lease.expires_at = client_id, now + self._lease_s
                held.append(queue)
        finally:
            if not leases:
                self._groups.pop(group, None)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release queues that the client itself holds."""
        leases = self._groups.get(group, {})
        ours = [
            queue
            for queue in queues
            if (lease := leases.get(queue)) is not None and lease.client_id == client_id
        ]
        self._remove(group, leases, dict.fromkeys(ours))

    def holds_any(self, group: str) -> bool:
        """Return True if any queue of the group is locked: its consumers are orderly ones."""
        now = self._now()
        return any(lease.expires_at > now for lease in self._groups.get(group, {}).values())

    def expire(self) -> None:
        """Forget the leases that have ended."""
        now = self._now()
        for group, leases in list(self._groups.items()):
            self._remove(
                group, leases, [queue for queue, lease in leases.items() if lease.expires_at <= now]
            )

    def _remove(
        self, group: str, leases: dict[MessageQueue, _Lease], queues: Collection[MessageQueue]
    ) -> None:
        for queue in queues:
            del leases[queue]
        self._count -= len(queues)
        if not leases:
            self._groups.pop(group, None)
        if queues:
            self._writer.mark()

    def _make_room(self) -> None:
        if self._count >= self._max:
            self.expire()
        if self._count >= self._max:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY, f"this broker keeps {self._max} queue locks already"
            )

    def __len__(self) -> int:
        return self._count

    def _snapshot(self) -> Render:
        rows: dict[str, dict[str, list[tuple[str, int]]]] = {}
        for group, leases in self._groups.items():
            for queue, lease in leases.items():
                rows.setdefault(group, {}).setdefault(lease.client_id, []).append(
                    (queue.topic, queue.queue_id)
                )
        return lambda: {"lockTable": rows}


def _stored_locks(
    stored: dict[str, Any], broker_name: str
) -> Iterator[tuple[str, str, MessageQueue]]:
    """(group, client id, queue) of every row that has the form of one."""
    groups = stored.get("lockTable")
    for group, clients in groups.items() if isinstance(groups, dict) else ():
        for client_id, rows in clients.items() if isinstance(clients, dict) else ():
            for row in rows if isinstance(rows, list) else ():
                match row:
                    case [str(topic), int(queue_id)]:
                        yield group, client_id, MessageQueue(topic, broker_name, queue_id)
                    case _:
                        log.warning(
                            "ignored an invalid queue lock of group %s in the file: %.100r",
                            group,
                            row,
                        )
