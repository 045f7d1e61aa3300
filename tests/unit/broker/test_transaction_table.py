"""The table of open transactions, on a store in memory: what happens when something cannot be
stored, or comes at the same time.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from ogive.broker.transactions import state
from ogive.broker.transactions.half_messages import as_it_is, committed
from ogive.broker.transactions.state import MAX_MARKS, OpenTransaction
from ogive.broker.transactions.transaction_table import (
    MAX_MARKS_AT_ONCE,
    MAX_SETTLED,
    Transactions,
)
from ogive.errors import InvalidOption, StoreBusy, StoreError
from ogive.model import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from ogive.store.types import NewMessage, PutDone
from ogive.wire.codes import Decision
from tests.chaos.recorder import MemoryFs
from tests.rel.test_transaction_crashes import TOPIC, Bench
from tests.stores import HOST, Clock, read_queue


class Refusing(Bench):
    """Refuses messages for one topic, at once or later."""

    def __init__(self, fs: MemoryFs) -> None:
        self.refuse: str | None = None
        self.later = False
        self.failing: list[PutDone] = []
        self.fs = fs
        super().__init__(fs, "sync")
        self.transactions.start(self._put, HOST)

    def _put(self, messages: Sequence[NewMessage], done: PutDone) -> None:
        if self.refuse not in [message.topic for message in messages]:
            self.store.put(messages, done)
        elif self.later:
            self.failing.append(done)
        else:
            raise StoreBusy("too much waits")

    def settle(self) -> None:
        super().settle()
        while self.failing:
            self.failing.pop()(StoreBusy("too much waits"))

    def half(self, body: bytes = b"1:a") -> OpenTransaction:
        """An open transaction."""
        known = set(self.transactions.idle())
        self.open(body, lambda _: None)
        self.settle()
        [new] = set(self.transactions.idle()) - known
        return new

    def marks(self) -> list[int]:
        """The places that are marked, as Apache's 4.9 reads them: one in each mark."""
        return [int(record.body) for record in read_queue(self.store, OP_HALF_TOPIC, 0)]


@pytest.fixture
def bench() -> Iterator[Refusing]:
    bench = Refusing(MemoryFs())
    yield bench
    bench.store.close()


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


def test_the_time_from_the_half_message_to_the_commit_is_counted_in_seconds() -> None:
    bench = Refusing(MemoryFs())
    clock = Clock(Clock().now_ms + 90_000)
    bench.transactions = Transactions(bench.store, clock, 10_000)
    bench.transactions.start(bench.store.put, HOST)
    bench.transactions.end(bench.half(), Decision.COMMIT, None)
    bench.transactions.end(bench.half(b"2:b"), Decision.ROLLBACK, None)
    bench.settle()
    ages = bench.transactions.ended.of(TOPIC).ages.histogram()
    assert (ages.all, ages.total) == (1, 90.0)
    bench.store.close()


@pytest.mark.parametrize("decision", [Decision.COMMIT, Decision.ROLLBACK])
def test_an_end_and_its_mark_are_one_write(bench: Refusing, decision: Decision) -> None:
    """Whoever takes over the store after a kill, Apache's broker of any release, sees both or
    neither.
    """
    answers = list[StoreError | None]()
    first, second = bench.half(b"0:"), bench.half(b"1:")
    groups = bench.store.stats().groups
    bench.transactions.end(second, decision, answers.append)
    assert answers == []
    bench.store.submit()
    assert (answers, bench.marks(), bench.transactions.idle()) == ([None], [1], [first])
    assert bench.visible() == ({b"1:": 1} if decision is Decision.COMMIT else {})
    bench.settle()
    assert bench.store.stats().groups == groups + 1


def test_copies_of_a_half_message_are_all_marked_a_few_with_the_end(bench: Refusing) -> None:
    for _ in range(10):
        bench.open(b"1:a", lambda _: None)
    bench.settle()
    [transaction] = bench.transactions.idle()
    bench.transactions.end(transaction, Decision.COMMIT, None)
    bench.store.submit()
    assert bench.marks()[:MAX_MARKS_AT_ONCE] == [9, 8, 7, 6]
    bench.settle()
    assert (sorted(bench.marks()), len(bench.transactions)) == (list(range(10)), 0)
    # and one that comes after the end
    bench.open(b"1:a", lambda _: None)
    bench.settle()
    assert (sorted(bench.marks()), len(bench.transactions), bench.visible()) == (
        list(range(11)),
        0,
        {b"1:a": 1},
    )


def test_a_mark_that_is_refused_after_the_end_is_written_later(
    bench: Refusing, caplog: pytest.LogCaptureFixture
) -> None:
    transaction = bench.half()
    bench.transactions.end(transaction, Decision.COMMIT, None)
    bench.settle()
    bench.refuse = OP_HALF_TOPIC
    bench.open(b"1:a", lambda _: None)
    bench.settle()
    bench.later = True
    bench.transactions.write_marks()
    bench.settle()
    assert (bench.marks(), bench.transactions.idle(), len(caplog.messages)) == ([0], [], 2)
    bench.refuse = None
    bench.transactions.write_marks()
    bench.settle()
    assert (bench.marks(), len(bench.transactions)) == ([0, 1], 0)


def test_a_half_message_that_leaves_no_room_for_its_mark_is_refused(bench: Refusing) -> None:
    """A segment holds 16 KiB here. Its commit stands in one segment with its mark."""
    with pytest.raises(InvalidOption, match="do not fit a commit-log segment"):
        bench.open(b"1:" + bytes(15_500), lambda _: None)
    bench.transactions.end(bench.half(b"1:" + bytes(14_500)), Decision.COMMIT, None)
    bench.settle()
    assert (len(bench.visible()), bench.marks()) == (1, [0])


def test_a_start_reads_marks_of_many_places_as_apaches_5_writes_them(bench: Refusing) -> None:
    for number in range(4):
        bench.half(b"%d:" % number)
    bench.store.put([NewMessage(OP_HALF_TOPIC, 0, b"0,2,3,", b"TAGS\x01d\x02")], lambda _: None)
    bench.settle()
    bench.store.close()
    again = Refusing(bench.fs)
    assert [one.queue_offset for one in again.transactions.idle()] == [1]
    again.store.close()


def test_half_messages_in_memory_have_a_limit_and_are_read_from_the_log_beyond_it(
    bench: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MAX_READY_BYTES", 4000)
    open_ones = [bench.half(b"%d:%b" % (i, bytes(1000))) for i in range(5)]
    assert [bench.transactions.at(one.queue_offset, one.commitlog_offset) for one in open_ones] == [
        None,
        None,
        None,
        *open_ones[3:],
    ]
    for one in open_ones:
        bench.transactions.end(one, Decision.COMMIT, None)
    bench.settle()
    assert bench.visible() == {b"%d:%b" % (i, bytes(1000)): 1 for i in range(5)}
    assert (len(bench.transactions._ready), bench.transactions._ready.size_bytes) == (0, 0)


@pytest.mark.parametrize(
    "own", [{}, {"REAL_TOPIC": "elsewhere", "KEYS": "a b", "__CRC32#": "0123456789"}]
)
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
        assert (
            bench.transactions.at(transaction.queue_offset, transaction.commitlog_offset) is None
        ) == restart
        bench.transactions.end(transaction, Decision.COMMIT, None)
        bench.settle()
        [record] = [
            one for one in read_queue(bench.store, TOPIC, 0) if one.body == b"%d:x" % restart
        ]
        found.append(
            (
                record.properties[:-20].replace(b"\x011\x02", b"\x010\x02"),
                record.sys_flag,
                record.born_host,
                record.queue_id,
            )
        )
        assert bench.store.record_at(record.prepared_transaction_offset) is not None
        bench.store.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("queue", [2, 0])
def test_a_commit_without_its_mark_gets_it_at_the_start(bench: Refusing, queue: int) -> None:
    """As a crash of Apache's broker leaves it, which marks later, or a power cut in the middle of
    our one write. It is where it was sent or, where its topic was gone, in the first queue.
    """
    first, second = bench.half(b"0:"), bench.half(b"1:")
    bench.store.put(
        [committed(bench.transactions.half_message(first), HOST)._replace(queue_id=queue)],
        lambda _: None,
    )
    bench.settle()
    bench.store.close()
    again = Refusing(bench.fs)
    assert [one.queue_offset for one in again.transactions.idle()] == [second.queue_offset]
    assert (again.transactions.outcome(first.identity), again.marks(), again.visible()) == (
        Decision.COMMIT,
        [0],
        {b"0:": 1},
    )
    again.store.close()


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
def test_an_end_that_comes_while_the_half_message_moves_counts(
    bench: Refusing, decision: Decision
) -> None:
    transaction, answers = bench.half(), list[StoreError | None]()
    bench.move(transaction)
    bench.transactions.end(transaction, decision, answers.append)
    assert answers == []
    bench.settle()
    assert answers == [None]
    assert bench.visible() == ({b"1:a": 1} if decision is Decision.COMMIT else {})
    assert (bench.marks(), len(bench.transactions)) == ([0, 1], 0)


def test_who_waits_for_a_move_hears_of_it_where_the_end_that_came_meanwhile_is_impossible(
    bench: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else no transaction would ever be asked about again."""
    transaction, answers, moved = bench.half(), list[StoreError | None](), list[StoreError | None]()
    bench.transactions.move(
        transaction, as_it_is(bench.transactions.half_message(transaction), HOST), moved.append
    )
    bench.transactions.end(transaction, Decision.COMMIT, answers.append)

    def refusing(messages: Sequence[NewMessage], done: PutDone) -> None:
        raise InvalidOption("it fits no record")

    monkeypatch.setattr(bench.transactions, "_put", refusing)
    bench.settle()
    assert (moved, [str(answer) for answer in answers]) == ([None], ["it fits no record"])
    assert bench.transactions.idle() == [transaction]


@pytest.mark.parametrize("later", [False, True])
def test_a_move_that_is_refused_leaves_the_transaction_where_it_was(
    bench: Refusing, later: bool
) -> None:
    transaction, refused = bench.half(), later
    bench.refuse, bench.later = OP_HALF_TOPIC, later
    try:
        bench.move(transaction)
    except StoreBusy:
        refused = True
    bench.settle()
    assert (refused, transaction.places, bench.transactions.idle()) == (True, [0], [transaction])
    bench.refuse = None
    bench.transactions.end(transaction, Decision.ROLLBACK, None)
    bench.settle()
    assert (bench.marks(), len(bench.transactions)) == ([0], 0)


def test_progress_stops_at_the_oldest_open_transaction_and_tables_stay_bounded(
    bench: Refusing,
) -> None:
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
