"""Running info that a member reports, and its rates of the last minute and hour.

Pure: the caller gives the times, in seconds of any clock that only goes forward.

Source: DefaultMQPushConsumerImpl.java, ConsumerStatsManager.java, 5.3.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import ogive
from ogive.client.config import ClientConfig
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.process_queue import ProcessQueue
from ogive.client.listener import ListenerConfig
from ogive.client.metrics import PROCESS_MS
from ogive.transport.monitoring import Values
from ogive.wire.bodies.clients import ConsumeStatus, ProcessQueueInfo

# so many slots of so many seconds
MINUTE_SLOTS: Final = (6, 10.0)
HOUR_SLOTS: Final = (6, 600.0)


class SlidingSums:
    """Sums of the current slot of time and the ones before it."""

    __slots__ = ("_begun", "_slot_s", "_slots")

    def __init__(self, slots: int, slot_s: float, begun: float) -> None:
        self._slot_s = slot_s
        self._begun = begun
        # [number of the slot, sum, count]
        self._slots: deque[list[float]] = deque(maxlen=slots)

    def add(self, now: float, value: float, count: int) -> None:
        number = now // self._slot_s
        if not self._slots or self._slots[-1][0] != number:
            self._slots.append([number, 0.0, 0])
        self._slots[-1][1] += value
        self._slots[-1][2] += count

    def sums(self, now: float) -> tuple[float, int]:
        oldest = self._oldest(now)
        fresh = [slot for slot in self._slots if slot[0] >= oldest]
        return sum(slot[1] for slot in fresh), int(sum(slot[2] for slot in fresh))

    def seconds(self, now: float) -> float:
        """Return the seconds that the sums cover; never less than one."""
        return max(1.0, now - max(self._begun, self._oldest(now) * self._slot_s))

    def _oldest(self, now: float) -> float:
        assert self._slots.maxlen is not None
        return now // self._slot_s - self._slots.maxlen + 1


class Meter:
    """Sum and count, over the last minute and the last hour."""

    __slots__ = ("hour", "minute")

    def __init__(self, begun: float) -> None:
        self.minute = SlidingSums(*MINUTE_SLOTS, begun)
        self.hour = SlidingSums(*HOUR_SLOTS, begun)

    def add(self, now: float, value: float, count: int = 1) -> None:
        self.minute.add(now, value, count)
        self.hour.add(now, value, count)

    def per_second(self, now: float) -> float:
        return self.minute.sums(now)[0] / self.minute.seconds(now)

    def average(self, now: float) -> float:
        """Return the average of the minute, or of the hour if nothing came within the minute."""
        for window in (self.minute, self.hour):
            total, count = window.sums(now)
            if count:
                return total / count
        return 0.0


class TopicStatistics:
    """Statistics of one topic of one member."""

    def __init__(self, begun: float) -> None:
        self._pull_ms = Meter(begun)
        self._pulled = Meter(begun)
        self._consume_ms = Meter(begun)
        self._done = Meter(begun)
        self._failed = Meter(begun)
        self.pulled_messages = 0
        self.succeeded_calls = Values(PROCESS_MS)
        self.failed_calls = Values(PROCESS_MS)

    def pulled(self, now: float, seconds: float, messages: int) -> None:
        """Record a pull that found messages; *messages* of them were wanted."""
        self._pull_ms.add(now, seconds * 1000)
        self._pulled.add(now, messages)
        self.pulled_messages += messages

    def consumed(self, now: float, seconds: float, *, calls: int, done: int, failed: int) -> None:
        """Record *calls* of the listener, which took *seconds* together."""
        self._consume_ms.add(now, seconds * 1000, calls)
        self._done.add(now, done)
        self._failed.add(now, failed)
        mean_ms = seconds * 1000 / max(1, calls)
        self.succeeded_calls.add(mean_ms, done)
        self.failed_calls.add(mean_ms, failed)

    def status(self, now: float) -> ConsumeStatus:
        return ConsumeStatus(
            pull_rt=self._pull_ms.average(now),
            pull_tps=self._pulled.per_second(now),
            consume_rt=self._consume_ms.average(now),
            consume_ok_tps=self._done.per_second(now),
            consume_failed_tps=self._failed.per_second(now),
            consume_failed_count=int(self._failed.hour.sums(now)[0]),
        )


class Statistics:
    """Statistics of one member. Retries count under the retry topic, as in Java."""

    def __init__(self, begun: float) -> None:
        self._begun = begun
        self._topics: dict[str, TopicStatistics] = {}
        self.left_behind = 0
        """Queues given up to another member while a listener call still ran in them."""

    def of(self, topic: str) -> TopicStatistics:
        """Return the statistics of a subscribed topic; they are made for each subscription."""
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = TopicStatistics(self._begun)
        return found

    def forget(self, topic: str) -> None:
        self._topics.pop(topic, None)


STUCK_SHOWN: Final = 16
CLIENT_VERSION: Final = f"ogive {ogive.__version__}"


def queue_info(
    process_queue: ProcessQueue,
    commit_offset: int | None,
    *,
    lease_s: float | None,
    now: float,
    now_ms: int,
) -> ProcessQueueInfo:
    """Return the state of one queue. *lease_s*: duration of a lock, None for a group without locks;
    *now* is a ``lease_time``, *now_ms* the same moment in ms since 1970.
    """
    taken = process_queue.taken
    # what is taken comes first in the queue
    held = process_queue.count - len(taken)
    first = process_queue.head(len(taken) + 1)[-1:]
    lease_left_s = process_queue.leased_until - now
    return ProcessQueueInfo(
        commit_offset=commit_offset or 0,
        cached_min_offset=first[0].queue_offset if held and first else 0,
        cached_max_offset=process_queue.safe_offset + process_queue.span if held else 0,
        cached_count=held,
        cached_mib=process_queue.bytes >> 20,
        taken_min_offset=taken[0].queue_offset if taken else 0,
        taken_max_offset=taken[-1].queue_offset if taken else 0,
        taken_count=len(taken),
        locked=lease_s is not None and lease_left_s > 0,
        failed_unlocks=process_queue.failed_unlocks,
        last_lock_ms=now_ms - int((lease_s - lease_left_s) * 1000) if lease_s is not None else 0,
        dropped=process_queue.dropped,
        last_pull_ms=process_queue.pulled_at_ms,
        last_consume_ms=process_queue.consumed_at_ms,
    )


def stuck(held: Iterable[ProcessQueue]) -> dict[str, str]:
    """Return a property that explains why nothing is delivered, if a queue is stuck."""
    places = [f"{one.queue} from {one.stuck_at} on" for one in held if one.stuck_at is not None]
    more = f" and {len(places) - STUCK_SHOWN} more" if len(places) > STUCK_SHOWN else ""
    return {"unreadableQueues": ", ".join(sorted(places)[:STUCK_SHOWN]) + more} if places else {}


def left_behind(queues: int) -> dict[str, str]:
    """Return a property with the number of queues given up before their listener calls had
    ended.
    """
    return {"queuesGivenUpWhileBusy": str(queues)} if queues else {}


def properties(
    settings: Sequence[ListenerConfig],
    config: ConsumerConfig,
    client: ClientConfig,
    *,
    from_where: str,
    started_ms: int,
) -> dict[str, str]:
    """Return the settings by their Java names, and the properties that tools look for (PROP_...).

    Where listeners of the group differ, each value once.
    """
    first = settings[0]
    return {
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CONSUMEORDERLY": _text(first.orderly),
        "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
        "PROP_CLIENT_VERSION": CLIENT_VERSION,
        "PROP_NAMESERVER_ADDR": client.name_server,
        "PROP_THREADPOOL_CORE_SIZE": str(sum(one.threads for one in settings)),
        "consumerGroup": first.group,
        "messageModel": "BROADCASTING" if first.broadcast else "CLUSTERING",
        "consumeFromWhere": from_where,
        "allocateMessageQueueStrategy": getattr(
            config.strategy, "__qualname__", repr(config.strategy)
        ),
        "consumeThreadMax": _each(one.threads for one in settings),
        "consumeMessageBatchMaxSize": _each(one.batch for one in settings),
        "consumeTimeout": _each(round(one.consume_timeout_s / 60, 3) for one in settings),
        "maxReconsumeTimes": _each(one.retries for one in settings),
        "suspendCurrentQueueTimeMillis": _each(int(one.suspend_s * 1000) for one in settings),
        "pullBatchSize": str(config.pull_batch_size),
        "pullBatchSizeInBytes": str(config.pull_batch_bytes),
        "pullThresholdForQueue": str(config.max_cached_messages),
        "pullThresholdSizeForQueue": str(config.max_cached_bytes >> 20),
        "pullThresholdForTopic": str(config.max_topic_messages or -1),
        "pullThresholdSizeForTopic": str(
            config.max_topic_bytes >> 20 if config.max_topic_bytes is not None else -1
        ),
        "consumeConcurrentlyMaxSpan": str(config.max_span),
        "pullTimeDelayMillsWhenException": _ms(config.pull_retry_s),
        "persistConsumerOffsetInterval": _ms(config.persist_period_s),
        "awaitTerminationMillisWhenShutdown": _ms(config.await_termination_s),
        "heartbeatBrokerInterval": _ms(client.heartbeat_period_s),
        "pollNameServerInterval": _ms(client.route_period_s),
        "mqClientApiTimeout": _ms(client.request_timeout_s),
        "useTLS": _text(bool(client.ssl)),
    }


def _each(values: Iterable[float]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values))


def _ms(seconds: float) -> str:
    return str(int(seconds * 1000))


def _text(value: bool) -> str:
    return str(value).lower()
