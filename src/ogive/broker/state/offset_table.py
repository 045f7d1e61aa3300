"""Progress of each group in each queue, and resets that members have not been notified of.

Source: ConsumerOffsetManager.java, 5.3.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from ogive.broker.replies import Rejected
from ogive.errors import ResponseCode
from ogive.model import DLQ_PREFIX, RETRY_PREFIX
from ogive.wire.bodies.configs import DataVersion
from ogive.wire.command import whole_number

log = logging.getLogger(__name__)


class Asker(NamedTuple):
    """Client that asks for a group.

    *client_id* is empty where no member has said yet that the connection is its own.
    """

    connection: object
    client_id: str


class Audience(NamedTuple):
    """Audience of a reset: *members* by their client ids, and, for as long as members may be away,
    *others* that connect.
    """

    members: Collection[str] = ()
    others: bool = False


@dataclass(slots=True)
class _Heard:
    """State of a connection with regard to a reset."""

    # that it was given last, by an answer or as it asked for one
    offset: int = -1
    # a pull of it was answered with that
    moved: bool = False
    # it has pulled since: what it commits is new
    knows: bool = False


@dataclass(slots=True)
class _Note:
    """A reset that some clients have not been notified of. Their commits are ignored."""

    # those of them that were online
    members: frozenset[str]
    # for so long, whoever comes with a place that was not given to it since is another
    until: float
    heard: WeakKeyDictionary[object, _Heard] | None = None

    def heard_by(self, connection: object) -> _Heard:
        # most of the notes after a crash are asked for by nobody
        if self.heard is None:
            self.heard = WeakKeyDictionary()
        return self.heard.setdefault(connection, _Heard())


class Resets:
    """Resets for each queue, until all clients have been notified that may have a position of their
    own: the members that were online, and for *away_s* any client.

    A client knows of the reset when it pulls from an offset that it was given since, or pulls again
    after it was redirected.
    """

    def __init__(
        self,
        position: Callable[[str, str, int], int | None],
        most: Callable[[], int],
        away_s: float,
        now: Callable[[], float],
    ) -> None:
        """*position*: returns a group's offset in a topic's queue.

        *most*: returns the limit of resets, and of members in them.
        """
        self._position = position
        self._most = most
        self._away_s = away_s
        self._now = now
        # (topic, group, queue id)
        self._notes: dict[tuple[str, str, int], _Note] = {}
        # notes, and members in them
        self._noted = 0
        # of them, the least that is still to come
        self._next_until = math.inf
        # grows with every change
        self.version = 0

    def __bool__(self) -> bool:
        return bool(self._notes)

    def is_untold(self, group: str, topic: str, queue_id: int, asker: Asker) -> bool:
        """Return True if the queue was reset and *asker* has not been notified yet.

        Its commits are ignored until then.
        """
        note = self._notes.get((topic, group, queue_id))
        if note is None or (
            note.heard is not None
            and (heard := note.heard.get(asker.connection)) is not None
            and heard.knows
        ):
            return False
        return asker.client_id in note.members or self._now() < note.until

    def give(self, group: str, topic: str, queue_id: int, asker: Asker, offset: int) -> None:
        """Record that *asker* gets the group's offset, and may continue there."""
        if self.is_untold(group, topic, queue_id, asker):
            self._notes[topic, group, queue_id].heard_by(asker.connection).offset = offset

    def redirect(self, group: str, topic: str, queue_id: int, asker: Asker, at: int) -> int | None:
        """Return the offset at which *asker*, which pulls from *at*, has to continue instead.

        Return None if it knows of the reset, or pulls again after it was redirected.
        """
        if not self.is_untold(group, topic, queue_id, asker):
            return None
        heard = self._notes[topic, group, queue_id].heard_by(asker.connection)
        if heard.moved or heard.offset == at:
            heard.knows = True
            self._let_go(topic, group, queue_id, asker.client_id)
            return None
        heard.moved, heard.offset = True, self._position(group, topic, queue_id) or 0
        return heard.offset

    def hint(self, group: str, topic: str, queue_id: int, asker: Asker) -> int | None:
        """Redirect a pull that waited during the reset: it may be from a position that *asker* has
        left, so the next one is redirected as well.
        """
        if not self.is_untold(group, topic, queue_id, asker):
            return None
        offset = self._position(group, topic, queue_id) or 0
        self.give(group, topic, queue_id, asker, offset)
        return offset

    def forget_old(self) -> None:
        """Forget the resets for any client whose time is over."""
        now = self._now()
        if now < self._next_until:
            return
        for place in [
            place for place, note in self._notes.items() if now >= note.until and not note.members
        ]:
            self.drop(place)
        self._next_until = min(
            [note.until for note in self._notes.values() if note.until > now], default=math.inf
        )

    def note(self, group: str, topic: str, queue_id: int, audience: Audience) -> None:
        place = topic, group, queue_id
        self.drop(place)
        if not (audience.members or audience.others):
            return
        room = self._most() - self._noted
        if room <= 0:
            log.warning(
                "members of %s are not notified of the reset on %s/%d: too many resets wait for "
                "their members",
                group,
                topic,
                queue_id,
            )
            return
        # too many to know them by name
        if len(audience.members) >= room:
            audience = Audience(others=True)
        until = self._now() + self._away_s if audience.others else -math.inf
        self._notes[place] = _Note(frozenset(audience.members), until)
        if audience.others:
            self._next_until = min(self._next_until, until)
        self._noted += 1 + len(audience.members)
        self.version += 1

    def _let_go(self, topic: str, group: str, queue_id: int, client_id: str) -> None:
        """Remove a member that knows of the reset."""
        note = self._notes[topic, group, queue_id]
        if client_id in note.members:
            note.members -= {client_id}
            self._noted -= 1
            self.version += 1
        if not note.members and self._now() >= note.until:
            self.drop((topic, group, queue_id))

    def drop(self, place: tuple[str, str, int]) -> None:
        note = self._notes.pop(place, None)
        if note is not None:
            self._noted -= 1 + len(note.members)
            self.version += 1

    def drop_group(self, group: str) -> None:
        for place in [place for place in self._notes if place[1] == group]:
            self.drop(place)

    def table(self) -> dict[str, list[int]]:
        """Return ``{"topic@group": queue ids, "topic@group@client": queue ids}``: for any client,
        and for each member.
        """
        found: dict[str, list[int]] = {}
        for (topic, group, queue), note in sorted(self._notes.items()):
            for who in (*sorted(note.members), *([""] if self._now() < note.until else [])):
                found.setdefault("@".join((topic, group, who)).removesuffix("@"), []).append(queue)
        return found

    def load(self, entries: Iterable[tuple[str, int]]) -> None:
        """Load *entries*: keys of a table(), and one queue each."""
        told: dict[tuple[str, str, int], set[str]] = {}
        for key, queue in entries:
            topic, _, rest = key.partition("@")
            group, _, member = rest.partition("@")
            if group:
                told.setdefault((topic, group, queue), set()).add(member)
        for (topic, group, queue), members in told.items():
            self.note(group, topic, queue, Audience(members - {""}, others="" in members))
        self.version = 0


_MAX_OFFSET: Final = 0x7FFFFFFFFFFFFFFF


class OffsetTable:
    """group x topic x queue -> offset.

    In memory; the owner saves a snapshot when ``version`` has changed.

    ``resets`` are those that members have not been notified of yet.
    """

    def __init__(
        self, max_offsets: int, *, away_s: float = 120.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        # (topic, group) -> queue id -> offset
        self._queues: dict[tuple[str, str], dict[int, int]] = {}
        # how many of them are of a topic
        self._topics: Counter[str] = Counter()
        # and of a group
        self._groups: Counter[str] = Counter()
        self._count = 0
        self._max = max_offsets
        self._version = 0
        self.resets = Resets(self.get, self._most, away_s, now)
        # the number of the newest position in the journal of leases that is here, too
        self.popped = 0
        self.lowest_leased: Callable[[], Mapping[tuple[str, str, int], int]] = dict
        """(group, topic, queue id) -> the lowest offset there that is not acknowledged."""

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self._version + self.resets.version

    def _most(self) -> int:
        # a file may hold more offsets than are allowed
        return max(self._max, self._count)

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset; None if the group has no progress there."""
        queues = self._queues.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store a client's progress; it may go back. Raises Rejected if the table is full."""
        self.check_room(group, topic, queue_id)
        self.note(group, topic, queue_id, offset)

    def check_room(self, group: str, topic: str, queue_id: int) -> None:
        """Raise Rejected if the table is full, and the group has no progress in the queue yet."""
        if self._count >= self._max and self.get(group, topic, queue_id) is None:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"this broker keeps {self._count} offsets already, none for {group} on "
                f"{topic}/{queue_id}",
            )

    def note(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store the broker's own progress, and the contents of its file: neither is refused if the
        table is full.
        """
        queues = self._queues.get((topic, group))
        if queues is None:
            queues = self._queues[topic, group] = {}
            self._topics[topic] += 1
            self._groups[group] += 1
        known = queues.get(queue_id)
        if known == offset:
            return
        self._count += known is None
        queues[queue_id] = offset
        self._version += 1

    def reset(self, group: str, topic: str, queue_id: int, offset: int, audience: Audience) -> None:
        """Move the group to another offset.

        *audience*: the clients to notify with their next pull.
        """
        self.commit(group, topic, queue_id, offset)
        self.resets.note(group, topic, queue_id, audience)

    def queues_of(self, group: str, topic: str) -> Mapping[int, int]:
        """queue id -> offset"""
        return self._queues.get((topic, group), {})

    def topics_of(self, group: str) -> list[str]:
        """Topics on which the group has progress."""
        return [topic for topic, owner in self._queues if owner == group]

    def topics_to_clone(self, group: str) -> list[str]:
        """Return the topics whose offsets another group can take over.

        The retry topic and the dead letters are the group's own.
        """
        return [
            topic
            for topic in self.topics_of(group)
            if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        ]

    def pairs(self) -> Iterable[tuple[str, str]]:
        """Topic and group of all that has progress."""
        return self._queues.keys()

    def has_topic(self, topic: str) -> bool:
        """Return True if any group has progress on the topic."""
        return topic in self._topics

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have progress on the topic."""
        return [group for name, group in self._queues if name == topic]

    def remove_topic(
        self,
        topic: str,
        online: Mapping[str, Audience] = MappingProxyType({}),
        queue_ids: Collection[int] = (),
    ) -> None:
        """Forget a deleted topic.

        *online*: groups, and their clients that begin again in *queue_ids* if it is created again.
        """
        if topic in self._topics:
            self._remove([key for key in self._queues if key[0] == topic])
        for group, audience in online.items():
            for queue_id in queue_ids:
                self.resets.note(group, topic, queue_id, audience)

    def remove_group(self, group: str) -> None:
        if group in self._groups:
            self._remove([key for key in self._queues if key[1] == group])
        self.resets.drop_group(group)

    def _remove(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            self._count -= len(self._queues.pop(key))
            self._version += 1
            for table, name in zip((self._topics, self._groups), key, strict=True):
                table[name] -= 1
                if not table[name]:
                    del table[name]

    def cut(self, end: Callable[[str, int], int | None]) -> int:
        """Reset progress beyond the end of its queue, ``end(topic, queue_id)``, to the end; return
        how often. None: it may stay.

        After a power cut with flush=async the last messages are lost, and the next ones get their
        offsets: they would be skipped.
        """
        beyond = [
            (topic, group, queue, last)
            for (topic, group), queues in self._queues.items()
            for queue, at in queues.items()
            if (last := end(topic, queue)) is not None and at > last
        ]
        for topic, group, queue, last in beyond:
            self._queues[topic, group][queue] = last
            # a member that has outlived the broker would go on from its own place
            self.resets.note(group, topic, queue, Audience(others=True))
        return len(beyond)

    def doubt(self) -> None:
        """Let members continue at the progress here, not at their own: the last messages may be
        lost, and others have their offsets.

        Progress beyond the end shows this, as long as the queue has not grown past it again: a
        member survives a restart of its broker.
        """
        for (topic, group), queues in self._queues.items():
            for queue in queues:
                self.resets.note(group, topic, queue, Audience(others=True))

    def __len__(self) -> int:
        return self._count

    # --- consumerOffset.json ----------------------------------------------------------------------

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Return a function that makes the file's content.

        It has Apache's form, ``{"offsetTable": {"topic@group": {"0": 5}}}``; neither name can hold
        an @. If members have to be told of a reset there is also an ``untoldTable``,
        ``{"topic@group": [0], "topic@group@client": [0]}``. Apache's broker ignores it.

        A queue with leases out has the offset of the first leased message there, so that a broker
        which cannot read our leases gives those messages again; ``poppedTable`` holds that offset
        and the real one, ``{"topic@group": {"0": [3, 5]}}``, and ``popped`` the number of the
        newest position in the journal that is in the table.

        The table may change while it is called, in another thread.
        """
        queues, version = {key: dict(queues) for key, queues in self._queues.items()}, self.version
        untold, number = self.resets.table(), self.popped
        popped: dict[str, dict[str, list[int]]] = {}
        for (group, topic, queue), low in self.lowest_leased().items():
            table = queues.get((topic, group), {})
            if low < table.get(queue, 0):
                popped.setdefault(f"{topic}@{group}", {})[str(queue)] = [low, table[queue]]
                table[queue] = low
        return lambda: {
            "dataVersion": DataVersion(version).to_json(),
            "offsetTable": {
                f"{topic}@{group}": {str(queue): at for queue, at in table.items()}
                for (topic, group), table in queues.items()
            },
            "popped": number,
            **({"poppedTable": popped} if popped else {}),
            **({"untoldTable": untold} if untold else {}),
        }

    def load(self, value: Mapping[str, Any]) -> None:
        """Take over a file's content, also of more entries than the table takes from clients; those
        that are none are left out.
        """
        for key, queue, offset in _entries(value.get("offsetTable")):
            topic, _, group = key.partition("@")
            if group:
                self.note(group, topic, queue, offset)
        for key, queue, (low, offset) in _popped_entries(value.get("poppedTable")):
            topic, _, group = key.partition("@")
            # else another broker has gone on from there
            if self.get(group, topic, queue) == low:
                self.note(group, topic, queue, offset)
        self.resets.load(_untold_entries(value.get("untoldTable")))
        self._version = 0
        if self._count > self._max:
            log.warning(
                "the file has %d consumer offsets, more than the limit of %d: all are kept, new "
                "ones are refused",
                self._count,
                self._max,
            )


def _entries(table: object) -> Iterator[tuple[str, int, int]]:
    for key, queues in table.items() if isinstance(table, dict) else ():
        for text, offset in queues.items() if isinstance(queues, dict) else ():
            queue = whole_number(str(text))
            if queue is not None and isinstance(offset, int) and 0 <= offset <= _MAX_OFFSET:
                yield str(key), queue, offset


def _popped_entries(table: object) -> Iterator[tuple[str, int, tuple[int, int]]]:
    for key, queues in table.items() if isinstance(table, dict) else ():
        for text, pair in queues.items() if isinstance(queues, dict) else ():
            queue = whole_number(str(text))
            if (
                queue is not None
                and isinstance(pair, list)
                and len(pair) == 2
                and all(isinstance(at, int) and 0 <= at <= _MAX_OFFSET for at in pair)
            ):
                yield str(key), queue, (pair[0], pair[1])


def _untold_entries(table: object) -> Iterator[tuple[str, int]]:
    for key, queues in table.items() if isinstance(table, dict) else ():
        for queue in queues if isinstance(queues, list) else ():
            if type(queue) is int and queue >= 0:
                yield str(key), queue
