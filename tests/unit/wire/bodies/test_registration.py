"""What brokers tell name servers of their topics."""

import zlib

import pytest

from ogive.errors import ProtocolError
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


def test_a_cluster_without_a_list_of_members_has_none() -> None:
    assert ClusterInfo.decode(b'{"clusterAddrTable":{"C":null,"D":["a"]}}').clusters == {
        "C": (),
        "D": ("a",),
    }
    with pytest.raises(ProtocolError, match="member C is no list"):
        ClusterInfo.decode(b'{"clusterAddrTable":{"C":5}}')
