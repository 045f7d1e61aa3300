"""The table of open transactions, on a store in memory: what happens when something cannot be stored, or comes at the same time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from ogive.broker.transactions import MAX_MARKS, MAX_SETTLED, Transaction
from ogive.errors import StoreBusy, StoreError
from ogive.model import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from ogive.store.model import NewMessage, PutDone
from ogive.wire.codes import Decision
from tests.chaos.recorder import MemoryFs
from tests.rel.test_transaction_crashes import TOPIC, Bench
from tests.stores import HOST, read_queue


class Refusing(Bench):
    """Refuses messages for one topic, at once or later."""

    def __init__(self, fs: MemoryFs) -> None:
        self.refuse: str | None = None
        self.later = False
        self.failing: list[PutDone] = []
        super().__init__(fs, "sync")
        self.transactions.start(self._put, HOST)

    def _put(self, messages: Sequence[NewMessage], done: PutDone) -> None:
        if messages[0].topic != self.refuse:
            self.store.put(messages, done)
        elif self.later:
            self.failing.append(done)
        else:
            raise StoreBusy("too much waits")

    def settle(self) -> None:
        super().settle()
        while self.failing:
            self.failing.pop()(StoreBusy("too much waits"))

    def half(self, body: bytes = b"1:a") -> Transaction:
        """An open transaction."""
        known = set(self.transactions.idle())
        self.open(body, lambda _: None)
        self.settle()
        [new] = set(self.transactions.idle()) - known
        return new

    def marks(self) -> list[bytes]:
        return [record.body for record in read_queue(self.store, OP_HALF_TOPIC, 0)]


@pytest.fixture
def bench() -> Iterator[Refusing]:
    bench = Refusing(MemoryFs())
    yield bench
    bench.store.close()


@pytest.mark.parametrize("later", [False, True])
def test_a_commit_whose_mark_is_refused_is_a_commit_and_is_marked_later(bench: Refusing, later: bool) -> None:
    transaction, answers = bench.half(), list[StoreError | None]()
    bench.refuse, bench.later = OP_HALF_TOPIC, later
    bench.transactions.end(transaction, Decision.COMMIT, answers.append)
    bench.settle()
    assert (answers, bench.visible(), bench.marks()) == ([None], {b"1:a": 1}, [])
    assert bench.transactions.idle() == []
    bench.refuse = None
    bench.transactions.mark_again()
    bench.settle()
    assert (bench.marks(), len(bench.transactions)) == ([b"0"], 0)


def test_a_commit_that_is_refused_leaves_the_transaction_open(bench: Refusing) -> None:
    transaction, answers = bench.half(), list[StoreError | None]()
    bench.refuse = TOPIC
    with pytest.raises(StoreBusy):
        bench.transactions.end(transaction, Decision.COMMIT, answers.append)
    assert (bench.transactions.idle(), answers) == ([transaction], [])
    bench.refuse = None
    bench.transactions.end(transaction, Decision.COMMIT, answers.append)
    bench.settle()
    assert (answers, bench.visible()) == ([None], {b"1:a": 1})


def test_a_commit_that_fails_on_its_way_leaves_the_transaction_open(bench: Refusing) -> None:
    transaction, answers = bench.half(), list[StoreError | None]()
    with holding(bench) as fail:
        bench.transactions.end(transaction, Decision.COMMIT, answers.append)
        bench.transactions.end(transaction, Decision.COMMIT, answers.append)
        fail()
    assert [type(answer) for answer in answers] == [StoreBusy] * 2
    assert (bench.transactions.idle(), bench.visible()) == ([transaction], {})


@contextmanager
def holding(bench: Refusing) -> Iterator[Callable[[], None]]:
    """Holds what is put; the yielded function fails it."""
    held: list[PutDone] = []
    bench.transactions.start(lambda _, done: held.append(done), HOST)

    def fail() -> None:
        for done in held:
            done(StoreBusy("too much waits"))

    yield fail
    bench.transactions.start(bench._put, HOST)


@pytest.mark.parametrize("decision", [Decision.COMMIT, Decision.ROLLBACK])
def test_an_end_that_comes_while_the_half_message_moves_counts(bench: Refusing, decision: Decision) -> None:
    transaction, answers = bench.half(), list[StoreError | None]()
    bench.move(transaction)
    bench.transactions.end(transaction, decision, answers.append)
    assert answers == []
    bench.settle()
    assert answers == [None]
    assert bench.visible() == ({b"1:a": 1} if decision is Decision.COMMIT else {})
    assert (bench.marks(), len(bench.transactions)) == ([b"0", b"1"], 0)


@pytest.mark.parametrize("later", [False, True])
def test_an_old_place_whose_mark_is_refused_is_marked_with_the_end(bench: Refusing, later: bool) -> None:
    transaction = bench.half()
    bench.refuse, bench.later = OP_HALF_TOPIC, later
    bench.move(transaction)
    bench.settle()
    assert (transaction.places, bench.transactions.idle()) == ([0, 1], [transaction])
    bench.refuse = None
    bench.transactions.end(transaction, Decision.ROLLBACK, None)
    bench.settle()
    assert (bench.marks(), len(bench.transactions)) == ([b"0", b"1"], 0)


def test_progress_stops_at_the_oldest_open_transaction_and_tables_stay_bounded(bench: Refusing) -> None:
    oldest = bench.half(b"0:oldest")
    for start in (1, MAX_MARKS // 2 + 1, MAX_MARKS + 1):
        for i in range(start, start + MAX_MARKS // 2):
            bench.open(b"%d:" % i, lambda _: None)
        bench.settle()
        for transaction in bench.transactions.idle()[1:]:
            bench.transactions.end(transaction, Decision.ROLLBACK, None)
        bench.settle()
    assert bench.transactions.idle() == [oldest]
    assert len(bench.transactions._marks) <= MAX_MARKS
    assert len(bench.transactions._settled) <= MAX_SETTLED
    bench.transactions.note_progress(bench.offsets)
    assert not bench.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0)
    bench.transactions.end(oldest, Decision.ROLLBACK, None)
    bench.settle()
    bench.transactions.note_progress(bench.offsets)
    end = bench.store.max_offset(HALF_TOPIC, 0)
    assert bench.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) == end
    assert bench.offsets.get(TRANSACTION_GROUP, OP_HALF_TOPIC, 0) == end
