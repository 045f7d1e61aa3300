"""One short coroutine per RPC: header, request, check, typed result.

Retries, caches and choices are the callers'.

Every call takes the pool, the ``host:port`` to ask, and its own time budget. Each raises
TransportError when the peer could not be asked, the BrokerError for an answer that is not SUCCESS,
and ProtocolError for an answer that cannot be read.
"""

from ogive.client.api.access import (
    create_user,
    delete_acl,
    delete_user,
    list_acls,
    list_users,
    update_acl,
    update_user,
)
from ogive.client.api.answering import refusal, success
from ogive.client.api.brokers import broker_runtime_info, broker_settings, delay_levels
from ogive.client.api.calling import REQUEST_TIMEOUT_S, check, request
from ogive.client.api.groups import (
    consume_stats,
    consume_stats_and_rate,
    consumer_connections,
    consumer_running_info,
    create_group,
    delete_group,
    group_configs,
    producer_connections,
    update_group,
)
from ogive.client.api.members import (
    LOCK_TIMEOUT_S,
    HeartbeatAnswer,
    check_client_config,
    consumer_ids,
    heartbeat,
    lock_queues,
    unlock_queues,
    unregister,
)
from ogive.client.api.name_server import (
    delete_topic_in_name_server,
    get_cluster_info,
    get_route,
    topic_list,
)
from ogive.client.api.offsets import (
    earliest_store_time,
    max_offset,
    min_offset,
    query_consumer_offset,
    reset_offset,
    reset_offset_by_time,
    search_offset,
    update_consumer_offset,
)
from ogive.client.api.paging import PAGE
from ogive.client.api.pulling import (
    MAX_FOUND,
    PULL_SUSPEND_S,
    PULL_TIMEOUT_S,
    RawPull,
    pull_message,
    pull_raw,
    query_messages,
    read_messages,
    view_message,
)
from ogive.client.api.sending import (
    SEND_BACK_TIMEOUT_S,
    end_transaction,
    recall_message,
    send_back,
    send_message,
    send_reply,
)
from ogive.client.api.topics import (
    create_topic,
    delete_topic,
    topic_config,
    topic_configs,
    topic_groups,
    topic_stats,
)

__all__ = [
    "LOCK_TIMEOUT_S",
    "MAX_FOUND",
    "PAGE",
    "PULL_SUSPEND_S",
    "PULL_TIMEOUT_S",
    "REQUEST_TIMEOUT_S",
    "SEND_BACK_TIMEOUT_S",
    "HeartbeatAnswer",
    "RawPull",
    "broker_runtime_info",
    "broker_settings",
    "check",
    "check_client_config",
    "consume_stats",
    "consume_stats_and_rate",
    "consumer_connections",
    "consumer_ids",
    "consumer_running_info",
    "create_group",
    "create_topic",
    "create_user",
    "delay_levels",
    "delete_acl",
    "delete_group",
    "delete_topic",
    "delete_topic_in_name_server",
    "delete_user",
    "earliest_store_time",
    "end_transaction",
    "get_cluster_info",
    "get_route",
    "group_configs",
    "heartbeat",
    "list_acls",
    "list_users",
    "lock_queues",
    "max_offset",
    "min_offset",
    "producer_connections",
    "pull_message",
    "pull_raw",
    "query_consumer_offset",
    "query_messages",
    "read_messages",
    "recall_message",
    "refusal",
    "request",
    "reset_offset",
    "reset_offset_by_time",
    "search_offset",
    "send_back",
    "send_message",
    "send_reply",
    "success",
    "topic_config",
    "topic_configs",
    "topic_groups",
    "topic_list",
    "topic_stats",
    "unlock_queues",
    "unregister",
    "update_acl",
    "update_consumer_offset",
    "update_group",
    "update_user",
    "view_message",
]
