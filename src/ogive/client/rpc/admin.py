"""Requests of administrators: topics, brokers, users, name servers."""

from ogive.client.rpc.calling import PAGE, REQUEST_TIMEOUT_S, ask, pages
from ogive.errors import NotANameServer, NotSupported, ProtocolError
from ogive.model import MessageQueue
from ogive.transport.pool import ConnectionPool
from ogive.wire.bodies.acls import Acl, User, acls_loads, users_loads
from ogive.wire.bodies.clients import group_list_loads
from ogive.wire.bodies.configs import DelayLevels, TopicConfig
from ogive.wire.bodies.json_fields import dumps, loads_object
from ogive.wire.bodies.routes import ClusterInfo, TopicRouteData, topic_list_loads
from ogive.wire.bodies.stats import TopicOffset, kv_table_loads, topic_stats_loads
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.admin import (
    CreateTopicRequest,
    CreateUserRequest,
    DeleteAclRequest,
    DeleteTopicRequest,
    DeleteUserRequest,
    GetAllTopicConfigRequest,
    GetBrokerConfigRequest,
    GetBrokerRuntimeInfoRequest,
    GetTopicConfigRequest,
    GetTopicStatsRequest,
    GetUserRequest,
    ListAclsRequest,
    ListUsersRequest,
    QueryTopicConsumeByWhoRequest,
    UpdateAclRequest,
    UpdateUserRequest,
)
from ogive.wire.headers.codec import Header
from ogive.wire.headers.name_server import (
    DeleteTopicInNameServerRequest,
    GetAllTopicListRequest,
    GetBrokerClusterInfoRequest,
    GetRouteInfoRequest,
)


async def create_topic(
    pool: ConnectionPool, address: str, topic: TopicConfig, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> None:
    """Create the topic, or change it to *topic*.

    The broker answers after it has told its name servers.
    """
    attributes = ",".join(f"+{name}={value}" for name, value in topic.attributes.items())
    header = CreateTopicRequest(
        topic=topic.name,
        read_queue_nums=topic.read_queues,
        write_queue_nums=topic.write_queues,
        perm=topic.perm,
        topic_filter_type=topic.filter_type,
        topic_sys_flag=topic.sys_flag,
        order=topic.order,
        attributes=attributes or None,
    )
    await ask(pool, address, header, timeout_s)


async def delete_topic(
    pool: ConnectionPool, address: str, topic: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> None:
    await ask(pool, address, DeleteTopicRequest(topic=topic), timeout_s)


async def topic_config(
    pool: ConnectionPool, address: str, topic: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> TopicConfig:
    """Return one topic's settings at a broker of 5.x; those of 4.x raise NotSupported."""
    return TopicConfig.from_json(
        loads_object((await ask(pool, address, GetTopicConfigRequest(topic=topic), timeout_s)).body)
    )


async def topic_configs(
    pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> dict[str, TopicConfig]:
    """Return every topic of a broker, asked for page by page; brokers before 5.4 answer with all at
    once.
    """
    return {
        name: TopicConfig.from_json(config)
        for name, config in await pages(
            lambda seq: GetAllTopicConfigRequest(
                topic_seq=seq, max_topic_num=PAGE, data_version=""
            ),
            "topicConfigTable",
            "totalTopicNum",
            pool,
            address,
            timeout_s,
        )
    }


async def topic_stats(
    pool: ConnectionPool, address: str, topic: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> dict[MessageQueue, TopicOffset]:
    """Return the minimum and maximum offset of every queue of *topic* at one broker."""
    return topic_stats_loads(
        (await ask(pool, address, GetTopicStatsRequest(topic=topic), timeout_s)).body
    )


async def topic_groups(
    pool: ConnectionPool, address: str, topic: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> list[str]:
    """Return the groups that consume *topic* at this broker, or have."""
    return group_list_loads(
        (await ask(pool, address, QueryTopicConsumeByWhoRequest(topic=topic), timeout_s)).body
    )


async def broker_settings(
    pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> dict[str, str]:
    """Return a broker's configuration, by the names of broker.conf."""
    text = (await ask(pool, address, GetBrokerConfigRequest(), timeout_s)).body.decode(
        "utf-8", "replace"
    )
    return dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)


async def broker_runtime_info(
    pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> dict[str, str]:
    return kv_table_loads((await ask(pool, address, GetBrokerRuntimeInfoRequest(), timeout_s)).body)


async def delay_levels(
    pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> DelayLevels:
    """Return the delays behind the levels, from the broker's settings (lines as in broker.conf)."""
    levels = (await broker_settings(pool, address, timeout_s=timeout_s)).get("messageDelayLevel")
    if levels is None:
        raise ProtocolError(f"{address} shows settings without messageDelayLevel")
    return DelayLevels.parse(levels)


async def create_user(
    pool: ConnectionPool, address: str, user: User, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> None:
    await ask(
        pool,
        address,
        CreateUserRequest(username=user.username),
        timeout_s,
        dumps(user.to_json(with_password=True)),
    )


async def update_user(
    pool: ConnectionPool, address: str, user: User, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> None:
    """Change the fields that *user* sets; the others stay."""
    await ask(
        pool,
        address,
        UpdateUserRequest(username=user.username),
        timeout_s,
        dumps(user.to_json(with_password=True)),
    )


async def delete_user(
    pool: ConnectionPool, address: str, name: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> None:
    await ask(pool, address, DeleteUserRequest(username=name), timeout_s)


async def list_users(
    pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> list[User]:
    reply = await ask(pool, address, ListUsersRequest(), timeout_s)
    return users_loads(reply.body) if reply.body else []


async def has_signed(
    pool: ConnectionPool,
    address: str,
    user: str,
    text: str,
    signature: str,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> bool:
    """Return True if *signature*, in hex, is that of an enabled user over *text*. Only ogive's
    brokers compare it.
    """
    header = GetUserRequest(username=user, signed_text=text, text_signature=signature)
    return bool((await ask(pool, address, header, timeout_s)).body)


async def update_acl(
    pool: ConnectionPool, address: str, acl: Acl, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> None:
    """Add policies; an entry replaces the one that there is for the same resource."""
    await ask(pool, address, UpdateAclRequest(subject=acl.subject), timeout_s, dumps(acl.to_json()))


async def delete_acl(
    pool: ConnectionPool,
    address: str,
    subject: str,
    resource: str | None = None,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> None:
    await ask(pool, address, DeleteAclRequest(subject=subject, resource=resource), timeout_s)


async def list_acls(
    pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> list[Acl]:
    reply = await ask(pool, address, ListAclsRequest(), timeout_s)
    return acls_loads(reply.body) if reply.body else []


async def _ask_name_server(
    pool: ConnectionPool, address: str, header: Header, timeout_s: float
) -> RemotingCommand:
    """Ask what every name server answers, and no broker. Raises NotANameServer."""
    try:
        return await ask(pool, address, header, timeout_s)
    except NotSupported:
        raise NotANameServer(
            f"{address} is not a name server but, it seems, a broker: give the name server's "
            "address"
        ) from None


async def get_route(
    pool: ConnectionPool, address: str, topic: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> TopicRouteData:
    """Return the topic's route. Raises TopicNotExist if the name server knows no broker for the
    topic.
    """
    header = GetRouteInfoRequest(topic=topic, accept_standard_json_only=True)
    reply = await _ask_name_server(pool, address, header, timeout_s)
    return TopicRouteData.from_json(loads_object(reply.body))


async def get_cluster_info(
    pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> ClusterInfo:
    return ClusterInfo.decode(
        (await _ask_name_server(pool, address, GetBrokerClusterInfoRequest(), timeout_s)).body
    )


async def topic_list(
    pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> list[str]:
    """Return every topic that the name server knows, the system's own and retry topics included."""
    return topic_list_loads(
        (await _ask_name_server(pool, address, GetAllTopicListRequest(), timeout_s)).body
    )


async def delete_topic_in_name_server(
    pool: ConnectionPool, address: str, topic: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> None:
    await ask(pool, address, DeleteTopicInNameServerRequest(topic=topic), timeout_s)
