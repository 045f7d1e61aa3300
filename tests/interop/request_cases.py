"""Requests for every code of the protocol, each field of each taken to its limits: what both
brokers are asked.

A case is one request. Its name says how it differs from the usual request of its code:
"queueId=over", "topic=missing", "usual".
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ogive.wire.codes import RequestCode as C

TOPIC, GROUP, ONLINE, CLIENT, QUEUES = "Readings", "Readers", "Online", "client-1", 4
"""What is there on both brokers: a topic with messages, a group with progress, and one with a
member.
"""

_MAX_INT, _MAX_LONG = 2**31 - 1, 2**63 - 1
_NEWER: Final = {"ns": "", "nsd": "false", "lo": "false", "ofALaterRelease": "1"}
_KINDS: Final[dict[str, dict[str, str]]] = {
    "i": {
        "empty": "",
        "word": "x",
        "negative": "-1",
        "most": str(_MAX_INT),
        "over": str(_MAX_INT + 1),
        "blank": " 1",
        "signed": "+1",
    },
    "l": {
        "empty": "",
        "word": "x",
        "negative": "-1",
        "most": str(_MAX_LONG),
        "over": str(_MAX_LONG + 1),
        "fraction": "1.5",
        "signed": "+1",
    },
    "q": {
        "empty": "",
        "word": "x",
        "negative": "-1",
        "last": str(QUEUES - 1),
        "unknown": str(QUEUES),
        "most": str(_MAX_INT),
        "over": str(_MAX_INT + 1),
        "blank": " 1",
    },
    "b": {"empty": "", "word": "yes", "true": "true", "upper": "TRUE"},
    "t": {
        "empty": "",
        "unknown": "Nowhere{code}",
        "percent": "100%",
        "space": "a b",
        "longest": "t{code}" + "t" * 116,
        "longer": "t{code}" + "t" * 140,
        "retry": "%RETRY%nobody",
        "system": "TBW102",
        "timer": "rmq_sys_wheel_timer",
    },
    "g": {
        "empty": "",
        "unknown": "nobody{code}",
        "percent": "100%",
        "space": "a b",
        "longest": "g{code}" + "g" * 110,
        "longer": "g{code}" + "g" * 260,
    },
    "s": {"empty": "", "percent": "100%", "long": "s" * 300},
}
"""Values that a field of this kind has in turn, by the word for it."""


@dataclass(frozen=True, slots=True)
class Case:
    code: int
    name: str
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


_SEND_LONG: Final = (
    "producerGroup:g=P topic:t={send} defaultTopic:t=TBW102 defaultTopicQueueNums:i=4 queueId:q=0 "
    "sysFlag:i=0 "
    "bornTimestamp:l=1795230231293 flag:i=0 properties:s= reconsumeTimes:i=0 unitMode:b=false "
    "batch:b=false maxReconsumeTimes:i=16"
)
_SEND_SHORT: Final = (
    "a:g=P b:t={send} c:t=TBW102 d:i=4 e:q=0 f:i=0 g:l=1795230231293 h:i=0 i:s= "
    "j:i=0 k:b=false m:b=false l:i=16"
)
_PULL: Final = (
    "consumerGroup:g={group} topic:t={topic} queueId:q=0 queueOffset:l=0 maxMsgNums:i=4 "
    "sysFlag:i=4 commitOffset:l=0 "
    "suspendTimeoutMillis:l=0 subscription:s=* subVersion:l=0 expressionType:s=TAG"
)
_PLACE: Final = "topic:t={topic} queueId:q=0"
_QUEUE: Final = {"topic": TOPIC, "brokerName": "broker-a", "queueId": 0}
_HEARTBEAT: Final = {
    "clientID": "beating",
    "producerDataSet": [{"groupName": "P"}],
    "consumerDataSet": [
        {
            "groupName": "Beating",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [
                {
                    "topic": TOPIC,
                    "subString": "*",
                    "tagsSet": [],
                    "codeSet": [],
                    "subVersion": 1,
                    "expressionType": "TAG",
                }
            ],
            "unitMode": False,
        }
    ],
}
_TOPIC_CONFIG: Final = {
    "topicName": "Listed",
    "readQueueNums": 2,
    "writeQueueNums": 2,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
    "order": False,
}
_GROUP_CONFIG: Final = {
    "groupName": "Listed",
    "consumeEnable": True,
    "retryQueueNums": 1,
    "retryMaxTimes": 3,
}

# code -> usual fields ("name:kind=value"), usual body
_USUAL: Final[dict[int, tuple[str, bytes]]] = {
    C.SEND_MESSAGE: (_SEND_LONG, b"x"),
    C.SEND_MESSAGE_V2: (_SEND_SHORT, b"x"),
    C.PULL_MESSAGE: (_PULL, b""),
    C.LITE_PULL_MESSAGE: (_PULL, b""),
    C.QUERY_MESSAGE: (
        "topic:t={topic} key:s=nothing maxNum:i=8 beginTimestamp:l=0 "
        "endTimestamp:l=9223372036854775807",
        b"",
    ),
    C.QUERY_CONSUMER_OFFSET: (f"consumerGroup:g={{group}} {_PLACE} setZeroIfNotFound:b=false", b""),
    C.UPDATE_CONSUMER_OFFSET: (f"consumerGroup:g={{group}} {_PLACE} commitOffset:l=1", b""),
    C.SEARCH_OFFSET_BY_TIMESTAMP: (f"{_PLACE} timestamp:l=0 boundaryType:s=LOWER", b""),
    C.GET_MAX_OFFSET: (f"{_PLACE} committed:b=true", b""),
    C.GET_MIN_OFFSET: (_PLACE, b""),
    C.GET_EARLIEST_MSG_STORETIME: (_PLACE, b""),
    C.VIEW_MESSAGE_BY_ID: ("topic:t={topic} offset:l=0", b""),
    C.HEART_BEAT: ("", _json(_HEARTBEAT)),
    C.UNREGISTER_CLIENT: ("clientID:s=beating producerGroup:g=P consumerGroup:g=Beating", b""),
    C.CONSUMER_SEND_MSG_BACK: (
        "offset:l=0 group:g={group} delayLevel:i=0 originMsgId:s=x originTopic:t={topic} "
        "unitMode:b=false maxReconsumeTimes:i=16",
        b"",
    ),
    C.END_TRANSACTION: (
        "producerGroup:g=P tranStateTableOffset:l=0 commitLogOffset:l=0 commitOrRollback:i=8 "
        "fromTransactionCheck:b=false "
        "msgId:s=x transactionId:s=x",
        b"",
    ),
    C.GET_CONSUMER_LIST_BY_GROUP: ("consumerGroup:g={online}", b""),
    C.LOCK_BATCH_MQ: ("", _json({"consumerGroup": ONLINE, "clientId": CLIENT, "mqSet": [_QUEUE]})),
    C.UNLOCK_BATCH_MQ: (
        "",
        _json({"consumerGroup": ONLINE, "clientId": CLIENT, "mqSet": [_QUEUE]}),
    ),
    C.CHECK_CLIENT_CONFIG: (
        "",
        _json(
            {
                "clientId": "c",
                "group": GROUP,
                "subscriptionData": {
                    "topic": TOPIC,
                    "subString": "a = 1",
                    "expressionType": "SQL92",
                },
            }
        ),
    ),
    C.GET_ALL_TOPIC_CONFIG: ("topicSeq:i=0 maxTopicNum:i=100", b""),
    C.GET_TOPIC_CONFIG: ("topic:t={topic} lo:b=true", b""),
    C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: ("", b""),
    C.GET_TOPIC_STATS_INFO: ("topic:t={topic}", b""),
    C.QUERY_TOPIC_CONSUME_BY_WHO: ("topic:t={topic}", b""),
    C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: ("groupSeq:i=0 maxGroupNum:i=100", b""),
    C.GET_SUBSCRIPTIONGROUP_CONFIG: ("group:g={group}", b""),
    C.UPDATE_AND_GET_GROUP_FORBIDDEN: ("group:g={group} topic:t={topic} readable:b=true", b""),
    C.GET_BROKER_CONFIG: ("", b""),
    C.GET_BROKER_RUNTIME_INFO: ("", b""),
    C.GET_CONSUMER_CONNECTION_LIST: ("consumerGroup:g={online}", b""),
    C.GET_PRODUCER_CONNECTION_LIST: ("producerGroup:g={online}", b""),
    C.GET_CONSUME_STATS: ("consumerGroup:g={group} topic:t={topic} topicList:s=", b""),
    C.QUERY_TOPICS_BY_CONSUMER: ("group:g={group}", b""),
    C.QUERY_SUBSCRIPTION_BY_CONSUMER: ("group:g={online} topic:t={topic}", b""),
    C.GET_CONSUMER_RUNNING_INFO: (
        "consumerGroup:g={online} clientId:s=nobody jstackEnable:b=false",
        b"",
    ),
    C.CONSUME_MESSAGE_DIRECTLY: (
        "consumerGroup:g={online} clientId:s=nobody msgId:s=7F00000100002A9F0000000000000000 "
        "brokerName:s=broker-a topic:t={topic}",
        b"",
    ),
    C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: ("topic:t={topic} group:g={group} clientAddr:s=", b""),
    C.GET_ALL_PRODUCER_INFO: ("", b""),
    C.VIEW_BROKER_STATS_DATA: ("statsName:s=TOPIC_PUT_NUMS statsKey:s={topic}", b""),
    C.GET_BROKER_CONSUME_STATS: ("isOrder:b=false", b""),
    C.QUERY_CONSUME_TIME_SPAN: ("topic:t={topic} group:g={group}", b""),
    C.QUERY_CONSUME_QUEUE: (
        "topic:t={topic} queueId:q=0 index:l=0 count:i=4 consumerGroup:g={group}",
        b"",
    ),
    C.QUERY_ASSIGNMENT: (
        "",
        _json(
            {
                "topic": TOPIC,
                "consumerGroup": ONLINE,
                "clientId": CLIENT,
                "strategyName": "AVG",
                "messageModel": "CLUSTERING",
            }
        ),
    ),
    C.RECALL_MESSAGE: ("producerGroup:g=P topic:t={topic} recallHandle:s=djEgeCB5IDEgeg==", b""),
    C.SEND_REPLY_MESSAGE: (_SEND_LONG.replace("{send}", "DefaultCluster_REPLY_TOPIC"), b"x"),
    C.SEND_REPLY_MESSAGE_V2: (_SEND_SHORT.replace("{send}", "DefaultCluster_REPLY_TOPIC"), b"x"),
    # what changes more than it is asked about goes last
    C.INVOKE_BROKER_TO_RESET_OFFSET: (
        "topic:t={topic} group:g={group} timestamp:l=0 isForce:b=true queueId:q=0 offset:l=0",
        b"",
    ),
    C.CLONE_GROUP_OFFSET: (
        "srcGroup:g={group} destGroup:g={online} topic:t={topic} offline:b=false",
        b"",
    ),
    C.SET_MESSAGE_REQUEST_MODE: (
        "",
        _json({"topic": TOPIC, "consumerGroup": GROUP, "mode": "PULL", "popShareQueueNum": 0}),
    ),
    C.UPDATE_AND_CREATE_TOPIC: (
        "topic:t=Made defaultTopic:t=TBW102 readQueueNums:i=2 writeQueueNums:i=2 perm:i=6 "
        "topicFilterType:s=SINGLE_TAG topicSysFlag:i=0 "
        "order:b=false attributes:s= force:b=false",
        b"",
    ),
    C.UPDATE_AND_CREATE_TOPIC_LIST: ("", _json({"topicConfigList": [_TOPIC_CONFIG]})),
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ("", _json(_GROUP_CONFIG)),
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: ("", _json({"groupConfigList": [_GROUP_CONFIG]})),
    C.AUTH_CREATE_USER: (
        "username:s=somebody",
        _json({"username": "somebody", "password": "secret", "userType": "Normal"}),
    ),
    C.AUTH_UPDATE_USER: (
        "username:s=somebody",
        _json({"username": "somebody", "password": "other"}),
    ),
    C.AUTH_GET_USER: ("username:s=somebody", b""),
    C.AUTH_LIST_USER: ("filter:s=", b""),
    C.AUTH_CREATE_ACL: (
        "subject:s=User:somebody",
        _json(
            {
                "subject": "User:somebody",
                "policies": [
                    {
                        "policyType": "Custom",
                        "entries": [
                            {"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}
                        ],
                    }
                ],
            }
        ),
    ),
    C.AUTH_GET_ACL: ("subject:s=User:somebody", b""),
    C.AUTH_LIST_ACL: ("subjectFilter:s= resourceFilter:s=", b""),
    C.AUTH_DELETE_ACL: ("subject:s=User:somebody policyType:s=Custom resource:s=Topic:T", b""),
    C.AUTH_DELETE_USER: ("username:s=somebody", b""),
    C.DELETE_EXPIRED_COMMITLOG: ("", b""),
    C.CLEAN_EXPIRED_CONSUMEQUEUE: ("", b""),
    C.CLEAN_UNUSED_TOPIC: ("", b""),
    C.DELETE_SUBSCRIPTIONGROUP: ("groupName:g=Listed cleanOffset:b=false", b""),
    C.DELETE_TOPIC_IN_BROKER: ("topic:t=Listed", b""),
    C.UPDATE_BROKER_CONFIG: ("", b"maxTransferCountOnMessageInMemory=32\n"),
}

_BODIES: Final = {
    "none": b"",
    "braces": b"{}",
    "brackets": b"[]",
    "null": b"null",
    "text": b"no JSON",
    "cut": b'{"a":',
    "bytes": b"\xff\xfe",
}

_JSON_VALUES: Final[dict[str, Any]] = {"null": None, "empty": "", "number": 7, "list": []}

_PROPERTIES: Final = {
    "tags": "TAGS\x01a",
    "keys": "KEYS\x01a b",
    "no name": "\x01v\x02",
    "no value": "n\x01\x02",
    "delay": "DELAY\x011",
    "delay word": "DELAY\x01x",
    "delay over": "DELAY\x0199",
    "delay long": "DELAY\x012147483648",
    "delay negative": "DELAY\x01-1",
    "timer": "TIMER_DELAY_SEC\x011",
    "timer zeros": "TIMER_DELAY_SEC\x0100000000000000000001",
    "timer word": "TIMER_DELAY_SEC\x01x",
    "timer blank": "TIMER_DELAY_MS\x01 1",
    "timer over": "TIMER_DELAY_SEC\x01604900",
    "timer past": "TIMER_DELIVER_MS\x015",
    "timer underscore": "TIMER_DELAY_SEC\x011_000",
    "batch": "INNER_NUM\x012",
    "cluster": "CLUSTER\x01c",
    "percent": "%\x01%",
    "most": "n\x01" + "v" * 32000,
    "over": "n\x01" + "v" * 33000,
    "half without a group": "TRAN_MSG\x01true",
    "wait": "WAIT\x01false",
    "pop": "POP_CK\x01x",
}


def _fields_of(text: str) -> dict[str, tuple[str, str]]:
    """Name -> kind and usual value."""
    found = {}
    for word in text.split():
        place, _, value = word.partition("=")
        name, _, kind = place.partition(":")
        found[name] = kind, value.format(topic=TOPIC, group=GROUP, online=ONLINE, send="Sent")
    return found


def _of_code(code: int, text: str, body: bytes) -> Iterator[Case]:
    declared = _fields_of(text)
    usual = {name: value for name, (_, value) in declared.items()}
    yield Case(code, "usual", usual, body)
    yield Case(code, "newer fields", usual | _NEWER, body)
    if usual:
        yield Case(code, "no fields", {}, body)
    for name, (kind, _) in declared.items():
        yield Case(
            code,
            f"{name}=missing",
            {other: value for other, value in usual.items() if other != name},
            body,
        )
        for word, value in _KINDS[kind].items():
            yield Case(
                code,
                f"{name}={word}",
                usual | {name: value.format(code=code) if "{" in value else value},
                body,
            )
    if body.startswith(b"{"):
        for word, other in _BODIES.items():
            yield Case(code, f"body={word}", usual, other)
        for member in json.loads(body):
            value = json.loads(body)
            del value[member]
            yield Case(code, f"body.{member}=missing", usual, _json(value))
            for word, changed in _JSON_VALUES.items():
                yield Case(
                    code,
                    f"body.{member}={word}",
                    usual,
                    _json(json.loads(body) | {member: changed}),
                )
    if code in (C.SEND_MESSAGE, C.SEND_MESSAGE_V2):
        field_name = "properties" if code == C.SEND_MESSAGE else "i"
        for word, value in _PROPERTIES.items():
            yield Case(code, f"property {word}", usual | {field_name: value}, body)
        yield Case(code, "body=empty", usual, b"")
        yield Case(code, "body=most", usual, bytes(4 * 1024 * 1024))
        yield Case(code, "body=over", usual, bytes(4 * 1024 * 1024 + 1))


def _batches() -> Iterator[Case]:
    usual = {name: value for name, (_, value) in _fields_of(_SEND_SHORT).items()} | {"m": "true"}
    item = (
        (4 * 5 + 1 + 2 + 8).to_bytes(4, "big")
        + bytes(12)
        + (1).to_bytes(4, "big")
        + b"x"
        + (8).to_bytes(2, "big")
        + b"UNIQ\x01ab\x02"
    )
    for word, body in {
        "usual": item,
        "two": item * 2,
        "none": b"",
        "cut": item[:-3],
        "size over": b"\x7f\xff\xff\xff" + item[4:],
        "size 0": bytes(4) + item[4:],
        "size negative": b"\xff\xff\xff\xff" + item[4:],
    }.items():
        yield Case(C.SEND_BATCH_MESSAGE, f"body={word}", usual, body)
    for word, value in {
        "delay": "DELAY\x011",
        "half": "TRAN_MSG\x01true",
        "timer": "TIMER_DELAY_SEC\x011",
    }.items():
        yield Case(C.SEND_BATCH_MESSAGE, f"property {word}", usual | {"i": value}, item)
    for name, (kind, _) in _fields_of(_SEND_SHORT).items():
        yield Case(
            C.SEND_BATCH_MESSAGE,
            f"{name}=missing",
            {other: value for other, value in usual.items() if other != name},
            item,
        )
        for word, value in _KINDS[kind].items():
            changed = usual | {
                name: value.format(code=C.SEND_BATCH_MESSAGE) if "{" in value else value
            }
            yield Case(C.SEND_BATCH_MESSAGE, f"{name}={word}", changed, item)


_ALARMING: Final = (
    C.POP_ROLLBACK,
    C.SWITCH_TIMER_ENGINE,
    C.UPDATE_AND_CREATE_STATIC_TOPIC,
    C.RESET_MASTER_FLUSH_OFFSET,
    C.EXCHANGE_BROKER_HA_INFO,
    C.NOTIFY_MIN_BROKER_ID_CHANGE,
    C.ADD_BROKER,
    C.REMOVE_BROKER,
    C.NOTIFY_BROKER_ROLE_CHANGED,
    C.BROKER_CLOSE_CHANNEL_REQUEST,
)
"""What can change the role of Apache's broker is asked when nothing follows."""


def cases() -> Iterator[Case]:
    """All of them, in the order in which they are sent; what destroys comes last."""
    known = list(_USUAL)
    others = [
        int(code)
        for code in C
        if code not in _USUAL and code not in (C.SEND_BATCH_MESSAGE, *_ALARMING)
    ]
    first = known[: known.index(C.INVOKE_BROKER_TO_RESET_OFFSET)]
    for code in first:
        yield from _of_code(code, *_USUAL[code])
    yield from _batches()
    for code in (*others, 9, 999_999, -1):
        yield Case(code, "no fields")
    for code in known[len(first) :]:
        yield from _of_code(code, *_USUAL[code])
    for code in _ALARMING:
        yield Case(int(code), "no fields")
