"""Whom the broker still has to tell that a group was put elsewhere in a queue."""

import logging
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

log = logging.getLogger(__name__)


class Asker(NamedTuple):
    """Who asks for a group.

    *client_id* is empty where no member has said yet that the connection is its own.
    """

    connection: object
    client_id: str


class Audience(NamedTuple):
    """Whom a reset concerns: *members* by their client ids, and, for as long as members may be
    away, *others* who come.
    """

    members: Collection[str] = ()
    others: bool = False


@dataclass(slots=True)
class _Heard:
    """What a connection has heard of a reset."""

    # that it was given last, by an answer or as it asked for one
    offset: int = -1
    # a pull of it was answered with that
    moved: bool = False
    # it has pulled since: what it commits is new
    knows: bool = False


@dataclass(slots=True)
class _Note:
    """A reset of which not everybody has heard. What the others commit is ignored."""

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
    """A reset is noted for each queue until those have heard of it who may have a place of their
    own there: the members that were online, and for *away_s* whoever comes.

    Somebody knows when it pulls from an offset that it was given since, or pulls on after it was
    sent there.
    """

    def __init__(
        self,
        position: Callable[[str, str, int], int | None],
        most: Callable[[], int],
        away_s: float,
        now: Callable[[], float],
    ) -> None:
        """*position*: of a group in a topic's queue.

        *most*: how many notes, and members in them, there may be now.
        """
        self._position, self._most, self._away_s, self._now = position, most, away_s, now
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
        """Whether the queue was reset and *asker* does not know yet: what it commits is ignored."""
        note = self._notes.get((topic, group, queue_id))
        if note is None or (
            note.heard is not None
            and (heard := note.heard.get(asker.connection)) is not None
            and heard.knows
        ):
            return False
        return asker.client_id in note.members or self._now() < note.until

    def give(self, group: str, topic: str, queue_id: int, asker: Asker, offset: int) -> None:
        """*asker* is told where the group stands, and may go on from there."""
        if self.is_untold(group, topic, queue_id, asker):
            self._notes[topic, group, queue_id].heard_by(asker.connection).offset = offset

    def redirect(self, group: str, topic: str, queue_id: int, asker: Asker, at: int) -> int | None:
        """Where *asker*, who pulls from *at*, has to go on instead; None where it knows, or pulls
        on though it was told.
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
        """redirect() for a pull that waited when the group was put elsewhere: it may be of a place
        that *asker* has left, so that the next one is redirected as well.
        """
        if not self.is_untold(group, topic, queue_id, asker):
            return None
        offset = self._position(group, topic, queue_id) or 0
        self.give(group, topic, queue_id, asker, offset)
        return offset

    def forget_old(self) -> None:
        """Those for whoever comes, when their time is over."""
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
                "the reset of %s on %s/%d is told to nobody: there are too many that members have "
                "not heard of",
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
        """That member knows."""
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
        """``{"topic@group": queue ids, "topic@group@client": queue ids}``: whoever comes, and each
        member.
        """
        found: dict[str, list[int]] = {}
        for (topic, group, queue), note in sorted(self._notes.items()):
            for who in (*sorted(note.members), *([""] if self._now() < note.until else [])):
                found.setdefault("@".join((topic, group, who)).removesuffix("@"), []).append(queue)
        return found

    def load(self, entries: Iterable[tuple[str, int]]) -> None:
        """*entries*: keys of a table(), and one queue each."""
        told: dict[tuple[str, str, int], set[str]] = {}
        for key, queue in entries:
            topic, _, rest = key.partition("@")
            group, _, member = rest.partition("@")
            if group:
                told.setdefault((topic, group, queue), set()).add(member)
        for (topic, group, queue), members in told.items():
            self.note(group, topic, queue, Audience(members - {""}, others="" in members))
        self.version = 0
