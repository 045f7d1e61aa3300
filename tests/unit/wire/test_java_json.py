"""Text that no UTF-8 can hold comes in by a JSON escape, and would stop every answer that it stands in."""

import pytest

from ogive.errors import ProtocolError
from ogive.wire import java_json
from ogive.wire.command import RemotingCommand, decode_command, encode_command

HALVES = [r"\ud800", r"\uDFFF", r"x\uDe00\ud83d", r"\\\ud800", r"\ud83d\\ude00", r"\ud83d \ude00"]
WHOLES = [r"\ud83d\ude00", r"\\ud800", r"\u00fc", "ü"]


@pytest.mark.parametrize("text", HALVES)
@pytest.mark.parametrize("body", ['{"name":"%s"}', '{"%s":1}', '{0:"%s"}'])
def test_half_a_character_in_a_body_is_a_protocol_error(body: str, text: str) -> None:
    with pytest.raises(ProtocolError, match="half a character"):
        java_json.loads(body % text)


@pytest.mark.parametrize("text", WHOLES)
def test_whole_characters_in_a_body_are_read(text: str) -> None:
    assert java_json.loads(f'"{text}"').encode()


def header(text: str) -> bytes:
    """A frame with *text* as it is in its JSON header, without its length word."""
    frame = encode_command(RemotingCommand(105, {"topic": "?"}))[4:]
    raw = frame[4:].replace(b"?", text.encode())
    return len(raw).to_bytes(4) + raw


@pytest.mark.parametrize("text", HALVES)
def test_half_a_character_in_a_header_is_a_protocol_error(text: str) -> None:
    with pytest.raises(ProtocolError, match="half a character"):
        decode_command(header(text))


@pytest.mark.parametrize("text", WHOLES)
def test_whole_characters_in_a_header_are_read(text: str) -> None:
    assert decode_command(header(text)).ext_fields["topic"].encode()
