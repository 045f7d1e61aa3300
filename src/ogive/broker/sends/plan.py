"""Plans of sends: the messages that SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE
(320) have stored, and where; one-way or answered.

Source: SendMessageProcessor.java, HookUtils.java, 5.3; sendBatchMessage, 5.5.

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
- The messages of a batch are for one queue and stored all or none. In a topic of batches
  (queue.type=BatchCQ) a batch with a unique key of its own, such as Java's MessageBatch has, is one
  record with all messages in its body. Any other batch, and one for any other topic, is as many
  records as it has messages.

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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from ogive.broker.deferred.delay_levels import check_delivery, delayed
from ogive.broker.deferred.timer_properties import (
    DELETE_KEY,
    TIMES_BYTES,
    recall_handle,
    timed,
)
from ogive.broker.replies import Rejected
from ogive.broker.sends.checks import (
    NOT_PLAIN,
    VERSION_WITH_MAX_RECONSUME,
    check_body,
    check_may_send_to,
    check_plain,
    check_queue,
    check_size,
    inner_batch,
    unusual,
)
from ogive.broker.services import Context
from ogive.broker.state.topic_table import (
    MESSAGE_TYPE,
    check_message_type,
    keeps_batches,
    message_type,
)
from ogive.broker.transactions.half_messages import half_as_sent, redirect_half
from ogive.broker.transactions.state import Step
from ogive.errors import OgiveError, ProtocolError, ResponseCode
from ogive.model import (
    DLQ_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    PropertyName,
    is_written_by_brokers_alone,
    validate_topic,
)
from ogive.native import native
from ogive.store.types import Messages, NewBatch, NewMessage, PutDone
from ogive.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from ogive.wire.codes import Decision, RequestCode, SysFlag
from ogive.wire.command import parse_bool, parse_int
from ogive.wire.fitting import fit_properties
from ogive.wire.message import (
    MAX_BATCH_MESSAGES,
    MAX_INNER_MESSAGES,
    MAX_PROPERTIES_BYTES,
    WRAPPED,
    BatchItem,
    decode_batch,
    decode_properties,
    encode_properties,
    join_properties,
    raw_property,
)
from ogive.wire.sends import CLIENT_FLAGS, End, Send, SendAnswer, SendKind, fit

# for 3.11, where attributes of an enumeration are slow
_BATCH: Final = int(SendKind.BATCH)
_SEND_MESSAGE_V2: Final = int(RequestCode.SEND_MESSAGE_V2)
_PREPARED: Final = SysFlag.TRANSACTION_PREPARED
_DECISIONS: Final = {int(decision): decision for decision in Decision}
# a third of what the call of a named tuple costs
_new: Final = tuple.__new__
MAX_TRANSACTION_BYTES: Final = 256 * 1024
"""Limit for bodies of half messages and commits that are stored together."""
_WAITING: Final = {SCHEDULE_TOPIC: 0, TIMER_TOPIC: TIMES_BYTES}
"""Largest growth at delivery of a message that waits in one of these topics."""
_OWN_NAMES: Final = (PropertyName.MSG_REGION, PropertyName.TRACE_ON, PropertyName.CLUSTER)
_SET_BY_BROKERS: Final = frozenset((*_OWN_NAMES, "INNER_NUM", "INNER_BASE"))
BARRED_STARTS: Final = (b"DELAY\x01", b"TRAN_MSG\x01", b"TIMER_", b"INNER_NUM\x01")
"""Beginnings of properties that no message in a batch may have."""


class Put(NamedTuple):
    """Messages to store, all or none, and the answers of their sends."""

    code: int
    messages: Messages
    answers: list[SendAnswer]
    """One answer for each send."""
    topics: list[str]
    """The topics that the sends count for."""
    saved: str
    """The topic that must be on stable storage first."""
    batched: int = 0
    """The number of messages in the one record of a batch that stays whole; 0 for others."""
    once: bool = False
    """The window of duplicates applies."""
    ends: Sequence[int] = ()
    """Requests for ends of transactions that need an answer, by their opaque."""
    opening: Callable[[PutDone], PutDone] | None = None
    """Begins the transaction of a half message, just before that is stored.

    Gets the callback for the stored message, and returns the one to call instead. Raises
    OgiveError.
    """
    undo: Callable[[], None] | None = None
    """Undoes the plan's preparations, if the store refuses the messages at once."""


def own_properties(region: str, cluster: str) -> bytes:
    """Return the properties that the broker adds to each message."""
    return encode_properties(dict(zip(_OWN_NAMES, (region, "true", cluster), strict=True)))


def plan_together(ctx: Context, sends: Sequence[Send | End]) -> tuple[Put | None, int]:
    """Return one put for the first of *sends*, which are of one kind, and the number of these.

    They are those that need no further check: plain ones for queues that accept any message, half
    messages for such queues, and ends of transactions whose message is in memory. Messages with
    special properties are checked one by one here, and stored together.
    """
    together = PLANNERS[sends[0].kind].together
    return (None, 0) if together is None else together(ctx, sends)


def _plain_together(ctx: Context, sends: Sequence[Any]) -> tuple[Put | None, int]:
    """Return one put for all of *sends*, or none if one needs a further check."""
    if ctx.duplicates is not None:
        return None, 0
    # by numbers, which cost less than names
    messages = [send[2] for send in sends]
    topics = [message[0] for message in messages]
    for topic, queue_id in {message[:2] for message in messages}:
        if not 0 <= queue_id < _open_queues(ctx, topic):
            return None, 0
    answers = [send[3] for send in sends]
    return Put(sends[0][0], messages, answers, topics, topics[0]), len(sends)


def _batches_together(ctx: Context, sends: Sequence[Any]) -> tuple[Put | None, int]:
    """Return one put for the first batches, as many as need no further check."""
    if ctx.duplicates is not None:
        return None, 0
    stored: list[NewBatch] = []
    answers: list[SendAnswer] = []
    topics: list[str] = []
    together = 0
    for send in sends:
        message, (opaque, queue_id, key, *_) = send.message, send.answer
        topic, _, _, _, sys_flag, flag, born_ms, _, _, times, _ = message
        if (
            not key
            or topic[:1] in ("", "%")
            or not 0 <= queue_id < _open_queues(ctx, topic)
            or len(message.properties) > MAX_PROPERTIES_BYTES
            or sys_flag & ~CLIENT_FLAGS
            or not fit(born_ms, flag, times)
        ):
            break
        data, start = send.batch
        try:
            number = _checked(data, start, MAX_BATCH_MESSAGES)
        except (ProtocolError, Rejected):
            break
        together += number
        # small messages grow most as records, and all of a put is one write
        if together > MAX_BATCH_MESSAGES and stored:
            break
        stored.append(NewBatch(message, data, start, number))
        answers.append(SendAnswer(opaque, queue_id, key, number))
        topics.append(topic)
    if not stored:
        return None, 0
    return Put(sends[0].code, stored, answers, topics, topics[0]), len(stored)


def _transactions_together(ctx: Context, sends: Sequence[Send | End]) -> tuple[Put | None, int]:
    """Return one put for the first steps, as many as need no look-up in the log."""
    transactions, own = ctx.transactions, ctx.own_properties
    messages: list[NewMessage] = []
    answers: list[SendAnswer] = []
    ends: list[int] = []
    steps: list[Step] = []
    size = 0
    for send in sends:
        if isinstance(send, End):
            found = transactions.in_memory(send.ending)
            if found is None:
                break
            stored = transactions.begin_end(found, _DECISIONS[send.ending.decision])
            step = _new(Step, (found, None, send.ending.queue_offset, stored))
            size += len(stored[0].body)
            if size > MAX_TRANSACTION_BYTES and steps:
                transactions.take_back((step,))
                break
            steps.append(step)
            messages += stored
            if send.answer.opaque is not None:
                ends.append(send.answer.opaque)
            continue
        message = send.message
        size += len(message.body)
        if (size > MAX_TRANSACTION_BYTES and steps) or not (
            0 <= message.queue_id < _open_queues(ctx, message.topic)
        ):
            break
        key = send.answer.key or ""
        half, ready = half_as_sent(message, key, own)
        if len(half.properties) > MAX_PROPERTIES_BYTES:
            break
        try:
            opened = transactions.opening(half, ready, key, _group(message))
        except OgiveError:
            break
        steps.append(_new(Step, (opened, ready, 0, [half])))
        messages.append(half)
        answers.append(send.answer)
    if not steps:
        return None, 0
    put = Put(
        _SEND_MESSAGE_V2,
        messages,
        answers,
        [HALF_TOPIC] * len(answers),
        HALF_TOPIC,
        ends=ends,
        opening=lambda done: partial(transactions.carried_out, steps, ctx.traffic, done),
        undo=partial(transactions.take_back, steps),
    )
    return put, len(steps)


def _specials_together(ctx: Context, sends: Sequence[Any]) -> tuple[Put | None, int]:
    """Return one put for the first messages, up to one that is refused or has to be stored by
    itself. The window of duplicates takes each by itself.
    """
    if ctx.duplicates is not None:
        return None, 0
    puts: list[Put] = []
    for send in sends:
        try:
            put = plan(ctx, send)
        except OgiveError:
            break
        if put.opening is not None or not ctx.is_saved(put.saved):
            break
        puts.append(put)
    if not puts:
        return None, 0
    together = puts[0]._replace(
        messages=[put.messages[0] for put in puts],
        answers=[put.answers[0] for put in puts],
        topics=[put.topics[0] for put in puts],
    )
    return together, len(puts)


def _group(half: NewMessage) -> str:
    """Return the producer group of a half message."""
    return (raw_property(half.properties, b"PGROUP") or b"").decode()


def _open_queues(ctx: Context, topic: str) -> int:
    """Return the number of queues of a topic that accepts plain messages without a further check; 0
    for any other.
    """
    config = ctx.topics.get(topic)
    if (
        config is None
        or config.attributes
        or config.filter_type == "MULTI_TAG"
        or is_written_by_brokers_alone(topic)
        or not ctx.is_saved(topic)
    ):
        return 0
    return config.write_queues


def plan(ctx: Context, send: Send) -> Put:
    """Return the put of one send.

    Create its topic, if that is allowed. Raises OgiveError for a send that is refused.
    """
    message = send.message
    topic, queue_id, _, properties, sys_flag, flag, born_ms, _, _, reconsume_times, _ = message
    fits = fit(born_ms, flag, reconsume_times)
    if sys_flag & ~CLIENT_FLAGS or not fits:
        sys_flag = _without_prepared(sys_flag, fits, properties)
    config = ctx.topics.get(topic)
    if config is None or is_written_by_brokers_alone(topic):
        config = _make_topic(ctx, send)
    if not 0 <= queue_id < config.write_queues:
        queue_id = check_queue(queue_id, config)
    if config.filter_type == "MULTI_TAG" or config.attributes:
        sys_flag |= _checked_by_topic(
            config, properties, reconsume_times, enforce=ctx.config.enforce_message_types
        )
    if send.kind != _BATCH:
        check_body(ctx, len(message.body))
    if queue_id != message.queue_id or sys_flag != message.sys_flag:
        message = message._replace(queue_id=queue_id, sys_flag=int(sys_flag))
    alone = PLANNERS[send.kind].alone
    assert alone is not None, "ends are looked up in the log"
    return alone(ctx, send, message, config)


def _plain(ctx: Context, send: Send, message: NewMessage, config: TopicConfig) -> Put:
    answer = send.answer._replace(queue_id=message.queue_id)
    once = not message.reconsume_times
    return Put(send.code, (message,), [answer], [config.name], config.name, once=once)


# --- what a message may be ------------------------------------------------------------------------


def _checked_by_topic(
    config: TopicConfig, properties: bytes, reconsume_times: int, *, enforce: bool
) -> int:
    """Return the flag that the topic adds.

    Raises Rejected if *enforce* is set and the message does not have the topic's type. Messages
    that a consumer sends again are not checked.
    """
    if (
        enforce
        and (expected := config.attributes.get(MESSAGE_TYPE)) is not None
        and not reconsume_times
    ):
        check_message_type(config.name, expected, check_size(properties))
    return SysFlag.MULTI_TAGS if config.filter_type == "MULTI_TAG" else 0


def _without_prepared(sys_flag: int, fits: bool, properties: bytes) -> int:
    """Return the flag with which a half message is stored. Raises Rejected for any other unusual
    flag or number.
    """
    if not fits or sys_flag & ~CLIENT_FLAGS != _PREPARED:
        raise unusual(sys_flag)
    if b"TRAN_MSG\x01" not in properties:
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL,
            "sysFlag says that the message is transactional, its properties do not",
        )
    return sys_flag & ~_PREPARED


def _make_topic(ctx: Context, send: Send) -> TopicConfig:
    """Create the topic of a send. Raises Rejected or InvalidOption if that is not allowed."""
    topic = send.message.topic
    validate_topic(topic)
    check_may_send_to(topic)
    if topic.startswith(RETRY_PREFIX):
        return ctx.topics.ensure_retry(_retry_group(ctx, topic).name, 1)
    queues_text = send.field("default_topic_queues")
    try:
        queues = 4 if queues_text is None else parse_int(queues_text)
    except ValueError:
        raise ProtocolError("send header: the number of default queues is not an integer") from None
    config = ctx.topics.auto_create_on_send(
        topic,
        send.field("default_topic") or "",
        queues,
        unit_mode=parse_bool(send.field("unit_mode") or ""),
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


def _special(ctx: Context, send: Send, message: NewMessage, config: TopicConfig) -> Put:
    """Return the put of a message that is stored with other properties, and often in another
    topic.
    """
    topic, queue_id, properties, recall = _redirect(ctx, send, message, config)
    stored = check_size(join_properties(properties) + ctx.own_properties)
    answer = SendAnswer(
        send.answer.opaque,
        queue_id if topic == message.topic else message.queue_id,
        properties[PropertyName.UNIQ_KEY],
        more=None if recall is None else ("recallHandle", recall),
    )
    redirected = _new(NewMessage, (topic, queue_id, message.body, stored, *message[4:]))
    saved, once, opening = topic, False, None
    if topic == HALF_TOPIC:
        saved = config.name
        opening = partial(ctx.transactions.accept, redirected, properties)
    elif topic in _WAITING:
        check_delivery(ctx.store, redirected, config.name, _WAITING[topic])
        # the dead-letter topic, where a retry was sent to the retry topic
        saved = properties[PropertyName.REAL_TOPIC]
    elif topic == config.name:
        once = topic[0] != "%" and not message.reconsume_times
    return Put(send.code, (redirected,), [answer], [topic], saved, once=once, opening=opening)


def _half(ctx: Context, send: Send, message: NewMessage, config: TopicConfig) -> Put:
    key = send.answer.key or ""
    half, ready = half_as_sent(message, key, ctx.own_properties)
    if len(half.properties) > MAX_PROPERTIES_BYTES:
        return _special(ctx, send, message, config)
    answer = send.answer._replace(queue_id=message.queue_id)
    opening = partial(ctx.transactions.accept_usual, half, ready, key, _group(message))
    return Put(send.code, (half,), [answer], [HALF_TOPIC], config.name, opening=opening)


def _redirect(
    ctx: Context, send: Send, message: NewMessage, config: TopicConfig
) -> tuple[str, int, dict[str, str], str | None]:
    """Return topic, queue, properties without the broker's own, and recall handle of a message with
    special properties or for a retry topic.
    """
    topic, queue_id, _, text, *_ = message
    is_retry = topic.startswith(RETRY_PREFIX)
    properties = decode_properties(text if is_retry else check_size(text))
    properties.pop("POP_CK", None)
    if is_retry:
        # Only in a batch item, which no broker checks. Its consumer must not be refused for it.
        properties.pop("INNER_NUM", None)
    if "INNER_NUM" in properties:
        raise inner_batch()
    if is_retry and _retries_are_over(ctx, send):
        topic = ctx.topics.ensure_dlq(topic.removeprefix(RETRY_PREFIX)).name
        queue_id = 0
        properties[PropertyName.DELAY] = "-1"
    if PropertyName.UNIQ_KEY not in properties:
        properties[PropertyName.UNIQ_KEY] = secrets.token_hex(16).upper()
    for name in _OWN_NAMES:
        properties.pop(name, None)
    queue_id = _by_priority(properties, queue_id, config)
    if _is_transactional(properties, topic, message.reconsume_times):
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
    recall, room = None, MAX_PROPERTIES_BYTES - len(ctx.own_properties)
    if topic == TIMER_TOPIC:
        # which makes room
        if DELETE_KEY not in properties:
            ctx.timers.check_room()
        recall = recall_handle(properties, ctx.config.name)
        if (
            # half of the limit is far from it
            len(text) > MAX_PROPERTIES_BYTES // 2
            and b"TIMER_DELIVER_MS\x01" not in text
            and len(join_properties(properties)) > room
        ):
            # Delivery is then at the end of its second, as TIMER_OUT_MS says.
            del properties[PropertyName.TIMER_DELIVER_MS]
    if is_retry:
        properties = fit_properties(properties, room)
    return topic, queue_id, properties, recall


def _by_priority(properties: dict[str, str], queue_id: int, config: TopicConfig) -> int:
    """Return the queue of a message: that of its priority, if it has one.

    Remove the priority of a message of another type.
    """
    text = properties.get(PropertyName.PRIORITY)
    if text is None:
        return queue_id
    try:
        priority = parse_int(text)
    except ValueError:
        return queue_id
    if priority < 0:
        return queue_id
    if message_type(properties) != "PRIORITY":
        del properties[PropertyName.PRIORITY]
        return queue_id
    return min(priority, config.write_queues - 1)


def _is_transactional(properties: dict[str, str], topic: str, reconsume_times: int) -> bool:
    """Return True if the message opens a transaction.

    Consumers that try a message again send it with all its properties, TRAN_MSG too.
    """
    again = reconsume_times > 0 or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    return not again and properties.get(PropertyName.TRANSACTION_PREPARED, "").lower() == "true"


def _retries_are_over(ctx: Context, send: Send) -> bool:
    group = _retry_group(ctx, send.message.topic)
    if ctx.locks.holds_any(group.name):
        # orderly consumers retry by themselves, and send a message here when they have given up
        return True
    limit = group.retry_max_times
    asked = send.field("max_reconsume_times")
    if asked is not None and send.command.version >= VERSION_WITH_MAX_RECONSUME:
        try:
            limit = parse_int(asked)
        except ValueError:
            raise ProtocolError(f"send header: {asked[:40]!r} is not a number of retries") from None
    return send.message.reconsume_times > limit


# --- batches --------------------------------------------------------------------------------------


def _batch(ctx: Context, send: Send, message: NewMessage, config: TopicConfig) -> Put:
    """Return the put of messages that differ only in flag, body and properties."""
    topic, key = message.topic, send.answer.key
    # a key was found if the properties say nothing special
    own: Mapping[str, str] = {}
    if not key or len(message.properties) > MAX_PROPERTIES_BYTES:
        own = decode_properties(check_size(message.properties))
    if topic.startswith(RETRY_PREFIX):
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {topic}"
        )
    key = key or own.get(PropertyName.UNIQ_KEY)
    whole = bool(key) and keeps_batches(config.attributes)
    data, start = send.batch
    check_body(ctx, len(data) - start)
    number = _checked(data, start, MAX_INNER_MESSAGES if whole else MAX_BATCH_MESSAGES)
    if own and any(name in own for name in NOT_PLAIN):
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL, "a batch can be neither delayed nor transactional"
        )
    stored: NewMessage | NewBatch = NewBatch(message, data, start, number)
    records, more = number, None
    if whole:
        stored = _whole(ctx, message, data[start:], number)
        records, more = 1, ("batchUniqId", str(key))
    answer = SendAnswer(send.answer.opaque, message.queue_id, key, records, more)
    return Put(send.code, (stored,), [answer], [topic], topic, number if whole else 0, True)


def _checked(data: bytes, start: int, most: int) -> int:
    """Return the number of messages in a batch.

    Raises ProtocolError, and Rejected for messages that no batch may have.
    """
    count = None if native is None else native.plain_batch(data, start, BARRED_STARTS, most)
    if count is not None:
        return count
    items = decode_batch(data[start:], most)
    if not items:
        raise Rejected(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
    check_items(items)
    return len(items)


def _whole(ctx: Context, message: NewMessage, body: bytes, count: int) -> NewMessage:
    """Return the batch as one record: as a message with the properties of the batch, and with its
    count.
    """
    if message.sys_flag & SysFlag.COMPRESSED:
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL, "a batch that stays whole cannot be compressed"
        )
    own = decode_properties(check_size(message.properties))
    text = encode_properties(
        {name: value for name, value in own.items() if name not in _SET_BY_BROKERS}
    )
    stored = check_size(b"%b%bINNER_NUM\x01%d\x02" % (text, ctx.own_properties, count))
    return message._replace(body=body, properties=stored, sys_flag=message.sys_flag | WRAPPED)


def check_items(items: list[BatchItem]) -> None:
    """Raise Rejected for messages that no batch may have."""
    if max([len(properties) for _, _, properties in items]) > MAX_PROPERTIES_BYTES:
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"properties in a batch are over the limit of {MAX_PROPERTIES_BYTES} bytes",
        )
    # to be searched at once, for what nearly no batch has
    texts = b"\x02".join([properties for _, _, properties in items])
    if any(start in texts for start in BARRED_STARTS):
        for item in items:
            check_plain("a message in a batch", decode_properties(item.properties))


class Planner(NamedTuple):
    """Functions that plan the sends of one kind."""

    together: Callable[[Context, Sequence[Send | End]], tuple[Put | None, int]] | None
    """Plans the first of several that arrived together; None if each is planned by itself."""
    alone: Callable[[Context, Send, NewMessage, TopicConfig], Put] | None
    """Plans one send, by its message with queue and flags as they are stored, and the settings of
    its topic. None for ends, see transactions/checks.py.
    """


PLANNERS: Final[Mapping[int, Planner]] = {
    SendKind.PLAIN: Planner(_plain_together, _plain),
    SendKind.BATCH: Planner(_batches_together, _batch),
    SendKind.SPECIAL: Planner(_specials_together, _special),
    SendKind.HALF: Planner(_transactions_together, _half),
    SendKind.END: Planner(_transactions_together, None),
}
