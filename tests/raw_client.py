"""Requests as they stand on the wire, for tests that look at a broker from outside."""

import asyncio
import itertools
import ssl
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from ogive.errors import ResponseCode
from ogive.model import MessageExt, MessageQueue
from ogive.transport.connection import Connection, connect, split_address
from ogive.wire.bodies.clients import (
    ConsumerData,
    HeartbeatData,
    LockBatchBody,
    SubscriptionData,
    locked_queues_loads,
)
from ogive.wire.codes import Flag, LanguageCode, PullSysFlag, RequestCode, SerializeType
from ogive.wire.command import RemotingCommand
from ogive.wire.message import BatchItem, decode_messages, encode_batch, encode_properties
from ogive.wire.signing import Credentials

TIMEOUT_S = 60.0
_keys = itertools.count(1)


def unique_key() -> str:
    """32 hexadecimal digits, as clients make them."""
    return f"{time.time_ns():016X}{next(_keys):016X}"


class RawClient:
    """One connection.

    *codec* is the header encoding of its requests; answers come in whatever the server chooses.
    """

    def __init__(
        self, codec: SerializeType = SerializeType.JSON, language: LanguageCode = LanguageCode.JAVA
    ) -> None:
        self.codec, self.language = codec, language
        # what the broker asks
        self.requests: asyncio.Queue[RemotingCommand] = asyncio.Queue()
        self._connection: Connection | None = None

    @classmethod
    async def open(
        cls,
        address: str,
        codec: SerializeType = SerializeType.JSON,
        language: LanguageCode = LanguageCode.JAVA,
        credentials: Credentials | None = None,
        context: ssl.SSLContext | None = None,
    ) -> Self:
        client = cls(codec, language)
        host, port = split_address(address)
        client._connection = await connect(
            host,
            port,
            on_request=lambda _, command: client.requests.put_nowait(command),
            credentials=credentials,
            ssl=context,
        )
        return client

    @property
    def connection(self) -> Connection:
        assert self._connection is not None
        return self._connection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.connection.close()
        await self.connection.wait_closed()

    # --- any request ------------------------------------------------------------------------------

    def start(
        self, code: int, body: bytes = b"", /, **fields: object
    ) -> asyncio.Future[RemotingCommand]:
        return self.connection.start_call(self._command(code, fields, body), TIMEOUT_S)

    async def call(self, code: int, body: bytes = b"", /, **fields: object) -> RemotingCommand:
        """The answer, whatever its code."""
        return await self.start(code, body, **fields)

    async def ok(self, code: int, body: bytes = b"", /, **fields: object) -> RemotingCommand:
        answer = await self.call(code, body, **fields)
        assert answer.code == ResponseCode.SUCCESS, answer
        return answer

    def oneway(self, code: int, body: bytes = b"", /, **fields: object) -> None:
        command = self._command(code, fields, body)
        command.flag = Flag.ONEWAY
        self.connection.send_nowait(command)

    def _command(self, code: int, fields: dict[str, object], body: bytes) -> RemotingCommand:
        text = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in fields.items()
            if value is not None
        }
        return RemotingCommand(code, text, body, language=self.language, serialize_type=self.codec)

    # --- sends ------------------------------------------------------------------------------------

    def start_send(
        self,
        topic: str,
        body: bytes = b"x",
        properties: dict[str, str] | None = None,
        *,
        queue: int = 0,
        code: int = 310,
        **changed: object,
    ) -> asyncio.Future[RemotingCommand]:
        """*changed*: header fields by their short names."""
        own = {"UNIQ_KEY": unique_key()} if properties is None else properties
        return self.start(
            code,
            body,
            **(self.send_fields(topic, queue, encode_properties(own).decode()) | changed),
        )

    @staticmethod
    def send_fields(topic: str, queue: int, properties: str) -> dict[str, object]:
        return {
            "a": "raw-producer",
            "b": topic,
            "c": "TBW102",
            "d": 4,
            "e": queue,
            "f": 0,
            "g": 1_795_230_231_293,
            "h": 0,
            "i": properties,
            "j": 0,
            "k": False,
            "m": False,
        }

    async def send(
        self,
        topic: str,
        body: bytes = b"x",
        properties: dict[str, str] | None = None,
        *,
        queue: int = 0,
        **changed: object,
    ) -> RemotingCommand:
        """The answer, if it is SUCCESS."""
        changed["queue"] = queue
        answer = await self.start_send(topic, body, properties, **changed)  # type: ignore[arg-type]
        assert answer.code == ResponseCode.SUCCESS, answer
        return answer

    async def send_batch(
        self, topic: str, bodies: Iterable[bytes], *, queue: int = 0, **own: str
    ) -> RemotingCommand:
        """*own*: properties of the batch itself."""
        items = encode_batch(
            BatchItem(0, body, encode_properties({"UNIQ_KEY": unique_key()})) for body in bodies
        )
        return await self.call(
            320,
            items,
            **(self.send_fields(topic, queue, encode_properties(own).decode()) | {"m": True}),
        )

    # --- pulls and groups -------------------------------------------------------------------------

    def start_pull(
        self,
        group: str,
        topic: str,
        offset: int,
        *,
        queue: int = 0,
        count: int = 32,
        subscription: str | None = "*",
        suspend_ms: int = 0,
        commit: int | None = None,
        **changed: object,
    ) -> asyncio.Future[RemotingCommand]:
        flags = 0 if subscription is None else PullSysFlag.SUBSCRIPTION
        flags |= PullSysFlag.SUSPEND if suspend_ms else 0
        flags |= 0 if commit is None else PullSysFlag.COMMIT_OFFSET
        fields: dict[str, object] = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": queue,
            "queueOffset": offset,
            "maxMsgNums": count,
            "sysFlag": flags,
            "commitOffset": commit or 0,
            "suspendTimeoutMillis": suspend_ms,
            "subscription": subscription,
            "subVersion": 0,
            "expressionType": "TAG",
        }
        return self.start(RequestCode.PULL_MESSAGE, **(fields | changed))

    async def pull(self, group: str, topic: str, offset: int, **options: object) -> RemotingCommand:
        """See start_pull."""
        return await self.start_pull(group, topic, offset, **options)  # type: ignore[arg-type]

    async def heartbeat(
        self,
        client_id: str,
        group: str,
        *topics: str,
        expression: str = "*",
        model: str = "CLUSTERING",
        version: int = 0,
    ) -> RemotingCommand:
        subscriptions = tuple(
            SubscriptionData.of_tags(topic, expression, version) for topic in topics
        )
        data = HeartbeatData(
            client_id=client_id,
            consumers=(
                ConsumerData(group=group, message_model=model, subscriptions=subscriptions),
            ),
            producers=("raw",),
        )
        return await self.ok(RequestCode.HEART_BEAT, data.encode())

    async def lock(self, client_id: str, group: str, *queues: MessageQueue) -> list[int]:
        """The ids of the queues that were locked."""
        body = LockBatchBody(group=group, client_id=client_id, queues=queues).encode()
        return sorted(
            queue.queue_id
            for queue in locked_queues_loads((await self.ok(RequestCode.LOCK_BATCH_MQ, body)).body)
        )

    async def unlock(self, client_id: str, group: str, *queues: MessageQueue) -> None:
        await self.ok(
            RequestCode.UNLOCK_BATCH_MQ,
            LockBatchBody(group=group, client_id=client_id, queues=queues).encode(),
        )

    async def next_request(self, code: int) -> RemotingCommand:
        """The next request of the broker with that code; others are passed over."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                request = await self.requests.get()
                if request.code == code:
                    return request


def messages(answer: RemotingCommand) -> list[MessageExt]:
    """What a pull answer holds."""
    assert answer.code == ResponseCode.SUCCESS, answer
    return decode_messages(answer.body)
