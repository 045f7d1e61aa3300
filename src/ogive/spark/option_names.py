"""The names of the options of source and sink, and hints for names of other connectors."""

import difflib
import re
from collections.abc import Mapping
from typing import Final

from ogive.spark import cluster_options

SOURCE: Final = (
    *cluster_options.NAMES,
    "subscribe",
    "subscribePattern",
    "assign",
    "queues",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "maxBytesPerSecond",
    "maxPullsPerBroker",
    "maxTriggerDelay",
    "minPartitions",
    "maxPartitions",
    "maxRecordsPerPartition",
    "preserveOrder",
    "consumerGroup",
    "commitOffsets",
    "offsetCommitInterval",
    "failOnDataLoss",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "pollTimeoutMs",
    "tags",
    "sqlFilter",
    "includeProperties",
    "includeMetadata",
    "columns",
    "includeHeaders",
)
SINK: Final = (
    *cluster_options.NAMES,
    "topic",
    "producerGroup",
    "maxInFlight",
    "delivery",
    "transactionTimeout",
    "invalidRows",
    "deadLetterTopic",
)
SINK_COLUMNS: Final = (
    "body",
    "tags",
    "keys",
    "properties",
    "shardingKey",
    "delayTimeLevel",
    "deliverAt",
    "brokerName",
    "queueId",
    "uniqueKey",
)
"""The columns of the sink except topic, which other connectors have as options."""
# writeStream passes its own options to the sink
SPARKS_OWN: Final = {"checkpointlocation": "checkpointLocation", "queryname": "queryName"}
HINTS: Final = {
    "kafka.bootstrap.servers": "the option is nameServer: addresses of name servers, separated by "
    "semicolons",
    "bootstrap.servers": "the option is nameServer: addresses of name servers, separated by "
    "semicolons",
    "brokers": "the option is nameServer: it finds the brokers",
    "namesrv": "the option is nameServer",
    "namesrvaddr": "the option is nameServer",
    "name_server": "the option is nameServer",
    "endpoint": "the option is nameServer",
    "endpoints": "the option is nameServer",
    "service.url": "the option is nameServer",
    "admin.url": "the option is nameServer",
    "ssl": "the option is tls",
    "security.protocol": "the option is tls",
    "usetls": "the option is tls",
    "tlsenable": "the option is tls",
    "tlsenabled": "the option is tls",
    "enabletls": "the option is tls",
    "user": "the option is accessKey, or credentials for a file",
    "username": "the option is accessKey, or credentials for a file",
    "ak": "the option is accessKey, or credentials for a file",
    "password": "the option is secretKey, or credentials for a file",
    "sk": "the option is secretKey, or credentials for a file",
    "acl": "the options are accessKey and secretKey, or credentials for a file",
    "aclenabled": "the options are accessKey and secretKey, or credentials for a file",
    "accesscontrol": "the options are accessKey and secretKey, or credentials for a file",
    "namesrvaddress": "the option is nameServer",
    "metadata.broker.list": "the option is nameServer: it finds the brokers",
    "zookeeper.connect": "the option is nameServer: it finds the brokers",
    "instancename": "clients name themselves",
    "clientname": "clients name themselves",
}
_SECURITY: Final = (
    "the options are tls, tls.ca, tls.certificate and tls.key; credentials, or "
    "accessKey and secretKey"
)
_SECURITY_OF_OTHERS: Final = (
    "kafka.ssl.",
    "kafka.sasl.",
    "kafka.security.",
    "sasl.",
    "ssl.",
    "pulsar.client.",
)
_BOUNDS: Final = "maxOffsetsPerTrigger and maxBytesPerTrigger bound a batch"
_TAGS: Final = "the option is tags ('paid || refunded'), or sqlFilter for SQL92"
_START: Final = "the option is startingOffsets, or startingTimestamp for a time"
_BODIES: Final = "bodies are read as they are; ogive.spark.parse makes columns of them"
HINTS_OF_READS: Final = (
    {
        name.lower(): f"{name} is an option of writing"
        for name in SINK
        if name not in (*SOURCE, "topic")
    }
    | HINTS
    | {
        "groupidprefix": "the option is consumerGroup: a name that is used as it is",
        "kafka.group.id": "the option is consumerGroup",
        "group.id": "the option is consumerGroup",
        "group": "the option is consumerGroup",
        "subexpression": _TAGS,
        "subscription": _TAGS,
        "filter.tag": "the option is tags",
        "tag": "the option is tags",
        "consumertag": _TAGS,
        "tagfilter": _TAGS,
        "tagsfilter": _TAGS,
        "filterexpression": _TAGS,
        "subscriptionexpression": _TAGS,
        "sql92": "the option is sqlFilter",
        "filter.sql": "the option is sqlFilter",
        "pullbatchsize": "pulls choose their size themselves; maxOffsetsPerTrigger and "
        "maxBytesPerTrigger bound a batch",
        "pull.batch.size": "pulls choose their size themselves; maxOffsetsPerTrigger and "
        "maxBytesPerTrigger bound a batch",
        "pulltimeout": "the option is pollTimeoutMs",
        "kafkaconsumer.polltimeoutms": "the option is pollTimeoutMs",
        "maxfilespertrigger": "the option is maxOffsetsPerTrigger",
        "auto.offset.reset": "the option is startingOffsets",
        "kafka.auto.offset.reset": "the option is startingOffsets",
        "enable.auto.commit": "the option is commitOffsets",
        "kafka.enable.auto.commit": "the option is commitOffsets",
        "topics": "the option is subscribe: topics separated by commas",
        "topicspattern": "the option is subscribePattern",
        "topicpattern": "the option is subscribePattern",
        "groupid": "the option is consumerGroup",
        "group_id": "the option is consumerGroup",
        "group.name": "the option is consumerGroup",
        "subscriptionname": "the option is consumerGroup",
        "predefinedsubscription": "the option is consumerGroup",
        "expression": _TAGS,
        "selector": _TAGS,
        "sql": "the option is sqlFilter",
        "sqlexpression": "the option is sqlFilter",
        "consumefromwhere": "the option is startingOffsets",
        "initialposition": "the option is startingOffsets",
        "offset": _START,
        "offsets": _START,
        "offsetreset": _START,
        "consumeroffset": _START,
        "consumeroffsetreset": _START,
        "consumeroffsetresetto": _START,
        "startmode": _START,
        "startupmode": _START,
        "scanstartupmode": _START,
        "consumetimestamp": "the option is startingTimestamp",
        "max.poll.records": _BOUNDS,
        "kafka.max.poll.records": _BOUNDS,
        "maxspeedperpartition": _BOUNDS,
        "pullmaxspeedperpartition": _BOUNDS,
        "maxrateperpartition": _BOUNDS,
        "batchsize": _BOUNDS,
        "pullmaxbatchsize": _BOUNDS,
        "pullthresholdforqueue": _BOUNDS,
        "pullthresholdsizeforqueue": _BOUNDS,
        "pullinterval": _BOUNDS,
        "consumemessagebatchmaxsize": _BOUNDS,
        "kafka.topic": "the option is subscribe",
        "topicname": "the option is subscribe",
        "consumertopic": "the option is subscribe",
        "producer.group": "producerGroup is an option of writing",
        "producer_group": "producerGroup is an option of writing",
        "sendmsgtimeout": "a read sends nothing",
        "messagemodel": "a query reads every message of its queues, whatever others read",
        "parallelism": "the options are minPartitions and maxPartitions",
        "numpartitions": "the options are minPartitions and maxPartitions",
        "partitions": "the options are minPartitions and maxPartitions",
        "autocommit": "the option is commitOffsets",
        "commitoncheckpoint": "the option is commitOffsets",
        "partitiondiscoveryintervalmillis": "new queues are found within 30 seconds",
        "isolationlevel": "messages of open transactions are never read",
        "schema": "it is said in .schema()",
        "format": _BODIES,
        "encoding": _BODIES,
        "charset": _BODIES,
        "fielddelimiter": _BODIES,
        "trigger": "it is said in writeStream.trigger()",
        "triggerinterval": "it is said in writeStream.trigger()",
    }
)
_REPEATED: Final = "a request is repeated for 30 seconds, and Spark repeats the task"
_DELIVERIES: Final = "the option is delivery: atLeastOnce, idempotent or transactional"
HINTS_OF_WRITES: Final = (
    {name.lower(): f"{name} is an option of reading" for name in SOURCE if name not in SINK}
    | {name.lower(): f"a column {name} says it for each row" for name in SINK_COLUMNS}
    | HINTS
    | {
        "group": "the option is producerGroup",
        "includeheaders": "a column properties is sent where there is one",
        "headers": "a column properties is sent where there is one",
        "tag": "a column tags says it for each row",
        "delaylevel": "a column delayTimeLevel says it for each row",
        "key": "a column keys says it for each row",
        "messagekey": "a column keys says it for each row",
        "orderkey": "a column shardingKey says it for each row",
        "partitionkey": "a column shardingKey says it for each row",
        "hashshardingkey": "a column shardingKey says it for each row",
        "messagequeueselector": "a column shardingKey, or queueId, says it for each row",
        "partitioner": "a column shardingKey, or queueId, says it for each row",
        "outputmode": "it is said in writeStream.outputMode()",
        "producer_group": "the option is producerGroup",
        "retries": _REPEATED,
        "retrytimes": _REPEATED,
        "retrytimeswhensendfailed": _REPEATED,
        "sendmsgtimeout": _REPEATED,
        "sendtimeout": _REPEATED,
        "timeout": _REPEATED,
        "acks": "a task ends when brokers have acknowledged all of its rows",
        "kafka.acks": "a task ends when brokers have acknowledged all of its rows",
        "batchsize": "requests form themselves; maxInFlight bounds those on their way",
        "batch.size": "requests form themselves; maxInFlight bounds those on their way",
        "linger.ms": "requests form themselves; maxInFlight bounds those on their way",
        "subscribe": "the option is topic",
        "topics": "the option is topic, or a column topic",
        "groupid": "the option is producerGroup",
        "mode": 'it is said in .mode("append")',
        "semantic": _DELIVERIES,
        "exactlyonce": _DELIVERIES,
        "transactional": _DELIVERIES,
        "transactional.id": _DELIVERIES,
        "idempotence": _DELIVERIES,
        "enable.idempotence": _DELIVERIES,
        "kafka.enable.idempotence": _DELIVERIES,
        "dlq": "the options are invalidRows and deadLetterTopic",
        "dlqtopic": "the options are invalidRows and deadLetterTopic",
        "errorhandling": "the options are invalidRows and deadLetterTopic",
        "badrecordspath": "the options are invalidRows and deadLetterTopic",
    }
)
"""Names of options of other connectors, in lower case, and their counterparts here.

A name without dots and dashes stands for those with them, too, and for those of Kafka's clients.
"""


def hint(key: str, names: tuple[str, ...], hints: Mapping[str, str]) -> str:
    """Return the way out for the unknown option *key*, which is in lower case.

    *names* are the known ones, *hints* one of the tables here.
    """
    plain = re.sub("[._-]", "", key.removeprefix("kafka."))
    told = hints.get(key) or hints.get(plain)
    if told is not None:
        return told
    if key.startswith(_SECURITY_OF_OTHERS):
        return _SECURITY
    known = {name.lower(): name for name in names}
    near = difflib.get_close_matches(key, known, 1, 0.6)
    found = f"did you mean {known[near[0]]}?" if near else f"known options: {', '.join(names)}"
    if key.startswith("kafka."):
        return f"options of Kafka's clients mean nothing here; {found}"
    return found
