"""Calls as an SDK makes them, without HTTP/2: through the seam between endpoint and service."""

import asyncio
import hashlib
import hmac
import itertools
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self

from ogive.proxy import rocketmq_pb2 as pb
from ogive.proxy.calls import CallContext, Method
from ogive.proxy.service import PATH

ENDPOINTS = pb.Endpoints(
    scheme=pb.DOMAIN_NAME, addresses=[pb.Address(host="balancer.example", port=18081)]
)
DATE = "20261129T120000Z"
_numbers = itertools.count(1)


def message_id() -> str:
    """An id as SDKs make them."""
    return f"01{next(_numbers):032X}"


def message(topic: str, body: bytes = b"one", **system: Any) -> pb.Message:
    properties = pb.SystemProperties(**({"message_id": message_id()} | system))
    return pb.Message(topic=pb.Resource(name=topic), body=body, system_properties=properties)


class Sdk:
    """One client of a service."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        client_id: str = "sdk@1",
        *,
        user: tuple[str, str] | None = None,
        version: str = "5.2.0",
    ) -> None:
        self.methods = methods
        self.peer = ("127.0.0.1", 40000)
        self.through: tuple[str, int] | None = None
        self.metadata = {
            "x-mq-client-id": client_id,
            "x-mq-language": "PYTHON",
            "x-mq-client-version": version,
            "x-mq-date-time": DATE,
        }
        if user is not None:
            name, secret = user
            made = hmac.new(secret.encode(), DATE.encode(), hashlib.sha1).hexdigest()
            self.metadata["authorization"] = (
                f"MQv2-HMAC-SHA1 Credential={name}/cn/Rocketmq, SignedHeaders=x-mq-date-time, "
                f"Signature={made.upper()}"
            )

    def context(self, timeout_s: float | None = 60.0) -> CallContext:
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        return CallContext(
            self.metadata, self.peer, tls=False, deadline=deadline, through=self.through
        )

    async def call(self, name: str, request: Any) -> Any:
        """The response to a unary call, over its bytes."""
        method = self.methods[PATH + name]
        handler: Any = method.handler
        sent = method.request.FromString(request.SerializeToString())
        response = await handler(sent, self.context())
        return type(response).FromString(response.SerializeToString())

    def receiving(
        self, request: pb.ReceiveMessageRequest, timeout_s: float | None = 60.0
    ) -> AsyncIterator[pb.ReceiveMessageResponse]:
        handler: Any = self.methods[PATH + "ReceiveMessage"].handler
        responses: AsyncIterator[pb.ReceiveMessageResponse] = handler(
            request, self.context(timeout_s)
        )
        return responses

    async def route(self, topic: str) -> Any:
        request = pb.QueryRouteRequest(topic=pb.Resource(name=topic), endpoints=ENDPOINTS)
        return await self.call("QueryRoute", request)

    async def send(self, *messages: pb.Message) -> Any:
        return await self.call("SendMessage", pb.SendMessageRequest(messages=messages))

    async def receive(
        self, topic: str, group: str = "g", *, timeout_s: float | None = 60.0, **fields: Any
    ) -> tuple[int, list[pb.Message]]:
        """The code, and the messages."""
        responses = [
            one async for one in self.receiving(receive_request(topic, group, **fields), timeout_s)
        ]
        assert responses[0].HasField("status")
        assert responses[-1].HasField("delivery_timestamp") or len(responses) == 1
        messages = [one.message for one in responses if one.HasField("message")]
        return responses[0].status.code, messages

    async def ack(self, topic: str, *received: pb.Message, group: str = "g") -> Any:
        entries = [
            pb.AckMessageEntry(
                message_id=one.system_properties.message_id,
                receipt_handle=one.system_properties.receipt_handle,
            )
            for one in received
        ]
        request = pb.AckMessageRequest(
            group=pb.Resource(name=group), topic=pb.Resource(name=topic), entries=entries
        )
        return await self.call("AckMessage", request)

    async def change(
        self, topic: str, received: pb.Message, seconds: int, *, group: str = "g", **fields: Any
    ) -> Any:
        system = received.system_properties
        request = pb.ChangeInvisibleDurationRequest(
            group=pb.Resource(name=group),
            topic=pb.Resource(name=topic),
            receipt_handle=system.receipt_handle,
            message_id=system.message_id,
            **fields,
        )
        request.invisible_duration.FromSeconds(seconds)
        return await self.call("ChangeInvisibleDuration", request)


def receive_request(
    topic: str,
    group: str = "g",
    *,
    expression: str = "*",
    sql: bool = False,
    invisible_s: int | None = 30,
    poll_s: float | None = 5.0,
    **fields: Any,
) -> pb.ReceiveMessageRequest:
    request = pb.ReceiveMessageRequest(
        group=pb.Resource(name=group), **({"batch_size": 32} | fields)
    )
    request.message_queue.topic.name = topic
    request.message_queue.id = -1
    request.filter_expression.type = pb.SQL if sql else pb.TAG
    request.filter_expression.expression = expression
    if invisible_s is not None:
        request.invisible_duration.FromSeconds(invisible_s)
    if poll_s is not None:
        request.long_polling_timeout.FromMilliseconds(round(poll_s * 1000))
    return request


class Telemetry:
    """A telemetry stream: ``async with Telemetry(sdk) as stream``."""

    def __init__(self, sdk: Sdk) -> None:
        self._sdk = sdk
        self._sent: asyncio.Queue[pb.TelemetryCommand | None] = asyncio.Queue()
        self._commands: Any = None

    async def __aenter__(self) -> Self:
        handler: Any = self._sdk.methods[PATH + "Telemetry"].handler
        self._commands = handler(self._requests(), self._sdk.context(None))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._commands.aclose()

    async def _requests(self) -> AsyncIterator[pb.TelemetryCommand]:
        while (command := await self._sent.get()) is not None:
            yield command

    def send(self, command: pb.TelemetryCommand | None) -> None:
        """Send a command; None ends the client's half."""
        self._sent.put_nowait(command)

    async def next(self) -> pb.TelemetryCommand:
        async with asyncio.timeout(60):
            command: pb.TelemetryCommand = await anext(self._commands)
            return command

    async def settings(self, settings: pb.Settings) -> pb.Settings:
        self.send(pb.TelemetryCommand(settings=settings))
        answer = await self.next()
        assert answer.status.code == pb.OK
        return answer.settings


def publishing(*topics: str) -> pb.Settings:
    settings = pb.Settings(client_type=pb.PRODUCER)
    settings.publishing.topics.extend(pb.Resource(name=topic) for topic in topics)
    settings.publishing.validate_message_type = False
    return settings


def subscribing(
    topic: str, group: str = "g", client_type: pb.ClientType = pb.SIMPLE_CONSUMER
) -> pb.Settings:
    settings = pb.Settings(client_type=client_type)
    settings.subscription.group.name = group
    entry = settings.subscription.subscriptions.add()
    entry.topic.name = topic
    entry.expression.type = pb.TAG
    entry.expression.expression = "*"
    return settings
