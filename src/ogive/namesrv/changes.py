"""Which requests administer the name server, and what the log tells of each: see access/audit.py.

What brokers say of themselves is none.
"""

from typing import Final

from ogive.access.audit import About, Change, Secret, State, named
from ogive.namesrv.context import Context
from ogive.wire.codes import RequestCode as C


def _setting(ctx: Context, about: About) -> State:
    """Its value may be anything, so it is not told."""
    (namespace,), (key,) = about.get("namespace", ("",)), about.get("key", ("",))
    value = ctx.kv.get(namespace, key)
    return {} if value is None else {"value": Secret(value)}


def _closed(ctx: Context, about: About) -> State:
    return {"topics closed for writing": ctx.routes.closed(*about.get("broker", ("",)))}


def _brokers(ctx: Context, about: About) -> State:
    route = ctx.routes.route(*about.get("topic", ("",)))
    return (
        {}
        if route is None
        else {"brokers": ",".join(sorted(queue.broker_name for queue in route.queues))}
    )


def _configuration(ctx: Context, about: About) -> State:
    return {"orderMessageEnable": str(ctx.config.order_messages).lower()}


_SETTING: Final = named(namespace="namespace", key="key")

CHANGES: Final[dict[int, Change[Context]]] = {
    C.PUT_KV_CONFIG: Change("set", _SETTING, _setting),
    C.DELETE_KV_CONFIG: Change("delete", _SETTING, _setting),
    C.WIPE_WRITE_PERM_OF_BROKER: Change(
        "close for writing all topics of", named(broker="brokerName"), _closed
    ),
    C.ADD_WRITE_PERM_OF_BROKER: Change(
        "open for writing all topics of", named(broker="brokerName"), _closed
    ),
    C.DELETE_TOPIC_IN_NAMESRV: Change(
        "forget the route of", named(topic="topic", cluster="clusterName"), _brokers
    ),
    C.REGISTER_TOPIC_IN_NAMESRV: Change("add a route of", named(topic="topic"), _brokers),
    C.UPDATE_NAMESRV_CONFIG: Change(
        "change the name server's settings", lambda command: {}, _configuration
    ),
}
