"""Who is connected, and what the log says of members that do not fit together."""

import logging
from typing import Any

import pytest

from ogive.broker import clients
from ogive.broker.clients import Client, ClientTable
from ogive.errors import InvalidExpression
from ogive.wire.bodies import ConsumerData, SubscriptionData


@pytest.fixture
def table() -> ClientTable:
    return ClientTable(expiry_s=1, max_clients=10, max_subscriptions=10, now=lambda: 0.0, changed=lambda _: None)


def beat(table: ClientTable, client_id: str, connection: Any, version: int, **subscriptions: str) -> None:
    wanted = tuple(SubscriptionData(topic=topic, expression=expression, version=version) for topic, expression in subscriptions.items())
    data = ConsumerData(group="billing", subscriptions=wanted)
    table.register_consumer(data, Client(client_id, connection, 0, 0, 0.0))


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ({"Orders": "refunded"}, "member c2 differs from the others: it subscribes to Orders with 'refunded' instead of 'paid'"),
        ({"Orders": "paid", "Prices": "*"}, "it subscribes to Prices"),
        ({"Prices": "*"}, "it does not subscribe to Orders"),
    ],
)
def test_members_that_subscribe_differently_are_named_once(
    table: ClientTable, caplog: pytest.LogCaptureFixture, second: dict[str, str], says: str
) -> None:
    c1, c2 = object(), object()
    with caplog.at_level(logging.WARNING):
        beat(table, "c1", c1, 1, Orders="paid")
        beat(table, "c1", c1, 1, Orders="paid")
        assert not caplog.records
        for _ in range(3):
            beat(table, "c2", c2, 2, **second)
    (line,) = [record.getMessage() for record in caplog.records if "member c2" in record.getMessage()]
    assert line.startswith("group billing: ")
    assert says in line


def test_a_member_that_is_alone_may_subscribe_to_something_else(table: ClientTable, caplog: pytest.LogCaptureFixture) -> None:
    c1 = object()
    with caplog.at_level(logging.WARNING):
        beat(table, "c1", c1, 1, Orders="paid")
        beat(table, "c1", c1, 2, Orders="refunded", Prices="*")
    assert not caplog.records


def test_what_a_subscription_means_is_read_when_it_is_asked_for(table: ClientTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat of a thousand expressions would hold up everybody else for seconds."""
    read: list[str] = []

    def compiled(text: str) -> str:
        read.append(text)
        if text == "bad":
            raise InvalidExpression("no", text, 0)
        return f"compiled {text}"

    monkeypatch.setattr(clients, "compiled", compiled)
    wanted = tuple(SubscriptionData.of_sql(topic, sql, 1) for topic, sql in (("Orders", "a = 1"), ("Prices", "bad")))
    table.register_consumer(ConsumerData(group="billing", subscriptions=wanted), Client("c1", object(), 0, 0, 0.0))  # type: ignore[arg-type]
    subscriptions = table.consumers["billing"].subscriptions
    assert not read
    for _ in range(2):
        assert (str(subscriptions["Orders"].wanted), subscriptions["Orders"].fault) == ("compiled a = 1", "")
    assert "no" in subscriptions["Prices"].fault
    assert read == ["a = 1", "bad"]
