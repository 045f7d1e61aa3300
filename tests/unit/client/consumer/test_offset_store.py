"""How far a group got, on its way to the broker."""

import asyncio

import pytest

from ogive.client.consumer.offset_store import RemoteOffsetStore
from ogive.errors import ConnectError, InvalidOption, OgiveError
from ogive.model import MessageQueue

A, B, C = (MessageQueue("Orders", "broker-a", i) for i in range(3))


class Broker:
    """Keeps what it is told; *failing* queues raise."""

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}
        self.failing: set[MessageQueue] = set()
        self.asked: list[tuple[MessageQueue, int]] = []
        self.end = 1000
        self.answers = asyncio.Event()
        self.answers.set()
        self.connection: object = "first"

    def link(self, queue: MessageQueue) -> object:
        return self.connection

    async def query_offset(self, queue: MessageQueue) -> int | None:
        if queue in self.failing:
            raise ConnectError("away")
        return self.offsets.get(queue)

    async def update_offset(self, queue: MessageQueue, offset: int) -> bool:
        if queue in self.failing:
            raise ConnectError("away")
        self.asked.append((queue, offset))
        await self.answers.wait()
        if offset > self.end:
            return False
        self.offsets[queue] = offset
        return True


@pytest.mark.feature(80, 164)
async def test_an_offset_never_moves_back() -> None:
    store = RemoteOffsetStore(Broker())
    store.update(A, 10)
    store.update(A, 7)
    assert store.read(A) == 10


@pytest.mark.parametrize("known", [None, 3])
async def test_what_the_broker_does_not_keep_is_not_kept_here(known: int | None) -> None:
    """Else later progress, which is lower, would not count."""
    broker = Broker()
    store = RemoteOffsetStore(broker)
    if known is not None:
        await store.commit({A: known}, again=True)
    with pytest.raises(InvalidOption, match="ends before 1001"):
        await store.commit({A: 1001, B: 7}, again=True)
    assert (store.read(A), store.read(B)) == (known, 7)
    store.update(A, 5)
    await store.persist([A])
    assert broker.offsets == {A: 5, B: 7}


async def test_a_repair_sets_an_offset_back_and_late_results_do_not_overwrite_it() -> None:
    store = RemoteOffsetStore(Broker())
    store.update(A, 10)
    store.repair(A, 3)
    store.update(A, 11)
    assert store.read(A) == 3
    store.forget(A)
    store.update(A, 4)
    assert store.read(A) == 4


async def test_after_a_repair_is_over_progress_goes_on_from_it() -> None:
    store = RemoteOffsetStore(Broker())
    store.update(A, 10)
    store.repair(A, 3)
    store.thaw(A)
    store.update(A, 4)
    assert store.read(A) == 4


async def test_the_highest_offset_that_was_known_outlives_a_step_back() -> None:
    """What the broker has of this member's own is not somebody else's."""
    store = RemoteOffsetStore(Broker())
    assert store.highest(A) is None
    store.begin(A, 7)
    assert (store.highest(A), store.read(A)) == (7, None)
    store.update(A, 10)
    store.move(A, 3)
    assert (store.highest(A), store.read(A)) == (10, 3)
    store.repair(A, 2)
    assert store.highest(A) == 10
    store.begin(A, 5)
    assert store.highest(A) == 5
    store.forget(A)
    assert store.highest(A) is None


@pytest.mark.feature(164)
async def test_queues_are_independent() -> None:
    """Persisting or forgetting one touches no other."""
    broker = Broker()
    store = RemoteOffsetStore(broker)
    store.update(A, 10)
    store.update(B, 20)
    await store.persist([A])
    store.forget(A)
    assert broker.offsets == {A: 10}
    assert store.read(B) == 20


@pytest.mark.feature(164)
async def test_one_broken_broker_does_not_keep_the_others_from_their_offsets() -> None:
    broker = Broker()
    store = RemoteOffsetStore(broker)
    store.update(A, 10)
    store.update(B, 20)
    broker.failing.add(A)
    await store.persist([A, B])
    assert broker.offsets == {B: 20}


async def test_unchanged_offsets_are_sent_again_only_where_asked() -> None:
    """A broker that crashed may have lost them; what was refused was never acknowledged."""
    broker = Broker()
    store = RemoteOffsetStore(broker)
    store.update(A, 10)
    broker.failing.add(A)
    await store.persist([A])
    broker.failing.clear()
    await store.persist([A])
    await store.persist([A])
    assert len(broker.asked) == 1
    await store.persist([A], again=True)
    assert len(broker.asked) == 2


@pytest.mark.feature(165)
async def test_one_update_of_a_queue_is_on_its_way_at_a_time() -> None:
    """A broker with several threads may apply two of them the other way round; another queue does
    not wait.
    """
    broker = Broker()
    store = RemoteOffsetStore(broker)
    store.update(C, 1)
    await store.persist([C])
    broker.asked.clear()
    store.update(A, 10)
    store.update(B, 20)
    broker.answers.clear()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(store.persist([A]))
        while not broker.asked:
            await asyncio.sleep(0)
        store.update(A, 11)
        group.create_task(store.persist([A], again=True))
        store.update(A, 12)
        group.create_task(store.persist([B]))
        while len(broker.asked) < 2:
            await asyncio.sleep(0)
        assert broker.asked == [(A, 10), (B, 20)]
        broker.answers.set()
    assert broker.asked == [(A, 10), (B, 20), (A, 12)]
    assert broker.offsets == {A: 12, B: 20, C: 1}


async def test_a_commit_moves_also_back_and_says_what_failed() -> None:
    """It tells every broker before it raises, and the offset goes on from there."""
    broker = Broker()
    store = RemoteOffsetStore(broker)
    store.update(A, 10)
    broker.failing.add(A)
    with pytest.raises(ConnectError):
        await store.commit({A: 3, B: 20})
    assert broker.offsets == {B: 20}
    broker.failing.clear()
    await store.commit({A: 3})
    assert broker.offsets == {A: 3, B: 20}
    store.update(A, 4)
    await store.persist([A])
    assert broker.offsets[A] == 4


@pytest.mark.parametrize("before", [None, 2])
async def test_a_commit_that_failed_is_not_sent_later(before: int | None) -> None:
    """The application has heard of the failure, and may have gone back since."""
    broker = Broker()
    store = RemoteOffsetStore(broker)
    if before is not None:
        await store.commit({A: before})
    broker.failing.add(A)
    with pytest.raises(ConnectError):
        await store.commit({A: 10})
    broker.failing.clear()
    await store.persist([A], again=True)
    assert broker.offsets.get(A) == store.read(A) == before


async def test_progress_that_is_made_during_a_failing_commit_stays() -> None:
    broker = Broker()
    store = RemoteOffsetStore(broker)
    broker.answers.clear()
    committing = asyncio.create_task(store.commit({A: 10}))
    async with asyncio.timeout(60):
        while not broker.asked:
            await asyncio.sleep(0)
    store.update(A, 12)
    committing.cancel()
    await asyncio.wait([committing])
    assert store.read(A) == 12


async def test_a_commit_that_changes_nothing_is_sent_only_where_asked() -> None:
    broker = Broker()
    store = RemoteOffsetStore(broker)
    await store.commit({A: 3})
    await store.commit({A: 3})
    assert len(broker.asked) == 1
    await store.commit({A: 3}, again=True)
    assert len(broker.asked) == 2


async def test_the_first_update_of_a_topic_goes_alone() -> None:
    """Apache's broker makes a table at the first one: of several at once all but one would be lost.

    What fails begins nothing.
    """
    broker = Broker()
    store = RemoteOffsetStore(broker)
    elsewhere = MessageQueue("Orders", "broker-b", 0)
    for queue in (A, B, C, elsewhere):
        store.update(queue, 1)
    broker.failing.add(A)
    broker.answers.clear()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(store.persist([A, B, C, elsewhere]))
        while len(broker.asked) < 2:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert sorted(broker.asked) == [(B, 1), (elsewhere, 1)]
        broker.answers.set()
    assert broker.offsets == {B: 1, C: 1, elsewhere: 1}
    broker.failing.clear()
    broker.asked.clear()
    broker.answers.clear()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(store.persist([A, B, C], again=True))
        # once it has begun, all go together
        while len(broker.asked) < 3:
            await asyncio.sleep(0)
        broker.answers.set()
    assert broker.offsets == {A: 1, B: 1, C: 1, elsewhere: 1}


@pytest.mark.feature(164)
async def test_queues_of_a_broker_that_fail_alike_are_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = Broker()
    store = RemoteOffsetStore(broker)
    broker.failing |= {A, B, C}
    with caplog.at_level("INFO", logger="ogive.client.consumer.offset_store"):
        for offset in (3, 4):
            for queue in (A, B, C):
                store.update(queue, offset)
            await store.persist([A, B, C])
        assert [line.getMessage() for line in caplog.records] == [
            f"could not store offset 3 of {A}: away"
        ]
        caplog.clear()
        broker.failing.clear()
        await store.persist([A, B, C])
    assert [line.getMessage() for line in caplog.records] == [
        "offsets of Orders are stored at broker-a again"
    ]


async def test_a_failed_query_is_never_no_offset() -> None:
    broker = Broker()
    store = RemoteOffsetStore(broker)
    assert await store.fetch(A) is None
    broker.failing.add(A)
    with pytest.raises(OgiveError):
        await store.fetch(A)


@pytest.mark.parametrize(("kept", "told"), [(10, 30), (20, 30), (100, 100)])
async def test_progress_on_a_new_connection_takes_nothing_back(kept: int, told: int) -> None:
    """Of a member that was cut off, or stood still, while another one had the queue."""
    broker = Broker()
    store = RemoteOffsetStore(broker)
    store.begin(A, 0)
    store.update(A, 20)
    await store.persist([A])
    broker.connection = "second"
    broker.offsets[A] = kept
    store.update(A, 30)
    await store.persist([A], again=True)
    await store.persist([A], again=True)
    assert broker.offsets[A] == told


async def test_what_an_application_has_read_takes_nothing_back_on_a_new_connection() -> None:
    broker = Broker()
    store = RemoteOffsetStore(broker)
    store.begin(A, 0)
    broker.connection = "second"
    broker.offsets[A] = 100
    await store.commit({A: 30})
    assert broker.offsets[A] == 100
    await store.commit({A: 30}, again=True)
    assert broker.offsets[A] == 30
