"""Answers that are written without the command that they stand for."""

from typing import Any

import pytest

from ogive.broker.replies import ONEWAY, reply_success, success
from ogive.wire.command import RemotingCommand, encode_command


class Frames:
    """A connection that keeps what it is answered."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def reply(self, frame: bytes) -> None:
        self.frames.append(frame)


@pytest.mark.parametrize("opaque", [0, 1, 77, 2**31 - 1, -(2**31)])
def test_a_success_without_fields_is_answered_as_any_other_command(opaque: int) -> None:
    link: Any = Frames()
    reply_success(link, RemotingCommand(37, opaque=opaque))
    expected = success()
    expected.opaque = opaque
    assert link.frames == [encode_command(expected)]


def test_a_request_that_wants_no_answer_gets_none() -> None:
    link: Any = Frames()
    reply_success(link, RemotingCommand(37, flag=ONEWAY))
    assert link.frames == []
