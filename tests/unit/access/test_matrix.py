"""Every request code with every kind of credential, at a broker and at a name server: default
deny.
"""

import asyncio
import itertools
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ogive.access.guard import NOBODY_KNOWN
from ogive.access.user_table import AccessTable, on_behalf
from ogive.broker import Broker, BrokerConfig
from ogive.errors import ResponseCode
from ogive.namesrv.config import NameServerConfig
from ogive.namesrv.server import NameServer
from ogive.proxy import rocketmq_pb2 as pb
from ogive.proxy.calls import CallError, CallKind, Method
from ogive.proxy.service import build
from ogive.transport.connection import split_address
from ogive.wire.bodies.acls import Acl, Policy, PolicyEntry, User
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand, decode_command, encode_command
from ogive.wire.signing import Credentials
from tests.figures import figures
from tests.raw_client import RawClient
from tests.unit.proxy.sdk import ENDPOINTS, Sdk, Telemetry, message, subscribing

SECRETS = {name: f"{name}-top-secret-0815" for name in ("root", "plain", "other")}
USERS = {name: Credentials(access_key=name, secret_key=secret) for name, secret in SECRETS.items()}
FIELDS = {
    "topic": "T",
    "b": "T",
    "a": "P",
    "consumerGroup": "G",
    "group": "G",
    "groupName": "G",
    "producerGroup": "P",
    "queueId": "0",
    "e": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "0",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subVersion": "0",
    "g": "1",
    "bornTimestamp": "1",
    "offset": "0",
    "timestamp": "0",
    "clusterName": "DefaultCluster",
    "brokerName": "evil",
    "brokerAddr": "127.0.0.1:1",
    "brokerId": "0",
    "haServerAddr": "",
    "namespace": "N",
    "key": "K",
    "value": "V",
    "username": "mallory",
    "subject": "User:plain",
    "commitLogOffset": "0",
    "tranStateTableOffset": "0",
    "commitOrRollback": "8",
    "msgId": "0",
    "clientID": "c",
    "clientId": "c",
    "srcGroup": "G",
    "destGroup": "G",
    "isForce": "true",
    "offline": "true",
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "order": "false",
    "cluster": "DefaultCluster",
    "delayLevel": "0",
    "c": "TBW102",
    "d": "4",
    "f": "0",
    "h": "0",
}
BODY = json.dumps(
    {
        "username": "mallory",
        "password": "x",
        "groupName": "G",
        "consumerGroup": "G",
        "group": "G",
        "mqSet": [{"topic": "T", "queueId": 0}],
        "consumerDataSet": [
            {"groupName": "G", "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}
        ],
        "clientID": "c",
        "subscriptionData": {"topic": "T"},
        "acks": [{"c": "G", "t": "T"}],
        "topic": "T",
        "topicConfigList": [{"topicName": "T"}],
        "groupConfigList": [{"groupName": "G"}],
        "policies": [{"entries": [{"resource": "*", "actions": ["All"], "decision": "Allow"}]}],
    }
).encode()
UNKNOWN = (
    -1,
    0,
    1,
    9,
    16,
    24,
    48,
    99,
    110,
    260,
    360,
    500,
    999,
    1000,
    3000,
    3011,
    4711,
    32767,
    200_000,
)


@dataclass(slots=True)
class Servers:
    table: AccessTable
    broker: Broker
    name_server: NameServer


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    table = AccessTable(tmp_path / "store" / "config" / "access")
    for name, secret in SECRETS.items():
        await table.create_user(
            User(username=name, password=secret, user_type="Super" if name == "root" else "Normal")
        )
    entries = tuple(
        PolicyEntry.from_json({"resource": text, "actions": ["All"], "decision": "Allow"})
        for text in ("Topic:Own", "Group:Own")
    )
    await table.put_acl(Acl(subject="User:other", policies=(Policy(entries=entries),)))
    name_server = NameServer(NameServerConfig(port=0), access=table)
    await name_server.start()
    config = BrokerConfig(
        data=tmp_path / "store",
        port=0,
        segment_bytes=1024 * 1024,
        name_servers=(name_server.address,),
        credentials=table.internal,
    )
    broker = Broker(config, access=table)
    await broker.start()
    yield Servers(table, broker, name_server)
    await broker.stop()
    await name_server.stop()


def signed(kind: str, body: bytes = BODY) -> tuple[dict[str, str], bytes]:
    """The fields and body of one cell of the matrix."""
    match kind:
        case "none":
            return FIELDS, body
        case "wrong key":
            return Credentials(access_key="nobody", secret_key="guess").sign(FIELDS, body), body
        case "wrong signature":
            return USERS["root"].sign(FIELDS, body) | {"Signature": "A" * 28}, body
        case "changed body":
            return USERS["root"].sign(FIELDS, body), body + b" "
        case "changed field":
            return USERS["root"].sign(FIELDS, body) | {"topic": "T2"}, body
        case "another's name":
            return USERS["plain"].sign(FIELDS, body) | {"AccessKey": "root"}, body
        case "on behalf of root":
            return on_behalf(USERS["plain"], "root").sign(FIELDS, body), body
        case "on behalf of nobody":
            return on_behalf(USERS["root"], "nobody").sign(FIELDS, body), body
        case "on behalf of plain":
            return on_behalf(USERS["root"], "plain").sign(FIELDS, body), body
        case user:
            return USERS[user].sign(FIELDS, body), body


NOBODY = (
    "none",
    "wrong key",
    "wrong signature",
    "changed body",
    "changed field",
    "another's name",
    "on behalf of root",
    "on behalf of nobody",
)


async def ask(address: str, kind: str, codes: list[int]) -> dict[int, RemotingCommand]:
    fields, body = signed(kind)
    async with await RawClient.open(address) as client:
        answers = await asyncio.gather(*(client.call(code, body, **fields) for code in codes))
    return dict(zip(codes, answers, strict=True))


def refused_by_access_control(answer: RemotingCommand) -> bool:
    words = (NOBODY_KNOWN, "asks for credentials", "has no permission: ", "is for super users")
    return answer.code == ResponseCode.NO_PERMISSION and any(
        word in (answer.remark or "") for word in words
    )


def state(servers: Servers) -> object:
    ctx = servers.broker.context
    routes = servers.name_server._running.routes
    return (
        dict(ctx.topics.all()),
        dict(ctx.groups.all()),
        ctx.offsets.snapshot()(),
        dict(ctx.clients.consumers),
        dict(ctx.clients.producers),
        ctx.store.stats().puts,
        dict(servers.table.users),
        dict(servers.table.acls),
        sorted(routes.topics()),
        dict(servers.name_server._running.kv.namespace("N")),
    )


@pytest.mark.parametrize(
    "codes", ["every known code", pytest.param("0 to 1000 and more", marks=pytest.mark.nightly)]
)
async def test_nothing_is_open_that_the_table_does_not_open(
    servers: Servers, codes: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "ogive")
    all_codes = sorted({*RequestCode, *UNKNOWN, *(range(1001) if codes.startswith("0") else ())})
    before = state(servers)
    texts: list[str] = []
    with figures("T39", nightly=codes.startswith("0")) as line:
        for address, kind in itertools.product(
            (servers.broker.address, servers.name_server.address),
            (*NOBODY, "plain", "on behalf of plain", "other"),
        ):
            answers = await ask(address, kind, all_codes)
            passed = {
                code for code, answer in answers.items() if not refused_by_access_control(answer)
            }
            # every request needs a rule that names what it is about
            assert not passed, kind
            texts += [
                f"{answer.remark} {answer.ext_fields} {answer.body!r}"
                for answer in answers.values()
            ]
        assert state(servers) == before
        await the_super_user_is_refused_nothing(servers, all_codes, texts)
        line["attempts"] = len(texts)
    for secret in (*SECRETS.values(), servers.table.internal.secret_key):
        assert not [text for text in [*texts, caplog.text] if secret in text]


async def the_super_user_is_refused_nothing(
    servers: Servers, codes: list[int], texts: list[str]
) -> None:
    kept = {RequestCode.AUTH_DELETE_ACL, RequestCode.AUTH_DELETE_USER}
    for address in (servers.broker.address, servers.name_server.address):
        answers = await ask(address, "root", [code for code in codes if code not in kept])
        assert not [code for code, answer in answers.items() if refused_by_access_control(answer)]
        texts += [
            f"{answer.remark} {answer.ext_fields} {answer.body!r}" for answer in answers.values()
        ]


def grpc_request(method: Method) -> Any:
    """A request of a gRPC method about topic T and group G."""
    now_ms = time.time_ns() // 1_000_000
    handle = f"0 {now_ms} 60000 0 0 broker-a 0 0 0"
    values: dict[str, object] = {
        "topic": pb.Resource(name="T"),
        "group": pb.Resource(name="G"),
        "message_queue": pb.MessageQueue(topic=pb.Resource(name="T"), id=-1),
        "endpoints": ENDPOINTS,
        "messages": [message("T")],
        "entries": [pb.AckMessageEntry(receipt_handle=handle)],
        "receipt_handle": handle,
        "transaction_id": "broker-a@0@0",
        "resolution": pb.COMMIT,
        "client_type": pb.SIMPLE_CONSUMER,
        "settings": subscribing("T", "G"),
    }
    named = method.request.DESCRIPTOR.fields_by_name  # type: ignore[attr-defined]
    return method.request(**{name: values[name] for name in named if name in values})


async def grpc_answer(methods: Mapping[str, Method], method: Method, sdk: Sdk) -> int:
    """The code of the status of the first answer."""
    request = grpc_request(method)
    if method.kind is CallKind.UNARY:
        answer = await sdk.call(method.name, request)
    elif method.kind is CallKind.SERVER_STREAM:
        answer = await anext(sdk.receiving(request))
    else:
        async with Telemetry(sdk) as stream:
            stream.send(request)
            try:
                answer = await stream.next()
            except CallError as exc:
                return int(pb.Code.Value(exc.message.partition(":")[0]))
    return int(answer.status.code)


@pytest.mark.parametrize(
    ("user", "refusal"),
    [
        (None, pb.UNAUTHORIZED),
        (("nobody", "guess"), pb.UNAUTHORIZED),
        (("root", "guess"), pb.UNAUTHORIZED),
        (("root:plain", SECRETS["root"]), pb.UNAUTHORIZED),
        (("plain", SECRETS["plain"]), pb.FORBIDDEN),
        (("other", SECRETS["other"]), pb.FORBIDDEN),
    ],
)
async def test_no_grpc_method_is_open_that_the_table_does_not_open(
    servers: Servers, user: tuple[str, str] | None, refusal: int
) -> None:
    methods, before = build(servers.broker).methods(), state(servers)
    sdk = Sdk(methods, user=user)
    answers = {each.name: await grpc_answer(methods, each, sdk) for each in methods.values()}
    # these two are about nothing but the client itself
    own = {"NotifyClientTermination": pb.OK, "SyncLiteSubscription": pb.NOT_IMPLEMENTED}
    expected = dict.fromkeys(answers, refusal) | (own if refusal == pb.FORBIDDEN else {})
    assert answers == expected
    assert state(servers) == before


async def test_a_oneway_request_without_credentials_does_nothing(servers: Servers) -> None:
    before = state(servers)
    async with await RawClient.open(servers.broker.address) as client:
        for code in RequestCode:
            client.oneway(code, BODY, **FIELDS)
        await client.call(RequestCode.GET_MAX_OFFSET)
    assert state(servers) == before


@pytest.mark.kills("one request code missing from the permission table")
async def test_a_user_with_rules_for_the_topic_and_the_group_sends_and_consumes(
    servers: Servers,
) -> None:
    """By hand what clients do; and not a step further."""
    other = USERS["other"]

    async def call(
        client: RawClient, code: int, fields: dict[str, str], body: bytes = b""
    ) -> RemotingCommand:
        return await client.call(code, body, **other.sign(fields, body))

    async with await RawClient.open(servers.broker.address) as client:
        sent = RawClient.send_fields("Own", 0, "")
        text = {
            name: "false" if value is False else str(value)
            for name, value in sent.items()
            if value != ""
        }
        assert (await call(client, 310, text, b"hello")).code == 0
        pull = {
            "consumerGroup": "Own",
            "topic": "Own",
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "1",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        own = {"groupName": "Own", "subscriptionDataSet": [{"topic": "Own", "subString": "*"}]}
        beat = {"clientID": "c", "consumerDataSet": [own]}
        assert (await call(client, 34, {}, json.dumps(beat).encode())).code == 0
        answer = await call(client, 11, pull)
        assert answer.code == 0
        assert b"hello" in answer.body
        assert (await call(client, 33, {"offset": "0"})).code == 0
        for fields in (
            pull | {"topic": "T"},
            pull | {"consumerGroup": "G"},
            pull | {"topic": "%RETRY%G"},
        ):
            assert refused_by_access_control(await call(client, 11, fields))


async def repeat(address: str, frame: bytes) -> RemotingCommand:
    """What a stranger gets who sends, on a connection of his own, the bytes that somebody else
    sent.
    """
    reader, writer = await asyncio.open_connection(*split_address(address))
    async with asyncio.timeout(60):
        writer.write(frame)
        answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        writer.close()
        await writer.wait_closed()
    return decode_command(answer)


async def test_a_captured_request_is_served_again(servers: Servers) -> None:
    """The protocol's signature holds no time and no number, as docs/security.md says: only TLS
    keeps requests from being captured.
    """
    sent = {
        name: "false" if value is False else str(value)
        for name, value in RawClient.send_fields("Own", 0, "").items()
    }
    frame = encode_command(RemotingCommand(310, USERS["other"].sign(sent, b"hello"), b"hello"))
    answers = [await repeat(servers.broker.address, frame) for _ in range(3)]
    assert [(answer.code, answer.ext_fields["queueOffset"]) for answer in answers] == [
        (0, "0"),
        (0, "1"),
        (0, "2"),
    ]
    route = encode_command(
        RemotingCommand(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, USERS["other"].sign({"topic": "Own"}, b"")
        )
    )
    for _ in range(2):
        assert not refused_by_access_control(await repeat(servers.name_server.address, route))


async def test_a_captured_request_under_another_code_does_what_its_user_may_and_no_more(
    servers: Servers,
) -> None:
    """The code is not signed either."""
    # the topic is there
    await test_a_captured_request_is_served_again(servers)
    fields = USERS["other"].sign({"topic": "Own", "queueId": "0", "offset": "0"}, b"")
    before = state(servers)
    codes = (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET)
    answers = [
        await repeat(servers.broker.address, encode_command(RemotingCommand(code, fields)))
        for code in codes
    ]
    assert [(answer.code, answer.ext_fields["offset"]) for answer in answers] == [
        (0, "3"),
        (0, "0"),
    ]
    for code in (
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.AUTH_LIST_USER,
        *UNKNOWN,
    ):
        for address in (servers.broker.address, servers.name_server.address):
            assert refused_by_access_control(
                await repeat(address, encode_command(RemotingCommand(code, fields)))
            ), code
    assert state(servers) == before
