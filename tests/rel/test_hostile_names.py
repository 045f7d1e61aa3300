"""Names and settings that somebody made to reach files and programs (T38; CVE-2019-17572,
CVE-2023-33246, CVE-2023-37582).
"""

import asyncio
import dataclasses
import itertools
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ogive.broker import Broker, BrokerConfig
from ogive.broker.config import CHANGEABLE
from ogive.broker.routes import ROUTES as BROKER_ROUTES
from ogive.errors import ResponseCode
from ogive.namesrv.config import NameServerConfig
from ogive.namesrv.handlers import ROUTES as NAME_SERVER_ROUTES
from ogive.namesrv.server import NameServer
from ogive.wire.codes import RequestCode
from ogive.wire.headers.codec import Header, fields_of
from tests.figures import figures
from tests.processes import stop
from tests.raw_client import RawClient, messages
from tests.rel import watched

pytestmark = [pytest.mark.rel, pytest.mark.waits(20)]

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
NO_NAMES = {
    "attributes",
    "boundaryType",
    "brokerAddr",
    "dataVersion",
    "expressionType",
    "haServerAddr",
    "i",
    "policyType",
    "properties",
    "topicFilterType",
    "value",
}
"""Texts in headers that say something else."""
AS = {
    RequestCode.SEND_BATCH_MESSAGE: RequestCode.SEND_MESSAGE_V2,
    RequestCode.LITE_PULL_MESSAGE: RequestCode.PULL_MESSAGE,
}
"""Served with the header of another code."""
SERVED = sorted({int(code) for code in (*BROKER_ROUTES, *NAME_SERVER_ROUTES)})


def carriers() -> dict[int, set[str]]:
    """Which fields of each code that is served hold names."""
    fields = {
        int(header.code): {field.wire for field in fields_of(header) if field.kind is str}
        - NO_NAMES
        for header in Header.__subclasses__()
        + [late for early in Header.__subclasses__() for late in early.__subclasses__()]
        if hasattr(header, "code")
    }
    return {
        code: fields[AS.get(RequestCode(code), code)]
        for code in SERVED
        if fields[AS.get(RequestCode(code), code)]
    }


CARRIERS = carriers()
NAMELESS = {
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    RequestCode.GET_UNIT_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.UPDATE_NAMESRV_CONFIG,
    RequestCode.GET_NAMESRV_CONFIG,
    RequestCode.GET_ALL_PRODUCER_INFO,
    RequestCode.DELETE_EXPIRED_COMMITLOG,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
}
"""Say no name, or that of a setting, which has a test of its own."""


def bodies(name: str) -> dict[int, Any]:
    """What travels in bodies, with *name* for each name."""
    queue = {"topic": name, "brokerName": name, "queueId": 0}
    subscription = {"topic": name, "subString": "*"}
    topic = {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    user = {"username": name, "password": "p", "userType": "Normal"}
    acl = {
        "subject": f"User:{name}",
        "policies": [
            {"policyType": "Custom", "entries": [{"resource": f"Topic:{name}", "actions": ["Pub"]}]}
        ],
    }
    registered = {"topicConfigTable": {name: topic}, "dataVersion": {"timestamp": 0, "counter": 0}}
    return {
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: {"topicConfigList": [topic]},
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {"groupName": name},
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {
            "groupConfigList": [{"groupName": name}]
        },
        RequestCode.HEART_BEAT: {
            "clientID": name,
            "producerDataSet": [{"groupName": name}],
            "consumerDataSet": [{"groupName": name, "subscriptionDataSet": [subscription]}],
        },
        RequestCode.LOCK_BATCH_MQ: {"consumerGroup": name, "clientId": name, "mqSet": [queue]},
        RequestCode.UNLOCK_BATCH_MQ: {"consumerGroup": name, "clientId": name, "mqSet": [queue]},
        RequestCode.CHECK_CLIENT_CONFIG: {
            "clientId": name,
            "group": name,
            "subscriptionData": subscription,
        },
        RequestCode.REGISTER_BROKER: {
            "topicConfigSerializeWrapper": registered,
            "filterServerList": [name],
        },
        RequestCode.REGISTER_TOPIC_IN_NAMESRV: {
            "queueDatas": [{"brokerName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}]
        },
        RequestCode.QUERY_ASSIGNMENT: {
            "topic": name,
            "consumerGroup": name,
            "clientId": name,
            "strategyName": name,
        },
        RequestCode.SET_MESSAGE_REQUEST_MODE: {
            "topic": name,
            "consumerGroup": name,
            "mode": "PULL",
        },
        RequestCode.AUTH_CREATE_USER: user,
        RequestCode.AUTH_UPDATE_USER: user,
        RequestCode.AUTH_CREATE_ACL: acl,
        RequestCode.AUTH_UPDATE_ACL: acl,
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
    "tranStateTableOffset": "0",
    "commitLogOffset": "0",
    "commitOrRollback": "8",
    "maxNum": "1",
    "beginTimestamp": "0",
    "endTimestamp": "1",
    "index": "0",
    "count": "1",
    "isOrder": "false",
}
EXPLOITS = [
    # what ran commands on brokers
    "rocketmqHome=-c $@|sh . echo touch pwned;\nfilterServerNums=1",
    # what wrote files on name servers
    "configStorePath=/tmp/pwned\nproductEnvName=x\\nroot::0:0",
    "configBlackList=x\nrocketmqHome=/x",
    "maxMessageSize=1000\nrocketmqHome=/x",
    "=",
]
VALUES = [
    "/tmp/pwned",
    "../../../tmp/pwned",
    "-c $@|sh . echo touch pwned;",
    "$(touch /tmp/pwned)",
    "`touch /tmp/pwned`",
    "x\\nroot::0:0",
    "10.0.0.1:1",
    "http://127.0.0.1:1/x",
    "{}",
    "",
    "-1",
    "9999999999999",
    "maybe",
    "True",
    "\x00",
    "1" * 4_000,
    "x" * 4_000,
]
"""None of them is right for a setting that may be changed: for the paths, commands, numbers and
switches among them.
"""


def settings_of_apache() -> list[str]:
    """What Apache's 5.5.0 broker and name server have, as they told mqadmin."""
    recorded = (
        (Path(__file__).parents[1] / "vectors" / "conversations.jsonl").read_text().splitlines()
    )
    told = [
        line["response"]["body"]
        for line in map(json.loads, recorded)
        if line["request"]["code"] in (26, 319)
    ]
    return sorted(
        {line.partition("=")[0] for body in told for line in body.splitlines() if "=" in line}
    )


def made_up(dice: random.Random, names: list[str], count: int) -> list[str]:
    """Names of no setting: ours inside, those of Python, and known ones that were changed a
    little.
    """
    inside = [
        field.name
        for config in (BrokerConfig, NameServerConfig)
        for field in dataclasses.fields(config)
    ]
    found = {
        *inside,
        "__class__",
        "__dict__",
        "__init__",
        "os.environ",
        "PATH",
        "LD_PRELOAD",
        "PYTHONPATH",
        *NAMES[:14],
    }
    while len(found) < count:
        name = dice.choice(names)
        match dice.randrange(6):
            case 0:
                name = name.swapcase()
            case 1:
                name = "".join(
                    letter.upper() if dice.random() < 0.3 else letter.lower() for letter in name
                )
            case 2:
                name = name.replace("a", "а").replace("e", "е")  # Cyrillic
            case 3:
                name = dice.choice(("../", "%2e", "broker.", "tls.", "\ufeff", "-D")) + name
            case 4:
                name += dice.choice(("%00", "\x00", "'", "[0]", "2", "\u0301"))
            case _:
                name = name[::-1]
        found.add(name)
    return sorted(found - set(names))


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


def hostile(dice: random.Random, count: int) -> list[str]:
    """NAMES, and others that are made of them."""
    found = dict.fromkeys(NAMES)
    while len(found) < count:
        name, other = dice.choices(NAMES, k=2)
        match dice.randrange(8):
            case 0:
                name += other
            case 1:
                name = f"{name}/{other}"
            case 2:
                name = "".join(f"%{byte:02x}" for byte in name[:80].encode())
            case 3:
                # full width
                name = "".join(
                    chr(0xFF00 + ord(letter) - 0x20) if "!" <= letter <= "~" else letter
                    for letter in name
                )
            case 4:
                at = dice.randrange(len(name) + 1)
                name = (
                    name[:at]
                    + dice.choice(
                        (
                            "\0",
                            "\n",
                            "..",
                            "\\",
                            "\u202e",
                            "\ufeff",
                            "\u0301",
                            "*",
                            "$(id)",
                            "@",
                            "+",
                        )
                    )
                    + name[at:]
                )
            case 5:
                name = dice.choice(("%RETRY%", "%DLQ%", "rmq_sys_", "../", "/", "~", "-")) + name
            case 6:
                name = name.swapcase() if dice.random() < 0.5 else name[::-1]
            case _:
                name = name[: dice.randrange(1, 40)] * dice.randrange(1, 9)
        # a header has room for it in each field
        found[name[:1_000]] = None
    return list(found)


# of the codes that a name which is made of others goes to: each code meets hundreds of them
PART = 12


async def say_names(broker_address: str, name_server_address: str, count: int) -> int:
    """Every command that carries a name, with every one of NAMES in every place, and with its part
    of the others; how many there were.
    """
    attempts = 0
    async with (
        await RawClient.open(broker_address) as broker,
        await RawClient.open(name_server_address) as name_server,
    ):
        for number, shown in enumerate(hostile(random.Random(count), count)):
            every = 1 if number < len(NAMES) else PART
            for code, fields in itertools.islice(CARRIERS.items(), number % every, None, every):
                named = OTHERS | dict.fromkeys(fields, shown)
                for client in (broker, name_server):
                    answer = await client.call(code, b"", **named)
                    assert answer.code in set(ResponseCode)
                    attempts += 1
            for code, body in itertools.islice(bodies(shown).items(), number % every, None, every):
                named = OTHERS | dict.fromkeys(CARRIERS.get(code, ()), shown)
                for client in (broker, name_server):
                    await client.call(code, json.dumps(body).encode(), **named)
                    attempts += 1
    return attempts


async def say_settings(broker_address: str, name_server_address: str, count: int) -> int:
    """Every setting of Apache's and made-up ones to 25 and 318, which refuse each, and as KV
    settings; how many there were.
    """
    dice = random.Random(count)
    known = settings_of_apache()
    assert len(known) > 400
    lines = EXPLOITS + [
        f"{name}={dice.choice(VALUES)}"
        for name in [*known, *made_up(dice, known, count)]
        for _ in range(2)
    ]
    attempts = 0
    refused = {
        RequestCode.UPDATE_BROKER_CONFIG: broker_address,
        RequestCode.UPDATE_NAMESRV_CONFIG: name_server_address,
    }
    for code, address in refused.items():
        async with await RawClient.open(address) as client:
            for line in lines:
                answer = await client.call(code, line.encode())
                name = line.partition("=")[0]
                may_be_changed = name in (
                    CHANGEABLE
                    if code == RequestCode.UPDATE_BROKER_CONFIG
                    else ["orderMessageEnable"]
                )
                wrong = may_be_changed or not name or line in EXPLOITS
                wanted = (
                    {ResponseCode.NO_PERMISSION}
                    if not wrong
                    else {ResponseCode.NO_PERMISSION, ResponseCode.INVALID_PARAMETER}
                )
                assert answer.code in wanted, (code, line, answer)
                attempts += 1
    async with await RawClient.open(name_server_address) as client:
        pairs = [
            (name, value)
            for name, _, value in (line.partition("=") for line in lines)
            if name and value
        ]
        # each waits for the disk
        for name, value in dice.sample(pairs, count // 3):
            await client.ok(
                RequestCode.PUT_KV_CONFIG, namespace=dice.choice(NAMES[:14]), key=name, value=value
            )
            attempts += 1
    return attempts


def test_every_code_that_is_served_is_among_the_attacks() -> None:
    """A new one must be seen to say its names somewhere, or to say none."""
    assert {*CARRIERS, *bodies("x"), *map(int, NAMELESS)} == set(SERVED)
    assert not {*CARRIERS, *bodies("x")} & NAMELESS


@pytest.mark.parametrize("count", [100, pytest.param(5_000, marks=pytest.mark.nightly)])
async def test_no_name_becomes_a_path(servers: Servers, count: int) -> None:
    """What is made has a legal name, inside the store."""
    with figures("T38", nightly=count > 100, seed=count) as line:
        line["attempts"] = await say_names(
            servers.broker.address, servers.name_server.address, count
        )
    ctx = servers.broker.context
    for made in (*ctx.topics.all(), *ctx.groups.all()):
        assert LEGAL.fullmatch(made), made
    assert [path.name for path in servers.folder.iterdir()] == ["store"]
    queues = servers.folder / "store" / "consumequeue"
    assert not [path for path in queues.iterdir() if not LEGAL.fullmatch(path.name)]
    assert {path.name for path in queues.iterdir()} <= set(ctx.topics.all())


async def test_no_setting_changes_but_those_that_may(servers: Servers) -> None:
    before = (servers.broker.context.config, servers.name_server.config)
    await say_settings(servers.broker.address, servers.name_server.address, 300)
    assert (servers.broker.context.config, servers.name_server.config) == before
    assert not Path("/tmp/pwned").exists()
    assert [path.name for path in servers.folder.iterdir()] == ["store"]


SIMILAR = (
    "Similar",
    "similar",
    "SIMILAR",
    "similaR",
    "%53imilar",
    "%73imilar",
    "S%69milar",
    "Similar%00",
    "Similar_",
    "Similar-",
    "|Similar",
)


async def test_names_that_differ_only_in_case_or_encoding_do_not_meet(servers: Servers) -> None:
    """Each topic has its own messages and files, and each group its own progress, before and after
    a restart.
    """
    config = servers.broker.context.config
    async with await RawClient.open(servers.broker.address) as client:
        for name in SIMILAR:
            for _ in SIMILAR:
                await client.send(name, name.encode())
            await client.heartbeat("client", name, SIMILAR[0])
        for number, name in enumerate(SIMILAR):
            await client.ok(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                consumerGroup=name,
                topic=SIMILAR[0],
                queueId=0,
                commitOffset=number,
            )
            await client.ok(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                consumerGroup=SIMILAR[0],
                topic=name,
                queueId=0,
                commitOffset=number,
            )
    await servers.broker.stop()
    queues = servers.folder / "store" / "consumequeue"
    assert {path.name for path in queues.iterdir()} >= set(SIMILAR)
    servers.broker = Broker(config)
    await servers.broker.start()
    async with await RawClient.open(servers.broker.address) as client:
        for number, name in enumerate(SIMILAR):
            answer = await client.pull("Puller", name, 0)
            assert [message.body for message in messages(answer)] == [name.encode()] * len(SIMILAR)
            for group, topic in ((name, SIMILAR[0]), (SIMILAR[0], name)):
                told = await client.ok(
                    RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId=0
                )
                assert told.ext_fields["offset"] == str(number)


# --- a process that is watched --------------------------------------------------------------------


@contextmanager
def watched_process(folder: Path, notes: Path) -> Iterator[tuple[str, str]]:
    """The addresses of a broker and a name server whose process writes what it does into
    *notes*.
    """
    command = [sys.executable, "-m", "tests.rel.watched", str(folder), str(notes)]
    process = subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        broker, name_server = process.stdout.readline().decode().split()
        yield broker, name_server
    finally:
        code = stop(process)
        process.stdout.close()
    assert code == 0


READ_ANYWAY = (
    sys.base_prefix,
    sys.prefix,
    str(Path(__file__).parents[2] / "src"),
    "/proc/sys/kernel/random",
    "/proc/self",
)
"""What Python loads when it is first needed, and what the system tells about itself."""


def outside(note: list[Any], store: Path, name_server: str) -> bool:
    """Whether a process that serves *store* has no business doing that."""
    event, *about = note
    if event in watched.STARTS or event == "ctypes.dlopen":
        return True
    if event == "socket.connect":
        host, port = name_server.split(":")
        return about != [repr((host, int(port)))]
    paths = [Path(os.path.realpath(path)) for path in about if isinstance(path, str)]
    if event == "open" and about[1]:
        return (
            not any(paths[0].is_relative_to(folder) for folder in (store, *READ_ANYWAY))
            and paths[0] != store.parent
        )
    return not all(path.is_relative_to(store) for path in paths)


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.nightly)])
def test_no_name_and_no_setting_opens_a_file_elsewhere_or_starts_a_program(
    tmp_path: Path, rounds: int
) -> None:
    """Nor do they when the servers start again on what they have kept."""
    store, notes = tmp_path / "store", tmp_path / "notes"
    for attack in (True, False):
        with watched_process(store, notes) as (broker, name_server):
            if attack:
                asyncio.run(say_names(broker, name_server, 100 if rounds == 1 else 5_000))
                asyncio.run(say_settings(broker, name_server, 300 * rounds))
        seen = [json.loads(line) for line in notes.read_text().splitlines()]
        assert ["os.mkdir", str(store)] in seen
        assert ["open", str(store / "kv.json.tmp"), False] in seen or not attack
        assert not [note for note in seen if outside(note, store, name_server)]
        notes.unlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


@pytest.mark.parametrize(
    ("event", "arguments"),
    [
        ("os.system", (b"true",)),
        ("subprocess.Popen", ("sh", ["sh", "-c", "true"], None, None)),
        ("open", ("/tmp/pwned", "w", os.O_WRONLY | os.O_CREAT)),
        ("open", ("/etc/passwd", "r", os.O_RDONLY | os.O_CLOEXEC)),
        ("open", ("STORE/../elsewhere", None, os.O_RDWR)),
        ("os.rename", ("STORE/kv.json", "/tmp/pwned", -1, -1)),
        ("os.remove", ("../elsewhere", -1)),
        ("socket.connect", (None, ("10.0.0.1", 1))),
    ],
)
def test_the_watch_sees_what_should_not_be(
    tmp_path: Path, event: str, arguments: tuple[Any, ...]
) -> None:
    notes = tmp_path / "notes"
    named = tuple(
        part.replace("STORE", str(tmp_path / "store")) if isinstance(part, str) else part
        for part in arguments
    )
    watched.Notes(notes).note(event, named)
    assert outside(json.loads(notes.read_text()), tmp_path / "store", "127.0.0.1:9876")
