"""The table of open transactions, on a store in memory: what happens when something cannot be stored, or comes at the same time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from ogive.broker import transactions
from ogive.broker.transactions import MAX_MARK_BYTES, MAX_MARKS, MAX_SETTLED, Transaction
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
        self.transactions.start(self._put, HOST, self.call_later)

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
        """The places that are marked."""
        return [place for body in self.bodies() for place in body.split(b",")]

    def bodies(self) -> list[bytes]:
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


def test_commits_are_marked_together_after_their_answers(bench: Refusing) -> None:
    answers = list[StoreError | None]()
    for transaction in [bench.half(b"%d:" % i) for i in range(3)]:
        bench.transactions.end(transaction, Decision.COMMIT, answers.append)
    bench.store.submit()
    bench.store.submit()
    assert (answers, bench.bodies(), bench.transactions.idle()) == ([None] * 3, [], [])
    bench.settle()
    assert (bench.bodies(), len(bench.transactions)) == ([b"0,1,2"], 0)


def test_a_rollback_is_marked_at_once_and_takes_the_commits_before_it_along(bench: Refusing) -> None:
    answers = list[StoreError | None]()
    first, second = bench.half(b"0:"), bench.half(b"1:")
    bench.transactions.end(first, Decision.COMMIT, None)
    bench.store.submit()
    bench.transactions.end(second, Decision.ROLLBACK, answers.append)
    assert answers == []
    bench.store.submit()
    assert (answers, bench.bodies(), len(bench.transactions)) == ([None], [b"0,1"], 0)


def test_marks_have_a_limit_beyond_which_nothing_waits_for_more(bench: Refusing) -> None:
    for i in range(2500):
        bench.open(b"%d:" % i, lambda _: None)
    bench.settle()
    for transaction in bench.transactions.idle():
        bench.transactions.end(transaction, Decision.COMMIT, None)
    bench.store.submit()
    bench.store.submit()
    bodies = bench.bodies()
    assert len(bodies) > 1
    assert max(map(len, bodies)) <= MAX_MARK_BYTES
    bench.settle()
    assert sorted(map(int, bench.marks())) == list(range(2500))


def test_one_transaction_with_more_places_than_a_mark_can_hold_is_marked_in_several(bench: Refusing) -> None:
    for _ in range(1500):
        bench.open(b"1:a", lambda _: None)
    bench.settle()
    [transaction] = bench.transactions.idle()
    bench.transactions.end(transaction, Decision.ROLLBACK, None)
    bench.settle()
    assert max(map(len, bench.bodies())) <= MAX_MARK_BYTES
    assert (len(set(bench.marks())), len(bench.transactions)) == (1500, 0)


def test_half_messages_in_memory_have_a_limit_and_are_read_from_the_log_beyond_it(bench: Refusing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "MAX_READY_BYTES", 4000)
    open_ones = [bench.half(b"%d:%b" % (i, bytes(1000))) for i in range(5)]
    assert [bench.transactions.at(one.queue_offset, one.commitlog_offset) for one in open_ones] == [None, None, None, *open_ones[3:]]
    for one in open_ones:
        bench.transactions.end(one, Decision.COMMIT, None)
    bench.settle()
    assert bench.visible() == {b"%d:%b" % (i, bytes(1000)): 1 for i in range(5)}
    assert (len(bench.transactions._ready), bench.transactions._ready_bytes) == (0, 0)


@pytest.mark.parametrize("own", [{}, {"REAL_TOPIC": "elsewhere", "KEYS": "a b", "__CRC32#": "0123456789"}])
def test_a_commit_from_memory_is_the_same_as_one_from_the_log(own: dict[str, str]) -> None:
    """A start does not have the half messages in memory."""
    fs, found = MemoryFs(), []
    for restart in (False, True):
        bench = Refusing(fs)
        bench.open(b"%d:x" % restart, lambda _: None, own)
        bench.settle()
        if restart:
            bench.store.close()
            bench = Refusing(fs)
        [transaction] = bench.transactions.idle()
        assert (bench.transactions.at(transaction.queue_offset, transaction.commitlog_offset) is None) == restart
        bench.transactions.end(transaction, Decision.COMMIT, None)
        bench.settle()
        [record] = [one for one in read_queue(bench.store, TOPIC, 0) if one.body == b"%d:x" % restart]
        found.append((record.properties[:-20].replace(b"\x011\x02", b"\x010\x02"), record.sys_flag, record.born_host, record.queue_id))
        assert bench.store.record_at(record.prepared_transaction_offset) is not None
        bench.store.close()
    assert found[0] == found[1]


@contextmanager
def holding(bench: Refusing) -> Iterator[Callable[[], None]]:
    """Holds what is put; the yielded function fails it."""
    held: list[PutDone] = []
    bench.transactions.start(lambda _, done: held.append(done), HOST, bench.call_later)

    def fail() -> None:
        for done in held:
            done(StoreBusy("too much waits"))

    yield fail
    bench.transactions.start(bench._put, HOST, bench.call_later)


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
