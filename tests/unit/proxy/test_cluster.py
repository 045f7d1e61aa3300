"""The service before a cluster: requests of SDKs go to its brokers over remoting."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ogive.access import refusals
from ogive.access.user_table import AccessTable
from ogive.broker import Broker
from ogive.client import route_cache
from ogive.client.config import ClientConfig
from ogive.errors import InvalidOption, NoNameServer, NoRoute, ResponseCode
from ogive.namesrv.config import NameServerConfig
from ogive.namesrv.server import NameServer
from ogive.proxy import cluster
from ogive.proxy import rocketmq_pb2 as pb
from ogive.proxy.calls import CallError, Method
from ogive.proxy.cluster import ClusterBackend
from ogive.proxy.service import Service
from ogive.testing.fake_broker import FakeBroker, error
from ogive.wire.bodies.acls import SUPER, Acl, Policy, PolicyEntry, User
from ogive.wire.bodies.clients import ConsumerRunningInfo
from ogive.wire.bodies.configs import SubscriptionGroupConfig
from ogive.wire.codes import LanguageCode, RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.signing import Credentials
from tests.unit.proxy.conftest import StartBroker
from tests.unit.proxy.sdk import ENDPOINTS, Sdk, Telemetry, message, publishing, subscribing

ROOT = Credentials(access_key="root", secret_key="root secret")
StartProxy = Callable[..., Awaitable[Mapping[str, Method]]]


@pytest.fixture
async def name_server() -> AsyncIterator[NameServer]:
    server = NameServer(NameServerConfig(port=0))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def broker(name_server: NameServer, start_broker: StartBroker) -> Broker:
    return await start_broker(name_servers=(name_server.address,))


@pytest.fixture
async def start_proxy(name_server: NameServer) -> AsyncIterator[StartProxy]:
    """Starts a proxy before the cluster, and waits until that has the broker's topics."""
    started: list[ClusterBackend] = []

    async def start(credentials: Credentials | None = None) -> Mapping[str, Method]:
        backend = ClusterBackend(
            ClientConfig(name_server=name_server.address, credentials=credentials)
        )
        started.append(backend)
        await backend.start()
        methods = Service(backend).methods()
        sdk = Sdk(methods, "waiting", user=(ROOT.access_key, ROOT.secret_key))
        async with asyncio.timeout(60):
            for topic in ("T", "F", "D", "X"):
                while (await sdk.route(topic)).status.code != pb.OK:
                    await asyncio.sleep(0.02)
        return methods

    yield start
    for backend in started:
        await backend.close()


@pytest.fixture
async def sdk(broker: Broker, start_proxy: StartProxy) -> Sdk:
    return Sdk(await start_proxy())


async def receive(sdk: Sdk, topic: str, group: str = "g", **fields: Any) -> list[pb.Message]:
    """What the first receive that finds something has."""
    async with asyncio.timeout(60):
        while True:
            code, received = await sdk.receive(topic, group, **fields)
            if code == pb.OK:
                return received
            assert code == pb.MESSAGE_NOT_FOUND


def handle(broker: str) -> pb.Message:
    """A message that the broker is said to have delivered just now."""
    found = pb.Message()
    now_ms = time.time_ns() // 1_000_000
    found.system_properties.receipt_handle = f"0 {now_ms} 600000 0 0 {broker} 0 9 0"
    return found


async def test_messages_are_sent_received_changed_and_acknowledged(sdk: Sdk) -> None:
    sent = [message("T", b"%d" % number, tag="a") for number in range(3)]
    assert [(await sdk.send(one)).status.code for one in sent] == [pb.OK] * 3
    assert (await sdk.send(message("F"))).status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    received: dict[bytes, pb.Message] = {}
    while len(received) < 3:
        received |= {one.body: one for one in await receive(sdk, "T", expression="a")}
    first = received[b"0"]
    changed = await sdk.change("T", first, 60)
    assert changed.status.code == pb.OK
    first.system_properties.receipt_handle = changed.receipt_handle
    assert (await sdk.ack("T", *received.values())).status.code == pb.OK


async def test_a_receive_that_is_cancelled_loses_nothing(sdk: Sdk) -> None:
    waiting = asyncio.ensure_future(sdk.receive("T", poll_s=20, invisible_s=600))
    # the broker has the request once a later one on the same connection is answered
    assert (await sdk.ack("T", handle("broker-a"))).status.code != pb.OK
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    # the broker finds it for the cancelled receive
    assert (await sdk.send(message("T", b"kept"))).status.code == pb.OK
    assert [one.body for one in await receive(sdk, "T", poll_s=20)] == [b"kept"]


async def test_receives_that_are_cancelled_are_limited(
    sdk: Sdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "MAX_LATE", 2)
    async with asyncio.timeout(60):
        while True:
            waiting = asyncio.ensure_future(sdk.receive("T", poll_s=20))
            if (await asyncio.wait([waiting], timeout=0.05))[0]:
                break
            # some are cancelled before the broker has them
            waiting.cancel()
            await asyncio.wait([waiting])
    assert waiting.result()[0] == pb.TOO_MANY_REQUESTS


async def test_a_transaction_that_nobody_ended_is_asked_about(
    name_server: NameServer, start_broker: StartBroker, start_proxy: StartProxy
) -> None:
    await start_broker(
        name_servers=(name_server.address,),
        transaction_timeout_s=0.05,
        transaction_check_interval_s=0.2,
    )
    sdk = Sdk(await start_proxy())
    async with Telemetry(sdk) as stream:
        await stream.settings(publishing("X"))
        sent = message("X", b"half", message_type=pb.TRANSACTION)
        assert (await sdk.send(sent)).entries[0].transaction_id
        asked = (await stream.next()).recover_orphaned_transaction_command
        assert asked.message.body == b"half"
        request = pb.EndTransactionRequest(
            message_id=asked.message.system_properties.message_id,
            transaction_id=asked.transaction_id,
            resolution=pb.COMMIT,
            source=pb.SOURCE_SERVER_CHECK,
        )
        request.topic.name = "X"
        assert (await sdk.call("EndTransaction", request)).status.code == pb.OK
        assert [one.body for one in await receive(sdk, "X")] == [b"half"]


async def test_a_delayed_message_is_recalled_at_the_broker_that_holds_it(sdk: Sdk) -> None:
    sent = message("D", message_type=pb.DELAY)
    sent.system_properties.delivery_timestamp.GetCurrentTime()
    sent.system_properties.delivery_timestamp.seconds += 600
    handle = (await sdk.send(sent)).entries[0].recall_handle
    request = pb.RecallMessageRequest(recall_handle=handle)
    request.topic.name = "D"
    recalled = await sdk.call("RecallMessage", request)
    assert (recalled.status.code, recalled.message_id) == (
        pb.OK,
        sent.system_properties.message_id,
    )


async def test_a_group_in_order_and_its_dead_letters(sdk: Sdk, broker: Broker) -> None:
    broker.context.groups.create_or_update(
        SubscriptionGroupConfig(name="g", consume_message_orderly=True)
    )
    sent = [message("F", b"%d" % number, message_group="one") for number in range(2)]
    for one in sent:
        assert (await sdk.send(one)).status.code == pb.OK
    assigned = await sdk.call(
        "QueryAssignment",
        pb.QueryAssignmentRequest(
            topic=pb.Resource(name="F"), group=pb.Resource(name="g"), endpoints=ENDPOINTS
        ),
    )
    assert sorted(one.message_queue.id for one in assigned.assignments) == [0, 1, 2, 3]
    (first,) = await receive(sdk, "F", batch_size=1)
    assert first.body == b"0"
    system = first.system_properties
    forwarded = await sdk.call(
        "ForwardMessageToDeadLetterQueue",
        pb.ForwardMessageToDeadLetterQueueRequest(
            topic=pb.Resource(name="F"),
            group=pb.Resource(name="g"),
            message_id=system.message_id,
            receipt_handle=system.receipt_handle,
        ),
    )
    assert forwarded.status.code == pb.OK
    assert broker.context.store.max_offset("%DLQ%g", 0) == 1
    assert [one.body for one in await receive(sdk, "F")] == [b"1"]


async def test_brokers_know_the_client_and_ask_it(sdk: Sdk, broker: Broker) -> None:
    async with Telemetry(sdk) as stream:
        settings = await stream.settings(subscribing("T"))
        assert settings.subscription.receive_batch_size == 32
        group = broker.context.clients.consumer_group("g")
        assert group is not None
        ((connection, client),) = group.members.items()
        assert (client.client_id, client.language) == ("sdk@1", LanguageCode.PYTHON)
        fields = {"consumerGroup": "g", "clientId": "sdk@1"}
        command = RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
        info = ConsumerRunningInfo.decode((await connection.call(command, 60)).body)
        assert [one.topic for one in info.subscriptions] == ["T"]
        request = pb.NotifyClientTerminationRequest()
        assert (await sdk.call("NotifyClientTermination", request)).status.code == pb.OK
        assert broker.context.clients.consumer_group("g") is None


async def test_a_question_that_a_client_never_answers_ends(
    sdk: Sdk, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "ANSWER_S", 0.01)
    async with Telemetry(sdk) as stream:
        await stream.settings(subscribing("T"))
        group = broker.context.clients.consumer_group("g")
        assert group is not None
        (connection,) = group.members
        fields = {"consumerGroup": "g", "clientId": "sdk@1", "jstackEnable": "true"}
        command = RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
        answer = await connection.call(command, 60)
        assert "no answer from sdk@1" in (answer.remark or "")
        assert (await stream.next()).HasField("print_thread_stack_trace_command")


async def test_a_broker_that_moved_is_found_again(
    name_server: NameServer, broker: Broker, start_broker: StartBroker, sdk: Sdk
) -> None:
    assert (await sdk.send(message("T", b"before"))).status.code == pb.OK
    await broker.stop()
    assert (await sdk.send(message("T"))).status.code != pb.OK
    await start_broker(name_servers=(name_server.address,))
    async with asyncio.timeout(60):
        while (await sdk.send(message("T", b"after"))).status.code != pb.OK:
            await asyncio.sleep(0.05)


async def test_what_does_not_exist_is_not_found(sdk: Sdk) -> None:
    assert (await sdk.route("missing")).status.code == pb.TOPIC_NOT_FOUND
    assert (await sdk.send(message("missing"))).status.code == pb.TOPIC_NOT_FOUND
    response = await sdk.ack("T", handle("nowhere"))
    assert 'broker "nowhere" is not known' in response.status.message


async def test_a_topic_that_does_not_exist_is_asked_for_once() -> None:
    async with FakeBroker({"T": 1}) as broker:
        backend = ClusterBackend(ClientConfig(name_server=broker.address))
        await backend.client.start()
        for topic in ("T", "missing"):
            with contextlib.suppress(NoRoute):
                await backend.route(topic)
        # as it is done every 30 s
        await backend.client.routes.refresh_all()
        asked = [one.ext_fields["topic"] for one in broker.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)]
        assert asked == ["T", "missing", "T"]
        # no advice on spelling: no program heeds it
        assert not broker.of(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        await backend.close()


async def test_a_route_that_no_client_has_used_lately_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeBroker({"T": 1}) as broker:
        backend = ClusterBackend(ClientConfig(name_server=broker.address))
        await backend.client.start()
        await backend.route("T")
        monkeypatch.setattr(route_cache, "UNUSED_S", 0.0)
        # as it is done every 30 s
        await backend.client.routes.refresh_all()
        assert len(broker.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 1
        # the broker may have moved until somebody uses it again
        assert backend.broker_at(broker.address) == ""
        assert len(await backend.route("T")) == 1
        assert backend.broker_at(broker.address) == broker.name
        await backend.close()


async def test_a_broker_that_refuses_a_client_does_not_keep_it_from_the_others() -> None:
    async with FakeBroker({"T": 1}) as broker, FakeBroker({"T": 1}, name="broker-b") as other:
        broker.peers.append(other)
        backend = ClusterBackend(ClientConfig(name_server=broker.address))
        await backend.client.start()
        sdk = Sdk(Service(backend).methods())
        refused = error(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no group g here")
        other.on(RequestCode.HEART_BEAT, refused)
        async with Telemetry(sdk) as stream:
            await stream.settings(publishing("T"))
            assert other.of(RequestCode.HEART_BEAT)
            assert broker.producers.keys() == {"T"}
        broker.on(RequestCode.HEART_BEAT, refused)
        async with Telemetry(sdk) as stream:
            stream.send(pb.TelemetryCommand(settings=publishing("T")))
            with pytest.raises(CallError, match="no group g here"):
                await stream.next()
        await backend.close()


async def test_one_of_several_clusters_is_served(
    name_server: NameServer, start_broker: StartBroker, tmp_path: Path
) -> None:
    settings = {"name_servers": (name_server.address,), "data": tmp_path / "other"}
    ours = await start_broker(name_servers=(name_server.address,))
    other = await start_broker(name="broker-b", cluster="Other", **settings)
    backend = ClusterBackend(ClientConfig(name_server=name_server.address), "Other")
    await backend.start()
    sdk = Sdk(Service(backend).methods())
    async with asyncio.timeout(60):
        while (await sdk.route("T")).status.code != pb.OK:
            await asyncio.sleep(0.02)
    queues = (await sdk.route("T")).message_queues
    assert {queue.broker.name for queue in queues} == {"broker-b"}
    async with Telemetry(sdk) as stream:
        await stream.settings(publishing("T"))
        assert (await sdk.send(message("T"))).status.code == pb.OK
        assert other.context.clients.producers
        assert not ours.context.clients.producers
    assert other.context.store.stats().puts == 1
    response = await sdk.ack("T", handle("broker-a"))
    assert 'broker "broker-a" is not known' in response.status.message
    await backend.close()


async def test_a_cluster_that_nobody_knows_is_not_served(
    broker: Broker, name_server: NameServer
) -> None:
    backend = ClusterBackend(ClientConfig(name_server=name_server.address), "Typo")
    with pytest.raises(NoRoute, match='no broker of cluster "Typo"; clusters: DefaultCluster'):
        await backend.start()
    await backend.close()


async def test_a_client_that_goes_is_gone_whatever_a_broker_says() -> None:
    async with FakeBroker({"T": 1}) as broker:
        broker.on(RequestCode.UNREGISTER_CLIENT, error(ResponseCode.SYSTEM_ERROR))
        backend = ClusterBackend(ClientConfig(name_server=broker.address))
        await backend.client.start()
        service = Service(backend)
        sdk = Sdk(service.methods())
        async with Telemetry(sdk) as stream:
            await stream.settings(publishing("T"))
            request = pb.NotifyClientTerminationRequest()
            assert (await sdk.call("NotifyClientTermination", request)).status.code == pb.OK
        assert broker.of(RequestCode.UNREGISTER_CLIENT)
        assert len(service.sessions) == 0
        await backend.close()


async def test_a_stop_waits_until_messages_are_visible_again() -> None:
    async with FakeBroker({"T": 1}) as broker:
        missing = error(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        broker.on(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, missing)
        backend = ClusterBackend(ClientConfig(name_server=broker.address))
        await backend.client.start()
        service = Service(backend)
        sdk = Sdk(service.methods())
        assert (await sdk.send(message("T"))).status.code == pb.OK
        assert len(await receive(sdk, "T", auto_renew=True)) == 1
        broker.hold(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
        closing = asyncio.create_task(service.close())
        async with asyncio.timeout(60):
            while not broker.of(RequestCode.CHANGE_MESSAGE_INVISIBLETIME):
                await asyncio.sleep(0.01)
        assert not closing.done()
        assert len(service.sessions) == 0
        broker.release(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
        await closing
        await backend.close()


async def test_a_proxy_without_a_name_server_does_not_start() -> None:
    backend = ClusterBackend(ClientConfig(name_server="127.0.0.1:1", request_timeout_s=0.2))
    with pytest.raises(NoNameServer):
        await backend.start()
    await backend.close()


# --- access control -------------------------------------------------------------------------------


@pytest.fixture
async def users(name_server: NameServer, start_broker: StartBroker) -> AccessTable:
    """Users of a broker: root, and sender who may send to T."""
    table = AccessTable()
    await table.create_user(User(username="root", password="root secret", user_type=SUPER))
    await table.create_user(User(username="sender", password="sender secret"))
    allowed = {"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}
    policy = Policy(entries=(PolicyEntry.from_json(allowed),))
    await table.put_acl(Acl(subject="User:sender", policies=(policy,)))
    await start_broker(table, name_servers=(name_server.address,))
    return table


@pytest.fixture(params=["passwords listed", "passwords kept"])
def passwords(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers list users with passwords, as Apache's do, or keep these to themselves."""
    if request.param == "passwords listed":
        to_json = User.to_json
        monkeypatch.setattr(User, "to_json", lambda user, **_: to_json(user, with_password=True))


async def test_only_a_super_user_signs_for_others(
    users: AccessTable, start_proxy: StartProxy
) -> None:
    reading = {"resource": "Cluster:*", "actions": ["Get", "List"], "decision": "Allow"}
    policy = Policy(entries=(PolicyEntry.from_json(reading),))
    await users.put_acl(Acl(subject="User:sender", policies=(policy,)))
    with pytest.raises(InvalidOption, match="sender is no super user"):
        await start_proxy(Credentials(access_key="sender", secret_key="sender secret"))


async def test_what_a_user_signed_is_asked_about_once(
    users: AccessTable, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    has_signed = AccessTable.has_signed

    def count(table: AccessTable, name: str, text: str, signature: str) -> bool:
        asked.append(name)
        return has_signed(table, name, text, signature)

    monkeypatch.setattr(AccessTable, "has_signed", count)
    sender = Sdk(await start_proxy(ROOT), user=("sender", "sender secret"))
    assert [(await sender.send(message("T"))).status.code for _ in range(3)] == [pb.OK] * 3
    assert asked.count("sender") == 1
    long = Sdk(sender.methods, user=("x" * cluster.MAX_SIGNED, "secret"))
    assert (await long.send(message("T"))).status.code == pb.UNAUTHORIZED
    assert set(asked) == {"root", "sender"}


async def test_a_user_who_is_disabled_or_deleted_is_let_in_no_more(
    users: AccessTable, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "RECENT_S", 0.02)
    sender = Sdk(await start_proxy(ROOT), user=("sender", "sender secret"))
    assert (await sender.send(message("T"))).status.code == pb.OK
    await users.update_user(User(username="sender", status="disable"))
    async with asyncio.timeout(60):
        while (await sender.send(message("T"))).status.code == pb.OK:
            await asyncio.sleep(0.02)


async def test_refusals_that_repeat_are_counted_in_the_log(
    users: AccessTable,
    start_proxy: StartProxy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(refusals, "TOLD_AGAIN_S", 0.0)
    monkeypatch.setattr(cluster, "RECENT_S", 0.02)
    guest = Sdk(await start_proxy(ROOT))
    async with asyncio.timeout(60):
        while not re.search(r"refused \d+ more times: this server asks", caplog.text):
            await asyncio.gather(*(guest.route("T") for _ in range(3)))
            await asyncio.sleep(0.05)


@pytest.mark.usefixtures("passwords")
async def test_users_are_the_clusters(users: AccessTable, start_proxy: StartProxy) -> None:
    methods = await start_proxy(ROOT)
    sender = Sdk(methods, user=("sender", "sender secret"))
    assert (await sender.send(message("T"))).status.code == pb.OK
    assert (await sender.send(message("X", message_type=pb.TRANSACTION))).status.code == (
        pb.FORBIDDEN
    )
    assert (await sender.route("X")).status.code == pb.FORBIDDEN
    assert (await sender.receive("T"))[0] == pb.FORBIDDEN
    # the proxy may look these up: what it finds is not for users without permission
    assert (await sender.send(message("F"))).status.code == pb.FORBIDDEN
    assert (await sender.receive("missing"))[0] == pb.FORBIDDEN
    async with Telemetry(sender) as stream:
        stream.send(pb.TelemetryCommand(settings=subscribing("missing")))
        with pytest.raises(CallError, match="FORBIDDEN"):
            await stream.next()
    for user in (None, ("sender", "wrong"), ("nobody", "sender secret")):
        refused = await Sdk(methods, user=user).send(message("T"))
        assert refused.status.code == pb.UNAUTHORIZED
