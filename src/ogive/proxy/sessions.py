"""Clients by id: who they are, what they registered, and the commands for them.

Source: GrpcClientChannel.java, GrpcChannelManager.java, ClientActivity.java, 5.5.

Behaviour
- A session lives as long as its registration at the broker does, by heartbeats; one without a
  registration ends when it has made no call for IDLE_S.
- Commands go to the newest telemetry stream. A broker's question that no stream can take is
  refused, so that it is asked again.
- With access control users have sessions of their own: a client id of another user leads nowhere.

Differs from Apache's proxy: running info without stacks is answered, with what is known here.
"""

import asyncio
import itertools
import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Final

from ogive.access.guard import NO_CREDENTIALS, NOBODY_KNOWN
from ogive.client.rpc import refusal, success
from ogive.client.rpc.calling import ask
from ogive.errors import ConnectError, ResponseCode
from ogive.proxy import rocketmq_pb2 as pb
from ogive.proxy.backend import Backend, ClientIdentity
from ogive.proxy.calls import CallContext
from ogive.proxy.messages import to_message
from ogive.proxy.renewals import Renewals
from ogive.proxy.status import Illegal
from ogive.transport.connection import join_address
from ogive.wire.bodies.clients import (
    ConsumeDirectlyResult,
    ConsumerData,
    ConsumeResult,
    ConsumerRunningInfo,
    HeartbeatData,
    SubscriptionData,
)
from ogive.wire.codes import LanguageCode, RequestCode, version_number
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.clients import (
    GetConsumerRunningInfoRequest,
    HeartbeatRequest,
    UnregisterClientRequest,
)
from ogive.wire.headers.codec import decode_header
from ogive.wire.headers.pull import PopMessageRequest
from ogive.wire.headers.send import CheckTransactionStateRequest, SendMessageRequestV2
from ogive.wire.message import decode_message

log = logging.getLogger(__name__)

MAX_SESSIONS: Final = 20_000
MAX_CLIENT_ID: Final = 255
IDLE_S: Final = 120.0
SWEEP_S: Final = 30.0
# commands that a stream's reader has not taken yet; one may be larger
MAX_COMMANDS: Final = 256
MAX_COMMAND_BYTES: Final = 1024 * 1024
MAX_QUESTIONS: Final = 64
"""Questions of tools to one client that are not answered yet."""
CONSUMERS: Final = {
    pb.PUSH_CONSUMER: "CONSUME_PASSIVELY",
    pb.SIMPLE_CONSUMER: "CONSUME_ACTIVELY",
    pb.PULL_CONSUMER: "CONSUME_ACTIVELY",
    pb.LITE_PUSH_CONSUMER: "CONSUME_PASSIVELY",
    pb.LITE_SIMPLE_CONSUMER: "CONSUME_ACTIVELY",
}
_LANGUAGES: Final = {
    "GOLANG": LanguageCode.GO,
    "DOT_NET": LanguageCode.DOTNET,
    "NODEJS": LanguageCode.NODE_JS,
}
_AUTHORIZATION: Final = re.compile(
    # nothing is matched twice: anyone can send 16 KiB that do not match
    r"MQv2-HMAC-SHA1 ++Credential=([^,/ ]++)[^,]*+,.*Signature=([0-9A-Fa-f]++)"
)


class Stream:
    """A telemetry stream: commands that wait for the client."""

    def __init__(self) -> None:
        self._commands: deque[pb.TelemetryCommand] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._ended: BaseException | None = None
        self._is_over = False

    def put(self, command: pb.TelemetryCommand) -> None:
        """Raises ConnectError if the client does not read."""
        size = command.ByteSize()
        is_full = len(self._commands) >= MAX_COMMANDS or self._bytes + size > MAX_COMMAND_BYTES
        if self._is_over or (self._commands and is_full):
            raise ConnectError("the client takes no more commands")
        self._commands.append(command)
        self._bytes += size
        self._arrived.set()

    def end(self, error: BaseException | None = None) -> None:
        """End the stream after what was put."""
        self._is_over, self._ended = True, error
        self._arrived.set()

    async def commands(self) -> AsyncIterator[pb.TelemetryCommand]:
        while True:
            while self._commands:
                command = self._commands.popleft()
                self._bytes -= command.ByteSize()
                yield command
            if self._is_over:
                if self._ended is not None:
                    raise self._ended
                return
            self._arrived.clear()
            await self._arrived.wait()


class Session:
    """One client."""

    def __init__(self, backend: Backend, client: ClientIdentity) -> None:
        self.client = client
        # what the client allows for a request, if it has said so
        self.request_timeout_s: float | None = None
        self.used_at = asyncio.get_running_loop().time()
        self.stream: Stream | None = None
        self.receives = 0
        self.link = backend.link(client, self._answer, self._notice, self._closed)
        self.renewals = Renewals(self.link, backend.releases)
        self._producing: set[str] = set()
        self._consuming: dict[str, ConsumerData] = {}
        self._nonces = itertools.count(1)
        self._questions: dict[str, asyncio.Future[pb.TelemetryCommand]] = {}

    # --- registration -----------------------------------------------------------------------------

    async def register(
        self, *, topics: Iterable[str] = (), consumer: ConsumerData | None = None
    ) -> None:
        """Register as a producer of *topics*, or as a member of a group, and say that the client
        lives. Raises OgiveError.
        """
        producing = self._producing.union(topics)
        consuming = self._consuming
        if consumer is not None:
            consuming = {**consuming, consumer.group: consumer}
        data = HeartbeatData(
            client_id=self.client.client_id,
            producers=tuple(sorted(producing)),
            consumers=tuple(consuming.values()),
        )
        if data.producers or data.consumers:
            await ask(self.link, "", HeartbeatRequest(), 3.0, data.encode())
        # a refused registration is not tried again with each heartbeat
        self._producing, self._consuming = producing, consuming

    def check_send(self, topic: str) -> None:
        """Raise AccessRefused if the client may not send to *topic*."""
        self.link.check(
            SendMessageRequestV2(producer_group=topic, topic=topic, queue_id=0, born_timestamp=0)
        )

    def check_receive(self, group: str, topic: str) -> None:
        """Raise AccessRefused if the client may not receive messages of *topic* for *group*."""
        self.link.check(
            PopMessageRequest(
                consumer_group=group,
                topic=topic,
                queue_id=-1,
                max_msg_nums=1,
                invisible_time_ms=0,
                poll_time_ms=0,
                born_time_ms=0,
                init_mode=0,
            )
        )

    def has_group(self, group: str) -> bool:
        return group in self._consuming

    def is_producer_of(self, topic: str) -> bool:
        return topic in self._producing

    async def unregister(self) -> None:
        """Take the client out of all groups. Raises OgiveError."""
        groups = [(topic, None) for topic in self._producing]
        members = [(None, group) for group in self._consuming]
        self._producing.clear()
        self._consuming.clear()
        for producer, consumer in (*groups, *members):
            header = UnregisterClientRequest(
                client_id=self.client.client_id, producer_group=producer, consumer_group=consumer
            )
            await ask(self.link, "", header, 3.0)

    def close(self) -> None:
        self.link.close()

    def _closed(self) -> None:
        self.renewals.close()
        if self.stream is not None:
            # the client opens a new one, and registers again
            self.stream.end()
        for question in self._questions.values():
            question.cancel()

    # --- commands ---------------------------------------------------------------------------------

    def _put(self, command: pb.TelemetryCommand) -> None:
        if self.stream is None:
            raise ConnectError(f"client {self.client.client_id} has no telemetry stream")
        self.stream.put(command)

    def _notice(self, command: RemotingCommand) -> None:
        if command.code != RequestCode.CHECK_TRANSACTION_STATE:
            return
        header = decode_header(CheckTransactionStateRequest, command.ext_fields)
        message = decode_message(command.body)
        asked = pb.TelemetryCommand()
        recover = asked.recover_orphaned_transaction_command
        recover.message.CopyFrom(to_message(message, message.topic))
        recover.transaction_id = transaction_id(
            header.broker_name or "", header.tran_state_table_offset, header.commit_log_offset
        )
        self._put(asked)

    async def _answer(self, command: RemotingCommand) -> RemotingCommand:
        """Answer a question of a tool about this client."""
        if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            return await self._running_info(command)
        if command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            return await self._verify(command)
        return refusal(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f"client {self.client.client_id} uses gRPC: it does not know request {command.code}",
        )

    async def _running_info(self, command: RemotingCommand) -> RemotingCommand:
        header = decode_header(GetConsumerRunningInfoRequest, command.ext_fields)
        consumer = self._consuming.get(header.consumer_group)
        stacks = None
        if header.jstack_enable:
            asked = pb.TelemetryCommand()
            nonce = asked.print_thread_stack_trace_command.nonce = str(next(self._nonces))
            answer = await self._question(nonce, asked)
            stacks = answer.thread_stack_trace.thread_stack_trace
        info = ConsumerRunningInfo(
            properties={"PROP_CLIENT_VERSION": "gRPC", "PROP_CONSUME_TYPE": "CONSUME_POP"},
            subscriptions=() if consumer is None else consumer.subscriptions,
            queues={},
            topics={},
            stacks=stacks,
        )
        return success(body=info.encode())

    async def _verify(self, command: RemotingCommand) -> RemotingCommand:
        message = decode_message(command.body)
        asked = pb.TelemetryCommand()
        verify = asked.verify_message_command
        nonce = verify.nonce = str(next(self._nonces))
        verify.message.CopyFrom(to_message(message, message.topic))
        loop = asyncio.get_running_loop()
        began = loop.time()
        answer = await self._question(nonce, asked)
        is_ok = answer.status.code == pb.OK
        result = ConsumeDirectlyResult(
            result=ConsumeResult.SUCCESS if is_ok else ConsumeResult.LATER,
            orderly=False,
            spent_ms=round((loop.time() - began) * 1000),
            remark=answer.status.message,
        )
        return success(body=result.encode())

    async def _question(self, nonce: str, asked: pb.TelemetryCommand) -> pb.TelemetryCommand:
        """Send a command, and return the client's answer. The caller limits the time."""
        if len(self._questions) >= MAX_QUESTIONS:
            raise ConnectError(f"client {self.client.client_id} has {MAX_QUESTIONS} questions open")
        answered: asyncio.Future[pb.TelemetryCommand] = asyncio.get_running_loop().create_future()
        self._questions[nonce] = answered
        try:
            self._put(asked)
            return await answered
        finally:
            del self._questions[nonce]

    def answered(self, nonce: str, command: pb.TelemetryCommand) -> None:
        """Pass on what the client answered; nobody may wait for it any more."""
        waiting = self._questions.get(nonce)
        if waiting is not None and not waiting.done():
            waiting.set_result(command)


def transaction_id(broker: str, queue_offset: int, commitlog_offset: int) -> str:
    """Return the id of a transaction: it says where the half message is, so that no table has to,
    and a restart loses nothing.
    """
    return f"{broker}@{queue_offset}@{commitlog_offset}"


def read_transaction_id(text: str) -> tuple[str, int, int]:
    """Return broker, and both offsets. Raises Illegal."""
    broker, *offsets = text.rsplit("@", 2)
    if not broker or len(offsets) != 2 or not all(map(_is_offset, offsets)):
        raise Illegal(
            pb.INVALID_TRANSACTION_ID, f"transaction id {text[:80]!r} is not one of this server"
        )
    return broker, int(offsets[0]), int(offsets[1])


def _is_offset(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19


class Sessions:
    """All clients, by id and user."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._sessions: dict[tuple[str, str], Session] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    async def of(self, call: CallContext) -> Session:
        """Return the session of a call. Raises Illegal if it is not let in, and OgiveError if the
        brokers cannot be asked.
        """
        user = await self._authenticate(call)
        client_id = call.metadata.get("x-mq-client-id", "").strip()
        if not client_id:
            raise Illegal(pb.CLIENT_ID_REQUIRED, "the call has no client id (x-mq-client-id)")
        if len(client_id) > MAX_CLIENT_ID:
            raise Illegal(
                pb.BAD_REQUEST, f"client id of {len(client_id)} characters: at most {MAX_CLIENT_ID}"
            )
        key = (client_id, user)
        found = self._sessions.get(key)
        if found is None or found.link.closed:
            if len(self._sessions) >= MAX_SESSIONS:
                raise Illegal(pb.TOO_MANY_REQUESTS, f"{MAX_SESSIONS} clients are connected already")
            found = self._sessions[key] = Session(self._backend, _identity(call, client_id, user))
            if self._timer is None:
                self._timer = self._loop.call_later(SWEEP_S, self._sweep)
        found.used_at = self._loop.time()
        return found

    def end(self, session: Session) -> None:
        """Forget a client that has said that it goes."""
        session.close()
        self._sessions.pop((session.client.client_id, session.client.user), None)

    def close(self) -> None:
        """End all sessions."""
        if self._timer is not None:
            self._timer.cancel()
        for session in list(self._sessions.values()):
            self.end(session)

    async def _authenticate(self, call: CallContext) -> str:
        """Return the user of a call, empty without access control. Raises Illegal."""
        if not self._backend.guarded:
            return ""
        given = _AUTHORIZATION.fullmatch(call.metadata.get("authorization", ""))
        address = join_address(*call.peer)
        if given is None:
            self._backend.refused("", address, NO_CREDENTIALS)
            raise Illegal(pb.UNAUTHORIZED, NO_CREDENTIALS)
        user, signature = given.groups()
        text = call.metadata.get("x-mq-date-time", "")
        if not await self._backend.has_signed(user, text, signature):
            self._backend.refused(user, address, "unknown user, or wrong signature, of a gRPC call")
            raise Illegal(pb.UNAUTHORIZED, NOBODY_KNOWN)
        return user

    def _sweep(self) -> None:
        """End sessions that nobody uses."""
        limit = self._loop.time() - IDLE_S
        for key, session in list(self._sessions.items()):
            if not session.link.closed and session.stream is None and session.used_at < limit:
                session.close()
            if session.link.closed:
                del self._sessions[key]
        self._timer = self._loop.call_later(SWEEP_S, self._sweep) if self._sessions else None


def _identity(call: CallContext, client_id: str, user: str) -> ClientIdentity:
    name = call.metadata.get("x-mq-language", "").upper()
    if call.metadata.get("user-agent", "").startswith("grpc-node-js"):
        # the SDK for Node.js calls itself HTTP
        name = "NODEJS"
    language = _LANGUAGES.get(name) or LanguageCode.__members__.get(name, LanguageCode.OTHER)
    return ClientIdentity(
        client_id,
        user,
        join_address(*(call.through or call.peer)),
        language,
        version_number(call.metadata.get("x-mq-client-version", "")),
    )


def subscription_data(entry: pb.SubscriptionEntry, topic: str) -> SubscriptionData:
    """Return a client's subscription as brokers know it."""
    expression = entry.expression
    if expression.type == pb.SQL:
        return SubscriptionData.of_sql(topic, expression.expression)
    return SubscriptionData.of_tags(topic, expression.expression or "*")
