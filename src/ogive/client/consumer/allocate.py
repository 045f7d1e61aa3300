"""Allocation strategies: pure functions that divide a topic's queues, with the same result at every
member. Source: ``rebalance/*.java``, 5.5.

Members and queues are given in order (ids as plain strings; queues by topic, broker name, queue
id); *me* is one of the members. Together the members take every queue exactly once, unless a
strategy says otherwise.
"""

import bisect
import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from ogive.errors import InvalidOption
from ogive.model import MessageQueue

Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]
"""(queues, members, me) -> my queues"""


def average(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """Give neighbouring queues; the first members take one more if the division leaves a rest.

    Java's default (AVG).
    """
    index, extra = members.index(me), len(queues) % len(members)
    share = len(queues) // len(members)
    start = index * share + min(index, extra)
    return list(queues[start : start + share + (index < extra)])


def average_by_circle(
    queues: Sequence[MessageQueue], members: Sequence[str], me: str
) -> list[MessageQueue]:
    """Deal the queues out one by one (AVG_BY_CIRCLE)."""
    return list(queues[members.index(me) :: len(members)])


def consistent_hash(virtual_nodes: int = 10) -> Strategy:
    """Divide by a ring with *virtual_nodes* points for each member: a member that comes or goes
    moves few queues (CONSISTENT_HASH).
    """
    if virtual_nodes < 1:
        raise InvalidOption("a ring needs at least one virtual node for each member")

    def allocate(
        queues: Sequence[MessageQueue], members: Sequence[str], me: str
    ) -> list[MessageQueue]:
        ring = {
            _ring_point(f"{member}-{k}"): member for member in members for k in range(virtual_nodes)
        }
        points = sorted(ring)

        def owner(queue: MessageQueue) -> str:
            at = bisect.bisect_left(points, _ring_point(_queue_text(queue)))
            return ring[points[at % len(points)]]

        return [queue for queue in queues if owner(queue) == me]

    return allocate


def by_config(mine: Iterable[MessageQueue]) -> Strategy:
    """Take exactly the queues in *mine*, whoever else is a member; the other members must be
    configured not to take them (CONFIG).

    Differs from Java: queues that the topic does not have are ignored, and *mine* may have queues
    of several topics.
    """
    wanted = frozenset(mine)
    return lambda queues, members, me: [queue for queue in queues if queue in wanted]


def machine_room(rooms: Collection[str]) -> Strategy:
    """Take only queues of brokers named ``room@broker`` with a room of *rooms*; the queues of other
    rooms are not consumed (MACHINE_ROOM).
    """

    def allocate(
        queues: Sequence[MessageQueue], members: Sequence[str], me: str
    ) -> list[MessageQueue]:
        ours = [queue for queue in queues if _room_of_broker(queue) in rooms]
        index, (share, extra) = members.index(me), divmod(len(ours), len(members))
        mine = ours[share * index : share * (index + 1)]
        return mine + ([ours[share * len(members) + index]] if index < extra else [])

    return allocate


def machine_room_nearby(
    inner: Strategy,
    room_of_queue: Callable[[MessageQueue], str],
    room_of_member: Callable[[str], str],
) -> Strategy:
    """Divide the queues of a room by *inner* among its members; queues of rooms without a member,
    among all (MACHINE_ROOM_NEARBY).
    """

    def allocate(
        queues: Sequence[MessageQueue], members: Sequence[str], me: str
    ) -> list[MessageQueue]:
        members_by_room: dict[str, list[str]] = {}
        for member in members:
            members_by_room.setdefault(_named_room(room_of_member(member), member), []).append(
                member
            )
        queues_by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_by_room.setdefault(_named_room(room_of_queue(queue), str(queue)), []).append(
                queue
            )
        mine: list[MessageQueue] = []
        my_room = room_of_member(me)
        if my_room in queues_by_room:
            mine += inner(queues_by_room.pop(my_room), members_by_room[my_room], me)
        for room in sorted(queues_by_room):
            if room not in members_by_room:
                mine += inner(queues_by_room[room], members, me)
        return mine

    return allocate


def _named_room(room: str, of: str) -> str:
    if not room:
        raise InvalidOption(f"{of} belongs to no machine room")
    return room


def _room_of_broker(queue: MessageQueue) -> str | None:
    room, *rest = queue.broker_name.split("@")
    return room if len(rest) == 1 else None


def _ring_point(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4])


def _queue_text(queue: MessageQueue) -> str:
    """Return a queue's text as Java's toString formats it."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


STRATEGIES: Final[dict[str, Strategy]] = {
    "AVG": average,
    "AVG_BY_CIRCLE": average_by_circle,
    "CONSISTENT_HASH": consistent_hash(),
}
"""Strategies that need no further settings, by Java's names."""
