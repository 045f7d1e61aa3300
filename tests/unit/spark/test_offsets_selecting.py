"""Which topics and queues the words of an option mean."""

import pytest

from ogive.errors import InvalidOption
from ogive.model import MessageQueue
from ogive.spark.offsets import assigned, matching


def test_a_pattern_covers_whole_names_and_no_topics_of_groups() -> None:
    topics = ["Orders", "Orders_eu", "Old_Orders", "%RETRY%Orders", "%DLQ%Orders"]
    assert matching("Orders.*", topics) == ["Orders", "Orders_eu"]
    assert matching(".*", topics) == ["Old_Orders", "Orders", "Orders_eu"]
    assert matching("%DLQ%.*", topics) == ["%DLQ%Orders"]


def test_assigned_queues_must_exist() -> None:
    known = [
        MessageQueue("Orders", broker, number)
        for broker in ("broker-a", "broker-b")
        for number in range(2)
    ]
    assert assigned({"Orders": {"": [1]}}, known) == [known[1], known[3]]
    assert assigned({"Orders": {"broker-b": [0, 1]}}, known) == known[2:]
    with pytest.raises(
        InvalidOption, match=r"assign names queue Orders/broker-c/0, which does not exist"
    ):
        assigned({"Orders": {"broker-c": [0]}}, known)
    with pytest.raises(InvalidOption, match=r"assign names queue Orders/\*/2"):
        assigned({"Orders": {"": [0, 2]}}, known)
