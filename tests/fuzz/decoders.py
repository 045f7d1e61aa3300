"""Everything that reads bytes from elsewhere, as functions of bytes: each returns, or raises what
is a fault of ours.

What a decoder may raise for bad input is caught here; where it has an inverse, what was read is
written and read again.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pyspark.sql.types import StructType

from ogive.access.user_table import _is_access_table
from ogive.broker.config import BrokerConfig
from ogive.broker.deferred.timer_properties import read_handle
from ogive.broker.startup import Machine, open_all
from ogive.broker.state.queue_locks import QueueLocks
from ogive.cli import config_file
from ogive.cli.parser import build_parser
from ogive.client.consumer.offset_store import read_offsets
from ogive.errors import InvalidExpression, InvalidOption, ProtocolError, StoreError
from ogive.model import MessageExt, MessageQueue
from ogive.namesrv.kv_config import KvConfig
from ogive.spark.compat import arrow_schema
from ogive.spark.decode import RecordDecoder
from ogive.spark.schema import MESSAGE_COLUMNS, METADATA_COLUMNS
from ogive.sql92 import EvaluationError, compile_expression
from ogive.store import JsonTable, MessageStore
from ogive.store.record import read_record, strip_crc
from ogive.transport.monitoring import PageServer, Response
from ogive.wire import headers, java_json, trace
from ogive.wire.bodies import acls, clients, configs, routes, stats
from ogive.wire.bodies.clients import SubscriptionData
from ogive.wire.bodies.routes import RegisterBrokerBody
from ogive.wire.codes import SysFlag
from ogive.wire.command import FrameDecoder, decode_command, encode_command
from ogive.wire.compression import decompress
from ogive.wire.headers.codec import Header, decode_header, encode_header
from ogive.wire.message import (
    decode_batch,
    decode_messages,
    decode_properties,
    decode_stored,
    encode_batch,
    encode_properties,
    encode_stored,
    parse_offset_message_id,
    raw_property,
)
from tests.chaos.recorder import MemoryFs
from tests.stores import Clock, Driver, InlineWriter, message, read_queue, run_now, small

ROOT: Final = Path("/store")
MAX_INFLATED: Final = 1024 * 1024


def frames(data: bytes) -> None:
    """The first byte says how the rest is cut on its way."""
    step, stream = 1 + data[0] if data else 1, data[1:]
    whole, fault = FrameDecoder().feed(stream)
    pieces, decoder, later = [], FrameDecoder(), None
    for at in range(0, len(stream), step):
        found, later = decoder.feed(stream[at : at + step])
        pieces += found
        if later is not None:
            break
    assert pieces == whole
    assert (fault is None) == (later is None)


def command(data: bytes) -> None:
    """A frame without its length, and the header that its code declares."""
    with suppress(ProtocolError):
        read = decode_command(data)
        # what was read leniently may be too long to be written
        with suppress(ProtocolError):
            assert decode_command(encode_command(read)[4:]) == read
        for kind in REQUESTS.get(read.code, ()):
            header = decode_header(kind, read.ext_fields)
            assert decode_header(kind, encode_header(header)) == header


def record(data: bytes) -> None:
    for crc_from in (0, 2**62):
        found = read_record(data, 0, int.from_bytes(data[28:36]), crc_from)
        assert found is None or found.size <= len(data)
    with suppress(ProtocolError):
        stored = decode_stored(data)
        encode_stored(stored)
    with suppress(ProtocolError):
        for one in decode_messages(data):
            use(one)
    with suppress(ProtocolError):
        decode_messages(data, check_crc=False)


def use(one: MessageExt) -> None:
    """What an application looks at first."""
    assert str(one)
    _ = one.properties, one.id, one.tag, one.keys, one.born_host, one.store_timestamp_ms


def columns(data: bytes) -> None:
    """Records as Spark reads them."""
    with suppress(ProtocolError):
        for found in COLUMNS.batches(data, MessageQueue("T", "broker-a", 0)):
            found.validate(full=True)


def put(data: bytes) -> None:
    """Messages with these properties, stored with others, found by key and read again; without a
    checksum of another record.
    """
    with Driver(small(ROOT, **SIZES), MemoryFs(None, {Path("/"), ROOT}), threaded=False) as driver:
        for run in ((b"KEYS\x01k\x02", data), (data,)):
            driver.put(*(message(b"body", properties=one) for one in run))
        for key in ("k", "none"):
            list(driver.store.find_key("T", key, 0, 2**62))
        kept = strip_crc(data)
        assert [one.properties.startswith(kept) for one in driver.read_all()][1:] == [True, True]


def batch(data: bytes) -> None:
    with suppress(ProtocolError):
        items = decode_batch(data)
        assert decode_batch(encode_batch(items)) == items


def properties(data: bytes) -> None:
    read = decode_properties(data)
    for name in read:
        raw_property(data, name.encode())
    with suppress(ProtocolError):
        assert decode_properties(encode_properties(read)) == read


def bodies_of_all_kinds(data: bytes) -> None:
    """The first byte chooses the kind."""
    if data:
        with suppress(ProtocolError):
            BODIES[data[0] % len(BODIES)](data[1:])


def registration(data: bytes) -> None:
    for compressed in (False, True):
        with suppress(ProtocolError):
            RegisterBrokerBody.decode(data, compressed=compressed, max_inflated_bytes=MAX_INFLATED)


def json_of_java(data: bytes) -> None:
    with suppress(ProtocolError):
        json.dumps(java_json.loads(data), skipkeys=True).encode()


def inflate(data: bytes) -> None:
    """The first byte chooses the compression."""
    with suppress(ProtocolError):
        assert (
            len(decompress(data[1:], (data[0] if data else 0) % 8 << 8 | 1, MAX_INFLATED))
            <= MAX_INFLATED
        )


def sql92(data: bytes) -> None:
    with suppress(InvalidExpression):
        wanted = compile_expression(data.decode("utf-8", "surrogateescape"))
        for known in PROPERTIES:
            with suppress(EvaluationError):
                wanted(known)


def tags(data: bytes) -> None:
    subscription = SubscriptionData.of_tags("T", data.decode("utf-8", "replace"))
    assert (
        SubscriptionData.from_json(json.loads(json.dumps(subscription.to_json()))).tags
        == subscription.tags
    )


def words(data: bytes) -> None:
    """Texts of a line: recall handles, message ids."""
    text = data.decode("utf-8", "surrogateescape")
    with suppress(ValueError):
        read_handle(text)
    with suppress(ProtocolError, ValueError):
        parse_offset_message_id(text)
    with suppress(ProtocolError):
        trace.decode_trace(data)


def settings(data: bytes) -> None:
    """ogive.toml and broker.conf; the first byte chooses."""
    name = "broker.conf" if data[:1] < b"\x80" else "ogive.toml"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data[1:])
        with suppress(InvalidOption):
            config_file.read(str(path), UP)


def page(data: bytes) -> None:
    """The head of an HTTP request."""
    answer = b""
    try:
        PAGES._answer(data).send(None)
    except StopIteration as done:
        # at once: it waits for nothing
        answer = done.value
    assert answer.startswith(b"HTTP/1.1 ")


def access_file(data: bytes) -> None:
    JsonTable(
        MemoryFs({ROOT / "access.json": bytearray(data)}, {ROOT}),
        ROOT / "access.json",
        valid=_is_access_table,
        now=lambda: 0,
    ).load()


def settings_of_name_server(data: bytes) -> None:
    KvConfig(ROOT / "kv.json", fs=MemoryFs({ROOT / "kv.json": bytearray(data)}, {ROOT})).namespace(
        "x"
    )


def local_offsets(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "offsets.json").write_bytes(data)
        read_offsets(Path(folder) / "offsets.json")


def store_files(data: bytes) -> None:
    """The first byte chooses a file of a broker's directory; what follows stands in it, or is laid
    over it where the next bytes say.
    """
    if len(data) < 4:
        return
    path = FILES[data[0] % len(FILES)]
    fs = BASE.copy()
    content, at = fs.names[path].data, int.from_bytes(data[2:4])
    if data[1] < 0x80 or path.suffix == ".json":
        content[:] = data[2:]
    else:
        content[at % (len(content) + 1) : at % (len(content) + 1) + len(data) - 4] = data[4:]
    with suppress(StoreError, ProtocolError):
        opened = open_all(CONFIG, Machine(fs=fs, writer=InlineWriter, store=SIZES))
        QueueLocks(60.0, 1000, lambda: 0.0, opened.locks_file, CONFIG.name).load(opened.locks)
        for topic, queue_id in list(opened.store.queues):
            read_queue(opened.store, topic, queue_id)
        for key in ("k", "none"):
            list(opened.store.find_key("T", key, 0, 2**62))
        opened.offsets.snapshot()()
        opened.store.close()


def _store() -> MemoryFs:
    """What a broker left that was killed: messages with keys, delays, transactions, tables, a topic
    of batches.
    """
    fs = MemoryFs(None, {Path("/"), ROOT})
    clock = Clock()
    batched = {
        "B": {
            "topicName": "B",
            "readQueueNums": 1,
            "writeQueueNums": 1,
            "perm": 6,
            "attributes": {"queue.type": "BatchCQ"},
        }
    }
    topics = {"T": {"topicName": "T", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}}
    JsonTable(fs, ROOT / "config" / "topics.json").save({"topicConfigTable": topics | batched})
    store = MessageStore.open(small(ROOT, segment_bytes=4096, **SIZES), fs=fs, clock_ms=clock)
    store.start(run_now, writer=InlineWriter)
    for number in range(40):
        clock.now_ms += 10
        store.put(
            [
                message(
                    b"%d" % number * 40,
                    "TU"[number % 2],
                    properties=b"UNIQ_KEY\x01%d\x02KEYS\x01k\x02" % number,
                )
            ],
            lambda _: None,
        )
    waits = b"UNIQ_KEY\x01a\x02DELAY\x013\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
    timed = b"TIMER_OUT_MS\x011800000000000\x02" + waits.replace(b"DELAY\x013\x02", b"")
    half = b"PGROUP\x01P\x02TRAN_MSG\x01true\x02" + waits.replace(b"DELAY\x013\x02", b"")
    for topic, text in (
        ("SCHEDULE_TOPIC_XXXX", waits),
        ("rmq_sys_wheel_timer", timed),
        ("RMQ_SYS_TRANS_HALF_TOPIC", half),
    ):
        store.put([message(b"waits", topic, properties=text)], lambda _: None)
    for number in range(20):
        whole = encode_batch([(0, b"%d" % each, b"") for each in range(1 + number % 4)])
        text = b"UNIQ_KEY\x01%d\x02INNER_NUM\x01%d\x02" % (number, 1 + number % 4)
        store.put(
            [
                message(
                    whole, "B", properties=text, sys_flag=SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
                )
            ],
            lambda _: None,
        )
    store.close()
    tables: dict[str, dict[str, Any]] = {
        "consumerOffset": {"dataVersion": {}, "offsetTable": {"T@G": {"0": 5, "1": 7}}},
        "delayOffset": {"offsetTable": {"3": 1}},
        "subscriptionGroup": {
            "subscriptionGroupTable": {"G": {"groupName": "G", "retryMaxTimes": 16}}
        },
        "queueLocks": {"locks": {"G": {"T@0": {"client": "c", "until": 5.0}}}},
        "retention": {"boot": "b", "at": 1.0, "elapsed": 2.0, "fullAt": {"0": 1.0}},
        "timerProgress": {"low": 0, "end": 1, "settledMs": 5, "timercheck": "00"},
    }
    for name, table in tables.items():
        JsonTable(fs, ROOT / "config" / f"{name}.json").save(table)
    return fs


def _requests() -> dict[int, list[type[Header]]]:
    found: dict[int, list[type[Header]]] = {}
    for kind in vars(headers).values():
        if (
            isinstance(kind, type)
            and issubclass(kind, Header)
            and kind is not Header
            and hasattr(kind, "code")
        ):
            found.setdefault(int(kind.code), []).append(kind)
    return found


def _loaders(module: Any) -> Iterator[Callable[[bytes], Any]]:
    own = {n: v for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__}
    for name, value in sorted(own.items()):
        if name.endswith("_loads") and not name.startswith("_"):
            yield value
        elif isinstance(value, type) and name != "RegisterBrokerBody":
            if hasattr(value, "decode"):
                yield value.decode
            elif hasattr(value, "from_json"):
                yield partial(_from_json, value)


def _from_json(kind: Any, raw: bytes) -> None:
    kind.from_json(java_json.loads(raw))


REQUESTS: Final = _requests()
BODIES: Final = tuple(
    loader for module in (acls, clients, configs, routes, stats) for loader in _loaders(module)
)
PROPERTIES: Final[tuple[Mapping[str, str], ...]] = (
    {},
    {"a": "1", "b": "2.5", "c": "x", "TAGS": "t"},
    {"a": "", "b": "9" * 30},
)
SIZES: Final[dict[str, Any]] = {"index_slots": 16, "consume_queue_file_bytes": 20 * 8}
CONFIG: Final = BrokerConfig(data=ROOT, segment_bytes=4096)
BASE: Final = _store()
FILES: Final = sorted(path for path in BASE.names if path.name not in ("lock", "abort"))
UP: Final = build_parser().parse_args(["up"]).command_parser
COLUMNS: Final = RecordDecoder(arrow_schema(StructType([*MESSAGE_COLUMNS, *METADATA_COLUMNS])))
PAGES: Final = PageServer({"/metrics": lambda: Response(200, "x")}, host="127.0.0.1", port=0)

DECODERS: Final[Mapping[str, Callable[[bytes], None]]] = MappingProxyType(
    {
        "access-file": access_file,
        "batch": batch,
        "bodies": bodies_of_all_kinds,
        "columns": columns,
        "command": command,
        "frames": frames,
        "inflate": inflate,
        "java-json": json_of_java,
        "kv-file": settings_of_name_server,
        "local-offsets": local_offsets,
        "page": page,
        "properties": properties,
        "put": put,
        "record": record,
        "registration": registration,
        "settings": settings,
        "sql92": sql92,
        "store-files": store_files,
        "tags": tags,
        "words": words,
    }
)
