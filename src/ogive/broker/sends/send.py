"""Sends: SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), one-way or
answered.

Source: SendMessageProcessor.java, HookUtils.java, 5.3.

Behaviour
- Checks, in this order: topic name, reserved topics, topic (created from the default topic if
  allowed), queue id, retry topic, properties.
- The answer is sent once the messages are safe and visible, and their topic is saved.
- Added to each single message: MSG_REGION, TRACE_ON, CLUSTER, and UNIQ_KEY where the client gave
  none. Batch items stay as they are.
- A delay level sends the message through SCHEDULE_TOPIC_XXXX, a time (TIMER_*) through
  rmq_sys_wheel_timer, see broker/deferred/timers.py; in the latter case the answer has the handle
  for cancelling it.
- A transactional message waits as a half message, see broker/transactions/transaction_table.py,
  unless a consumer sends it again: then it is an ordinary one.
- A message for a retry topic that has no retries left goes to the dead-letter topic.
- A message for a retry topic loses its largest properties if they leave no room for those that the
  broker adds, see send_back.py.

Differs from Java
- Properties keep the client's order; Java shuffles them.
- A batch item that is transactional or has a delay level is refused; Java stores it as an ordinary
  one.
- A transactional message with a delay is refused; Java's client removes the delay, as Java's broker
  would lose such a half message.
- With enforce_message_types the broker enforces message.type, see broker/state/topic_table.py.
- FLUSH_DISK_TIMEOUT is never answered: the answer waits for the sync, or says that it failed.
"""

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from ogive.broker.deferred.delay_levels import check_delivery, delayed
from ogive.broker.deferred.timer_properties import DELETE_KEY, TIMES_BYTES, recall_handle, timed
from ogive.broker.replies import Rejected
from ogive.broker.sends.checks import (
    CLIENT_FLAGS,
    VERSION_WITH_MAX_RECONSUME,
    check_body,
    check_may_send_to,
    check_queue,
    check_room,
    encoded,
    fit,
    inner_batch,
    unusual,
)
from ogive.broker.sends.commit import answer_to, commit, put_once
from ogive.broker.sends.send_batch import put_batch
from ogive.broker.services import Context
from ogive.broker.state.topic_table import MESSAGE_TYPE, check_message_type
from ogive.broker.transactions.half_messages import ready_message, redirect_half
from ogive.errors import ProtocolError, ResponseCode
from ogive.model import (
    DLQ_PREFIX,
    HALF_TOPIC,
    NO_SEND_TOPICS,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    PropertyName,
    validate_topic,
)
from ogive.native import native
from ogive.store.types import NewMessage, PutDone
from ogive.transport.connection import Connection
from ogive.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from ogive.wire.codes import RequestCode, SysFlag
from ogive.wire.command import RemotingCommand
from ogive.wire.fitting import fit_properties
from ogive.wire.message import (
    MAX_PROPERTIES_BYTES,
    decode_properties,
    encode_properties,
    join_properties,
)
from ogive.wire.numbers import parse_bool, parse_int, parse_long

_SEND_MESSAGE: Final = int(RequestCode.SEND_MESSAGE)
_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
_PREPARED: Final = SysFlag.TRANSACTION_PREPARED
_OTHER_FLAGS: Final = ~CLIENT_FLAGS
_WAITING: Final = {SCHEDULE_TOPIC: 0, TIMER_TOPIC: TIMES_BYTES}
"""Largest growth at delivery of a message that waits in one of these topics."""
_OWN_NAMES: Final = (PropertyName.MSG_REGION, PropertyName.TRACE_ON, PropertyName.CLUSTER)
_NONE: Final[Mapping[str, str]] = MappingProxyType({})
# a third of what the call of a named tuple costs
_new_message: Final = tuple.__new__
_UNIQ_KEY: Final = f"{PropertyName.UNIQ_KEY}\x01"
_UNIQ_KEY_CHARS: Final = len(_UNIQ_KEY)


class _Names(NamedTuple):
    """Names of the fields in a header."""

    topic: str
    queue_id: str
    sys_flag: str
    born_timestamp: str
    flag: str
    properties: str
    reconsume_times: str
    max_reconsume_times: str
    default_topic: str
    default_topic_queues: str
    unit_mode: str
    batch: str


_LONG: Final = _Names(
    "topic",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "maxReconsumeTimes",
    "defaultTopic",
    "defaultTopicQueueNums",
    "unitMode",
    "batch",
)
_SHORT: Final = _Names("b", "e", "f", "g", "h", "i", "j", "l", "c", "d", "k", "m")


def own_properties(region: str, cluster: str) -> str:
    """Return the properties that the broker adds to each message."""
    return encode_properties(dict(zip(_OWN_NAMES, (region, "true", cluster), strict=True))).decode()


def handle(ctx: Context, connection: Connection, command: RemotingCommand) -> None:
    """One send.

    No dataclass for the header, no task: at full speed this function is most of what the broker
    does.
    """
    check_room(ctx)
    ext = command.ext_fields
    names = _LONG if command.code == _SEND_MESSAGE else _SHORT
    usual = (
        None
        if native is None or command.code == _BATCH
        else native.usual_send(ext, names, ctx.own_properties)
    )
    if usual is None and _put_half(ctx, connection, command, names):
        return
    topic, queue_id, sys_flag, born_ms, flag, reconsume_times, stored, key = usual or _numbers(
        ext, names
    )
    text = ext.get(names.properties, "")
    config = ctx.topics.get(topic)
    if config is None or topic in NO_SEND_TOPICS:
        config = _make_topic(ctx, topic, ext, names)
    if not 0 <= queue_id < config.write_queues:
        queue_id = check_queue(queue_id, config)
    if config.filter_type == "MULTI_TAG" or config.attributes:
        sys_flag |= _checked_by_topic(
            config, text, reconsume_times, enforce=ctx.config.enforce_message_types
        )
    check_body(ctx, command.body)
    if stored is None and (command.code == _BATCH or parse_bool(ext.get(names.batch, ""))):
        draft = NewMessage(
            topic,
            queue_id,
            b"",
            b"",
            sys_flag,
            flag,
            born_ms,
            ctx.born_hosts[connection],
            ctx.store_host,
            reconsume_times,
        )
        put_batch(ctx, connection, command, draft, text)
        return
    asked_queue, recall, properties = queue_id, None, _NONE
    if stored is None:
        stored, key = _as_it_came(topic, text, ctx.own_properties)
    if stored is None:
        topic, queue_id, properties, recall = _redirect(
            ctx, command, topic, queue_id, text, reconsume_times, names
        )
        key = properties[PropertyName.UNIQ_KEY]
        stored = encoded(
            "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
            + ctx.own_properties
        )
    born_host, store_host = ctx.born_hosts[connection], ctx.store_host
    message = _new_message(
        NewMessage,
        (
            topic,
            queue_id,
            command.body,
            stored,
            sys_flag,
            flag,
            born_ms,
            born_host,
            store_host,
            reconsume_times,
            0,
        ),
    )
    answer = answer_to(command, asked_queue, key)
    if recall is not None:
        answer = answer._replace(more=("recallHandle", recall))
    answers = [answer]
    put: Callable[[PutDone], object]
    if topic != config.name:
        put = partial(_put_elsewhere, ctx, message, properties, config.name)
    elif ctx.duplicates is not None and topic[0] != "%" and not reconsume_times:
        put = partial(put_once, ctx, (message,), answers, topic, command)
    else:
        put = partial(ctx.put, (message,), topic)
    commit(ctx, connection, command.code, answers, [topic], put)


def _put_elsewhere(
    ctx: Context, message: NewMessage, properties: Mapping[str, str], topic: str, done: PutDone
) -> None:
    """A message that was sent to *topic*, not to the one it is stored in.

    Raises InvalidOption for one that could not leave it again.
    """
    if message.topic == HALF_TOPIC:
        put_half = partial(
            _put_opened, ctx, message, partial(ctx.transactions.accept, message, properties, done)
        )
        if ctx.is_saved(topic):
            put_half()
        else:
            ctx.once_saved(topic, (message,), put_half, done)
        return
    if message.topic in _WAITING:
        check_delivery(ctx.store, message, topic, _WAITING[message.topic])
        # the dead-letter topic, where a retry was sent to the retry topic
        topic = properties[PropertyName.REAL_TOPIC]
    else:
        topic = message.topic
    ctx.put((message,), topic, done)


def _numbers(
    ext: Mapping[str, str], names: _Names
) -> tuple[str, int, int, int, int, int, None, str]:
    """Topic, queue id, sysFlag, born timestamp, flag and reconsume times; in place of what is
    stored, and of its key, nothing yet.

    Raises ProtocolError and Rejected.
    """
    # half of what seven attributes cost
    topic_name, queue_id_name, sys_flag_name, born_name, flag_name, text_name, times_name, *_ = (
        names
    )
    try:
        topic = ext[topic_name]
        queue_id = parse_int(ext[queue_id_name])
        sys_flag = parse_int(ext.get(sys_flag_name, "0"))
        born_ms = parse_long(ext[born_name])
        flag = parse_int(ext.get(flag_name, "0"))
        reconsume_times = parse_int(ext.get(times_name, "0"))
    except (KeyError, ValueError) as exc:
        raise ProtocolError(
            f"send header: {'field missing' if isinstance(exc, KeyError) else 'no integer'}: {exc}"
        ) from None
    fits = fit(born_ms, flag, reconsume_times)
    if sys_flag & _OTHER_FLAGS or not fits:
        sys_flag = _without_prepared(sys_flag, fits, ext.get(text_name, ""))
    return topic, queue_id, sys_flag, born_ms, flag, reconsume_times, None, ""


def _as_it_came(topic: str, text: str, own_properties: str) -> tuple[bytes | None, str]:
    """The properties to store and the unique key of a message that is stored just where it was
    sent; None for another: see _redirect().
    """
    at = text.find(_UNIQ_KEY)
    if (
        at < 0
        or (at and text[at - 1] != "\x02")
        # of two the last counts
        or text.find(_UNIQ_KEY, at + 1) >= 0
        or topic[0] == "%"
        or "DELAY\x01" in text
        or "TRAN_MSG\x01" in text
        or "TIMER_" in text
        or "POP_CK\x01" in text
        or "INNER_NUM\x01" in text
        # has been through a broker before
        or "CLUSTER\x01" in text
    ):
        return None, ""
    at += _UNIQ_KEY_CHARS
    end = text.find("\x02", at)
    return encoded(
        text + (own_properties if text[-1] == "\x02" else f"\x02{own_properties}")
    ), text[at:end] if end >= 0 else text[at:]


# --- what a message may be ------------------------------------------------------------------------


def _checked_by_topic(
    config: TopicConfig, text: str, reconsume_times: int, *, enforce: bool
) -> int:
    """Return the flag that the topic adds.

    Raises Rejected if *enforce* is set and the message is not of the topic's type. What a consumer
    sends again is not checked.
    """
    if (
        enforce
        and (expected := config.attributes.get(MESSAGE_TYPE)) is not None
        and not reconsume_times
    ):
        check_message_type(config.name, expected, encoded(text))
    return SysFlag.MULTI_TAGS if config.filter_type == "MULTI_TAG" else 0


def _without_prepared(sys_flag: int, fits: bool, text: str) -> int:
    """Return the flag with which a half message is stored. Raises Rejected for any other unusual
    flag or number.
    """
    if not fits or sys_flag & ~CLIENT_FLAGS != _PREPARED:
        raise unusual(sys_flag)
    if "TRAN_MSG\x01" not in text:
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL,
            "sysFlag says that the message is transactional, its properties do not",
        )
    return sys_flag & ~_PREPARED


def _make_topic(ctx: Context, topic: str, ext: dict[str, str], names: _Names) -> TopicConfig:
    """Create the topic of a send. Raises Rejected or InvalidOption if that is not allowed."""
    validate_topic(topic)
    check_may_send_to(topic)
    if topic.startswith(RETRY_PREFIX):
        return ctx.topics.ensure_retry(_retry_group(ctx, topic).name, 1)
    try:
        queues = parse_int(ext.get(names.default_topic_queues, "4"))
    except ValueError:
        raise ProtocolError("send header: the number of default queues is not an integer") from None
    unit_mode = parse_bool(ext.get(names.unit_mode, ""))
    config = ctx.topics.auto_create_on_send(
        topic, ext.get(names.default_topic, ""), queues, unit_mode=unit_mode
    )
    if config is None:
        raise Rejected(
            ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!"
        )
    return config


def _retry_group(ctx: Context, topic: str) -> SubscriptionGroupConfig:
    name = topic.removeprefix(RETRY_PREFIX)
    group = ctx.groups.find_or_create(name)
    if group is None:
        raise Rejected(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}"
        )
    return group


# --- messages that need more than a look ----------------------------------------------------------


def _put_half(
    ctx: Context, connection: Connection, command: RemotingCommand, names: _Names
) -> bool:
    """A half message as producers send it, for a topic that takes any message: its properties are
    not taken apart. False, and nothing done, for every other send.
    """
    ext, body = command.ext_fields, command.body
    text = ext.get(names.properties, "")
    if (
        native is None
        or "TRAN_MSG\x01true" not in text
        or command.code == _BATCH
        or parse_bool(ext.get(names.batch, ""))
    ):
        return False
    topic, queue_id, sys_flag, born_ms, flag, reconsume_times, _, _ = _numbers(ext, names)
    config = ctx.topics.get(topic)
    if (
        config is None
        or topic in NO_SEND_TOPICS
        or not 0 <= queue_id < config.write_queues
        or config.filter_type == "MULTI_TAG"
        or config.attributes
        or len(body) > ctx.config.max_message_bytes
        or reconsume_times
    ):
        return False
    usual = native.half_properties(text, topic, queue_id, ctx.own_properties)
    if usual is None:
        return False
    key, group, stored, committed = usual
    born_host = ctx.born_hosts[connection]
    half = _new_message(
        NewMessage,
        (HALF_TOPIC, 0, body, stored, sys_flag, flag, born_ms, born_host, ctx.store_host, 0, 0),
    )
    ready = ready_message(half, topic, queue_id, committed)
    commit(
        ctx,
        connection,
        command.code,
        [answer_to(command, queue_id, key)],
        [HALF_TOPIC],
        partial(_put_usual_half, ctx, half, ready, key, group),
    )
    return True


def _put_usual_half(
    ctx: Context, half: NewMessage, ready: NewMessage, key: str, group: str, done: PutDone
) -> None:
    opened = partial(ctx.transactions.accept_usual, half, ready, key, group, done)
    if ctx.is_saved(ready.topic):
        _put_opened(ctx, half, opened)
    else:
        ctx.once_saved(ready.topic, (half,), partial(_put_opened, ctx, half, opened), done)


def _put_opened(ctx: Context, half: NewMessage, opened: Callable[[], PutDone]) -> None:
    """Raises what *opened*, which makes the transaction, and the store raise."""
    ctx.put_now((half,), opened())


def _redirect(
    ctx: Context,
    command: RemotingCommand,
    topic: str,
    queue_id: int,
    text: str,
    reconsume_times: int,
    names: _Names,
) -> tuple[str, int, dict[str, str], str | None]:
    """Topic, queue, properties without the broker's own, and recall handle of a message with
    special properties or for a retry topic.
    """
    is_retry = topic.startswith(RETRY_PREFIX)
    properties = decode_properties(text.encode(errors="replace") if is_retry else encoded(text))
    properties.pop("POP_CK", None)
    if is_retry:
        # Only in a batch item, which no broker checks. Its consumer must not be refused for it.
        properties.pop("INNER_NUM", None)
    if "INNER_NUM" in properties:
        raise inner_batch()
    if is_retry and _retries_are_over(ctx, command, topic, reconsume_times, names):
        topic = ctx.topics.ensure_dlq(topic.removeprefix(RETRY_PREFIX)).name
        queue_id = 0
        properties[PropertyName.DELAY] = "-1"
    if PropertyName.UNIQ_KEY not in properties:
        properties[PropertyName.UNIQ_KEY] = secrets.token_hex(16).upper()
    for name in _OWN_NAMES:
        properties.pop(name, None)
    if _is_transactional(properties, topic, reconsume_times):
        topic, queue_id = redirect_half(properties, topic, queue_id)
    else:
        topic, queue_id = delayed(ctx.levels, topic, queue_id, properties)
        if topic != SCHEDULE_TOPIC:
            topic, queue_id = timed(
                properties,
                topic,
                queue_id,
                wall_ms=ctx.now_ms(),
                store_ms=ctx.store.now_ms(),
                max_delay_s=ctx.config.timer_max_delay_s,
            )
    recall, room = None, MAX_PROPERTIES_BYTES - len(ctx.own_properties.encode())
    if topic == TIMER_TOPIC:
        # which makes room
        if DELETE_KEY not in properties:
            ctx.timers.check_room()
        recall = recall_handle(properties, ctx.config.name)
        if "TIMER_DELIVER_MS\x01" not in text and len(join_properties(properties)) > room:
            # Delivery is then at the end of its second, as TIMER_OUT_MS says.
            del properties[PropertyName.TIMER_DELIVER_MS]
    if is_retry:
        properties = fit_properties(properties, room)
    return topic, queue_id, properties, recall


def _is_transactional(properties: dict[str, str], topic: str, reconsume_times: int) -> bool:
    """Consumers that try a message again send it with all its properties, TRAN_MSG too."""
    again = reconsume_times > 0 or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    return not again and properties.get(PropertyName.TRANSACTION_PREPARED, "").lower() == "true"


def _retries_are_over(
    ctx: Context, command: RemotingCommand, topic: str, reconsume_times: int, names: _Names
) -> bool:
    group = _retry_group(ctx, topic)
    if ctx.locks.holds_any(group.name):
        # orderly consumers retry by themselves, and send a message here when they have given up
        return True
    limit = group.retry_max_times
    asked = command.ext_fields.get(names.max_reconsume_times)
    if asked is not None and command.version >= VERSION_WITH_MAX_RECONSUME:
        try:
            limit = parse_int(asked)
        except ValueError:
            raise ProtocolError(f"send header: {asked[:40]!r} is not a number of retries") from None
    return reconsume_times > limit
