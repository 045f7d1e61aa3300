"""Other members of a group: who they are, and which queues they hold.

A queue that this member wants is claimed. It begins in one only when no other member has it.

Behaviour
- A broker that has started again knows only the members that are back. After a new connection to
  it, those that it listed before count as well for three seconds: members try each second to be
  back.
- Each other member that the broker knows is asked through that broker, by a
  GET_CONSUMER_RUNNING_INFO whose body names the claimed queues. Our members answer with those that
  they hold or claim. A member whose language the broker does not report is asked like ours.
- A Java member is asked for its progress instead (INVOKE_BROKER_TO_GET_CONSUMER_STATUS). For its
  running info, Java's client reads from the broker how far the group got in each queue in which the
  client has no progress yet. From 5.2 on it waits for that on its callback threads, one for each
  core, and the answers need these threads, too. Two such requests at a time block a client of two
  cores: its requests time out, it connects again and again, and its list of members stays old.
- A Java member holds the queues that it names. It names only queues in which it has progress, so it
  gets hand_over_pause_s for any other queue.
- A member that has said once that it has nothing of a queue is not asked again while the claim
  lasts: it would ask us before it takes the queue, and we would say that we claim it.
- In a large group only the members next to this one in the list are asked: when few members come or
  go, the usual strategies move a queue by few places. A change moves the queues of nearly all
  members. If each asked all, that would be a flood.
- A member that is not asked, or cannot answer (an old client, or an access rule), gets
  hand_over_pause_s, too. One that does not answer, or goes on holding the queue, is waited for a
  little longer than members wait for their own calls; then the queue is taken, with a warning.
- The dead are in no broker's list: nobody waits for them.

Differs from Java
- There the first member that is back takes the queues of all.
"""

import asyncio
import bisect
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.subscription import MemberContext
from ogive.errors import BrokerBusy, OgiveError, TransportError
from ogive.model import MessageQueue
from ogive.wire.codes import LanguageCode

log = logging.getLogger(__name__)

RETURN_S: Final = 3.0
"""Time, in seconds, for which members count that a broker listed before it started again."""
ROUND_S: Final = 0.5
"""The longest wait for answers in one pass."""
MARGIN_S: Final = 1.0
"""Added to hand_over_wait_s: the holder learns of the change later, and then has to commit."""
ASKED_AT_ONCE: Final = 32
ASKED_AT_MOST: Final = 32
"""Members that are asked about a queue. Each question costs the broker two requests."""


@dataclass(slots=True)
class _Listed:
    """List of members.

    *counts_until*: how long it counts beside those of a newer connection, once there is one.
    """

    connection: object
    members: Sequence[str]
    counts_until: float | None = None


class MemberLists:
    """Members as the brokers of the topics list them, by topic."""

    def __init__(self, group: MemberContext) -> None:
        self._calls = group.calls
        self._me = group.instance.client_id
        self._loop = asyncio.get_running_loop()
        self._lists: dict[str, _Listed] = {}

    @property
    def largest(self) -> int:
        """Number of members on the longest list."""
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


def nearest(others: Sequence[str], me: str) -> Sequence[str]:
    """Return those of the sorted *others* that are asked: the ones on both sides of *me*."""
    if len(others) <= ASKED_AT_MOST:
        return others
    at = bisect.bisect(others, me) - ASKED_AT_MOST // 2
    return [others[i % len(others)] for i in range(at, at + ASKED_AT_MOST)]


@dataclass(slots=True, eq=False)
class Claim:
    """Claim to one queue.

    *clear* are members that answered that they do not have it, *mute* those that cannot answer.
    """

    since: float
    clear: set[str] = field(default_factory=set)
    mute: set[str] = field(default_factory=set)


class Claims:
    """Claims of one member of a group, and its running questions about them."""

    def __init__(self, group: MemberContext, config: ConsumerConfig) -> None:
        self._group = group
        # for members that do not say what they hold, and for those that go on holding a queue
        self._pause_s = config.hand_over_pause_s
        self._wait_s = config.hand_over_wait_s + MARGIN_S
        self._loop = asyncio.get_running_loop()
        self._claims: dict[MessageQueue, Claim] = {}
        # By topic and member.
        self._asking: dict[tuple[str, str], asyncio.Task[Any]] = {}
        # By client id, as the broker listed them last.
        self._is_java: dict[str, bool] = {}
        self._turns = asyncio.Semaphore(ASKED_AT_ONCE)

    def __contains__(self, queue: MessageQueue) -> bool:
        return queue in self._claims

    @property
    def oldest_s(self) -> float | None:
        """Age of the oldest claim; None without claims."""
        return max(
            (self._loop.time() - claim.since for claim in self._claims.values()), default=None
        )

    def claim(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        """Claim these queues of *topic*, and give up the claims to all others of it."""
        wanted = set(queues)
        for queue in [
            queue for queue in self._claims if queue.topic == topic and queue not in wanted
        ]:
            del self._claims[queue]
        for queue in wanted:
            self._claims.setdefault(queue, Claim(self._loop.time()))

    def settle(self, queues: Iterable[MessageQueue]) -> None:
        """End the claims to queues that are held now."""
        for queue in queues:
            self._claims.pop(queue, None)

    def clear(self) -> None:
        """Give up all claims."""
        self._claims.clear()
        for task in self._asking.values():
            task.cancel()

    async def free(
        self, topic: str, queues: Sequence[MessageQueue], others: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the claimed *queues* of *topic* that no other member has. *others* are sorted."""
        claims = {queue: self._claims[queue] for queue in queues}
        near = nearest(others, self._group.instance.client_id)
        some_are_not_asked = len(near) < len(others)
        await self._ask_all(topic, near, claims)
        if some_are_not_asked:
            # Not in the next pass: in a large group that is up to a second away.
            youngest = max((claim.since for claim in claims.values()), default=0.0)
            await asyncio.sleep(min(ROUND_S, youngest + self._pause_s - self._loop.time()))
            await self._ask_all(topic, near, claims)
        return [
            queue
            for queue, claim in claims.items()
            if self._is_free(queue, claim, near, some_are_not_asked)
        ]

    async def _ask_all(
        self, topic: str, members: Collection[str], claims: Mapping[MessageQueue, Claim]
    ) -> None:
        """Ask those that may have one of the queues, and wait a while for the answers."""
        asked = {
            member: some
            for member in members
            if (topic, member) not in self._asking
            and (
                some := {
                    queue: claim
                    for queue, claim in claims.items()
                    if member not in claim.clear and member not in claim.mute
                }
            )
        }
        if await self._learn_languages(topic, asked):
            for member, some in asked.items():
                self._asking[topic, member] = self._group.spawn(
                    self._ask(topic, member, some, self._is_java.get(member, False)),
                    f"ask {member}",
                )
        asking = [
            task for (of, member), task in self._asking.items() if of == topic and member in members
        ]
        if asking:
            await asyncio.wait(asking, timeout=ROUND_S)

    async def _learn_languages(self, topic: str, members: Collection[str]) -> bool:
        """Learn the languages of *members*. Return False if the broker does not answer now.

        A member that the broker does not list is leaving or reconnecting, and cannot be asked.
        """
        if self._is_java.keys() >= {*members}:
            return True
        group = self._group.name
        try:
            languages = await self._group.calls.languages(topic)
        except (TransportError, BrokerBusy) as exc:
            # The next pass asks again.
            log.debug("%s: the languages of its members are not known: %s", group, exc)
            return False
        except OgiveError as exc:
            log.debug("%s: the broker does not report languages: %s", group, exc)
            languages = dict.fromkeys(members, "")
        self._is_java = {
            member: language == LanguageCode.JAVA.name for member, language in languages.items()
        }
        return True

    def _is_free(
        self, queue: MessageQueue, claim: Claim, asked: Iterable[str], some_are_not_asked: bool
    ) -> bool:
        age_s = self._loop.time() - claim.since
        if some_are_not_asked and age_s < self._pause_s:
            return False
        waited_for = [
            member
            for member in asked
            if member not in claim.clear and (member not in claim.mute or age_s < self._pause_s)
        ]
        if waited_for and age_s >= self._wait_s:
            names = ", ".join(waited_for[:3])
            log.warning(
                "took over %s of %s although %s did not release it within %.1f s",
                queue,
                self._group.name,
                names,
                age_s,
            )
            return True
        return not waited_for

    async def _ask(
        self, topic: str, member: str, claims: Mapping[MessageQueue, Claim], is_java: bool
    ) -> None:
        group, calls = self._group.name, self._group.calls
        try:
            async with self._turns:
                held = (
                    await calls.queues_in_progress(topic, member, self._wait_s)
                    if is_java
                    else await calls.held_by(topic, member, claims, self._wait_s)
                )
        except (TransportError, BrokerBusy) as exc:
            # Of our own connection, no answer in time, or too many questions: it is asked again.
            log.debug("%s: %s does not say what it holds of %s: %s", group, member, topic, exc)
        except OgiveError as exc:
            log.debug("%s: %s cannot say what it holds of %s: %s", group, member, topic, exc)
            for claim in claims.values():
                claim.mute.add(member)
        else:
            for queue, claim in claims.items():
                if queue not in held:
                    (claim.mute if is_java else claim.clear).add(member)
        finally:
            self._asking.pop((topic, member), None)
