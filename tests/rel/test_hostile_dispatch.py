"""Mutated frames, fields and bodies at the handlers of broker and name server (T33): each request
is answered, and one that is refused changed nothing.
"""

import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ogive.broker import Broker, BrokerConfig
from ogive.errors import ProtocolError, ResponseCode
from ogive.namesrv.config import NameServerConfig
from ogive.namesrv.handlers import ROUTES as NAME_SERVER_ROUTES
from ogive.namesrv.server import NameServer
from ogive.transport.connection import Connection, connect, split_address
from ogive.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from ogive.wire.codes import Flag, RequestCode
from ogive.wire.command import RemotingCommand, decode_command
from tests.figures import figures
from tests.rel.test_hostile_input import mutated, seeds

pytestmark = [pytest.mark.rel, pytest.mark.computes(60)]

CONVERSATIONS = Path(__file__).parents[1] / "vectors" / "conversations.jsonl"
DONE = {
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
}
"""All other answers are refusals.

A pull that finds nothing has committed its offset nevertheless.
"""
VALUES = (
    "",
    "0",
    "1",
    "-1",
    "7",
    "2147483647",
    "-2147483648",
    "9223372036854775807",
    "9" * 30,
    "1.5",
    "true",
    "x",
    "T",
    "G",
    "%RETRY%G",
    "%DLQ%G",
    "%RETRY%",
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "../x",
    "a\x00b",
    "ü" * 200,
    "*",
    "SQL92",
    "[]",
    "{}",
    "DELAY\x01x\x02",
    "DELAY\x013\x02",
    "UNIQ_KEY\x01AB\x02",
    "TRAN_MSG\x01true\x02",
    "TIMER_DELAY_SEC\x017200\x02",
)
HEARTBEAT = b'{"clientID":"c","consumerDataSet":[%b],"producerDataSet":[%b]}'
MEMBER = (
    b'{"groupName":"%b","subscriptionDataSet":[{"topic":"T","subString":"*"}],'
    b'"messageModel":"CLUSTERING"}'
)
LOCK = (
    b'{"consumerGroup":"%b","clientId":"c","mqSet":[{"topic":"T","brokerName":"broker-a",'
    b'"queueId":0}%b]}'
)
BODIES: dict[int, tuple[bytes, ...]] = {
    RequestCode.HEART_BEAT: (
        HEARTBEAT % (MEMBER % b"G", b""),
        HEARTBEAT % (MEMBER % b"G", b'{"groupName":"P"}'),
        HEARTBEAT % (MEMBER % b"G" + b"," + MEMBER % b"../G", b'{"groupName":"P"}'),
        HEARTBEAT
        % (MEMBER % b"G" + b"," + MEMBER % b"Absent", b'{"groupName":"P"},{"groupName":"../P"}'),
    ),
    RequestCode.LOCK_BATCH_MQ: (
        LOCK % (b"G", b""),
        LOCK % (b"G", b',{"topic":"../T","brokerName":"broker-a","queueId":0}'),
    ),
    RequestCode.UNLOCK_BATCH_MQ: (LOCK % (b"G", b""), LOCK % (b"../G", b"")),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (
        b'{"groupName":"G2"}',
        b'{"groupName":"G","retryMaxTimes":-7}',
        b'{"groupName":"../G"}',
    ),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: (
        b'{"groupConfigList":[{"groupName":"G3"},{"groupName":"../G"}]}',
    ),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: (
        b'{"topicConfigList":[{"topicName":"T3"},{"topicName":"../T"}]}',
    ),
    RequestCode.UPDATE_BROKER_CONFIG: (
        b"maxMessageSize=1000\nrocketmqHome=/x",
        b"maxMessageSize=1000\nmaxTransferCountOnMessageInMemory=0",
    ),
}
NONSENSE = (b"", b"{}", b"[]", b"null", b"{", b"\xff" * 64)


def state(broker: Broker) -> dict[str, Any]:
    """All that requests can change, but what is counted."""
    ctx = broker.context
    return {
        "topics": dict(ctx.topics.all()),
        "groups": dict(ctx.groups.all()),
        "offsets": ctx.offsets.snapshot()(),
        "consumers": {
            name: sorted(group.client_ids) for name, group in ctx.clients.consumers.items()
        },
        "producers": {name: len(members) for name, members in ctx.clients.producers.items()},
        "locks": len(ctx.locks),
        "messages": ctx.store.stats().puts,
        "timers": len(ctx.timers),
        "settings": ctx.config,
    }


def state_of_names(server: NameServer) -> dict[str, Any]:
    """All that requests to a name server can change."""
    context = server._running
    routes = context.routes
    return {
        "live": {key: (live.broker, live.data_version) for key, live in routes._live.items()},
        "addresses": {name: dict(addresses) for name, addresses in routes._addresses.items()},
        "clusters": dict(routes._cluster_of),
        "queues": {topic: dict(brokers) for topic, brokers in routes._queues.items()},
        "settings": {space: dict(entries) for space, entries in context.kv._spaces.items()},
        "config": context.config,
    }


def recorded(asked: str = "broker") -> list[RemotingCommand]:
    """What Apache's programs asked a broker, or a name server, with our topic and group."""
    ours = {
        "topic": "T",
        "b": "T",
        "originTopic": "T",
        "consumerGroup": "G",
        "group": "G",
        "groupName": "G",
    }
    found = []
    for line in map(json.loads, CONVERSATIONS.read_text().splitlines()):
        request = line["request"]
        if line["server"] == asked and line["direction"] == "client to server":
            fields = {
                name: ours.get(name, str(value))
                for name, value in request.get("extFields", {}).items()
            }
            body = request["body"] or ""
            found.append(
                RemotingCommand(
                    request["code"], fields, b"" if body.startswith("hex:") else body.encode()
                )
            )
    return found


def spoiled(dice: random.Random, request: RemotingCommand) -> RemotingCommand:
    """*request* with some fields and perhaps its body made wrong; all of this is read, unlike most
    frames with mutated bytes.
    """
    fields = dict(request.ext_fields)
    for name in dice.sample(sorted(fields), min(len(fields), dice.choice((0, 1, 1, 2, 4)))):
        fields[name] = dice.choice(VALUES)
    if fields and dice.random() < 0.2:
        del fields[dice.choice(sorted(fields))]
    body = (
        dice.choice(BODIES.get(request.code, (request.body,)))
        if dice.random() < 0.9
        else dice.choice(NONSENSE)
    )
    if body and dice.random() < 0.4:
        body = mutated(dice, body)
    return RemotingCommand(request.code, fields, body)


def request_of(frame: bytes) -> RemotingCommand | None:
    """What a broker reads from it; None where it reads nothing."""
    try:
        return decode_command(frame[4:])
    except ProtocolError:
        return None


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """One that does nothing by itself: it makes neither topics nor groups, and nothing that waits
    is due.
    """
    config = BrokerConfig(
        data=tmp_path / "store",
        port=0,
        segment_bytes=1024 * 1024,
        auto_create_topics=False,
        auto_create_groups=False,
        delay_levels=" ".join(["2h"] * 18),
        transaction_check_interval_s=3600.0,
        client_expiry_s=3600.0,
        lock_lease_s=3600.0,
    )
    running = Broker(config)
    await running.start()
    yield running
    await running.stop()


async def connected(server: Broker | NameServer) -> Connection:
    """A client that refuses whatever the broker asks it: a request may send one there."""

    def refuse(connection: Connection, command: RemotingCommand) -> None:
        connection.reply(
            RemotingCommand(ResponseCode.SYSTEM_ERROR, opaque=command.opaque, flag=Flag.RESPONSE)
        )

    return await connect(*split_address(server.address), on_request=refuse)


def set_up(broker: Broker) -> None:
    """What the requests are about; those that are not refused may have removed it."""
    ctx = broker.context
    if "T" not in ctx.topics:
        ctx.topics.create_or_update(TopicConfig(name="T", read_queues=4, write_queues=4))
    if "G" not in ctx.groups:
        ctx.groups.create_or_update(SubscriptionGroupConfig(name="G"))


def changed(
    before: dict[str, Any], after: dict[str, Any], request: RemotingCommand, answer: RemotingCommand
) -> dict[str, Any]:
    """What a refused request should not have changed.

    Two may, as Java's: what is sent back makes its group's retry topic before it is looked for, and
    a reply that reaches nobody is stored, which its answer tells.
    """
    found = {name: (before[name], value) for name, value in after.items() if value != before[name]}
    if request.code == RequestCode.CONSUMER_SEND_MSG_BACK and before["topics"].keys() == after[
        "topics"
    ].keys() - {"%RETRY%G"}:
        found.pop("topics", None)
    if (
        request.code in (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
        and "msgId" in answer.ext_fields
    ):
        found.pop("messages", None)
    return found


@pytest.mark.parametrize(
    "count", [5_000, pytest.param(500_000, marks=[pytest.mark.nightly, pytest.mark.slow])]
)
async def test_a_request_that_is_refused_has_changed_nothing(broker: Broker, count: int) -> None:
    dice, frames, answers = random.Random(34), seeds(), Counter[int]()
    known = [*recorded(), *filter(None, map(request_of, frames))]
    known += [request for request in known if request.code in BODIES] * 3
    unreadable, slowest_s = 0, 0.0
    client = await connected(broker)
    with figures("T33", nightly=count > 5_000, seed=34, attempts=count) as line:
        for number in range(count):
            request = (
                request_of(mutated(dice, dice.choice(frames)))
                if number % 2
                else spoiled(dice, dice.choice(known))
            )
            if request is None:
                unreadable += 1
                continue
            # or there would be no answer to wait for
            request.flag = Flag(0)
            if "suspendTimeoutMillis" in request.ext_fields:
                request.ext_fields["suspendTimeoutMillis"] = "1"
            if client.closed:
                client = await connected(broker)
            set_up(broker)
            before, began = state(broker), time.perf_counter()
            answer = await client.call(request, 60)
            slowest_s = max(slowest_s, time.perf_counter() - began)
            answers[answer.code] += 1
            if answer.code not in DONE:
                assert not changed(before, state(broker), request, answer), (request, answer)
        refused = sum(many for code, many in answers.items() if code not in DONE)
        line["unreadable"], line["refused"], line["slowest_ms"] = (
            unreadable,
            refused,
            round(slowest_s * 1000, 1),
        )
    assert answers.keys() <= set(ResponseCode)
    # what may change something is among them
    assert answers[ResponseCode.SUCCESS] > count // 20
    assert refused > count // 4
    assert not broker.failed.done()


@pytest.mark.parametrize(
    "count", [5_000, pytest.param(200_000, marks=[pytest.mark.nightly, pytest.mark.slow])]
)
async def test_a_request_that_a_name_server_refuses_has_changed_nothing(count: int) -> None:
    """Every code that it serves is among them, with the fields and the body of a registration or
    without.
    """
    server = NameServer(NameServerConfig(port=0))
    await server.start()
    dice, frames, answers, served = random.Random(35), seeds(), Counter[int](), set[int]()
    fields = {
        "topic": "T",
        "brokerName": "b",
        "brokerAddr": "127.0.0.1:1",
        "clusterName": "c",
        "cluster": "c",
        "brokerId": "0",
        "haServerAddr": "",
        "namespace": "N",
        "key": "K",
        "value": "V",
    }
    topic = b'"%b":{"topicName":"%b","readQueueNums":4,"writeQueueNums":4,"perm":6}'
    wrapper = (
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{%b},'
        b'"dataVersion":{"timestamp":1,"counter":1}},"filterServerList":[]}'
    )
    bodies = (
        b"",
        wrapper % (topic % (b"T", b"T") + b"," + topic % (b"U", b"U")),
        wrapper % (topic % (b"../T", b"../T")),
    )
    known = recorded("name server") + [
        RemotingCommand(code, fields, body) for code in NAME_SERVER_ROUTES for body in bodies
    ]
    client = await connected(server)
    with figures("T33", nightly=count > 5_000, seed=35, attempts=count) as line:
        for number in range(count):
            request = (
                request_of(mutated(dice, dice.choice(frames)))
                if number % 4 == 0
                else spoiled(dice, dice.choice(known))
            )
            if request is None:
                continue
            request.flag = Flag(0)
            if client.closed:
                client = await connected(server)
            before = state_of_names(server)
            answer = await client.call(request, 60)
            answers[answer.code] += 1
            if answer.code in DONE:
                served.add(request.code)
            else:
                assert state_of_names(server) == before, (request, answer)
        refused = line["refused"] = sum(many for code, many in answers.items() if code not in DONE)
    assert answers.keys() <= set(ResponseCode)
    assert answers[ResponseCode.SUCCESS] > count // 20
    assert refused > count // 10
    assert RequestCode.REGISTER_BROKER in served
    client.close()
    await server.stop()
