"""Sends that come with one read: as a run they are answered, stored and counted as one by one."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ogive.access.table import AccessTable
from ogive.broker import Broker
from ogive.broker.handlers import send_run
from ogive.errors import OgiveError, ResponseCode, StoreBusy, StoreFailed, StoreFull
from ogive.model import PropertyName
from ogive.native import native
from ogive.store.model import PutDone
from ogive.transport.server import ServerConnection
from ogive.wire.bodies import TopicConfig
from ogive.wire.codes import Flag, LanguageCode, RequestCode, SerializeType, SysFlag
from ogive.wire.command import RemotingCommand, decode_command, encode_command
from ogive.wire.frame import FrameDecoder
from ogive.wire.message import StoredMessage, decode_stored, encode_properties, raw_property
from tests.raw_client import RawClient
from tests.unit.broker.conftest import StartBroker
from tests.unit.transport.wire import Wire

compiled_only = pytest.mark.skipif(native is None, reason="without the compiled part there are no runs")


class Socket(Wire):
    """Notes what is written, and whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.connection: ServerConnection | None = None
        self.is_read = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def close(self) -> None:
        assert self.connection is not None
        asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    abort = close


class Reads:
    """A connection of the broker's, to which the test brings what a read would."""

    def __init__(self, broker: Broker, *, runs: bool = True) -> None:
        self._broker, self._wire, self._decoder = broker, Socket(), FrameDecoder()
        self.taken: list[int] = []
        broker._server.take_run = self._take_run if runs else None
        self.connection = self._wire.connection = ServerConnection(broker._server)
        self.connection.connection_made(self._wire)

    def _take_run(self, connection: Any, frames: list[bytes], at: int) -> int:
        self.taken.append(self._broker._take_run(connection, frames, at))
        return self.taken[-1]

    async def answers(self, commands: list[RemotingCommand]) -> list[RemotingCommand]:
        """To requests of one read, in the order in which they come."""
        commands = [replace(command, opaque=opaque) for opaque, command in enumerate(commands)]
        expected, found = sum(not command.flag & Flag.ONEWAY for command in commands), list[RemotingCommand]()
        self.connection.data_received(b"".join(map(encode_command, commands)))
        async with asyncio.timeout(60):
            while len(found) < expected:
                await asyncio.sleep(0)
                written, self._wire.written[:] = b"".join(self._wire.written), []
                found += map(decode_command, self._decoder.feed(written)[0])
        return found


def send(topic: str = "T", queue: int = 0, body: bytes = b"body", code: int = 310, flag: int = 0, **changed: Any) -> RemotingCommand:
    """*changed*: properties, or fields of the header by their letters."""
    own = {"UNIQ_KEY": "7F00000100002A139A55AB9C3C3C0000"} | {name: value for name, value in changed.items() if len(name) > 1}
    fields = RawClient.send_fields(topic, queue, encode_properties({name: value for name, value in own.items() if value}).decode())
    fields |= {"k": "false", "m": "false"} | {name: value for name, value in changed.items() if len(name) == 1}
    return RemotingCommand(
        code,
        {name: str(value) for name, value in fields.items()},
        body,
        flag=flag,
        language=LanguageCode.JAVA,
        serialize_type=SerializeType.ROCKETMQ,
    )


async def prepare(broker: Broker) -> Broker:
    """It has topics, and they are saved."""
    for config in (TopicConfig(name="T"), TopicConfig(name="Another"), TopicConfig(name="Typed", attributes={"message.type": "NORMAL"})):
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
        if record is None:  # the end of a segment
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
        fields["msgId"] = fields["msgId"][-16:]  # before it is the broker's port
    fields.pop("recallHandle", None)  # it tells the time
    return answer.opaque, answer.code, answer.flag, answer.remark, fields


async def outcome(broker: Broker, reads: Reads, commands: list[RemotingCommand]) -> Any:
    answers = await reads.answers(commands)
    ctx = broker.context
    await ctx.synced()
    traffic = ctx.traffic
    return {
        "answers": sorted([shown(answer) for answer in answers], key=lambda answer: answer[0]),  # one of a new topic waits for its file
        "records": list(records(broker)),
        "queues": {key: ctx.store.max_offset(*key) for key in sorted(ctx.store.queues)},
        "puts": {topic: {second: tally.counts() for second, tally in table.items()} for topic, table in traffic.puts._tables.items()},
        "sizes": (traffic._sizes, traffic._sent_bytes, traffic.failed, sum(traffic.put_times.table().values())),
        "waiting": (ctx.sends_waiting, reads.connection._requests_in_flight, reads.connection.received_frames),
    }


LIMIT = 2000
READS: dict[str, tuple[list[RemotingCommand], list[int]]] = {
    "all plain": ([send(body=b"%d" % n) for n in range(5)], [5]),
    "two": ([send(), send()], [2]),
    "topics and queues": ([send("T", 1), send("Another", 2), send("T", 3), send("T", 1, b""), send("Another", 0, b"2" * 300)], [5]),
    "tags, keys and flags": ([send(TAGS="a", KEYS="b c", h=-7, j=2), send(f=int(SysFlag.COMPRESSED)), send(TAGS="ü" * 9, own="ü")], [2]),
    "no such queue in the middle": ([send(body=b"1"), send(body=b"2"), send(queue=4), send(body=b"3"), send(body=b"4")], [2, 0, 2]),
    "too large in the middle": ([send(), send(body=bytes(LIMIT)), send(body=bytes(LIMIT + 1)), send(), send()], [2, 0, 2]),
    "a topic without a legal name": ([send(), send("a b"), send(), send()], [1, 0, 2]),
    "a new topic in the middle": ([send(), send(), send("New", c="TBW102"), send("New", 1), *[send()] * 4], [2, 0, 0, 3]),
    "a typed topic": ([send(), send("Typed"), send(), send()], [1, 0, 2]),
    "one of the broker's own topics": ([send(), send("RMQ_SYS_TRANS_HALF_TOPIC"), send(), send()], [1, 0, 2]),
    "one-way": ([send(body=b"1"), send(body=b"2", flag=2), send(body=b"3"), send(body=b"4")], [1, 0, 2]),
    "a delayed one": ([send(), send(DELAY="3"), send(), send()], [1, 0, 2]),
    "a timed one": ([send(), send(TIMER_DELAY_SEC="60"), send(), send()], [1, 0, 2]),
    "half a transaction": ([send(), send(TRAN_MSG="true", PGROUP="g", f=4), send(), send()], [1, 1, 2]),
    "for a retry topic": ([send(), send("%RETRY%T", j=1), send(), send()], [1, 0, 2]),
    "has been through a broker": ([send(), send(CLUSTER="Old"), send(), send()], [1, 0, 2]),
    "keys that are no plain text": ([send(), send(UNIQ_KEY='a"b'), send(UNIQ_KEY="ü"), send(), send(), send()], [1, 0, 0, 2]),
    "headers in JSON": (
        [replace(send(own="ü\\", body=b"%d" % n), serialize_type=codec) for n in range(3) for codec in SerializeType],
        [6],
    ),
    "numbers that are none": ([send(), send(e="x"), send(), send()], [1, 0, 2]),
    "flags that no client sets": ([send(), send(f=8), send(), send()], [1, 0, 2]),
    "the long names": (
        [send(), RemotingCommand(10, {"topic": "T", "queueId": "1", "bornTimestamp": "5", "properties": "UNIQ_KEY\1A"}), send(), send()],
        [1, 0, 2],
    ),
    "another request": ([send(), RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO), send(), send()], [1, 0, 2]),
    "a tag that is not ASCII, again and again": ([send(), *[send(TAGS="ü") for _ in range(9)]], [1, 0, 0, 0, 0]),
}  # fmt: skip


@compiled_only
@pytest.mark.parametrize("name", READS)
async def test_a_read_ends_as_its_requests_would_one_by_one(start_broker: StartBroker, tmp_path: Path, name: str) -> None:
    commands, taken = READS[name]
    found = []
    for runs in (True, False):
        broker = await prepare(await start_broker(data=tmp_path / str(runs), max_message_bytes=LIMIT))
        reads = Reads(broker, runs=runs)
        found.append(await outcome(broker, reads, commands))
        assert reads.taken == (taken if runs else [])
    assert found[0] == found[1]


@compiled_only
async def test_a_run_goes_on_in_the_next_segment(start_broker: StartBroker, tmp_path: Path) -> None:
    found = []
    for runs in (True, False):
        broker = await prepare(await start_broker(data=tmp_path / str(runs), segment_bytes=8192))
        reads = Reads(broker, runs=runs)
        found.append(await outcome(broker, reads, [send(queue=n % 3, body=b"%d" % n * 300) for n in range(60)]))
        assert not runs or (sum(reads.taken) < 60 and max(reads.taken) > 5)
    assert found[0] == found[1]
    assert len(found[0]["records"]) == 60


@compiled_only
async def test_answers_come_in_the_order_of_the_requests(start_broker: StartBroker) -> None:
    reads = Reads(await prepare(await start_broker()))
    answers = await reads.answers([send(queue=n % 4) for n in range(100)])
    assert [answer.opaque for answer in answers] == list(range(100))
    assert [answer.ext_fields["queueOffset"] for answer in answers] == [str(n // 4) for n in range(100)]
    assert reads.taken == [100]


@compiled_only
async def test_over_the_limit_of_waiting_sends_the_rest_is_busy(start_broker: StartBroker) -> None:
    broker = await prepare(await start_broker(max_sends_waiting=3))
    reads = Reads(broker)
    codes = {answer.opaque: answer.code for answer in await reads.answers([send() for _ in range(6)])}
    assert codes == dict.fromkeys(range(3), ResponseCode.SUCCESS) | dict.fromkeys(range(3, 6), ResponseCode.SYSTEM_BUSY)
    assert reads.taken[0] == 3
    assert broker.context.sends_waiting == 0


@compiled_only
@pytest.mark.parametrize(
    ("error", "code"),
    [(StoreBusy("much waits"), ResponseCode.SYSTEM_BUSY), (StoreFull("no room"), ResponseCode.SERVICE_NOT_AVAILABLE)],
)
async def test_a_store_that_takes_nothing_refuses_each(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch, error: OgiveError, code: ResponseCode
) -> None:
    broker = await prepare(await start_broker())

    def refuse(*_: object) -> None:
        raise error

    reads = Reads(broker)
    monkeypatch.setattr(broker.context.store, "_check_accepts", refuse)
    answers = await reads.answers([send() for _ in range(4)])
    assert [(answer.opaque, answer.code) for answer in answers] == [(n, code) for n in range(4)]
    assert all(str(error) in (answer.remark or "") for answer in answers)
    assert (reads.taken, broker.context.sends_waiting, reads.connection._requests_in_flight) == ([4], 0, 0)
    monkeypatch.undo()
    assert [answer.code for answer in await reads.answers([send(), send()])] == [0, 0]


@compiled_only
async def test_where_nothing_could_be_written_each_is_told(start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await prepare(await start_broker())
    waiting: list[PutDone] = []
    append = broker.context.store._appender.append_run
    monkeypatch.setattr(
        broker.context.store._appender,
        "append_run",
        lambda messages, places, done: append(messages, places, lambda _: waiting.append(done)),
    )
    reads = Reads(broker)
    async with asyncio.TaskGroup() as tasks:
        failing = tasks.create_task(reads.answers([send() for _ in range(4)]))
        while not waiting:
            await asyncio.sleep(0)
        assert broker.context.sends_waiting == 4
        waiting[0](StoreFailed("the disk is gone"))
    answers = failing.result()
    assert [(answer.opaque, answer.code) for answer in answers] == [(n, ResponseCode.SERVICE_NOT_AVAILABLE) for n in range(4)]
    assert (broker.context.sends_waiting, broker.context.traffic.failed, reads.connection._requests_in_flight) == (0, 4, 0)


async def test_a_template_that_is_not_usual_is_filled_in_by_python(start_broker: StartBroker) -> None:
    broker = await prepare(await start_broker(region="é" * 15_500))
    answers = await Reads(broker).answers([send(), send(queue=1)])
    assert [(answer.opaque, answer.ext_fields["queueId"], answer.ext_fields["MSG_REGION"]) for answer in answers] == [
        (0, "0", "é" * 15_500),
        (1, "1", "é" * 15_500),
    ]


async def test_what_still_comes_from_a_connection_that_was_closed_here_is_no_run(start_broker: StartBroker) -> None:
    reads = Reads(await start_broker())
    reads.connection.close()
    reads.connection.data_received(encode_command(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)) * 2)
    assert not any(reads.taken)


async def test_no_run_passes_access_control_by(start_broker: StartBroker) -> None:
    broker = await start_broker(access=AccessTable(None))
    reads = Reads(broker)
    answers = await reads.answers([send(), send()])
    assert [answer.code for answer in answers] == [ResponseCode.NO_PERMISSION] * 2
    assert not any(reads.taken)


async def test_no_run_passes_the_window_of_duplicates_by(start_broker: StartBroker) -> None:
    broker = await prepare(await start_broker(duplicate_window_s=60.0))
    reads = Reads(broker)
    answers = await reads.answers([send(), send(), send()])
    assert [answer.ext_fields["queueOffset"] for answer in answers] == ["0"] * 3
    assert not any(reads.taken)


async def test_without_the_compiled_part_there_are_no_runs(start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_run, "native", None)
    reads = Reads(await prepare(await start_broker()))
    assert [answer.code for answer in await reads.answers([send(), send()])] == [0, 0]
    assert not any(reads.taken)
