"""Sends that come with one read: as a run they are answered, stored and counted as one by one."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from ogive.access.user_table import AccessTable
from ogive.broker.sends import send_run
from ogive.errors import OgiveError, ResponseCode, StoreBusy, StoreFailed, StoreFull
from ogive.store.types import PutDone
from ogive.wire.codes import RequestCode, SerializeType, SysFlag
from ogive.wire.command import RemotingCommand, encode_command
from tests.unit.broker.conftest import StartBroker
from tests.unit.broker.handlers.reads import Reads, compiled_only, outcome, prepare, send

LIMIT = 2000
READS: dict[str, tuple[list[RemotingCommand], list[int]]] = {
    "all plain": ([send(body=b"%d" % n) for n in range(5)], [5]),
    "two": ([send(), send()], [2]),
    "topics and queues": (
        [
            send("T", 1),
            send("Another", 2),
            send("T", 3),
            send("T", 1, b""),
            send("Another", 0, b"2" * 300),
        ],
        [5],
    ),
    "tags, keys and flags": (
        [
            send(TAGS="a", KEYS="b c", h=-7, j=2),
            send(f=int(SysFlag.COMPRESSED)),
            send(TAGS="ü" * 9, own="ü"),
        ],
        [3],
    ),
    "no such queue in the middle": (
        [send(body=b"1"), send(body=b"2"), send(queue=4), send(body=b"3"), send(body=b"4")],
        [2, 0, 2],
    ),
    "too large in the middle": (
        [send(), send(body=bytes(LIMIT)), send(body=bytes(LIMIT + 1)), send(), send()],
        [2, 0, 2],
    ),
    "a topic without a legal name": ([send(), send("a b"), send(), send()], [1, 0, 2]),
    "a new topic in the middle": (
        [send(), send(), send("New", c="TBW102"), send("New", 1), *[send()] * 4],
        [2, 0, 0, 3],
    ),
    "a typed topic": ([send(), send("Typed"), send(), send()], [1, 0, 2]),
    "one of the broker's own topics": (
        [send(), send("RMQ_SYS_TRANS_HALF_TOPIC"), send(), send()],
        [1, 0, 2],
    ),
    "one-way": (
        [send(body=b"1"), send(body=b"2", flag=2), send(body=b"3"), send(body=b"4")],
        [1, 0, 2],
    ),
    "a delayed one": ([send(), send(DELAY="3"), send(), send()], [1, 0, 2]),
    "a timed one": ([send(), send(TIMER_DELAY_SEC="60"), send(), send()], [1, 0, 2]),
    "half a transaction": (
        [send(), send(TRAN_MSG="true", PGROUP="g", f=4), send(), send()],
        [1, 1, 2],
    ),
    "for a retry topic": ([send(), send("%RETRY%T", j=1), send(), send()], [1, 0, 2]),
    "has been through a broker": ([send(), send(CLUSTER="Old"), send(), send()], [1, 0, 2]),
    "keys that are no plain text": (
        [send(), send(UNIQ_KEY='a"b'), send(UNIQ_KEY="ü"), send(), send(), send()],
        [6],
    ),
    "headers in JSON": (
        [
            replace(send(own="ü\\", body=b"%d" % n), serialize_type=codec)
            for n in range(3)
            for codec in SerializeType
        ],
        [6],
    ),
    "numbers that are none": ([send(), send(e="x"), send(), send()], [1, 0, 2]),
    "flags that no client sets": ([send(), send(f=8), send(), send()], [1, 0, 2]),
    "the long names": (
        [
            send(),
            RemotingCommand(
                10,
                {"topic": "T", "queueId": "1", "bornTimestamp": "5", "properties": "UNIQ_KEY\1A"},
            ),
            send(),
            send(),
        ],
        [1, 0, 2],
    ),
    "another request": (
        [send(), RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO), send(), send()],
        [1, 0, 2],
    ),
    "a tag that is not ASCII, again and again": (
        [send(), *[send(TAGS="订单") for _ in range(9)]],
        [10],
    ),
    "a delayed one, again and again": (
        [send(), *[send(DELAY="3") for _ in range(9)]],
        [1, 0, 0, 0, 0],
    ),
    "many behind the unusual ones": (
        [*[send(DELAY="3") for _ in range(3)], *[send() for _ in range(20)]],
        [0, 0, 20],
    ),
}


@compiled_only
@pytest.mark.parametrize("name", READS)
async def test_a_read_ends_as_its_requests_would_one_by_one(
    start_broker: StartBroker, tmp_path: Path, name: str
) -> None:
    commands, taken = READS[name]
    found = []
    for runs in (True, False):
        broker = await prepare(
            await start_broker(data=tmp_path / str(runs), max_message_bytes=LIMIT)
        )
        reads = Reads(broker, runs=runs)
        found.append(await outcome(broker, reads, commands))
        assert reads.taken == (taken if runs else [])
    assert found[0] == found[1]


@compiled_only
async def test_a_run_goes_to_the_next_segment_as_a_whole(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    found = []
    for runs in (True, False):
        broker = await prepare(await start_broker(data=tmp_path / str(runs), segment_bytes=65536))
        reads = Reads(broker, runs=runs)
        await reads.answers([send(body=bytes(300)) for _ in range(60)])
        end = await outcome(
            broker, reads, [send(queue=n % 3, body=b"%d" % n * 300) for n in range(60)]
        )
        assert reads.taken == ([60, 60] if runs else [])
        found.append([(one.queue_id, one.queue_offset, one.body) for one in end["records"]])
    # their places in the log differ: by itself each send fills the segment before
    assert found[0] == found[1]
    assert len(found[0]) == 120


@compiled_only
async def test_a_run_is_no_larger_than_one_write(start_broker: StartBroker) -> None:
    """With flush=async a power cut may take the last write."""
    reads = Reads(await prepare(await start_broker()))
    sends = [send(queue=n % 3, body=bytes(400_000)) for n in range(7)]
    answers = await reads.answers(sends)
    assert [answer.code for answer in answers] == [0] * 7
    assert reads.taken == [2, 2, 2]


@compiled_only
async def test_answers_come_in_the_order_of_the_requests(start_broker: StartBroker) -> None:
    reads = Reads(await prepare(await start_broker()))
    answers = await reads.answers([send(queue=n % 4) for n in range(100)])
    assert [answer.opaque for answer in answers] == list(range(100))
    assert [answer.ext_fields["queueOffset"] for answer in answers] == [
        str(n // 4) for n in range(100)
    ]
    assert reads.taken == [100]


@compiled_only
async def test_over_the_limit_of_waiting_sends_the_rest_is_busy(start_broker: StartBroker) -> None:
    broker = await prepare(await start_broker(max_sends_waiting=3))
    reads = Reads(broker)
    codes = {
        answer.opaque: answer.code for answer in await reads.answers([send() for _ in range(6)])
    }
    assert codes == dict.fromkeys(range(3), ResponseCode.SUCCESS) | dict.fromkeys(
        range(3, 6), ResponseCode.SYSTEM_BUSY
    )
    assert reads.taken[0] == 3
    assert broker.context.sends_waiting == 0


@compiled_only
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreBusy("much waits"), ResponseCode.SYSTEM_BUSY),
        (StoreFull("no room"), ResponseCode.SERVICE_NOT_AVAILABLE),
    ],
)
async def test_a_store_that_takes_nothing_refuses_each(
    start_broker: StartBroker,
    monkeypatch: pytest.MonkeyPatch,
    error: OgiveError,
    code: ResponseCode,
) -> None:
    broker = await prepare(await start_broker())

    def refuse(*_: object) -> None:
        raise error

    reads = Reads(broker)
    monkeypatch.setattr(broker.context.store, "_check_accepts", refuse)
    answers = await reads.answers([send() for _ in range(4)])
    assert [(answer.opaque, answer.code) for answer in answers] == [(n, code) for n in range(4)]
    assert all(str(error) in (answer.remark or "") for answer in answers)
    assert (reads.taken, broker.context.sends_waiting, reads.connection._requests_in_flight) == (
        [4],
        0,
        0,
    )
    monkeypatch.undo()
    assert [answer.code for answer in await reads.answers([send(), send()])] == [0, 0]


@compiled_only
async def test_where_nothing_could_be_written_each_is_told(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await prepare(await start_broker())
    waiting: list[PutDone] = []
    append = broker.context.store._appender.append
    monkeypatch.setattr(
        broker.context.store._appender,
        "append",
        lambda messages, done: append(messages, lambda _: waiting.append(done)),
    )
    reads = Reads(broker)
    async with asyncio.TaskGroup() as tasks:
        failing = tasks.create_task(reads.answers([send() for _ in range(4)]))
        while not waiting:
            await asyncio.sleep(0)
        assert broker.context.sends_waiting == 4
        waiting[0](StoreFailed("the disk is gone"))
    answers = failing.result()
    assert [(answer.opaque, answer.code) for answer in answers] == [
        (n, ResponseCode.SERVICE_NOT_AVAILABLE) for n in range(4)
    ]
    assert (
        broker.context.sends_waiting,
        broker.context.traffic.failed,
        reads.connection._requests_in_flight,
    ) == (0, 4, 0)


async def test_a_template_that_is_not_usual_is_filled_in_by_python(
    start_broker: StartBroker,
) -> None:
    broker = await prepare(await start_broker(region="é" * 15_500))
    answers = await Reads(broker).answers([send(), send(queue=1)])
    assert [
        (answer.opaque, answer.ext_fields["queueId"], answer.ext_fields["MSG_REGION"])
        for answer in answers
    ] == [
        (0, "0", "é" * 15_500),
        (1, "1", "é" * 15_500),
    ]


async def test_what_still_comes_from_a_connection_that_was_closed_here_is_no_run(
    start_broker: StartBroker,
) -> None:
    reads = Reads(await start_broker())
    reads.connection.close()
    reads.connection.data_received(
        encode_command(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)) * 2
    )
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


async def test_without_the_compiled_part_there_are_no_runs(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_run, "native", None)
    reads = Reads(await prepare(await start_broker()))
    assert [answer.code for answer in await reads.answers([send(), send()])] == [0, 0]
    assert not any(reads.taken)
