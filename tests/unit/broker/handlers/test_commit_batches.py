"""Batches that come with one read are answered, stored and counted as one by one."""

import asyncio
from pathlib import Path

import pytest

from ogive.errors import ResponseCode, StoreFailed, StoreFull
from ogive.store.types import Messages, PutDone
from ogive.transport.server import ServerConnection
from ogive.wire.bodies.configs import TopicConfig
from ogive.wire.codes import SysFlag
from ogive.wire.command import RemotingCommand, encode_command
from tests.unit.broker.conftest import StartBroker
from tests.unit.broker.handlers.reads import Reads, batch, outcome, prepare, send


def cut(command: RemotingCommand) -> RemotingCommand:
    command.body = command.body[:-1]
    return command


LIMIT = 2000
LONG = tuple(b"%d" % number * 100 for number in range(6))
READS: dict[str, list[RemotingCommand]] = {
    "all plain": [batch(bodies=(b"%d" % n, b"", b"x" * n)) for n in range(5)],
    "topics and queues": [
        batch("T", 1),
        batch("Another", 2),
        batch("T", 3, LONG),
        batch("T", 1, (b"",)),
        batch("Another"),
    ],
    "without a key of its own": [batch(UNIQ_KEY=""), batch(), batch(UNIQ_KEY="", WAIT="true")],
    "tags, keys and flags": [
        batch(items="TAGS\1a\2KEYS\1b c\2"),
        batch(f=int(SysFlag.COMPRESSED)),
        batch(j=2, items="TAGS\1b"),
    ],
    "single sends between": [batch(), send(), send(), batch(), batch(), send()],
    "no such queue in the middle": [batch(), batch(queue=4), batch(), batch()],
    "too large in the middle": [batch(), batch(bodies=LONG * 4), batch(), batch()],
    "cut off in the middle": [batch(), cut(batch()), batch(), batch()],
    "empty": [batch(), batch(bodies=()), batch(), batch()],
    "one of its messages delayed": [batch(), batch(items="DELAY\x013\2"), batch(), batch()],
    "one of its messages with a time": [
        batch(),
        batch(items="TIMER_DELAY_SEC\x013\2"),
        batch(),
        batch(),
    ],
    "delayed itself": [batch(), batch(DELAY="3"), batch(), batch()],
    "half a transaction": [batch(), batch(TRAN_MSG="true", f=4), batch(), batch()],
    "a topic of batches": [batch(), batch("Whole"), batch(), batch()],
    "for a retry topic": [batch(), batch("%RETRY%T"), batch(), batch()],
    "a new topic": [batch(), batch("New", c="TBW102"), *[batch()] * 4],
    "one-way": [batch(), batch(flag=2), batch(), batch()],
    "a batch by the code of a single one": [
        batch(),
        send(body=batch().body, m="true"),
        batch(),
        batch(),
    ],
    "a key that is not plain text": [batch(), batch(UNIQ_KEY='a"b'), batch(), batch()],
    "a tag that is not ASCII": [batch(items="TAGS\1ü"), batch()],
}


@pytest.mark.parametrize("name", READS)
async def test_a_read_ends_as_its_batches_would_one_by_one(
    start_broker: StartBroker, tmp_path: Path, name: str
) -> None:
    found = []
    for together in (True, False):
        broker = await prepare(
            await start_broker(data=tmp_path / str(together), max_message_bytes=LIMIT)
        )
        broker.context.topics.create_or_update(
            TopicConfig(name="Whole", attributes={"queue.type": "BatchCQ"})
        )
        await broker.context.topics.saved()
        reads = Reads(broker, together=together)
        found.append(await outcome(broker, reads, READS[name]))
    assert found[0] == found[1]


async def test_batches_go_on_in_the_next_segment_each_in_one(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    found = []
    for together in (True, False):
        broker = await prepare(
            await start_broker(data=tmp_path / str(together), segment_bytes=8192)
        )
        reads = Reads(broker, together=together)
        found.append(
            await outcome(
                broker,
                reads,
                [batch(queue=n % 3, bodies=(b"%d" % n * 300,) * 3) for n in range(20)],
            )
        )
    assert found[0] == found[1]
    assert len(found[0]["records"]) == 60


async def test_a_batch_that_no_segment_holds_is_refused_and_the_others_are_stored(
    start_broker: StartBroker,
) -> None:
    broker = await prepare(await start_broker(segment_bytes=4096))
    reads = Reads(broker)
    answers = await reads.answers([batch(), batch(bodies=(bytes(3000),) * 2), batch()])
    assert {answer.opaque: answer.code for answer in answers} == {
        0: 0,
        1: ResponseCode.INVALID_PARAMETER,
        2: 0,
    }
    assert (broker.context.sends_waiting, reads.connection._requests_in_flight) == (0, 0)
    assert broker.context.store.max_offset("T", 0) == 4


async def test_over_the_limit_of_waiting_sends_further_batches_are_busy(
    start_broker: StartBroker,
) -> None:
    broker = await prepare(await start_broker(max_sends_waiting=3))
    reads = Reads(broker)
    codes = {
        answer.opaque: answer.code for answer in await reads.answers([batch() for _ in range(6)])
    }
    assert codes == dict.fromkeys(range(3), ResponseCode.SUCCESS) | dict.fromkeys(
        range(3, 6), ResponseCode.SYSTEM_BUSY
    )
    assert broker.context.sends_waiting == 0


async def test_a_store_that_takes_nothing_refuses_each_batch(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await prepare(await start_broker())

    def refuse(*_: object) -> None:
        raise StoreFull("no room")

    reads = Reads(broker)
    monkeypatch.setattr(broker.context.store, "_check_accepts", refuse)
    answers = await reads.answers([batch() for _ in range(3)])
    assert [(answer.opaque, answer.code) for answer in answers] == [
        (n, ResponseCode.SERVICE_NOT_AVAILABLE) for n in range(3)
    ]
    assert (broker.context.sends_waiting, reads.connection._requests_in_flight) == (0, 0)
    monkeypatch.undo()
    assert [answer.code for answer in await reads.answers([batch(), batch()])] == [0, 0]


async def test_a_run_ends_with_its_connection(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await prepare(await start_broker())
    asked: list[None] = []

    def refuse(*_: object) -> None:
        asked.append(None)
        raise StoreFull("no room")

    reads = Reads(broker)
    monkeypatch.setattr(broker.context.store, "_check_accepts", refuse)
    monkeypatch.setattr(
        ServerConnection, "write", lambda connection, _: connection.abort("it does not read")
    )
    reads.connection.data_received(b"".join(map(encode_command, [batch(), batch(), batch()])))
    assert (len(asked), reads.connection.closed, broker.context.sends_waiting) == (1, True, 0)


async def test_where_nothing_could_be_written_each_batch_is_told(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await prepare(await start_broker())
    waiting: list[PutDone] = []
    append = broker.context.store._appender.append

    def keep(messages: Messages, done: PutDone) -> int:
        waiting.append(done)
        return append(messages, lambda _: None)

    monkeypatch.setattr(broker.context.store._appender, "append", keep)
    reads = Reads(broker)
    async with asyncio.TaskGroup() as tasks:
        failing = tasks.create_task(reads.answers([batch() for _ in range(3)]))
        while not waiting:
            await asyncio.sleep(0)
        # batches of one read are one step of the store
        assert len(waiting) == 1
        assert broker.context.sends_waiting == 3
        for done in waiting:
            done(StoreFailed("the disk is gone"))
    assert [(answer.opaque, answer.code) for answer in failing.result()] == [
        (n, ResponseCode.SERVICE_NOT_AVAILABLE) for n in range(3)
    ]
    assert (
        broker.context.sends_waiting,
        broker.context.traffic.failed,
        reads.connection._requests_in_flight,
    ) == (0, 3, 0)
