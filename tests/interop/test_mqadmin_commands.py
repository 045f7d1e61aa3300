"""Every command of Apache's mqadmin 5.5.0 on our broker and name server: right answers, or a
refusal that says why.

One row a command and way of calling it. All rows run in one JVM, in this order; a test for each
looks at what it printed.
"""

import asyncio
import json
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

import ogive
from ogive import aio
from ogive.errors import ResponseCode
from ogive.model import MessageExt
from ogive.testing import Broker
from ogive.wire.codes import RequestCode
from tests.interop import apache
from tests.peers import DELAY_LEVELS
from tests.raw_client import RawClient

# everyday use; real use; not for a broker on one machine
Kind = Literal["must", "should", "refuse"]

# 20 messages of tag A and keys k0 to k19 in four queues, consumed by one member that is online
TOPIC, GROUP, PRODUCERS = "T", "G", "P"
MESSAGES = 20
EACH_CONSUMED = tuple(rf"^T +broker-a +{queue} +5 +5 +0" for queue in range(4))
NAMESERVERS = r"127\.0\.0\.1:\d+"


@dataclass(frozen=True)
class Row:
    """*arguments* may name {broker}, {client}, {unique}, {offset_id}, {folder}.

    *says*: patterns that the output must have.
    """

    kind: Kind
    command: str
    arguments: str
    says: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.command} {self.arguments}"


def must(command: str, arguments: str, *says: str) -> Row:
    return Row("must", command, arguments, says)


def should(command: str, arguments: str, *says: str) -> Row:
    return Row("should", command, arguments, says)


def refuse(command: str, arguments: str, *says: str) -> Row:
    return Row("refuse", command, arguments, says)


LITE = "lite topics are not supported"
ONE_BROKER = "one broker without slaves or controller has nothing to say to it"
OTHER_STORE = "the part of Apache's store that it is about does not exist here"
# what these print for any refusal
SAYS_NO_MORE = r"\[broker-a\] error|broker-a +error"

ROWS = (
    # topics
    must("topicList", "", rf"^{TOPIC}$", "^%RETRY%G$", "^TBW102$"),
    must(
        "updateTopic",
        "-c DefaultCluster -t T2 -r 6 -w 5",
        "create topic to .* success",
        "readQueueNums=6, writeQueueNums=5",
    ),
    must(
        "updateTopic",
        "-b {broker} -t T3 -r 4 -w 4 -a +message.type=FIFO",
        "create topic to .* success",
    ),
    should(
        "updateTopicList",
        "-c DefaultCluster -f {folder}/topics.json",
        "submit batch of topic config to .* success",
    ),
    must(
        "updateTopic",
        "-c DefaultCluster -t T4 -r 4 -w 0",
        "create topic to .* success",
        "readQueueNums=4, writeQueueNums=0",
    ),
    must("topicRoute", "-t T2", r'"readQueueNums":6', r'"writeQueueNums":5', r'"perm":6'),
    must("topicRoute", "-t TL2", r'"readQueueNums":2'),
    must("topicRoute", "-l -t T", r"broker-a +\{0=127.*\} +4 +4 +6"),
    must(
        "topicStatus",
        "-t T",
        *(rf"broker-a +{queue} +0 +5 +2\d\d\d-" for queue in range(4)),
        r"Topic Put TPS: [0-9.]+",
    ),
    should("topicClusterList", "-t T", "^DefaultCluster"),
    should(
        "updateTopicPerm",
        "-c DefaultCluster -t T2 -p 4",
        "update topic perm from 6 to 4 in .* success",
    ),
    must("topicRoute", "-t T2", r'"perm":4'),
    should(
        "updateOrderConf",
        "-t T2 -m put -v broker-a:4",
        r"update orderConf success. topic=\[T2\], orderConf=\[broker-a:4\]",
    ),
    should(
        "updateOrderConf",
        "-t T2 -m get",
        r"get orderConf success. topic=\[T2\], orderConf=\[broker-a:4\]",
    ),
    should("updateOrderConf", "-t T2 -m delete", "delete orderConf success"),
    must(
        "updateTopic",
        "-c DefaultCluster -t O1 -r 4 -w 4 -o true",
        r"set cluster orderConf. isOrder=true, orderConf=\[broker-a:4\]",
    ),
    must(
        "updateTopic",
        "-c DefaultCluster -t O2 -r 4 -w 4 -o true",
        r"set cluster orderConf. isOrder=true, orderConf=\[broker-a:4\]",
    ),
    should("allocateMQ", "-t T -i 10.0.0.1,10.0.0.2", r'"10\.0\.0\.1":\[\{', r'"10\.0\.0\.2":\[\{'),
    must(
        "deleteTopic",
        "-c DefaultCluster -t T3",
        r"delete topic \[T3\] from cluster \[DefaultCluster\] success",
        "NameServer success",
    ),
    should("statsAll", "-t T", r"^T +G +0 +\d+\.\d\d +\d+\.\d\d +20 +20 *$"),
    should("statsAll", "-a", r"^T +G +0 +\d+\.\d\d"),
    # groups and offsets
    must(
        "updateSubGroup", "-c DefaultCluster -g G2 -r 3", "create subscription group to .* success"
    ),
    should(
        "updateSubGroupList",
        "-c DefaultCluster -f {folder}/groups.json",
        "submit batch of subscription group config to .* success",
    ),
    should("getConsumerConfig", "-g G2", r"retryMaxTimes += +3", "DefaultCluster:broker-a"),
    should("getConsumerConfig", "-g GL1", r"retryMaxTimes += +5"),
    must(
        "updateSubGroup",
        "-c DefaultCluster -g G0 -q 0 --attributes +priority.factor=5",
        "create subscription group to .* success",
    ),
    should(
        "getConsumerConfig",
        "-g G0",
        r"retryQueueNums += +0",
        r"attributes += +\{priority.factor=5\}",
    ),
    refuse(
        "updateSubGroup",
        "-c DefaultCluster -g G0 --attributes +colour=red",
        "CODE: 29  DESC: attribute 'colour' is not known",
    ),
    should(
        "setConsumeMode",
        "-c DefaultCluster -t T -g G2 -m PULL",
        "set consume mode to .* success",
        r"consume mode\[PULL\]",
    ),
    should(
        "setConsumeMode",
        "-c DefaultCluster -t T -g G2 -m POP -q 4",
        "set consume mode to .* success",
        r"consume mode\[POP\]",
    ),
    must(
        "deleteSubGroup",
        "-c DefaultCluster -g GL2 -r true",
        r"delete subscription group \[GL2\] from broker .* success",
    ),
    must("consumerProgress", "", r"^G +1 +V5_3_3 +PUSH +CLUSTERING +\d+ +0"),
    must(
        "consumerProgress",
        "-g G",
        *EACH_CONSUMED,
        "Consume Diff Total: 0",
        r"Consume TPS: [0-9.]+",
    ),
    must("consumerProgress", "-g G -s true", r"^T +broker-a +0 +5 +5 +\d+\.\d+\.\d+\.\d+"),
    must(
        "consumerConnection",
        "-g G",
        "{client} +127.0.0.1:.* PYTHON +V5_3_3",
        r"^T +\*",
        "CONSUME_PASSIVELY",
        "CLUSTERING",
    ),
    should(
        "consumerStatus",
        "-g G -i {client}",
        "PROP_CONSUMER_START_TIMESTAMP",
        "#Consumer Subscription#",
    ),
    should("consumerStatus", "-g G -i {client} -s", "thread "),
    should("producerConnection", "-g P -t T", r"127\.0\.0\.1:\d+ +PYTHON +V5_3_3"),
    should(
        "producer",
        "-b {broker}",
        r"group \(P\) instance : clientId=.*,remoteIP=/127\.0\.0\.1:\d+, language=PYTHON, "
        r"version=479",
    ),
    should(
        "brokerConsumeStats",
        "-b {broker}",
        *(rf"^T +G +broker-a +{queue} +5 +5 +0" for queue in range(4)),
        "Diff Total: 0",
    ),
    should(
        "cloneGroupOffset",
        "-s G -d G2 -t T",
        r"clone group offset success. srcGroup\[G\], destGroup=\[G2\], topic\[T\]",
    ),
    must("consumerProgress", "-g G2", *EACH_CONSUMED),
    must(
        "resetOffsetByTime",
        "-g G2 -t T -s 1000",
        *(rf"^broker-a +{queue} +0" for queue in range(4)),
    ),
    must("consumerProgress", "-g G2", "Consume Diff Total: 20"),
    must(
        "resetOffsetByTime", "-g G2 -t T -s -1 -b {broker} -q 0 -o 2", "reset consumer offset to 2"
    ),
    must("consumerProgress", "-g G2", "Consume Diff Total: 18"),
    must(
        "skipAccumulatedMessage", "-g G2 -t T", *(rf"^broker-a +{queue} +5" for queue in range(4))
    ),
    must("consumerProgress", "-g G2", "Consume Diff Total: 0"),
    # messages
    must(
        "queryMsgById",
        "-i {offset_id} -t T",
        r"Topic: +T$",
        r"Tags: +\[A\]",
        r"Keys: +\[k3\]",
        r"Queue Offset: +\d",
    ),
    must("queryMsgById", "-i {offset_id} -t T -g G -d {client}", "consumeResult=CR_SUCCESS"),
    must(
        "queryMsgByOffset",
        "-t T -b broker-a -i 0 -o 4",
        r"Topic: +T$",
        r"Queue ID: +0",
        r"Queue Offset: +4",
    ),
    must("queryMsgByKey", "-t T -k k3", r"^{unique}"),
    must("queryMsgByKey", "-t T -k A -p T", r"^{unique}"),
    must("queryMsgByUniqueKey", "-t T -i {unique}", r"Keys: +\[k3\]", r"Queue Offset: +\d"),
    must("queryMsgTraceById", "-i {unique}", "Pub", "P .* success"),
    should(
        "printMsg",
        "-t T",
        *(
            r"minOffset=0, maxOffset=\d, MessageQueue \[topic=T, brokerName=broker-a, "
            rf"queueId={q}\]"
            for q in range(4)
        ),
        "{unique}",
    ),
    should(
        "printMsgByQueue",
        "-t T -a broker-a -i 1 -p true",
        *(f"queueOffset={offset}," for offset in range(5)),
    ),
    should(
        "queryCq",
        "-t T -q 0 -i 0 -c 3",
        "max: 5, min: 0",
        r"idx: 2\nConsumeQueueData\{physicOffset=\d+, physicSize=\d+, tagsCode=65,",
    ),
    should(
        "queryCq",
        "-t T -q 0 -i 3 -c 3 -b {broker} -g G",
        r'"subString":"\*"',
        "Filter data:",
        "eval=true",
    ),
    must("sendMessage", "-t T2W -p hello -k k1 -c tagA", r"broker-a +\d +SEND_OK +[0-9A-F]+$"),
    must(
        "consumeMessage",
        "-t T -c 3",
        "Consume ok",
        *(f"queueOffset={offset}," for offset in range(3)),
    ),
    should(
        "checkMsgSendRT",
        "-t T2W -a 3 -s 100",
        *(r"^broker-a +\d +true +\d+" for _ in range(3)),
        "Avg RT: ",
    ),
    should("sendMsgStatus", "-b broker-a -c 3 -s 100", r"sendStatus=SEND_OK.*topic=broker-a"),
    # brokers and clusters
    must("clusterList", "", r"^DefaultCluster +broker-a +0 +{broker} +V5_3_3 .* true"),
    should("clusterList", "-m", r"^DefaultCluster +broker-a +0 +0 +24 +\d+"),
    must(
        "brokerStatus",
        "-b {broker}",
        r"msgPutTotalTodayNow +: 24$",
        r"putMessageDistributeTime +: \[<=0ms\]:\d+ ",
    ),
    must("brokerStatus", "-c DefaultCluster", r"^{broker} +putTps +: [0-9.]+ [0-9.]+ [0-9.]+"),
    must(
        "getBrokerConfig",
        "-b {broker}",
        "brokerName += +broker-a",
        "maxMessageSize += +4194304",
        "fileReservedTime += +72$",
    ),
    must(
        "updateBrokerConfig",
        "-b {broker} -k maxMessageSize -v 1048576",
        "update broker config success",
    ),
    must("getBrokerConfig", "-b {broker}", "maxMessageSize += +1048576"),
    refuse(
        "updateBrokerConfig",
        "-b {broker} -k storePathRootDir -v /tmp/elsewhere",
        "CODE: 16  DESC: storePathRootDir",
    ),
    should("cleanExpiredCQ", "-b {broker}", "success"),
    should("deleteExpiredCommitLog", "-b {broker}", "success"),
    should("cleanUnusedTopic", "-b {broker}", "success"),
    should(
        "wipeWritePerm",
        "-b broker-a",
        rf"wipe write perm of broker\[broker-a\] in name server\[{NAMESERVERS}\] OK, \d\d",
    ),
    must("topicRoute", "-t T", r'"perm":4'),
    should(
        "addWritePerm",
        "-b broker-a",
        rf"add write perm of broker\[broker-a\] in name server\[{NAMESERVERS}\] OK, \d\d",
    ),
    must("topicRoute", "-t T", r'"perm":6'),
    # name server
    should("getNamesrvConfig", "", "listenPort += +\\d+", "orderMessageEnable += +false"),
    should(
        "updateNamesrvConfig",
        "-k orderMessageEnable -v true",
        "update name server config success",
        "orderMessageEnable : true",
    ),
    should("getNamesrvConfig", "", "orderMessageEnable += +true"),
    refuse(
        "updateNamesrvConfig", "-k kvConfigPath -v /tmp/elsewhere", "CODE: 16  DESC: kvConfigPath"
    ),
    should("updateKvConfig", "-s NS -k a -v b", "create or update kv config to namespace success"),
    should(
        "updateKvConfig",
        "-s NS -k kept -v first",
        "create or update kv config to namespace success",
    ),
    should(
        "updateKvConfig",
        "-s NS -k kept -v second",
        "create or update kv config to namespace success",
    ),
    should("deleteKvConfig", "-s NS -k a", "delete kv config from namespace success"),
    # access control, which this broker runs without; test_access_control.py has the same commands
    # on one that runs with it
    *(
        refuse(command, arguments, "CODE: 16 +DESC: this broker runs without access control")
        for command, arguments in (
            ("createUser", "-b {broker} -u u -p p"),
            ("updateUser", "-b {broker} -u u -p p2"),
            ("getUser", "-b {broker} -u u"),
            ("listUser", "-b {broker}"),
            ("deleteUser", "-b {broker} -u u"),
            ("copyUser", "-f {broker} -t {broker} -u u"),
            ("createAcl", "-b {broker} -s User:u -r Topic:T -a PUB -d ALLOW"),
            ("updateAcl", "-b {broker} -s User:u -r Topic:T -a PUB -d ALLOW"),
            ("getAcl", "-b {broker} -s User:u"),
            ("listAcl", "-b {broker}"),
            ("deleteAcl", "-b {broker} -s User:u"),
            ("copyAcl", "-f {broker} -t {broker} -s User:u"),
        )
    ),
    # exports
    should("exportMetadata", "-c DefaultCluster -f {folder}", "export .*metadata.json success"),
    should("exportMetadata", "-b {broker} -f {folder} -t", "export .*topic.json success"),
    should("exportConfigs", "-c DefaultCluster -f {folder}", "export .*configs.json success"),
    should("exportMetrics", "-c DefaultCluster -f {folder}", "export .*metrics.json success"),
    # not for one machine
    refuse("exportPopRecord", "-b {broker}", "CODE: 3 .*: leases are never in RocksDB"),
    refuse("updateStaticTopic", "-t ST -qn 4 -b broker-a", f"CODE: 3 .*: {ONE_BROKER}"),
    refuse(
        "remappingStaticTopic",
        "-t T -b broker-a",
        "Mapping info should not be null in broker broker-a",
    ),
    *(
        refuse(command, arguments, f"CODE: 3 .*: {ONE_BROKER}")
        for command, arguments in (
            ("addBroker", "-b {folder}/x.conf -c {broker}"),
            ("removeBroker", "-b DefaultCluster:broker-a:0 -c {broker}"),
            ("resetMasterFlushOffset", "-b {broker} -o 0"),
            ("haStatus", "-b {broker}"),
            ("getSyncStateSet", "-a {broker} -b broker-a"),
            ("getBrokerEpoch", "-b broker-a"),
            ("getControllerMetaData", "-a {broker}"),
            ("getControllerConfig", "-a {broker}"),
            ("updateControllerConfig", "-a {broker} -k a -v b"),
            ("electMaster", "-a {broker} -b 0 -bn broker-a -c DefaultCluster"),
            ("cleanBrokerMetadata", "-a {broker} -bn broker-a -c DefaultCluster"),
        )
    ),
    *(
        refuse(command, arguments, f"CODE: 3 .*: {OTHER_STORE}")
        for command, arguments in (
            ("getColdDataFlowCtrInfo", "-b {broker}"),
            ("updateColdDataFlowCtrGroupConfig", "-b {broker} -g G -v 100"),
            ("removeColdDataFlowCtrGroupConfig", "-b {broker} -g G"),
            ("setCommitLogReadAheadMode", "-b {broker} -m 1"),
            ("rocksDBConfigToJson", "-c DefaultCluster -t topics"),
            ("checkRocksdbCqWriteProgress", "-c DefaultCluster -t T"),
            ("switchTimerEngine", "-b {broker} -e R"),
        )
    ),
    # reads files of its own machine
    refuse("exportMetadataInRocksDB", "-p {folder}/none -t topics", "RocksDB path is invalid"),
    refuse("dumpCompactionLog", "-f {folder}/none", "file .* not exist"),  # this too
    refuse("getBrokerLiteInfo", "-b {broker}", f"CODE: 3 .*: {LITE}"),
    *(
        refuse(command, arguments, SAYS_NO_MORE)
        for command, arguments in (
            ("getParentTopicInfo", "-p T"),
            ("getLiteTopicInfo", "-p T -l x"),
            ("getLiteClientInfo", "-p T -g G -c x"),
            ("getLiteGroupInfo", "-p T -g G"),
            ("triggerLiteDispatch", "-p T -g G"),
        )
    ),
)
# these never end: each has a JVM and a test of its own
ALONE = {"clusterRT", "startMonitoring"}


class Prepared:
    """What the rows' arguments name."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker, self.folder = broker, folder
        self.seen: list[MessageExt] = []
        self.names: dict[str, str] = {}

    async def outputs(self) -> list[str]:
        """What each row printed."""
        (self.folder / "topics.json").write_text(
            json.dumps([{"topicName": "TL2", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}])
        )
        (self.folder / "groups.json").write_text(
            json.dumps([{"groupName": "GL1", "retryMaxTimes": 5}, {"groupName": "GL2"}])
        )
        server = self.broker.name_server
        async with aio.Admin(server) as admin:
            for topic in (TOPIC, "T2W"):
                await admin.create_topic(topic, queues=4)
        listener = ogive.listener(TOPIC, group=GROUP, start="earliest")(self.seen.append)
        once = ogive.listener("T2W", group="G2")(self.seen.append)
        async with aio.PushConsumer(once, name_server=server):
            # a group has a retry topic, for which mqadmin asks, when a member was online
            pass
        consuming = aio.PushConsumer(
            listener, name_server=server, config=ogive.ConsumerConfig(persist_period_s=0.2)
        )
        producing = aio.Producer(server, group=PRODUCERS, config=ogive.ProducerConfig(trace=True))
        async with consuming as consumer, producing as producer:
            queues = await producer.client.routes.publish_queues(TOPIC)
            sent = [
                await producer.send(TOPIC, b"%d" % i, tag="A", keys=f"k{i}", queue=queues[i % 4])
                for i in range(MESSAGES)
            ]
            await self._until_consumed()
            offset_id = next(message.offset_id for message in self.seen if message.id == sent[3].id)
            self.names = {
                "broker": self.broker.address,
                "client": consumer.client_id,
                "unique": sent[3].id,
                "offset_id": str(offset_id),
                "folder": str(self.folder),
            }
            commands = [f"{row.command} {self.fill(row.arguments)}" for row in ROWS]
            printed = await asyncio.to_thread(apache.admin, server, *commands)
        assert len(printed) == len(ROWS)
        return printed

    async def _until_consumed(self) -> None:
        async with asyncio.timeout(60), aio.Admin(self.broker.name_server) as admin:
            while (
                sum(max(0, row.consumer_offset) for row in await admin.lag(GROUP, TOPIC)) < MESSAGES
            ):
                await asyncio.sleep(0.1)

    def fill(self, text: str) -> str:
        for name, value in self.names.items():
            text = text.replace(f"{{{name}}}", value)
        return text


@pytest.fixture(scope="module")
def ran(
    ogive_broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Prepared, list[str]]:
    prepared = Prepared(ogive_broker, tmp_path_factory.mktemp("mqadmin"))
    return prepared, asyncio.run(prepared.outputs())


@pytest.mark.parametrize("number", range(len(ROWS)), ids=[str(row) for row in ROWS])
def test_command(ran: tuple[Prepared, list[str]], number: int) -> None:
    prepared, outputs = ran
    row, output = ROWS[number], outputs[number]
    for pattern in row.says:
        wanted = prepared.fill(
            re.sub(
                r"\{(\w+)\}",
                lambda found: re.escape(prepared.names.get(found[1], found[0])),
                pattern,
            )
        )
        assert re.search(wanted, output, re.MULTILINE), f"{wanted!r} is not in:\n{output}"
    assert "CODE: 1 " not in output, output  # SYSTEM_ERROR
    if row.kind != "refuse":
        # of groups that are not online, for Apache's broker too
        said = re.sub(r"exceptionDesc=[^\]]*", "", output)
        assert not re.search(r"Exception(:|$)|^\s+at org\.", said, re.MULTILINE), output


def exported(prepared: Prepared, file: str) -> Any:
    return json.loads((prepared.folder / file).read_text())


def topics_of(table: dict[str, dict[str, Any]]) -> dict[str, tuple[int, int, int]]:
    return {
        name: (topic["readQueueNums"], topic["writeQueueNums"], topic["perm"])
        for name, topic in table.items()
    }


EXPORTED_TOPICS = {
    "O1": (4, 4, 6),
    "O2": (4, 4, 6),
    "T": (4, 4, 6),
    "T2": (6, 5, 4),
    "T2W": (4, 4, 6),
    "T4": (4, 0, 6),
    "TL2": (2, 2, 6),
}
EXPORTED_GROUPS = {
    "G": (16, 1, {}),
    "G0": (16, 0, {"priority.factor": "5"}),
    "G2": (3, 1, {}),
    "GL1": (5, 1, {}),
}


def test_exported_metadata_has_the_topics_and_groups_that_the_rows_left(
    ran: tuple[Prepared, list[str]],
) -> None:
    """Of a cluster: topics and groups.

    Of a broker with -t: its topics. The broker's own ones are in neither.
    """
    prepared, _ = ran
    metadata = exported(prepared, "metadata.json")
    assert topics_of(metadata["topicConfigTable"]) == EXPORTED_TOPICS
    assert {name for name, topic in metadata["topicConfigTable"].items() if topic["order"]} >= {
        "O1",
        "O2",
    }
    groups = metadata["subscriptionGroupTable"]
    assert {
        name: (group["retryMaxTimes"], group["retryQueueNums"], group["attributes"])
        for name, group in groups.items()
    } == EXPORTED_GROUPS
    assert all(group["consumeEnable"] for group in groups.values())
    assert topics_of(exported(prepared, "topic.json")["topicConfigTable"]) == EXPORTED_TOPICS


def test_exported_configs_are_the_brokers(ran: tuple[Prepared, list[str]]) -> None:
    exports = exported(ran[0], "configs.json")
    assert exports["clusterScale"] == {
        "namesrvSize": 1,
        "masterBrokerSize": 1,
        "slaveBrokerSize": 0,
    }
    assert exports["brokerConfigs"].keys() == {"broker-a"}
    assert (
        exports["brokerConfigs"]["broker-a"].items()
        >= {
            "brokerId": "0",
            "brokerName": "broker-a",
            "brokerClusterName": "DefaultCluster",
            "flushDiskType": "SYNC_FLUSH",
            "messageDelayLevel": DELAY_LEVELS,
            # as updateBrokerConfig changed it
            "maxMessageSize": "1048576",
        }.items()
    )


def test_exported_metrics_are_what_the_broker_counted(ran: tuple[Prepared, list[str]]) -> None:
    """The numbers of a day are those between the last two midnights, so this broker's first day has
    none.
    """
    exports = exported(ran[0], "metrics.json")
    report = exports["evaluateReport"]["broker-a"]
    quota = report["runtimeQuota"]
    assert report["runtimeVersion"]["clientInfo"] == ["PYTHON%V5_3_3"]
    assert (quota["topicSize"], quota["groupSize"]) == (len(EXPORTED_TOPICS), len(EXPORTED_GROUPS))
    assert 100 < float(quota["messageAverageSize"]) < 2_000
    assert all(
        0 < float(quota["diskRatio"][share]) <= 1
        for share in ("commitLogDiskRatio", "consumeQueueDiskRatio")
    )
    assert quota["tps"].keys() == {"normalInTps", "normalOutTps", "transInTps", "scheduleInTps"}
    assert exports["totalData"]["totalTps"]["totalNormalInTps"] == quota["tps"]["normalInTps"]
    assert exports["totalData"]["totalOneDayNum"] == quota["oneDayNum"]


def test_exported_metrics_right_after_sends_have_their_rate(
    ran: tuple[Prepared, list[str]],
) -> None:
    """The rate is that of the last ten seconds, so it is asked for until it holds what was sent
    meanwhile.
    """
    prepared, _ = ran

    async def export_while_sending() -> dict[str, float]:
        asked = asyncio.create_task(
            asyncio.to_thread(
                apache.admin,
                prepared.broker.name_server,
                *[f"exportMetrics -c DefaultCluster -f {prepared.folder}"] * 5,
            )
        )
        async with aio.Producer(prepared.broker.name_server, group=PRODUCERS) as producer:
            while not asked.done():
                await producer.send("T2W", b"x")
                await asyncio.sleep(0.01)
        await asked
        tps: dict[str, float] = exported(prepared, "metrics.json")["evaluateReport"]["broker-a"][
            "runtimeQuota"
        ]["tps"]
        return tps

    tps = asyncio.run(export_while_sending())
    assert tps["normalInTps"] > 1
    assert tps["transInTps"] == tps["scheduleInTps"] == 0


def test_key_values_stand_at_the_name_server_as_they_were_put(
    ran: tuple[Prepared, list[str]],
) -> None:
    """mqadmin has no command that reads them."""
    prepared, _ = ran

    async def read() -> tuple[str, int]:
        async with await RawClient.open(prepared.broker.name_server) as client:
            kept = await client.ok(RequestCode.GET_KV_CONFIG, namespace="NS", key="kept")
            gone = await client.call(RequestCode.GET_KV_CONFIG, namespace="NS", key="a")
        return kept.ext_fields["value"], gone.code

    assert asyncio.run(read()) == ("second", ResponseCode.QUERY_NOT_FOUND)


def test_every_command_that_mqadmin_lists_has_a_row() -> None:
    listed = apache.run_java("org.apache.rocketmq.tools.command.MQAdminStartup").other
    commands = set(re.findall(r"^   (\w+) +\S", listed, re.MULTILINE))
    assert len(commands) > 90
    assert commands == {row.command for row in ROWS} | ALONE


def test_cluster_rt_measures_sends_until_it_is_stopped(ogive_broker: Broker) -> None:
    arguments = ("clusterRT", "-n", ogive_broker.name_server, "-a", "2", "-i", "1")
    with apache.JavaClient(
        "org.apache.rocketmq.tools.command.MQAdminStartup", *arguments
    ) as running:
        assert re.search(
            r"^DefaultCluster +broker-a +[\d.]+ +2 +0",
            running.wait_for_text("broker-a"),
            re.MULTILINE,
        )


def test_monitoring_reports_how_far_behind_a_group_is(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    """Its first round begins after 20 s, and looks at all groups; it says what it found in its
    log.
    """
    arguments = ("startMonitoring", "-n", ogive_broker.name_server)
    go_on = threading.Event()

    @ogive.listener(topic, group=group)
    def stuck(message: ogive.Message) -> None:
        go_on.wait(120)

    with (
        ogive.Admin(ogive_broker.name_server) as admin,
        ogive.Producer(ogive_broker.name_server) as producer,
    ):
        admin.create_topic(topic, queues=1)
        for _ in range(3):
            producer.send(topic, b"undone")
    with (
        ogive.PushConsumer(stuck, name_server=ogive_broker.name_server),
        apache.JavaClient(
            "org.apache.rocketmq.tools.command.MQAdminStartup", *arguments
        ) as running,
    ):
        try:
            log = running.wait_for_log(f"topic={topic}, undoneMsgsTotal=")
        finally:
            go_on.set()
    assert f"consumerGroup={group}, topic={topic}, undoneMsgsTotal=3, undoneMsgsSingleMQ=3" in log


def test_exported_configurations_say_how_long_messages_are_kept(
    ran: tuple[Prepared, list[str]],
) -> None:
    prepared, _ = ran
    [broker] = exported(prepared, "configs.json")["brokerConfigs"].values()
    assert (broker["fileReservedTime"], broker["useTLS"], broker["maxMessageSize"]) == (
        "72",
        "false",
        "1048576",
    )
