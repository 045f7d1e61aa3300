"""The blocking facade of the admin: the same words as ``ogive.aio.Admin``. A test keeps the signatures equal."""

from collections.abc import Sequence
from datetime import datetime

from ogive.client import admin as aio_admin
from ogive.client.admin.records import (
    AccessRule,
    BrokerStatus,
    Group,
    GroupSummary,
    Member,
    MessageType,
    OffsetReset,
    Permission,
    QueueLag,
    QueueOffsets,
    ResetTarget,
    Topic,
    TopicSummary,
    UserRow,
)
from ogive.client.config import DEFAULT_NAME_SERVER, ClientConfig
from ogive.client.instance import ClientInstance
from ogive.client.sync import Facade
from ogive.model import TRACE_TOPIC, DelayLevels, MessageExt, MessageQueue, SendResult
from ogive.wire.bodies import ClusterInfo, ConsumerConnection, TopicRouteData
from ogive.wire.running_info import ConsumerRunningInfo
from ogive.wire.trace import TraceRecord


class Admin(Facade):
    """Blocking ``ogive.aio.Admin``. ``with Admin() as admin``."""

    def __init__(
        self,
        name_server: str = DEFAULT_NAME_SERVER,
        *,
        client: ClientConfig | ClientInstance | None = None,
    ) -> None:
        super().__init__()
        self._admin = aio_admin.Admin(name_server, client=client)

    def start(self) -> None:
        """See ``ogive.aio.Admin.start``."""
        self._begin(self._admin.start)

    def close(self) -> None:
        """See ``ogive.aio.Admin.close``."""
        self._end(self._admin.close)

    def cluster_info(self) -> ClusterInfo:
        """See ``ogive.aio.Admin.cluster_info``."""
        return self._live().call(self._admin.cluster_info())

    # --- topics and brokers -------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        topic: str,
        *,
        queues: int = 4,
        cluster: str | None = None,
        order: bool = False,
        perm: Permission = "rw",
        message_type: MessageType | None = None,
    ) -> None:
        """See ``ogive.aio.Admin.create_topic``."""
        self._live().call(
            self._admin.create_topic(topic, queues=queues, cluster=cluster, order=order, perm=perm, message_type=message_type)
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
    ) -> None:
        """See ``ogive.aio.Admin.update_topic``."""
        self._live().call(
            self._admin.update_topic(
                topic, read_queues=read_queues, write_queues=write_queues, perm=perm, order=order, message_type=message_type
            )
        )

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """See ``ogive.aio.Admin.delete_topic``."""
        self._live().call(self._admin.delete_topic(topic, cluster=cluster))

    def topics(self, *, system: bool = False) -> list[TopicSummary]:
        """See ``ogive.aio.Admin.topics``."""
        return self._live().call(self._admin.topics(system=system))

    def topic(self, topic: str) -> Topic:
        """See ``ogive.aio.Admin.topic``."""
        return self._live().call(self._admin.topic(topic))

    def route(self, topic: str) -> TopicRouteData:
        """See ``ogive.aio.Admin.route``."""
        return self._live().call(self._admin.route(topic))

    def offsets(self, topic: str) -> list[QueueOffsets]:
        """See ``ogive.aio.Admin.offsets``."""
        return self._live().call(self._admin.offsets(topic))

    def brokers(self) -> list[BrokerStatus]:
        """See ``ogive.aio.Admin.brokers``."""
        return self._live().call(self._admin.brokers())

    def delay_levels(self, topic: str) -> DelayLevels:
        """See ``ogive.aio.Admin.delay_levels``."""
        return self._live().call(self._admin.delay_levels(topic))

    # --- groups -------------------------------------------------------------------------------------------------------------

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
        """See ``ogive.aio.Admin.create_group``."""
        self._live().call(
            self._admin.create_group(
                group, retry_queues=retry_queues, max_retries=max_retries, broadcast=broadcast, enabled=enabled, cluster=cluster
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
    ) -> None:
        """See ``ogive.aio.Admin.update_group``."""
        self._live().call(
            self._admin.update_group(group, retry_queues=retry_queues, max_retries=max_retries, broadcast=broadcast, enabled=enabled)
        )

    def delete_group(self, group: str, *, offsets: bool = False) -> None:
        """See ``ogive.aio.Admin.delete_group``."""
        self._live().call(self._admin.delete_group(group, offsets=offsets))

    def groups(self, *, system: bool = False) -> list[GroupSummary]:
        """See ``ogive.aio.Admin.groups``."""
        return self._live().call(self._admin.groups(system=system))

    def group(self, group: str) -> Group:
        """See ``ogive.aio.Admin.group``."""
        return self._live().call(self._admin.group(group))

    def members(self, group: str) -> ConsumerConnection | None:
        """See ``ogive.aio.Admin.members``."""
        return self._live().call(self._admin.members(group))

    def producers(self, group: str) -> list[Member]:
        """See ``ogive.aio.Admin.producers``."""
        return self._live().call(self._admin.producers(group))

    def running_info(self, group: str, client_id: str, *, stack: bool = False) -> ConsumerRunningInfo:
        """See ``ogive.aio.Admin.running_info``."""
        return self._live().call(self._admin.running_info(group, client_id, stack=stack))

    def lag(self, group: str, topic: str | None = None, *, members: bool = True) -> list[QueueLag]:
        """See ``ogive.aio.Admin.lag``."""
        return self._live().call(self._admin.lag(group, topic, members=members))

    # --- offsets ------------------------------------------------------------------------------------------------------------

    def offsets_at(self, topic: str, at: datetime) -> dict[MessageQueue, int]:
        """See ``ogive.aio.Admin.offsets_at``."""
        return self._live().call(self._admin.offsets_at(topic, at))

    def positions(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """See ``ogive.aio.Admin.positions``."""
        return self._live().call(self._admin.positions(group, topic))

    def reset_offsets(self, group: str, topic: str, to: ResetTarget, *, dry_run: bool = False) -> list[OffsetReset]:
        """See ``ogive.aio.Admin.reset_offsets``."""
        return self._live().call(self._admin.reset_offsets(group, topic, to, dry_run=dry_run))

    def skip_backlog(self, group: str, topic: str, *, dry_run: bool = False) -> list[OffsetReset]:
        """See ``ogive.aio.Admin.skip_backlog``."""
        return self._live().call(self._admin.skip_backlog(group, topic, dry_run=dry_run))

    def clone_offsets(self, source: str, target: str, topic: str, *, dry_run: bool = False) -> list[OffsetReset]:
        """See ``ogive.aio.Admin.clone_offsets``."""
        return self._live().call(self._admin.clone_offsets(source, target, topic, dry_run=dry_run))

    # --- messages -----------------------------------------------------------------------------------------------------------

    def message(self, message_id: str, *, topic: str | None = None) -> MessageExt:
        """See ``ogive.aio.Admin.message``."""
        return self._live().call(self._admin.message(message_id, topic=topic))

    def message_at(self, queue: MessageQueue, offset: int) -> MessageExt:
        """See ``ogive.aio.Admin.message_at``."""
        return self._live().call(self._admin.message_at(queue, offset))

    def messages(
        self, topic: str, *, key: str | None = None, start: datetime | None = None, end: datetime | None = None, limit: int = 64
    ) -> list[MessageExt]:
        """See ``ogive.aio.Admin.messages``."""
        return self._live().call(self._admin.messages(topic, key=key, start=start, end=end, limit=limit))

    def trace(self, key: str, *, trace_topic: str = TRACE_TOPIC) -> list[TraceRecord]:
        """See ``ogive.aio.Admin.trace``."""
        return self._live().call(self._admin.trace(key, trace_topic=trace_topic))

    def dead_letters(self, group: str, *, start: datetime | None = None, end: datetime | None = None, limit: int = 64) -> list[MessageExt]:
        """See ``ogive.aio.Admin.dead_letters``."""
        return self._live().call(self._admin.dead_letters(group, start=start, end=end, limit=limit))

    def send_again(self, group: str, message: MessageExt) -> SendResult:
        """See ``ogive.aio.Admin.send_again``."""
        return self._live().call(self._admin.send_again(group, message))

    # --- users and policies -------------------------------------------------------------------------------------------------

    def create_user(self, name: str, password: str, *, super_user: bool = False) -> None:
        """See ``ogive.aio.Admin.create_user``."""
        self._live().call(self._admin.create_user(name, password, super_user=super_user))

    def update_user(self, name: str, *, password: str | None = None, super_user: bool | None = None, enabled: bool | None = None) -> None:
        """See ``ogive.aio.Admin.update_user``."""
        self._live().call(self._admin.update_user(name, password=password, super_user=super_user, enabled=enabled))

    def delete_user(self, name: str) -> None:
        """See ``ogive.aio.Admin.delete_user``."""
        self._live().call(self._admin.delete_user(name))

    def users(self) -> list[UserRow]:
        """See ``ogive.aio.Admin.users``."""
        return self._live().call(self._admin.users())

    def allow(self, user: str, resource: str, actions: Sequence[str], *, source_ips: Sequence[str] = ()) -> None:
        """See ``ogive.aio.Admin.allow``."""
        self._live().call(self._admin.allow(user, resource, actions, source_ips=source_ips))

    def deny(self, user: str, resource: str, actions: Sequence[str], *, source_ips: Sequence[str] = ()) -> None:
        """See ``ogive.aio.Admin.deny``."""
        self._live().call(self._admin.deny(user, resource, actions, source_ips=source_ips))

    def forget_rules(self, user: str, resource: str | None = None) -> None:
        """See ``ogive.aio.Admin.forget_rules``."""
        self._live().call(self._admin.forget_rules(user, resource))

    def access_rules(self) -> list[AccessRule]:
        """See ``ogive.aio.Admin.access_rules``."""
        return self._live().call(self._admin.access_rules())
