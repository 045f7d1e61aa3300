"""What other numbers of queues mean, without a broker."""

import pytest

from ogive.client.admin import BrokerTopic, Topic
from ogive.client.admin.effects import check_queues, queue_notes
from ogive.errors import InvalidOption


def at(broker: str, reads: int, writes: int) -> BrokerTopic:
    return BrokerTopic(
        broker=broker,
        cluster="c",
        address="h:1",
        read_queues=reads,
        write_queues=writes,
        perm="rw",
        order=False,
        attributes={},
    )


def topic(*rows: BrokerTopic) -> Topic:
    return Topic(name="Orders", kind="application", message_type=None, brokers=rows, groups=())


@pytest.mark.parametrize(
    ("reads", "writes", "said"),
    [
        (8, 8, ["sharding key", "take over new queues"]),
        (None, 2, ["sharding key", "`ogive topic update Orders --read-queues 2`"]),
        (2, 2, ["sharding key", "senders that know the old queues are refused"]),
        (2, None, []),
        (4, 4, []),
        (8, None, []),
        (None, None, []),
    ],
)
def test_each_change_of_queues_comes_with_what_it_does_to_senders_and_groups(
    reads: int | None, writes: int | None, said: list[str]
) -> None:
    found = queue_notes(topic(at("a", 4, 4)), reads, writes)
    assert len(found) == len(said)
    assert all(word in note for word, note in zip(said, found, strict=True))


def test_queues_that_nobody_would_read_are_refused() -> None:
    rows = (at("a", 4, 4), at("b", 8, 8))
    for reads, writes in ((None, 6), (2, None), (2, 3)):
        with pytest.raises(InvalidOption, match="to read on a: nobody would get"):
            check_queues(rows, reads, writes)
    check_queues(rows, 8, 8)
    check_queues(rows, None, 4)
    check_queues(rows, None, None)
