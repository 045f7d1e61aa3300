"""What brokers tell name servers of their topics."""

import dataclasses
import zlib

import pytest

from ogive.errors import ProtocolError
from ogive.wire.bodies.configs import DataVersion, TopicConfig
from ogive.wire.bodies.routes import ClusterInfo, RegisterBrokerBody

MAX_BYTES = 1024 * 1024


def compressed(*lines: bytes) -> bytes:
    parts = [b"{}", *lines, b"[]"]
    sized = [len(part).to_bytes(4) + part for part in parts]
    return zlib.compress(b"".join([sized[0], len(lines).to_bytes(4), *sized[1:]]))


def test_attributes_come_along() -> None:
    body = compressed(b'T 4 4 6 SINGLE_TAG {"message.type":"FIFO"}', b"U 1 1 6 SINGLE_TAG ")
    found = RegisterBrokerBody.decode(body, compressed=True, max_inflated_bytes=MAX_BYTES)
    assert {name: topic.attributes for name, topic in found.topics.items()} == {
        "T": {"message.type": "FIFO"},
        "U": {},
    }


@pytest.mark.parametrize(
    "attributes", [b'{"a":1,2:3}', b"{1:1}", b'{"a":{"$ref":"$"}}', b"[]", b"{"]
)
def test_attributes_in_javas_dialect_are_refused(attributes: bytes) -> None:
    """180 values in each of 10,000 lines, 44 KB, kept a name server for nine seconds.

    Java writes plain JSON there.
    """
    with pytest.raises(ProtocolError):
        RegisterBrokerBody.decode(
            compressed(b"T 4 4 6 x " + attributes), compressed=True, max_inflated_bytes=MAX_BYTES
        )


def test_an_attribute_that_is_null_is_empty_in_both_forms() -> None:
    attributes = b'{"message.type":null,"a":7}'
    table = b'{"topicConfigTable":{"T":{"topicName":"T","attributes":' + attributes + b"}}}"
    for body, packed in (
        (compressed(b"T 4 4 6 SINGLE_TAG " + attributes), True),
        (b'{"topicConfigSerializeWrapper":' + table + b"}", False),
    ):
        found = RegisterBrokerBody.decode(body, compressed=packed)
        assert found.topics["T"].attributes == {"message.type": "", "a": "7"}


def test_a_cluster_without_a_list_of_members_has_none() -> None:
    assert ClusterInfo.decode(b'{"clusterAddrTable":{"C":null,"D":["a"]}}').clusters == {
        "C": (),
        "D": ("a",),
    }
    with pytest.raises(ProtocolError, match="member C is not of type list"):
        ClusterInfo.decode(b'{"clusterAddrTable":{"C":5}}')


def test_both_forms_of_a_registration_hold_the_same() -> None:
    body = RegisterBrokerBody(
        data_version=DataVersion(3, 1_700_000_000_000),
        topics={name: TopicConfig(name=name, read_queues=2) for name in ("T", "Ü")},
        filter_servers=("127.0.0.1:1",),
    )
    for packed in (False, True):
        assert body.fits_compressed
        assert RegisterBrokerBody.decode(body.encode(compressed=packed), compressed=packed) == body
    flagged = dataclasses.replace(body, topics={"T": TopicConfig(name="T", sys_flag=1)})
    assert not flagged.fits_compressed
    assert RegisterBrokerBody.decode(flagged.encode(), compressed=False) == flagged


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"plain", "not a zlib stream"),
        (compressed(b"T 4 4 6 x ")[:-8], "ends in the middle, or inflates"),
        (compressed(b"T" * MAX_BYTES), "or inflates to more than"),
        (zlib.compress(b"\0\0"), "ends in the middle of a length"),
        (zlib.compress(b"\0\0\0\x09{}"), "declares 9 bytes where 2 are left"),
        (zlib.compress(b"\0\0\0\x01\xff"), "not UTF-8"),
        (zlib.compress(b"\0\0\0\x02{}\0\xff\0\0"), "over the limit"),
        (compressed(b"T 4 4 6"), "fewer than five words"),
        (compressed(b"T 4 x 6 SINGLE_TAG"), "not a number"),
        (zlib.compress(b"\0\0\0\x02{}\0\0\0\0\0\0\0\x02{}"), "not a list"),
    ],
)
def test_a_spoiled_registration_is_refused(body: bytes, fault: str) -> None:
    with pytest.raises(ProtocolError, match=fault):
        RegisterBrokerBody.decode(body, compressed=True, max_inflated_bytes=MAX_BYTES)
