"""What a peer may say of itself."""

import json

import pytest

from ogive.wire.codes import LanguageCode
from ogive.wire.command import RemotingCommand, decode_command, encode_command


@pytest.mark.parametrize("language", [99, -1, "COBOL", None, [], 1 << 40])
def test_a_language_that_nobody_knows_is_another_one(language: object) -> None:
    header = json.dumps({"code": 34, "language": language, "opaque": 1, "flag": 0, "version": 0}).encode()
    command = decode_command(len(header).to_bytes(4) + header)
    assert command.language == LanguageCode.OTHER
    assert decode_command(encode_command(command)[4:]) == command  # it can be passed on


def test_a_language_that_nobody_knows_is_another_one_in_a_binary_header_too() -> None:
    frame = encode_command(RemotingCommand(34, language=99, serialize_type=1))
    assert decode_command(frame[4:]).language == LanguageCode.OTHER
