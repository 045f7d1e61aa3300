"""Names and settings that somebody made to reach files and programs (T38; CVE-2019-17572, CVE-2023-33246, CVE-2023-37582)."""

import json
import random
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ogive.broker import Broker, BrokerConfig
from ogive.errors import ResponseCode
from ogive.namesrv.config import NameServerConfig
from ogive.namesrv.server import NameServer
from tests.figures import figures
from tests.raw_client import RawClient

pytestmark = pytest.mark.rel

LEGAL = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")
NAMES = [
    "../../../../topic2020",
    "..",
    ".",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "C:\\x",
    "a\x00b",
    "\x00",
    "a\nb",
    "%2e%2e%2f",
    "~root",
    "$(touch x)",
    "`touch x`",
    "; touch x",
    "| touch x",
    "a b",
    "",
    " ",
    "x" * 256,
    "x" * 40_000,
    "оrders",
    "Ⅷ",
    "a\u202eb",
    "a\u0301",
    "\ud7ff",
    "😀",
    "con",
    "%RETRY%../x",
    "%RETRY%",
    "%DLQ%/x",
    "%DLQ%" + "x" * 300,
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_x",
    "-rf",
    "topics.json",
]
CARRIERS = {
    17: {"topic", "defaultTopic"},
    215: {"topic"},
    10: {"topic", "producerGroup", "defaultTopic"},
    310: {"b", "a", "c"},
    11: {"topic", "consumerGroup"},
    14: {"topic", "consumerGroup"},
    15: {"topic", "consumerGroup"},
    30: {"topic"},
    207: {"groupName"},
    202: {"topic"},
    351: {"topic"},
    352: {"group"},
    36: {"group", "originTopic"},
    38: {"consumerGroup"},
    222: {"topic", "group"},
    314: {"srcGroup", "destGroup", "topic"},
    300: {"topic"},
    105: {"topic"},
    216: {"topic", "clusterName"},
    217: {"topic"},
    103: {"brokerName", "clusterName"},
    100: {"namespace", "key"},
    102: {"namespace", "key"},
    205: {"brokerName"},
    3001: {"username"},
    3006: {"subject"},
}
OTHERS = {
    "queueId": "0",
    "e": "0",
    "g": "1",
    "bornTimestamp": "1",
    "queueOffset": "0",
    "maxMsgNums": "1",
    "sysFlag": "4",
    "commitOffset": "0",
    "offset": "0",
    "suspendTimeoutMillis": "0",
    "subVersion": "0",
    "readQueueNums": "1",
    "writeQueueNums": "1",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "order": "false",
    "timestamp": "0",
    "isForce": "true",
    "offline": "true",
    "brokerAddr": "127.0.0.1:1",
    "brokerId": "0",
    "haServerAddr": "",
    "delayLevel": "0",
    "value": "V",
    "cleanOffset": "true",
}
SETTINGS = [
    "rocketmqHome=-c $@|sh . echo touch pwned;\nfilterServerNums=1",  # what ran commands on brokers
    "configStorePath=/tmp/pwned\nproductEnvName=x\\nroot::0:0",  # what wrote files on name servers
    "kvConfigPath=/tmp/pwned",
    "brokerConfigPath=/tmp/pwned",
    "storePathRootDir=/tmp/pwned",
    "configBlackList=x\nrocketmqHome=/x",
    "namesrvAddr=10.0.0.1:1",
    "listenPort=1",
    "authenticationEnabled=false",
    "initAuthenticationUser={}",
    "brokerName=x",
    "fileReservedTime=0",
    "x=y",
    "=",
    "maxMessageSize=-1",
    "maxMessageSize=9999999999999",
    "autoCreateTopicEnable=maybe",
    "maxMessageSize=1000\nrocketmqHome=/x",
]


@dataclass(slots=True)
class Servers:
    folder: Path
    broker: Broker
    name_server: NameServer


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    name_server = NameServer(NameServerConfig(port=0, kv_path=tmp_path / "store" / "kv.json"))
    await name_server.start()
    broker = Broker(BrokerConfig(data=tmp_path / "store", port=0, segment_bytes=1024 * 1024))
    await broker.start()
    yield Servers(tmp_path, broker, name_server)
    await broker.stop()
    await name_server.stop()


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.nightly)])
async def test_no_name_becomes_a_path(servers: Servers, rounds: int) -> None:
    """Every command that carries a name, with every name in every place; what is made has a legal name, inside the store."""
    dice = random.Random(rounds)
    attempts = 0
    with figures("T38", nightly=rounds > 1, seed=rounds) as line:
        async with await RawClient.open(servers.broker.address) as broker, await RawClient.open(servers.name_server.address) as name_server:
            for name in NAMES * rounds:
                shown = name if rounds == 1 else name + dice.choice(NAMES[:12])
                for code, fields in CARRIERS.items():
                    named = OTHERS | dict.fromkeys(fields, shown)
                    for client in (broker, name_server):
                        answer = await client.call(code, b"", **named)
                        assert answer.code in set(ResponseCode)
                        attempts += 1
                for code, body in {
                    200: {"groupName": shown},
                    34: {
                        "clientID": shown,
                        "consumerDataSet": [{"groupName": shown, "subscriptionDataSet": [{"topic": shown, "subString": "*"}]}],
                    },
                    41: {"consumerGroup": shown, "clientId": shown, "mqSet": [{"topic": shown, "brokerName": "broker-a", "queueId": 0}]},
                }.items():
                    await broker.call(code, json.dumps(body).encode())
                    attempts += 1
        line["attempts"] = attempts
    ctx = servers.broker.context
    for made in (*ctx.topics.all(), *ctx.groups.all()):
        assert LEGAL.fullmatch(made), made
    assert [path.name for path in servers.folder.iterdir()] == ["store"]
    queues = servers.folder / "store" / "consumequeue"
    assert not [path for path in queues.iterdir() if not LEGAL.fullmatch(path.name)]
    assert {path.name for path in queues.iterdir()} <= set(ctx.topics.all())


async def test_no_setting_reaches_a_file_or_a_program(servers: Servers) -> None:
    before = (servers.broker.context.config, servers.name_server.config)
    for address, code in ((servers.broker.address, 25), (servers.name_server.address, 318)):
        async with await RawClient.open(address) as client:
            for text in SETTINGS:
                answer = await client.call(code, text.encode())
                assert answer.code in (ResponseCode.NO_PERMISSION, ResponseCode.INVALID_PARAMETER, ResponseCode.SYSTEM_ERROR), text
    assert (servers.broker.context.config, servers.name_server.config) == before
    assert not Path("/tmp/pwned").exists()
    assert [path.name for path in servers.folder.iterdir()] == ["store"]
