"""Sends that come with one read are answered, stored and counted as one by one."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ogive.access.user_table import AccessTable
from ogive.broker import Broker
from ogive.errors import OgiveError, ResponseCode, StoreBusy, StoreFailed, StoreFull
from ogive.store.types import Messages, PutDone
from ogive.wire.bodies.acls import Acl, Policy, PolicyEntry, User
from ogive.wire.codes import RequestCode, SerializeType, SysFlag
from ogive.wire.command import RemotingCommand, encode_command
from ogive.wire.signing import Credentials
from tests.unit.broker.conftest import StartBroker
from tests.unit.broker.handlers.reads import Reads, batch, outcome, prepare, send

LIMIT = 2000
READS: dict[str, list[RemotingCommand]] = {
    "all plain": [send(body=b"%d" % n) for n in range(5)],
    "two": [send(), send()],
    "topics and queues": [
        send("T", 1),
        send("Another", 2),
        send("T", 3),
        send("T", 1, b""),
        send("Another", 0, b"2" * 300),
    ],
    "tags, keys and flags": [
        send(TAGS="a", KEYS="b c", h=-7, j=2),
        send(f=int(SysFlag.COMPRESSED)),
        send(TAGS="ü" * 9, own="ü"),
    ],
    "no such queue in the middle": [
        send(body=b"1"),
        send(body=b"2"),
        send(queue=4),
        send(body=b"3"),
        send(body=b"4"),
    ],
    "too large in the middle": [
        send(),
        send(body=bytes(LIMIT)),
        send(body=bytes(LIMIT + 1)),
        send(),
        send(),
    ],
    "a topic without a legal name": [send(), send("a b"), send(), send()],
    "a new topic in the middle": [
        send(),
        send(),
        send("New", c="TBW102"),
        send("New", 1),
        *[send()] * 4,
    ],
    "a typed topic": [send(), send("Typed"), send(), send()],
    "one of the broker's own topics": [send(), send("RMQ_SYS_TRANS_HALF_TOPIC"), send(), send()],
    "one-way": [send(body=b"1"), send(body=b"2", flag=2), send(body=b"3"), send(body=b"4")],
    "a delayed one": [send(), send(DELAY="3"), send(), send()],
    "a timed one": [send(), send(TIMER_DELAY_SEC="60"), send(), send()],
    "half a transaction": [send(), send(TRAN_MSG="true", PGROUP="g", f=4), send(), send()],
    "for a retry topic": [send(), send("%RETRY%T", j=1), send(), send()],
    "has been through a broker": [send(), send(CLUSTER="Old"), send(), send()],
    "keys that are no plain text": [
        send(),
        send(UNIQ_KEY='a"b'),
        send(UNIQ_KEY="ü"),
        send(),
        send(),
        send(),
    ],
    "headers in JSON": [
        replace(send(own="ü\\", body=b"%d" % n), serialize_type=codec)
        for n in range(3)
        for codec in SerializeType
    ],
    "numbers that are none": [send(), send(e="x"), send(), send()],
    "flags that no client sets": [send(), send(f=8), send(), send()],
    "the long names": [
        send(),
        RemotingCommand(
            10,
            {"topic": "T", "queueId": "1", "bornTimestamp": "5", "properties": "UNIQ_KEY\1A"},
        ),
        send(),
        send(),
    ],
    "another request": [
        send(),
        RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO),
        send(),
        send(),
    ],
    "a tag that is not ASCII, again and again": [send(), *[send(TAGS="订单") for _ in range(9)]],
    "a delayed one, again and again": [send(), *[send(DELAY="3") for _ in range(9)]],
    "a timed one, again and again": [send(), *[send(TIMER_DELAY_SEC="60") for _ in range(9)]],
    "delays of all kinds, one of them wrong": [
        send(DELAY="3"),
        send("Another", 1, DELAY="5", j=2),
        send(TIMER_DELAY_SEC="60", flag=2),
        send(TIMER_DELAY_MS="no number"),
        send("Typed", DELAY="1"),
        send("Typed", 2, TIMER_DELAY_MS="60000"),
    ],
    "many behind the unusual ones": [
        *[send(DELAY="3") for _ in range(3)],
        *[send() for _ in range(20)],
    ],
}


@pytest.mark.parametrize("name", READS)
async def test_a_read_ends_as_its_requests_would_one_by_one(
    start_broker: StartBroker, tmp_path: Path, name: str
) -> None:
    found = []
    for together in (True, False):
        broker = await prepare(
            await start_broker(data=tmp_path / str(together), max_message_bytes=LIMIT)
        )
        reads = Reads(broker, together=together)
        found.append(await outcome(broker, reads, READS[name]))
    assert found[0] == found[1]


async def test_a_run_goes_to_the_next_segment_as_a_whole(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    found, segments = [], []
    for together in (True, False):
        broker = await prepare(
            await start_broker(data=tmp_path / str(together), segment_bytes=65536)
        )
        reads = Reads(broker, together=together)
        await reads.answers([send(body=bytes(300)) for _ in range(60)])
        end = await outcome(
            broker, reads, [send(queue=n % 3, body=b"%d" % n * 300) for n in range(60)]
        )
        found.append([(one.queue_id, one.queue_offset, one.body) for one in end["records"]])
        segments.append({one.commitlog_offset // 65536 for one in end["records"][60:]})
    assert found[0] == found[1]
    # by itself each send fills the segment before
    assert segments == [{1}, {0, 1}]
    assert len(found[0]) == 120


class Writes:
    """How many messages the store is given at once."""

    def __init__(self, broker: Broker, patch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self._put = broker.context.store.put
        patch.setattr(broker.context.store, "put", self._counted)

    def _counted(self, messages: Messages, done: PutDone) -> None:
        self._put(messages, done)
        self.sizes.append(len(messages))


async def test_a_step_is_no_larger_than_one_write(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With flush=async a power cut may take the last write."""
    broker = await prepare(await start_broker())
    writes = Writes(broker, monkeypatch)
    sends = [send(queue=n % 3, body=bytes(400_000)) for n in range(7)]
    answers = await Reads(broker).answers(sends)
    assert [answer.code for answer in answers] == [0] * 7
    assert writes.sizes == [2, 2, 2, 1]


async def test_sends_of_one_read_are_stored_together(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await prepare(await start_broker())
    writes = Writes(broker, monkeypatch)
    await Reads(broker).answers([send(queue=n % 4, flag=n % 3) for n in (0, 2) * 60])
    assert writes.sizes == [120]


@pytest.mark.parametrize("delay", [{"DELAY": "3"}, {"TIMER_DELAY_SEC": "60"}])
async def test_delayed_sends_of_one_read_are_stored_together(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch, delay: dict[str, Any]
) -> None:
    broker = await prepare(await start_broker())
    writes = Writes(broker, monkeypatch)
    sends = [send("T" if n else "Another", n, flag=n, **delay) for n in (0, 2) * 60]
    await Reads(broker).answers(sends)
    assert writes.sizes == [120]


async def test_answers_come_in_the_order_of_the_requests(start_broker: StartBroker) -> None:
    reads = Reads(await prepare(await start_broker()))
    answers = await reads.answers([send(queue=n % 4) for n in range(100)])
    assert [answer.opaque for answer in answers] == list(range(100))
    assert [answer.ext_fields["queueOffset"] for answer in answers] == [
        str(n // 4) for n in range(100)
    ]


async def test_over_the_limit_of_waiting_sends_the_rest_is_busy(start_broker: StartBroker) -> None:
    broker = await prepare(await start_broker(max_sends_waiting=3))
    reads = Reads(broker)
    codes = {
        answer.opaque: answer.code for answer in await reads.answers([send() for _ in range(6)])
    }
    assert codes == dict.fromkeys(range(3), ResponseCode.SUCCESS) | dict.fromkeys(
        range(3, 6), ResponseCode.SYSTEM_BUSY
    )
    assert broker.context.sends_waiting == 0


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
    assert (broker.context.sends_waiting, reads.connection._requests_in_flight) == (0, 0)
    monkeypatch.undo()
    assert [answer.code for answer in await reads.answers([send(), send()])] == [0, 0]


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


async def test_what_still_comes_from_a_connection_that_was_closed_here_is_not_carried_out(
    start_broker: StartBroker,
) -> None:
    broker = await prepare(await start_broker())
    reads = Reads(broker)
    reads.connection.close()
    reads.connection.data_received(encode_command(send()) * 2)
    await broker.context.synced()
    assert broker.context.store.max_offset("T", 0) == 0


ALICE = Credentials(access_key="alice", secret_key="alices-secret")
ROOT = Credentials(access_key="root", secret_key="roots-secret")


async def users() -> AccessTable:
    """Alice may send to T, root may do everything."""
    table = AccessTable()
    await table.create_user(User(username="root", password=ROOT.secret_key, user_type="Super"))
    await table.create_user(User(username="alice", password=ALICE.secret_key))
    await decide(table, "Allow")
    return table


async def decide(table: AccessTable, decision: str) -> None:
    """Whether Alice may send to T."""
    entry = PolicyEntry.from_json({"resource": "Topic:T", "actions": ["Pub"], "decision": decision})
    await table.put_acl(Acl(subject="User:alice", policies=(Policy(entries=(entry,)),)))


def signed(command: RemotingCommand, by: Credentials = ALICE) -> RemotingCommand:
    return replace(command, ext_fields=by.sign(command.ext_fields, command.body))


SIGNED: dict[str, list[RemotingCommand]] = {
    "all": [signed(send(body=b"%d" % n)) for n in range(5)],
    "of two users": [signed(send()), signed(send(), ROOT), signed(send())],
    "no signature": [signed(send()), send(), signed(send())],
    "another body": [signed(send()), replace(signed(send()), body=b"other"), signed(send())],
    "another field": [
        signed(send()),
        replace((one := signed(send())), ext_fields={**one.ext_fields, "i": "UNIQ_KEY\x01A\x02"}),
        signed(send()),
    ],
    "another topic": [signed(send()), signed(send("Another")), signed(send())],
    "another topic of root's": [signed(send(), ROOT), signed(send("Another"), ROOT)],
    "nobody": [signed(send(), Credentials(access_key="eve", secret_key="roots-secret"))] * 2,
    "a guess": [signed(send(), Credentials(access_key="alice", secret_key="guess"))] * 2,
    "one-way": [signed(send(flag=2)), send(flag=2), signed(send())],
    "batches": [signed(batch()), batch(), signed(batch("Another")), signed(batch(queue=1))],
    "a retry topic": [signed(send()), signed(send("%RETRY%T", j=1)), signed(send())],
}


@pytest.mark.parametrize("name", SIGNED)
async def test_access_control_lets_the_same_sends_through_as_one_by_one(
    start_broker: StartBroker, tmp_path: Path, name: str
) -> None:
    found = []
    for together in (True, False):
        broker = await prepare(
            await start_broker(data=tmp_path / str(together), access=await users())
        )
        reads = Reads(broker, together=together)
        found.append(await outcome(broker, reads, SIGNED[name]))
        found[-1]["refused"] = broker.context.guard and broker.context.guard.table.refusals.count
        found[-1]["trusted"] = reads.connection.trusted
    assert found[0] == found[1]


async def test_with_access_control_sends_of_one_read_are_stored_together(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await prepare(await start_broker(access=await users()))
    writes = Writes(broker, monkeypatch)
    answers = await Reads(broker).answers([signed(send(queue=n % 4)) for n in range(20)])
    assert [answer.code for answer in answers] == [0] * 20
    assert writes.sizes == [20]


async def test_a_rule_counts_from_the_next_send_on(start_broker: StartBroker) -> None:
    table = await users()
    broker = await prepare(await start_broker(access=table))
    reads = Reads(broker)
    sends = [signed(send()), signed(send())]
    assert {answer.code for answer in await reads.answers(sends)} == {0}
    await decide(table, "Deny")
    assert {answer.code for answer in await reads.answers(sends)} == {ResponseCode.NO_PERMISSION}


async def test_in_the_window_of_duplicates_a_send_is_stored_once(
    start_broker: StartBroker,
) -> None:
    broker = await prepare(await start_broker(duplicate_window_s=60.0))
    answers = await Reads(broker).answers([send(), send(), send(UNIQ_KEY="another"), send()])
    offsets = {answer.opaque: answer.ext_fields["queueOffset"] for answer in answers}
    assert offsets == {0: "0", 1: "0", 2: "1", 3: "0"}
