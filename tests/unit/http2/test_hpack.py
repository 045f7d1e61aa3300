"""Header compression, with hpack from PyPI as the other side."""

import hpack as peer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogive.http2.hpack import HpackDecoder, HpackError, encode

ROOM = 1024 * 1024
HEADERS = st.lists(
    st.tuples(
        st.sampled_from([b"x-mq-client-id", b"grpc-timeout", b":status", b"te"])
        | st.binary(min_size=1, max_size=30),
        st.sampled_from([b"", b"200", b"trailers", b"3S"]) | st.binary(max_size=300),
    ),
    max_size=12,
)


@given(st.lists(st.tuples(HEADERS, st.booleans()), max_size=8), st.sampled_from([0, 80, 4096]))
def test_what_the_peer_encodes_is_decoded(
    blocks: list[tuple[list[tuple[bytes, bytes]], bool]], table_bytes: int
) -> None:
    """Static and dynamic entries, literals, Huffman codes, tables of other sizes."""
    encoder, decoder = peer.Encoder(), HpackDecoder(ROOM)
    encoder.header_table_size = table_bytes
    for headers, huffman in blocks:
        assert decoder.decode(encoder.encode(headers, huffman=huffman)) == headers


@given(st.lists(HEADERS, max_size=4))
def test_the_peer_decodes_what_is_encoded(blocks: list[list[tuple[bytes, bytes]]]) -> None:
    decoder = peer.Decoder()
    for headers in blocks:
        assert [tuple(one) for one in decoder.decode(encode(headers), raw=True)] == headers


@given(st.binary(max_size=200))
def test_garbage_raises_nothing_but_an_hpack_error(block: bytes) -> None:
    decoder = HpackDecoder(ROOM)
    for _ in range(2):
        try:
            decoder.decode(block)
        except HpackError:
            return


@given(st.binary(min_size=1, max_size=100))
def test_huffman_text_decodes_as_at_the_peer(text: bytes) -> None:
    """Also texts that end in the middle of a code, or contain the code of the end."""
    block = b"\x00\x01x" + peer.hpack.encode_integer(len(text), 7) + text
    block = block[:3] + bytes([block[3] | 0x80]) + block[4:]
    ours: object
    theirs: object
    try:
        ours = HpackDecoder(ROOM).decode(block)
    except HpackError:
        ours = None
    try:
        theirs = [tuple(one) for one in peer.Decoder().decode(block, raw=True)]
    except peer.HPACKError:
        theirs = None
    assert ours == theirs


def test_examples_of_the_standard() -> None:
    """RFC 7541, C.4: three requests with Huffman codes on one connection."""
    decoder = HpackDecoder(ROOM)
    first = [
        (b":method", b"GET"),
        (b":scheme", b"http"),
        (b":path", b"/"),
        (b":authority", b"www.example.com"),
    ]
    assert decoder.decode(bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff")) == first
    second = [*first, (b"cache-control", b"no-cache")]
    assert decoder.decode(bytes.fromhex("828684be5886a8eb10649cbf")) == second


def test_a_bomb_stops_at_the_limit() -> None:
    """A kilobyte of references to one long entry would become megabytes."""
    decoder = HpackDecoder(64 * 1024)
    decoder.decode(b"\x40\x01x\x7f\xa1\x1e" + bytes(4000))
    with pytest.raises(HpackError, match="more than 65536 bytes"):
        decoder.decode(b"\xbe" * 1024)


@pytest.mark.parametrize(
    ("block", "fault"),
    [
        (b"\x80", "no entry 0"),
        (b"\xbf", "no such entry"),
        (b"\x3f\xe2\x1f", "at most 4096"),
        (b"\x82\x20", "after a header"),
        (b"\xff\x80\x80\x80\x80\x80\x01", "too large"),
        (b"\x00\x05ab", "longer than its block"),
        (b"\x00", "incomplete"),
    ],
)
def test_faults_are_named(block: bytes, fault: str) -> None:
    with pytest.raises(HpackError, match=fault):
        HpackDecoder(ROOM).decode(block)
