"""Frames and records written by Apache 5.5.0's own classes, and conversations recorded between
Apache's programs.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ogive.wire.codes import LanguageCode, SerializeType
from ogive.wire.command import FrameDecoder, decode_command, encode_command
from ogive.wire.message import (
    StoredMessage,
    decode_batch,
    decode_messages,
    decode_properties,
    decode_stored,
    encode_batch,
    encode_host,
    encode_stored,
    java_hash,
    offset_message_id,
    parse_offset_message_id,
)

VECTORS = Path(__file__).parents[2] / "vectors"


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (VECTORS / name).read_text(encoding="utf-8").splitlines()]


FRAMES = lines("frames.jsonl")
MESSAGES = lines("messages.jsonl")
RECORDS = [m for m in MESSAGES if "stored" in m]
CONVERSATIONS = lines("conversations.jsonl")


@pytest.mark.feature(118)
@pytest.mark.parametrize("vector", FRAMES, ids=lambda v: f"{v['name']}-{v['codec']}")
def test_frame_of_apache_is_read_and_written_again_byte_for_byte(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["frame"])
    (frame,), fault = FrameDecoder().feed(raw)
    command = decode_command(frame)
    assert fault is None
    assert (command.code, command.opaque, command.version) == (
        vector["code"],
        vector["opaque"],
        vector["version"],
    )
    assert LanguageCode(command.language).name == vector["language"]
    assert command.remark == vector["remark"]
    assert command.ext_fields == vector["fields"]
    assert command.body == (bytes.fromhex(vector["body"]) if vector["body"] else b"")
    assert SerializeType(command.serialize_type).name == vector["codec"]
    assert encode_command(command) == raw


@pytest.mark.parametrize("vector", RECORDS, ids=lambda v: v["name"])
def test_record_of_apache_is_read_and_written_again_byte_for_byte(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["stored"])
    record = decode_stored(raw)
    assert record.topic == vector["topic"]
    assert record.body == bytes.fromhex(vector["body"])
    assert decode_properties(record.properties) == vector["properties"]
    for name in (
        "queue_id",
        "flag",
        "queue_offset",
        "commitlog_offset",
        "reconsume_times",
        "body_crc",
        "prepared_transaction_offset",
    ):
        assert getattr(record, name) == vector[name], name
    assert record.born_timestamp_ms == vector["born_timestamp"]
    assert record.store_timestamp_ms == vector["store_timestamp"]
    assert record.born_host == encode_host(vector["host"], vector["born_port"])
    assert offset_message_id(record.store_host, record.commitlog_offset) == vector["offset_msg_id"]
    assert encode_stored(record) == raw
    (message,) = decode_messages(raw, "broker-a")
    assert message.offset_id == vector["offset_msg_id"]
    assert parse_offset_message_id(message.offset_id) == (
        message.store_host,
        message.commitlog_offset,
    )


def test_bodies_compressed_by_apache() -> None:
    compressed = [m for m in MESSAGES if m["name"].startswith("compressed")]
    assert len(compressed) == 3
    for vector in compressed:
        stored = encode_stored(
            StoredMessage("T", bytes.fromhex(vector["compressed"]), sys_flag=vector["sys_flag"])
        )
        (message,) = decode_messages(stored)
        assert (message.body, message.is_compressed, message.sys_flag) == (
            bytes.fromhex(vector["body"]),
            False,
            0,
        )


def test_batch_of_apache() -> None:
    (vector,) = [m for m in MESSAGES if m["name"].startswith("batch")]
    raw = bytes.fromhex(vector["encoded"])
    items = decode_batch(raw)
    assert [item.body.decode() for item in items] == vector["bodies"]
    assert [item.properties.decode() for item in items] == vector["properties"]
    assert encode_batch(items) == raw


def test_java_string_hash_also_outside_the_basic_plane() -> None:
    hashes = [m for m in MESSAGES if m["name"] == "tag hash"]
    assert len(hashes) == 7
    for vector in hashes:
        assert java_hash(vector["tag"]) == vector["hash"]


@pytest.mark.parametrize("side", ["request", "response"])
def test_every_recorded_header_is_read_and_survives_both_codecs(side: str) -> None:
    """93 conversations of Apache's servers with their Java client, benchmark programs, mqadmin and
    the C++ client.
    """
    seen: Counter[str] = Counter()
    for conversation in CONVERSATIONS:
        recorded = conversation.get(side)
        if not recorded or "header_text" not in recorded:
            continue
        seen[recorded.get("language", "?")] += 1
        header = recorded["header_text"].encode()
        command = decode_command(len(header).to_bytes(4) + header)
        assert command.code == recorded["code"]
        assert command.opaque == recorded["opaque"]
        expected = {
            name: _java_text(value) for name, value in (recorded.get("extFields") or {}).items()
        }
        assert command.ext_fields == expected
        again = decode_command(encode_command(command)[4:])
        assert (again.code, again.opaque, again.ext_fields, again.flag) == (
            command.code,
            command.opaque,
            expected,
            command.flag,
        )
        if command.code < 0x8000 and all(expected.values()):
            command.serialize_type = SerializeType.ROCKETMQ
            assert decode_command(encode_command(command)[4:]).ext_fields == expected
    assert seen["JAVA"] > 20
    assert side == "response" or seen["CPP"] > 0


def _java_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
