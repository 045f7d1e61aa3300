"""Bring pulled messages to the listeners of a member, each to the listener of its topic.

Behaviour
- A message that comes back through the retry topic goes to the listener of the topic that it was
  first sent to. If the member does not listen to that topic any more, its first listener gets it.
- A message that cannot be decompressed goes to the dead letters: it would fail at every member.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.process_queue import ProcessQueue
from ogive.client.consumer.send_back import returns
from ogive.client.consumer.subscription import MemberContext
from ogive.client.listener import AnyListener
from ogive.errors import CompressionUnavailable, ProtocolError
from ogive.model import MessageExt, retry_topic
from ogive.wire.compression import decompress
from ogive.wire.message import measure

log = logging.getLogger(__name__)

DEAD_LETTER_LEVEL: Final = -1


class Receiver(Protocol):
    """Receiver of the messages of process queues."""

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        """Take *messages*, which were put into the process queue.

        An empty *messages* means that the queue's lock was renewed: go on with what is there.
        """
        ...

    def is_busy(self, process_queue: ProcessQueue) -> bool:
        """Return True while the queue cannot be given to another member without repeats."""
        ...


class ConsumeService(Receiver, Protocol):
    """Protocol of a service that brings the messages of process queues to one listener."""

    def start(self) -> None: ...

    async def stop(self, timeout_s: float, caller: object) -> None:
        """Begin no new call; wait for the running ones. *caller*: see Workers.stop."""
        ...


class TopicDelivery:
    """Services of one member by topic; itself a service of all its topics.

    Messages that are rejected go by the rules of *listener*.
    """

    def __init__(self, group: MemberContext, listener: AnyListener, config: ConsumerConfig) -> None:
        self.services: dict[str, ConsumeService] = {}
        self._group = group
        self._retry_topic = retry_topic(group.name)
        self._rejected = returns(group, listener, config, self._reject)

    def start(self) -> None:
        for service in self.services.values():
            service.start()

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        _, _, has_compressed = measure(messages)
        if has_compressed:
            self._reject(process_queue, [one for one in messages if one.is_compressed])
            messages = [message for message in messages if not message.is_compressed]
        topic = process_queue.queue.topic
        if len(self.services) == 1:
            next(iter(self.services.values())).submit(process_queue, messages)
        elif topic != self._retry_topic:
            self.services[topic].submit(process_queue, messages)
        else:
            self._submit_retries(process_queue, messages)

    def _submit_retries(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        if not messages:
            # the lock was renewed: each goes on with what it has
            for service in self.services.values():
                service.submit(process_queue, ())
            return
        by_topic: dict[str, list[MessageExt]] = {}
        for message in messages:
            by_topic.setdefault(message.topic, []).append(message)
        fallback = next(iter(self.services))
        for topic, ours in by_topic.items():
            if topic not in self.services:
                log.warning(
                    "%d retries of topic %s, for which %s has no listener, go to its listener of "
                    "%s",
                    len(ours),
                    topic,
                    self._group.name,
                    fallback,
                )
            self.services.get(topic, self.services[fallback]).submit(process_queue, ours)

    def _reject(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        for message in messages:
            why = "it cannot be read"
            try:
                decompress(message.body, message.sys_flag)
            except (ProtocolError, CompressionUnavailable) as exc:
                why = f"{why}: {exc}"
                log.error(
                    "%s/%d cannot be decoded and goes to the dead letters of %s: %s",
                    message.queue,
                    message.queue_offset,
                    self._group.name,
                    exc,
                )
            self._rejected.give(process_queue, message, DEAD_LETTER_LEVEL, why)

    def is_busy(self, process_queue: ProcessQueue) -> bool:
        return self._rejected.is_busy(process_queue) or any(
            service.is_busy(process_queue) for service in self.services.values()
        )

    async def stop(self, timeout_s: float, caller: object) -> None:
        ending = [service.stop(timeout_s, caller) for service in self.services.values()]
        await asyncio.gather(*ending, self._rejected.close(timeout_s))
