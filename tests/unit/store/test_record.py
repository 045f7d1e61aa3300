import zlib
from typing import Any

import pytest

from ogive.store.record import (
    CRC_BYTES,
    NEVER,
    build_record,
    crc_property,
    delay_level,
    fixed_bytes,
    not_standing,
    read_record,
    store_timestamp,
    strip_crc,
    tag_hash,
    topic_field,
)
from ogive.wire.bodies.configs import DelayLevels
from ogive.wire.message import decode_properties, decode_stored, java_hash
from tests.stores import message

V6 = bytes(range(16)) + b"\x00\x00\x2a\x9f"


def built(topic: str = "TopicTest", *, with_crc: bool = True, **fields: object) -> bytes:
    new = message(b"Hello", topic, 3, tag="TagA", **fields)
    field = topic_field(topic.encode())
    hosts = len(new.born_host) + len(new.store_host) - 16
    size = (
        fixed_bytes(field)
        + hosts
        + len(new.body)
        + len(new.properties)
        + (CRC_BYTES if with_crc else 0)
    )
    return build_record(new, field, new.properties, size, 42, 1048576, 1_700_000_000_123, with_crc)


@pytest.mark.parametrize("with_crc", [True, False])
@pytest.mark.parametrize("topic", ["T", "%RETRY%" + "g" * 130])
@pytest.mark.parametrize(
    "hosts", [{}, {"born_host": V6}, {"store_host": V6}, {"born_host": V6, "store_host": V6}]
)
def test_record_is_what_the_wire_layout_says(
    topic: str, hosts: dict[str, bytes], with_crc: bool
) -> None:
    """Built here on the hot path, read by the general decoder, and by the scanner."""
    raw = built(
        topic,
        with_crc=with_crc,
        sys_flag=8,
        flag=5,
        reconsume_times=2,
        prepared_transaction_offset=77,
        **hosts,
    )
    record = decode_stored(raw)
    assert (record.topic, record.queue_id, record.queue_offset, record.commitlog_offset) == (
        topic,
        3,
        42,
        1048576,
    )
    assert (
        record.body,
        record.flag,
        record.reconsume_times,
        record.prepared_transaction_offset,
    ) == (b"Hello", 5, 2, 77)
    assert record.sys_flag == 8 | (0x10 if "born_host" in hosts else 0) | (
        0x20 if "store_host" in hosts else 0
    )
    assert decode_properties(record.properties)["TAGS"] == "TagA"
    assert ("__CRC32#" in decode_properties(record.properties)) is with_crc
    scanned = read_record(b"before" + raw, 6, 1048576, 0 if with_crc else NEVER)
    assert scanned is not None
    assert (scanned.size, scanned.topic.decode(), scanned.queue_offset, scanned.plain) == (
        len(raw),
        topic,
        42,
        not with_crc,
    )
    assert scanned.store_timestamp_ms == store_timestamp(raw) == 1_700_000_000_123


def test_any_changed_bit_is_noticed() -> None:
    raw = built()
    for bit in range(len(raw) * 8):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        assert read_record(bytes(changed), 0, 1048576, 0) is None


def test_body_checksum_counts_where_no_other_is_due() -> None:
    """Records of Apache's broker."""
    raw = bytearray(built(with_crc=False))
    assert read_record(bytes(raw), 0, 1048576, NEVER) is not None
    assert read_record(bytes(raw), 0, 1048576, 0) is None
    raw[raw.index(b"Hello")] ^= 1
    assert read_record(bytes(raw), 0, 1048576, NEVER) is None


def test_a_record_without_properties_is_whole_where_no_checksum_is_due() -> None:
    """Its last byte is that of their length, 0: no sign of a write that was lost."""
    field = topic_field(b"T")
    raw = build_record(
        message(b"Hello", "T"), field, b"", fixed_bytes(field) + 5, 0, 0, 1, with_crc=False
    )
    record = read_record(raw, 0, 0, NEVER)
    assert record is not None
    assert record.properties_at == len(raw)
    assert read_record(raw, 0, 0, 0) is None


def test_checksum_of_another_record_is_no_damage_where_none_is_due() -> None:
    """Apache's broker copies the property when it stores a message again."""
    stale = b"TAGS\x01TagA\x02" + crc_property(5)
    field = topic_field(b"T")
    new = message(b"Hello", "T", properties=stale)
    raw = build_record(
        new, field, stale, fixed_bytes(field) + 5 + len(stale), 0, 0, 1, with_crc=False
    )
    assert read_record(raw, 0, 0, NEVER) is not None
    assert read_record(raw, 0, 0, 0) is None


def test_record_at_another_offset_is_none() -> None:
    """A page copied from elsewhere looks whole, but does not belong there."""
    assert read_record(built(), 0, 1048577, 0) is None


def wanted_stands(
    raw: bytes,
    *,
    queue_id: int = 3,
    queue_offset: int = 42,
    at: int = 1048576,
    size: int = 0,
    topic: str = "TopicTest",
    sound: bool = False,
) -> bool:
    """Whether a queue finds in *raw* the record that its entry speaks of."""
    entry = (at, size or len(raw), queue_offset)
    bad = not_standing(raw, 1048576, [entry], queue_id, topic_field(topic.encode()), 0, sound=sound)
    assert bad in ([], [entry])
    return not bad


@pytest.mark.parametrize("topic", ["TopicTest", "t" * 127, "t" * 128])
@pytest.mark.parametrize("sound", [False, True])
@pytest.mark.parametrize("hosts", [{}, {"born_host": V6}, {"store_host": V6}])
def test_a_record_stands_for_the_queue_it_belongs_to_and_for_no_other(
    topic: str, hosts: dict[str, Any], sound: bool
) -> None:
    raw = built(topic, **hosts)
    assert wanted_stands(raw, topic=topic, sound=sound)
    assert not wanted_stands(raw, topic=topic, sound=sound, queue_id=4)
    assert not wanted_stands(raw, topic=topic, sound=sound, queue_offset=43)
    assert not wanted_stands(raw, topic=topic, sound=sound, size=len(raw) - 1)
    assert not wanted_stands(raw[:-1], topic=topic, sound=sound, size=len(raw))
    assert not wanted_stands(raw, topic=topic[:-1], sound=sound)
    assert not wanted_stands(raw, topic=topic + "s", sound=sound)
    field = topic_field(topic.encode())
    assert not_standing(raw, 1048577, [(1048577, len(raw), 42)], 3, field, 0, sound=sound) != []
    assert (
        not_standing(
            built() + raw,
            1048576 - len(built()),
            [(1048576, len(raw), 42)],
            3,
            field,
            0,
            sound=sound,
        )
        == []
    )


def test_a_record_with_any_changed_bit_does_not_stand() -> None:
    raw = built()
    for bit in range(len(raw) * 8):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        assert not wanted_stands(bytes(changed))


@pytest.mark.parametrize("hosts", [{}, {"born_host": V6}])
def test_a_record_whose_checksum_holds_stands_only_where_read_record_reads_it(
    hosts: dict[str, Any],
) -> None:
    """Bytes that say something impossible, under a checksum that was made for them: the short way
    must know no better.
    """
    raw = built(**hosts)
    lengths = range(84, 88), range(len(raw) - CRC_BYTES - 40, len(raw) - CRC_BYTES)
    verdicts = set()
    for at in (*range(8), *range(36, 40), *(place for part in lengths for place in part)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            whole = bytearray(raw[:-CRC_BYTES])
            whole[at] = value
            whole += crc_property(zlib.crc32(whole) & 0x7FFFFFFF)
            record = read_record(bytes(whole), 0, 1048576, 0)
            reads = record is not None and (record.size, record.topic, record.queue_offset) == (
                len(raw),
                b"TopicTest",
                42,
            )
            assert wanted_stands(bytes(whole)) is reads, (at, value)
            verdicts.add(reads)
    assert verdicts == {True, False}


def forged(**bytes_at: bytes) -> bytes:
    """A record with other bytes from these places on (``at_84``), and a checksum that was made for
    them.
    """
    raw = bytearray(built()[:-CRC_BYTES])
    for name, piece in bytes_at.items():
        at = int(name.removeprefix("at_"))
        raw[at : at + len(piece)] = piece
    return bytes(raw) + crc_property(zlib.crc32(raw) & 0x7FFFFFFF)


def test_lengths_that_lead_out_of_the_record_are_no_error_and_no_record() -> None:
    field = topic_field(b"TopicTest")
    whole = len(built())
    behind = forged(at_84=(whole - 88).to_bytes(4)) + field
    assert read_record(behind, 0, 1048576, 0) is None
    assert not wanted_stands(behind, size=whole)
    # where the time and the host of birth stand
    born = field + (whole - 40 - len(field) - 2).to_bytes(2)
    before = forged(at_40=born, at_84=(40 - 88).to_bytes(4, signed=True))
    assert read_record(before, 0, 1048576, 0) is None
    assert not wanted_stands(before)
    for size in range(100):
        assert not wanted_stands(built()[:size], size=whole)
        assert not wanted_stands(built()[:size], size=10)


def test_crc_digits_come_least_significant_first() -> None:
    """Worked example of the protocol text."""
    assert crc_property(1774740973) == b"__CRC32#\x013790474771\x02"


def test_checksum_covers_all_but_itself() -> None:
    raw = built()
    assert raw[-CRC_BYTES:] == crc_property(zlib.crc32(raw[:-CRC_BYTES]) & 0x7FFFFFFF)


def test_checksum_of_a_former_record_is_dropped() -> None:
    """A retried or delayed message is stored again with the properties that it had."""
    assert strip_crc(b"A\x01b\x02" + crc_property(5)) == b"A\x01b\x02"
    assert strip_crc(b"A\x01b\x02") == b"A\x01b\x02"


@pytest.mark.parametrize(
    ("properties", "tag"),
    [
        (b"TAGS\x01TagA\x02", "TagA"),
        (b"K\x01v\x02TAGS\x01TagA", "TagA"),
        (b"XTAGS\x01no\x02TAGS\x01TagB\x02", "TagB"),
        (b"XTAGS\x01no\x02", ""),
        (b"K\x01TAGS\x02", ""),
        (b"TAGS\x01\x02K\x01v\x02", ""),
        ("TAGS\x01中文\x02".encode(), "中文"),
        (b"", ""),
    ],
)
def test_tag_hash_is_javas(properties: bytes, tag: str) -> None:
    assert tag_hash(properties) == (java_hash(tag) if tag else 0)


def test_delay_level_of_properties() -> None:
    assert delay_level(b"A\x01b\x02DELAY\x013\x02") == 3
    assert delay_level(b"DELAY\x01-1\x02") == 0
    assert delay_level(b"") == 0
    assert DelayLevels.parse().delay_ms(3) == 10_000
