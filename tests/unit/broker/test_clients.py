"""Who is connected, and what the log says of members that do not fit together."""

import logging
from typing import Any

import pytest

from ogive.broker.replies import Rejected
from ogive.broker.state import client_table
from ogive.broker.state.client_table import Client, ClientTable
from ogive.errors import InvalidExpression, ResponseCode
from ogive.transport.connection import Connection
from ogive.wire.bodies.clients import ConsumerData, SubscriptionData


@pytest.fixture
def table() -> ClientTable:
    return ClientTable(
        expiry_s=1, max_clients=10, max_subscriptions=10, now=lambda: 0.0, changed=lambda _: None
    )


def beat(
    table: ClientTable, client_id: str, connection: Any, version: int, **subscriptions: str
) -> None:
    wanted = tuple(
        SubscriptionData(topic=topic, expression=expression, version=version)
        for topic, expression in subscriptions.items()
    )
    data = ConsumerData(group="billing", subscriptions=wanted)
    table.register_consumer(data, Client(client_id, connection, 0, 0, 0.0))


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (
            {"Orders": "refunded"},
            "the subscriptions of member c2 differ from those of the others: it subscribes to "
            "Orders with 'refunded' instead of "
            "'paid'",
        ),
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
    (line,) = [
        record.getMessage() for record in caplog.records if "member c2" in record.getMessage()
    ]
    assert line.startswith("group billing: ")
    assert says in line


def test_a_member_that_is_alone_may_subscribe_to_something_else(
    table: ClientTable, caplog: pytest.LogCaptureFixture
) -> None:
    c1 = object()
    with caplog.at_level(logging.WARNING):
        beat(table, "c1", c1, 1, Orders="paid")
        beat(table, "c1", c1, 2, Orders="refunded", Prices="*")
    assert not caplog.records


def test_what_a_subscription_means_is_read_when_it_is_asked_for(
    table: ClientTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat of a thousand expressions would hold up everybody else for seconds."""
    read: list[str] = []

    def compiled(text: str) -> str:
        read.append(text)
        if text == "bad":
            raise InvalidExpression("no", text, 0)
        return f"compiled {text}"

    monkeypatch.setattr(client_table, "compiled", compiled)
    wanted = tuple(
        SubscriptionData.of_sql(topic, sql, 1)
        for topic, sql in (("Orders", "a = 1"), ("Prices", "bad"))
    )
    table.register_consumer(
        ConsumerData(group="billing", subscriptions=wanted),
        Client("c1", object(), 0, 0, 0.0),  # type: ignore[arg-type]
    )
    subscriptions = table.consumers["billing"].subscriptions
    assert not read
    for _ in range(2):
        assert (str(subscriptions["Orders"].wanted), subscriptions["Orders"].fault) == (
            "compiled a = 1",
            "",
        )
    assert "no" in subscriptions["Prices"].fault
    assert read == ["a = 1", "bad"]


class TestMemory:
    """Of subscriptions: bytes of one connection, and of all groups."""

    @pytest.fixture(autouse=True)
    def limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(client_table, "MAX_CONNECTION_BYTES", 20_000)
        monkeypatch.setattr(client_table, "MAX_BYTES", 50_000)

    @staticmethod
    def beat(
        table: ClientTable,
        group: str,
        connection: Any,
        size: int,
        version: int = 1,
        code: ResponseCode = ResponseCode.INVALID_PARAMETER,
    ) -> bool:
        """Return True if it is taken. If not, *code* is the answer."""
        data = ConsumerData(
            group=group,
            subscriptions=(
                SubscriptionData(topic="T", expression="x" * (size - 701), version=version),
            ),
        )
        try:
            table.register_consumer(data, Client("c", connection, 0, 0, 0.0))
        except Rejected as exc:
            refused = exc
        else:
            return True
        assert refused.code == code
        assert f"group {group} take {size} bytes" in refused.remark
        return False

    def test_of_one_connection(self, table: ClientTable) -> None:
        c1, c2 = object(), object()
        assert self.beat(table, "g1", c1, 15_000)
        assert self.beat(table, "g1", c1, 15_000)
        assert not self.beat(table, "g2", c1, 6_000)
        assert self.beat(table, "g2", c2, 6_000)
        assert self.beat(table, "g1", c1, 1_000, version=2)
        assert self.beat(table, "g2", c1, 6_000)
        assert self.beat(table, "g3", c1, 13_000)
        table.unregister_consumer("g3", c1)  # type: ignore[arg-type]
        assert self.beat(table, "g4", c1, 13_000)

    @pytest.mark.parametrize(
        ("data", "size"),
        [
            (
                SubscriptionData(topic="T", expression="||".join("abcdefghij")),
                601 + 28 + 1_000,
                # without hashes, as clients in C++ send it
            ),
            (SubscriptionData(topic="T", expression="*"), 602),
            (SubscriptionData.of_sql("T", "a = 1", 1), 601 + 5 + 1_500),
            (SubscriptionData(topic="T", expression="*", codes=tuple(range(1_000))), 602 + 100_000),
            (
                SubscriptionData(
                    topic="T", expression="a = 1", expression_type="SQL92", codes=tuple(range(10))
                ),
                601 + 5 + 1_500 + 1_000,
            ),
        ],
    )
    def test_the_filter_that_a_subscription_becomes_counts(
        self, data: SubscriptionData, size: int
    ) -> None:
        assert client_table.memory_of([data]) == size

    def test_of_all_groups(self, table: ClientTable) -> None:
        """A group counts once, however many members it has."""
        connections = [object() for _ in range(5)]
        for i in range(3):
            assert self.beat(table, f"g{i}", connections[i], 15_000)
        assert self.beat(table, "g0", connections[3], 15_000)
        assert not self.beat(table, "g3", connections[4], 5_001, code=ResponseCode.SYSTEM_BUSY)
        assert "g3" not in table.consumers
        assert self.beat(table, "g3", connections[4], 5_000)
        # who is there stays
        assert self.beat(table, "g2", connections[2], 15_000)
        table.drop(connections[1])  # type: ignore[arg-type]
        assert self.beat(table, "g4", connections[2], 5_000)

    @pytest.mark.parametrize("way", ["drop", "unregister"])
    def test_nothing_is_left_of_who_goes(self, table: ClientTable, way: str) -> None:
        c1, c2 = object(), object()
        for connection in (c1, c2):
            assert self.beat(table, "g", connection, 5_000)
        for connection in (c1, c2):
            if way == "unregister":
                table.unregister_consumer("g", connection)  # type: ignore[arg-type]
            table.drop(connection)  # type: ignore[arg-type]
        assert (table._bytes, table._bytes_of, len(table)) == (0, {}, 0)


def claim(
    table: ClientTable, group: str, connection: Connection, user: str = "", client_id: str = "c"
) -> None:
    """A heartbeat of a producer that calls itself by *client_id*."""
    table.register_producer(group, Client(client_id, connection, 0, 0, 0.0, user))


async def test_a_producer_is_found_by_its_id_as_long_as_it_is_in_any_group(
    table: ClientTable,
) -> None:
    first, second = Connection(), Connection()
    claim(table, "A", first)
    claim(table, "B", first)
    table.unregister_producer("A", first)
    assert table.producer_connection("c") is first
    # it connected again
    claim(table, "A", second)
    table.drop(first)
    assert table.producer_connection("c") is second
    claim(table, "A", second, client_id="renamed")
    assert (table.producer_connection("c"), table.producer_connection("renamed")) == (None, second)
    table.drop(second)
    assert table.producer_connection("renamed") is None


@pytest.mark.parametrize("owner_first", [True, False])
async def test_a_reply_goes_to_nobody_while_two_users_claim_one_id(
    table: ClientTable, owner_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """With access control: replies would go to whoever calls itself by the id of a client that
    waits for them, first or later.
    """
    owner, again, thief = Connection(), Connection(), Connection()
    users = [(owner, "alice"), (thief, "mallory")]
    for connection, user in users if owner_first else reversed(users):
        claim(table, "A", connection, user)
    assert table.producer_connection("c") is None
    for connection, user in users:
        claim(table, "A", connection, user)
    assert table.producer_connection("c") is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    table.drop(thief)
    assert table.producer_connection("c") is owner
    claim(table, "A", again, "alice")
    assert table.producer_connection("c") is again
    table.drop(owner)
    assert table.producer_connection("c") is again
    table.drop(again)
    assert table.producer_connection("c") is None
    assert not table._producing


async def test_an_owner_with_two_connections_keeps_others_away_with_each(
    table: ClientTable, caplog: pytest.LogCaptureFixture
) -> None:
    older, newer, thief = Connection(), Connection(), Connection()
    for connection in (older, newer):
        claim(table, "A", connection, "alice")
    assert table.producer_connection("c") is newer
    claim(table, "A", thief, "mallory")
    assert table.producer_connection("c") is None
    table.drop(newer)
    assert table.producer_connection("c") is None
    table.drop(thief)
    assert table.producer_connection("c") is older
    assert len(caplog.records) == 1


async def test_a_client_may_change_its_user(table: ClientTable) -> None:
    connection, thief = Connection(), Connection()
    for user in ("alice", "bob"):
        for group in ("A", "B"):
            claim(table, group, connection, user)
            assert table.producer_connection("c") is connection
    claim(table, "A", thief, "alice")
    assert table.producer_connection("c") is None
    table.drop(thief)
    table.unregister_producer("A", connection)
    assert table.producer_connection("c") is connection
    table.unregister_producer("B", connection)
    assert not table._producing


async def test_only_members_without_a_heartbeat_for_the_whole_time_are_expired() -> None:
    now = 100.0
    table = ClientTable(
        expiry_s=1, max_clients=10, max_subscriptions=10, now=lambda: now, changed=lambda _: None
    )
    silent, at_the_limit, live = Connection(), Connection(), Connection()
    for connection, seen_at in ((silent, 98.9), (at_the_limit, 99.0), (live, 99.9)):
        table.register_producer("A", Client("c", connection, 0, 0, seen_at))
        table.register_consumer(ConsumerData(group="G"), Client("c", connection, 0, 0, seen_at))
    assert table.expired() == [silent]
    now = 200.0
    assert table.expired() == [silent, at_the_limit, live]
