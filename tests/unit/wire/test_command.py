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
    with pytest.raises(ProtocolError, match=r"'queueId' is no 64-bit number|no JSON"):
        decode_command(len(header).to_bytes(4) + header)
