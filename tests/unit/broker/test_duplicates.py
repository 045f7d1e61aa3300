"""Messages that are sent twice, over a socket: stored once inside the window, also across a
restart.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from ogive.access.user_table import AccessTable
from ogive.broker import Broker
from ogive.broker.sends import duplicates
from ogive.broker.sends.duplicates import Duplicates
from ogive.errors import InvalidOption, StoreBusy, StoreError
from ogive.store.file_reader import Cold
from ogive.store.message_store import MessageStore
from ogive.store.types import NewMessage, PutDone, PutResult
from ogive.wire.bodies.acls import SUPER, User
from ogive.wire.command import RemotingCommand
from ogive.wire.message import BatchItem, encode_batch, encode_properties
from ogive.wire.signing import Credentials
from tests.raw_client import RawClient, messages, unique_key
from tests.stores import InlineWriter, run_now, small
from tests.unit.broker.cold_disk import ColdDisk
from tests.unit.broker.conftest import StartBroker


def place(answer: RemotingCommand) -> tuple[str, str, str]:
    assert answer.code == 0, answer
    return (
        answer.ext_fields["queueId"],
        answer.ext_fields["queueOffset"],
        answer.ext_fields["msgId"],
    )


async def stored(client: RawClient, queue: int = 0) -> list[bytes]:
    answer = await client.pull("G", "T", 0, queue=queue)
    return [message.body for message in messages(answer)] if answer.code == 0 else []


async def batch(client: RawClient, *keys: str) -> RemotingCommand:
    items = encode_batch(
        BatchItem(0, key.encode(), encode_properties({"UNIQ_KEY": key})) for key in keys
    )
    return await client.call(320, items, **(client.send_fields("T", 0, "") | {"m": True}))


async def test_a_message_is_stored_once_and_answered_with_its_first_place(
    start_broker: StartBroker,
) -> None:
    server = await start_broker(duplicate_window_s=60.0)
    async with await RawClient.open(server.address) as client:
        key = {"UNIQ_KEY": unique_key()}
        first = await client.send("T", b"first", key, queue=1)
        again = await client.send("T", b"first", key, queue=2)
        assert place(again) == place(first)
        # the second while the first is on its way
        both = [client.start_send("T", b"twice", {"UNIQ_KEY": "K"}, queue=1) for _ in range(2)]
        assert place(await both[0]) == place(await both[1])
        await client.send("U", b"another topic", key)
        assert await stored(client, 1) == [b"first", b"twice"]
        assert await stored(client, 2) == []


async def test_a_long_key_is_remembered_by_its_digest_also_over_a_restart(
    start_broker: StartBroker,
) -> None:
    """Ten thousand of 30,000 characters took 345 MiB."""
    key, other = "x" * 20_000, "x" * 19_999 + "y"
    server = await start_broker(duplicate_window_s=60.0)
    for _ in range(2):
        async with await RawClient.open(server.address) as client:
            for _ in range(2):
                await client.send("T", b"first", {"UNIQ_KEY": key})
                await client.send("T", b"other", {"UNIQ_KEY": other})
            assert await stored(client) == [b"first", b"other"]
        duplicates = server.context.duplicates
        assert duplicates is not None
        assert max(len(key[1]) for key in duplicates._firsts) < 100
        await server.stop()
        server = await start_broker(duplicate_window_s=60.0)


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_producer_that_guesses_the_keys_of_another_keeps_nothing_of_it_out(
    start_broker: StartBroker, restarts: bool
) -> None:
    server = await start_broker(duplicate_window_s=60.0)
    async with await RawClient.open(server.address) as stranger:
        for key in ("1", "2", "3"):
            await stranger.send("T", b"junk", {"UNIQ_KEY": key})
        await batch(stranger, "4", "5")
    if restarts:
        await server.stop()
        server = await start_broker(duplicate_window_s=60.0)
    async with await RawClient.open(server.address) as client:
        for key in ("1", "2", "3", "4"):
            for _ in range(2):
                await client.send("T", b"order " + key.encode(), {"UNIQ_KEY": key})
        items = encode_batch(
            BatchItem(0, b"order 5", encode_properties({"UNIQ_KEY": "5"})) for _ in range(2)
        )
        await client.call(320, items, **(client.send_fields("T", 0, "") | {"m": True}))
        assert await stored(client) == [b"junk"] * 3 + [b"4", b"5"] + [
            b"order %d" % key for key in range(1, 6)
        ]


async def test_with_access_control_the_producer_is_its_user(start_broker: StartBroker) -> None:
    """One user's message, repeated over a second connection, is one; the same message of another
    user is another one.
    """
    access = AccessTable()
    users = [Credentials(access_key=name, secret_key="secret") for name in ("anna", "bert")]
    for user in users:
        await access.create_user(
            User(username=user.access_key, password=user.secret_key, user_type=SUPER)
        )
    server = await start_broker(access, duplicate_window_s=60.0)
    for credentials, count in ((users[0], 1), (users[0], 1), (users[1], 2), (users[1], 2)):
        async with await RawClient.open(server.address, credentials=credentials) as client:
            await client.send("T", b"x", {"UNIQ_KEY": "K"})
            assert await stored(client) == [b"x"] * count


async def test_a_batch_stores_what_is_new(start_broker: StartBroker) -> None:
    server = await start_broker(duplicate_window_s=60.0)
    async with await RawClient.open(server.address) as client:
        _, _, ids = place(await batch(client, "a", "b"))
        _, offset, again = place(await batch(client, "a", "b", "c", "c"))
        first_ids, again_ids = ids.split(","), again.split(",")
        assert (again_ids[:2], again_ids[2] == again_ids[3], offset) == (first_ids, True, "0")
        assert place(await batch(client, "c", "a"))[2] == f"{again_ids[2]},{first_ids[0]}"
        assert await stored(client) == [b"a", b"b", b"c"]


async def test_the_window_outlives_a_restart(start_broker: StartBroker, tmp_path: Path) -> None:
    server = await start_broker(duplicate_window_s=60.0)
    async with await RawClient.open(server.address) as client:
        first = place(await client.send("T", b"x", {"UNIQ_KEY": "K", "KEYS": "L"}, queue=3))
    await server.stop()
    server = await start_broker(duplicate_window_s=60.0)
    async with await RawClient.open(server.address) as client:
        assert place(await client.send("T", b"x", {"UNIQ_KEY": "K"}))[:2] == first[:2]
        # a key of the user's is none of the client's
        await client.send("T", b"y", {"UNIQ_KEY": "L"}, queue=3)
        assert await stored(client, 3) == [b"x", b"y"]


async def test_after_a_restart_few_messages_with_one_key_are_looked_at(
    start_broker: StartBroker,
) -> None:
    """Else a client that stores thousands with one key holds up the sends of all."""
    server = await start_broker(duplicate_window_s=60.0)
    key = {"UNIQ_KEY": "K"}
    async with await RawClient.open(server.address) as client:
        places = [
            place(await client.send("T", b"%d" % number, key))
            for number in range(duplicates.MAX_LOOKED_AT + 1)
        ]
    await server.stop()
    server = await start_broker(duplicate_window_s=60.0)
    async with await RawClient.open(server.address) as client:
        assert place(await client.send("T", b"1", key))[:2] == places[1][:2]
        again = place(await client.send("T", b"0", key))
        assert again[1] == str(len(places))


async def test_a_deleted_topic_takes_its_keys_along(start_broker: StartBroker) -> None:
    """What is acknowledged after the deletion must be there."""
    server = await start_broker(duplicate_window_s=60.0)
    async with await RawClient.open(server.address) as client:
        key = {"UNIQ_KEY": "K"}
        await client.send("T", b"deleted", key)
        kept = place(await client.send("U", b"kept", key))
        await client.ok(215, topic="T")
        await client.send("T", b"again", key)
        assert await stored(client) == [b"again"]
        assert place(await client.send("U", b"kept", key)) == kept


async def test_without_the_option_everything_is_stored(server: Broker, client: RawClient) -> None:
    assert server.context.duplicates is None
    for _ in range(2):
        await client.send("T", b"x", {"UNIQ_KEY": "K"})
    assert await stored(client) == [b"x", b"x"]


class Bench:
    """A put that answers when the test says so, beside a disk that has nothing to say: the window
    has passed since the start.
    """

    def __init__(self, *, max_keys: int = 100) -> None:
        self.at_ms = 1_000_000
        self.waiting: list[tuple[int, PutDone]] = []
        self.answers: list[tuple[int, object]] = []
        self.refuse = False
        self.duplicates = Duplicates(10.0, max_keys, self, _no_disk, _no_task)
        self.at_ms += 10_000

    def now_ms(self) -> int:
        return self.at_ms

    def find_key(
        self, topic: str, key: str, begin_ms: int, end_ms: int
    ) -> Iterator[bytes | Cold | None]:
        raise AssertionError("the disk is asked")

    def without_waiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    def put(self, put: object, done: PutDone) -> None:
        if self.refuse:
            raise StoreBusy("too much waits")
        self.waiting.append((len(put), done))  # type: ignore[arg-type]  # a sequence of messages

    def send(self, *keys: str) -> None:
        made = [NewMessage("T", 5, b"", encode_properties({"UNIQ_KEY": key})) for key in keys]
        self.duplicates.put(
            self.put, made, lambda queue_id, result: self.answers.append((queue_id, result))
        )

    def finish(self, error: StoreError | None = None) -> None:
        for count, done in self.waiting:
            done(error if error is not None else [PutResult(n, n, 100, 0) for n in range(count)])
        self.waiting.clear()


async def _no_disk(cold: Cold) -> None:
    raise AssertionError("the disk is asked")


def _no_task(work: Coroutine[Any, Any, None], name: str) -> None:
    raise AssertionError("a task is started")


class Restarted:
    """What stands on a disk whose memory is cold, and Duplicates that have just started on it."""

    def __init__(self, store: MessageStore) -> None:
        self.store, self.disk = store, ColdDisk(store)
        self.answers: list[tuple[int, object]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.duplicates = Duplicates(
            60.0,
            100,
            store,
            self.bring_in,
            lambda work, _: self.tasks.append(asyncio.create_task(work)),
        )
        self.disk.forget()

    async def bring_in(self, cold: Cold) -> None:
        done: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        self.disk.fetch(cold.place, done.set_result)
        if (error := await done) is not None:
            raise error

    def put(self, messages: Sequence[NewMessage], done: PutDone) -> None:
        self.store.put(messages, done)
        self.store.submit()

    def send(self, *keys: str) -> None:
        made = [NewMessage("T", 1, b"first", encode_properties({"UNIQ_KEY": key})) for key in keys]
        self.duplicates.put(
            self.put, made, lambda queue_id, result: self.answers.append((queue_id, result))
        )

    async def disk_reads(self) -> None:
        """Until nothing waits for the disk any more."""
        while any(not task.done() for task in self.tasks):
            self.disk.bring_in()
            await asyncio.sleep(0)


@pytest.fixture
async def restarted(tmp_path: Path) -> AsyncIterator[Restarted]:
    """Messages a, b, c stand in queue 0, from before the start."""

    def opened() -> MessageStore:
        store = MessageStore.open(small(tmp_path, segment_bytes=4096), clock_ms=lambda: 1_000_000)
        store.start(run_now, writer=InlineWriter)
        return store

    before = opened()
    for key in "abc":
        before.put(
            [NewMessage("T", 0, b"first", encode_properties({"UNIQ_KEY": key}))], lambda _: None
        )
        before.submit()
    before.close()
    store = opened()
    yield Restarted(store)
    store.close()


async def test_after_a_restart_the_disk_is_asked_without_waiting_for_it(
    restarted: Restarted,
) -> None:
    """Sends that come meanwhile do not pass those that wait, though they need nothing from disk."""
    restarted.send("new", "b")
    restarted.send("later")
    await asyncio.sleep(0)
    assert restarted.disk.waiting
    assert restarted.answers == []
    restarted.send("new")
    await restarted.disk_reads()
    (_, first), (_, later), (_, again) = restarted.answers
    assert isinstance(first, list)
    assert isinstance(later, list)
    # the new one in queue 1, the known one where it was in queue 0
    assert [result.queue_offset for result in first] == [0, 1]
    assert again == first[:1]
    assert (later[0].queue_offset, restarted.store.max_offset("T", 1), len(restarted.tasks)) == (
        1,
        2,
        1,
    )


async def test_a_disk_that_cannot_be_read_fails_the_send_and_not_the_next(
    restarted: Restarted,
) -> None:
    restarted.send("b")
    restarted.send("c")
    await asyncio.sleep(0)
    failure = StoreError("Input/output error")
    restarted.disk.bring_in(failure)
    await restarted.disk_reads()
    (at, answer), (queue_id, known) = restarted.answers
    assert (at, answer, queue_id) == (0, failure, 0)
    assert isinstance(known, list)
    assert known[0].queue_offset == 2
    assert restarted.store.max_offset("T", 1) == 0


async def test_what_the_store_refuses_behind_a_read_from_disk_is_answered(
    restarted: Restarted,
) -> None:
    restarted.duplicates.put(
        restarted.put,
        [NewMessage("T", 1, bytes(5000), encode_properties({"UNIQ_KEY": "big"}))],
        lambda *answer: restarted.answers.append(answer),
    )
    await restarted.disk_reads()
    ((_, answer),) = restarted.answers
    assert isinstance(answer, InvalidOption)
    assert len(restarted.duplicates) == 0


async def test_sends_that_wait_for_the_disk_are_bounded_by_their_bytes(
    restarted: Restarted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand sends may wait, of four megabytes each."""
    monkeypatch.setattr(duplicates, "MAX_HELD_BYTES", 40)
    restarted.send("b")
    restarted.send("c")
    restarted.send("d")
    with pytest.raises(StoreBusy, match="bytes wait until it is known"):
        restarted.send("e")
    await restarted.disk_reads()
    restarted.send("e")
    await restarted.disk_reads()
    assert [isinstance(result, list) for _, result in restarted.answers] == [True] * 4


def test_when_the_first_fails_the_second_fails_and_a_third_is_new() -> None:
    bench = Bench()
    bench.send("a", "b")
    bench.send("b")
    failure = StoreError("the disk is gone")
    bench.finish(failure)
    assert bench.answers == [(0, failure), (0, failure)]
    assert len(bench.duplicates) == 0
    bench.refuse = True
    with pytest.raises(StoreBusy):
        bench.send("a")
    bench.refuse = False
    bench.send("a")
    assert len(bench.waiting) == 1


def test_what_fails_behind_a_deletion_forgets_no_later_message_with_its_key() -> None:
    bench = Bench()
    bench.send("a")
    bench.duplicates.forget_topic("T")
    bench.send("a")
    (_, first_done), (_, _) = bench.waiting
    first_done(StoreError("disk"))
    del bench.waiting[0]
    bench.send("a")
    assert len(bench.waiting) == 1
    bench.finish()
    assert [isinstance(result, list) for _, result in bench.answers] == [False, True, True]


def test_a_batch_that_is_refused_is_not_answered_once_more() -> None:
    """Also when a part of it was on its way before, and fails then."""
    bench = Bench()
    bench.send("a")
    bench.refuse = True
    with pytest.raises(StoreBusy):
        bench.send("a", "b")
    failure = StoreError("the disk is gone")
    bench.finish(failure)
    assert bench.answers == [(0, failure)]


def test_keys_are_forgotten_after_the_window_and_over_the_limit() -> None:
    bench = Bench(max_keys=2)
    for key in "abc":
        bench.send(key)
        bench.finish()
    bench.send("b")
    assert len(bench.waiting) == 0
    # was forgotten early
    bench.send("a")
    assert len(bench.waiting) == 1
    bench.finish()
    bench.at_ms += 10_001
    bench.send("b")
    assert (len(bench.waiting), len(bench.duplicates)) == (1, 1)
