"""Transactions after a crash at any point: whatever a disk kept, each is committed once, rolled
back, or still open; never two of these.
"""

import json
import logging
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from ogive.broker.state.offset_table import OffsetTable
from ogive.broker.transactions import state
from ogive.broker.transactions.half_messages import redirect_half
from ogive.broker.transactions.state import OpenTransaction
from ogive.broker.transactions.transaction_table import Transactions
from ogive.errors import StoreError
from ogive.model import HALF_TOPIC, OP_HALF_TOPIC
from ogive.store import JsonTable, MessageStore, NewMessage
from ogive.store.types import PutDone
from ogive.wire.codes import Decision
from ogive.wire.message import decode_properties, encode_properties
from tests.chaos.recorder import MemoryFs, RecorderFs, images
from tests.chaos.workload import config
from tests.stores import HOST, Clock, InlineWriter, read_queue, run_now

pytestmark = [pytest.mark.rel, pytest.mark.quick]

ROOT = Path("/store")
TOPIC = "Paid"


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class Fact:
    """Acknowledged about the transaction of *body*: it is open, or how it ended."""

    body: bytes
    decision: Decision | None


@dataclass(slots=True)
class Ledger:
    """What was tried."""

    bodies: set[bytes] = field(default_factory=set)
    tried: dict[bytes, Decision] = field(default_factory=dict)
    given_up: set[bytes] = field(default_factory=set)


class Bench:
    """A store without threads and the transactions in it, as a broker has them."""

    def __init__(self, fs: MemoryFs, flush: Any) -> None:
        self.store = MessageStore.open(config(flush), fs=fs, clock_ms=Clock())
        self.file = JsonTable(fs, ROOT / "config" / "consumerOffset.json")
        self.offsets = OffsetTable(1000)
        self.offsets.load(self.file.load() or {})
        self.offsets.cut(self.store.max_offset)
        self.transactions = Transactions(self.store, Clock(), 10_000)
        self.transactions.recover(self.offsets)
        self.store.start(run_now, writer=InlineWriter)
        self.transactions.start(self.store.put, HOST)
        self.settle()

    def settle(self) -> None:
        """Store what was put, and what was put because of that."""
        for _ in range(8):
            self.store.submit()

    def open(
        self, body: bytes, done: PutDone, own: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        properties = {
            "UNIQ_KEY": body.partition(b":")[0].decode(),
            "TRAN_MSG": "true",
            "PGROUP": "shop",
            **own,
        }
        topic, queue_id = redirect_half(properties, TOPIC, len(body) % 3)
        message = NewMessage(
            topic,
            queue_id,
            body,
            encode_properties(properties),
            born_timestamp_ms=1,
            born_host=HOST,
            store_host=HOST,
        )
        self.store.put([message], self.transactions.accept(message, properties, done))

    def move(self, transaction: OpenTransaction) -> None:
        half = self.transactions.half_message(transaction)
        properties = decode_properties(half.properties) | {"TRANSACTION_CHECK_TIMES": "1"}
        properties.pop("__CRC32#", None)
        copy = NewMessage(
            HALF_TOPIC,
            0,
            half.body,
            encode_properties(properties),
            0,
            0,
            half.born_timestamp_ms,
            half.born_host,
            HOST,
        )
        self.transactions.move(transaction, copy, lambda _: None)

    def save(self) -> None:
        self.transactions.note_progress(self.offsets)
        self.file.save(self.offsets.snapshot()())

    def body(self, transaction: OpenTransaction) -> bytes:
        return self.transactions.half_message(transaction).body

    def apaches_open(self) -> set[bytes]:
        """Of what Apache's broker, 4.9 too, would ask about: half messages whose place no mark
        names.
        """
        marked = {int(record.body) for record in read_queue(self.store, OP_HALF_TOPIC, 0)}
        return {
            record.body
            for record in read_queue(self.store, HALF_TOPIC, 0)
            if record.queue_offset not in marked
        }

    def visible(self) -> Counter[bytes]:
        return Counter(
            record.body for queue in range(3) for record in read_queue(self.store, TOPIC, queue)
        )


def run_script(fs: RecorderFs, flush: Any, seed: int, steps: int) -> Ledger:
    """Opens, ends, moves, saves and clean restarts, all in one order of events."""
    rng = random.Random(seed)
    ledger = Ledger()
    bench = Bench(fs, flush)

    def opened(body: bytes, answer: Any) -> None:
        assert not isinstance(answer, StoreError)
        fs.ack(Fact(body, None))

    def ended(body: bytes, decision: Decision, error: StoreError | None) -> None:
        assert error is None
        fs.ack(Fact(body, decision))

    for _ in range(steps):
        idle = bench.transactions.idle()
        choice = rng.random()
        if choice < 0.40 or not idle:
            body = b"%d:" % len(ledger.bodies) + rng.randbytes(rng.choice((1, 30, 200, 1500)))
            ledger.bodies.add(body)
            bench.open(body, partial(opened, body))
            if rng.random() < 0.1:
                bench.open(body, partial(opened, body))
        elif choice < 0.75:
            transaction = rng.choice(idle)
            body = bench.body(transaction)
            decision = rng.choice((Decision.COMMIT, Decision.ROLLBACK))
            ledger.tried[body] = decision
            bench.transactions.end(transaction, decision, partial(ended, body, decision))
        elif choice < 0.93:
            bench.move(rng.choice(idle))
        elif choice < 0.97:
            bench.store.sync(bench.save)
        else:
            bench.settle()
            # as a broker does: what progress speaks of is safe first
            bench.store.sync(bench.save)
            bench.store.close()
            bench = Bench(fs, flush)
        if rng.random() < 0.5:
            bench.store.submit()
    bench.settle()
    return ledger


def faults(image: MemoryFs, acked: list[Any], ledger: Ledger, flush: Any) -> Iterator[str]:
    """What is wrong after a start on *image*; then everything open is committed, and the count
    looked at once more.

    With flush=async the newest acknowledgements may be lost; what survives of a transaction must be
    whole all the same.
    """
    facts: dict[bytes, Decision | None] = {}
    for fact in acked:
        facts[fact.body] = fact.decision if fact.decision is not None else facts.get(fact.body)
    bench = Bench(image, flush)
    try:
        visible = bench.visible()
        seen_by_others = bench.apaches_open()
        if flush == "async":
            facts = dict.fromkeys(
                (record.body for record in read_queue(bench.store, HALF_TOPIC, 0)), None
            )
        still_open = {bench.body(transaction) for transaction in bench.transactions.idle()}
        for body in ledger.bodies:
            name, tried = body.partition(b":")[0].decode(), ledger.tried.get(body)
            if visible[body] > (tried is Decision.COMMIT):
                yield f"{name}: visible {visible[body]} times, tried {tried}"
            if visible[body] and body in still_open:
                yield f"{name}: committed and open"
            if (
                body in facts
                and facts[body] is None
                and body not in still_open
                and not visible[body]
                and tried is not Decision.ROLLBACK
            ):
                yield f"{name}: neither open nor committed, tried {tried}"
            if facts.get(body) is Decision.COMMIT and not visible[body]:
                yield f"{name}: an acknowledged commit is lost"
            if facts.get(body) is Decision.ROLLBACK and body in still_open:
                yield f"{name}: an acknowledged rollback is open"
        if still_open != seen_by_others:
            yield (
                f"{len(still_open ^ seen_by_others)} transactions are open for us or for "
                "Apache's broker only"
            )
        yield from faults_of_commits(bench, still_open)
    finally:
        bench.store.close()


def faults_of_commits(bench: Bench, still_open: set[bytes]) -> Iterator[str]:
    """What is wrong when everything open is committed."""
    for transaction in bench.transactions.idle():
        bench.transactions.end(transaction, Decision.COMMIT, None)
    bench.settle()
    again = bench.visible()
    if any(count > 1 for count in again.values()):
        yield (
            "committed twice: "
            f"{[body.partition(b':')[0] for body, count in again.items() if count > 1]}"
        )
    if still_open - again.keys():
        yield "an open transaction could not be committed"


def alarms(
    flush: Any, seeds: range = range(4), steps: int = 150, per_seed: int = 150
) -> tuple[int, list[str]]:
    found: list[str] = []
    count = 0
    for seed in seeds:
        fs = RecorderFs()
        ledger = run_script(fs, flush, seed, steps)
        for image, acked in images(fs, per_seed, random.Random(seed)):
            count += 1
            found += [f"seed {seed}: {fault}" for fault in faults(image, acked, ledger, flush)]
    return count, found


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_power_cut_at_any_point_leaves_each_transaction_in_one_state(flush: str) -> None:
    count, found = alarms(flush)
    print(
        json.dumps(
            {
                "test": "transactions, power loss",
                "flush": flush,
                "images": count,
                "alarms": len(found),
            }
        )
    )
    assert not found, found[:5]


class Credulous(Transactions):
    """Planted fault: a mark is believed whatever became of the record that was written with it."""

    def recover(self, offsets: OffsetTable) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(state, "_counts", lambda _store, _mark: True)
            super().recover(offsets)


class Stubborn(Transactions):
    """Planted fault: what a mark without its commit speaks of stays where it is, and another broker
    believes the mark.
    """

    def _move_away(self, transaction: OpenTransaction) -> None:
        pass


class LeavesEarly(Transactions):
    """Planted fault: the old place is marked whether the new one becomes safe or not."""

    def move(self, transaction: OpenTransaction, message: NewMessage, moved: Any) -> None:
        self._put([self._mark(place) for place in transaction.places], lambda _: None)
        super().move(transaction, message, moved)


@pytest.mark.parametrize("fault", [Credulous, Stubborn, LeavesEarly])
def test_a_planted_fault_is_caught(
    fault: type[Transactions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.rel.test_transaction_crashes.Transactions", fault)
    # the first one is enough
    assert any(alarms("sync", range(seed, seed + 1))[1] for seed in range(24))
