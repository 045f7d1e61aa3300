"""What a route means to producers and consumers."""

import itertools
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogive.client.routes import (
    auto_create_route,
    broker_addresses,
    publish_queues,
    similar_topics,
    split_by_size,
    subscribe_queues,
)
from ogive.errors import ProtocolError
from ogive.model import MessageQueue
from ogive.wire.bodies.routes import BrokerData, QueueData, TopicRouteData


def rows(*data: tuple[str, int, int, int]) -> tuple[QueueData, ...]:
    return tuple(
        QueueData(broker_name=name, read_queues=r, write_queues=w, perm=perm)
        for name, r, w, perm in data
    )


def brokers(**addresses: dict[int, str]) -> tuple[BrokerData, ...]:
    return tuple(
        BrokerData(cluster="c", broker_name=name, addresses=table)
        for name, table in addresses.items()
    )


def names(queues: tuple[MessageQueue, ...]) -> list[tuple[str, int]]:
    return [(queue.broker_name, queue.queue_id) for queue in queues]


@pytest.mark.feature(160)
def test_producers_see_writable_queues_of_brokers_with_a_master_in_order_of_name() -> None:
    route = TopicRouteData(
        queues=rows(("b", 1, 2, 6), ("a", 2, 1, 6), ("readonly", 4, 4, 4), ("headless", 4, 4, 6)),
        brokers=brokers(
            b={0: "b:1"}, a={0: "a:1", 1: "a:2"}, readonly={0: "r:1"}, headless={1: "h:2"}
        ),
    )
    assert names(publish_queues("T", route)) == [("a", 0), ("b", 0), ("b", 1)]


@pytest.mark.feature(159, 160)
def test_consumers_see_readable_queues_of_slaves_too() -> None:
    route = TopicRouteData(
        queues=rows(("b", 1, 2, 6), ("writeonly", 4, 4, 2), ("headless", 2, 4, 4)),
        brokers=brokers(b={0: "b:1"}, headless={1: "h:2"}),
    )
    assert names(subscribe_queues("T", route)) == [("b", 0), ("headless", 0), ("headless", 1)]


def test_an_order_configuration_names_the_queues_itself() -> None:
    route = TopicRouteData(
        queues=rows(("a", 8, 8, 6)),
        brokers=brokers(a={0: "a:1"}),
        order_topic_conf="b:2;a:1;odd;:3;c:x",
    )
    assert names(publish_queues("T", route)) == [("b", 0), ("b", 1), ("a", 0)]


def test_each_brokers_addresses_are_those_of_the_last_route_that_names_it() -> None:
    routes = [
        TopicRouteData(queues=(), brokers=brokers(a={0: "a:1", 1: "slave:1"}, b={0: "b:1"})),
        TopicRouteData(queues=(), brokers=brokers(a={0: "a:2"})),
    ]
    assert broker_addresses(routes) == {"a": {0: "a:2"}, "b": {0: "b:1"}}


@pytest.mark.parametrize(
    "route",
    [
        TopicRouteData(queues=(), brokers=(), order_topic_conf="a:999999999"),
        TopicRouteData(queues=(), brokers=(), order_topic_conf=";".join(["a:65536"] * 50_000)),
        TopicRouteData(
            queues=rows(*[("a", 65_536, 65_536, 6)] * 50_000), brokers=brokers(a={0: "a:1"})
        ),
    ],
)
def test_a_route_of_more_queues_than_memory_holds_is_refused(route: TopicRouteData) -> None:
    with pytest.raises(ProtocolError, match="queues"):
        publish_queues("T", route)
    if route.queues:
        with pytest.raises(ProtocolError, match="queues"):
            subscribe_queues("T", route)


def test_a_topic_to_be_created_gets_no_more_queues_than_it_will_have() -> None:
    template = TopicRouteData(
        queues=rows(("a", 8, 8, 7), ("b", 2, 2, 7)), brokers=brokers(a={0: "a:1"}, b={0: "b:1"})
    )
    assert names(publish_queues("New", auto_create_route(template, 4))) == [
        ("a", i) for i in range(4)
    ] + [("b", 0), ("b", 1)]


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("Ordres", ["Orders", "OrdersEU"]),
        ("orders", ["Orders", "OrdersEU"]),
        ("Zebra", []),
        ("OrderEU", ["OrdersEU", "Orders"]),
    ],
)
def test_similar_topics_are_likely_misspellings(topic: str, expected: list[str]) -> None:
    assert similar_topics(topic, ["Orders", "OrdersEU", "Prices", "%RETRY%Ordres"]) == expected


def test_advice_about_a_misspelling_looks_at_a_bounded_number_of_names() -> None:
    """A name server that has too many of them, or makes them up, holds up nobody's loop."""
    assert similar_topics("Ordres", itertools.chain(["Orders"], itertools.repeat("x" * 1000))) == [
        "Orders"
    ]


@given(st.lists(st.integers(1, 50)), st.integers(1, 100), st.integers(1, 10))
def test_splitting_keeps_every_item_once_in_order_and_within_the_limits(
    sizes: list[int], limit: int, max_count: int
) -> None:
    parts = [sizes[part] for part in split_by_size(sizes, limit, max_count)]
    assert [size for part in parts for size in part] == sizes
    assert all(
        0 < len(part) <= max_count and (sum(part) <= limit or len(part) == 1) for part in parts
    )
    assert all(sum(a) + b[0] > limit or len(a) == max_count for a, b in pairwise(parts))


@pytest.mark.feature(110)
def test_queues_sort_by_topic_broker_and_number_and_equal_ones_are_one() -> None:
    """All members of a group must see the same order: Java's, in which queue 10 comes behind queue
    9.
    """
    queues = [
        MessageQueue(topic, broker, queue_id)
        for topic in ("A", "B")
        for broker in ("a-2", "b-1")
        for queue_id in (0, 9, 10)
    ]
    assert sorted(set(queues)) == queues
    assert len(
        {
            *queues,
            *(MessageQueue(queue.topic, queue.broker_name, queue.queue_id) for queue in queues),
        }
    ) == len(queues)
