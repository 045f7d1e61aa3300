"""Telemetry, heartbeats, transactions, recalls and access control, through the seam."""

import asyncio
import time
from collections.abc import Mapping

import pytest

from ogive.access.user_table import AccessTable
from ogive.broker import Broker
from ogive.errors import ConnectError
from ogive.proxy import rocketmq_pb2 as pb
from ogive.proxy.calls import CallError, GrpcStatus, Method
from ogive.proxy.service import build
from ogive.transport.connection import Connection
from ogive.wire.bodies.acls import Acl, Policy, PolicyEntry, User
from ogive.wire.bodies.clients import ConsumerRunningInfo
from ogive.wire.bodies.configs import SubscriptionGroupConfig
from ogive.wire.codes import LanguageCode, RequestCode
from ogive.wire.command import RemotingCommand
from tests.unit.proxy.conftest import StartBroker
from tests.unit.proxy.sdk import Sdk, Telemetry, message, publishing, subscribing


async def test_a_producer_gets_its_settings(sdk: Sdk, broker: Broker) -> None:
    async with Telemetry(sdk) as stream:
        settings = await stream.settings(publishing("T", "M"))
        assert settings.publishing.validate_message_type
        assert settings.publishing.max_body_size == 4 * 1024 * 1024
        assert settings.backoff_policy.max_attempts == 3
        assert settings.backoff_policy.WhichOneof("strategy") == "exponential_backoff"
        # the topic stands for the producer group
        assert {"T", "M"} <= set(broker.context.clients.producers)


async def test_a_consumer_gets_its_settings(sdk: Sdk, broker: Broker) -> None:
    broker.context.groups.create_or_update(
        SubscriptionGroupConfig(name="g", consume_message_orderly=True, retry_max_times=3)
    )
    async with Telemetry(sdk) as stream:
        settings = await stream.settings(subscribing("T"))
        assert settings.subscription.fifo
        assert settings.subscription.receive_batch_size == 32
        assert settings.subscription.long_polling_timeout.seconds == 20
        assert settings.backoff_policy.max_attempts == 4
        delays = settings.backoff_policy.customized_backoff.next
        assert [one.seconds for one in delays[:3]] == [1, 5, 10]
        group = broker.context.clients.consumer_group("g")
        assert group is not None
        (client,) = group.members.values()
        assert (client.client_id, client.language) == ("sdk@1", LanguageCode.PYTHON)
        assert group.subscriptions["T"].data.expression == "*"


async def test_the_sdk_for_node_is_listed_as_such(sdk: Sdk, broker: Broker) -> None:
    sdk.metadata |= {"x-mq-language": "HTTP", "user-agent": "grpc-node-js/1.10.2"}
    async with Telemetry(sdk) as stream:
        await stream.settings(subscribing("T"))
        group = broker.context.clients.consumer_group("g")
        assert group is not None
        assert [one.language for one in group.members.values()] == [LanguageCode.NODE_JS]


async def test_a_group_with_a_policy_of_its_own(sdk: Sdk, broker: Broker) -> None:
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1000, "max": 9000}}
    broker.context.groups.create_or_update(
        SubscriptionGroupConfig(name="g", retry_max_times=-1, retry_policy=policy)
    )
    async with Telemetry(sdk) as stream:
        settings = await stream.settings(subscribing("T"))
    backing = settings.backoff_policy.exponential_backoff
    assert (backing.initial.seconds, backing.max.seconds, backing.multiplier) == (1, 9, 2)
    assert settings.backoff_policy.max_attempts == 2**31 - 1


@pytest.mark.parametrize(
    "settings",
    [pb.Settings(), publishing("a b"), subscribing("T", " "), subscribing("a b")],
    ids=["neither", "topic", "group", "subscribed topic"],
)
async def test_settings_that_end_the_stream(sdk: Sdk, settings: pb.Settings) -> None:
    async with Telemetry(sdk) as stream:
        stream.send(pb.TelemetryCommand(settings=settings))
        with pytest.raises(CallError) as caught:
            await stream.next()
    assert caught.value.code == GrpcStatus.INVALID_ARGUMENT


async def test_the_stream_ends_when_the_client_has_ended_its_half(sdk: Sdk) -> None:
    async with Telemetry(sdk) as stream:
        await stream.settings(publishing("T"))
        stream.send(None)
        with pytest.raises(StopAsyncIteration):
            await stream.next()


async def test_heartbeats_are_answered_before_any_settings(sdk: Sdk, broker: Broker) -> None:
    request = pb.HeartbeatRequest(client_type=pb.SIMPLE_CONSUMER)
    request.group.name = "g"
    assert (await sdk.call("Heartbeat", request)).status.code == pb.OK
    assert broker.context.clients.consumer_group("g") is not None
    producer = pb.HeartbeatRequest(client_type=pb.PRODUCER)
    assert (await sdk.call("Heartbeat", producer)).status.code == pb.OK


async def test_a_heartbeat_of_no_known_type_is_refused(sdk: Sdk) -> None:
    response = await sdk.call("Heartbeat", pb.HeartbeatRequest())
    assert response.status.code == pb.UNRECOGNIZED_CLIENT_TYPE


async def test_a_client_that_goes_leaves_its_groups(sdk: Sdk, broker: Broker) -> None:
    async with Telemetry(sdk) as stream:
        await stream.settings(subscribing("T"))
        request = pb.NotifyClientTerminationRequest()
        request.group.name = "g"
        assert (await sdk.call("NotifyClientTermination", request)).status.code == pb.OK
        assert broker.context.clients.consumer_group("g") is None
        with pytest.raises(StopAsyncIteration):
            await stream.next()


async def test_a_termination_of_an_unknown_client_is_answered(sdk: Sdk) -> None:
    response = await sdk.call("NotifyClientTermination", pb.NotifyClientTerminationRequest())
    assert response.status.code == pb.OK


# --- transactions ---------------------------------------------------------------------------------


async def begin(sdk: Sdk, body: bytes = b"half") -> tuple[pb.Message, str]:
    sent = message("X", body, message_type=pb.TRANSACTION)
    response = await sdk.send(sent)
    assert response.status.code == pb.OK
    return sent, response.entries[0].transaction_id


async def end(sdk: Sdk, sent: pb.Message, transaction: str, resolution: int) -> int:
    request = pb.EndTransactionRequest(
        message_id=sent.system_properties.message_id,
        transaction_id=transaction,
        resolution=pb.TransactionResolution.ValueType(resolution),
    )
    request.topic.name = "X"
    code: int = (await sdk.call("EndTransaction", request)).status.code
    return code


async def test_a_committed_message_is_delivered_and_one_rolled_back_is_not(sdk: Sdk) -> None:
    kept, dropped = await begin(sdk, b"kept"), await begin(sdk, b"dropped")
    assert await end(sdk, *dropped, pb.ROLLBACK) == pb.OK
    assert await end(sdk, *kept, pb.COMMIT) == pb.OK
    _, received = await sdk.receive("X")
    assert [one.body for one in received] == [b"kept"]
    assert received[0].system_properties.message_type == pb.TRANSACTION


@pytest.mark.parametrize("text", ["", " ", "x", "b@1", "b@x@1"])
async def test_ids_that_are_no_transaction(sdk: Sdk, text: str) -> None:
    assert await end(sdk, message("X"), text, pb.COMMIT) == pb.INVALID_TRANSACTION_ID


async def test_a_transaction_that_nobody_ended_is_asked_about(start_broker: StartBroker) -> None:
    broker = await start_broker(transaction_timeout_s=0.05, transaction_check_interval_s=0.2)
    sdk = Sdk(build(broker).methods())
    async with Telemetry(sdk) as stream:
        await stream.settings(publishing("X"))
        sent, _ = await begin(sdk)
        asked = (await stream.next()).recover_orphaned_transaction_command
        assert asked.message.body == b"half"
        assert asked.message.topic.name == "X"
        assert asked.message.system_properties.message_id == sent.system_properties.message_id
        assert await end(sdk, sent, asked.transaction_id, pb.COMMIT) == pb.OK
        _, (received,) = await sdk.receive("X")
        assert received.body == b"half"


# --- delay and recall -----------------------------------------------------------------------------


async def test_a_delayed_message_is_recalled(sdk: Sdk) -> None:
    sent = message("D")
    sent.system_properties.delivery_timestamp.FromSeconds(int(time.time()) + 3600)
    response = await sdk.send(sent)
    handle = response.entries[0].recall_handle
    assert handle
    request = pb.RecallMessageRequest(recall_handle=handle)
    request.topic.name = "D"
    recalled = await sdk.call("RecallMessage", request)
    assert recalled.status.code == pb.OK
    assert recalled.message_id == sent.system_properties.message_id


async def test_a_handle_that_is_none_cannot_be_recalled(sdk: Sdk) -> None:
    request = pb.RecallMessageRequest(recall_handle="none")
    request.topic.name = "D"
    assert (await sdk.call("RecallMessage", request)).status.code == pb.BAD_REQUEST


async def test_a_delay_beyond_the_limit_of_the_broker_is_refused(sdk: Sdk) -> None:
    sent = message("D")
    sent.system_properties.delivery_timestamp.FromSeconds(int(time.time()) + 100 * 86_400)
    assert (await sdk.send(sent)).status.code == pb.ILLEGAL_DELIVERY_TIME


# --- questions of tools ---------------------------------------------------------------------------


def member(broker: Broker) -> Connection:
    """The broker's connection to the only member of g."""
    group = broker.context.clients.consumer_group("g")
    assert group is not None
    (connection,) = group.members
    return connection


async def test_a_tool_gets_the_stacks_of_a_client(sdk: Sdk, broker: Broker) -> None:
    async with Telemetry(sdk) as stream:
        await stream.settings(subscribing("T"))
        fields = {"consumerGroup": "g", "clientId": "sdk@1", "jstackEnable": "true"}
        asking = asyncio.ensure_future(
            member(broker).call(RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, fields), 5)
        )
        command = await stream.next()
        answer = pb.TelemetryCommand()
        answer.thread_stack_trace.nonce = command.print_thread_stack_trace_command.nonce
        answer.thread_stack_trace.thread_stack_trace = "at main"
        stream.send(answer)
        info = ConsumerRunningInfo.decode((await asking).body)
    assert info.stacks == "at main"
    assert [one.topic for one in info.subscriptions] == ["T"]


async def test_a_tool_has_a_client_try_a_message(sdk: Sdk, broker: Broker) -> None:
    await sdk.send(message("T", b"try me"))
    (record,) = [
        part
        for queue_id in range(4)
        for part in broker.context.store.get("T", queue_id, 0, 1, 1 << 20).parts
    ]
    async with Telemetry(sdk) as stream:
        await stream.settings(subscribing("T"))
        command = RemotingCommand(
            RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "g"}, bytes(record)
        )
        asking = asyncio.ensure_future(member(broker).call(command, 5))
        asked = (await stream.next()).verify_message_command
        assert asked.message.body == b"try me"
        answer = pb.TelemetryCommand(status=pb.Status(code=pb.FAILED_TO_CONSUME_MESSAGE))
        answer.verify_message_result.nonce = asked.nonce
        stream.send(answer)
        assert b"CR_LATER" in (await asking).body


async def test_commands_that_a_client_does_not_read_hold_little_memory(
    sdk: Sdk, broker: Broker
) -> None:
    await sdk.send(message("T", bytes(700_000)))
    (record,) = [
        part
        for queue_id in range(4)
        for part in broker.context.store.get("T", queue_id, 0, 1, 1 << 20).parts
    ]

    def ask() -> asyncio.Future[RemotingCommand]:
        command = RemotingCommand(
            RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "g"}, bytes(record)
        )
        return asyncio.ensure_future(member(broker).call(command, 5))

    async with Telemetry(sdk) as stream:
        await stream.settings(subscribing("T"))
        first, second = ask(), ask()
        with pytest.raises(ConnectError, match="takes no more commands"):
            await second
        assert len((await stream.next()).verify_message_command.message.body) == 700_000
        first.cancel()


async def test_a_question_to_a_client_without_a_stream_fails(sdk: Sdk, broker: Broker) -> None:
    request = pb.HeartbeatRequest(client_type=pb.SIMPLE_CONSUMER)
    request.group.name = "g"
    await sdk.call("Heartbeat", request)
    fields = {"consumerGroup": "g", "clientId": "sdk@1", "jstackEnable": "true"}
    with pytest.raises(ConnectError, match="no telemetry stream"):
        await member(broker).call(RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, fields), 5)


# --- access control -------------------------------------------------------------------------------


@pytest.fixture
async def guarded(start_broker: StartBroker) -> Mapping[str, Method]:
    """The service of a broker on which sender may send to T, and reader may read it as g."""
    table = AccessTable()
    rules = {
        "sender": [("Topic:T", "Pub"), ("Topic:X", "Pub")],
        "reader": [("Topic:T", "Sub"), ("Group:g", "Sub")],
        "nobody": [],
    }
    for name, allowed in rules.items():
        await table.create_user(User(username=name, password=f"{name} secret"))
        entries = tuple(
            PolicyEntry.from_json({"resource": where, "actions": [what], "decision": "Allow"})
            for where, what in allowed
        )
        await table.put_acl(Acl(subject=f"User:{name}", policies=(Policy(entries=entries),)))
    return build(await start_broker(table)).methods()


def as_user(methods: Mapping[str, Method], name: str, secret: str | None = None) -> Sdk:
    return Sdk(methods, user=(name, secret or f"{name} secret"))


async def test_users_do_what_they_may_and_nothing_else(guarded: Mapping[str, Method]) -> None:
    sender, reader = as_user(guarded, "sender"), as_user(guarded, "reader")
    assert (await sender.send(message("T", b"mine"))).status.code == pb.OK
    assert (await reader.send(message("T"))).status.code == pb.FORBIDDEN
    code, (received,) = await reader.receive("T")
    assert (code, received.body) == (pb.OK, b"mine")
    assert (await sender.receive("T"))[0] == pb.FORBIDDEN
    assert (await sender.ack("T", received)).status.code == pb.FORBIDDEN
    assert (await sender.change("T", received, 60)).status.code == pb.FORBIDDEN
    assert (await reader.ack("T", received)).status.code == pb.OK
    assert (await sender.route("T")).status.code == pb.OK
    assert (await reader.route("T")).status.code == pb.OK


async def test_every_method_refuses_a_user_without_permission(
    guarded: Mapping[str, Method],
) -> None:
    owner, nobody = as_user(guarded, "sender"), as_user(guarded, "nobody")
    half, transaction = await begin(owner)
    names = {"group": pb.Resource(name="g"), "topic": pb.Resource(name="T")}
    now_ms = time.time_ns() // 1_000_000
    handle = f"0 {now_ms} 60000 0 0 broker-a 0 0 0"
    requests = {
        "QueryRoute": pb.QueryRouteRequest(topic=names["topic"]),
        "QueryAssignment": pb.QueryAssignmentRequest(**names),
        "Heartbeat": pb.HeartbeatRequest(group=names["group"], client_type=pb.SIMPLE_CONSUMER),
        "SendMessage": pb.SendMessageRequest(messages=[message("T")]),
        "AckMessage": pb.AckMessageRequest(
            **names, entries=[pb.AckMessageEntry(receipt_handle=handle)]
        ),
        "ChangeInvisibleDuration": pb.ChangeInvisibleDurationRequest(
            **names, receipt_handle=handle
        ),
        "ForwardMessageToDeadLetterQueue": pb.ForwardMessageToDeadLetterQueueRequest(
            **names, receipt_handle=handle
        ),
        "EndTransaction": pb.EndTransactionRequest(
            topic=pb.Resource(name="X"), transaction_id=transaction, resolution=pb.COMMIT
        ),
        "RecallMessage": pb.RecallMessageRequest(topic=names["topic"], recall_handle="x"),
    }
    for name, request in requests.items():
        response = await nobody.call(name, request)
        assert response.status.code == pb.FORBIDDEN, (name, response)
    assert (await nobody.receive("T"))[0] == pb.FORBIDDEN
    for settings in (publishing("T"), subscribing("T")):
        async with Telemetry(nobody) as stream:
            stream.send(pb.TelemetryCommand(settings=settings))
            with pytest.raises(CallError, match="FORBIDDEN"):
                await stream.next()
    assert await end(owner, half, transaction, pb.COMMIT) == pb.OK


async def test_credentials_that_are_wrong_or_missing(guarded: Mapping[str, Method]) -> None:
    clients = [
        Sdk(guarded),
        as_user(guarded, "sender", "wrong"),
        as_user(guarded, "unknown"),
    ]
    texts = set()
    for client in clients:
        response = await client.send(message("T"))
        assert response.status.code == pb.UNAUTHORIZED
        texts.add(response.status.message)
        assert (await client.receive("T"))[0] == pb.UNAUTHORIZED
        async with Telemetry(client) as stream:
            with pytest.raises(CallError) as caught:
                await stream.next()
        assert caught.value.code == GrpcStatus.UNAUTHENTICATED
    # whether a user exists is told to nobody
    assert len(texts) == 2


async def test_a_proxy_header_does_not_pass_a_rule_for_addresses(start_broker: StartBroker) -> None:
    table = AccessTable()
    await table.create_user(User(username="inside", password="inside secret"))
    rule = {"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}
    entry = PolicyEntry.from_json(rule | {"sourceIps": ["10.0.0.0/8"]})
    await table.put_acl(Acl(subject="User:inside", policies=(Policy(entries=(entry,)),)))
    methods = build(await start_broker(table)).methods()
    for peer, through, code in (
        ("10.1.2.3", None, pb.OK),
        ("10.1.2.3", ("192.0.2.7", 1), pb.FORBIDDEN),
        ("192.0.2.7", ("10.1.2.3", 1), pb.OK),
    ):
        client = Sdk(methods, f"sdk@{peer}@{through}", user=("inside", "inside secret"))
        client.peer, client.through = (peer, 1), through
        assert (await client.send(message("T"))).status.code == code


@pytest.mark.parametrize(
    "text",
    ["a" * 1_000_000, "a" * 500_000 + "," + "b" * 500_000],
    ids=["one part", "two parts"],
)
async def test_long_credentials_that_are_none_are_refused_at_once(
    guarded: Mapping[str, Method], text: str
) -> None:
    """To look for the parts of each one again and again would take hours."""
    client = Sdk(guarded)
    client.metadata["authorization"] = f"MQv2-HMAC-SHA1 Credential={text}"
    assert (await client.send(message("T"))).status.code == pb.UNAUTHORIZED


async def test_a_client_id_of_another_user_leads_to_a_session_of_its_own(
    guarded: Mapping[str, Method],
) -> None:
    sender, nobody = as_user(guarded, "sender"), as_user(guarded, "nobody")
    async with Telemetry(sender) as stream:
        await stream.settings(publishing("T"))
        response = await nobody.call("NotifyClientTermination", pb.NotifyClientTerminationRequest())
        assert response.status.code == pb.OK
        # the stream of the other user is still there
        assert (await stream.settings(publishing("T"))).publishing.max_body_size
