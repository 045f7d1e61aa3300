"""Connected producers and consumers by group, with their subscriptions.

Source: ConsumerManager.java, ProducerManager.java, 5.3.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from ogive.broker.filters import (
    MAX_EXPRESSION,
    MAX_TAGS,
    Wanted,
    compiled,
    memory_of_filter,
    tag_codes,
    tag_count,
)
from ogive.broker.replies import Rejected
from ogive.broker.state.offset_table import Asker, Audience
from ogive.errors import InvalidExpression, InvalidOption, ResponseCode
from ogive.transport.connection import Connection
from ogive.wire.bodies.clients import SQL92, ConsumerData, SubscriptionData

log = logging.getLogger(__name__)

MAX_CLIENT_ID: Final = 255
# characters of an expression in a log line
MAX_SHOWN: Final = 80
# of the subscriptions that one connection brings: thousands of the usual kind
MAX_CONNECTION_BYTES: Final = 4 * 1024 * 1024
# of all groups' subscriptions
MAX_BYTES: Final = 64 * 1024 * 1024
# memory of a subscription, and of a tag beside its text
_EACH, _TAG = 600, 60


def check_client_id(client_id: str) -> None:
    """Check the length of a client id. Raises InvalidOption."""
    if not 1 <= len(client_id) <= MAX_CLIENT_ID:
        raise InvalidOption(
            f"client id of {len(client_id)} characters: must be between 1 and {MAX_CLIENT_ID}"
        )


def check_subscription(data: SubscriptionData) -> None:
    """Check the length of a subscription's filter. Raises InvalidOption."""
    longest = max(len(data.expression), len(data.tags) and max(map(len, data.tags)))
    tags = max(
        len(data.tags),
        len(data.codes),
        0 if data.expression_type == SQL92 else tag_count(data.expression),
    )
    if longest > MAX_EXPRESSION or tags > MAX_TAGS:
        limits = f"{MAX_EXPRESSION} characters and {MAX_TAGS} tags are the limits"
        raise InvalidOption(f"the subscription to {data.topic[:80]} is too long: {limits}")


def memory_of(wanted: Iterable[SubscriptionData]) -> int:
    """Return the approximate size of the subscriptions, and of their filters after a group has
    pulled with them.
    """
    return sum(
        _EACH
        + len(data.topic)
        + len(data.expression)
        + sum(map(len, data.tags))
        + _TAG * len(data.tags)
        + memory_of_filter(data.expression_type, data.expression, len(data.codes))
        for data in wanted
    )


@dataclass(slots=True, eq=False)
class Client:
    """One client in one group.

    *seen_at* is the time of its last heartbeat, on the table's clock; *user* is the user of its
    credentials, empty without access control; *differs* is the difference to the group's
    subscriptions that the log has reported.
    """

    client_id: str
    connection: Connection
    language: int
    version: int
    seen_at: float
    user: str = ""
    differs: str = ""


@dataclass(slots=True)
class Subscription:
    """A group's subscription to a topic.

    Its filter is parsed with the first pull: a heartbeat may have a thousand, each of which takes
    milliseconds.
    """

    data: SubscriptionData
    _read: tuple[Wanted, str] | None = None

    @property
    def wanted(self) -> Wanted:
        """The filter."""
        return self._filter()[0]

    @property
    def fault(self) -> str:
        """The reason why its expression cannot be parsed, if it cannot."""
        return self._filter()[1]

    def _filter(self) -> tuple[Wanted, str]:
        if self._read is None:
            self._read = filter_of(self.data)
        return self._read


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    """The members of a group that are online, and their subscriptions: the last heartbeat applies
    to all.
    """

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    members: dict[Connection, Client] = field(default_factory=dict)
    fingerprint: int = 0
    # of the subscriptions, see memory_of
    size: int = 0

    @property
    def client_ids(self) -> list[str]:
        return sorted({client.client_id for client in self.members.values()})

    @property
    def is_broadcasting(self) -> bool:
        return self.message_model == "BROADCASTING"

    @property
    def audience(self) -> Audience:
        """Return the audience of a reset.

        Members that share the queues may be away for a moment; a broadcasting member that joins
        later begins again anyway.
        """
        return Audience(self.client_ids, others=not self.is_broadcasting)

    def difference(self, wanted: Iterable[SubscriptionData]) -> str:
        """Describe the difference to the group's subscriptions. Return "" if they are equal."""
        own = {data.topic: data.expression for data in wanted}
        known = {
            topic: subscription.data.expression
            for topic, subscription in self.subscriptions.items()
        }
        for topic in sorted(own.keys() | known.keys()):
            if topic not in own or topic not in known:
                return f"it {'subscribes' if topic in own else 'does not subscribe'} to {topic}"
            if own[topic] != known[topic]:
                return (
                    f"it subscribes to {topic} with {own[topic][:MAX_SHOWN]!r} instead of "
                    f"{known[topic][:MAX_SHOWN]!r}"
                )
        return ""

    def note_fingerprint(self, fingerprint: int) -> bool:
        """Record a heartbeat's fingerprint. Return True if the one before was different."""
        before, self.fingerprint = self.fingerprint, fingerprint
        return before not in (0, fingerprint)

    def subscribe(self, wanted: Iterable[SubscriptionData]) -> bool:
        """Apply a heartbeat's subscriptions. Return True if topics were added or removed.

        A changed expression applies only with a larger version.
        """
        changed = False
        topics = set()
        for data in wanted:
            topics.add(data.topic)
            known = self.subscriptions.get(data.topic)
            if known is None or data.version > known.data.version:
                self.subscriptions[data.topic] = Subscription(data)
                changed = changed or known is None
        for topic in self.subscriptions.keys() - topics:
            del self.subscriptions[topic]
            changed = True
        self.size = memory_of(subscription.data for subscription in self.subscriptions.values())
        return changed


def filter_of(data: SubscriptionData) -> tuple[Wanted, str]:
    """Return the filter of a subscription, or its error: like Java, keep a bad one, and answer its
    pulls with an error.
    """
    if data.expression_type != SQL92:
        return tag_codes(data), ""
    try:
        return compiled(data.expression), ""
    except InvalidExpression as exc:
        return None, str(exc)


class ClientTable:
    """Groups and their members by connection.

    *changed* is called with each group whose membership or topics changed.
    """

    def __init__(
        self,
        *,
        expiry_s: float,
        max_clients: int,
        max_subscriptions: int,
        now: Callable[[], float],
        changed: Callable[[str], None],
    ) -> None:
        self._expiry_s = expiry_s
        self._max_clients = max_clients
        self._max_subscriptions = max_subscriptions
        self._now, self._changed = now, changed
        self.producers: dict[str, dict[Connection, Client]] = {}
        self.consumers: dict[str, ConsumerGroup] = {}
        # producer groups, consumer groups
        self._groups_of: dict[Connection, tuple[set[str], set[str]]] = {}
        # by client id and user; the newest is the last
        self._producing: dict[str, dict[str, dict[Connection, None]]] = {}
        self._count = 0
        # of the subscriptions of all groups
        self._bytes = 0
        # of those that each connection brought, by group
        self._bytes_of: dict[Connection, dict[str, int]] = {}
        self._began = now()
        # consumer groups whose last member went without a word, and when; each is a group of this
        # broker
        self._lost: dict[str, float] = {}

    def __len__(self) -> int:
        return self._count

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        """Return the group, if a member is online."""
        return self.consumers.get(name)

    def may_have_members(self, name: str) -> bool:
        """Return True if a member is online, or may come back.

        Members come back after a start of the broker, or after their connection was cut.
        """
        since = self._lost.get(name, self._began)
        return name in self.consumers or self._now() - since < self._expiry_s

    def audience(self, name: str) -> Audience:
        """Return the audience of a reset of the group."""
        online = self.consumers.get(name)
        return (
            online.audience if online is not None else Audience(others=self.may_have_members(name))
        )

    def asker(self, group: str, connection: Connection) -> Asker:
        """Return the identity of the group's member on *connection*."""
        online = self.consumers.get(group)
        client = online.members.get(connection) if online is not None else None
        return Asker(connection, client.client_id if client is not None else "")

    def producer_connection(self, client_id: str) -> Connection | None:
        """Return the connection of a client that is online as a producer.

        Return None while users on different connections use its id. With access control any client
        may claim any id, and could receive the replies to another user's client.
        """
        users = self._producing.get(client_id, {})
        newest = {next(reversed(connections)) for connections in users.values()}
        if len(newest) != 1 or (
            len(users) > 1 and any(len(connections) > 1 for connections in users.values())
        ):
            return None
        return newest.pop()

    def register_producer(self, group: str, client: Client) -> None:
        """Add a producer of the group. Raises Rejected if the table is full."""
        members = self.producers.get(group)
        if members is None or client.connection not in members:
            self._count_up(group)
            members = self.producers.setdefault(group, {})
            self._of(client.connection)[0].add(group)
        previous = members.get(client.connection)
        members[client.connection] = client
        self._claim(client)
        if previous is not None and (previous.client_id, previous.user) != (
            client.client_id,
            client.user,
        ):
            self._forget_producer(previous)

    def _claim(self, client: Client) -> None:
        users = self._producing.setdefault(client.client_id, {})
        if client.user not in users and any(
            connections.keys() != {client.connection} for connections in users.values()
        ):
            all_users = " and ".join(sorted({*users, client.user}))
            log.warning(
                "client id %s is used by %s at the same time: replies to it are not delivered",
                client.client_id,
                all_users,
            )
        connections = users.setdefault(client.user, {})
        connections.pop(client.connection, None)
        connections[client.connection] = None

    def register_consumer(
        self, data: ConsumerData, client: Client, *, with_subscriptions: bool = True
    ) -> None:
        """Handle a member's heartbeat.

        Raises Rejected if the table is full, or the group subscribes to too much.
        """
        if len(data.subscriptions) > self._max_subscriptions:
            count, limit = len(data.subscriptions), self._max_subscriptions
            said = (
                f"group {data.group} subscribes to {count:,} topics (a retry topic counts), "
                f"{limit:,} are allowed: use several groups"
            )
            # Not SYSTEM_BUSY: the same heartbeat would be refused again.
            raise Rejected(ResponseCode.INVALID_PARAMETER, said)
        group = self.consumers.get(data.group)
        size = self._checked_size(group, data, client.connection) if with_subscriptions else 0
        is_new = group is None or client.connection not in group.members
        if is_new:
            self._count_up(data.group)
            self._lost.pop(data.group, None)
            group = group or self.consumers.setdefault(data.group, ConsumerGroup(data.group))
            self._of(client.connection)[1].add(data.group)
        assert group is not None
        if with_subscriptions:
            self._compare(group, data, client)
        group.members[client.connection] = client
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        resubscribed = False
        if with_subscriptions:
            self._bytes_of.setdefault(client.connection, {})[data.group] = size
            self._bytes -= group.size
            resubscribed = group.subscribe(data.subscriptions)
            self._bytes += group.size
        if is_new or resubscribed:
            self._changed(data.group)

    def _checked_size(
        self, group: ConsumerGroup | None, data: ConsumerData, connection: Connection
    ) -> int:
        """Return the size of the subscriptions. Raises Rejected if it exceeds the limit."""
        size = memory_of(data.subscriptions)
        brought = self._bytes_of.get(connection, {})
        known = group.size if group is not None else 0
        if sum(brought.values()) - brought.get(data.group, 0) + size > MAX_CONNECTION_BYTES:
            code = ResponseCode.INVALID_PARAMETER
            limit = f"{MAX_CONNECTION_BYTES} are allowed for one connection"
        elif size > known and self._bytes - known + size > MAX_BYTES:
            code = ResponseCode.SYSTEM_BUSY
            limit = f"{MAX_BYTES} are allowed for all groups together"
        else:
            return size
        raise Rejected(code, f"the subscriptions of group {data.group} take {size} bytes: {limit}")

    def _compare(self, group: ConsumerGroup, data: ConsumerData, client: Client) -> None:
        """Log different subscriptions, which is the fault behind most messages that "do not
        arrive": once for each member and difference.
        """
        previous = group.members.get(client.connection)
        others = len(group.members) - (previous is not None)
        client.differs = group.difference(data.subscriptions) if others else ""
        if client.differs and (previous is None or client.differs != previous.differs):
            log.warning(
                "group %s: the subscriptions of member %s differ from those of the others: %s. "
                "The last heartbeat applies to all members, so messages are missed. All members "
                "of a group must have the same subscriptions",
                group.name,
                client.client_id,
                client.differs,
            )

    def unregister_producer(self, group: str, connection: Connection) -> None:
        members = self.producers.get(group)
        client = members.pop(connection, None) if members is not None else None
        if client is not None:
            self._count -= 1
            self._groups_of[connection][0].discard(group)
            if not members:
                del self.producers[group]
            self._forget_producer(client)

    def _forget_producer(self, client: Client) -> None:
        """Remove its connection, unless it is in another group by it."""
        others = (
            self.producers[group][client.connection]
            for group in self._groups_of[client.connection][0]
        )
        if any((one.client_id, one.user) == (client.client_id, client.user) for one in others):
            return
        users = self._producing[client.client_id]
        del users[client.user][client.connection]
        if not users[client.user]:
            del users[client.user]
        if not users:
            del self._producing[client.client_id]

    def unregister_consumer(self, name: str, connection: Connection) -> None:
        group = self.consumers.get(name)
        if group is not None and group.members.pop(connection, None) is not None:
            self._count -= 1
            self._groups_of[connection][1].discard(name)
            self._bytes_of.get(connection, {}).pop(name, None)
            if not group.members:
                self._bytes -= group.size
                del self.consumers[name]
            self._changed(name)

    def drop(self, connection: Connection) -> None:
        """Forget a closed connection."""
        producing, consuming = self._groups_of.get(connection, (set(), set()))
        for group in list(producing):
            self.unregister_producer(group, connection)
        for group in list(consuming):
            self.unregister_consumer(group, connection)
            if group not in self.consumers:
                self._lost[group] = self._now()
        self._groups_of.pop(connection, None)
        self._bytes_of.pop(connection, None)

    def expired(self) -> list[Connection]:
        """Return connections with a member whose heartbeats have stopped; the caller closes them,
        which removes them here.
        """
        limit = self._now() - self._expiry_s
        self._lost = {group: at for group, at in self._lost.items() if at >= limit}
        groups = [*self.producers.values(), *(group.members for group in self.consumers.values())]
        return list(
            {
                connection: None
                for members in groups
                for connection, client in members.items()
                if client.seen_at < limit
            }
        )

    def _count_up(self, group: str) -> None:
        if self._count >= self._max_clients:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"this broker serves {self._max_clients} clients already, no more for group "
                f"{group}",
            )
        self._count += 1

    def _of(self, connection: Connection) -> tuple[set[str], set[str]]:
        return self._groups_of.setdefault(connection, (set(), set()))
