"""Registration, signs of life, and what is known of brokers: 103, 104, 106, 205, 217, 322, 327,
901, 904.

Behaviour
- A broker registers its whole table; a broker id that is not known yet with exactly one topic is
  refused, as by Java.
- Topics change when the data version differs; those that a later table lacks stay until somebody
  deletes them (216).
- A slave's answer says where its master is. The answer's body is the ORDER_TOPIC_CONFIG namespace,
  if there is one.
- 322 and 904 count as signs of life.
- 205 and 327 hold for each topic until the broker registers another configuration of it, or is
  gone.

Differs from Java
- A broker belongs to the newest connection on which it registered, unregistered or sent a
  heartbeat: the end of an older one, or a late UNREGISTER_BROKER on it, does not remove the broker.
- UNREGISTER_BROKER works at once, not from a queue.
- A broker name belongs to one cluster at a time; bad addresses are refused, and tables are bounded.
  A topic with an impossible number of queues is left out of the routes, and named in the log.
- Queue mappings of static topics are ignored; a group's members are not told of a new lowest broker
  id (905).
"""

import json
import logging
from typing import Final

from ogive.errors import ConnectError, Refused
from ogive.namesrv.context import Call, Context, success
from ogive.namesrv.kv_config import ORDER_TOPIC_CONFIG
from ogive.namesrv.route_table import BrokerIdentity, Registration, can_be_routed
from ogive.transport.connection import split_listed_address
from ogive.wire.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicRouteData,
    dumps,
    kv_table_dumps,
    loads_object,
)
from ogive.wire.checksum import crc32
from ogive.wire.codes import ResponseCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import (
    AddWritePermRequest,
    AddWritePermResponse,
    BrokerHeartbeatRequest,
    GetBrokerClusterInfoRequest,
    GetBrokerMemberGroupRequest,
    QueryDataVersionRequest,
    QueryDataVersionResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    RegisterTopicRequest,
    UnregisterBrokerRequest,
    WipeWritePermRequest,
    WipeWritePermResponse,
)

log = logging.getLogger(__name__)

# characters of names in a log line
MAX_SHOWN: Final = 2000


def register(ctx: Context, call: Call, header: RegisterBrokerRequest) -> RemotingCommand:
    if header.body_crc32 and crc32(call.body) & 0x7FFFFFFF != header.body_crc32:
        raise Refused(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    body = (
        RegisterBrokerBody.decode(call.body, compressed=header.compressed) if call.body else _EMPTY
    )
    registration = Registration(
        broker=_identity(header),
        data_version=body.data_version,
        topics=body.topics,
        ha_address=header.ha_server_addr,
        expiry_s=None
        if header.heartbeat_timeout_ms is None
        else header.heartbeat_timeout_ms / 1000,
        acting_master=header.enable_acting_master,
    )
    known = ctx.routes.data_version(registration.broker)
    group = ctx.routes.member_group(header.cluster_name, header.broker_name)
    before = group.addresses.get(header.broker_id, header.broker_addr)
    master = ctx.routes.register(registration, now=ctx.now(), owner=call.owner)
    left_out = [topic for topic, config in body.topics.items() if not can_be_routed(config)]
    if left_out and known != body.data_version:
        log.warning(
            "broker %s at %s: not routed, as their numbers of queues are impossible: %s",
            header.broker_name,
            header.broker_addr,
            ", ".join(left_out)[:MAX_SHOWN],
        )
    if before != header.broker_addr and ctx.routes.data_version(registration.broker) is not None:
        log.warning(
            "broker %s was at %s and is now at %s: where both run, each needs a name of its own, "
            "as clients find only the later one",
            header.broker_name,
            before,
            header.broker_addr,
        )
    elif known is None:
        log.info(
            "broker %s at %s registered with %d topics",
            header.broker_name,
            header.broker_addr,
            len(body.topics),
        )
    answer = (
        RegisterBrokerResponse(ha_server_addr=master.ha_address, master_addr=master.address)
        if master
        else RegisterBrokerResponse()
    )
    ordered = ctx.kv.namespace(ORDER_TOPIC_CONFIG)
    return success(answer, kv_table_dumps(ordered) if ordered else b"")


_EMPTY = RegisterBrokerBody(data_version=DataVersion(), topics={})


def unregister(ctx: Context, call: Call, header: UnregisterBrokerRequest) -> RemotingCommand:
    if ctx.routes.unregister(_identity(header), owner=call.owner):
        log.info("broker %s at %s unregistered", header.broker_name, header.broker_addr)
    return success()


def query_data_version(
    ctx: Context, call: Call, header: QueryDataVersionRequest
) -> RemotingCommand:
    broker = _identity(header)
    stored = ctx.routes.data_version(broker)
    asked = DataVersion.from_json(loads_object(call.body)) if call.body else None
    ctx.routes.heartbeat(broker.cluster, broker.address, now=ctx.now(), owner=call.owner)
    return success(
        QueryDataVersionResponse(changed=stored is None or stored != asked),
        dumps(stored.to_json()) if stored else b"",
    )


def heartbeat(ctx: Context, call: Call, header: BrokerHeartbeatRequest) -> RemotingCommand:
    ctx.routes.heartbeat(header.cluster_name, header.broker_addr, now=ctx.now(), owner=call.owner)
    return success()


def register_topic(ctx: Context, call: Call, header: RegisterTopicRequest) -> RemotingCommand:
    ctx.routes.add_topic(header.topic, TopicRouteData.from_json(loads_object(call.body)).queues)
    return success()


def cluster_info(ctx: Context, call: Call, header: GetBrokerClusterInfoRequest) -> RemotingCommand:
    return success(body=ctx.routes.cluster_info().encode())


def member_group(ctx: Context, call: Call, header: GetBrokerMemberGroupRequest) -> RemotingCommand:
    """The broker ids are bare keys, as Java writes them."""
    group = ctx.routes.member_group(header.cluster_name, header.broker_name)
    addresses = ",".join(
        f"{i}:{json.dumps(address)}" for i, address in sorted(group.addresses.items())
    )
    names = f'"brokerName":{json.dumps(group.broker_name)},"cluster":{json.dumps(group.cluster)}'
    return success(
        body=f'{{"brokerMemberGroup":{{"brokerAddrs":{{{addresses}}},{names}}}}}'.encode()
    )


def wipe_write_permission(
    ctx: Context, call: Call, header: WipeWritePermRequest
) -> RemotingCommand:
    count = ctx.routes.set_writable(header.broker_name, False)
    return success(WipeWritePermResponse(wipe_topic_count=count))


def add_write_permission(ctx: Context, call: Call, header: AddWritePermRequest) -> RemotingCommand:
    count = ctx.routes.set_writable(header.broker_name, True)
    return success(AddWritePermResponse(add_topic_count=count))


def _identity(
    header: RegisterBrokerRequest | UnregisterBrokerRequest | QueryDataVersionRequest,
) -> BrokerIdentity:
    try:
        split_listed_address(header.broker_addr)
    except ConnectError as exc:
        raise Refused(ResponseCode.INVALID_PARAMETER, str(exc)) from None
    return BrokerIdentity(
        cluster=header.cluster_name,
        name=header.broker_name,
        broker_id=header.broker_id,
        address=header.broker_addr,
    )
