"""What hostile servers say: a table of behaviours for the scripted broker.

Names are sentences about the server.
"""

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from ogive.model import MessageQueue
from ogive.testing.fake_broker import SILENT, FakeBroker, Raw, error, ok
from ogive.wire.bodies.clients import consumer_ids_dumps, locked_queues_dumps
from ogive.wire.codes import Flag, RequestCode, ResponseCode, SysFlag
from ogive.wire.command import RemotingCommand, encode_command
from ogive.wire.headers.pull import PullMessageResponse
from ogive.wire.message import StoredMessage, encode_stored
from tests.never.scene import (
    GROUP,
    HEARTBEAT,
    LOCK,
    MEMBERS,
    PULL,
    QUERY,
    ROUTE,
    SEND,
    TOPIC,
    UPDATE,
)

Answer = Callable[[FakeBroker, RemotingCommand], Any]
HUGE: Final = 10**30


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What the server does instead of answering requests with *code* as usual.

    *recovers*: once it behaves again, the same consumer gets all messages; else it was told another
    place, and only a new group does.
    """

    name: str
    code: int
    answer: Answer
    orderly: bool = False
    recovers: bool = True


def always(value: Any) -> Answer:
    return lambda _broker, _request: value


def raw(data: bytes) -> Answer:
    return always(Raw(data))


def frame(header: bytes, body: bytes = b"", *, codec: int = 0) -> bytes:
    return (
        (4 + len(header) + len(body)).to_bytes(4)
        + (codec << 24 | len(header)).to_bytes(4)
        + header
        + body
    )


def header(**changed: Any) -> Answer:
    """A JSON answer to the request whose header has these changes."""

    def answer(_broker: FakeBroker, request: RemotingCommand) -> Raw:
        fields = {
            "code": 0,
            "flag": 1,
            "language": "JAVA",
            "opaque": request.opaque,
            "version": 401,
            "extFields": {},
            **changed,
        }
        return Raw(frame(json.dumps(fields).encode()))

    return answer


def response(
    request: RemotingCommand,
    *,
    opaque: int | None = None,
    code: int = 0,
    flag: int = Flag.RESPONSE,
    body: bytes = b"",
) -> bytes:
    return encode_command(
        RemotingCommand(code, {}, body, request.opaque if opaque is None else opaque, flag)
    )


def many(make: Callable[[RemotingCommand], bytes], count: int = 1) -> Answer:
    return lambda _broker, request: Raw(make(request) * count)


# --- frames that are none, and answers to nobody --------------------------------------------------

FRAMES: Final[dict[str, Answer]] = {
    "declares 2 GiB": raw(b"\x7f\xff\xff\xff" + bytes(64)),
    "declares a negative length": raw(b"\xff\xff\xff\xfe" + bytes(64)),
    "declares no length": raw(bytes(64)),
    "declares three bytes": raw(b"\0\0\0\x03" + bytes(64)),
    "declares one byte more than a frame may have": raw(
        (16 * 1024 * 1024 - 3).to_bytes(4) + bytes(64)
    ),
    "declares a header longer than its frame": raw(
        (64).to_bytes(4) + (1000).to_bytes(4) + bytes(60)
    ),
    "declares a header of 16 MB": raw((64).to_bytes(4) + (0xFFFFFF).to_bytes(4) + bytes(60)),
    "has a codec that nobody knows": raw(frame(b"{}", codec=7)),
    "has a header that is not JSON": raw(frame(b"not json")),
    "has a JSON list for a header": raw(frame(b"[1,2,3]")),
    "has a header of deep lists": raw(frame(b"[" * 100_000)),
    "has a number of 4,000 digits for a code": raw(
        frame(b'{"code":' + b"9" * 4000 + b',"flag":1,"opaque":1}')
    ),
    "has NaN for a code": raw(frame(b'{"code":NaN,"flag":1,"opaque":1}')),
    "has a word for a code": header(code="zero"),
    "has a fraction for a code": header(code=0.5),
    "has null for a code": header(code=None),
    "has 300 fields": header(extFields={f"f{i}": "x" for i in range(300)}),
    "has a list of fields": header(extFields=[1, 2]),
    "has objects for fields": header(extFields={"a": {"b": {}}}),
    "has a remark of 200 KB": header(code=1, remark="x" * 200_000),
    "has control characters in its remark": header(code=1, remark="\x1b[2J\r\n\0 \u202e"),
    "has half a character in its remark": raw(
        frame(b'{"code":1,"flag":1,"opaque":1,"remark":"\\ud800"}')
    ),
    "has a binary header cut off": raw(frame(bytes(7), codec=1)),
    "has a binary header with a map of 2 GiB": raw(frame(bytes(17) + b"\x7f\xff\xff\xff", codec=1)),
    "has a binary header with a remark of 2 GiB": raw(
        frame(bytes(13) + b"\x7f\xff\xff\xff" + bytes(8), codec=1)
    ),
    "speaks HTTP": raw(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
    "speaks TLS": raw(b"\x15\x03\x03\x00\x02\x02\x46"),
    "sends the start of a frame and no more": raw((1000).to_bytes(4) + b"abc"),
    "sends an endless stream of zeros": raw(bytes(8 * 1024 * 1024)),
    "sends 4 MiB of small answers to nobody": many(
        lambda request: response(request, opaque=-7), 60_000
    ),
    "answers another request": many(
        lambda request: response(request, opaque=request.opaque + 1000)
    ),
    "answers with a negative opaque": many(
        lambda request: response(request, opaque=-request.opaque)
    ),
    "answers with an opaque of 2^31 - 1": many(lambda request: response(request, opaque=2**31 - 1)),
    "answers twice": many(lambda request: response(request, code=1) + response(request, code=0)),
    "answers a hundred times": many(lambda request: response(request, code=1), 100),
    "answers with a request": many(lambda request: response(request, flag=0)),
    "answers with a one-way request": many(lambda request: response(request, flag=Flag.ONEWAY)),
    "answers with a one-way response": many(
        lambda request: response(request, flag=Flag.ONEWAY | Flag.RESPONSE, code=1)
    ),
    "answers with a code that nobody knows": always(error(-2_000_000_000)),
    "answers GO_AWAY for ever": always(error(1500)),
    "says that it is busy for ever": always(error(ResponseCode.SYSTEM_BUSY)),
    "says nothing": always(SILENT),
}


# --- answers that are well formed and wrong -------------------------------------------------------


def sent(**fields: Any) -> Answer:
    return always(
        RemotingCommand(
            0,
            {"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"}
            | {k: str(v) for k, v in fields.items()},
        )
    )


SENDS: Final[dict[str, Answer]] = {
    "acknowledges without a word": always(ok()),
    "acknowledges at a negative offset": sent(queueOffset=-1),
    "acknowledges at an offset of 30 digits": sent(queueOffset=HUGE),
    "acknowledges at no number": sent(queueOffset="soon"),
    "acknowledges with an id that is none": sent(msgId="../../etc/passwd"),
    "acknowledges with an id of 100 KB": sent(msgId="A" * 100_000),
    "acknowledges with a body of 8 MiB": always(
        RemotingCommand(0, {"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"}, bytes(8 << 20))
    ),
}


def route(brokers: Any, queues: Any, **more: Any) -> Answer:
    return always(
        ok(
            body=json.dumps(
                {"brokerDatas": brokers, "queueDatas": queues, "filterServerTable": {}, **more}
            ).encode()
        )
    )


def at(*addresses: str, name: str = "broker-a") -> Answer:
    brokers = [
        {
            "brokerName": name,
            "cluster": "c",
            "brokerAddrs": {str(i): address for i, address in enumerate(addresses)},
        }
    ]
    return route(
        brokers,
        [
            {
                "brokerName": name,
                "perm": 6,
                "readQueueNums": 1,
                "writeQueueNums": 1,
                "topicSysFlag": 0,
            }
        ],
    )


def queues_of(**changed: Any) -> Answer:
    row = {
        "brokerName": "broker-a",
        "perm": 6,
        "readQueueNums": 1,
        "writeQueueNums": 1,
        "topicSysFlag": 0,
        **changed,
    }
    return route(
        [{"brokerName": "broker-a", "cluster": "c", "brokerAddrs": {"0": "127.0.0.1:1"}}], [row]
    )


def names_itself(broker: FakeBroker, _request: RemotingCommand) -> Any:
    """The name server stands in for every broker, under ten names."""
    brokers = [
        {"brokerName": f"b{i}", "cluster": "c", "brokerAddrs": {"0": broker.address}}
        for i in range(10)
    ]
    rows = [
        {
            "brokerName": f"b{i}",
            "perm": 6,
            "readQueueNums": 1,
            "writeQueueNums": 1,
            "topicSysFlag": 0,
        }
        for i in range(10)
    ]
    return ok(
        body=json.dumps(
            {"brokerDatas": brokers, "queueDatas": rows, "filterServerTable": {}}
        ).encode()
    )


def many_brokers(count: int) -> Answer:
    """Each at an address of its own on loopback, where nobody listens."""
    brokers = [
        {"brokerName": f"b{i}", "cluster": "c", "brokerAddrs": {"0": f"127.1.{i >> 8}.{i & 255}:1"}}
        for i in range(count)
    ]
    rows = [
        {
            "brokerName": f"b{i}",
            "perm": 6,
            "readQueueNums": 1,
            "writeQueueNums": 1,
            "topicSysFlag": 0,
        }
        for i in range(count)
    ]
    return route(brokers, rows)


ROUTES: Final[dict[str, Answer]] = {
    "gives a route without a body": always(ok()),
    "gives a route that is not JSON": always(ok(body=b"\xff\xfe{")),
    "gives a route that is a list": always(ok(body=b"[]")),
    "gives a route of nulls": always(ok(body=b'{"brokerDatas":null,"queueDatas":null}')),
    "gives a route of words": always(ok(body=b'{"brokerDatas":"a","queueDatas":"b"}')),
    "gives a route of deep objects": always(ok(body=b'{"a":' * 50_000)),
    "gives a route with a million queues": queues_of(
        readQueueNums=1_000_000, writeQueueNums=1_000_000
    ),
    "gives a route with 10^30 queues": queues_of(readQueueNums=HUGE, writeQueueNums=HUGE),
    "gives a route with minus one queue": queues_of(readQueueNums=-1, writeQueueNums=-1),
    "gives a route with half a queue": queues_of(readQueueNums=0.5, writeQueueNums=0.5),
    "gives a route that nobody may use": queues_of(perm=0),
    "gives a route whose permission is a word": queues_of(perm="rw"),
    "gives a route whose order names a million queues": route(
        [{"brokerName": "broker-a", "cluster": "c", "brokerAddrs": {"0": "127.0.0.1:1"}}],
        [],
        orderTopicConf="broker-a:1000000",
    ),
    "gives a route with 5,000 brokers": many_brokers(5_000),
    "gives a broker without an address": at(),
    "gives a broker at no address": at("nonsense"),
    "gives a broker at a port too high": at("127.0.0.1:99999"),
    "gives a broker at port 0": at("127.0.0.1:0"),
    "gives a broker at a port that refuses": at("127.0.0.1:1"),
    "gives a broker at a host that is none": at("a" * 300 + ":10911"),
    "gives a broker at a name with a null in it": at("127.0.0.1\0:10911"),
    "gives a broker whose name is a path": at("127.0.0.1:1", name="../../../tmp/evil"),
    "gives a broker whose id is a word": route(
        [{"brokerName": "broker-a", "cluster": "c", "brokerAddrs": {"zero": "127.0.0.1:1"}}],
        [
            {
                "brokerName": "broker-a",
                "perm": 6,
                "readQueueNums": 1,
                "writeQueueNums": 1,
                "topicSysFlag": 0,
            }
        ],
    ),
    "says that it is ten brokers itself": names_itself,
}


def pulled(next_offset: int, body: bytes = b"", code: int = 0, **fields: Any) -> Answer:
    answer = ok(
        PullMessageResponse(next_begin_offset=next_offset, min_offset=0, max_offset=10), body
    )
    return always(
        RemotingCommand(
            code, answer.ext_fields | {name: str(value) for name, value in fields.items()}, body
        )
    )


def evil(**changed: Any) -> StoredMessage:
    message = StoredMessage(
        TOPIC, b"evil", b"UNIQ_KEY\x01EVIL\x02", born_host=bytes(8), store_host=bytes(8)
    )
    return replace(message, **changed)


def wrong_crc(body: bytes = b"evil") -> bytes:
    record = bytearray(encode_stored(evil(body=body)))
    # the sum follows size and magic number
    record[8] ^= 0x55
    return bytes(record)


def record(at_byte: int, value: bytes) -> bytes:
    """A good record with some bytes changed."""
    data = bytearray(encode_stored(evil()))
    data[at_byte : at_byte + len(value)] = value
    return bytes(data)


def zeros_squeezed() -> bytes:
    """512 MiB of zeros, made without holding them."""
    squeeze, chunk = zlib.compressobj(9), bytes(1024 * 1024)
    return b"".join(squeeze.compress(chunk) for _ in range(512)) + squeeze.flush()


_BOMB: list[bytes] = []


def zlib_bomb(_broker: FakeBroker, _request: RemotingCommand) -> Any:
    if not _BOMB:
        _BOMB.append(encode_stored(evil(body=zeros_squeezed(), sys_flag=SysFlag.COMPRESSED)))
    return pulled(1, _BOMB[0])(_broker, _request)


def loops(_broker: FakeBroker, request: RemotingCommand) -> Any:
    """Each place is the wrong one, and the other one right."""
    other = 0 if int(request.ext_fields["queueOffset"]) else 7
    return pulled(other, code=21)(_broker, request)


PULLS: Final[dict[str, Answer]] = {
    "delivers a message whose checksum is wrong": pulled(1, wrong_crc()),
    "delivers a good message behind one whose checksum is wrong": pulled(
        2, wrong_crc() + encode_stored(evil(queue_offset=1))
    ),
    "delivers an empty message with a checksum": pulled(1, wrong_crc(b"")),
    "delivers a record that declares 2 GiB": pulled(1, record(0, b"\x7f\xff\xff\xff")),
    "delivers a record that declares less than nothing": pulled(1, record(0, b"\xff\xff\xff\xf0")),
    "delivers a record that declares no byte": pulled(1, record(0, bytes(4))),
    "delivers a record with an unknown magic number": pulled(1, record(4, b"\x12\x34\x56\x78")),
    "delivers a record whose body declares 2 GiB": pulled(1, record(84, b"\x7f\xff\xff\xff")),
    "delivers a record whose body declares less than nothing": pulled(
        1, record(84, b"\xff\xff\xff\xff")
    ),
    "delivers half a record": pulled(1, encode_stored(evil())[:50]),
    "delivers 1 MiB of noise": pulled(1, bytes(range(256)) * 4096),
    "delivers nothing for ever": pulled(0),
    "delivers nothing and goes back for ever": pulled(0, code=19),
    "says that the next offset is negative": pulled(-5, code=19),
    "says that the next offset has 30 digits": pulled(0, code=19, nextBeginOffset=HUGE),
    "says that the next offset is a word": pulled(0, code=19, nextBeginOffset="later"),
    "sends the group from place to place": loops,
    "sends the group to a negative place": pulled(-1, code=21),
    "sends the group to slave 10^30": pulled(0, code=19, suggestWhichBrokerId=HUGE),
    "sends the group to slave minus one": pulled(0, code=19, suggestWhichBrokerId=-1),
    "delivers a bomb of zeros": zlib_bomb,
    "delivers what declares to be lz4": pulled(
        1,
        encode_stored(
            evil(body=b"\x04\x22\x4d\x18" + bytes(40), sys_flag=SysFlag.COMPRESSED | 0x100)
        ),
    ),
    "delivers what declares to be zstd": pulled(
        1,
        encode_stored(
            evil(body=b"\x28\xb5\x2f\xfd" + bytes(40), sys_flag=SysFlag.COMPRESSED | 0x200)
        ),
    ),
    "delivers what is compressed by nothing known": pulled(
        1, encode_stored(evil(sys_flag=SysFlag.COMPRESSED | 0x700))
    ),
}


MOVES_ON: Final = {
    "delivers a message whose checksum is wrong",
    "delivers a good message behind one whose checksum is wrong",
    "delivers an empty message with a checksum",
    "sends the group from place to place",
    "delivers a bomb of zeros",
    "delivers what declares to be lz4",
    "delivers what declares to be zstd",
    "delivers what is compressed by nothing known",
}
"""The broker is the one who says what its queue holds: what it replaces, damages or moves the group
past is not asked for again.
"""


def offset(value: Any) -> Answer:
    return always(RemotingCommand(0, {"offset": str(value)}))


GROUPS: Final[dict[str, tuple[int, Answer]]] = {
    "says that the group stands at no number": (QUERY, offset("here")),
    "says that the group stands at 30 digits": (QUERY, offset(HUGE)),
    "says nothing of where the group stands": (QUERY, always(ok())),
    "says that the group stands before the start": (QUERY, offset(-1)),
    "says that the group stands far before the start": (QUERY, offset(-(2**62))),
    "takes progress and calls it a failure": (UPDATE, always(error(1))),
    "takes progress and hangs up": (UPDATE, raw(b"\xff" * 8)),
    "lists members that are no JSON": (MEMBERS, always(ok(body=b"\xff"))),
    "lists members that are numbers": (MEMBERS, always(ok(body=b'{"consumerIdList":[1,2,3]}'))),
    "lists members without us": (MEMBERS, always(ok(body=consumer_ids_dumps(["a", "b"])))),
    "lists 100,000 members": (
        MEMBERS,
        always(ok(body=consumer_ids_dumps([f"client-{i}" for i in range(100_000)]))),
    ),
    "lists null for members": (MEMBERS, always(ok(body=b'{"consumerIdList":null}'))),
    "answers heartbeats with noise": (HEARTBEAT, always(ok(body=bytes(range(256))))),
    "refuses heartbeats": (HEARTBEAT, always(error(1))),
}
LOCKS: Final[dict[str, Answer]] = {
    "locks queues that nobody asked for": always(
        ok(body=locked_queues_dumps([MessageQueue("Other", "broker-z", 9)]))
    ),
    "locks what is not a queue": always(ok(body=b'{"lockOKMQSet":[7,null,{}]}')),
    "locks with noise": always(ok(body=b"\xff\xff")),
    "locks nothing, without a word": always(ok()),
}


def behaviours() -> Iterator[Behaviour]:
    """The table of the quick size."""
    for name, answer in FRAMES.items():
        yield Behaviour(f"a send's answer {name}", SEND, answer)
    for name, answer in SENDS.items():
        yield Behaviour(f"a broker {name}", SEND, answer)
    for name, answer in ROUTES.items():
        yield Behaviour(f"a name server {name}", ROUTE, answer)
    for name, answer in PULLS.items():
        yield Behaviour(f"a broker {name}", PULL, answer, recovers=name not in MOVES_ON)
    for name, (code, answer) in GROUPS.items():
        yield Behaviour(f"a broker {name}", code, answer)
    for name, answer in LOCKS.items():
        yield Behaviour(f"a broker {name}", LOCK, answer, orderly=True)


def more_behaviours() -> Iterator[Behaviour]:
    """Those of the nightly size: what is no answer, in the place of every other answer."""
    for what, code in {
        "route": ROUTE,
        "pull": PULL,
        "heartbeat": HEARTBEAT,
        "query": QUERY,
        "lock": LOCK,
    }.items():
        for name, answer in FRAMES.items():
            yield Behaviour(f"a {what}'s answer {name}", code, answer, orderly=code == LOCK)


# --- requests of servers --------------------------------------------------------------------------

_EVIL_RECORD = encode_stored(evil())

_INFLATES_TO_8_MIB: Final = encode_stored(
    StoredMessage(
        TOPIC, zlib.compress(bytes(8 * 1024 * 1024), 9), sys_flag=SysFlag.COMPRESSED | SysFlag.ZLIB
    )
)
QUESTIONS: Final[dict[str, RemotingCommand]] = {
    "asks for a code that nobody knows": RemotingCommand(987_654, {}, b"x"),
    "asks for a negative code": RemotingCommand(-1),
    "resets a group that is not here": RemotingCommand(
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        {"topic": TOPIC, "group": "others", "timestamp": "0", "isForce": "true"},
        b'{"offsetTable":{}}',
    ),
    "resets our group with noise": RemotingCommand(
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        {"topic": TOPIC, "group": GROUP, "timestamp": "0", "isForce": "true"},
        b"\xff\xfe",
    ),
    "resets a queue of another topic": RemotingCommand(
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        {"topic": TOPIC, "group": GROUP, "timestamp": "0", "isForce": "true"},
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"Secret"}:0}}',
    ),
    "resets without saying what": RemotingCommand(RequestCode.RESET_CONSUMER_CLIENT_OFFSET),
    "asks how a group is that is not here": RemotingCommand(
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        {"consumerGroup": "others", "clientId": "x", "jstackEnable": "true"},
    ),
    "asks how nobody is": RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO),
    "asks where a group stands that is not here": RemotingCommand(
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        {"topic": TOPIC, "group": "others", "clientAddr": "x"},
    ),
    "has a listener called with noise": RemotingCommand(
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        {"consumerGroup": GROUP, "clientId": "x", "brokerName": "broker-a"},
        b"\xff" * 100,
    ),
    "has a listener called with a wrong checksum": RemotingCommand(
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        {"consumerGroup": GROUP, "clientId": "x", "brokerName": "broker-a"},
        wrong_crc(),
    ),
    "has a listener of another group called": RemotingCommand(
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        {"consumerGroup": "others", "clientId": "x", "brokerName": "broker-a"},
        _EVIL_RECORD,
    ),
    "checks a transaction of somebody else": RemotingCommand(
        RequestCode.CHECK_TRANSACTION_STATE,
        {"tranStateTableOffset": "1", "commitLogOffset": "1", "msgId": "x", "transactionId": "x"},
        _EVIL_RECORD,
    ),
    "checks a transaction with forty bombs": RemotingCommand(
        RequestCode.CHECK_TRANSACTION_STATE,
        {"tranStateTableOffset": "1", "commitLogOffset": "1", "msgId": "x", "transactionId": "x"},
        _INFLATES_TO_8_MIB * 40,
    ),
    "has a listener called with forty bombs": RemotingCommand(
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        {"consumerGroup": GROUP, "clientId": "x", "brokerName": "broker-a"},
        _INFLATES_TO_8_MIB * 40,
    ),
    "checks a transaction that is noise": RemotingCommand(
        RequestCode.CHECK_TRANSACTION_STATE,
        {"tranStateTableOffset": "1", "commitLogOffset": "1"},
        b"\xff" * 50,
    ),
    "checks a transaction without saying which": RemotingCommand(
        RequestCode.CHECK_TRANSACTION_STATE
    ),
    "brings a reply that nobody waits for": RemotingCommand(
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
        {
            "bornHost": "127.0.0.1:1",
            "storeHost": "127.0.0.1:1",
            "storeTimestamp": "0",
            "producerGroup": "p",
            "topic": "r",
            "properties": "CORRELATION_ID\x01x\x02",
        },
        b"evil",
    ),
    "brings a reply that is nothing": RemotingCommand(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT),
    "says that members changed, of whom it does not say": RemotingCommand(
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    ),
    "asks for what only brokers serve": RemotingCommand(
        RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": GROUP}
    ),
}

__all__ = ["QUESTIONS", "Behaviour", "behaviours", "more_behaviours"]
