"""Unknown keyword arguments: the TypeError names the argument that ogive has instead.

Signatures stay as they are written, for editors, ``help()`` and type checkers. A correct call pays
for one more function call.
"""

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, Final, Never, TypeVar, get_args

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

_SAME: Final = {
    "access_key": "ak user user_name username",
    "actions": "operations permission permissions perms",
    "as_": "decoder deserializer model schema type value_deserializer value_type",
    "at": "date offset_time time timestamp timestamp_ms when",
    "auto_commit": "auto_ack autocommit enable_auto_commit",
    "batch": "batch_size consume_message_batch_max_size",
    "body": "content data message message_body msg payload record text value",
    "broadcast": "broadcasting message_model",
    "broker_name": "broker",
    "check": "checker local_checker transaction_check transaction_checker transaction_listener",
    "compression": "compress_type compression_type",
    "consume_timeout_s": "consume_timeout timeout timeout_ms timeout_s visibility_timeout",
    "credentials": "access_key acl auth password sasl_plain_password sasl_plain_username "
    "secret_key token user username",
    "delay_level": "delay delay_time_level level",
    "delay_s": "countdown delay delay_ms delay_seconds delay_time delay_time_ms delay_time_sec "
    "delay_timeout",
    "deliver_at": "deliver_time deliver_time_ms delivery_time delivery_timestamp eta not_before",
    "end": "end_time to until",
    "group": "consumer_group consumer_group_name group_id group_name name producer_group "
    "producer_group_name subscription_name",
    "invisible_s": "ack_deadline_seconds invisible invisible_duration invisible_time lock_duration "
    "timeout_s visibility_timeout",
    "instance_name": "client_id instance",
    "keys": "key message_key message_keys msg_key unique_key",
    "limit": "count max_messages max_num max_records",
    "max_cached_messages": "prefetch prefetch_count pull_threshold_for_queue",
    "max_in_flight": "max_in_flight_requests max_in_flight_requests_per_connection "
    "max_pending_messages",
    "max_messages": "batch_size limit max_message_num max_msg_nums max_num max_number_of_messages "
    "max_poll_records max_records num_messages size",
    "max_retries": "max_attempts max_reconsume_times max_redeliveries retries retry_max_times "
    "retry_times",
    "message_id": "id key msg_id unique_key",
    "messages": "batch bodies body data msgs payloads records values",
    "name": "user user_name username",
    "name_server": "address addr addrs addresses bootstrap_server bootstrap_servers broker brokers "
    "endpoint "
    "endpoint_url endpoints host hosts name_server_addr name_server_address name_servers name_srv "
    "name_srv_addr nameserver nameserver_address nameservers namesrv namesrv_addr server "
    "server_address "
    "servers service_url url",
    "offsets": "offset positions",
    "on_change": "on_assign on_partitions_assigned on_rebalance rebalance_listener",
    "orderly": "fifo order ordered",
    "properties": "attributes header headers message_attributes metadata props user_properties "
    "user_property",
    "pull_batch_size": "max_poll_records",
    "queue": "message_queue mq partition partition_id queue_id",
    "queue_id": "partition partition_id queue",
    "queues": "num_partitions num_queues partitions queue queue_num queue_nums read_queue_nums "
    "read_queues "
    "topic_partitions write_queue_nums write_queues",
    "read_queues": "num_partitions partitions queues read_queue_nums",
    "retries": "max_retries retry retry_times retry_times_when_send_failed",
    "seconds": "delay delay_s invisible_duration invisible_s invisible_time seconds_s suspend_s "
    "time_s visibility_timeout",
    "secret_key": "pass password secret sk",
    "send_timeout_s": "send_msg_timeout send_timeout timeout timeout_ms timeout_s",
    "serializer": "encoder key_serializer value_serializer",
    "sharding_key": "hash_key key message_group message_group_id ordering_key partition_key "
    "routing_key shard_key shardingkey",
    "source": "from_group source_group src src_group",
    "sql": "expression filter filter_expression selector sql92 sub_expression subscription",
    "ssl": "security_protocol ssl_context tls use_tls",
    "start": "auto_offset_reset begin begin_time consume_from consume_from_where from_beginning "
    "initial_offset initial_position offset offset_reset since start_time",
    "super_user": "admin is_admin is_super superuser",
    "system": "all include_system internal",
    "tag": "tags",
    "tags": "expression filter filter_expression selector sub_expression tag",
    "target": "destination dst dst_group target_group to to_group",
    "threads": "concurrency consume_thread_max consume_thread_min consume_thread_nums max_workers "
    "thread_count workers",
    "timeout_s": "block_timeout_ms max_wait request_timeout send_timeout suspend_timeout timeout "
    "timeout_millis "
    "timeout_ms timeout_seconds wait_time_seconds",
    "to": "offset position timestamp timestamp_ms",
    "topic": "destination exchange name queue_name queue_url subject topic_name topics",
    "topics": "topic topic_name topic_names",
    "trace": "enable_msg_trace enable_trace msg_trace",
    "wait_s": "await_duration poll_time timeout timeout_ms timeout_s wait wait_time_seconds",
    "write_queues": "num_partitions partitions queues write_queue_nums",
    "listeners": "handler handlers listener topic topic_name topics",
}
"""Words of other clients and of other systems, by our argument."""
OF_LISTENERS: Final = (
    "as_",
    "auto_commit",
    "batch",
    "group",
    "orderly",
    "sql",
    "start",
    "tags",
    "threads",
)
_NEAR: Final = 0.75


def explained(function: F, name: str = "") -> F:
    """Decorate *function*, so that the TypeError for an unknown keyword argument says which one to
    use.
    """
    name = name or function.__name__

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            explain(function, name, kwargs)
            raise

    async def call_and_await(*args: Any, **kwargs: Any) -> Any:
        try:
            return await function(*args, **kwargs)
        except TypeError:
            explain(function, name, kwargs)
            raise

    is_async = inspect.iscoroutinefunction(function)
    # It is called like the function.
    wrapper = call_and_await if is_async else call
    return functools.wraps(function)(wrapper)  # type: ignore[return-value]


def explains_itself(function: F) -> F:
    """Decorate a function that takes unknown keyword arguments, and calls ``refuse`` with them.

    Its signature does not show them. For functions to which one more call would cost too much.
    """
    signature = inspect.signature(function)
    shown = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return function


def refuse(function: Callable[..., Any], unknown: dict[str, Never]) -> None:
    """Raise the TypeError for arguments that *function*, which ``explains_itself``, has not."""
    explain(function, function.__qualname__, unknown)


def explains(cls: C) -> C:
    """Decorate a class, so that ``__init__`` and its public methods are ``explained``."""
    cls.__init__ = explained(cls.__init__, cls.__name__)  # type: ignore[misc]  # the same signature
    for name, method in inspect.getmembers_static(cls, inspect.isfunction):
        if not name.startswith("_") and not hasattr(method, "__signature__"):
            setattr(cls, name, explained(method, f"{cls.__name__}.{name}"))
    return cls


def explain(function: Callable[..., Any], name: str, given: dict[str, Any]) -> None:
    """Raise TypeError for the first of the *given* arguments that *function* does not have."""
    ours = inspect.signature(function).parameters
    for word in given:
        if word not in ours or ours[word].kind is inspect.Parameter.VAR_POSITIONAL:
            raise TypeError(
                f"{name}() got an unexpected keyword argument {word!r}: "
                f"{_advice(word, ours.values())}"
            ) from None


def _advice(word: str, parameters: Any) -> str:
    # Imported here: only a mistake pays for it.
    import difflib

    ways = {one.name: one for one in parameters if one.name != "self"}
    if not ways:
        return "there are no arguments"
    # namesrvAddr is namesrv_addr
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word).lower().replace("-", "_")
    nested = [
        (way, kind, field.name)
        for way in ways.values()
        for kind in _settings_of(way)
        for field in fields(kind)
    ]
    if plain in ways:
        return f"use {_way(ways[plain])}"
    if meant := [way for name, way in ways.items() if _is_same(plain, name)]:
        return f"use {' or '.join(map(_way, meant))}"
    # A field's own name before words like it.
    for is_meant in (str.__eq__, _is_same):
        for way, kind, name in nested:
            if is_meant(plain, name):
                return f"use {way.name}={kind.__name__}({name}=...)"
    for name in OF_LISTENERS if "listeners" in ways else ():
        if plain == name or _is_same(plain, name):
            return f"use @ogive.listener(..., {name}=...)"
    if near := difflib.get_close_matches(plain, ways, n=1, cutoff=_NEAR):
        return f"did you mean {_way(ways[near[0]])}?"
    if near := difflib.get_close_matches(plain, [name for _, _, name in nested], n=1, cutoff=_NEAR):
        way, kind, name = next(one for one in nested if one[2] == near[0])
        return f"did you mean {way.name}={kind.__name__}({name}=...)?"
    return f"there are {', '.join(map(_way, ways.values()))}"


def _is_same(word: str, name: str) -> bool:
    """Return True if *word* is what others call our argument *name*."""
    return word in _SAME.get(name, "").split()


def _way(parameter: inspect.Parameter) -> str:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return f"*{parameter.name}, the first arguments, without a name"
    return f"{parameter.name}="


def _settings_of(parameter: inspect.Parameter) -> list[type]:
    """The dataclasses of settings that an argument takes."""
    if parameter.name not in ("config", "client"):
        return []
    return [
        kind
        for kind in get_args(parameter.annotation)
        if is_dataclass(kind) and isinstance(kind, type)
    ]
