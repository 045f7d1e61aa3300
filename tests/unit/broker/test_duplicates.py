"""Messages that are sent twice, over a socket: stored once inside the window, also across a restart."""

from pathlib import Path

import pytest

from ogive.broker import Broker
from ogive.broker.duplicates import Duplicates
from ogive.errors import StoreBusy, StoreError
from ogive.store.model import NewMessage, PutDone, PutResult
from ogive.wire.command import RemotingCommand
from ogive.wire.message import BatchItem, encode_batch, encode_properties
from tests.raw_client import RawClient, messages, unique_key
from tests.unit.broker.conftest import StartBroker


def place(answer: RemotingCommand) -> tuple[str, str, str]:
    assert answer.code == 0, answer
    return answer.ext_fields["queueId"], answer.ext_fields["queueOffset"], answer.ext_fields["msgId"]


async def stored(client: RawClient, queue: int = 0) -> list[bytes]:
    answer = await client.pull("G", "T", 0, queue=queue)
    return [message.body for message in messages(answer)] if answer.code == 0 else []


async def batch(client: RawClient, *keys: str) -> RemotingCommand:
    items = encode_batch(BatchItem(0, key.encode(), encode_properties({"UNIQ_KEY": key})) for key in keys)
    return await client.call(320, items, **(client.send_fields("T", 0, "") | {"m": True}))


async def test_a_message_is_stored_once_and_answered_with_its_first_place(start_broker: StartBroker) -> None:
    server = await start_broker(duplicate_window_s=60.0)
    async with await RawClient.open(server.address) as client:
        key = {"UNIQ_KEY": unique_key()}
        first = await client.send("T", b"first", key, queue=1)
        again = await client.send("T", b"first", key, queue=2)
        assert place(again) == place(first)
        both = [client.start_send("T", b"twice", {"UNIQ_KEY": "K"}, queue=1) for _ in range(2)]  # the second while the first is on its way
        assert place(await both[0]) == place(await both[1])
        await client.send("U", b"another topic", key)
        assert await stored(client, 1) == [b"first", b"twice"]
        assert await stored(client, 2) == []


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
        await client.send("T", b"y", {"UNIQ_KEY": "L"}, queue=3)  # a key of the user's is none of the client's
        assert await stored(client, 3) == [b"x", b"y"]


async def test_without_the_option_everything_is_stored(server: Broker, client: RawClient) -> None:
    assert server.context.duplicates is None
    for _ in range(2):
        await client.send("T", b"x", {"UNIQ_KEY": "K"})
    assert await stored(client) == [b"x", b"x"]


class Bench:
    """A put that answers when the test says so."""

    def __init__(self, *, max_keys: int = 100) -> None:
        self.now_ms = 1_000_000
        self.waiting: list[tuple[int, PutDone]] = []
        self.answers: list[tuple[int, object]] = []
        self.refuse = False
        self.duplicates = Duplicates(10.0, max_keys, lambda: self.now_ms, lambda *_: iter(()))

    def put(self, put: object, done: PutDone) -> None:
        if self.refuse:
            raise StoreBusy("too much waits")
        self.waiting.append((len(put), done))  # type: ignore[arg-type]  # a sequence of messages

    def send(self, *keys: str) -> None:
        made = [NewMessage("T", 5, b"", encode_properties({"UNIQ_KEY": key})) for key in keys]
        self.duplicates.put(self.put, made, lambda queue_id, result: self.answers.append((queue_id, result)))

    def finish(self, error: StoreError | None = None) -> None:
        for count, done in self.waiting:
            done(error if error is not None else [PutResult(n, n, 100, 0) for n in range(count)])
        self.waiting.clear()


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
    bench.send("a")  # was forgotten early
    assert len(bench.waiting) == 1
    bench.finish()
    bench.now_ms += 10_001
    bench.send("b")
    assert (len(bench.waiting), len(bench.duplicates)) == (1, 1)
