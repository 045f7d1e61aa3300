"""Half messages and ends that come with one read are answered, stored and counted as one by one."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ogive.access import guard
from ogive.broker import Broker
from ogive.errors import OgiveError, ResponseCode, StoreBusy, StoreError, StoreFailed
from ogive.model import OP_HALF_TOPIC
from ogive.store.types import PutDone
from ogive.transport.connection import Connection
from ogive.wire.codes import Decision, Flag, LanguageCode, SerializeType
from ogive.wire.command import RemotingCommand
from tests.unit.broker.conftest import StartBroker
from tests.unit.broker.handlers.reads import Reads, outcome, prepare, send
from tests.unit.broker.handlers.test_commit import ROOT, Writes, signed, users

LIMIT = 2000
COMMIT, ROLLBACK, ONEWAY = int(Decision.COMMIT), int(Decision.ROLLBACK), int(Flag.ONEWAY)
Opened = list[RemotingCommand]


def half(key: str = "K", queue: int = 1, body: bytes = b"body", **changed: Any) -> RemotingCommand:
    own: dict[str, Any] = {"UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": "shop", "f": 4, "g": 5}
    return send(queue=queue, body=body, **(own | changed))


def end(
    opened: RemotingCommand, decision: int = COMMIT, flag: int = 0, **changed: Any
) -> RemotingCommand:
    """Of the half message that was answered so."""
    fields = {
        "producerGroup": "shop",
        "tranStateTableOffset": opened.ext_fields["queueOffset"],
        "commitLogOffset": int(opened.ext_fields["msgId"][-16:], 16),
        "commitOrRollback": decision,
        "fromTransactionCheck": "false",
    }
    told = {name: str(value) for name, value in (fields | changed).items() if value is not None}
    return RemotingCommand(
        37, told, flag=flag, language=LanguageCode.JAVA, serialize_type=SerializeType.ROCKETMQ
    )


READS: dict[str, Callable[[Opened], list[RemotingCommand]]] = {
    "commits": lambda old: [end(one) for one in old],
    "in any order": lambda old: [
        end(old[1]),
        half("a"),
        end(old[0], ROLLBACK),
        half("b"),
        half("c"),
        end(old[3]),
    ],
    "one-way": lambda old: [
        end(old[0], flag=ONEWAY),
        half("a"),
        end(old[1], ROLLBACK, ONEWAY),
        half("b"),
    ],
    "one-way only": lambda old: [*[end(one, flag=ONEWAY) for one in old], half("a")],
    "one end twice": lambda old: [end(old[0]), end(old[0]), end(old[1]), end(old[2])],
    "one end both ways": lambda old: [end(old[0]), end(old[0], ROLLBACK), end(old[1]), end(old[2])],
    "one half message twice": lambda old: [half("a"), half("a"), end(old[0])],
    "a copy of one that is open": lambda old: [half("0"), end(old[0]), end(old[1])],
    "undecided": lambda old: [end(old[0]), end(old[1], 0), end(old[1]), end(old[2])],
    "another group": lambda old: [
        end(old[0]),
        end(old[1], producerGroup="g"),
        end(old[1]),
        end(old[2]),
    ],
    "no group": lambda old: [
        end(old[0]),
        end(old[1], producerGroup=None),
        end(old[1]),
        end(old[2]),
    ],
    "no such place": lambda old: [
        end(old[0]),
        end(old[1], tranStateTableOffset="77"),
        end(old[1]),
        end(old[2]),
    ],
    "another offset": lambda old: [
        end(old[0]),
        end(old[1], commitLogOffset="7"),
        end(old[1]),
        end(old[2]),
    ],
    "numbers that are none": lambda old: [
        end(old[0]),
        end(old[1], commitLogOffset="x"),
        end(old[1]),
        end(old[2]),
    ],
    "plain sends between": lambda old: [end(old[0]), send(), send(), half("a"), end(old[1])],
    "no such queue": lambda old: [end(old[0]), half("a", 4), half("b"), end(old[1])],
    "a negative number in the queue's place": lambda old: [
        end(old[0]),
        half("a", f="x"),
        half("b"),
        end(old[1]),
    ],
    "too large": lambda old: [
        end(old[0]),
        half("a", body=bytes(LIMIT + 1)),
        half("b"),
        end(old[1]),
    ],
    "as large as may be": lambda old: [
        end(old[0]),
        half("a", body=bytes(LIMIT)),
        half("b"),
        end(old[1]),
    ],
    "with a delay": lambda old: [end(old[0]), half("a", DELAY="3"), half("b"), end(old[1])],
    "with immunity": lambda old: [
        end(old[0]),
        half("a", CHECK_IMMUNITY_TIME_IN_SECONDS="9"),
        half("b"),
        end(old[1]),
    ],
    "without a group": lambda old: [end(old[0]), half("a", PGROUP=None), half("b"), end(old[1])],
    "sent again by a consumer": lambda old: [end(old[0]), half("a", j=1), half("b"), end(old[1])],
    "a half message that wants no answer": lambda old: [
        end(old[0]),
        half("a", flag=ONEWAY),
        half("b"),
        end(old[1]),
    ],
    "a key that is not plain text": lambda old: [end(old[0]), half('ü"'), half("b"), end(old[1])],
    "tags and flags": lambda old: [
        half("a", TAGS="t", KEYS="k l", h=-7),
        half("b", f=5, g=2**40),
        end(old[1]),
    ],
}


async def opened(reads: Reads) -> Opened:
    return await reads.answers(
        [half(str(number), number % 3, b"%d" % number * 50) for number in range(4)]
    )


async def seen(broker: Broker, reads: Reads, commands: list[RemotingCommand]) -> Any:
    found = await outcome(broker, reads, commands)
    found["records"] = [
        replace(record, born_timestamp_ms=0, born_host=b"")
        if record.topic == OP_HALF_TOPIC
        else record
        for record in found["records"]
    ]
    transactions = broker.context.transactions
    left = [
        (one.group, list(one.places), one.decision, one.commitlog_offset, list(one.waiting))
        for one in transactions._open.values()
    ]
    return found | {
        "open": left,
        "ended": {topic: ended.times for topic, ended in transactions.ended.items()},
        "ready": list(transactions._ready._ready.items()),
    }


def portless(found: Any) -> Any:
    """The store's host has the broker's port."""
    return found | {
        "ready": [(place, message._replace(store_host=b"")) for place, message in found["ready"]]
    }


@pytest.mark.parametrize("name", READS)
async def test_a_read_ends_as_its_requests_would_one_by_one(
    start_broker: StartBroker, tmp_path: Path, name: str
) -> None:
    commands = READS[name]
    found = []
    for together in (True, False):
        broker = await prepare(
            await start_broker(data=tmp_path / str(together), max_message_bytes=LIMIT)
        )
        reads = Reads(broker, together=together)
        old = await opened(reads)
        found.append(portless(await seen(broker, reads, commands(old))))
        # what has ended has ended
        again = [end(one) for one in old]
        found[-1]["again"] = [(answer.opaque, answer.code) for answer in await reads.answers(again)]
    assert found[0] == found[1]


async def test_a_run_goes_on_in_the_next_segment(start_broker: StartBroker, tmp_path: Path) -> None:
    found = []
    for together in (True, False):
        broker = await prepare(
            await start_broker(data=tmp_path / str(together), segment_bytes=16384)
        )
        reads = Reads(broker, together=together)
        keys = iter(range(1000))
        old = await reads.answers([half(str(next(keys)), body=b"o" * 500) for _ in range(9)])
        for _ in range(6):
            new = await reads.answers(
                [
                    command
                    for one in old
                    for command in (end(one), half(str(next(keys)), body=b"n" * 500))
                ]
            )
            old = [answer for answer in new if "msgId" in answer.ext_fields]
        found.append((await seen(broker, reads, [end(one) for one in old]))["queues"])
        assert (
            sum(
                ended.times[Decision.COMMIT]
                for _, ended in broker.context.transactions.ended.items()
            )
            == 63
        )
    assert found[0] == found[1]


async def test_a_store_that_takes_nothing_refuses_each(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await prepare(await start_broker())
    reads = Reads(broker)
    old = await opened(reads)

    def refuse(*_: object) -> None:
        raise StoreBusy("much waits")

    monkeypatch.setattr(broker.context.store, "_check_accepts", refuse)
    answers = await reads.answers([end(old[0]), half("a"), end(old[1], flag=ONEWAY), end(old[2])])
    assert [(answer.opaque, answer.code) for answer in answers] == [
        (n, ResponseCode.SYSTEM_BUSY) for n in (0, 1, 3)
    ]
    assert (broker.context.sends_waiting, reads.connection._requests_in_flight) == (0, 0)
    assert len(broker.context.transactions.idle()) == 4
    monkeypatch.undo()
    assert [answer.code for answer in await reads.answers([end(one) for one in old])] == [0] * 4
    assert not len(broker.context.transactions)


async def test_where_nothing_could_be_written_each_is_told(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await prepare(await start_broker())
    reads = Reads(broker)
    old = await opened(reads)
    waiting: list[PutDone] = []
    appender = broker.context.store._appender
    append = appender.append
    monkeypatch.setattr(
        appender, "append", lambda messages, done: append(messages, lambda _: waiting.append(done))
    )
    async with asyncio.TaskGroup() as tasks:
        failing = tasks.create_task(
            reads.answers([end(old[0]), half("a"), end(old[1], flag=ONEWAY), end(old[2])])
        )
        while not waiting:
            await asyncio.sleep(0)
        assert (broker.context.sends_waiting, broker.context.transactions.ending) == (1, 3)
        error: OgiveError = StoreFailed("the disk is gone")
        waiting[0](error)
    assert sorted([(answer.opaque, answer.code) for answer in failing.result()]) == [
        (n, ResponseCode.SERVICE_NOT_AVAILABLE) for n in (0, 1, 3)
    ]
    assert (
        broker.context.sends_waiting,
        broker.context.traffic.failed,
        reads.connection._requests_in_flight,
    ) == (0, 1, 0)
    assert len(broker.context.transactions.idle()) == 4


async def test_over_the_limit_of_open_transactions_the_rest_is_busy(
    start_broker: StartBroker,
) -> None:
    broker = await prepare(await start_broker(max_open_transactions=4))
    reads = Reads(broker)
    old = await opened(reads)
    answers = await reads.answers([half("a"), half("b"), end(old[0]), end(old[1])])
    codes = {answer.opaque: answer.code for answer in answers}
    assert codes == {
        0: ResponseCode.SYSTEM_BUSY,
        1: ResponseCode.SYSTEM_BUSY,
        2: ResponseCode.SUCCESS,
        3: ResponseCode.SUCCESS,
    }


async def test_a_run_holds_so_many_bytes(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await prepare(await start_broker())
    reads = Reads(broker)
    old = [
        (await reads.answers([half(str(number), body=bytes(100_000))]))[0] for number in range(4)
    ]
    writes = Writes(broker, monkeypatch)
    assert [answer.code for answer in await reads.answers([end(one) for one in old])] == [0] * 4
    # two ends in each step: the message and its mark
    assert writes.sizes == [4, 4]


@pytest.mark.parametrize("another", [False, True])
async def test_access_control_lets_the_same_ends_through_as_one_by_one(
    start_broker: StartBroker, tmp_path: Path, another: bool
) -> None:
    found = []
    for together in (True, False):
        broker = await prepare(
            await start_broker(data=tmp_path / str(together), access=await users())
        )
        reads = Reads(broker, together=together)
        old = await reads.answers(
            [signed(half(str(n))) for n in range(3)] + [signed(half("a", b="Another"), ROOT)]
        )
        changed = replace(signed(end(old[0])), body=b"not signed")
        ends = [changed, signed(end(old[0])), end(old[1]), signed(end(old[2]))]
        if another:
            # which is not Alice's to end
            ends.insert(1, signed(end(old[3])))
        found.append(portless(await seen(broker, reads, ends)))
        found[-1]["refused"] = broker.context.guard and broker.context.guard.table.refusals.count
    assert found[0] == found[1]


async def test_an_end_that_is_looked_up_in_the_log_goes_by_itself(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else hundreds in one read would hold the loop as one step, each with its whole message."""
    broker = await prepare(await start_broker())
    reads = Reads(broker)
    old = await opened(reads)
    assert {answer.code for answer in await reads.answers([end(one) for one in old])} == {0}
    steps: list[int] = []

    def counted(connection: Connection, frames: list[bytes], at: int) -> int:
        steps.append(handler(connection, frames, at))
        return steps[-1]

    handler = broker._server.on_frames
    monkeypatch.setattr(broker._server, "on_frames", counted)
    again = Reads(broker)
    ends = [end(old[0]), end(old[0]), end(old[1])]
    assert [answer.code for answer in await again.answers(ends)] == [0] * 3
    assert steps == [1, 1, 1]


async def test_a_log_that_cannot_be_opened_for_a_moment_closes_no_connection(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Access control reads the topics of half messages, before the ends are carried out."""
    broker = await prepare(await start_broker(access=await users()))
    reads = Reads(broker)
    old = await reads.answers([signed(half("1"))])

    def fails(*_: object) -> None:
        raise StoreError("too many open files")

    monkeypatch.setattr(guard, "topic_of_offset", fails)
    (answer,) = await reads.answers([signed(end(old[0]))])
    assert answer.code == ResponseCode.SUCCESS
    assert not reads.connection.closed
