"""Answer requests of brokers: changed members, transactions, running info, and replies to this
client's requests.

Source: ClientRemotingProcessor.java, RequestFutureHolder.java, 5.3.

Behaviour
- A broker pushes a reply (code 326) to the client that asked; the correlation id tells which
  request it is for. The broker is told SUCCESS, even if nobody is waiting for the reply any more.
- A reply that cannot be read ends its request with that error, and the broker is told.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol
from weakref import WeakValueDictionary

from ogive.client import rpc
from ogive.errors import (
    CompressionUnavailable,
    OgiveError,
    ProtocolError,
    ResponseCode,
    TooManyRequests,
)
from ogive.model import MessageExt, MessageQueue, PropertyName
from ogive.transport.connection import Connection, refuse_requests
from ogive.wire.bodies.clients import ConsumerData, holdings_dumps, queues_asked_loads
from ogive.wire.bodies.json_fields import dumps
from ogive.wire.codes import Flag, RequestCode, SysFlag
from ogive.wire.command import RemotingCommand
from ogive.wire.compression import decompress
from ogive.wire.headers.clients import (
    GetConsumerRunningInfoRequest,
    NotifyConsumerIdsChangedRequest,
)
from ogive.wire.headers.codec import decode_header
from ogive.wire.headers.send import CheckTransactionStateRequest, PushReplyMessageRequest
from ogive.wire.message import decode_message, decode_properties


def stacks() -> str:
    """Return the stacks of all threads, and of the tasks of the running loop except the current
    one.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        frames = "".join(
            line for frame in task.get_stack() for line in traceback.format_stack(frame, limit=1)
        )
        parts.append(f"task {task.get_name()}\n{frames}")
    return "\n".join(parts)


log = logging.getLogger(__name__)

MAX_WAITING: Final = 10_000


class ReplyTable:
    """Requests of one client that wait for a reply, by correlation id."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[MessageExt]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, correlation_id: str) -> asyncio.Future[MessageExt]:
        """Return a future for the reply; the caller must call ``forget`` in the end. Raises
        TooManyRequests.
        """
        if len(self._waiting) >= MAX_WAITING:
            raise TooManyRequests(
                f"{MAX_WAITING} requests of this client wait for replies already: this one was not "
                "sent"
            )
        future: asyncio.Future[MessageExt] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        return future

    def forget(self, correlation_id: str) -> None:
        """Treat replies that arrive from now on as late."""
        self._waiting.pop(correlation_id, None)

    def take(self, command: RemotingCommand) -> RemotingCommand:
        """Give a pushed reply to its request. Return the answer to the broker."""
        try:
            header = decode_header(PushReplyMessageRequest, command.ext_fields)
            properties = decode_properties((header.properties or "").encode("utf-8", "replace"))
        except ProtocolError as exc:
            log.warning("could not decode a reply: %s", exc)
            return rpc.refusal(ResponseCode.SYSTEM_ERROR, str(exc))
        correlation_id = properties.get(PropertyName.CORRELATION_ID, "")
        waiting = self._waiting.pop(correlation_id, None)
        if waiting is None or waiting.done():
            log.debug("nobody waits for the reply to request %s (any more)", correlation_id)
            return rpc.success()
        properties[PropertyName.ARRIVE_TIME] = str(time.time_ns() // 1_000_000)
        try:
            waiting.set_result(_message(header, properties, command.body))
        except (ProtocolError, CompressionUnavailable) as exc:
            waiting.set_exception(_unreadable(correlation_id, exc))
            return rpc.refusal(ResponseCode.SYSTEM_ERROR, str(exc))
        return rpc.success()


def _message(
    header: PushReplyMessageRequest, properties: dict[str, str], body: bytes
) -> MessageExt:
    """Return the reply as a message; it has no place in a queue yet.

    Raises ProtocolError, CompressionUnavailable.
    """
    sys_flag = header.sys_flag
    if sys_flag & SysFlag.COMPRESSED:
        body = decompress(body, sys_flag)
        sys_flag &= ~(SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)
    return MessageExt(
        topic=header.topic,
        body=body,
        properties=properties,
        queue=MessageQueue(header.topic, "", header.queue_id),
        queue_offset=0,
        commitlog_offset=0,
        reconsume_times=header.reconsume_times or 0,
        born_timestamp_ms=header.born_timestamp,
        store_timestamp_ms=header.store_timestamp,
        born_host=header.born_host,
        store_host=header.store_host,
        flag=header.flag,
        sys_flag=sys_flag,
        stored_bytes=0,
    )


def _unreadable(correlation_id: str, error: OgiveError) -> OgiveError:
    return type(error)(f"the reply to request {correlation_id} cannot be read: {error}")


# requests of brokers that are being answered at a time
MAX_SERVED: Final = 256

ServerRequestHandler = Callable[[Connection, RemotingCommand], Awaitable[RemotingCommand | None]]
"""Answers one request of a broker; None is a bare SUCCESS.

A one-way request gets no answer whatever the handler returns.
"""

TransactionCheck = Callable[[Connection, CheckTransactionStateRequest, MessageExt], None]
"""Takes a broker's question about a half message, and must not block."""


class RegisteredConsumer(Protocol):
    """Protocol of a consumer, as its client sees it. All methods are called on the loop and must
    not block.
    """

    @property
    def group(self) -> str: ...

    def consumer_data(self) -> ConsumerData:
        """Return its part of the heartbeat; the subscriptions name the topics whose route changes
        matter.
        """
        ...

    def on_consumer_ids_changed(self) -> None:
        """Rebalance soon, because members or queues of the group have changed."""
        ...

    def running_info(self) -> bytes:
        """Return the body that answers GET_CONSUMER_RUNNING_INFO (JSON)."""
        ...

    def holdings(self, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
        """Return those of *queues* that this member holds or claims.

        Another member asks before it takes them over.
        """
        ...


class BrokerRequests:
    """Requests of brokers, each answered in a task of its own. *consumers* are the client's, by
    group.
    """

    def __init__(self, consumers: Mapping[str, RegisteredConsumer]) -> None:
        self.replies = ReplyTable()
        self._consumers = consumers
        # by unique key: a transaction that nobody holds any more will never leave its block
        self.running_transactions: WeakValueDictionary[str, object] = WeakValueDictionary()
        # by producer group
        self._checks: dict[str, list[TransactionCheck]] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._handlers: dict[int, ServerRequestHandler] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._consumer_ids_changed,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CHECK_TRANSACTION_STATE: self._transaction_state,
        }

    def serve(self, code: int, handler: ServerRequestHandler) -> None:
        """Let *handler* answer requests with this code; any other code is answered with
        REQUEST_CODE_NOT_SUPPORTED.
        """
        self._handlers[code] = handler

    def add_check(self, group: str, check: TransactionCheck) -> None:
        """Let *check* take the questions about half messages of the producer group; if there are
        several, the first one does.
        """
        self._checks.setdefault(group, []).append(check)

    def remove_check(self, group: str, check: TransactionCheck) -> None:
        self._checks[group].remove(check)
        if not self._checks[group]:
            del self._checks[group]

    def on_request(self, connection: Connection, command: RemotingCommand) -> None:
        """Answer a request, or begin to."""
        if command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            # without a task: a burst of replies must not meet their limit
            _reply(connection, command, self.replies.take(command))
            return
        handler = self._handlers.get(command.code)
        if handler is None:
            refuse_requests(connection, command)
        elif len(self._serving) >= MAX_SERVED:
            _reply(
                connection,
                command,
                rpc.refusal(
                    ResponseCode.SYSTEM_BUSY, f"{MAX_SERVED} requests are being answered already"
                ),
            )
        else:
            task = asyncio.create_task(
                self._answer(connection, command, handler), name=f"request {command.code}"
            )
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def close(self) -> None:
        """Answer nothing more."""
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _answer(
        self, connection: Connection, command: RemotingCommand, handler: ServerRequestHandler
    ) -> None:
        try:
            reply = await handler(connection, command) or rpc.success()
        except OgiveError as exc:
            reply = rpc.refusal(ResponseCode.SYSTEM_ERROR, str(exc))
        except Exception as exc:
            # a broker's odd request must not take the client down; the broker learns of it
            log.exception("request %d of %s failed", command.code, connection.remote_address)
            reply = rpc.refusal(ResponseCode.SYSTEM_ERROR, f"{type(exc).__name__}: {exc}")
        _reply(connection, command, reply)

    async def _consumer_ids_changed(self, _: Connection, command: RemotingCommand) -> None:
        """Let all groups rebalance soon, as in Java: the group that the broker names is only the
        likeliest.
        """
        log.debug(
            "members of %s changed",
            decode_header(NotifyConsumerIdsChangedRequest, command.ext_fields).consumer_group,
        )
        for consumer in list(self._consumers.values()):
            consumer.on_consumer_ids_changed()

    async def _transaction_state(self, connection: Connection, command: RemotingCommand) -> None:
        """Have the producer's check asked. The request is one-way: an END_TRANSACTION answers it
        later.
        """
        header = decode_header(CheckTransactionStateRequest, command.ext_fields)
        message = decode_message(command.body, header.broker_name or "")
        group = message.properties.get(PropertyName.PRODUCER_GROUP, "")
        checks = self._checks.get(group)
        if checks:
            checks[0](connection, header, message)
        else:
            log.warning(
                "%s asks for the result of transaction %s, and group %s has no check in this "
                "process: the message is not delivered until a producer of the group with a check "
                "answers",
                connection.remote_address,
                message.id,
                group,
            )

    async def _running_info(self, _: Connection, command: RemotingCommand) -> RemotingCommand:
        header = decode_header(GetConsumerRunningInfoRequest, command.ext_fields)
        consumer = self._consumers.get(header.consumer_group)
        if consumer is None:
            return rpc.refusal(
                ResponseCode.SYSTEM_ERROR,
                f"group {header.consumer_group} has no consumer in this client",
            )
        if command.body:
            # Another member wants these queues.
            return rpc.success(
                body=holdings_dumps(consumer.holdings(queues_asked_loads(command.body)))
            )
        body = consumer.running_info()
        # the process's, not the group's: the last member of the object
        if header.jstack_enable:
            body = body[:-1] + b',"jstack":' + dumps(stacks()) + b"}"
        return rpc.success(body=body)


def _reply(connection: Connection, command: RemotingCommand, reply: RemotingCommand) -> None:
    if not command.is_oneway:
        reply.opaque = command.opaque
        reply.flag = Flag.RESPONSE
        connection.reply(reply)
