"""A broker keeps its name servers informed.

The name servers here are sockets that answer as the test says.
"""

import logging
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from ogive.broker import registration as registrations
from ogive.broker.registration import Registration
from ogive.broker.state.topic_table import TopicTable
from ogive.store.fs import OsFs
from ogive.store.tables import JsonTable
from ogive.transport.connection import Connection, connect
from ogive.wire.bodies.configs import TopicConfig
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from tests.unit.broker.fake_name_server import LIMIT_S, FakeNameServer


@pytest.fixture
def topics(tmp_path: Path) -> TopicTable:
    file = JsonTable(OsFs(), tmp_path / "topics.json")
    return TopicTable(file, cluster="C", broker_name="b", auto_create=True, now_ms=lambda: 1234)


Start = Callable[..., Awaitable[Registration]]


@pytest.fixture
async def register(topics: TopicTable) -> AsyncIterator[Start]:
    """Starts a registration at these name servers; it is stopped at the end, and the table is
    saved.
    """
    async with AsyncExitStack() as stack:

        async def start(
            *servers: FakeNameServer, period_s: float = 30.0, timeout_s: float = LIMIT_S
        ) -> Registration:
            names: dict[str, Any] = {
                "cluster": "C",
                "broker_name": "b",
                "broker_id": 0,
                "address": "127.0.0.1:10911",
            }
            addresses = tuple(server.address for server in servers)
            registration = Registration(
                topics, name_servers=addresses, period_s=period_s, timeout_s=timeout_s, **names
            )
            await registration.start()
            stack.push_async_callback(registration.stop)
            return registration

        yield start
    await topics.saved()


@pytest.fixture
async def servers() -> AsyncIterator[tuple[FakeNameServer, FakeNameServer]]:
    pair = FakeNameServer(), FakeNameServer()
    for server in pair:
        await server.start()
    yield pair
    for server in pair:
        await server.stop()


async def test_after_the_start_every_name_server_holds_the_whole_table(
    register: Start, topics: TopicTable, servers: tuple[FakeNameServer, FakeNameServer]
) -> None:
    await register(*servers)
    for server in servers:
        assert server.held is not None
        assert (dict(server.held.topics), server.held.data_version) == (
            dict(topics.all()),
            topics.data_version,
        )
        (request,) = server.requests
        assert request.ext_fields == {
            "brokerName": "b",
            "brokerAddr": "127.0.0.1:10911",
            "clusterName": "C",
            "haServerAddr": "",
            "brokerId": "0",
            "compressed": "false",
            "bodyCrc32": str(zlib.crc32(request.body) & 0x7FFFFFFF),
            "heartbeatTimeoutMillis": "120000",
        }


async def test_a_change_is_registered_at_once_and_several_together(
    register: Start, topics: TopicTable, servers: tuple[FakeNameServer, FakeNameServer]
) -> None:
    registration = await register(*servers)
    for number in range(50):
        topics.create_or_update(TopicConfig(name=f"T{number}"))
    await registration.registered()
    for server in servers:
        assert server.holds("T49")
        assert server.codes() == [RequestCode.REGISTER_BROKER] * 2


def many(topics: TopicTable, count: int, **settings: Any) -> None:
    """Topics, and the retry topics of half as many groups, past the files."""
    names = [f"Topic{number}" for number in range(count)] + [
        f"%RETRY%Group{number}" for number in range(count // 2)
    ]
    topics._configs |= {name: TopicConfig(name=name, **settings) for name in names}


def forms(server: FakeNameServer) -> list[tuple[str, int]]:
    """Of each registration whether it was compressed, and its length."""
    return [
        (c.ext_fields["compressed"], len(c.body))
        for c in server.requests
        if c.code == RequestCode.REGISTER_BROKER
    ]


async def test_ten_thousand_topics_and_five_thousand_groups_are_registered_with_less_than_2_mib(
    register: Start, topics: TopicTable, servers: tuple[FakeNameServer, FakeNameServer]
) -> None:
    many(topics, 10_000)
    server = servers[0]
    await register(server)
    assert server.held is not None
    assert (dict(server.held.topics), server.held.data_version) == (
        dict(topics.all()),
        topics.data_version,
    )
    ((compressed, size),) = forms(server)
    assert compressed == "true"
    assert size < 256 * 1024
    (request,) = server.requests
    assert request.ext_fields["bodyCrc32"] == str(zlib.crc32(request.body) & 0x7FFFFFFF)


async def test_topics_with_flags_that_the_compressed_form_cannot_hold_are_registered_without(
    register: Start, topics: TopicTable, servers: tuple[FakeNameServer, FakeNameServer]
) -> None:
    many(topics, 1_000, sys_flag=1)
    await register(servers[0])
    assert servers[0].held is not None
    assert servers[0].held.topics["Topic0"].sys_flag == 1


@pytest.mark.parametrize("way", ["refuses", "drops"])
async def test_a_name_server_that_cannot_read_the_compressed_form_gets_the_other(
    way: str,
    register: Start,
    topics: TopicTable,
    servers: tuple[FakeNameServer, FakeNameServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registrations, "FIRST_RETRY_S", 0.01)
    many(topics, 1_000)
    plain, other = servers
    plain.plain_only = way
    registration = await register(plain, other)
    await plain.until(lambda: plain.holds("Topic0"))
    assert [compressed for compressed, _ in forms(plain)] == ["true", "false"]
    topics.create_or_update(TopicConfig(name="T"))
    await registration.registered()
    await plain.until(lambda: plain.holds("T"))
    assert [compressed for compressed, _ in forms(plain)][2:] == (
        ["false"] if way == "refuses" else ["true", "false"]
    )
    assert {compressed for compressed, _ in forms(other)} == {"true"}


async def test_between_changes_the_name_server_is_asked_whether_it_still_holds_the_table(
    register: Start, servers: tuple[FakeNameServer, FakeNameServer]
) -> None:
    server = servers[0]
    await register(server, period_s=0.01)
    await server.until(lambda: server.codes().count(RequestCode.QUERY_DATA_VERSION) >= 3)
    assert server.codes().count(RequestCode.REGISTER_BROKER) == 1
    server.held = None
    await server.until(lambda: server.held is not None)
    assert server.codes().count(RequestCode.REGISTER_BROKER) == 2


async def test_a_dead_and_a_silent_name_server_hold_up_no_other(
    register: Start,
    topics: TopicTable,
    servers: tuple[FakeNameServer, FakeNameServer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    silent, good = servers
    silent.answers = False
    dead = FakeNameServer()
    await dead.start()
    await dead.stop()
    with caplog.at_level(logging.WARNING):
        registration = await register(dead, silent, good, timeout_s=0.5)
    warnings = sorted(
        record.getMessage() for record in caplog.records if record.name.endswith("registration")
    )
    assert len(warnings) == 2
    assert all(any(server.address in line for line in warnings) for server in (dead, silent))
    topics.create_or_update(TopicConfig(name="T"))
    await registration.registered()
    assert good.holds("T")


async def test_a_name_server_that_comes_up_later_gets_the_table(
    register: Start, servers: tuple[FakeNameServer, FakeNameServer]
) -> None:
    server = servers[0]
    await server.stop()
    await register(server, period_s=0.01)
    await server.start()
    await server.until(lambda: server.held is not None)


async def test_a_restarted_name_server_gets_the_table_without_waiting_for_the_period(
    register: Start, servers: tuple[FakeNameServer, FakeNameServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registrations, "FIRST_RETRY_S", 0.01)
    server = servers[0]
    await register(server, period_s=3600.0)
    await server.stop()
    server.held = None
    await server.start()
    await server.until(lambda: server.held is not None)


@pytest.mark.parametrize("answers", [False, True])
async def test_a_name_server_that_drops_its_connections_is_not_asked_in_a_tight_loop(
    answers: bool,
    register: Start,
    servers: tuple[FakeNameServer, FakeNameServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A proxy whose server is away takes connections and drops them; what speaks something else
    makes us drop them.
    """
    monkeypatch.setattr(registrations, "FIRST_RETRY_S", 3600.0)
    dropping, other = servers
    handle = dropping._handle

    def drop(connection: Connection, command: RemotingCommand) -> None:
        if answers:
            handle(connection, command)
        else:
            dropping.requests.append(command)
        connection.close()

    assert dropping._server is not None
    dropping._server.handle = drop
    await register(dropping, period_s=3600.0)
    # each is a way as long as another attempt would need
    for _ in range(20):
        connection = await connect("127.0.0.1", other.port)
        await connection.call(RemotingCommand(RequestCode.GET_NAMESRV_CONFIG), LIMIT_S)
        connection.close()
        await connection.wait_closed()
    assert dropping.codes() == [RequestCode.REGISTER_BROKER]


async def test_a_refusal_is_tried_again(
    register: Start, servers: tuple[FakeNameServer, FakeNameServer]
) -> None:
    server = servers[0]
    server.refuses = True
    registration = await register(server, period_s=0.01)
    await registration.registered()
    server.refuses = False
    await server.until(lambda: server.held is not None)


async def test_the_first_name_server_s_ordered_topics_count(
    register: Start, topics: TopicTable, servers: tuple[FakeNameServer, FakeNameServer]
) -> None:
    first, second = servers
    for name in ("T", "U"):
        topics.create_or_update(TopicConfig(name=name))
    first.order, second.order = {"T": "b:4"}, {"U": "b:4"}
    registration = await register(*servers)
    await registration.registered()
    assert [config.name for config in topics if config.order] == ["T"]
    assert second.held is not None
    assert second.held.topics["T"].order


async def test_a_broker_takes_its_leave_also_of_a_name_server_that_says_nothing(
    register: Start, topics: TopicTable, servers: tuple[FakeNameServer, FakeNameServer]
) -> None:
    good, silent = servers
    registration = await register(*servers, timeout_s=0.5)
    silent.answers = False
    await registration.stop()
    assert good.codes()[-1] == RequestCode.UNREGISTER_BROKER
    assert good.requests[-1].ext_fields == {
        "brokerName": "b",
        "brokerAddr": "127.0.0.1:10911",
        "clusterName": "C",
        "brokerId": "0",
    }
    before = len(good.requests)
    topics.create_or_update(TopicConfig(name="T"))
    await registration.registered()
    await registration.stop()
    assert len(good.requests) == before


async def test_without_name_servers_there_is_nothing_to_do(
    register: Start, topics: TopicTable
) -> None:
    registration = await register()
    topics.create_or_update(TopicConfig(name="T"))
    await registration.registered()


async def test_a_broker_whose_place_was_taken_says_so_and_one_whose_name_server_restarted_does_not(
    register: Start,
    servers: tuple[FakeNameServer, FakeNameServer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = servers[0]
    registration = await register(server)
    # as where another broker of that name has registered
    server.held = None
    await registration._peers[0].attempt()
    assert [
        record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
    ] == [
        f"name server {server.address} has lost the registration of broker b. Every broker needs a "
        "name of its own: check that no other broker has this one"
    ]
    caplog.clear()
    await server.stop()
    server.held = None
    await server.start()
    await server.until(lambda: server.held is not None)
    assert not [message for message in caplog.messages if "has lost" in message]
