"""What the log says of messages that are given up, and how often."""

import pytest

from ogive.client.consumer.send_back import LINES, WINDOW_S, DeadLetters
from tests.unit.client.consumer.test_process_queue import message


def test_many_are_a_few_lines_and_a_number(caplog: pytest.LogCaptureFixture) -> None:
    at = 0.0
    letters = DeadLetters("billing", lambda: at)
    for offset in range(LINES + 5):
        letters.note(message(offset), "no")
    assert len(caplog.messages) == LINES
    assert "others" not in caplog.text
    at += WINDOW_S
    for offset in (90, 91):
        letters.note(message(offset), "no")
    late = caplog.messages[LINES:]
    assert [
        "/90 " in late[0],
        "in %DLQ%billing now (and 5 others before it): no" in late[0],
        "others" in late[1],
    ] == [True, True, False]
