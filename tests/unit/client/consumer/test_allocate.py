"""Allocation gives what Apache's own classes give: members of one group on different SDKs must
agree.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from ogive.client.consumer.allocate import (
    Strategy,
    average,
    average_by_circle,
    by_config,
    consistent_hash,
    machine_room,
    machine_room_nearby,
)
from ogive.errors import InvalidOption
from ogive.model import MessageQueue

VECTORS = Path(__file__).parents[3] / "vectors" / "allocations.jsonl"

STRATEGIES: dict[str, Strategy] = {
    "AVG": average,
    "AVG_BY_CIRCLE": average_by_circle,
    "CONSISTENT_HASH": consistent_hash(10),
    "CONSISTENT_HASH-100": consistent_hash(100),
    "MACHINE_ROOM": machine_room({"room1", "room2"}),
    "MACHINE_ROOM_NEARBY-AVG": machine_room_nearby(
        average, lambda queue: queue.broker_name.split("@")[0], lambda member: member.split("@")[0]
    ),
}


def load() -> dict[str, list[dict[str, Any]]]:
    cases: dict[str, list[dict[str, Any]]] = {}
    for line in VECTORS.read_text().splitlines():
        case = json.loads(line)
        cases.setdefault(case["strategy"], []).append(case)
    return cases


CASES = load()


@pytest.mark.feature(2, 168, 169, 170, 171)
@pytest.mark.parametrize("name", CASES)
def test_vectors_of_apache(name: str) -> None:
    for case in CASES[name]:
        queues = sorted(
            MessageQueue(case["topic"], broker, i)
            for broker in case["brokers"]
            for i in range(case["queues_each"])
        )
        members = sorted(case["members"])
        owner = {
            queue: i
            for i, member in enumerate(members)
            for queue in STRATEGIES[name](queues, members, member)
        }
        assert [owner.get(queue, -1) for queue in queues] == case["owner"], case


def test_a_member_without_a_room_is_an_error() -> None:
    nearby = machine_room_nearby(
        average, lambda _: "room1", lambda member: "" if member == "lost" else "room1"
    )
    with pytest.raises(InvalidOption, match="lost"):
        nearby([MessageQueue("Orders", "broker-a", 0)], ["found", "lost"], "found")


def test_a_ring_without_points_is_refused() -> None:
    with pytest.raises(InvalidOption):
        consistent_hash(0)


@pytest.mark.feature(171)
def test_a_member_that_leaves_a_ring_moves_only_its_own_queues() -> None:
    queues = [
        MessageQueue("Orders", broker, i) for broker in ("broker-a", "broker-b") for i in range(32)
    ]
    members = [f"10.0.0.{i}@{1000 + i}#{i}" for i in range(6)]
    strategy = consistent_hash()
    before = {queue: member for member in members for queue in strategy(queues, members, member)}
    left, *stay = members
    after = {queue: member for member in stay for queue in strategy(queues, stay, member)}
    assert left in before.values()
    assert {queue for queue in queues if before[queue] != after[queue]} == {
        queue for queue, owner in before.items() if owner == left
    }


def test_configured_queues_are_taken_whoever_is_there() -> None:
    """Those of several topics may stand in one list; one that is not there is passed over."""
    orders = [MessageQueue("Orders", "broker-a", i) for i in range(4)]
    strategy = by_config(
        [orders[2], MessageQueue("Orders", "broker-z", 0), MessageQueue("Refunds", "broker-a", 0)]
    )
    assert strategy(orders, ["me", "others"], "me") == [orders[2]]
    assert strategy([MessageQueue("Refunds", "broker-a", 0)], ["me"], "me") == [
        MessageQueue("Refunds", "broker-a", 0)
    ]
