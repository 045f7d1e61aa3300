"""The progress of each group in each queue: the next offset to consume. Source: ConsumerOffsetManager.java, 5.3."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from ogive.broker.replies import Rejected
from ogive.errors import ResponseCode
from ogive.model import DLQ_PREFIX, RETRY_PREFIX
from ogive.wire.bodies import DataVersion
from ogive.wire.numbers import whole_number

log = logging.getLogger(__name__)

ALL: Final = ""
"""In place of a client id: a group whose queues each have one member at a time."""
_MAX_OFFSET: Final = 0x7FFFFFFFFFFFFFFF


class OffsetTable:
    """group x topic x queue -> offset. In memory; whoever owns it saves a snapshot when ``version`` has moved."""

    def __init__(self, max_offsets: int) -> None:
        self._queues: dict[tuple[str, str], dict[int, int]] = {}  # (topic, group) -> queue id -> offset
        self._topics: Counter[str] = Counter()  # how many of them are of a topic
        self._groups: Counter[str] = Counter()  # and of a group
        self._count = 0
        self._max = max_offsets
        # (topic, group, client id or ALL) -> queue ids; without an offset in the table: back to 0
        self._untold: dict[tuple[str, str, str], set[int]] = {}
        self._untold_count = 0
        self._unattended: set[tuple[str, str, int]] = set()  # those of them (topic, group, queue id) that nobody was online for
        self._hinted: dict[tuple[str, str, int], set[object]] = {}  # of those: who has heard of it, see hint()
        self.version = 0  # grows with every change

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """None: the group has no progress there."""
        queues = self._queues.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Take over a client's progress; it may go back. Raises Rejected when the table is full."""
        if self._count >= self._max and self.get(group, topic, queue_id) is None:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY, f"this broker keeps {self._count} offsets already, none for {group} on {topic}/{queue_id}"
            )
        self.note(group, topic, queue_id, offset)

    def note(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """commit() for the broker's own progress, and for what its file holds: neither is refused when the table is full."""
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
        self.version += 1

    def reset(self, group: str, topic: str, queue_id: int, offset: int, *, tell: Collection[str], attended: bool = True) -> None:
        """Put the group elsewhere. *tell*: those who have to learn of it with their next pull: ALL stands for whoever holds the queue, and
        a broadcasting member is its client id. *attended*: one of them is online, for sure.
        """
        self.commit(group, topic, queue_id, offset)
        for member in tell:
            self._note_untold(group, topic, queue_id, member)
        if not attended and self.is_untold(group, topic, queue_id):
            self._unattended.add((topic, group, queue_id))

    def begins(self, group: str, topic: str, queue_id: int) -> None:
        """A member asks where to begin. If none was online at the reset this one has just started, and need not be told again."""
        if (topic, group, queue_id) in self._unattended:
            self.tell(group, topic, queue_id)

    @property
    def has_untold(self) -> bool:
        return bool(self._untold)

    def is_untold(self, group: str, topic: str, queue_id: int, member: str = ALL) -> bool:
        """Whether the queue was reset and *member* does not know yet: what it commits is ignored."""
        return bool(self._untold) and queue_id in self._untold.get((topic, group, member), ())

    def tell(self, group: str, topic: str, queue_id: int, member: str = ALL) -> int | None:
        """The offset that the queue was reset to, if *member* does not know; from now on it counts as told."""
        if not self.is_untold(group, topic, queue_id, member):
            return None
        self._unattended.discard((topic, group, queue_id))
        self._hinted.pop((topic, group, queue_id), None)
        self._untold[topic, group, member].discard(queue_id)
        if not self._untold[topic, group, member]:
            del self._untold[topic, group, member]
        self._untold_count -= 1
        self.version += 1
        return self.get(group, topic, queue_id) or 0

    def hint(self, group: str, topic: str, queue_id: int, member: str, asker: object) -> int | None:
        """tell() for *asker*, who may not have the queue any more: whoever has it still has to be told."""
        if not self.is_untold(group, topic, queue_id, member):
            return None
        self._hinted.setdefault((topic, group, queue_id), set()).add(asker)
        return self.get(group, topic, queue_id) or 0

    def was_hinted(self, group: str, topic: str, queue_id: int, asker: object, offset: int) -> bool:
        """Whether *asker* has heard of it by hint(), and goes on at *offset* for that."""
        return asker in self._hinted.get((topic, group, queue_id), ()) and offset == (self.get(group, topic, queue_id) or 0)

    def _note_untold(self, group: str, topic: str, queue_id: int, member: str = ALL) -> None:
        if self._untold_count >= max(self._max, self._count):
            return  # a file may hold more offsets than are allowed
        self._hinted.pop((topic, group, queue_id), None)
        queues = self._untold.setdefault((topic, group, member), set())
        if queue_id not in queues:
            queues.add(queue_id)
            self._untold_count += 1
            self.version += 1

    def queues_of(self, group: str, topic: str) -> Mapping[int, int]:
        """queue id -> offset"""
        return self._queues.get((topic, group), {})

    def topics_of(self, group: str) -> list[str]:
        """Topics on which the group has progress."""
        return [topic for topic, owner in self._queues if owner == group]

    def topics_to_clone(self, group: str) -> list[str]:
        """Those on which another group can be put where this one is: its retry topic and its dead letters are its own."""
        return [topic for topic in self.topics_of(group) if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))]

    def pairs(self) -> Iterable[tuple[str, str]]:
        """Topic and group of all that has progress."""
        return self._queues.keys()

    def has_topic(self, topic: str) -> bool:
        """Whether any group has progress on the topic."""
        return topic in self._topics

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have progress on the topic."""
        return [group for name, group in self._queues if name == topic]

    def remove_topic(self, topic: str, online: Iterable[tuple[str, str]] = (), queue_ids: Collection[int] = ()) -> None:
        """The topic is deleted. *online*: groups, and who of them, see reset(), is told to begin anew in *queue_ids* should it be made
        again."""
        if topic in self._topics:
            self._remove([key for key in self._queues if key[0] == topic])
        for group, member in online:
            for queue_id in queue_ids:
                self._note_untold(group, topic, queue_id, member)

    def remove_group(self, group: str) -> None:
        if group in self._groups:
            self._remove([key for key in self._queues if key[1] == group])
        for place in [place for place in self._hinted if place[1] == group]:
            del self._hinted[place]
        for key in [key for key in self._untold if key[1] == group]:
            self._unattended.difference_update((*key[:2], queue_id) for queue_id in self._untold[key])
            self._untold_count -= len(self._untold.pop(key))
            self.version += 1

    def _remove(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            self._count -= len(self._queues.pop(key))
            self.version += 1
            for table, name in zip((self._topics, self._groups), key, strict=True):
                table[name] -= 1
                if not table[name]:
                    del table[name]

    def cut(self, end: Callable[[str, int], int | None]) -> int:
        """Take progress beyond the end of its queue, ``end(topic, queue_id)``, back to it; how often that was needed. None: it may stay.

        After a power cut with flush=async the last messages are gone, and the next ones get their offsets: they would be passed over.
        """
        beyond = [
            (topic, group, queue, last)
            for (topic, group), queues in self._queues.items()
            for queue, at in queues.items()
            if (last := end(topic, queue)) is not None and at > last
        ]
        for topic, group, queue, last in beyond:
            self._queues[topic, group][queue] = last
            self._note_untold(group, topic, queue)  # a member that has outlived the broker would go on from its own place
        return len(beyond)

    def doubt(self) -> None:
        """Members go on from the progress here, not from their own: the last messages may be gone, and others have their offsets.

        Progress that is beyond the end tells that, as long as the queue has not grown past it again: a member outlives its broker.
        """
        for (topic, group), queues in self._queues.items():
            for queue in queues:
                self._note_untold(group, topic, queue)

    def __len__(self) -> int:
        return self._count

    # --- consumerOffset.json -----------------------------------------------------------------------------------------

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """What makes the file's content, Apache's form: ``{"offsetTable": {"topic@group": {"0": 5}}}``; neither name can hold an @.

        Where members have to be told something there is an ``untoldTable``, too, ``{"topic@group": [0], "topic@group@client": [0]}``;
        Apache's broker passes over it.

        The table may change while it is called, in another thread.
        """
        queues, version = {key: dict(queues) for key, queues in self._queues.items()}, self.version
        untold = {key: sorted(queues) for key, queues in self._untold.items()}
        return lambda: {
            "dataVersion": DataVersion(version).to_json(),
            "offsetTable": {
                f"{topic}@{group}": {str(queue): at for queue, at in table.items()} for (topic, group), table in queues.items()
            },
            **({"untoldTable": {"@".join(key).removesuffix("@"): ids for key, ids in untold.items()}} if untold else {}),
        }

    def load(self, value: Mapping[str, Any]) -> None:
        """Take over a file's content, also of more entries than the table takes from clients; those that are none are left out."""
        for key, queue, offset in _entries(value.get("offsetTable")):
            topic, _, group = key.partition("@")
            if group:
                self.note(group, topic, queue, offset)
        for key, queue in _untold_entries(value.get("untoldTable")):
            topic, _, rest = key.partition("@")
            group, _, member = rest.partition("@")
            if group:
                self._note_untold(group, topic, queue, member)
        self.version = 0
        if self._count > self._max:
            log.warning("the file holds %d offsets of groups, the limit is %d: all are kept, new ones are refused", self._count, self._max)


def _entries(table: object) -> Iterator[tuple[str, int, int]]:
    for key, queues in table.items() if isinstance(table, dict) else ():
        for text, offset in queues.items() if isinstance(queues, dict) else ():
            queue = whole_number(str(text))
            if queue is not None and isinstance(offset, int) and 0 <= offset <= _MAX_OFFSET:
                yield str(key), queue, offset


def _untold_entries(table: object) -> Iterator[tuple[str, int]]:
    for key, queues in table.items() if isinstance(table, dict) else ():
        for queue in queues if isinstance(queues, list) else ():
            if type(queue) is int and queue >= 0:
                yield str(key), queue
