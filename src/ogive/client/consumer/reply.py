"""Sends the replies of listeners to the requesters.

Source: MessageUtil.java createReplyMessage, 5.3.

Behaviour
- A reply goes to the reply topic of the cluster that the request came through, first by the broker
  that holds the request: it knows the client that asked.
- The message counts as finished when its reply is out, and also when the reply cannot be sent: that
  is logged. Java's listeners, which send their replies themselves, do the same. Delivering the
  request again would repeat the work, and come after the requester's timeout.
- A Reply to a message that is no request is dropped, with a warning.

The number of replies in flight is bounded by the process queues: each message keeps its place until
its reply is out.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from ogive.client.consumer.process_queue import ProcessQueue
from ogive.client.ids import UniqueKeys
from ogive.client.listener import Reply
from ogive.client.sending.properties import message_property_text, with_unique_key
from ogive.errors import OgiveError
from ogive.model import MessageExt, PropertyName, reply_topic

log = logging.getLogger(__name__)

_COPIED: Final = (PropertyName.CORRELATION_ID, PropertyName.REPLY_TO_CLIENT, PropertyName.TTL)
_NEEDED: Final = (PropertyName.CORRELATION_ID, PropertyName.REPLY_TO_CLIENT, PropertyName.CLUSTER)


class ReplyCalls(Protocol):
    """What it asks of brokers."""

    async def send_reply(
        self, topic: str, body: bytes, properties: bytes, *, broker_name: str
    ) -> None: ...


class Replier:
    """One per listener. *done* is called with each message whose reply is out or given up."""

    def __init__(
        self,
        calls: ReplyCalls,
        spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[Any]],
        *,
        done: Callable[[ProcessQueue, MessageExt], None],
    ) -> None:
        self._calls = calls
        self._spawn = spawn
        self._done = done
        self._keys = UniqueKeys()
        self._under_way: dict[asyncio.Task[Any], ProcessQueue] = {}

    def give(self, process_queue: ProcessQueue, request: MessageExt, reply: Reply) -> None:
        """Send *reply* to the sender of *request*."""
        task = self._spawn(self._send(process_queue, request, reply), "reply")
        self._under_way[task] = process_queue
        task.add_done_callback(self._under_way.pop)

    def is_busy(self, process_queue: ProcessQueue) -> bool:
        """Return True while replies to requests of the queue are on their way."""
        return any(one is process_queue for one in self._under_way.values())

    async def close(self, timeout_s: float) -> None:
        """Wait at most *timeout_s* for replies in flight; the group gets the other requests
        again.
        """
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=timeout_s)
        for task in list(self._under_way):
            task.cancel()

    async def _send(self, process_queue: ProcessQueue, request: MessageExt, reply: Reply) -> None:
        where = f"{request.queue}/{request.queue_offset}"
        missing = [name for name in _NEEDED if not request.properties.get(name)]
        if missing:
            log.warning(
                "the reply to %s is dropped: it is no request, its properties lack %s",
                where,
                ", ".join(missing),
            )
        else:
            topic = reply_topic(request.properties[PropertyName.CLUSTER])
            try:
                properties = with_unique_key(
                    self._keys.next(time.time_ns() // 1_000_000), _properties(request, reply, topic)
                )
                await self._calls.send_reply(
                    topic, reply.body, properties, broker_name=request.queue.broker_name
                )
            except OgiveError as exc:
                log.warning(
                    "the reply to %s, request %s, is lost: %s",
                    where,
                    request.properties[PropertyName.CORRELATION_ID],
                    exc,
                )
        self._done(process_queue, request)


def _properties(request: MessageExt, reply: Reply, topic: str) -> str:
    copied = [(name, request.properties[name]) for name in _COPIED if name in request.properties]
    own = "".join(
        [
            f"{name}\x01{value}\x02"
            for name, value in [(PropertyName.MESSAGE_TYPE, "reply"), *copied]
        ]
    )
    return own + message_property_text(reply.message(topic))
