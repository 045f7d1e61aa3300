"""T25: the whole cluster in virtual time, with every fault at once; see tests/simulation."""

import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ogive.broker.pop import leases
from ogive.broker.pop.leases import Lease, LeaseBook
from ogive.broker.pop.revive import Reviver
from ogive.broker.transactions.transaction_table import Transactions
from ogive.client.consumer.other_members import Claims
from ogive.client.consumer.process_queue import ProcessQueue
from ogive.client.consumer.rebalance import Rebalancer
from ogive.model import MessageQueue
from tests.figures import figures
from tests.simulation.pops import tell_of_pops
from tests.simulation.story import tell

pytestmark = [pytest.mark.rel, pytest.mark.simulation, pytest.mark.computes(85)]

ROOT = Path(__file__).parents[2]
SEEDS = [
    int(line)
    for line in (ROOT / "tests" / "simulation" / "seeds.txt").read_text().split("\n")
    if line and not line.startswith("#")
]


def stories(seed: int, operations: int, count: int = 1, kind: str = "") -> dict[str, Any]:
    """Told by a process of their own, whose hashes are fixed; its last line.

    The limit of the test's time ends it, too.
    """
    command = [
        sys.executable,
        "-m",
        "tests.simulation",
        str(seed),
        str(operations),
        "--seeds",
        str(count),
    ]
    command += [f"--{kind}"] if kind else []
    done = subprocess.run(
        command,
        cwd=ROOT,
        # else it starts itself once more, with that
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return result


def summary(told: dict[str, Any]) -> dict[str, Any]:
    """What the stories come to, for their figures; of a story that went wrong there is none."""
    counts: dict[str, int] = told["counts"]
    transactions = sum(
        counts.get(f"transaction: {end}", 0) for end in ("commit", "roll back", "leave open")
    )
    sends = sum(
        count for name, count in counts.items() if name == "sent" or name.startswith("send: ")
    )
    return {
        "stories": told["stories"],
        "attempts": sends + transactions,
        "acknowledged": counts["sent"],
        "received": counts["received"],
        "lost": 0,
        "duplicates": counts["received again"],
        "faults": sum(count for name, count in counts.items() if name.startswith("fault: ")),
        "virtual_time_s": told["virtual_s"],
        "seconds": told["seconds"],
    }


@pytest.mark.quick
def test_whatever_fails_what_was_acknowledged_arrives() -> None:
    # these take 10 s of a processor; by night there are a thousand, four times as long
    with figures("T25", seed=0) as line:
        line.update(summary(stories(0, 500, 20)))


@pytest.mark.quick
@pytest.mark.parametrize("seed", SEEDS)
def test_a_story_that_went_wrong_once_goes_well(seed: int) -> None:
    stories(seed, 1000)


@pytest.mark.kills("a queue is taken over while another member has it")
@pytest.mark.quick
def test_members_come_and_go_and_only_their_deaths_cost_a_second_delivery() -> None:
    """Schedules of joins, leaves, restarts, kills, pauses, cuts, and requests that are lost, late
    or doubled.
    """
    # these take 8 s of a processor; by night there are ten thousand
    with figures("T25, members", seed=0) as line:
        line.update(summary(stories(0, 200, 25, "members")))


@pytest.mark.quick
def test_each_popped_message_is_in_one_state_at_any_time() -> None:
    """Not given out, leased, acknowledged or waiting in the retry topic, also after kills and power
    cuts; none comes again before its lease ends.
    """
    # these take 3 s of a processor; by night there are two thousand
    with figures("T25, pops", seed=0) as line:
        line.update(summary(stories(0, 400, 5, "pops")))


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["", "members", "pops"])
def test_a_seed_tells_one_story(kind: str) -> None:
    assert stories(3, 200, kind=kind)["traces"] == stories(3, 200, kind=kind)["traces"]


@pytest.mark.quick
def test_a_member_that_takes_a_queue_without_asking_who_has_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def all_of_them(
        self: Claims, topic: str, queues: Sequence[MessageQueue], others: Collection[str]
    ) -> list[MessageQueue]:
        return list(queues)

    monkeypatch.setattr(Claims, "free", all_of_them)
    assert any(
        "was delivered twice" in fault
        for seed in range(0, 60, 3)
        for fault in tell(seed, 200, members=True).faults
    )


@pytest.mark.quick
def test_a_queue_that_is_given_up_without_its_commit_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def forgotten(self: Rebalancer, process_queues: Iterable[ProcessQueue]) -> None:
        for process_queue in process_queues:
            self._drop(process_queue)
            self._group.store.forget(process_queue.queue)

    monkeypatch.setattr(Rebalancer, "_let_go", forgotten)
    assert any(
        "was delivered twice" in fault
        for seed in range(0, 60, 3)
        for fault in tell(seed, 200, members=True).faults
    )


@pytest.mark.quick
def test_a_broker_that_answers_before_it_syncs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ogive.store.commitlog.LogWriter.sync", lambda self: None)
    assert any(fault for seed in range(16, 40, 4) for fault in tell(seed, 400).faults)


@pytest.mark.quick
def test_a_transaction_that_is_committed_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    put_marked = Transactions._put_marked

    def put_twice(self: Transactions, transaction: Any, message: Any, done: Any) -> None:
        if message is not None:
            self._put((message,), lambda stored: None)
        put_marked(self, transaction, message, done)

    monkeypatch.setattr(Transactions, "_put_marked", put_twice)
    assert any("was committed at" in fault for seed in range(3) for fault in tell(seed, 100).faults)


def faults_of_pops(seeds: Iterable[int]) -> Iterable[str]:
    return (fault for seed in seeds for fault in tell_of_pops(seed, 200).faults)


@pytest.mark.quick
def test_a_lease_that_a_crash_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(leases._TAKERS, "l", lambda self, *values: None)
    assert any("is nowhere" in fault for fault in faults_of_pops(range(10)))


@pytest.mark.quick
def test_an_acknowledgement_that_is_answered_before_it_is_safe_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    acknowledge = LeaseBook.acknowledge

    def answer_first(self: LeaseBook, ended: Any, end: Any) -> None:
        end(None)
        acknowledge(self, ended, lambda error: None)

    monkeypatch.setattr(LeaseBook, "acknowledge", answer_first)
    assert any("is acknowledged, and comes" in fault for fault in faults_of_pops(range(14, 20)))


@pytest.mark.quick
def test_a_lease_that_ends_without_a_copy_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def put_nothing(self: Reviver, lease: Lease, bits: int, messages: Any) -> None:
        await self._end(lease, bits, 0)

    monkeypatch.setattr(Reviver, "_put", put_nothing)
    assert any("is nowhere" in fault for fault in faults_of_pops(range(3)))


@pytest.mark.quick
def test_a_lease_that_ends_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take = LeaseBook.take

    def take_for_less(self: LeaseBook, *arguments: Any) -> int:
        pop_time_ms = take(self, *arguments)
        for lease in self.all():
            if lease.key.pop_time_ms == pop_time_ms:
                lease.due_s -= 0.4
        return pop_time_ms

    monkeypatch.setattr(LeaseBook, "take", take_for_less)
    assert any("too early" in fault for fault in faults_of_pops(range(3)))


@pytest.mark.quick
def test_an_orderly_consumer_that_does_not_lock_its_queues_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "ogive.broker.state.queue_locks.QueueLocks.lock",
        lambda self, group, client_id, queues: list(queues),
    )
    assert any("both at queue" in fault for seed in range(10) for fault in tell(seed, 400).faults)


# 250 of these take 85 s of a processor, and 50 of those: on a shared machine a multiple of it
@pytest.mark.nightly
@pytest.mark.parametrize("first", range(10_000, 20_000, 250))
def test_ten_thousand_schedules_of_members(first: int) -> None:
    with figures("T25, members", nightly=True, seed=first) as line:
        line.update(summary(stories(first, 200, 250, "members")))


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(20_000, 22_000, 100))
def test_two_thousand_stories_of_members_that_pop(first: int) -> None:
    with figures("T25, pops", nightly=True, seed=first) as line:
        line.update(summary(stories(first, 500, 100, "pops")))


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1000, 2000, 50))
def test_a_thousand_stories_of_two_thousand_operations(first: int) -> None:
    with figures("T25", nightly=True, seed=first) as line:
        line.update(summary(stories(first, 2000, 50)))
