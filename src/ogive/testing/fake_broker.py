"""A scripted name server and broker in one, on a free loopback port, that behaves normally until a
test scripts something else; and messages for tests of listeners.

It keeps messages, progress and members in memory, and speaks the remoting protocol. Access control,
transactions, delays and filtering are not faked: use ``Broker`` for those.
"""

import asyncio
import contextlib
import ssl as tls
import time
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from ogive.keywords import explained
from ogive.model import MessageExt, MessageQueue, PropertyName
from ogive.testing.fake_pop import CODES, FakePop
from ogive.transport.connection import Connection
from ogive.transport.server import Server
from ogive.wire.bodies.clients import (
    HeartbeatData,
    LockBatchBody,
    consumer_ids_dumps,
    locked_queues_dumps,
)
from ogive.wire.bodies.configs import TopicConfig
from ogive.wire.bodies.json_fields import dumps
from ogive.wire.bodies.routes import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRouteData,
    topic_list_dumps,
)
from ogive.wire.codes import Flag, PullSysFlag, RequestCode, ResponseCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.admin import CreateTopicRequest
from ogive.wire.headers.clients import UnregisterClientRequest
from ogive.wire.headers.codec import Header, decode_header, encode_header
from ogive.wire.headers.pull import (
    OffsetResponse,
    PullMessageRequest,
    PullMessageResponse,
    QueryConsumerOffsetRequest,
    SearchOffsetRequest,
    UpdateConsumerOffsetRequest,
)
from ogive.wire.headers.send import SendMessageRequestV2, SendMessageResponse
from ogive.wire.message import (
    StoredMessage,
    decode_batch,
    encode_host,
    encode_stored,
    offset_message_id,
)


@explained
def message(
    topic: str,
    body: bytes,
    *,
    tag: str | None = None,
    keys: str | Iterable[str] = (),
    properties: Mapping[str, str] | None = None,
    sharding_key: str | None = None,
    queue_id: int = 0,
    queue_offset: int = 0,
    reconsume_times: int = 0,
) -> MessageExt:
    """Return a received message to call a listener with: ``bill(message("Orders", b"4711",
    tag="paid"))``.

    Its times are the current time.
    """
    if not isinstance(body, bytes):
        raise TypeError(f"body must be bytes, not {type(body).__name__}: encode text first")
    now_ms = time.time_ns() // 1_000_000
    joined = keys if isinstance(keys, str) else " ".join(keys)
    known = {
        PropertyName.UNIQ_KEY: f"{now_ms:016X}{queue_id:08X}{queue_offset:08X}",
        PropertyName.TAGS: tag,
        PropertyName.KEYS: joined or None,
        PropertyName.SHARDING_KEY: sharding_key,
    }
    return MessageExt(
        topic=topic,
        body=body,
        properties=dict(properties or {})
        | {name: value for name, value in known.items() if value is not None},
        queue=MessageQueue(topic, "broker-a", queue_id),
        queue_offset=queue_offset,
        commitlog_offset=0,
        reconsume_times=reconsume_times,
        born_timestamp_ms=now_ms,
        store_timestamp_ms=now_ms,
        born_host="127.0.0.1:0",
        store_host="127.0.0.1:0",
        flag=0,
        sys_flag=0,
        stored_bytes=len(body),
    )


# limit of a wait for an expected request
WAIT_S: Final = 60.0
# between two looks at leases that end
LOOK_S: Final = 0.01


class Silent:
    """Script entry: leave the request unanswered."""


class HangUp:
    """Script entry: close the connection instead of answering."""


SILENT: Final = Silent()
"""Script entry: leave the request unanswered."""
HANG_UP: Final = HangUp()
"""Script entry: close the connection instead of answering."""


@dataclass(frozen=True, slots=True)
class Raw:
    """Script entry: write these bytes instead of an answer, whatever they are."""

    data: bytes
    """Bytes to write, as they are."""


@dataclass(frozen=True, slots=True)
class After:
    """Script entry: the answer (None: the usual one) is sent *seconds* later."""

    seconds: float
    """Pause before the answer."""
    answer: "RemotingCommand | Silent | HangUp | Raw | None" = None
    """The answer that is sent then."""


Reply = RemotingCommand | Silent | HangUp | Raw | After | None
Script = Reply | Callable[[RemotingCommand], Reply]


def ok(header: Header | None = None, body: bytes = b"") -> RemotingCommand:
    """Return the answer SUCCESS, with these header fields and this body."""
    return RemotingCommand(ResponseCode.SUCCESS, encode_header(header) if header else {}, body)


def error(code: int, remark: str = "scripted") -> RemotingCommand:
    """Return an answer with an error code."""
    return RemotingCommand(code, {}, remark=remark)


class FakeBroker:
    """``async with FakeBroker({"Orders": 4}) as broker``: topics with their number of queues.

    Bound to one event loop.

    ``script(code, ...)`` sets the next answers to a request code, ``on(code, ...)`` the answer to
    all others; None, also from a function, means the usual behaviour. ``hold`` and ``release`` keep
    requests waiting; while *mute* is True nothing is answered. Every request is kept in *requests*.
    Sent messages can be pulled; a pull that finds nothing waits for the next send, or until its
    suspend time is over. They can be popped as well, by groups of their own; *pops* has the leases.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        name: str = "broker-a",
        port: int = 0,
        ssl: tls.SSLContext | None = None,
    ) -> None:
        self.topics = dict(topics or {})
        self.name = name
        self.port = port
        # accept connections and requests, and answer nothing
        self.mute = False
        self.requests: list[RemotingCommand] = []
        # other brokers in the routes that this one answers
        self.peers: list[FakeBroker] = []
        self.stored: dict[tuple[str, int], list[StoredMessage]] = defaultdict(list)
        # (group, topic, queue id)
        self.offsets: dict[tuple[str, str, int], int] = {}
        # group -> client id -> connection
        self.members: dict[str, dict[str, Connection]] = defaultdict(dict)
        # group -> the connection of its last heartbeat
        self.producers: dict[str, Connection] = {}
        self._ssl = ssl
        # times of the requests, by the loop's clock
        self._times: list[float] = []
        self._scripts: dict[int, deque[Script]] = defaultdict(deque)
        self._always: dict[int, Script] = {}
        self._held: dict[int, list[tuple[Connection, RemotingCommand]]] = {}
        self._commitlog_offset = 0
        self._arrived = asyncio.Event()
        self._changed = asyncio.Event()
        self._parked: set[asyncio.Task[None]] = set()
        self._server: Server | None = None
        self._defaults: dict[
            int, Callable[[Connection, RemotingCommand], RemotingCommand | None]
        ] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: lambda _c, _r: ok(
                body=topic_list_dumps(self.topics)
            ),
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._create_topic,
            RequestCode.GET_TOPIC_CONFIG: self._topic_config,
            RequestCode.SEND_MESSAGE_V2: self._send,
            RequestCode.SEND_BATCH_MESSAGE: self._send,
            RequestCode.CONSUMER_SEND_MSG_BACK: lambda _c, _r: ok(),
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.CHECK_CLIENT_CONFIG: lambda _c, _r: ok(),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._consumer_list,
            RequestCode.LOCK_BATCH_MQ: lambda _c, r: ok(
                body=locked_queues_dumps(LockBatchBody.decode(r.body).queues)
            ),
            RequestCode.UNLOCK_BATCH_MQ: lambda _c, _r: ok(),
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
            RequestCode.GET_MAX_OFFSET: self._max_offset,
            RequestCode.GET_MIN_OFFSET: lambda _c, _r: ok(OffsetResponse(offset=0)),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search_offset,
            **dict.fromkeys(CODES, self._pop),
        }
        self.pops = FakePop(
            self.stored, lambda topic: self.topics.get(topic, 0), name, self.offsets
        )

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, on a free port unless one was given."""
        self._server = Server(self._handle, port=self.port, tls=self._ssl)
        await self._server.start()
        self.port = self._server.port

    async def stop(self) -> None:
        """Close all connections and stop listening; ``start`` listens on the same port again.

        Registrations of clients are forgotten.
        """
        for task in list(self._parked):
            task.cancel()
        await asyncio.gather(*self._parked, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(grace_s=0.0)
        self.members.clear()
        self.producers.clear()

    @property
    def connections(self) -> int:
        """Number of clients that are connected now."""
        return len(self._server.connections) if self._server is not None else 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def address(self) -> str:
        """Address ``host:port`` of broker and name server, once it is started."""
        return f"127.0.0.1:{self.port}"

    # --- what tests say and ask -------------------------------------------------------------------

    def script(self, code: int, *answers: Script) -> None:
        """Set the next answers to *code*, in order."""
        self._scripts[code].extend(answers)

    def on(self, code: int, answer: Script) -> None:
        """Set the answer to requests with *code* for which no script is left."""
        self._always[code] = answer

    def hold(self, code: int) -> None:
        """Leave requests with *code* waiting until ``release``."""
        self._held[code] = []

    def release(self, code: int) -> None:
        """Answer the held requests in order, and hold no more of them."""
        for connection, request in self._held.pop(code):
            self._answer(connection, request)

    def of(self, code: int) -> list[RemotingCommand]:
        """Return the requests with *code* so far."""
        return [request for request in self.requests if request.code == code]

    def times(self, code: int) -> list[float]:
        """Return the times of the requests with *code*, by the loop's clock."""
        return [
            at
            for at, request in zip(self._times, self.requests, strict=True)
            if request.code == code
        ]

    async def received(self, code: int, count: int = 1) -> list[RemotingCommand]:
        """Wait until *count* requests with *code* have arrived, and return all so far.

        Raises TimeoutError after a minute.
        """
        await self.until(lambda: len(self.of(code)) >= count)
        return self.of(code)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until *condition* is true; it is checked after each request.

        Raises TimeoutError after a minute.
        """
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def put(
        self,
        topic: str,
        body: bytes,
        *,
        queue_id: int = 0,
        properties: bytes = b"",
        sys_flag: int = 0,
    ) -> StoredMessage:
        """Store a message as if it had been sent."""
        rows = self.stored[topic, queue_id]
        message = StoredMessage(
            topic,
            body,
            properties,
            queue_id,
            queue_offset=len(rows),
            commitlog_offset=self._commitlog_offset,
            sys_flag=sys_flag,
            born_timestamp_ms=1_700_000_000_000,
            born_host=encode_host("127.0.0.1", 50_000),
            store_timestamp_ms=1_700_000_000_000 + self._commitlog_offset,
            store_host=encode_host("127.0.0.1", self.port),
        )
        self._commitlog_offset += len(encode_stored(message))
        rows.append(message)
        self._arrived.set()
        self._arrived = asyncio.Event()
        return message

    def bodies(self, topic: str) -> dict[int, list[bytes]]:
        """Return the bodies in each queue of the topic."""
        return {
            queue_id: [m.body for m in rows]
            for (name, queue_id), rows in sorted(self.stored.items())
            if name == topic and rows
        }

    def notify(self, group: str) -> None:
        """Tell every member that the group changed (code 40)."""
        for connection in self.members[group].values():
            connection.send_nowait(
                RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})
            )

    async def ask(self, group: str, client_id: str, command: RemotingCommand) -> RemotingCommand:
        """Send a request to a client, as a broker does, and return its answer."""
        return await self.members[group][client_id].call(command, WAIT_S)

    # --- requests ---------------------------------------------------------------------------------

    def _handle(self, connection: Connection, request: RemotingCommand) -> None:
        self.requests.append(request)
        self._times.append(asyncio.get_running_loop().time())
        self._changed.set()
        if self.mute:
            return
        if request.code in self._held:
            self._held[request.code].append((connection, request))
        else:
            self._answer(connection, request)

    def _answer(self, connection: Connection, request: RemotingCommand) -> None:
        scripted = self._scripts[request.code]
        answer: Script = scripted.popleft() if scripted else self._always.get(request.code)
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, After):
            self._later(self._answer_after(connection, request, answer))
        else:
            self._give(connection, request, answer)

    async def _answer_after(
        self, connection: Connection, request: RemotingCommand, after: After
    ) -> None:
        await asyncio.sleep(after.seconds)
        self._give(connection, request, after.answer)

    def _give(
        self,
        connection: Connection,
        request: RemotingCommand,
        answer: RemotingCommand | Silent | HangUp | Raw | None,
    ) -> None:
        if isinstance(answer, HangUp):
            connection.close()
        elif isinstance(answer, Raw):
            connection.write(answer.data)
        elif isinstance(answer, RemotingCommand):
            self._reply(connection, request, answer)
        elif answer is None:
            usual = self._defaults.get(request.code)
            reply = (
                usual(connection, request)
                if usual
                else error(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not faked")
            )
            if reply is not None:
                self._reply(connection, request, reply)

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._parked.add(task)
        task.add_done_callback(self._parked.discard)

    def _reply(
        self, connection: Connection, request: RemotingCommand, answer: RemotingCommand
    ) -> None:
        if not request.is_oneway and not connection.closed:
            command = RemotingCommand(
                answer.code,
                answer.ext_fields,
                answer.body,
                request.opaque,
                Flag.RESPONSE,
                answer.remark,
                version=answer.version,
            )
            connection.reply(command)

    def _route(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        topic = request.ext_fields["topic"]
        brokers = [broker for broker in (self, *self.peers) if topic in broker.topics]
        if not brokers:
            return error(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic}",
            )
        route = TopicRouteData(
            queues=tuple(
                QueueData(
                    broker_name=b.name,
                    read_queues=b.topics[topic],
                    write_queues=b.topics[topic],
                    perm=6,
                )
                for b in brokers
            ),
            brokers=tuple(
                BrokerData(cluster="DefaultCluster", broker_name=b.name, addresses={0: b.address})
                for b in brokers
            ),
        )
        return ok(body=dumps(route.to_json()))

    def _cluster(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        brokers = {
            b.name: BrokerData(
                cluster="DefaultCluster", broker_name=b.name, addresses={0: b.address}
            )
            for b in (self, *self.peers)
        }
        return ok(
            body=ClusterInfo(brokers=brokers, clusters={"DefaultCluster": tuple(brokers)}).encode()
        )

    def _create_topic(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        header = decode_header(CreateTopicRequest, request.ext_fields)
        self.topics[header.topic] = header.write_queue_nums
        return ok()

    def _topic_config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        topic = request.ext_fields["topic"]
        if topic not in self.topics:
            return error(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
        return ok(
            body=dumps(
                TopicConfig(
                    name=topic, read_queues=self.topics[topic], write_queues=self.topics[topic]
                ).to_json()
            )
        )

    def _send(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        header = decode_header(SendMessageRequestV2, request.ext_fields)
        self.topics.setdefault(header.topic, header.default_topic_queue_nums)
        properties = (header.properties or "").encode()
        if request.code == RequestCode.SEND_BATCH_MESSAGE:
            items = [(item.body, item.properties) for item in decode_batch(request.body)]
        else:
            items = [(request.body, properties)]
        stored = [
            self.put(
                header.topic,
                body,
                queue_id=header.queue_id,
                properties=props,
                sys_flag=header.sys_flag,
            )
            for body, props in items
        ]
        ids = ",".join(offset_message_id(m.store_host, m.commitlog_offset) for m in stored)
        place = SendMessageResponse(
            msg_id=ids,
            queue_id=header.queue_id,
            queue_offset=stored[0].queue_offset,
            region="DefaultRegion",
            trace_on="true",
        )
        return ok(place)

    def _pull(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        header = decode_header(PullMessageRequest, request.ext_fields)
        rows = self.stored[header.topic, header.queue_id]
        if header.sys_flag & PullSysFlag.COMMIT_OFFSET:
            self.offsets[header.consumer_group, header.topic, header.queue_id] = (
                header.commit_offset
            )
        if header.queue_offset >= len(rows) and header.sys_flag & PullSysFlag.SUSPEND:
            self._later(self._park(connection, request, header))
            return None
        return self._found(header)

    def _found(self, header: PullMessageRequest) -> RemotingCommand:
        rows = self.stored[header.topic, header.queue_id]
        found = rows[header.queue_offset : header.queue_offset + header.max_msg_nums]
        code = ResponseCode.SUCCESS if found else ResponseCode.PULL_NOT_FOUND
        answer = PullMessageResponse(
            next_begin_offset=header.queue_offset + len(found), min_offset=0, max_offset=len(rows)
        )
        return RemotingCommand(
            code, encode_header(answer), b"".join(encode_stored(m) for m in found)
        )

    async def _park(
        self, connection: Connection, request: RemotingCommand, header: PullMessageRequest
    ) -> None:
        try:
            async with asyncio.timeout(header.suspend_timeout_ms / 1000):
                while header.queue_offset >= len(self.stored[header.topic, header.queue_id]):
                    await self._arrived.wait()
        except TimeoutError:
            pass
        self._reply(connection, request, self._found(header))

    def _pop(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        wait_s = self.pops.wait_s(request)
        answer = self.pops.answer(request, last=not wait_s)
        if answer is None:
            self._later(self._park_pop(connection, request, wait_s))
        return answer

    async def _park_pop(
        self, connection: Connection, request: RemotingCommand, wait_s: float
    ) -> None:
        """Look again when a message comes, and now and then, because leases end."""
        ends = asyncio.get_running_loop().time() + wait_s
        answer = None
        while answer is None and not connection.closed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._arrived.wait()
            is_last = asyncio.get_running_loop().time() >= ends
            answer = self.pops.answer(request, last=is_last)
        if answer is not None:
            self._reply(connection, request, answer)

    def _heartbeat(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        data = HeartbeatData.decode(request.body)
        for consumer in data.consumers:
            self.members[consumer.group][data.client_id] = connection
        self.producers.update(dict.fromkeys(data.producers, connection))
        return ok()

    def _unregister(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        header = decode_header(UnregisterClientRequest, request.ext_fields)
        self.members.get(header.consumer_group or "", {}).pop(header.client_id, None)
        return ok()

    def _consumer_list(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        group = request.ext_fields["consumerGroup"]
        members = self.members.get(group)
        if not members:
            return error(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return ok(body=consumer_ids_dumps(sorted(members)))

    def _query_offset(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        header = decode_header(QueryConsumerOffsetRequest, request.ext_fields)
        offset = self.offsets.get((header.consumer_group, header.topic, header.queue_id))
        if offset is None:
            return error(
                ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first"
            )
        return ok(OffsetResponse(offset=offset))

    def _update_offset(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        header = decode_header(UpdateConsumerOffsetRequest, request.ext_fields)
        self.offsets[header.consumer_group, header.topic, header.queue_id] = header.commit_offset
        return ok()

    def _search_offset(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        header = decode_header(SearchOffsetRequest, request.ext_fields)
        rows = self.stored[header.topic, header.queue_id]
        return ok(OffsetResponse(offset=sum(m.store_timestamp_ms < header.timestamp for m in rows)))

    def _max_offset(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        queue = MessageQueue(
            request.ext_fields["topic"], self.name, int(request.ext_fields["queueId"])
        )
        return ok(OffsetResponse(offset=len(self.stored[queue.topic, queue.queue_id])))
