"""What a peer may say of itself."""

import json

import pytest

from ogive.errors import ProtocolError
from ogive.wire.codes import LanguageCode
from ogive.wire.command import RemotingCommand, decode_command, encode_command


@pytest.mark.parametrize("language", [99, -1, "COBOL", None, [], 1 << 40])
def test_a_language_that_nobody_knows_is_another_one(language: object) -> None:
    header = json.dumps(
        {"code": 34, "language": language, "opaque": 1, "flag": 0, "version": 0}
    ).encode()
    command = decode_command(len(header).to_bytes(4) + header)
    assert command.language == LanguageCode.OTHER
    # it can be passed on
    assert decode_command(encode_command(command)[4:]) == command


def test_a_language_that_nobody_knows_is_another_one_in_a_binary_header_too() -> None:
    frame = encode_command(RemotingCommand(34, language=99, serialize_type=1))
    assert decode_command(frame[4:]).language == LanguageCode.OTHER


@pytest.mark.parametrize(
    "number", ["9223372036854775808", "-9223372036854775808", "1e400", "1" * 5000]
)
def test_a_bare_number_beyond_64_bits_is_refused(number: str) -> None:
    header = f'{{"code":34,"extFields":{{"queueId":{number}}}}}'.encode()
    with pytest.raises(ProtocolError, match=r"'queueId' is not a 64-bit number|not JSON"):
        decode_command(len(header).to_bytes(4) + header)


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        (RemotingCommand(34, serialize_type=7), "unknown serialize type 7"),
        (RemotingCommand(34, {"a": "\ud800"}), "cannot be written as UTF-8"),
        (RemotingCommand(34, {"a": "\ud800"}, serialize_type=1), "does not fit the binary header"),
        (RemotingCommand(34, opaque=1 << 40, serialize_type=1), "does not fit the binary header"),
        (RemotingCommand(200_050, serialize_type=1), "send it as JSON"),
        (RemotingCommand(34, {"a": "x" * (256 * 1024)}), "over the limit"),
    ],
)
def test_a_command_that_does_not_fit_the_protocol_is_refused(
    command: RemotingCommand, fault: str
) -> None:
    with pytest.raises(ProtocolError, match=fault):
        encode_command(command)


FIXED = b"\0\x22\0\0\x01" + bytes(8)
"""Of a binary header: code, language, version, opaque and flag."""


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        (FIXED, "of 13 bytes is too short"),
        (FIXED + b"\0\0\0\0" + b"\0\0\0\x09", "extension length 9 does not fit"),
        (FIXED + b"\0\0\0\x09" + b"\0\0\0\0", "remark length 9 does not fit"),
        (FIXED + b"\0\0\0\x01\xff" + b"\0\0\0\0", "not UTF-8"),
        (FIXED + b"\0\0\0\0" + b"\0\0\0\x03\0\1a", "ends in the middle of a field"),
        (
            FIXED + b"\0\0\0\0" + b"\0\0\0\x08\0\1a\0\0\0\x09b",
            "an extension field does not fit the header",
        ),
        (
            FIXED
            + b"\0\0\0\0"
            + (257 * 11).to_bytes(4)
            + b"".join([b"\0\4%04d\0\0\0\1x" % n for n in range(257)]),
            "257 extension fields are over the limit",
        ),
    ],
)
def test_a_spoiled_binary_header_is_refused(header: bytes, fault: str) -> None:
    with pytest.raises(ProtocolError, match=fault):
        decode_command((1 << 24 | len(header)).to_bytes(4) + header)


def test_a_binary_header_holds_a_remark_and_text_of_any_script() -> None:
    command = RemotingCommand(34, {"Ü": "ö", "a": "b"}, b"body", remark="straße", serialize_type=1)
    assert decode_command(encode_command(command)[4:]) == command
