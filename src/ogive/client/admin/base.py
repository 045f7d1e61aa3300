"""Parts that the families of ``Admin``'s calls share, and namespaces of 4.x.

Admin inside a namespace of 4.x: arguments and results have plain names, and lists show only what
is in the namespace.

Every public call of ``Admin`` translates at its border; between calls, and to brokers, names are
those on the wire.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, TypeVar

from ogive.client import rpc
from ogive.client.admin.records import GroupSummary, TopicKind, TopicSummary, topic_kind
from ogive.client.config import DEFAULT_NAME_SERVER, ClientConfig
from ogive.client.instance import ClientInstance, ClientOwner, StartedByWith
from ogive.client.namespace import Namespace
from ogive.client.routes import MASTER_ID, similar_topics
from ogive.errors import (
    BrokerError,
    ConsumerNotOnline,
    GroupNotExist,
    InvalidOption,
    NoRoute,
    ProtocolError,
    ResponseCode,
    TopicNotExist,
)
from ogive.model import MessageExt, MessageQueue, is_system_group, reply_topic, retry_topic
from ogive.transport.event_loop import each
from ogive.wire.bodies.clients import ConsumerConnection
from ogive.wire.bodies.routes import ClusterInfo, TopicRouteData

C = TypeVar("C", bound=type)

_inside: Final[ContextVar[bool]] = ContextVar("inside an operator's call", default=False)
# arguments that name a topic or a group
_NAMES: Final = frozenset({"topic", "group", "source", "target"})
# the same in results
_NAME_FIELDS: Final = frozenset({"name", "topic", "group", "groups", "subscriptions", "topics"})


def bordered(cls: C) -> C:
    """Put a border around each public coroutine of *cls*. Return *cls*."""
    for name, method in inspect.getmembers(cls, inspect.iscoroutinefunction):
        if not name.startswith("_") and name not in ("start", "close"):
            setattr(cls, name, _border(method))
    return cls


def _border(method: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        namespace: Namespace = self._namespace
        if not namespace or _inside.get():
            return await method(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        bound.arguments.update(
            {
                name: wrapped(name, value, namespace)
                for name, value in bound.arguments.items()
                if name != "self"
            }
        )
        token = _inside.set(True)
        try:
            result = await method(*bound.args, **bound.kwargs)
        finally:
            _inside.reset(token)
        if isinstance(result, list):
            result = [row for row in result if _is_ours(row, namespace)]
        return stripped(result, namespace)

    return call


def wrapped(name: str, value: Any, namespace: Namespace) -> Any:
    """Return an argument as the wire knows it."""
    if isinstance(value, MessageQueue):
        return namespace.wrap_queue(value)
    if isinstance(value, Mapping):
        return {wrapped("", key, namespace): item for key, item in value.items()}
    if isinstance(value, MessageExt):
        return replace(
            value, topic=namespace.wrap(value.topic), queue=namespace.wrap_queue(value.queue)
        )
    return namespace.wrap(value) if name in _NAMES and isinstance(value, str) else value


def _is_ours(row: Any, namespace: Namespace) -> bool:
    if isinstance(row, TopicSummary):
        return row.kind == "system" or namespace.holds(row.name)
    return (
        not isinstance(row, GroupSummary) or is_system_group(row.name) or namespace.holds(row.name)
    )


def stripped(value: Any, namespace: Namespace) -> Any:
    """Return a result as the application knows it."""
    if isinstance(value, MessageQueue):
        return namespace.strip_queue(value)
    if isinstance(value, MessageExt):
        return namespace.strip_message(value)
    if isinstance(value, Mapping):
        return {stripped(key, namespace): stripped(item, namespace) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([stripped(item, namespace) for item in value])
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value,
            **{
                one.name: _field(one.name, getattr(value, one.name), namespace)
                for one in fields(value)
                if one.init
            },
        )
    return value


def _field(name: str, value: Any, namespace: Namespace) -> Any:
    if name not in _NAME_FIELDS:
        return stripped(value, namespace)
    if isinstance(value, Mapping):
        return {namespace.strip(key): item for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(
            namespace.strip(item) if isinstance(item, str) else stripped(item, namespace)
            for item in value
        )
    return namespace.strip(value) if isinstance(value, str) else stripped(value, namespace)


class AdminBase(StartedByWith):
    """Start, close, and which brokers to ask."""

    def __init__(
        self,
        name_server: str = DEFAULT_NAME_SERVER,
        *,
        client: ClientConfig | ClientInstance | None = None,
    ) -> None:
        self._owner = ClientOwner("admin", name_server, client)
        # Groups that the brokers listed last.
        self._listed: set[str] = set()

    async def start(self) -> None:
        """Start the client. The first call connects."""
        await self._owner.start()

    async def close(self) -> None:
        """Close the client, unless it is shared."""
        await self._owner.close()

    @property
    def client(self) -> ClientInstance:
        """Connections and routes that this object uses."""
        return self._owner.client

    @property
    def _namespace(self) -> Namespace:
        """Namespace that names in the application lack."""
        return self._owner.namespace

    async def cluster_info(self) -> ClusterInfo:
        """Return the clusters and brokers that the name server knows."""
        return await self.client.ask_name_server(rpc.get_cluster_info)

    # --- who to ask -------------------------------------------------------------------------------

    @property
    def _timeout_s(self) -> float:
        return self.client.config.request_timeout_s

    async def _masters(self, cluster: str | None = None) -> dict[str, str]:
        """Return the addresses of all masters of a cluster (default: of all) by broker name.

        Raises NoRoute where there is none, InvalidOption for an unknown cluster.
        """
        info = await self.cluster_info()
        if cluster is not None and cluster not in info.clusters:
            raise InvalidOption(
                f'cluster "{cluster}" is unknown; there are: '
                f"{', '.join(sorted(info.clusters)) or 'none'}"
            )
        names = sorted(info.brokers) if cluster is None else info.clusters[cluster]
        masters = {
            name: info.brokers[name].addresses[MASTER_ID]
            for name in names
            if MASTER_ID in info.brokers[name].addresses
        }
        if not masters:
            raise NoRoute(f"{self.client.name_servers} knows no broker yet")
        return masters

    async def _topic_kinds(self) -> dict[str, TopicKind]:
        """Return every topic that the name server knows, with its kind.

        Apache's brokers register the names of clusters and brokers as topics, too.
        """
        names, info = await self.client.ask_name_server(rpc.topic_list), await self.cluster_info()
        own = {*info.brokers, *info.clusters, *map(reply_topic, info.clusters)}
        return {name: "system" if name in own else topic_kind(name) for name in names}

    async def _route(self, topic: str) -> TopicRouteData:
        """Return the route, not through the cache: a list of all topics must not fill it."""
        return await self.client.ask_name_server(rpc.get_route, topic)

    async def _topic_masters(self, topic: str) -> dict[str, str]:
        """Return the addresses of the topic's masters by broker name. Raises NoRoute, with
        advice.
        """
        return master_addresses(await self.client.routes.refresh(topic))

    async def _group_masters(self, group: str, topic: str | None = None) -> dict[str, str]:
        """Return the brokers that know the group: those of its retry topic; all of them if that has
        no route.
        """
        try:
            return master_addresses(await self._route(topic or retry_topic(group)))
        except TopicNotExist:
            return await self._masters()

    async def _connections(self, group: str) -> list[tuple[str, ConsumerConnection]]:
        """Return the group's members at each broker where it has any, with the broker's address."""
        online: list[tuple[str, ConsumerConnection]] = []
        for address in (await self._group_masters(group)).values():
            try:
                online.append(
                    (
                        address,
                        await rpc.consumer_connections(
                            self.client.pool, address, group, timeout_s=self._timeout_s
                        ),
                    )
                )
            except ConsumerNotOnline:
                continue
        return online

    async def _group_tables(
        self, cluster: str | None = None
    ) -> list[tuple[str, str, dict[str, dict[str, Any]]]]:
        """Return name, address and groups of each broker."""
        masters = list((await self._masters(cluster)).items())
        tables = await each(
            masters,
            lambda one: rpc.group_configs(self.client.pool, one[1], timeout_s=self._timeout_s),
        )
        self._listed = {group for table in tables for group in table}
        return [
            (broker, address, table)
            for (broker, address), table in zip(masters, tables, strict=True)
        ]

    async def _check_known(self, group: str) -> None:
        """Raise GroupNotExist if no broker has the group. If brokers list no groups, do nothing."""
        # Who goes through a list of groups does not list them again for each.
        if group in self._listed:
            return
        try:
            tables = await self._group_tables()
        except (BrokerError, ProtocolError):
            return
        if not any(group in table for _, _, table in tables):
            raise await self._unknown_group(group, tables)

    async def _unknown_group(
        self,
        group: str,
        tables: list[tuple[str, str, dict[str, dict[str, Any]]]],
        advice: str | None = None,
    ) -> GroupNotExist:
        """Return the error for a group that is in none of the *tables*, with similar names, or
        with the brokers that may know it once they are back.
        """
        way_out = advice or f"Create it with `ogive group create {group}`, or start a member of it."
        if away := (await self.cluster_info()).away:
            way_out = f"Brokers that are away may know it: {', '.join(away)}."
        return unknown_group(group, {name for _, _, table in tables for name in table}, way_out)


def unknown_group(group: str, known: Iterable[str], way_out: str) -> GroupNotExist:
    """Return the error for a group that is not *known*, with similar names."""
    similar = similar_topics(group, known)
    hint = f"Similar groups: {', '.join(similar)}." if similar else ""
    remark = f'no broker knows a consumer group "{group}".'
    return GroupNotExist(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, " ".join(filter(None, (remark, hint, way_out)))
    )


def master_addresses(route: TopicRouteData) -> dict[str, str]:
    """Return the address of each broker's master by broker name."""
    return {
        broker.broker_name: broker.addresses[MASTER_ID]
        for broker in route.brokers
        if MASTER_ID in broker.addresses
    }


def master_of(queue: MessageQueue, masters: dict[str, str]) -> str:
    """Return the address of the master of *queue*. Raises NoRoute."""
    if queue.broker_name not in masters:
        raise NoRoute(
            f'broker "{queue.broker_name}" of {queue.topic} has no master now: its offsets cannot '
            "be asked for or changed"
        )
    return masters[queue.broker_name]
