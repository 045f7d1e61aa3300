"""Unknown keyword arguments: the TypeError names the argument that ogive has instead.

Signatures stay as they are written, for editors, ``help()`` and type checkers. A correct call pays
for one more function call.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, Final, TypeVar, get_args

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

_SAME: Final = {
    "as_": "decoder deserializer model schema type value_deserializer value_type",
    "auto_commit": "autocommit enable_auto_commit",
    "batch": "batch_size consume_message_batch_max_size",
    "body": "content data message msg payload record text value",
    "broadcast": "broadcasting message_model",
    "check": "checker local_checker transaction_check transaction_checker transaction_listener",
    "compression": "compress_type compression_type",
    "consume_timeout_s": "consume_timeout timeout timeout_s",
    "credentials": "access_key acl auth password secret_key token user username",
    "delay_level": "delay delay_time_level level",
    "delay_s": "countdown delay delay_ms delay_seconds delay_time delay_time_ms delay_time_sec delay_timeout",
    "deliver_at": "deliver_time deliver_time_ms delivery_time delivery_timestamp eta not_before",
    "group": "consumer_group consumer_group_name group_id group_name producer_group producer_group_name subscription_name",
    "instance_name": "client_id instance",
    "keys": "key message_key message_keys msg_key unique_key",
    "max_in_flight": "max_in_flight_requests max_pending_messages",
    "max_messages": "batch_size max_message_num max_msg_nums max_num max_poll_records max_records num_messages",
    "max_retries": "max_attempts max_reconsume_times max_redeliveries retries retry_times",
    "messages": "batch bodies body data msgs payloads records values",
    "name_server": "address addr addrs addresses bootstrap_server bootstrap_servers broker brokers endpoint endpoints host hosts "
    "name_server_addr name_server_address name_servers name_srv name_srv_addr nameserver nameserver_address nameservers namesrv "
    "namesrv_addr server server_address servers service_url url",
    "on_change": "on_assign on_partitions_assigned on_rebalance rebalance_listener",
    "orderly": "fifo order ordered",
    "properties": "attributes header headers metadata props user_properties user_property",
    "queue": "message_queue mq partition partition_id queue_id",
    "queues": "num_partitions num_queues partitions queue_num queue_nums",
    "retries": "max_retries retry retry_times retry_times_when_send_failed",
    "send_timeout_s": "send_msg_timeout send_timeout timeout timeout_ms timeout_s",
    "serializer": "encoder key_serializer value_serializer",
    "sharding_key": "hash_key key message_group ordering_key partition_key routing_key shard_key shardingkey",
    "sql": "expression filter filter_expression selector sql92 sub_expression subscription",
    "ssl": "security_protocol ssl_context tls use_tls",
    "start": "auto_offset_reset consume_from consume_from_where from_beginning initial_offset initial_position offset offset_reset",
    "tag": "tags",
    "tags": "expression filter filter_expression selector sub_expression tag",
    "threads": "concurrency consume_thread_max consume_thread_min consume_thread_nums max_workers thread_count workers",
    "timeout_s": "block_timeout_ms max_wait request_timeout send_timeout suspend_timeout timeout timeout_millis timeout_ms timeout_seconds",
    "topic": "queue_name subject topic_name topics",
    "topics": "topic topic_name topic_names",
    "listeners": "handler handlers listener topic topic_name topics",
}
"""Words of other clients and of other systems, by our argument."""


def explained(function: F, name: str = "") -> F:
    """Decorate *function*, so that the TypeError for an unknown keyword argument says which one to
    use.
    """
    name = name or function.__name__

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            _explain(function, name, kwargs)
            raise

    async def call_and_await(*args: Any, **kwargs: Any) -> Any:
        try:
            work = function(*args, **kwargs)
        except TypeError:
            _explain(function, name, kwargs)
            raise
        return await work

    is_async = inspect.iscoroutinefunction(function)
    # It is called like the function.
    return functools.wraps(function)(call_and_await if is_async else call)  # type: ignore[return-value]


def explains(*methods: str) -> Callable[[C], C]:
    """Decorate a class, so that ``__init__`` and *methods* are ``explained``."""

    def decorate(cls: C) -> C:
        cls.__init__ = explained(cls.__init__, cls.__name__)  # type: ignore[misc]  # the same signature
        for name in methods:
            setattr(cls, name, explained(getattr(cls, name), f"{cls.__name__}.{name}"))
        return cls

    return decorate


def _explain(function: Callable[..., Any], name: str, given: dict[str, Any]) -> None:
    """Raises TypeError for the first of the *given* arguments that *function* does not have."""
    ours = inspect.signature(function).parameters
    for word in given:
        if word not in ours or ours[word].kind is inspect.Parameter.VAR_POSITIONAL:
            raise TypeError(f"{name}() got an unexpected keyword argument {word!r}: {_advice(word, ours.values())}") from None


def _advice(word: str, parameters: Any) -> str:
    # Imported here: only a mistake pays for it.
    import difflib

    ways = {one.name: one for one in parameters if one.name != "self"}
    if (own := ways.get(word)) is not None:
        return f"use {_way(own)}"
    plain = word.lower().replace("-", "_")
    nested = [(way, kind, field.name) for way in ways.values() for kind in _settings_of(way) for field in fields(kind)]
    meant = [way for name, way in ways.items() if plain in _SAME.get(name, "").split()]
    if meant:
        return f"use {' or '.join(map(_way, meant))}"
    for wanted in (plain, *(name for name, words in _SAME.items() if plain in words.split())):
        for way, kind, name in nested:
            if name == wanted:
                return f"use {way.name}={kind.__name__}({name}=...)"
    if near := difflib.get_close_matches(plain, ways, n=1):
        return f"did you mean {_way(ways[near[0]])}?"
    if near := difflib.get_close_matches(plain, [name for _, _, name in nested], n=1):
        way, kind, name = next(one for one in nested if one[2] == near[0])
        return f"did you mean {way.name}={kind.__name__}({name}=...)?"
    return f"there are {', '.join(map(_way, ways.values()))}"


def _way(parameter: inspect.Parameter) -> str:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return f"*{parameter.name}, the first arguments, without a name"
    return f"{parameter.name}="


def _settings_of(parameter: inspect.Parameter) -> list[type]:
    """The dataclasses of settings that an argument takes."""
    if parameter.name not in ("config", "client"):
        return []
    return [kind for kind in get_args(parameter.annotation) if is_dataclass(kind) and isinstance(kind, type)]
