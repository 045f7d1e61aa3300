"""Permissions that each request needs: one row for every request code of the protocol.

A test fails if a code has none.

Source: DefaultAuthorizationContextBuilder.java and the annotations of the header classes, 5.5.

Differs from Java
- Java does not check requests whose header class it does not know (25, 26, 28, 200, 361 and more),
  nor a resource that the request leaves out. Here the table has a permission for every code, and a
  missing resource counts as one that no user has been granted.
- A retry topic belongs to its group: to read it or send to it, permission for the group is needed.
  So does the retry topic of a popping group, unless another group's retry topic has its name.
- 33, 36, 37 and 309 name a message by its position in the log: the topic of that message counts.
- Permission to read a topic includes its offsets (29 to 32).
- Only a rule that names it applies to a topic in which messages of other topics wait: see
  Resource.matches.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from ogive.access.policy import Need
from ogive.access.user_table import user_of
from ogive.errors import ProtocolError
from ogive.model import AUTO_CREATE_TOPIC, RETRY_PREFIX, reply_topic
from ogive.wire.bodies.acls import ANY, SUPER, TOPIC, User
from ogive.wire.bodies.clients import HeartbeatData, LockBatchBody
from ogive.wire.bodies.json_fields import loads_object
from ogive.wire.codes import RequestCode as C
from ogive.wire.command import RemotingCommand, parse_long
from ogive.wire.message import parse_offset_message_id

PUB = "Pub"
SUB = "Sub"
CREATE = "Create"
UPDATE = "Update"
DELETE = "Delete"
GET = "Get"
LIST = "List"
GROUP, CLUSTER = "Group", "Cluster"

SUPER_ONLY: Final = Need("", "a super user", ("everything",))
"""A permission that no policy can give."""
# largest offset in the log
MAX_OFFSET: Final = 2**63 - 1
# limit for a body that is read to find the resources of a request
MAX_BODY_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about the server that a rule may use."""

    cluster: str
    is_super: Callable[[str], bool]
    topic_at: Callable[[int], str | None]
    topics_to_clone: Callable[[str], Iterable[str]]
    """Return the topics for which another group's position can be copied to this group."""


Rule = Callable[[RemotingCommand, Facts], Iterable[Need]]


# --- kinds of rows --------------------------------------------------------------------------------


def _on_topic(name: str | None, actions: tuple[str, ...]) -> Need:
    """Require *actions* on a topic.

    A retry topic belongs to its group: a user who may subscribe with the group may read from it and
    send to it.
    """
    if name is not None and name.startswith(RETRY_PREFIX):
        return Need(
            GROUP,
            name.removeprefix(RETRY_PREFIX).partition("+")[0],
            tuple(dict.fromkeys(SUB if action == PUB else action for action in actions)),
        )
    return Need(TOPIC, name or "", actions)


def to_send(topic: str) -> Need:
    return _on_topic(topic, (PUB,))


def to_pull(topic: str, group: str) -> tuple[Need, Need]:
    return _on_topic(topic, (SUB,)), Need(GROUP, group, (SUB,))


def topic(*actions: str, field: str = "topic") -> Rule:
    return lambda command, _: (_on_topic(command.ext_fields.get(field), actions),)


def group(*actions: str, field: str = "consumerGroup") -> Rule:
    return lambda command, _: (Need(GROUP, command.ext_fields.get(field, ""), actions),)


def all_topics(*actions: str) -> Rule:
    return lambda command, _: (Need(TOPIC, ANY, actions),)


def all_groups(*actions: str) -> Rule:
    return lambda command, _: (Need(GROUP, ANY, actions),)


def cluster(*actions: str, field: str | None = None) -> Rule:
    """Require *actions* on the server's own cluster, or on the cluster in the request."""
    return lambda command, facts: (
        Need(CLUSTER, command.ext_fields.get(field, "") if field else facts.cluster, actions),
    )


def both(*rules: Rule) -> Rule:
    return lambda command, facts: [need for rule in rules for need in rule(command, facts)]


def if_given(field: str, rule: Rule) -> Rule:
    """Apply *rule* only if the request names the resource.

    Without the name such a request affects less, not more.
    """
    return lambda command, facts: rule(command, facts) if command.ext_fields.get(field) else ()


def _running_info(command: RemotingCommand, facts: Facts) -> Iterable[Need]:
    """Require Get on the group or, for a request with a body, Sub or Get.

    With a body a member asks another member which queues it holds. The broker requests no stacks
    then.
    """
    return group(SUB, GET)(command, facts) if command.body else group(GET)(command, facts)


def _consumer_status(command: RemotingCommand, facts: Facts) -> Iterable[Need]:
    """Require Get on topic and group or, for a request that names one client, Sub or Get.

    In this way a member learns which queues a Java member holds. With Sub it can read the group's
    progress anyway.
    """
    actions = (SUB, GET) if command.ext_fields.get("clientAddr") else (GET,)
    return both(topic(*actions), group(*actions, field="group"))(command, facts)


def super_users(command: RemotingCommand, facts: Facts) -> Iterable[Need]:
    return (SUPER_ONLY,)


def topic_at(field: str, *actions: str) -> Rule:
    """Return the topic of the message at this offset of the commit log."""

    def rule(command: RemotingCommand, facts: Facts) -> Iterable[Need]:
        try:
            # As the handler reads it. Otherwise the rule would be that of another message.
            at = parse_long(command.ext_fields.get(field, ""))
        except ValueError:
            at = -1
        return (_on_topic(topic_of_offset(facts, at), actions),)

    return rule


def topic_of_offset(facts: Facts, commitlog_offset: int) -> str | None:
    """Return the topic of the message at an offset of the commit log; None if there is no
    message.
    """
    return facts.topic_at(commitlog_offset) if 0 <= commitlog_offset <= MAX_OFFSET else None


def _body_of(command: RemotingCommand) -> bytes:
    if len(command.body) > MAX_BODY_BYTES:
        raise ProtocolError(
            f"a body of {len(command.body)} bytes is over the limit of {MAX_BODY_BYTES} for "
            f"request {command.code}"
        )
    return command.body


# --- rows of their own kind -----------------------------------------------------------------------


def _route(command: RemotingCommand, facts: Facts) -> Iterable[Need]:
    """Require Pub, Sub or Get on the topic, but nothing for TBW102: clients request its route
    before a send creates a topic.
    """
    name = command.ext_fields.get("topic", "")
    return () if name == AUTO_CREATE_TOPIC else (_on_topic(name, (PUB, SUB, GET)),)


def _reply(field: str) -> Rule:
    """Require Pub on the topic of a reply. For the topic of all replies, Sub on any group is
    enough.

    Consumers have Sub, and usually not Pub.
    """

    def rule(command: RemotingCommand, facts: Facts) -> Iterable[Need]:
        need = _on_topic(command.ext_fields.get(field), (PUB,))
        return (
            need._replace(or_some=(GROUP, SUB))
            if need.name == reply_topic(facts.cluster)
            else need,
        )

    return rule


def _of_message_id(command: RemotingCommand, facts: Facts) -> Iterable[Need]:
    """Parse a message id exactly as the handler does: otherwise another message would be
    checked.
    """
    try:
        found = facts.topic_at(parse_offset_message_id(command.ext_fields.get("msgId", ""))[1])
    except ProtocolError:
        found = None
    return (_on_topic(found, (SUB,)),)


def _heartbeat(command: RemotingCommand, facts: Facts) -> Iterator[Need]:
    for consumer in HeartbeatData.decode(_body_of(command)).consumers:
        yield Need(GROUP, consumer.group, (SUB,))
        for subscription in consumer.subscriptions:
            if not _is_pop_retry(subscription.topic, consumer.group):
                yield _on_topic(subscription.topic, (SUB,))


def _is_pop_retry(topic_name: str, group_name: str) -> bool:
    """Return True for the retry topic of a popping group, under either name.

    The older name may also be that of another group's retry topic: for reading this is not enough.
    """
    return topic_name.startswith((f"{RETRY_PREFIX}{group_name}_", f"{RETRY_PREFIX}{group_name}+"))


def _popped(command: RemotingCommand, facts: Facts) -> Iterator[Need]:
    """Require Sub on the group, and on the topic that a message was popped from.

    The request affects only a lease of that group, so it reveals nothing about others.
    """
    name = command.ext_fields.get("topic", "")
    group_name = command.ext_fields.get("consumerGroup", "")
    yield Need(GROUP, group_name, (SUB,))
    if not _is_pop_retry(name, group_name):
        yield _on_topic(name, (SUB,))


def _queue_locks(command: RemotingCommand, facts: Facts) -> Iterator[Need]:
    body = LockBatchBody.decode(_body_of(command))
    yield Need(GROUP, body.group, (SUB,))
    for name in dict.fromkeys(queue.topic for queue in body.queues):
        yield _on_topic(name, (SUB,))


def _client_config(command: RemotingCommand, facts: Facts) -> Iterator[Need]:
    body = loads_object(_body_of(command))
    yield Need(GROUP, _text(body.get("group")), (SUB,))
    subscription = body.get("subscriptionData")
    yield _on_topic(
        _text(subscription.get("topic")) if isinstance(subscription, dict) else "", (SUB,)
    )


def _consume_stats(command: RemotingCommand, facts: Facts) -> Iterator[Need]:
    fields = command.ext_fields
    yield Need(GROUP, fields.get("consumerGroup", ""), (GET,))
    for name in dict.fromkeys((fields.get("topic", ""), *fields.get("topicList", "").split(";"))):
        if name:
            yield _on_topic(name, (GET,))


def _clone(command: RemotingCommand, facts: Facts) -> Iterator[Need]:
    fields = command.ext_fields
    source, name = fields.get("srcGroup", ""), fields.get("topic")
    yield Need(GROUP, source, (GET,))
    yield Need(GROUP, fields.get("destGroup", ""), (UPDATE,))
    for changed in (name,) if name else facts.topics_to_clone(source):
        yield _on_topic(changed, (UPDATE,))


def _body_names(members: str, name: str, kind: str, *actions: str) -> Rule:
    """Require *actions* on each name in a body that holds a list of objects."""

    def rule(command: RemotingCommand, facts: Facts) -> Iterator[Need]:
        rows = loads_object(_body_of(command)).get(members)
        for row in rows if isinstance(rows, list) else [None]:
            yield _named(kind, _text(row.get(name)) if isinstance(row, dict) else "", actions)

    return rule


def _body(**fields: tuple[str, tuple[str, ...]]) -> Rule:
    """Require the kind and actions in *fields* for each member of the body that names a
    resource.
    """

    def rule(command: RemotingCommand, facts: Facts) -> Iterator[Need]:
        body = loads_object(_body_of(command))
        for member, (kind, actions) in fields.items():
            yield _named(kind, _text(body.get(member)), actions)

    return rule


def _batch_ack(command: RemotingCommand, facts: Facts) -> Iterator[Need]:
    rows = loads_object(_body_of(command)).get("acks")
    for row in rows if isinstance(rows, list) else [None]:
        value = row if isinstance(row, dict) else {}
        # the long names are those of clients of 5.0
        yield Need(GROUP, _text(value.get("c" if "c" in value else "consumerGroup")), (SUB,))
        yield _on_topic(_text(value.get("t" if "t" in value else "topic")), (SUB,))


def _named(kind: str, name: str, actions: tuple[str, ...]) -> Need:
    return _on_topic(name, actions) if kind == TOPIC else Need(kind, name, actions)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _user(command: RemotingCommand, facts: Facts) -> Iterator[Need]:
    """Require a super user if a super user is created or changed."""
    yield Need(CLUSTER, facts.cluster, (UPDATE,))
    makes_one = bool(command.body) and User.decode(_body_of(command)).user_type == SUPER
    if makes_one or facts.is_super(command.ext_fields.get("username", "")):
        yield SUPER_ONLY


def _policies(command: RemotingCommand, facts: Facts) -> Iterator[Need]:
    yield Need(CLUSTER, facts.cluster, (UPDATE,))
    if facts.is_super(user_of(command.ext_fields.get("subject", ""))):
        yield SUPER_ONLY


def _rows(rule: Rule, *codes: C) -> dict[int, Rule]:
    return {int(code): rule for code in codes}


# --- the table ------------------------------------------------------------------------------------

_SUBSCRIBED: Final = both(topic(SUB), group(SUB))
_FROM_BODY_SUB: Final = _body(consumerGroup=(GROUP, (SUB,)), topic=(TOPIC, (SUB,)))

RULES: Final[dict[int, Rule]] = {
    # sending
    **_rows(topic(PUB), C.SEND_MESSAGE, C.RECALL_MESSAGE),
    **_rows(topic(PUB, field="b"), C.SEND_MESSAGE_V2, C.SEND_BATCH_MESSAGE),
    **_rows(topic_at("commitLogOffset", PUB), C.END_TRANSACTION),
    **_rows(_reply("topic"), C.SEND_REPLY_MESSAGE),
    **_rows(_reply("b"), C.SEND_REPLY_MESSAGE_V2),
    # consuming
    **_rows(
        _SUBSCRIBED,
        C.PULL_MESSAGE,
        C.LITE_PULL_MESSAGE,
        C.POP_MESSAGE,
        C.PEEK_MESSAGE,
    ),
    **_rows(_popped, C.ACK_MESSAGE, C.CHANGE_MESSAGE_INVISIBLETIME),
    **_rows(
        _SUBSCRIBED,
        C.NOTIFICATION,
        C.POLLING_INFO,
        C.POP_LITE_MESSAGE,
    ),
    **_rows(both(group(SUB), _of_message_id), C.CONSUME_MESSAGE_DIRECTLY),
    **_rows(_batch_ack, C.BATCH_ACK_MESSAGE, C.ACK_LITE_MESSAGE),
    **_rows(both(group(SUB, field="group"), topic_at("offset", SUB)), C.CONSUMER_SEND_MSG_BACK),
    **_rows(both(topic(SUB, GET), group(SUB, GET)), C.QUERY_CONSUMER_OFFSET),
    **_rows(both(topic(SUB, UPDATE), group(SUB, UPDATE)), C.UPDATE_CONSUMER_OFFSET),
    **_rows(
        topic(SUB, GET),
        C.QUERY_MESSAGE,
        C.SEARCH_OFFSET_BY_TIMESTAMP,
        C.GET_MAX_OFFSET,
        C.GET_MIN_OFFSET,
    ),
    **_rows(topic(SUB, GET), C.GET_EARLIEST_MSG_STORETIME),
    **_rows(topic_at("offset", SUB, GET), C.VIEW_MESSAGE_BY_ID),
    **_rows(_queue_locks, C.LOCK_BATCH_MQ, C.UNLOCK_BATCH_MQ),
    **_rows(_FROM_BODY_SUB, C.QUERY_ASSIGNMENT),
    # clients
    **_rows(_heartbeat, C.HEART_BEAT),
    **_rows(if_given("consumerGroup", group(SUB)), C.UNREGISTER_CLIENT),
    **_rows(group(SUB, GET), C.GET_CONSUMER_LIST_BY_GROUP),
    **_rows(_client_config, C.CHECK_CLIENT_CONFIG),
    # topics
    **_rows(topic(CREATE), C.UPDATE_AND_CREATE_TOPIC),
    **_rows(
        _body_names("topicConfigList", "topicName", TOPIC, CREATE), C.UPDATE_AND_CREATE_TOPIC_LIST
    ),
    **_rows(topic(DELETE), C.DELETE_TOPIC_IN_BROKER),
    **_rows(
        topic(GET),
        C.GET_TOPIC_CONFIG,
        C.GET_TOPIC_STATS_INFO,
        C.QUERY_TOPIC_CONSUME_BY_WHO,
        C.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
    ),
    **_rows(all_topics(GET, LIST), C.GET_ALL_TOPIC_CONFIG, C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER),
    **_rows(both(topic(GET), if_given("consumerGroup", group(GET))), C.QUERY_CONSUME_QUEUE),
    # groups
    **_rows(_body(groupName=(GROUP, (CREATE, UPDATE))), C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP),
    **_rows(
        _body_names("groupConfigList", "groupName", GROUP, CREATE, UPDATE),
        C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    ),
    **_rows(group(DELETE, field="groupName"), C.DELETE_SUBSCRIPTIONGROUP),
    **_rows(group(GET, field="group"), C.GET_SUBSCRIPTIONGROUP_CONFIG, C.QUERY_TOPICS_BY_CONSUMER),
    **_rows(
        both(group(GET, field="group"), if_given("topic", topic(GET))),
        C.QUERY_SUBSCRIPTION_BY_CONSUMER,
    ),
    **_rows(all_groups(GET, LIST), C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
    # Members need the languages of the others.
    **_rows(group(SUB, GET), C.GET_CONSUMER_CONNECTION_LIST),
    **_rows(_running_info, C.GET_CONSUMER_RUNNING_INFO),
    **_rows(_consume_stats, C.GET_CONSUME_STATS),
    **_rows(
        both(topic(UPDATE), group(UPDATE, field="group")),
        C.INVOKE_BROKER_TO_RESET_OFFSET,
        C.UPDATE_AND_GET_GROUP_FORBIDDEN,
    ),
    **_rows(_consumer_status, C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS),
    **_rows(both(topic(GET), group(GET, field="group")), C.QUERY_CONSUME_TIME_SPAN),
    **_rows(
        both(topic(GET), group(GET, field="compareGroup"), all_groups(GET)),
        C.QUERY_CORRECTION_OFFSET,
    ),
    **_rows(_clone, C.CLONE_GROUP_OFFSET),
    **_rows(
        _body(consumerGroup=(GROUP, (UPDATE,)), topic=(TOPIC, (UPDATE,))),
        C.SET_MESSAGE_REQUEST_MODE,
    ),
    **_rows(topic(UPDATE), C.RESUME_CHECK_HALF_MESSAGE),
    # users
    **_rows(_user, C.AUTH_CREATE_USER, C.AUTH_UPDATE_USER, C.AUTH_DELETE_USER),
    **_rows(_policies, C.AUTH_CREATE_ACL, C.AUTH_UPDATE_ACL, C.AUTH_DELETE_ACL),
    **_rows(cluster(GET), C.AUTH_GET_USER, C.AUTH_LIST_USER, C.AUTH_GET_ACL, C.AUTH_LIST_ACL),
    # the server
    **_rows(
        cluster(GET),
        C.GET_BROKER_CONFIG,
        C.GET_BROKER_RUNTIME_INFO,
        C.GET_PRODUCER_CONNECTION_LIST,
        C.GET_ALL_PRODUCER_INFO,
        C.VIEW_BROKER_STATS_DATA,
        C.GET_BROKER_CONSUME_STATS,
        C.GET_ALL_CONSUMER_OFFSET,
        C.GET_ALL_DELAY_OFFSET,
        C.GET_ALL_MESSAGE_REQUEST_MODE,
        C.GET_TIMER_CHECK_POINT,
        C.GET_TIMER_METRICS,
        C.GET_BROKER_HA_STATUS,
        C.GET_BROKER_EPOCH_CACHE,
        C.GET_COLD_DATA_FLOW_CTR_INFO,
        C.EXPORT_ROCKSDB_CONFIG_TO_JSON,
        C.GET_BROKER_LITE_INFO,
        C.GET_PARENT_TOPIC_INFO,
        C.GET_LITE_TOPIC_INFO,
        C.GET_LITE_CLIENT_INFO,
        C.GET_LITE_GROUP_INFO,
    ),
    **_rows(
        cluster(UPDATE),
        C.UPDATE_BROKER_CONFIG,
        C.CLEAN_EXPIRED_CONSUMEQUEUE,
        C.CLEAN_UNUSED_TOPIC,
        C.DELETE_EXPIRED_COMMITLOG,
        C.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        C.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        C.SET_COMMITLOG_READ_MODE,
        C.SWITCH_TIMER_ENGINE,
        C.POP_ROLLBACK,
        C.UPDATE_AND_CREATE_STATIC_TOPIC,
        C.TRIGGER_LITE_DISPATCH,
        C.LITE_SUBSCRIPTION_CTL,
    ),
    # name servers
    **_rows(_route, C.GET_ROUTEINFO_BY_TOPIC),
    **_rows(
        cluster(UPDATE, field="clusterName"),
        C.REGISTER_BROKER,
        C.UNREGISTER_BROKER,
        C.QUERY_DATA_VERSION,
        C.BROKER_HEARTBEAT,
    ),
    **_rows(cluster(GET, field="clusterName"), C.GET_BROKER_MEMBER_GROUP),
    **_rows(
        cluster(UPDATE),
        C.PUT_KV_CONFIG,
        C.DELETE_KV_CONFIG,
        C.WIPE_WRITE_PERM_OF_BROKER,
        C.ADD_WRITE_PERM_OF_BROKER,
        C.DELETE_TOPIC_IN_NAMESRV,
        C.REGISTER_TOPIC_IN_NAMESRV,
        C.UPDATE_NAMESRV_CONFIG,
    ),
    **_rows(
        cluster(GET),
        C.GET_KV_CONFIG,
        C.GET_KVLIST_BY_NAMESPACE,
        C.GET_NAMESRV_CONFIG,
        C.GET_BROKER_CLUSTER_INFO,
    ),
    **_rows(
        all_topics(GET, LIST),
        C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        C.GET_TOPICS_BY_CLUSTER,
        C.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        C.GET_UNIT_TOPIC_LIST,
        C.GET_HAS_UNIT_SUB_TOPIC_LIST,
        C.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    ),
    # requests of servers to clients, of slaves and controllers to each other, and those that no
    # server supports
    **_rows(
        super_users,
        C.QUERY_BROKER_OFFSET,
        C.GET_TOPIC_CONFIG_LIST,
        C.GET_TOPIC_NAME_LIST,
        C.TRIGGER_DELETE_FILES,
        C.CHECK_TRANSACTION_STATE,
        C.NOTIFY_CONSUMER_IDS_CHANGED,
        C.GET_CLIENT_CONFIG,
        C.SUSPEND_CONSUMER,
        C.RESUME_CONSUMER,
        C.RESET_CONSUMER_OFFSET_IN_CONSUMER,
        C.RESET_CONSUMER_OFFSET_IN_BROKER,
        C.ADJUST_CONSUMER_THREAD_POOL,
        C.WHO_CONSUME_THE_MESSAGE,
        C.RESET_CONSUMER_CLIENT_OFFSET,
        C.GET_CONSUMER_STATUS_FROM_CLIENT,
        C.REGISTER_FILTER_SERVER,
        C.REGISTER_MESSAGE_FILTER_CLASS,
        C.PUSH_REPLY_MESSAGE_TO_CLIENT,
        C.NOTIFY_UNSUBSCRIBE_LITE,
        C.ADD_BROKER,
        C.REMOVE_BROKER,
        C.NOTIFY_MIN_BROKER_ID_CHANGE,
        C.EXCHANGE_BROKER_HA_INFO,
        C.RESET_MASTER_FLUSH_OFFSET,
        C.CONTROLLER_ALTER_SYNC_STATE_SET,
        C.CONTROLLER_ELECT_MASTER,
        C.CONTROLLER_REGISTER_BROKER,
        C.CONTROLLER_GET_REPLICA_INFO,
        C.CONTROLLER_GET_METADATA_INFO,
        C.CONTROLLER_GET_SYNC_STATE_DATA,
        C.NOTIFY_BROKER_ROLE_CHANGED,
        C.UPDATE_CONTROLLER_CONFIG,
        C.GET_CONTROLLER_CONFIG,
        C.CLEAN_BROKER_DATA,
        C.CONTROLLER_GET_NEXT_BROKER_ID,
        C.CONTROLLER_APPLY_BROKER_ID,
        C.BROKER_CLOSE_CHANNEL_REQUEST,
        C.CHECK_NOT_ACTIVE_BROKER_REQUEST,
        C.GET_BROKER_LIVE_INFO_REQUEST,
        C.GET_SYNC_STATE_DATA_REQUEST,
        C.RAFT_BROKER_HEART_BEAT_EVENT_REQUEST,
    ),
}
