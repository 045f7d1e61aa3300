"""Who sent, got and committed what: the book that tests of delivery keep, and the questions they
ask of it.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from ogive.model import MessageExt, MessageQueue


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message handed to one member's listener."""

    member: str
    queue: MessageQueue
    offset: int
    body: bytes


@dataclass(slots=True)
class Ledger:
    """Bodies name messages: each is sent once.

    Kept in the test's own process, which is never killed.

    An attempt whose outcome is unknown stands in *attempted* and not in *acknowledged*: it may be
    received, and need not be.
    """

    attempted: set[bytes] = field(default_factory=set)
    acknowledged: set[bytes] = field(default_factory=set)
    deliveries: list[Delivery] = field(default_factory=list)
    committed: dict[MessageQueue, list[int]] = field(default_factory=dict)
    """What the group told of a queue's progress, in order."""

    # --- entries ----------------------------------------------------------------------------------

    def sent(self, bodies: Iterable[bytes]) -> None:
        """Tried, and acknowledged."""
        bodies = list(bodies)
        self.attempted.update(bodies)
        self.acknowledged.update(bodies)

    def receive(self, message: MessageExt, member: str = "") -> None:
        self.deliveries.append(Delivery(member, message.queue, message.queue_offset, message.body))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        self.committed.setdefault(queue, []).append(offset)

    # --- questions --------------------------------------------------------------------------------

    @property
    def received(self) -> set[bytes]:
        return {delivery.body for delivery in self.deliveries}

    @property
    def lost(self) -> set[bytes]:
        """Acknowledged and never delivered."""
        return self.acknowledged - self.received

    @property
    def phantom(self) -> set[bytes]:
        """Delivered, and nobody ever tried to send it."""
        return self.received - self.attempted

    @property
    def duplicates(self) -> int:
        """Deliveries beyond the first of each message."""
        return len(self.deliveries) - len(self.received)

    @property
    def more_than_once(self) -> set[bytes]:
        return {
            body
            for body, count in Counter(delivery.body for delivery in self.deliveries).items()
            if count > 1
        }

    @property
    def reused(self) -> list[tuple[MessageQueue, int]]:
        """Places (queue, offset) under which two different messages came."""
        places: dict[tuple[MessageQueue, int], set[bytes]] = {}
        for delivery in self.deliveries:
            places.setdefault((delivery.queue, delivery.offset), set()).add(delivery.body)
        return [place for place, bodies in places.items() if len(bodies) > 1]

    @property
    def disordered(self) -> list[Delivery]:
        """First deliveries of a message that came after a later message of the same queue."""
        highest: dict[MessageQueue, int] = {}
        seen: set[tuple[MessageQueue, int]] = set()
        wrong = []
        for delivery in self.deliveries:
            place = (delivery.queue, delivery.offset)
            if place not in seen and delivery.offset < highest.get(delivery.queue, -1):
                wrong.append(delivery)
            seen.add(place)
            highest[delivery.queue] = max(delivery.offset, highest.get(delivery.queue, -1))
        return wrong

    @property
    def skipped(self) -> list[tuple[MessageQueue, int]]:
        """Offsets that the group's progress passed in a queue although no listener had got them by
        the end.
        """
        got: dict[MessageQueue, set[int]] = {}
        for delivery in self.deliveries:
            got.setdefault(delivery.queue, set()).add(delivery.offset)
        return [
            (queue, offset)
            for queue, told in self.committed.items()
            for offset in range(min(told), max(told))
            if offset not in got.get(queue, ())
        ]

    @property
    def went_back(self) -> list[tuple[MessageQueue, int, int]]:
        """(queue, from, to) where progress was told that lies before what had been told."""
        return [
            (queue, before, after)
            for queue, told in self.committed.items()
            for before, after in pairwise(told)
            if after < before
        ]

    def check(self) -> None:
        """Nothing lost, nothing invented, no offset that names two messages."""
        assert not self.lost, f"{len(self.lost)} lost: {sorted(self.lost)[:10]}"
        assert not self.phantom, f"{len(self.phantom)} phantom: {sorted(self.phantom)[:10]}"
        assert not self.reused, f"offsets that name two messages: {self.reused[:10]}"
