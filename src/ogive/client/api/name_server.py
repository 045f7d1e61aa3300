"""What name servers know."""

from ogive.client.api.calling import REQUEST_TIMEOUT_S, ask
from ogive.errors import NotANameServer, NotSupported
from ogive.transport.pool import ConnectionPool
from ogive.wire import headers as h
from ogive.wire.bodies import ClusterInfo, TopicRouteData, loads_object, topic_list_loads
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import Header


async def _ask_name_server(
    pool: ConnectionPool, address: str, header: Header, timeout_s: float
) -> RemotingCommand:
    """For requests that every name server knows, and no broker. Raises NotANameServer."""
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
    """Raises TopicNotExist where the name server knows no broker for the topic."""
    header = h.GetRouteInfoRequest(topic=topic, accept_standard_json_only=True)
    reply = await _ask_name_server(pool, address, header, timeout_s)
    return TopicRouteData.from_json(loads_object(reply.body))


async def get_cluster_info(
    pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> ClusterInfo:
    return ClusterInfo.decode(
        (await _ask_name_server(pool, address, h.GetBrokerClusterInfoRequest(), timeout_s)).body
    )


async def topic_list(
    pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> list[str]:
    """Every topic that the name server knows, the system's own and retry topics included."""
    return topic_list_loads(
        (await _ask_name_server(pool, address, h.GetAllTopicListRequest(), timeout_s)).body
    )


async def delete_topic_in_name_server(
    pool: ConnectionPool, address: str, topic: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> None:
    await ask(pool, address, h.DeleteTopicInNameServerRequest(topic=topic), timeout_s)
