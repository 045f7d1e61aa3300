"""Routes and lists of topics: 105, 206, 216, 224, 304, 311, 312, 313.

Behaviour
- A route in standard JSON for clients of 4.9.4 and later and for those that ask for it; with bare
  integer keys for older ones.
- No route is code 17 with a remark that names the topic.
- 216 forgets a topic until a broker registers a table that holds it.

Differs from Java
- A name server answers from its first moment; there is no waiting time after the start
  (waitSecondsForService, off there too).
- No slave is shown as acting master (supportActingMaster, off there too).
"""

from dataclasses import replace

from ogive.errors import Refused
from ogive.namesrv.context import Call, Context, success
from ogive.namesrv.kv_config import ORDER_TOPIC_CONFIG
from ogive.wire.bodies import topic_list_dumps
from ogive.wire.codes import ResponseCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import (
    DeleteTopicInNameServerRequest,
    GetAllTopicListRequest,
    GetRouteInfoRequest,
    GetSystemTopicListRequest,
    GetTopicsByClusterRequest,
    GetUnitSubTopicListRequest,
    GetUnitSubUnunitTopicListRequest,
    GetUnitTopicListRequest,
)

# 4.9.4, as MQVersion.java counts
STANDARD_JSON_SINCE = 401
# bits of topicSysFlag
UNIT, UNIT_SUB = 1, 2


def route(ctx: Context, call: Call, header: GetRouteInfoRequest) -> RemotingCommand:
    found = ctx.routes.route(header.topic)
    if found is None:
        raise Refused(
            ResponseCode.TOPIC_NOT_EXIST,
            f"No topic route info in name server for the topic: {header.topic[:256]}",
        )
    if ctx.config.order_messages:
        found = replace(found, order_topic_conf=ctx.kv.get(ORDER_TOPIC_CONFIG, header.topic))
    standard = call.version >= STANDARD_JSON_SINCE or bool(header.accept_standard_json_only)
    return success(body=found.encode(standard=standard))


def all_topics(ctx: Context, call: Call, header: GetAllTopicListRequest) -> RemotingCommand:
    return success(body=topic_list_dumps(ctx.routes.topics()))


def topics_of_cluster(
    ctx: Context, call: Call, header: GetTopicsByClusterRequest
) -> RemotingCommand:
    return success(body=topic_list_dumps(ctx.routes.topics_of_cluster(header.cluster)))


def system_topics(ctx: Context, call: Call, header: GetSystemTopicListRequest) -> RemotingCommand:
    return success(body=topic_list_dumps(ctx.routes.system_topics(), ctx.routes.any_address()))


def unit_topics(ctx: Context, call: Call, header: GetUnitTopicListRequest) -> RemotingCommand:
    return success(body=topic_list_dumps(ctx.routes.topics_by_sys_flag(on=UNIT)))


def unit_sub_topics(
    ctx: Context, call: Call, header: GetUnitSubTopicListRequest
) -> RemotingCommand:
    return success(body=topic_list_dumps(ctx.routes.topics_by_sys_flag(on=UNIT_SUB)))


def unit_sub_ununit_topics(
    ctx: Context, call: Call, header: GetUnitSubUnunitTopicListRequest
) -> RemotingCommand:
    return success(body=topic_list_dumps(ctx.routes.topics_by_sys_flag(on=UNIT_SUB, off=UNIT)))


def delete_topic(
    ctx: Context, call: Call, header: DeleteTopicInNameServerRequest
) -> RemotingCommand:
    ctx.routes.delete_topic(header.topic, header.cluster_name)
    return success()
