"""Queue locks of orderly consumers: leases in memory, neither persisted nor checked on pull. Source: RebalanceLockManager.java, 5.3."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ogive.broker.replies import Rejected
from ogive.errors import ResponseCode
from ogive.model import MessageQueue


@dataclass(slots=True)
class _Lease:
    client_id: str
    expires_at: float


class QueueLocks:
    """At most one client of a group holds a queue. A lease ends by itself after *lease_s*, and is renewed by each call of its owner."""

    def __init__(self, lease_s: float, max_locks: int, now: Callable[[], float]) -> None:
        self._lease_s, self._max, self._now = lease_s, max_locks, now
        self._groups: dict[str, dict[MessageQueue, _Lease]] = {}
        self._count = 0

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Those of *queues* that the client holds now. Raises Rejected when the table is full."""
        now = self._now()
        leases = self._groups.setdefault(group, {})
        held = []
        try:
            for queue in queues:
                lease = leases.get(queue)
                if lease is None:
                    self._make_room()
                    self._count += 1
                    lease = leases[queue] = _Lease(client_id, now)
                elif lease.client_id != client_id and lease.expires_at > now:
                    continue
                lease.client_id, lease.expires_at = client_id, now + self._lease_s
                held.append(queue)
        finally:
            if not leases:
                self._groups.pop(group, None)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Only what the client itself holds is freed."""
        leases = self._groups.get(group, {})
        for queue in queues:
            lease = leases.get(queue)
            if lease is not None and lease.client_id == client_id:
                del leases[queue]
                self._count -= 1
        if not leases:
            self._groups.pop(group, None)

    def holds_any(self, group: str) -> bool:
        """Whether any queue of the group is locked: its consumers are orderly ones."""
        now = self._now()
        return any(lease.expires_at > now for lease in self._groups.get(group, {}).values())

    def expire(self) -> None:
        """Forget the leases that have ended."""
        now = self._now()
        for group, leases in list(self._groups.items()):
            ended = [queue for queue, lease in leases.items() if lease.expires_at <= now]
            for queue in ended:
                del leases[queue]
            self._count -= len(ended)
            if not leases:
                del self._groups[group]

    def _make_room(self) -> None:
        if self._count >= self._max:
            self.expire()
        if self._count >= self._max:
            raise Rejected(ResponseCode.SYSTEM_BUSY, f"this broker keeps {self._max} queue locks already")

    def __len__(self) -> int:
        return self._count
