"""When a damaged message is believed to be stored like that, and where a queue goes on then; how a
queue waits for messages.
"""

import logging
from typing import Any, cast

import pytest

from ogive.client.consumer.delivery import (
    PAUSE_LIMIT_S,
    READINGS,
    REPORT_EVERY_S,
    CorruptMessages,
    no_way_on,
    skipped,
)
from ogive.client.consumer.running_info import Statistics
from ogive.client.consumer.subscription import MemberContext
from ogive.model import TOOLS_GROUP, MessageQueue
from ogive.wire.message import (
    DamagedMessage,
    NoRecord,
    StoredMessage,
    decode_messages,
    encode_stored,
)


def reading(
    offset: int = 7,
    crc: int = 123,
    *,
    next_offset: int = 8,
    broker_id: int = 0,
    intact: int = 0,
    alone: bool = True,
) -> DamagedMessage:
    before = [
        message
        for i in range(intact)
        for message in decode_messages(encode_stored(StoredMessage("T", b"x", queue_offset=i)))
    ]
    damaged = DamagedMessage(
        StoredMessage("T", queue_offset=offset, commitlog_offset=100 * offset),
        crc,
        before,
        alone=alone,
    )
    damaged.next_offset, damaged.broker_id = next_offset, broker_id
    return damaged


log = logging.getLogger(__name__)
QUEUE = MessageQueue("T", "broker-a", 3)


def context(name: str = "billing", *, broadcast: bool = False) -> MemberContext:
    nobody = cast(Any, None)
    return MemberContext(name, nobody, nobody, nobody, Statistics(0.0), broadcast=broadcast)


def corrupt(retry_s: float = 1.0) -> CorruptMessages:
    return CorruptMessages(context(), QUEUE, retry_s, log)


def after(messages: CorruptMessages, asked: int, damaged: DamagedMessage) -> int | None:
    """Where the queue continues after a pull at *asked*."""
    return messages.after(asked, damaged, 0.0)


def levels(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [entry.levelno for entry in caplog.records]


def test_the_same_bytes_in_every_reading_are_what_is_stored() -> None:
    """The first one asked for more, and does not count."""
    messages = corrupt()
    assert [after(messages, 7, reading()) for _ in range(READINGS + 1)] == [None] * READINGS + [8]


def test_the_broker_says_where_the_queue_goes_on_and_not_the_damaged_record() -> None:
    messages = corrupt()
    assert [after(messages, 12, reading(28, next_offset=13)) for _ in range(READINGS + 1)][-1] == 13


def test_readings_that_differ_show_nothing_however_many_there_are() -> None:
    messages = corrupt()
    assert not any(after(messages, 7, reading(crc=i % (READINGS - 1))) for i in range(100))
    assert not any(after(messages, 7, reading(7 + i % (READINGS - 1))) for i in range(100))


def test_readings_of_two_messages_do_not_add_up() -> None:
    """Their bodies may well be alike."""
    messages = corrupt()
    for asked in (7, 8):
        assert not any(
            after(messages, asked, reading(asked, next_offset=asked + 1))
            for _ in range(READINGS - 1)
        )


def test_a_reading_that_is_right_begins_the_count_anew() -> None:
    messages = corrupt()
    for _ in range(10):
        assert not any(after(messages, 7, reading()) for _ in range(READINGS - 1))
        messages.was_right()


def test_what_a_slave_has_shows_nothing() -> None:
    messages = corrupt()
    assert not any(after(messages, 7, reading(broker_id=1)) for _ in range(3 * READINGS))


def test_an_answer_that_holds_more_or_leads_nowhere_shows_nothing() -> None:
    messages = corrupt()
    assert not any(after(messages, 7, reading(alone=False)) for _ in range(3 * READINGS))
    assert not any(after(messages, 7, reading(next_offset=7)) for _ in range(3 * READINGS))


def test_what_is_intact_is_read_first_and_then_the_damaged_message_by_itself() -> None:
    messages = corrupt()
    assert messages.limit(32) == 32
    after(messages, 4, reading(intact=3, alone=False, next_offset=36))
    assert (messages.limit(32), messages.limit(2)) == (3, 2)
    messages.was_right()
    assert messages.limit(32) == 32
    after(messages, 7, reading(alone=False, next_offset=39))
    assert messages.limit(32) == 1


def test_only_the_first_reading_of_a_message_is_news(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    messages = corrupt()
    for offset, crc in ((7, 1), (7, 1), (7, 2), (8, 2), (8, 3)):
        after(messages, 7, reading(offset, crc))
    warning, debug = logging.WARNING, logging.DEBUG
    assert levels(caplog) == [warning, debug, debug, warning, debug]


def test_the_place_that_an_operator_is_told_is_one_that_was_read() -> None:
    queue = MessageQueue("T", "broker-a", 0)
    # 5 and 6 are not for us
    assert skipped(queue, 5, reading(7), "billing").startswith("T/broker-a/0/7 is damaged")
    assert skipped(queue, 12, reading(28, next_offset=13), "billing").startswith(
        "T/broker-a/0/12 is damaged"
    )


def test_a_queue_that_cannot_be_read_is_asked_for_less_and_less_often() -> None:
    messages, no_record = corrupt(), NoRecord("no message")
    pauses = []
    for _ in range(8):
        assert messages.after(7, no_record, 0.0) is None
        pauses.append(messages.pause_s)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, PAUSE_LIMIT_S, PAUSE_LIMIT_S, PAUSE_LIMIT_S]
    messages.after(8, no_record, 0.0)
    assert (messages.pause_s, messages.stuck_at) == (1.0, 8)
    messages.after(8, no_record, 0.0)
    messages.was_right()
    assert messages.stuck_at is None
    messages.after(8, no_record, 0.0)
    assert messages.pause_s == 1.0


def test_whoever_waits_longer_for_every_failure_waits_as_long_here() -> None:
    messages = corrupt(90.0)
    for _ in range(3):
        messages.after(7, NoRecord("no message"), 0.0)
    assert messages.pause_s == 90.0


def test_damage_behind_bytes_that_were_no_message_is_read_again_as_soon_as_any() -> None:
    messages = corrupt()
    for _ in range(3):
        messages.after(7, NoRecord("no message"), 0.0)
    after(messages, 8, reading(8, next_offset=9))
    assert messages.pause_s == 1.0


def test_the_log_hears_at_once_of_a_queue_that_cannot_be_read_and_then_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first reading may have been damaged on the way."""
    caplog.set_level(logging.DEBUG)
    messages, minute = corrupt(), REPORT_EVERY_S
    for at in (
        100.0,
        101.0,
        103.0,
        101.0 + minute - 1,
        101.0 + minute,
        102.0 + minute,
        102.0 + 2 * minute,
    ):
        messages.after(7, NoRecord("no message"), at)
    assert levels(caplog) == [
        logging.WARNING,
        logging.ERROR,
        logging.DEBUG,
        logging.DEBUG,
        logging.ERROR,
        logging.DEBUG,
        logging.ERROR,
    ]
    caplog.clear()
    for at in (103.0 + 2 * minute, 104.0 + 2 * minute):
        messages.after(9, NoRecord("no message"), at)
    assert levels(caplog) == [logging.WARNING, logging.ERROR]


@pytest.mark.parametrize(
    ("name", "broadcast", "way"),
    [
        ("billing", False, "`ogive group reset billing T --broker broker-a --queue 3 --to 8`"),
        ("billing", True, "put a higher offset into its file of offsets"),
        (TOOLS_GROUP, False, "seek to 8"),
    ],
)
def test_the_way_out_is_one_that_this_kind_of_consumer_has(
    name: str, broadcast: bool, way: str
) -> None:
    text = no_way_on(QUEUE, 7, context(name, broadcast=broadcast))
    assert text.startswith(f"T/broker-a/3 stands still for {name} in front of offset 7")
    assert way in text
