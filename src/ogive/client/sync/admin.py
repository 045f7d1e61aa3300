"""Administration, blocking."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from ogive.client import admin as aio_admin
from ogive.client.admin.records import (
    AccessRule,
    BrokerStatus,
    Group,
    GroupSummary,
    Member,
    OffsetReset,
    Permission,
    QueueLag,
    QueueOffsets,
    ResetTarget,
    SettingChange,
    Topic,
    TopicSummary,
    UserRow,
)
from ogive.client.config import DEFAULT_NAME_SERVER, ClientConfig
from ogive.client.instance import ClientInstance
from ogive.client.sync.facade import Facade
from ogive.keywords import explains
from ogive.model import TRACE_TOPIC, MessageExt, MessageQueue, MessageType, SendResult
from ogive.wire.bodies.clients import ConsumerConnection
from ogive.wire.bodies.routes import ClusterInfo, TopicRouteData
from ogive.wire.bodies.running_info import ConsumerRunningInfo
from ogive.wire.numbers import DelayLevels
from ogive.wire.trace import TraceRecord


@explains
class Admin(Facade):
    """Administration of a cluster: ``with Admin() as admin``.

    Changes are made at every master, of all clusters unless one is given. *client* takes either
    settings, instead of *name_server*, or a running client to share, which stays open.
    """

    def __init__(
        self,
        name_server: str = DEFAULT_NAME_SERVER,
        *,
        client: ClientConfig | ClientInstance | None = None,
    ) -> None:
        super().__init__()
        self._admin = aio_admin.Admin(name_server, client=client)

    def start(self) -> None:
        """Start the client. The first call connects."""
        self._begin(self._admin.start, self._admin.close)

    def close(self) -> None:
        """Close the client, unless it is shared."""
        self._end(self._admin.close)

    def cluster_info(self) -> ClusterInfo:
        """Return the clusters and brokers that the name server knows."""
        return self._live().call(self._admin.cluster_info())

    # --- topics and brokers -----------------------------------------------------------------------

    def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        cluster: str | None = None,
        order: bool = False,
        perm: Permission = "rw",
        message_type: MessageType | None = None,
        whole_batches: bool = False,
    ) -> None:
        """Create the topic with *queues* queues on each master of the cluster (default: of all)
        that lacks it.

        *message_type* is looked at by proxies of 5.x, and by brokers from 5.0 on kept.
        *whole_batches* makes a topic of batches (queue.type=BatchCQ, from 5.0 on), which no update
        changes. Returns when every broker has the topic and the name server answers its route.
        Raises InvalidOption if a broker has it with other settings: ``update_topic`` changes them.
        """
        self._live().call(
            self._admin.create_topic(
                topic,
                queues=queues,
                cluster=cluster,
                order=order,
                perm=perm,
                message_type=message_type,
                whole_batches=whole_batches,
            )
        )

    def update_topic(
        self,
        topic: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: Permission | None = None,
        order: bool | None = None,
        message_type: MessageType | None = None,
        dry_run: bool = False,
    ) -> list[SettingChange]:
        """Change the settings that are given, at every broker that has the topic.

        Returns the changes.

        To remove queues without loss, lower *write_queues* first, and *read_queues* once the others
        are consumed. *dry_run*: only return what would change. Raises NoRoute.
        """
        return self._live().call(
            self._admin.update_topic(
                topic,
                read_queues=read_queues,
                write_queues=write_queues,
                perm=perm,
                order=order,
                message_type=message_type,
                dry_run=dry_run,
            )
        )

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete the topic and its messages from every master of the cluster, and from the name
        servers. Without *cluster*, from the masters of all.

        Raises NoRoute, which names similar topics.
        """
        self._live().call(self._admin.delete_topic(topic, cluster=cluster))

    def topics(self, *, system: bool = False) -> list[TopicSummary]:
        """Return all topics, by name; *system* includes the brokers' own, and retry and dead-letter
        topics.
        """
        return self._live().call(self._admin.topics(system=system))

    def topic(self, topic: str) -> Topic:
        """Settings and route of one topic. Raises NoRoute, which names similar topics."""
        return self._live().call(self._admin.topic(topic))

    def route(self, topic: str) -> TopicRouteData:
        """Return the topic's brokers and queues, fresh from the name server. Raises NoRoute."""
        return self._live().call(self._admin.route(topic))

    def offsets(self, topic: str) -> list[QueueOffsets]:
        """Return the offsets in each queue of the topic. Raises NoRoute."""
        return self._live().call(self._admin.offsets(topic))

    def brokers(self) -> list[BrokerStatus]:
        """Return every broker that the name server knows, with its version and figures.

        *trouble* is set for a broker that does not answer, and for one that is gone without having
        been stopped. Only ogive's name server lists the latter, for a day.
        """
        return self._live().call(self._admin.brokers())

    def delay_levels(self, topic: str) -> DelayLevels:
        """Return the delay levels for messages to *topic*; if its brokers differ, those of the one
        with the fewest.

        Raises BrokerError if a broker does not show its settings.
        """
        return self._live().call(self._admin.delay_levels(topic))

    # --- groups -----------------------------------------------------------------------------------

    def create_group(
        self,
        group: str,
        *,
        retry_queues: int = 1,
        max_retries: int = 16,
        broadcast: bool = True,
        enabled: bool = True,
        cluster: str | None = None,
    ) -> None:
        """Create the consumer group on every master of the cluster (default: of all) that lacks
        it.

        *max_retries*: how often a message is delivered again before it becomes a dead letter.
        *broadcast*: whether members may broadcast. *enabled* False: no member gets messages. Raises
        InvalidOption if a broker has it with other settings: ``update_group`` changes them.
        """
        self._live().call(
            self._admin.create_group(
                group,
                retry_queues=retry_queues,
                max_retries=max_retries,
                broadcast=broadcast,
                enabled=enabled,
                cluster=cluster,
            )
        )

    def update_group(
        self,
        group: str,
        *,
        retry_queues: int | None = None,
        max_retries: int | None = None,
        broadcast: bool | None = None,
        enabled: bool | None = None,
        orderly: bool | None = None,
        dry_run: bool = False,
    ) -> list[SettingChange]:
        """Change the settings that are given, at every broker that knows the group.

        Returns the changes.

        *orderly*: members that use gRPC get messages in order. *dry_run*: only return what would
        change. Raises GroupNotExist.
        """
        return self._live().call(
            self._admin.update_group(
                group,
                retry_queues=retry_queues,
                max_retries=max_retries,
                broadcast=broadcast,
                enabled=enabled,
                orderly=orderly,
                dry_run=dry_run,
            )
        )

    def set_consume_mode(
        self,
        group: str,
        topic: str,
        mode: Literal["pull", "pop"],
        *,
        share_queues: int = 0,
    ) -> None:
        """Set whether members that ask pop or pull *topic*, at each broker that holds it.

        Apache's push clients ask with setClientRebalance(false). ogive's listeners go by their own
        *mode*, and pop from the queues that they are assigned. *share_queues*: so many other
        members pop a member's queues as well; 0: all members pop from all queues. Raises NoRoute,
        and InvalidOption for an unknown mode.
        """
        self._live().call(
            self._admin.set_consume_mode(group, topic, mode, share_queues=share_queues)
        )

    def delete_group(self, group: str, *, offsets: bool = False) -> None:
        """Delete the group from every broker; with *offsets* its progress, too.

        Its retry and dead-letter topics stay.

        Raises GroupNotExist, and InvalidOption while members are online, whose next heartbeat would
        create the group again.
        """
        self._live().call(self._admin.delete_group(group, offsets=offsets))

    def groups(self, *, system: bool = False) -> list[GroupSummary]:
        """Return all consumer groups, by name; *system* includes the brokers' own."""
        return self._live().call(self._admin.groups(system=system))

    def group(self, group: str) -> Group:
        """Settings, members, subscriptions and progress of one group.

        Raises GroupNotExist, which names similar groups.
        """
        return self._live().call(self._admin.group(group))

    def members(self, group: str) -> ConsumerConnection | None:
        """Return the members online now and their subscriptions; None if there are none.

        Raises GroupNotExist, which names similar groups.
        """
        return self._live().call(self._admin.members(group))

    def producers(self, group: str) -> list[Member]:
        """Return the producers of the group that are online now."""
        return self._live().call(self._admin.producers(group))

    def running_info(
        self, group: str, client_id: str, *, stack: bool = False
    ) -> ConsumerRunningInfo:
        """Return what one member reports about itself; *stack* includes its threads.

        Raises ConsumerNotOnline, GroupNotExist, or a BrokerError if the member refuses.
        """
        return self._live().call(self._admin.running_info(group, client_id, stack=stack))

    def lag(self, group: str, topic: str | None = None, *, members: bool = True) -> list[QueueLag]:
        """Return how far the group is behind in each queue, including those of its retry topics.

        Empty if it never committed. *members*: also ask every member which queues it holds. Raises
        GroupNotExist and NoRoute, which name similar groups and topics.
        """
        return self._live().call(self._admin.lag(group, topic, members=members))

    def lag_gaps(self, group: str, topic: str | None = None, *, members: bool = True) -> list[str]:
        """Return what is missing from ``lag()``, a sentence each. Empty if nothing is missing.

        Messages are missing while a broker is away, and in a topic, or at a broker, where the group
        has no position yet. A position beyond the end of its queue means that the topic was deleted
        and made again.

        *members*: a group that has no member online is a gap too. Only ogive's name server knows
        brokers that are gone, for a day; a master that is away while its slave serves is always
        seen.
        """
        return self._live().call(self._admin.lag_gaps(group, topic, members=members))

    # --- offsets ----------------------------------------------------------------------------------

    def offsets_at(self, topic: str, at: datetime) -> dict[MessageQueue, int]:
        """Return for each queue the offset of the first message stored at or after *at*; the
        queue's end if there is none. Raises NoRoute.
        """
        return self._live().call(self._admin.offsets_at(topic, at))

    def positions(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Return the group's committed offset in each queue, or None. It is the next one that the
        group consumes.

        Raises NoRoute and GroupNotExist, which name similar topics and groups.
        """
        return self._live().call(self._admin.positions(group, topic))

    def reset_offsets(
        self, group: str, topic: str, to: ResetTarget, *, dry_run: bool = False
    ) -> list[OffsetReset]:
        """Move the group to ``"earliest"``, ``"latest"``, a time, or given offsets (then only in
        these queues). Returns the changes.

        Members may be online: they continue there within seconds, and may still finish what they
        have. *dry_run*: only return what would change, also for a group that no broker knows yet.
        Raises NoRoute, GroupNotExist, and InvalidOption for an offset that a queue does not have.
        """
        return self._live().call(self._admin.reset_offsets(group, topic, to, dry_run=dry_run))

    def skip_backlog(self, group: str, topic: str, *, dry_run: bool = False) -> list[OffsetReset]:
        """Skip everything that the group has not consumed yet: ``reset_offsets`` to
        ``"latest"``.
        """
        return self._live().call(self._admin.skip_backlog(group, topic, dry_run=dry_run))

    def clone_offsets(
        self, source: str, target: str, topic: str, *, dry_run: bool = False
    ) -> list[OffsetReset]:
        """Give *target* the offsets of *source* in the topic, in all queues where it has any.

        Returns the changes.
        """
        return self._live().call(self._admin.clone_offsets(source, target, topic, dry_run=dry_run))

    # --- messages ---------------------------------------------------------------------------------

    def message(self, message_id: str, *, topic: str | None = None) -> MessageExt:
        """Return the message with this id, either the broker's (``offset_id``) or the unique key
        from its producer (``id``).

        A unique key is looked up in the brokers' index, in *topic* or in all topics of
        applications. Raises QueryNotFound, and NotSupported if a broker keeps no index.
        """
        return self._live().call(self._admin.message(message_id, topic=topic))

    def message_at(self, queue: MessageQueue, offset: int) -> MessageExt:
        """Return the message at this offset of the queue.

        Raises QueryNotFound, which names the offsets that the queue has.
        """
        return self._live().call(self._admin.message_at(queue, offset))

    def messages(
        self,
        topic: str,
        *,
        key: str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int = 64,
    ) -> list[MessageExt]:
        """Return the messages stored from *start* until before *end*, oldest first: all, or those
        with *key*.

        A *key* is looked up in the brokers' index, which finds at most 64 per broker. Raises
        NoRoute, and NotSupported if a broker keeps no index.
        """
        return self._live().call(
            self._admin.messages(topic, key=key, start=start, end=end, limit=limit)
        )

    def trace(self, key: str, *, trace_topic: str = TRACE_TOPIC) -> list[TraceRecord]:
        """Return the trace records of a message by its unique key, or of all messages with this
        key, in order of time.

        A record may be missing: clients leave some out under heavy load, and the newest 32 trace
        messages of each broker are read, each with the records of up to a few hundred messages.
        """
        return self._live().call(self._admin.trace(key, trace_topic=trace_topic))

    def dead_letters(
        self,
        group: str,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int = 64,
    ) -> list[MessageExt]:
        """Return messages that the group could not consume, oldest first.

        They stay listed after ``send_again``. Raises GroupNotExist, which names similar groups.
        """
        return self._live().call(self._admin.dead_letters(group, start=start, end=end, limit=limit))

    def send_again(self, group: str, message: MessageExt) -> SendResult:
        """Send a dead letter to its group again, and to no other, through the retry topic.

        It gets all its retries again.

        Raises NoRoute if the group has no retry topic; its members create it when they start.
        Raises InvalidOption while orderly members of the group are online: stop them first.
        """
        return self._live().call(self._admin.send_again(group, message))

    def was_sent_again(self, group: str, message: MessageExt) -> bool:
        """Return True if this dead letter was sent to its group again, and has not failed since.

        Such a letter has a copy without retries in the group's retry topic, which is looked up in
        the brokers' index. Raises NotSupported if a broker keeps no index.
        """
        return self._live().call(self._admin.was_sent_again(group, message))

    # --- users and policies -----------------------------------------------------------------------

    def create_user(self, name: str, password: str, *, super_user: bool = False) -> None:
        """Create a user at every broker.

        A super user may do everything, others nothing until ``allow``.
        """
        self._live().call(self._admin.create_user(name, password, super_user=super_user))

    def update_user(
        self,
        name: str,
        *,
        password: str | None = None,
        super_user: bool | None = None,
        enabled: bool | None = None,
    ) -> None:
        """Change the settings that are given."""
        self._live().call(
            self._admin.update_user(name, password=password, super_user=super_user, enabled=enabled)
        )

    def delete_user(self, name: str) -> None:
        """Delete a user and all rules about them. An unknown name is no error."""
        self._live().call(self._admin.delete_user(name))

    def users(self) -> list[UserRow]:
        """Return the users of all brokers, by name."""
        return self._live().call(self._admin.users())

    def allow(
        self, user: str, resource: str, actions: Sequence[str], *, source_ips: Sequence[str] = ()
    ) -> None:
        """Allow *actions* (``Pub``, ``Sub``, ...) on *resource* (``Topic:Orders``) to *user*.

        Replaces an earlier rule on that resource.
        """
        self._live().call(self._admin.allow(user, resource, actions, source_ips=source_ips))

    def deny(
        self, user: str, resource: str, actions: Sequence[str], *, source_ips: Sequence[str] = ()
    ) -> None:
        """Forbid *actions* on *resource*, even if a wider rule allows them.

        Replaces an earlier rule on that resource.
        """
        self._live().call(self._admin.deny(user, resource, actions, source_ips=source_ips))

    def forget_rules(self, user: str, resource: str | None = None) -> None:
        """Delete the rules for *user*, on one resource or on all."""
        self._live().call(self._admin.forget_rules(user, resource))

    def access_rules(self) -> list[AccessRule]:
        """Return all rules, as the brokers know them, by user."""
        return self._live().call(self._admin.access_rules())
