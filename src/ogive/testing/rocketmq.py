"""A broker with helpers for tests: send, read a topic's messages, wait until a group has
consumed.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from types import TracebackType
from typing import Final, Self

from ogive.client.sync.admin import Admin
from ogive.client.sync.consumers import PullConsumer
from ogive.client.sync.producer import Producer
from ogive.errors import BrokerInternalError, GroupNotExist, NoRoute, TopicNotExist
from ogive.keywords import explains
from ogive.model import SCHEDULE_TOPIC, MessageExt, PropertyName, SendResult, retry_topic
from ogive.testing.broker import Broker

LOOK_S: Final = 0.02
DELAY_LEVELS: Final = " ".join(["1s"] * 18)


@explains
class RocketMQ:
    """``with RocketMQ() as rocketmq``, or the pytest fixture of that name.

    All delay levels of *broker* are one second. ``broker.grpc_endpoint`` is for the official SDKs
    of RocketMQ 5, if ``ogive[grpc]`` is installed.
    """

    def __init__(self) -> None:
        self.broker = Broker(
            flush="async",
            grpc_port=None if find_spec("google") is None else 0,
            options=("--delay-levels", DELAY_LEVELS),
        )
        self._producer: Producer | None = None
        self._admin: Admin | None = None

    def __enter__(self) -> Self:
        self.broker.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            for one in (self._producer, self._admin):
                if one is not None:
                    one.close()
        finally:
            self.broker.__exit__(kind, error, trace)

    @property
    def name_server(self) -> str:
        """Address ``host:port`` of the name server, for the code under test."""
        return self.broker.name_server

    @property
    def admin(self) -> Admin:
        """A client for administration."""
        if self._admin is None:
            self._admin = Admin(self.name_server)
            self._admin.start()
        return self._admin

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: str | tuple[str, ...] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
    ) -> SendResult:
        """Send a message; this creates a new topic."""
        if self._producer is None:
            self._producer = Producer(self.name_server, group="rocketmq-fixture")
            self._producer.start()
        return self._producer.send(
            topic, body, tag=tag, keys=keys, properties=properties, sharding_key=sharding_key
        )

    def messages(self, topic: str) -> list[MessageExt]:
        """Return every message of the topic, in order of time; an empty list if the topic does not
        exist. ``%DLQ%billing`` is a topic, too.
        """
        found: list[MessageExt] = []
        with PullConsumer(name_server=self.name_server) as reader:
            try:
                queues = reader.queues(topic)
            except NoRoute:
                return []
            for queue in queues:
                offset, end = reader.beginning_offset(queue), reader.end_offset(queue)
                while offset < end:
                    result = reader.pull(queue, offset, max_messages=256)
                    found += result.messages
                    offset = result.next_offset
        return sorted(
            found,
            key=lambda message: (message.store_timestamp_ms, message.queue, message.queue_offset),
        )

    def wait_consumed(
        self, group: str, topic: str | None = None, *, timeout_s: float = 10.0
    ) -> None:
        """Wait until *group* has finished every message of *topic*, or of all its topics, including
        retries. Delayed messages count once they are due.

        It blocks: a test on asyncio calls it with ``asyncio.to_thread``. Raises AssertionError,
        which says how far the group is behind, or that it never consumed.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            behind = self._behind(group, topic)
            if behind == "":
                return
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"group {group} has not finished within {timeout_s:.1f} s: {behind}"
                    f"{_advice_on_loop(group)}"
                )
            time.sleep(LOOK_S)

    def _behind(self, group: str, topic: str | None) -> str:
        """Describe the messages that are not consumed yet; empty if there are none."""
        try:
            # before and after: a retry must not move from one to the other between two reads
            waiting = self._waiting(group)
            rows = self.admin.lag(group, members=False)
            waiting = waiting or self._waiting(group)
            topics = (
                {topic, retry_topic(group)}
                if topic is not None
                else {*self.admin.group(group).subscriptions, retry_topic(group)}
            )
        except (NoRoute, TopicNotExist, GroupNotExist, BrokerInternalError) as exc:
            return f"nothing is known of it: {exc}"
        if topic is not None:
            retries = [row for row in rows if row.queue.topic == retry_topic(group)]
            rows = [row for row in rows if row.queue.topic == topic] + retries
        if all(row.queue.topic == retry_topic(group) for row in rows):
            return f"it has consumed nothing of {topic or 'any topic'} yet"
        left = [f"{row.lag} of {row.queue}" for row in rows if row.lag]
        # A topic has rows once the group has progress in it. Before that, all of its messages are
        # still to be consumed, for example a first retry.
        for name in sorted(topics - {row.queue.topic for row in rows}):
            left += [
                f"{count} of {queue}"
                for queue, count in sorted(
                    Counter(message.queue for message in self.messages(name)).items()
                )
            ]
        if waiting:
            left.append(f"{waiting} retries that wait for their delay")
        return ", ".join(left)

    def _waiting(self, group: str) -> int:
        """Count the retries of the group that wait in the topic of delayed messages."""
        topic = retry_topic(group)
        copies = [
            message
            for message in self.messages(SCHEDULE_TOPIC)
            if message.properties.get(PropertyName.REAL_TOPIC) == topic
        ]
        arrived = {(message.id, message.reconsume_times) for message in self.messages(topic)}
        return len({(message.id, message.reconsume_times) for message in copies} - arrived)


def _advice_on_loop(group: str) -> str:
    """Return advice for a call on an event loop, on which async consumers stand still meanwhile."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return ""
    return (
        ". This call blocks the test's event loop, and async consumers with it: "
        f"await asyncio.to_thread(rocketmq.wait_consumed, {group!r})"
    )
