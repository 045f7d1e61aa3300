"""What one read of a connection brings to a broker, and what comes of it."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ogive.broker import Broker
from ogive.model import PropertyName
from ogive.transport.connection import one_frame
from ogive.transport.server import ServerConnection
from ogive.wire.bodies.configs import TopicConfig
from ogive.wire.codes import Flag, LanguageCode, RequestCode, SerializeType
from ogive.wire.command import FrameDecoder, RemotingCommand, decode_command, encode_command
from ogive.wire.message import (
    StoredMessage,
    decode_stored,
    encode_batch,
    encode_properties,
    raw_property,
)
from tests.raw_client import RawClient
from tests.unit.transport.wire import ReadableWire


class Socket(ReadableWire):
    """Closed, or aborted, it is lost with the loop's next turn."""

    connection: ServerConnection

    def close(self) -> None:
        asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    abort = close


class Reads:
    """A connection of the broker's, to which the test brings what a read would."""

    def __init__(self, broker: Broker, *, together: bool = True) -> None:
        """*together*: False if the broker reads the requests one by one."""
        self._wire, self._decoder = Socket(), FrameDecoder()
        if not together:
            broker._server.on_frames = one_frame
        self.connection = self._wire.connection = ServerConnection(broker._server)
        self.connection.connection_made(self._wire)

    async def answers(self, commands: list[RemotingCommand]) -> list[RemotingCommand]:
        """To requests of one read, in the order in which they come."""
        commands = [replace(command, opaque=opaque) for opaque, command in enumerate(commands)]
        expected, found = (
            sum(not command.flag & Flag.ONEWAY for command in commands),
            list[RemotingCommand](),
        )
        self.connection.data_received(b"".join(map(encode_command, commands)))
        async with asyncio.timeout(60):
            while len(found) < expected:
                # not 0: the thread that writes the log needs Python meanwhile
                await asyncio.sleep(0.001)
                written, self._wire.written[:] = b"".join(self._wire.written), []
                found += map(decode_command, self._decoder.feed(written)[0])
        return found


def send(
    topic: str = "T",
    queue: int = 0,
    body: bytes = b"body",
    code: int = 310,
    flag: int = 0,
    **changed: Any,
) -> RemotingCommand:
    """*changed*: properties, or fields of the header by their letters."""
    own = {"UNIQ_KEY": "7F00000100002A139A55AB9C3C3C0000"} | {
        name: value for name, value in changed.items() if len(name) > 1
    }
    fields = RawClient.send_fields(
        topic,
        queue,
        encode_properties({name: value for name, value in own.items() if value}).decode(),
    )
    fields |= {"k": "false", "m": "false"} | {
        name: value for name, value in changed.items() if len(name) == 1
    }
    return RemotingCommand(
        code,
        {name: str(value) for name, value in fields.items()},
        body,
        flag=flag,
        language=LanguageCode.JAVA,
        serialize_type=SerializeType.ROCKETMQ,
    )


def batch(
    topic: str = "T",
    queue: int = 0,
    bodies: tuple[bytes, ...] = (b"1", b"2"),
    flag: int = 0,
    **changed: Any,
) -> RemotingCommand:
    """*changed*: items, the properties of its messages; properties of its own, or fields of the
    header by their letters.
    """
    items = changed.pop("items", "UNIQ_KEY\x01A\x02WAIT\x01true\x02").encode()
    body = encode_batch([(number, body, items) for number, body in enumerate(bodies)])
    return send(
        topic,
        queue,
        body,
        code=RequestCode.SEND_BATCH_MESSAGE,
        flag=flag,
        **{"m": "true"} | changed,
    )


async def prepare(broker: Broker) -> Broker:
    """It has topics, and they are saved."""
    for config in (
        TopicConfig(name="T"),
        TopicConfig(name="Another"),
        TopicConfig(name="Typed", attributes={"message.type": "NORMAL"}),
    ):
        broker.context.topics.create_or_update(config)
    await broker.context.topics.saved()
    for topic in list(broker.context.topics.pending):
        assert broker.context.topics.is_saved(topic)
    return broker


def records(broker: Broker) -> Iterator[StoredMessage]:
    """All that the log holds, without what depends on the time and on the broker's port."""
    store, at = broker.context.store, 0
    while at < store.stats().commitlog_end:
        record = store.record_at(at)
        # the end of a segment
        if record is None:
            at += store.segment_bytes - at % store.segment_bytes
            continue
        stored = decode_stored(record)
        crc = raw_property(stored.properties, PropertyName.RECORD_CRC.encode())
        assert crc is not None
        timeless = stored.properties.replace(crc, b"") if "_" not in stored.topic else b""
        yield replace(stored, properties=timeless, store_timestamp_ms=0, store_host=b"")
        at += len(record)


def shown(answer: RemotingCommand) -> Any:
    fields = dict(answer.ext_fields)
    if "msgId" in fields:
        # before it is the broker's port
        fields["msgId"] = fields["msgId"][-16:]
    # it tells the time
    fields.pop("recallHandle", None)
    return answer.opaque, answer.code, answer.flag, answer.remark, fields


async def outcome(broker: Broker, reads: Reads, commands: list[RemotingCommand]) -> Any:
    answers = await reads.answers(commands)
    ctx = broker.context
    await ctx.synced()
    traffic = ctx.traffic
    return {
        # one of a new topic waits for its file
        "answers": sorted([shown(answer) for answer in answers], key=lambda answer: answer[0]),
        "records": list(records(broker)),
        "queues": {key: ctx.store.max_offset(*key) for key in sorted(ctx.store.queues)},
        "puts": {
            topic: {second: tally.counts() for second, tally in table.items()}
            for topic, table in traffic.puts._tables.items()
        },
        "sizes": (dict(traffic.sizes()), traffic.failed, sum(traffic.put_times.table().values())),
        "waiting": (
            ctx.sends_waiting,
            reads.connection._requests_in_flight,
            reads.connection.received_frames,
        ),
    }
