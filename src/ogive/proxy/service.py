"""The service apache.rocketmq.v2.MessagingService: its 13 methods, over a Backend.

Source: DefaultGrpcMessagingActivity.java and the activities beside it, 5.5.

Differs from Apache's proxy
- Calls without settings are served from the group's configuration and the request.
- Routes name the endpoints that the client asked with, so that it reaches the server as before.
- A batch is answered with one entry for each message.
- Any end of a transaction finds its half message, also after a restart.
- Delays are limited by the broker only.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from ogive.broker import Broker
from ogive.errors import OgiveError
from ogive.proxy import rocketmq_pb2 as pb
from ogive.proxy.backend import Backend
from ogive.proxy.calls import CallContext, CallError, CallKind, GrpcStatus, Method, WireMessage
from ogive.proxy.local import LocalBackend
from ogive.proxy.messages import TYPES, group_of, topic_of
from ogive.proxy.publishing import PublishingMethods
from ogive.proxy.receiving import ReceivingMethods
from ogive.proxy.sessions import CONSUMERS, Session, Sessions, Stream, subscription_data
from ogive.proxy.settings import for_consumer, for_producer
from ogive.proxy.status import Illegal, ok, status_of
from ogive.wire.bodies.clients import ConsumerData
from ogive.wire.bodies.json_fields import PERM_READ, PERM_WRITE
from ogive.wire.bodies.routes import QueueData
from ogive.wire.headers.clients import GetConsumerListRequest
from ogive.wire.headers.name_server import GetRouteInfoRequest

log = logging.getLogger(__name__)

PATH: Final = "/apache.rocketmq.v2.MessagingService/"
MAX_TOPICS: Final = 256
_MIXED: Final = (pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION)
_BAD_REQUESTS: Final = range(40_000, 50_000)
Resp = TypeVar("Resp", bound=WireMessage)


class Service:
    """The methods that concern clients and routes. Those of messages are in two other classes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.sessions = Sessions(backend)
        self._publishing = PublishingMethods(backend)
        self._receiving = ReceivingMethods(backend)

    def methods(self) -> Mapping[str, Method]:
        """Return the methods by path."""
        p, r = self._publishing, self._receiving
        unary = (
            (self._query_route, pb.QueryRouteRequest, pb.QueryRouteResponse),
            (self._heartbeat, pb.HeartbeatRequest, pb.HeartbeatResponse),
            (p.send, pb.SendMessageRequest, pb.SendMessageResponse),
            (self._query_assignment, pb.QueryAssignmentRequest, pb.QueryAssignmentResponse),
            (r.ack, pb.AckMessageRequest, pb.AckMessageResponse),
            (
                r.forward,
                pb.ForwardMessageToDeadLetterQueueRequest,
                pb.ForwardMessageToDeadLetterQueueResponse,
            ),
            (p.end_transaction, pb.EndTransactionRequest, pb.EndTransactionResponse),
            (
                self._terminate,
                pb.NotifyClientTerminationRequest,
                pb.NotifyClientTerminationResponse,
            ),
            (r.change, pb.ChangeInvisibleDurationRequest, pb.ChangeInvisibleDurationResponse),
            (p.recall, pb.RecallMessageRequest, pb.RecallMessageResponse),
            (_sync_lite, pb.SyncLiteSubscriptionRequest, pb.SyncLiteSubscriptionResponse),
        )
        methods = [
            Method(
                _name_of(request), CallKind.UNARY, request, partial(self._unary, handle, response)
            )
            for handle, request, response in unary
        ]
        methods += [
            Method(
                "ReceiveMessage", CallKind.SERVER_STREAM, pb.ReceiveMessageRequest, self._receive
            ),
            Method("Telemetry", CallKind.BOTH_STREAMS, pb.TelemetryCommand, self._telemetry),
        ]
        return {PATH + method.name: method for method in methods}

    async def close(self) -> None:
        """End all sessions, and wait until the messages that they held are visible again."""
        self.sessions.close()
        await self._backend.releases.finish()

    async def _unary(
        self,
        handle: Callable[[Session, Any], Awaitable[Resp]],
        response: Callable[..., Resp],
        request: Any,
        call: CallContext,
    ) -> Resp:
        """Serve one call. An error becomes the status of its response."""
        try:
            return await handle(await self.sessions.of(call), request)
        except OgiveError as exc:
            return response(status=status_of(exc))

    async def _receive(
        self, request: pb.ReceiveMessageRequest, call: CallContext
    ) -> AsyncIterator[pb.ReceiveMessageResponse]:
        try:
            session = await self.sessions.of(call)
        except OgiveError as exc:
            yield pb.ReceiveMessageResponse(status=status_of(exc))
            return
        responses = self._receiving.receive(session, request, call)
        try:
            async for response in responses:
                yield response
        finally:
            await responses.aclose()

    # --- routes -----------------------------------------------------------------------------------

    async def _query_route(
        self, session: Session, request: pb.QueryRouteRequest
    ) -> pb.QueryRouteResponse:
        topic = topic_of(request.topic)
        session.link.check(GetRouteInfoRequest(topic=topic))
        _check_endpoints(request.endpoints)
        queues = await self._queues(topic)
        types = _types(await self._backend.message_type(topic))
        response = pb.QueryRouteResponse(status=ok())
        for data in queues:
            for queue_id, permission in enumerate(_permissions(data)):
                queue = response.message_queues.add(
                    topic=request.topic,
                    id=queue_id,
                    permission=permission,
                    accept_message_types=types,
                )
                _name_broker(queue, data, request.endpoints)
        return response

    async def _query_assignment(
        self, session: Session, request: pb.QueryAssignmentRequest
    ) -> pb.QueryAssignmentResponse:
        topic, name = topic_of(request.topic), group_of(request.group)
        session.check_receive(name, topic)
        _check_endpoints(request.endpoints)
        group = await self._backend.group(name)
        in_order = group is not None and group.consume_message_orderly
        response = pb.QueryAssignmentResponse(status=ok())
        for data in await self._queues(topic):
            if data.perm & PERM_READ and data.read_queues:
                for queue_id in range(data.read_queues) if in_order else (-1,):
                    queue = response.assignments.add().message_queue
                    queue.topic.CopyFrom(request.topic)
                    queue.id = queue_id
                    queue.permission = pb.READ_WRITE if data.perm & PERM_WRITE else pb.READ
                    _name_broker(queue, data, request.endpoints)
        if not response.assignments:
            raise Illegal(pb.FORBIDDEN, f"no readable queue in topic {topic}")
        return response

    async def _queues(self, topic: str) -> list[QueueData]:
        queues = sorted(await self._backend.route(topic), key=lambda data: data.broker_name)
        if not queues:
            raise Illegal(
                pb.TOPIC_NOT_FOUND,
                f"topic {topic} does not exist: create it with `ogive topic create {topic}`",
            )
        return queues

    # --- clients ----------------------------------------------------------------------------------

    async def _heartbeat(
        self, session: Session, request: pb.HeartbeatRequest
    ) -> pb.HeartbeatResponse:
        if request.client_type in CONSUMERS:
            group = group_of(request.group)
            consumer = None
            if not session.has_group(group):
                consumer = ConsumerData(group=group, consume_type=CONSUMERS[request.client_type])
            await session.register(consumer=consumer)
        elif request.client_type == pb.PRODUCER:
            await session.register()
        else:
            raise Illegal(
                pb.UNRECOGNIZED_CLIENT_TYPE,
                f"client type {request.client_type} is neither a producer nor a consumer",
            )
        return pb.HeartbeatResponse(status=ok())

    async def _terminate(
        self, session: Session, request: pb.NotifyClientTerminationRequest
    ) -> pb.NotifyClientTerminationResponse:
        # brokers forget it without its connections, too
        with suppress(OgiveError):
            await session.unregister()
        self.sessions.end(session)
        return pb.NotifyClientTerminationResponse(status=ok())

    async def _telemetry(
        self, requests: AsyncIterator[pb.TelemetryCommand], call: CallContext
    ) -> AsyncIterator[pb.TelemetryCommand]:
        try:
            session = await self.sessions.of(call)
        except OgiveError as exc:
            raise _stream_error(exc) from None
        stream = session.stream = Stream()
        reading = asyncio.create_task(
            self._read_commands(session, stream, requests), name="telemetry"
        )
        try:
            async for command in stream.commands():
                yield command
        finally:
            reading.cancel()
            stream.end()
            if session.stream is stream:
                session.stream = None

    async def _read_commands(
        self, session: Session, stream: Stream, requests: AsyncIterator[pb.TelemetryCommand]
    ) -> None:
        try:
            async for command in requests:
                match command.WhichOneof("command"):
                    case "settings":
                        settings = await self._settings(session, command.settings)
                        stream.put(pb.TelemetryCommand(status=ok(), settings=settings))
                    case "thread_stack_trace":
                        session.answered(command.thread_stack_trace.nonce, command)
                    case "verify_message_result":
                        session.answered(command.verify_message_result.nonce, command)
            stream.end()
        except OgiveError as exc:
            stream.end(_stream_error(exc))
        # the call's own boundary logs what is not foreseen; the client must not wait for ever
        except Exception as exc:  # noqa: BLE001
            stream.end(exc)

    async def _settings(self, session: Session, sent: pb.Settings) -> pb.Settings:
        """Register the client, and return its settings. Raises OgiveError."""
        match sent.WhichOneof("pub_sub"):
            case "publishing":
                topics = _limited([topic_of(topic) for topic in sent.publishing.topics])
                for topic in topics:
                    session.check_send(topic)
                await session.register(topics=topics)
                merged = for_producer(sent)
            case "subscription":
                name = group_of(sent.subscription.group)
                session.link.check(GetConsumerListRequest(consumer_group=name))
                subscriptions = tuple(
                    subscription_data(entry, topic_of(entry.topic))
                    for entry in _limited(sent.subscription.subscriptions)
                )
                consumer = ConsumerData(
                    group=name,
                    consume_type=CONSUMERS.get(sent.client_type, "CONSUME_PASSIVELY"),
                    subscriptions=subscriptions,
                )
                await session.register(consumer=consumer)
                merged = for_consumer(sent, await self._backend.group(name))
            case _:
                raise Illegal(pb.BAD_REQUEST, "settings need publishing or subscription")
        if sent.HasField("request_timeout"):
            session.request_timeout_s = sent.request_timeout.ToMilliseconds() / 1000
        return merged


def build(broker: Broker) -> Service:
    """Return the service for gRPC clients of *broker*."""
    return Service(LocalBackend(broker))


async def _sync_lite(
    session: Session, request: pb.SyncLiteSubscriptionRequest
) -> pb.SyncLiteSubscriptionResponse:
    raise Illegal(pb.NOT_IMPLEMENTED, "this server has no lite topics")


def _check_endpoints(endpoints: pb.Endpoints) -> None:
    """Raise Illegal if a client could not connect to what a route would name."""
    if not endpoints.addresses or not all(
        one.host and 0 < one.port < 65_536 for one in endpoints.addresses
    ):
        raise Illegal(
            pb.ILLEGAL_ACCESS_POINT,
            "the request must name the endpoints that the client uses: each with host and port",
        )


def _name_of(request: type[Any]) -> str:
    return request.__name__.removesuffix("Request")


def _limited(values: Any) -> Any:
    if len(values) > MAX_TOPICS:
        raise Illegal(pb.BAD_REQUEST, f"{len(values)} topics of one client: at most {MAX_TOPICS}")
    return values


def _stream_error(error: OgiveError) -> CallError:
    """Return the end of a stream, whose responses have no status for errors."""
    status = status_of(error)
    if status.code == pb.UNAUTHORIZED:
        code = GrpcStatus.UNAUTHENTICATED
    elif status.code in _BAD_REQUESTS:
        code = GrpcStatus.INVALID_ARGUMENT
    else:
        code = GrpcStatus.INTERNAL
    return CallError(code, f"{pb.Code.Name(status.code)}: {status.message}")


def _types(attribute: str) -> list[pb.MessageType]:
    """Return the types of messages that a topic is for."""
    if attribute == "MIXED":
        return list(_MIXED)
    return [TYPES.get(attribute, pb.NORMAL)]


def _permissions(data: QueueData) -> list[pb.Permission]:
    """Return one permission for each queue."""
    reads = data.read_queues if data.perm & PERM_READ else 0
    writes = data.write_queues if data.perm & PERM_WRITE else 0
    both = min(reads, writes)
    found = [pb.READ] * (reads - both) + [pb.WRITE] * (writes - both) + [pb.READ_WRITE] * both
    return found or [pb.NONE]


def _name_broker(queue: pb.MessageQueue, data: QueueData, endpoints: pb.Endpoints) -> None:
    queue.broker.name = data.broker_name
    queue.broker.endpoints.CopyFrom(endpoints)
