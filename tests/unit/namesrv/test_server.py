"""A name server in the test's own event loop, looked at through its socket."""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from ogive.errors import ConnectError, ConnectionLost, InvalidOption, ResponseCode
from ogive.namesrv import NameServer, NameServerConfig
from ogive.namesrv.handlers import ROUTES
from ogive.transport import event_loop
from ogive.wire import java_json
from ogive.wire.bodies.configs import DataVersion, TopicConfig
from ogive.wire.bodies.routes import (
    ClusterInfo,
    RegisterBrokerBody,
    TopicRouteData,
    topic_list_loads,
)
from ogive.wire.bodies.stats import kv_table_loads
from ogive.wire.codes import RequestCode, SerializeType
from ogive.wire.command import RemotingCommand
from tests.raw_client import RawClient

IDENTITY: dict[str, object] = {
    "brokerName": "broker-a",
    "brokerAddr": "127.0.0.1:10911",
    "clusterName": "C",
    "brokerId": 0,
}
NONE_LEFT_S = 60.0


def table(*names: str, counter: int = 1) -> RegisterBrokerBody:
    return RegisterBrokerBody(
        data_version=DataVersion(counter, 1000),
        topics={name: TopicConfig(name=name) for name in names},
    )


async def register(
    client: RawClient, *names: str, counter: int = 1, **changed: Any
) -> RemotingCommand:
    body = table(*names, counter=counter).encode()
    return await client.call(
        RequestCode.REGISTER_BROKER,
        body,
        **(IDENTITY | {"haServerAddr": "127.0.0.1:10912"} | changed),
    )


async def route(client: RawClient, topic: str) -> TopicRouteData | None:
    answer = await client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)
    return (
        TopicRouteData.from_json(json.loads(answer.body))
        if answer.code == ResponseCode.SUCCESS
        else None
    )


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    server = NameServer(NameServerConfig(port=0))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def clients(server: NameServer) -> AsyncIterator[tuple[RawClient, RawClient]]:
    """Two connections: a broker's and a client's."""
    async with (
        await RawClient.open(server.address) as broker,
        await RawClient.open(server.address) as client,
    ):
        yield broker, client


async def until_gone(client: RawClient, topic: str) -> None:
    """The end of a connection takes a moment to arrive."""
    async with asyncio.timeout(NONE_LEFT_S):
        while await route(client, topic) is not None:
            await asyncio.sleep(0)


# --- dispatch -------------------------------------------------------------------------------------


def test_every_code_that_apache_s_name_server_serves_is_served() -> None:
    codes = {
        100,
        101,
        102,
        103,
        104,
        105,
        106,
        205,
        206,
        216,
        217,
        219,
        224,
        304,
        311,
        312,
        313,
        318,
        319,
        322,
        327,
        901,
        904,
    }
    assert ROUTES.keys() == codes


@pytest.mark.parametrize("code", [code for code in RequestCode if code not in ROUTES] + [4_711, -1])
async def test_every_other_code_is_answered_at_once_as_not_supported(
    clients: tuple[RawClient, RawClient], code: int
) -> None:
    answer = await clients[0].call(code)
    assert (answer.code, answer.remark) == (
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        f" request type {code} not supported",
    )


async def test_a_oneway_request_is_carried_out_and_not_answered(
    clients: tuple[RawClient, RawClient],
) -> None:
    broker, client = clients
    broker.oneway(RequestCode.REGISTER_BROKER, table("T", "U").encode(), **IDENTITY)
    broker.oneway(4_711)
    await broker.ok(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert await route(client, "T") is not None
    assert broker.connection.calls_in_flight == 0


async def test_a_header_or_body_that_is_none_is_an_answer_and_not_the_end(
    clients: tuple[RawClient, RawClient],
) -> None:
    client = clients[0]
    for code, body, fields in (
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, b"", {}),
        (RequestCode.REGISTER_BROKER, b"", {"brokerName": "x"}),
        (RequestCode.REGISTER_BROKER, b"{", IDENTITY),
        (RequestCode.REGISTER_BROKER, b"no zlib", IDENTITY | {"compressed": "true"}),
        (RequestCode.REGISTER_TOPIC_IN_NAMESRV, b"[]", {"topic": "T"}),
        (RequestCode.QUERY_DATA_VERSION, b"7", IDENTITY),
        (RequestCode.REGISTER_BROKER, b"", IDENTITY | {"haServerAddr": "h" * 256}),
        (RequestCode.REGISTER_BROKER, table("T", "U", counter=1 << 63).encode(), IDENTITY),
    ):
        answer = await client.call(code, body, **fields)
        assert answer.code == ResponseCode.SYSTEM_ERROR, answer
        assert answer.remark
    assert (
        await client.call(RequestCode.GET_BROKER_CLUSTER_INFO, bytes(65_537))
    ).code == ResponseCode.INVALID_PARAMETER
    await client.ok(RequestCode.GET_BROKER_CLUSTER_INFO)


async def test_a_name_that_no_answer_can_hold_is_not_taken_in(
    clients: tuple[RawClient, RawClient],
) -> None:
    """Half a character, which JSON can escape and UTF-8 cannot write, would stop the topic list for
    everybody.
    """
    broker, client = clients
    await register(broker, "T", "U")
    body = table("T", "half?").encode().replace(b"half?", rb"half\ud800")
    answer = await broker.call(RequestCode.REGISTER_BROKER, body, **IDENTITY)
    assert (answer.code, "half a character" in str(answer.remark)) == (
        ResponseCode.SYSTEM_ERROR,
        True,
    )
    assert sorted(
        topic_list_loads((await client.ok(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body)
    ) == ["T", "U"]


async def test_an_answer_that_does_not_fit_a_frame_is_an_error_and_not_the_end(
    clients: tuple[RawClient, RawClient],
) -> None:
    """Here it is the remark, which names the address that was refused."""
    client = clients[0]
    answer = await client.call(
        RequestCode.UNREGISTER_BROKER, **(IDENTITY | {"brokerAddr": "\x7f" * 100_000})
    )
    assert (answer.code, "cannot be sent" in str(answer.remark)) == (
        ResponseCode.SYSTEM_ERROR,
        True,
    )
    await client.ok(RequestCode.GET_BROKER_CLUSTER_INFO)


# --- brokers and routes ---------------------------------------------------------------------------


async def test_a_registered_topic_is_routed_and_an_unknown_one_is_named_in_the_refusal(
    clients: tuple[RawClient, RawClient],
) -> None:
    broker, client = clients
    assert (await register(broker, "T", "U")).code == ResponseCode.SUCCESS
    found = await route(client, "T")
    assert found is not None
    assert [(q.broker_name, q.read_queues, q.write_queues, q.perm) for q in found.queues] == [
        ("broker-a", 4, 4, 6)
    ]
    assert [dict(b.addresses) for b in found.brokers] == [{0: "127.0.0.1:10911"}]
    answer = await client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="nowhere")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "nowhere" in str(answer.remark)


@pytest.mark.parametrize(
    ("version", "asked", "standard"),
    [(401, None, True), (400, None, False), (400, "true", True), (513, "false", True)],
)
async def test_old_clients_get_java_s_bare_keys_and_new_ones_standard_json(
    clients: tuple[RawClient, RawClient], version: int, asked: str | None, standard: bool
) -> None:
    broker, client = clients
    await register(broker, "T", "U")
    fields = {"topic": "T"} | ({} if asked is None else {"acceptStandardJsonOnly": asked})
    request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, version=version)
    body = (await client.connection.call(request, NONE_LEFT_S)).body
    assert (b'{"0":"127.0.0.1:10911"}' in body, b'{0:"127.0.0.1:10911"}' in body) == (
        standard,
        not standard,
    )
    decoded = java_json.loads(body)
    assert list(decoded) == ["brokerDatas", "filterServerTable", "queueDatas"]
    assert TopicRouteData.from_json(decoded).brokers[0].addresses == {0: "127.0.0.1:10911"}


async def test_a_binary_request_is_understood(
    server: NameServer, clients: tuple[RawClient, RawClient]
) -> None:
    await register(clients[0], "T", "U")
    async with await RawClient.open(server.address, codec=SerializeType.ROCKETMQ) as client:
        assert await route(client, "T") is not None


async def test_the_compressed_form_of_a_registration_is_understood(
    clients: tuple[RawClient, RawClient],
) -> None:
    """The worked example of the protocol facts: TopicTest with 4 queues, TBW102 with 8."""
    plain = bytes.fromhex(
        "00000038 7b22636f756e746572223a312c22737461746556657273696f6e223a302c2274696d"
        "657374616d70223a313730303030303030303030307d"
        "00000002 0000001d 546f706963546573742034203420362053494e474c455f544147207b7d"
        "0000001a 5442573130322038203820372053494e474c455f544147207b7d 00000002 5b5d 00000000"
    )
    broker, client = clients
    body = zlib.compress(plain, 9)
    crc = zlib.crc32(body) & 0x7FFFFFFF
    await broker.ok(RequestCode.REGISTER_BROKER, body, **IDENTITY, compressed=True, bodyCrc32=crc)
    found = await route(client, "TBW102")
    assert found is not None
    assert (found.queues[0].read_queues, found.queues[0].perm) == (8, 7)
    wrong = await broker.call(
        RequestCode.REGISTER_BROKER, body, **IDENTITY, compressed=True, bodyCrc32=crc ^ 1
    )
    assert (wrong.code, wrong.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")


async def test_a_topic_that_cannot_be_routed_is_named_in_the_log_once(
    clients: tuple[RawClient, RawClient], caplog: pytest.LogCaptureFixture
) -> None:
    broker, client = clients
    topics = {"T": TopicConfig(name="T"), "Slip": TopicConfig(name="Slip", write_queues=-1)}
    for _ in range(2):
        await broker.ok(
            RequestCode.REGISTER_BROKER,
            RegisterBrokerBody(data_version=DataVersion(1, 1000), topics=topics).encode(),
            **IDENTITY,
        )
    assert (await route(client, "T") is not None, await route(client, "Slip")) == (True, None)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "broker broker-a at 127.0.0.1:10911: topics with invalid queue counts are not routed: Slip"
    ]


async def test_a_first_registration_with_one_topic_is_refused_as_by_java(
    clients: tuple[RawClient, RawClient],
) -> None:
    answer = await register(clients[0], "T")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "register broker failed" in str(answer.remark)


async def test_a_slave_is_told_where_its_master_is(clients: tuple[RawClient, RawClient]) -> None:
    await register(clients[0], "T", "U")
    answer = await register(clients[1], "T", "U", brokerId=1, brokerAddr="127.0.0.1:10921")
    assert answer.ext_fields == {"masterAddr": "127.0.0.1:10911", "haServerAddr": "127.0.0.1:10912"}


async def test_a_closed_connection_takes_its_broker_away(
    server: NameServer, clients: tuple[RawClient, RawClient]
) -> None:
    async with await RawClient.open(server.address) as broker:
        await register(broker, "T", "U")
        assert await route(clients[1], "T") is not None
    await until_gone(clients[1], "T")


async def test_a_broker_that_has_connected_anew_outlives_its_old_connection(
    clients: tuple[RawClient, RawClient],
) -> None:
    old, new = clients
    await register(old, "T", "U")
    await register(new, "T", "U")
    await old.ok(RequestCode.UNREGISTER_BROKER, **IDENTITY)
    assert await route(new, "T") is not None
    old.connection.close()
    await old.connection.wait_closed()
    await new.ok(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert await route(new, "T") is not None
    await new.ok(RequestCode.UNREGISTER_BROKER, **IDENTITY)
    assert await route(new, "T") is None


async def test_a_second_broker_of_one_name_is_told(
    clients: tuple[RawClient, RawClient], caplog: pytest.LogCaptureFixture
) -> None:
    await register(clients[0], "T", "U")
    await register(clients[0], "T", "U", brokerId=1, brokerAddr="127.0.0.1:10921")
    await register(clients[0], "T", "U", counter=2)
    assert caplog.messages == []
    await register(clients[1], "T", "U", brokerAddr="127.0.0.1:10931")
    assert [message.partition(". If")[0] for message in caplog.messages] == [
        f"broker {IDENTITY['brokerName']} moved from 127.0.0.1:10911 to 127.0.0.1:10931"
    ]


async def test_a_broker_without_a_sign_of_life_is_forgotten() -> None:
    server = NameServer(NameServerConfig(port=0, scan_s=0.01))
    await server.start()
    try:
        async with await RawClient.open(server.address) as client:
            await register(client, "T", "U", heartbeatTimeoutMillis=30)
            await until_gone(client, "T")
    finally:
        await server.stop()


async def test_a_broker_asks_whether_its_table_is_still_the_one_that_is_known(
    clients: tuple[RawClient, RawClient],
) -> None:
    broker = clients[0]
    version = json.dumps(DataVersion(1, 1000).to_json()).encode()
    unknown = await broker.ok(RequestCode.QUERY_DATA_VERSION, version, **IDENTITY)
    assert (unknown.ext_fields, unknown.body) == ({"changed": "true"}, b"")
    await register(broker, "T", "U")
    same = await broker.ok(RequestCode.QUERY_DATA_VERSION, version, **IDENTITY)
    assert same.ext_fields == {"changed": "false"}
    assert json.loads(same.body) == {"counter": 1, "stateVersion": 0, "timestamp": 1000}
    await register(broker, "T", "U", counter=2)
    assert (await broker.ok(RequestCode.QUERY_DATA_VERSION, version, **IDENTITY)).ext_fields == {
        "changed": "true"
    }
    await broker.ok(RequestCode.BROKER_HEARTBEAT, **IDENTITY)


async def test_cluster_members_and_topic_lists_are_shown(
    clients: tuple[RawClient, RawClient],
) -> None:
    broker, client = clients
    await register(broker, "T", "U")
    body = (await client.ok(RequestCode.GET_BROKER_CLUSTER_INFO)).body
    assert b'"brokerAddrs":{0:"127.0.0.1:10911"}' in body
    assert ClusterInfo.decode(body).clusters == {"C": ("broker-a",)}
    group = (
        await client.ok(RequestCode.GET_BROKER_MEMBER_GROUP, clusterName="C", brokerName="broker-a")
    ).body
    assert java_json.loads(group) == {
        "brokerMemberGroup": {
            "brokerAddrs": {"0": "127.0.0.1:10911"},
            "brokerName": "broker-a",
            "cluster": "C",
        }
    }

    async def topics(code: int, **fields: str) -> list[str]:
        return sorted(topic_list_loads((await client.ok(code, **fields)).body))

    assert await topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == ["T", "U"]
    assert await topics(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="C") == ["T", "U"]
    assert await topics(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == ["C", "broker-a"]
    for code in (
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    ):
        assert await topics(code) == []


async def test_operators_close_open_delete_and_add(clients: tuple[RawClient, RawClient]) -> None:
    broker, client = clients
    await register(broker, "T", "U")

    async def perm() -> int:
        found = await route(client, "T")
        assert found is not None
        return found.queues[0].perm

    assert (
        await client.ok(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    ).ext_fields == {"wipeTopicCount": "2"}
    assert await perm() == 4
    assert (
        await client.ok(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    ).ext_fields == {"addTopicCount": "2"}
    assert await perm() == 6
    await client.ok(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T")
    assert await route(client, "T") is None
    body = {
        "brokerDatas": [],
        "queueDatas": [
            {"brokerName": "broker-a", "perm": 6, "readQueueNums": 2, "writeQueueNums": 2}
        ],
    }
    await client.ok(RequestCode.REGISTER_TOPIC_IN_NAMESRV, json.dumps(body).encode(), topic="T")
    assert await perm() == 6


# --- settings -------------------------------------------------------------------------------------


async def test_kv_settings_are_kept_and_those_of_ordered_topics_are_given_to_brokers(
    tmp_path: Path,
) -> None:
    config = NameServerConfig(port=0, kv_path=tmp_path / "kvConfig.json", order_messages=True)
    for run in range(2):
        server = NameServer(config)
        await server.start()
        try:
            async with await RawClient.open(server.address) as client:
                if run == 0:
                    missing = await client.call(
                        RequestCode.GET_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T"
                    )
                    assert missing.code == ResponseCode.QUERY_NOT_FOUND
                    assert (
                        await client.call(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="x")
                    ).code == ResponseCode.QUERY_NOT_FOUND
                    await client.ok(
                        RequestCode.PUT_KV_CONFIG,
                        namespace="ORDER_TOPIC_CONFIG",
                        key="T",
                        value="broker-a:4",
                    )
                    await client.ok(
                        RequestCode.PUT_KV_CONFIG, namespace="space", key="k", value="v"
                    )
                    await client.ok(RequestCode.DELETE_KV_CONFIG, namespace="space", key="k")
                found = await client.ok(
                    RequestCode.GET_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T"
                )
                assert found.ext_fields == {"value": "broker-a:4"}
                listed = await client.ok(
                    RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="ORDER_TOPIC_CONFIG"
                )
                assert kv_table_loads(listed.body) == {"T": "broker-a:4"}
                assert kv_table_loads((await register(client, "T", "U")).body) == {
                    "T": "broker-a:4"
                }
                shown = await route(client, "T")
                assert shown is not None
                assert shown.order_topic_conf == "broker-a:4"
                too_long = await client.call(
                    RequestCode.PUT_KV_CONFIG, namespace="space", key="k", value="x" * 65_536
                )
                assert too_long.code == ResponseCode.INVALID_PARAMETER
        finally:
            await server.stop()


async def test_the_configuration_is_shown_and_only_order_messages_changes_from_outside(
    server: NameServer, clients: tuple[RawClient, RawClient]
) -> None:
    client = clients[1]
    shown = (await client.ok(RequestCode.GET_NAMESRV_CONFIG)).body.decode()
    assert f"listenPort={server.address.rpartition(':')[2]}\n" in shown
    answer = await client.call(RequestCode.UPDATE_NAMESRV_CONFIG, b"kvConfigPath=/etc/passwd\n")
    assert answer.code == ResponseCode.NO_PERMISSION
    assert (answer.remark or "").startswith("kvConfigPath ")
    for body in (b"", b"orderMessageEnable=perhaps\n", b"orderMessageEnable=\\u12"):
        assert (
            await client.call(RequestCode.UPDATE_NAMESRV_CONFIG, body)
        ).code == ResponseCode.INVALID_PARAMETER
    assert (await client.ok(RequestCode.GET_NAMESRV_CONFIG)).body.decode() == shown
    for body, value in (
        (b"orderMessageEnable=true\n", "true"),
        (b"# as\norderMessageEnable: false", "false"),
        (b"orderMessageEnable TRUE \r\n", "true"),
    ):
        await client.ok(RequestCode.UPDATE_NAMESRV_CONFIG, body)
        assert (
            f"orderMessageEnable={value}\n"
            in (await client.ok(RequestCode.GET_NAMESRV_CONFIG)).body.decode()
        )


# --- life -----------------------------------------------------------------------------------------


async def test_a_taken_address_is_said_and_a_stop_can_come_twice(server: NameServer) -> None:
    second = NameServer(NameServerConfig(port=int(server.address.rpartition(":")[2])))
    with pytest.raises(ConnectError, match="cannot listen"):
        await second.start()
    await second.stop()
    await server.stop()
    await server.stop()


@pytest.mark.parametrize(
    "setting",
    [
        {"port": 65536},
        {"host": "0.0.0.0"},
        {"broker_expiry_s": 0.0},
        {"max_topics": 0},
        {"scan_s": -1.0},
    ],
)
def test_settings_that_cannot_work_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        NameServerConfig(**setting)


async def test_a_wildcard_host_shows_the_address_that_was_given() -> None:
    server = NameServer(NameServerConfig(host="0.0.0.0", port=0, advertised_host="192.0.2.1"))
    async with AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.stop)
        assert server.address.startswith("192.0.2.1:")


@pytest.mark.parametrize(
    ("host", "advertised", "local"),
    [
        ("127.0.0.1", None, "127.0.0.1:1"),
        ("0.0.0.0", "192.0.2.1", "127.0.0.1:1"),
        ("::", "2001:db8::1", "[::1]:1"),
        ("192.0.2.7", "198.51.100.1", "192.0.2.7:1"),
    ],
)
async def test_this_machine_reaches_it_where_it_listens_not_where_others_are_sent(
    host: str, advertised: str | None, local: str
) -> None:
    assert (
        NameServer(NameServerConfig(host=host, port=1, advertised_host=advertised)).local_address
        == local
    )


async def test_the_loop_turns_between_settings_that_come_together(
    server: NameServer, clients: tuple[RawClient, RawClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client = clients
    now, turns = 0.0, 0
    began: list[int] = []

    async def put(*_: str) -> None:
        nonlocal now
        now += 1.0
        began.append(turns)

    monkeypatch.setattr(event_loop, "SLICE_S", 0.01)
    monkeypatch.setattr(server._slices, "_now", lambda: now)
    monkeypatch.setattr(server._running.kv, "put", put)
    answers = [
        client.start(RequestCode.PUT_KV_CONFIG, namespace="n", key=f"{n}", value="v")
        for n in range(20)
    ]
    async with asyncio.timeout(60):
        while not all(answer.done() for answer in answers):
            await asyncio.sleep(0)
            turns += 1
    assert len(set(began)) == 20


async def test_a_bug_in_a_handler_that_waits_ends_the_connection(
    server: NameServer, clients: tuple[RawClient, RawClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked would wait for an answer until its time is over."""
    _, client = clients

    async def put(*_: str) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(server._running.kv, "put", put)
    with pytest.raises(ConnectionLost):
        await client.call(RequestCode.PUT_KV_CONFIG, namespace="n", key="k", value="v")
