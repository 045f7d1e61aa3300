"""kombu transport for Apache RocketMQ: ``rocketmq://user:secret@host:9876/namespace``.

Behaviour
- A queue is a topic, and a consumer group of the same name. Declaring a queue creates its topic.
- A message is kombu's JSON envelope; its key is the id of the task.
- The broker holds a message with an ``eta`` header until then, but at most for max_delay.
- Exchanges and bindings exist only in the process that declares them, as in other transports whose
  servers have no exchanges.
"""

from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from queue import Empty
from typing import Any, Final, TypeVar

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import base, virtual
from kombu.utils.json import dumps, loads

from ogive import (
    InvalidOption,
    MessageExt,
    NoNameServer,
    NoRoute,
    OgiveError,
    SendFailed,
    SendTimeout,
    TransportError,
    __version__,
)
from ogive.errors import BrokerBusy, BrokerInternalError, ServiceNotAvailable
from ogive.model import validate_group, validate_topic
from ogive_kombu.clients import Clients, Inbox
from ogive_kombu.receiving import Received, Receiver
from ogive_kombu.settings import DEFAULT_PORT, Settings

T = TypeVar("T")

EXCHANGE_TYPES: Final = frozenset({"direct", "topic"})
MIN_DELAY_S: Final = 2.0
"""Shorter delays are left to the worker: the broker's timers have a precision of a second."""
NO_ARGUMENTS: Final = ("x-expires", "x-message-ttl", "x-max-length", "x-max-length-bytes")


class Channel(virtual.Channel):
    """Channel of a connection to RocketMQ."""

    def __init__(self, connection: "Transport", **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._callbacks: dict[str, Callable[[Any], Any]] = {}
        self._receiver: Receiver | None = None

    # --- queues and exchanges ---------------------------------------------------------------------

    def exchange_declare(self, exchange: Any = None, type: Any = "direct", **kwargs: Any) -> None:
        """Declare an exchange in this process. Raises InvalidOption for a type other than direct
        and topic.
        """
        if (type or "direct") not in EXCHANGE_TYPES:
            raise InvalidOption(
                f"exchange {exchange!r} is of type {type}: rocketmq:// has only "
                f"{' and '.join(sorted(EXCHANGE_TYPES))} exchanges. Celery's remote control "
                "(celery inspect, celery control) needs fanout, and does not work with it"
            )
        super().exchange_declare(exchange, type, **kwargs)

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Mapping[str, Any]:
        prepared: Mapping[str, Any] = base.to_rabbitmq_queue_arguments(arguments or {}, **kwargs)
        return prepared

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Create the topic of *queue*, if it does not exist.

        With *passive*, only return the number of messages, and raise ChannelError if there is no
        topic. Raises InvalidOption for a queue that cannot be a topic.
        """
        arguments = arguments or {}
        refused = [name for name in NO_ARGUMENTS if arguments.get(name)]
        if not queue or exclusive or auto_delete or refused:
            wish = "without a name" if not queue else ", ".join(refused) or "temporary"
            raise InvalidOption(
                f"queue {queue!r} cannot be declared ({wish}): with rocketmq:// a queue is a "
                "topic, which is permanent and has a name. Celery's events (celery events, "
                "Flower), remote control and the result backend rpc:// need such queues, and do "
                "not work with it"
            )
        validate_topic(queue)
        validate_group(queue)
        if passive:
            try:
                return queue_declare_ok_t(queue, self._size(queue), 0)
            except NoRoute as exc:
                raise ChannelError(str(exc), (50, 10), "Channel.queue_declare", "404") from exc
        self.connection.declare(queue, arguments.get("x-max-priority"))
        return queue_declare_ok_t(queue, 0, 0)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> None:
        """Delete the topic, and the group with its progress.

        Raises InvalidOption while the group has members.
        """
        if if_empty and self._size(queue):
            return
        self.connection.delete(queue)
        self.state.queue_bindings_delete(queue)

    def _size(self, queue: str) -> int:
        return self._call(self._clients.size(queue))

    def _purge(self, queue: str) -> int:
        return self._call(self._clients.purge(queue))

    # --- sending ----------------------------------------------------------------------------------

    def _put(self, queue: str, message: Mapping[str, Any], **kwargs: Any) -> None:
        self.connection.send(queue, message)

    # --- receiving --------------------------------------------------------------------------------

    @property
    def _clients(self) -> Clients:
        clients: Clients = self.connection.clients
        return clients

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._clients.call(work)

    def _receiving(self) -> Receiver:
        if self._receiver is None:
            self._receiver = self._call(self.connection.new_receiver())
        return self._receiver

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any
    ) -> None:
        """Receive messages of *queue*. Raises OgiveError if a broker refuses the group."""
        self._call(self._receiving().consume(queue, no_ack=no_ack))
        self._tag_to_queue[consumer_tag] = queue
        self._consumers.add(consumer_tag)
        self._callbacks[queue] = callback

    def basic_cancel(self, consumer_tag: str) -> None:
        """Receive no more messages. Received ones can still be acknowledged."""
        self._consumers.discard(consumer_tag)
        queue = self._tag_to_queue.pop(consumer_tag, None)
        if queue is not None and queue not in self._tag_to_queue.values():
            self._callbacks.pop(queue, None)
            self._call(self._receiving().cancel(queue))

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        """Limit the unacknowledged messages of this channel; *prefetch_size* must be 0."""
        if prefetch_size:
            raise NotImplementedError("rocketmq:// limits the number of messages, not their size")
        self._call(self._receiving().set_prefetch(prefetch_count))

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return one message, or None if there is none."""
        received = self._call(self._receiving().get(queue, no_ack=no_ack))
        return None if received is None else self._message(received)

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge a message in the background. A request that fails is sent again until the
        lease ends.
        """
        if multiple:
            raise NotImplementedError("rocketmq:// acknowledges one message at a time")
        self._clients.post(self._receiving().ack, delivery_tag)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Have a message delivered again, or drop it."""
        receiver = self._receiving()
        self._clients.post(receiver.give_back if requeue else receiver.ack, delivery_tag)

    def basic_recover(self, requeue: bool = False) -> None:
        raise NotImplementedError("rocketmq:// delivers again by reject(requeue=True), or a close")

    def deliver(self, received: Received) -> None:
        """Call the consumer of a message. Give the message back if there is no consumer."""
        callback = self._callbacks.get(received.queue)
        if callback is None:
            self.basic_reject(received.tag, requeue=True)
        else:
            callback(self._message(received))

    def _message(self, received: Received) -> Any:
        return self.Message(payload(received), channel=self)

    def close(self) -> None:
        """Give back the messages that are not acknowledged, and leave the groups."""
        if not self.closed and self._receiver is not None:
            self._call(self._receiver.close())
            self._consumers.clear()
        super().close()

    def owns(self, received: Received) -> bool:
        return received.receiver is self._receiver


def payload(received: Received) -> dict[str, Any]:
    """Return the message as kombu's dict.

    A message that kombu did not send has its bytes as the body and its properties as headers.
    """
    message = received.message
    envelope = read_envelope(message) or {
        "body": message.body,
        "content-type": "application/data",
        "content-encoding": "binary",
        "headers": dict(message.properties),
        "properties": {"delivery_info": {"exchange": "", "routing_key": received.queue}},
    }
    properties = envelope["properties"]
    properties["delivery_tag"] = received.tag
    properties.setdefault("delivery_info", {})["redelivered"] = message.reconsume_times > 0
    return envelope


def read_envelope(message: MessageExt) -> dict[str, Any] | None:
    try:
        envelope = loads(message.body)
    except ValueError:
        return None
    is_ours = isinstance(envelope, dict) and isinstance(envelope.get("properties"), dict)
    return envelope if is_ours else None


class Transport(virtual.Transport):
    """Transport of a kombu connection."""

    Channel = Channel

    default_port = DEFAULT_PORT
    driver_type = "rocketmq"
    driver_name = "ogive"
    connection_errors = (
        *virtual.Transport.connection_errors,
        BrokerBusy,
        BrokerInternalError,
        NoNameServer,
        SendFailed,
        SendTimeout,
        ServiceNotAvailable,
        TransportError,
    )
    channel_errors = (*virtual.Transport.channel_errors, OgiveError)
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=EXCHANGE_TYPES
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        self._settings = Settings.from_connection(client)
        super().__init__(client, **kwargs)
        self._clients: Clients | None = None
        self._inbox: Inbox[Received | Exception] | None = None
        self._hub: Any = None
        # declared queues, and the highest priority of those that have priorities
        self._declared: dict[str, int | None] = {}

    def driver_version(self) -> str:
        """Return the version of ogive."""
        return __version__

    @property
    def clients(self) -> Clients:
        """Clients of the open connection."""
        assert self._clients is not None, "not connected"
        return self._clients

    @property
    def inbox(self) -> Inbox[Received | Exception]:
        """Messages that have arrived."""
        assert self._inbox is not None, "not connected"
        return self._inbox

    # --- life -------------------------------------------------------------------------------------

    def establish_connection(self) -> Any:
        """Connect to a name server. Raises OgiveError."""
        self._clients, self._inbox = Clients(self._settings), Inbox()
        try:
            self._clients.call(self._clients.start())
        except BaseException:
            self.close_connection(self)
            raise
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Close the channels and the clients. Closing again does nothing."""
        if self._clients is None:
            return
        try:
            super().close_connection(connection)
        finally:
            if self._hub is not None:
                self._hub.remove_reader(self.inbox.fileno())
            self._clients.close()
            self.inbox.close()
            self._clients = self._inbox = self._hub = None

    async def new_receiver(self) -> Receiver:
        return Receiver(self._settings, self.inbox.put)

    # --- sending ----------------------------------------------------------------------------------

    def declare(self, queue: str, max_priority: int | None) -> None:
        """Create the topic of *queue*, unless this connection has seen it."""
        if queue not in self._declared:
            self.clients.call(self.clients.declare(queue, max_priority))
            self._declared[queue] = max_priority

    def delete(self, queue: str) -> None:
        """Delete the topic and the group of *queue*."""
        self.clients.call(self.clients.delete(queue))
        self._declared.pop(queue, None)

    def send(self, queue: str, message: Mapping[str, Any]) -> None:
        """Return when the broker has stored the message. Raises OgiveError."""
        task_id = str(message["properties"].get("correlation_id") or "")
        if self._declared.get(queue):
            # a topic with priorities has no delays: the worker waits
            rest: dict[str, Any] = {"priority": message["properties"].get("priority") or 0}
        else:
            eta = (message.get("headers") or {}).get("eta")
            rest = {"deliver_at": self._deliver_at(eta)}
        self.clients.call(
            self.clients.producer.send(
                queue,
                dumps(message).encode(),
                keys=() if not task_id or task_id.split() != [task_id] else task_id,
                **rest,
            )
        )

    def _deliver_at(self, eta: object) -> datetime | None:
        """Return the time until which the broker holds a task; the worker holds it for the rest."""
        if not isinstance(eta, str):
            return None
        due, now = datetime.fromisoformat(eta), datetime.now(UTC)
        if due.tzinfo is None or due - now < timedelta(seconds=MIN_DELAY_S):
            return None
        latest = now + timedelta(seconds=self._settings.max_delay_s)
        return min(due, latest) if self._settings.max_delay_s >= MIN_DELAY_S else None

    # --- receiving --------------------------------------------------------------------------------

    def drain_events(self, connection: Any, timeout: float | None = None, **kwargs: Any) -> None:
        """Deliver one message. Raises TimeoutError after *timeout* seconds (None: never)."""
        try:
            received = self.inbox.get(timeout)
        except Empty:
            raise TimeoutError from None
        self._deliver_received(received)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Have kombu's event loop deliver messages."""
        self._hub = loop
        loop.add_reader(self.inbox.fileno(), self._on_messages)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Undo ``register_with_event_loop``."""
        self._hub = None
        loop.remove_reader(self.inbox.fileno())

    def _on_messages(self) -> None:
        self.inbox.clear_socket()
        while True:
            try:
                received = self.inbox.get(0)
            except Empty:
                return
            self._deliver_received(received)

    def _deliver_received(self, received: Received | Exception) -> None:
        if isinstance(received, Exception):
            raise received
        for channel in self.channels:
            if channel.owns(received):
                channel.deliver(received)
                return
