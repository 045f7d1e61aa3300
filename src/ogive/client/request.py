"""Requests: messages that wait for a reply. Source: DefaultMQProducerImpl.java request, 5.3.

Behaviour
- A request is an ordinary message with three more properties: CORRELATION_ID, REPLY_TO_CLIENT and
  TTL (ms). It is sent like any other, including retries; its consumer sends the reply to the
  cluster's reply topic, and that topic's broker pushes it to us.
- One time budget covers everything, from the route to the reply. A request that is certainly not
  stored fails at once.
- Brokers push replies only to producers that they know: before the first request they get a
  heartbeat.

Differs from Java
- Every broker of the cluster that holds the reply topic gets that heartbeat, not only those of the
  request's topic: a reply may go to any.
- A request never travels in a batch: batched messages do not carry the cluster's name, without
  which nobody can answer.
"""

import asyncio
import logging
import uuid
from typing import Any, Final

from ogive.client.instance import ClientInstance
from ogive.client.sending.connector import find_queues
from ogive.client.sending.pending import PendingSend
from ogive.client.sending.publisher import Publisher
from ogive.errors import IllegalStateError, NoNameServer, NoRoute, OgiveError, ReplyTimeout
from ogive.model import AUTO_CREATE_TOPIC, MessageExt, PropertyName, SendResult, reply_topic

log = logging.getLogger(__name__)

# of the time budget for each question and heartbeat: a server that hangs must not delay the request
# to another
SHARE: Final = 0.25


class Requester:
    """Requests of one producer: sends them, and waits for their replies."""

    def __init__(self, client: ClientInstance, publisher: Publisher) -> None:
        self._client = client
        self._publisher = publisher
        self._loop = asyncio.get_running_loop()
        # whose reply topic was looked up
        self._clusters: set[str] = set()
        # brokers that got a heartbeat since this producer started
        self._told: frozenset[str] = frozenset()
        self._waiting: set[asyncio.Future[MessageExt]] = set()

    async def request(self, pending: PendingSend, timeout_s: float) -> MessageExt:
        """Send a request, and return the reply.

        Raises ReplyTimeout, what a send raises, and IllegalStateError when the producer is closed
        meanwhile.
        """
        deadline = self._loop.time() + timeout_s
        await self._introduce(pending.topic, timeout_s)
        correlation_id = str(uuid.uuid4())
        reply = self._client.requests.replies.expect(correlation_id)
        reply.add_done_callback(_seen)
        self._waiting.add(reply)
        try:
            left = max(deadline - self._loop.time(), 0.001)
            _mark(pending, correlation_id, self._client.client_id, int(left * 1000))
            sent: asyncio.Future[SendResult] = self._loop.create_future()
            sent.add_done_callback(_seen)
            pending.future = sent
            await self._publisher.accept(pending, left)
            await asyncio.wait(
                (reply, sent),
                timeout=max(0.0, deadline - self._loop.time()),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not reply.done():
                _raise_if_not_stored(sent)
                await asyncio.wait((reply,), timeout=max(0.0, deadline - self._loop.time()))
            if reply.done():
                return reply.result()
            _raise_if_not_stored(sent)
            raise ReplyTimeout(
                _timeout_text(pending, correlation_id, timeout_s, sent), correlation_id
            )
        finally:
            self._client.requests.replies.forget(correlation_id)
            self._waiting.discard(reply)

    def close(self) -> None:
        """End the requests that wait."""
        for reply in self._waiting:
            if not reply.done():
                reply.set_exception(
                    IllegalStateError("the producer was closed before the reply came")
                )

    async def _introduce(self, topic: str, timeout_s: float) -> None:
        """Make the brokers know this client. Raises NoRoute, NoNameServer."""
        client = self._client
        if client.routes.known(topic) is None:
            await find_queues(client, topic, self._publisher.config.default_topic_queues, timeout_s)
        route = client.routes.known(topic) or client.routes.known(AUTO_CREATE_TOPIC)
        clusters = {broker.cluster for broker in route.brokers} if route is not None else set()
        for cluster in clusters - self._clusters:
            try:
                await client.routes.find(reply_topic(cluster), timeout_s=timeout_s * SHARE)
            except (NoRoute, NoNameServer) as exc:
                # the brokers of the request's topic may be all that there are
                log.info(
                    "could not learn the brokers from which replies of cluster %s may come: %s",
                    cluster,
                    exc,
                )
            self._clusters.add(cluster)
        brokers = frozenset(client.heartbeat_addresses())
        if not brokers <= self._told:
            try:
                async with asyncio.timeout(timeout_s * SHARE):
                    await client.heartbeat_now()
            except TimeoutError:
                log.debug("a broker does not answer heartbeats; the request to %s goes on", topic)
            self._told = brokers


def _mark(pending: PendingSend, correlation_id: str, client_id: str, ttl_ms: int) -> None:
    text = (
        f"{PropertyName.CORRELATION_ID}\x01{correlation_id}\x02{PropertyName.REPLY_TO_CLIENT}\x01"
        f"{client_id}\x02"
        f"{PropertyName.TTL}\x01{ttl_ms}\x02"
    )
    pending.text += text
    pending.size += len(text)
    pending.alone = True


def _seen(future: asyncio.Future[Any]) -> None:
    """Mark the future's error as retrieved: the caller hears of one error only."""
    if not future.cancelled():
        future.exception()


def _raise_if_not_stored(sent: asyncio.Future[SendResult]) -> None:
    """Raise the error of a send, unless the message may be stored after all: then its reply is
    waited for.
    """
    error = sent.exception() if sent.done() else None
    if error is not None and not (isinstance(error, OgiveError) and error.outcome_unknown):
        raise error


def _timeout_text(
    pending: PendingSend, correlation_id: str, timeout_s: float, sent: asyncio.Future[SendResult]
) -> str:
    stored = sent.done() and sent.exception() is None
    fate = (
        "it is stored"
        if stored
        else "its broker did not confirm it, so it may or may not be stored"
    )
    return (
        f"no reply to request {correlation_id} to {pending.topic} within {timeout_s:.1f} s: "
        f"{fate} (id {pending.key}), "
        "and it may or may not be carried out"
    )
