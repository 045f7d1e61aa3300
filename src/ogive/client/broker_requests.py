"""Answers requests of brokers: changed members, transactions that were never ended, replies.

Source: ClientRemotingProcessor.java, 5.3.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

from ogive.client import api
from ogive.client.replies import ReplyTable
from ogive.client.stacks import stacks
from ogive.errors import OgiveError, ResponseCode
from ogive.model import MessageExt, MessageQueue, PropertyName
from ogive.transport.connection import Connection, refuse_requests
from ogive.wire.bodies import dumps
from ogive.wire.codes import Flag, RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import (
    CheckTransactionStateRequest,
    GetConsumerRunningInfoRequest,
    NotifyConsumerIdsChangedRequest,
    decode_header,
)
from ogive.wire.message import decode_message
from ogive.wire.running_info import holdings_dumps, queues_asked_loads

log = logging.getLogger(__name__)

# requests of brokers that are being answered at a time
MAX_SERVED: Final = 256

ServerRequestHandler = Callable[[Connection, RemotingCommand], Awaitable[RemotingCommand | None]]
"""Answers one request of a broker; None is a bare SUCCESS.

A one-way request gets no answer whatever the handler returns.
"""

TransactionCheck = Callable[[Connection, CheckTransactionStateRequest, MessageExt], None]
"""Takes a broker's question about a half message, and must not block."""


class Member(Protocol):
    """The part of a consumer that brokers ask about."""

    def on_consumer_ids_changed(self) -> None: ...
    def running_info(self) -> bytes: ...
    def holdings(self, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]: ...


class BrokerRequests:
    """Answers them, each in a task of its own. *consumers* are the client's, by group."""

    def __init__(self, consumers: Mapping[str, Member]) -> None:
        self.replies = ReplyTable()
        self._consumers = consumers
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
        """A request has come."""
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
                api.refusal(
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
            reply = await handler(connection, command) or api.success()
        except OgiveError as exc:
            reply = api.refusal(ResponseCode.SYSTEM_ERROR, str(exc))
        except Exception as exc:
            # a broker's odd request must not take the client down; the broker learns of it
            log.exception("request %d of %s failed", command.code, connection.remote_address)
            reply = api.refusal(ResponseCode.SYSTEM_ERROR, f"{type(exc).__name__}: {exc}")
        _reply(connection, command, reply)

    async def _consumer_ids_changed(self, _: Connection, command: RemotingCommand) -> None:
        """All groups look again, as in Java: the group that the broker names is only the
        likeliest.
        """
        log.debug(
            "members of %s changed",
            decode_header(NotifyConsumerIdsChangedRequest, command.ext_fields).consumer_group,
        )
        for consumer in list(self._consumers.values()):
            consumer.on_consumer_ids_changed()

    async def _transaction_state(self, connection: Connection, command: RemotingCommand) -> None:
        """One-way: the answer is an END_TRANSACTION of ours, later."""
        header = decode_header(CheckTransactionStateRequest, command.ext_fields)
        message = decode_message(command.body, header.broker_name or "")
        group = message.properties.get(PropertyName.PRODUCER_GROUP, "")
        checks = self._checks.get(group)
        if checks:
            checks[0](connection, header, message)
        else:
            log.warning(
                "%s asks about transaction %s, and group %s has no check here: its message is not "
                "delivered until a producer of the group "
                "that has a check answers",
                connection.remote_address,
                message.id,
                group,
            )

    async def _running_info(self, _: Connection, command: RemotingCommand) -> RemotingCommand:
        header = decode_header(GetConsumerRunningInfoRequest, command.ext_fields)
        consumer = self._consumers.get(header.consumer_group)
        if consumer is None:
            return api.refusal(
                ResponseCode.SYSTEM_ERROR,
                f"group {header.consumer_group} has no consumer in this client",
            )
        if command.body:
            # Another member wants these queues.
            return api.success(
                body=holdings_dumps(consumer.holdings(queues_asked_loads(command.body)))
            )
        body = consumer.running_info()
        # the process's, not the group's: the last member of the object
        if header.jstack_enable:
            body = body[:-1] + b',"jstack":' + dumps(stacks()) + b"}"
        return api.success(body=body)


def _reply(connection: Connection, command: RemotingCommand, reply: RemotingCommand) -> None:
    if not command.is_oneway:
        reply.opaque = command.opaque
        reply.flag = Flag.RESPONSE
        connection.reply(reply)
