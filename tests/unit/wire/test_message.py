"""Where a pull answer stops being messages, and what stands before that."""

import sys
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from ogive.errors import ProtocolError
from ogive.wire import message as wire
from ogive.wire.codes import SysFlag
from ogive.wire.compression import compress
from ogive.wire.message import (
    NoRecord,
    StoredMessage,
    decode_messages,
    decode_properties,
    decode_some,
    encode_batch,
    encode_stored,
    offset_message_id,
    raw_property,
    unwrap,
)

Change = Callable[[bytearray], object]
LAST: dict[str, Change] = {
    "declares more bytes than there are": lambda record: record.__setitem__(3, record[3] + 1),
    "declares fewer bytes than it has": lambda record: record.__setitem__(3, record[3] - 1),
    "declares no bytes": lambda record: record.__setitem__(slice(4), bytes(4)),
    "has another magic": lambda record: record.__setitem__(4, 0),
    "has a body that ends behind it": lambda record: record.__setitem__(84, 1),
    "has a topic that is not text": lambda record: record.__setitem__(-3, 0xFF),
    "is cut off": lambda record: record.__delitem__(slice(-1, None)),
    "is the first bytes of one": lambda record: record.__delitem__(slice(7, None)),
}


@pytest.mark.parametrize("change", LAST.values(), ids=list(LAST))
def test_what_stands_before_bytes_that_are_no_message_is_known(change: Change) -> None:
    whole = [encode_stored(StoredMessage("T", b"body", queue_offset=offset)) for offset in range(3)]
    last = bytearray(whole[-1])
    change(last)
    with pytest.raises(NoRecord) as caught:
        decode_messages(b"".join(whole[:-1]) + last, "broker-a")
    assert [message.queue_offset for message in caught.value.intact] == [0, 1]
    assert isinstance(caught.value, ProtocolError)
    assert str(caught.value)


def test_bodies_behind_too_many_inflated_bytes_stay_compressed_and_say_so() -> None:
    """Megabytes of compressed bodies, one answer, may be gigabytes in memory."""
    answer = b"".join(
        encode_stored(
            StoredMessage("T", zlib.compress(b"%d" % n * 1000), sys_flag=SysFlag.COMPRESSED)
        )
        for n in range(4)
    )
    found = decode_messages(answer, max_inflated_bytes=1500)
    assert [(len(message.body), message.is_compressed) for message in found[:2]] == [
        (1000, False)
    ] * 2
    assert [(message.body, message.is_compressed) for message in found[2:]] == [
        (zlib.compress(b"%d" % n * 1000), True) for n in (2, 3)
    ]
    assert not any(message.is_compressed for message in decode_messages(answer))


# --- batches that brokers keep as one record ------------------------------------------------------

ITEMS = [(n, b"body %d" % n, b"UNIQ_KEY\x01K%d\x02TAGS\x01t%d\x02" % (n, n)) for n in range(3)]


def batch(
    offset: int = 7, body: bytes | None = None, said: str = "3", **fields: int | bytes
) -> bytes:
    body = encode_batch(ITEMS) if body is None else body
    properties = b"UNIQ_KEY\x01OUTER\x02INNER_NUM\x01%b\x02INNER_BASE\x01%d\x02" % (
        said.encode(),
        offset,
    )
    more: dict[str, Any] = {"queue_offset": offset, "sys_flag": 0xC0, "flag": 9} | fields
    return encode_stored(
        StoredMessage(
            "T",
            body,
            properties,
            2,
            **more,
        )
    )


def test_a_record_that_holds_a_batch_becomes_its_messages_in_order() -> None:
    plain = encode_stored(StoredMessage("T", b"plain", queue_id=2, queue_offset=10))
    messages, end = decode_some(batch(commitlog_offset=500, reconsume_times=1) + plain, "broker-a")
    assert end == len(batch()) + len(plain)
    assert [(m.queue_offset, m.body, m.flag, m.id, m.tag) for m in messages[:3]] == [
        (7 + n, b"body %d" % n, n, f"K{n}", f"t{n}") for n in range(3)
    ]
    assert {
        (m.commitlog_offset, m.reconsume_times, m.sys_flag, m.queue.queue_id) for m in messages[:3]
    } == {(500, 1, SysFlag.INNER_BATCH, 2)}
    assert (messages[3].queue_offset, messages[3].body, messages[3].sys_flag) == (10, b"plain", 0)


@pytest.mark.parametrize("flags", [SysFlag.NEED_UNWRAP, SysFlag.INNER_BATCH])
def test_one_flag_alone_makes_no_batch(flags: int) -> None:
    """As for Apache's client."""
    ((message,), _) = decode_some(batch(sys_flag=flags))
    assert (message.body, message.sys_flag) == (encode_batch(ITEMS), flags)


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_a_compressed_batch_is_inflated_first(kind: str) -> None:
    packed, flags = compress(encode_batch(ITEMS), kind)  # type: ignore[arg-type]
    messages, _ = decode_some(batch(body=packed, sys_flag=0xC0 | flags))
    assert [(m.body, m.is_compressed, m.sys_flag) for m in messages] == [
        (body, False, SysFlag.INNER_BATCH) for _, body, _ in ITEMS
    ]


def test_a_look_up_by_id_gives_the_record_as_it_is() -> None:
    """As Apache's tools do: it is what the id names."""
    (message,) = decode_messages(batch())
    assert (message.id, message.body, message.sys_flag) == ("OUTER", encode_batch(ITEMS), 0xC0)


BROKEN = {
    "a count that is another": (batch(said="4"), "holds 3 messages, and its INNER_NUM is b'4'"),
    "a count that is not a number": (batch(said="x" * 999), "INNER_NUM is b'xxx"),
    "a huge count": (batch(said="9" * 4000), "INNER_NUM is b'999"),
    "nothing": (batch(body=b"", said="0"), "holds no message"),
    "no batch": (
        batch(body=b"what is this, then? It is long enough"),
        "cannot be read: batch item of",
    ),
    "a part of one": (batch(body=encode_batch(ITEMS)[:-1]), "cannot be read: batch item of"),
    "an item of no bytes": (batch(body=bytes(22)), "cannot be read: batch item of 0 bytes"),
    "too many": (
        batch(body=encode_batch([(0, b"", b"")] * 32768), said="32768"),
        "cannot be read: batch holds more than 32767",
    ),
    "compressed bytes that are none": (batch(sys_flag=0xC1), "cannot be read: "),
    "a bomb": (
        batch(body=zlib.compress(bytes(64 * 1024 * 1024)), sys_flag=0xC1),
        "cannot be read: .*inflates to more than",
    ),
}


@pytest.mark.parametrize(("record", "why"), BROKEN.values(), ids=list(BROKEN))
def test_a_batch_that_cannot_be_unwrapped_is_no_record(record: bytes, why: str) -> None:
    with pytest.raises(
        NoRecord, match=f"the batch at T/2/7 {why}" if why.startswith(("holds", "cannot")) else why
    ) as caught:
        decode_some(batch(4) + record + batch(10))
    assert [message.queue_offset for message in caught.value.intact] == [4, 5, 6]


def test_a_batch_whose_compression_has_no_library_here_is_no_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits until there is one: nobody can tell what it holds."""
    packed, flags = compress(encode_batch(ITEMS), "zstd")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(NoRecord, match=r"pip install 'ogive\[compression\]'"):
        decode_some(batch(body=packed, sys_flag=0xC0 | flags))


def test_many_batches_in_one_answer_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A MiB of empty messages would be a hundred in memory."""
    monkeypatch.setattr(wire, "MAX_INNER_MESSAGES", 4)
    messages, end = decode_some(batch(0) + batch(3) + batch(6))
    assert [m.queue_offset for m in messages] == [0, 1, 2, 3, 4, 5]
    assert end == 2 * len(batch())


def test_a_stored_record_is_unwrapped_the_same_way() -> None:
    found = unwrap(wire.decode_stored(batch()))
    assert [(r.queue_offset, r.flag, r.body, r.properties, r.sys_flag) for r in found] == [
        (7 + n, *ITEMS[n], 0x80) for n in range(3)
    ]


def test_the_id_of_a_record_is_told_whatever_its_offset_says() -> None:
    """A broker can answer with any bytes."""
    assert offset_message_id(bytes(8), -1) == "0" * 16 + "F" * 16


def test_of_several_properties_of_one_name_the_last_counts_everywhere() -> None:
    raw = b"UNIQ_KEY\x01own\x02XUNIQ_KEY\x01other\x02UNIQ_KEY\x01of the batch\x02"
    assert raw_property(raw, b"UNIQ_KEY") == b"of the batch"
    assert decode_properties(raw)["UNIQ_KEY"] == "of the batch"
    assert raw_property(b"UNIQ_KEY\x01a", b"UNIQ_KEY") == b"a"
    assert raw_property(b"XUNIQ_KEY\x01a", b"UNIQ_KEY") is None
