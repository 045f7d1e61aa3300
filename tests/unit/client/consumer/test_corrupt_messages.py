"""When a damaged message is believed to be stored like that, and where a queue goes on then; how a
queue waits for messages.
"""

import logging
from typing import Any, cast

import pytest

from ogive.client.consumer.corrupt_messages import (
    PAUSE_LIMIT_S,
    READINGS,
    REPORT_EVERY_S,
    Readings,
    Stuck,
    no_way_on,
    passed_over,
)
from ogive.client.consumer.running_info import Statistics
from ogive.client.consumer.subscription import MemberContext
from ogive.model import TOOLS_GROUP, MessageQueue
from ogive.wire.message import DamagedMessage, StoredMessage, decode_messages, encode_stored


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


def test_the_same_bytes_in_every_reading_are_what_is_stored() -> None:
    """The first one asked for more, and does not count."""
    readings = Readings()
    assert [readings.go_on_at(7, reading()) for _ in range(READINGS + 1)] == [None] * READINGS + [8]


def test_the_broker_says_where_the_queue_goes_on_and_not_the_damaged_record() -> None:
    readings = Readings()
    assert [readings.go_on_at(12, reading(28, next_offset=13)) for _ in range(READINGS + 1)][
        -1
    ] == 13


def test_readings_that_differ_show_nothing_however_many_there_are() -> None:
    readings = Readings()
    assert not any(readings.go_on_at(7, reading(crc=i % (READINGS - 1))) for i in range(100))
    assert not any(readings.go_on_at(7, reading(7 + i % (READINGS - 1))) for i in range(100))


def test_readings_of_two_messages_do_not_add_up() -> None:
    """Their bodies may well be alike."""
    readings = Readings()
    for asked in (7, 8):
        assert not any(
            readings.go_on_at(asked, reading(asked, next_offset=asked + 1))
            for _ in range(READINGS - 1)
        )


def test_a_reading_that_is_right_begins_the_count_anew() -> None:
    readings = Readings()
    for _ in range(10):
        assert not any(readings.go_on_at(7, reading()) for _ in range(READINGS - 1))
        readings.was_right()


def test_what_a_slave_has_shows_nothing() -> None:
    readings = Readings()
    assert not any(readings.go_on_at(7, reading(broker_id=1)) for _ in range(3 * READINGS))


def test_an_answer_that_holds_more_or_leads_nowhere_shows_nothing() -> None:
    readings = Readings()
    assert not any(readings.go_on_at(7, reading(alone=False)) for _ in range(3 * READINGS))
    assert not any(readings.go_on_at(7, reading(next_offset=7)) for _ in range(3 * READINGS))


def test_what_is_intact_is_read_first_and_then_the_damaged_message_by_itself() -> None:
    readings = Readings()
    assert readings.limit(32) == 32
    readings.go_on_at(4, reading(intact=3, alone=False, next_offset=36))
    assert (readings.limit(32), readings.limit(2)) == (3, 2)
    readings.was_right()
    assert readings.limit(32) == 32
    readings.go_on_at(7, reading(alone=False, next_offset=39))
    assert readings.limit(32) == 1


def test_only_the_first_reading_of_a_message_is_news() -> None:
    readings = Readings()
    news = []
    for offset, crc in ((7, 1), (7, 1), (7, 2), (8, 2), (8, 3)):
        readings.go_on_at(7, reading(offset, crc))
        news.append(readings.is_news)
    assert news == [True, False, False, True, False]


def test_the_place_that_an_operator_is_told_is_one_that_was_read() -> None:
    queue = MessageQueue("T", "broker-a", 0)
    # 5 and 6 are not for us
    assert passed_over(queue, 5, reading(7), "billing").startswith("T/broker-a/0/7 is damaged")
    assert passed_over(queue, 12, reading(28, next_offset=13), "billing").startswith(
        "T/broker-a/0/12 is damaged"
    )


def test_a_queue_that_cannot_be_read_is_asked_for_less_and_less_often() -> None:
    stuck = Stuck(1.0)
    pauses = []
    for _ in range(8):
        stuck.again(7, 0.0)
        pauses.append(stuck.pause_s)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, PAUSE_LIMIT_S, PAUSE_LIMIT_S, PAUSE_LIMIT_S]
    stuck.again(8, 0.0)
    assert stuck.pause_s == 1.0
    stuck.was_right()
    stuck.again(8, 0.0)
    assert stuck.pause_s == 1.0


def test_whoever_waits_longer_for_every_failure_waits_as_long_here() -> None:
    stuck = Stuck(90.0)
    for _ in range(3):
        stuck.again(7, 0.0)
    assert stuck.pause_s == 90.0


def test_the_log_hears_at_once_of_a_queue_that_cannot_be_read_and_then_once_a_minute() -> None:
    """The first reading may have been damaged on the way."""
    stuck = Stuck(1.0)
    minute = REPORT_EVERY_S
    levels = [
        stuck.again(7, at)
        for at in (
            100.0,
            101.0,
            103.0,
            101.0 + minute - 1,
            101.0 + minute,
            102.0 + minute,
            102.0 + 2 * minute,
        )
    ]
    assert levels == [
        logging.WARNING,
        logging.ERROR,
        logging.DEBUG,
        logging.DEBUG,
        logging.ERROR,
        logging.DEBUG,
        logging.ERROR,
    ]
    assert [stuck.again(9, 103.0 + 2 * minute), stuck.again(9, 104.0 + 2 * minute)] == [
        logging.WARNING,
        logging.ERROR,
    ]


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
    nobody = cast(Any, None)
    text = no_way_on(
        MessageQueue("T", "broker-a", 3),
        7,
        MemberContext(name, nobody, nobody, nobody, Statistics(0.0), broadcast=broadcast),
    )
    assert text.startswith(f"T/broker-a/3 stands still for {name} in front of offset 7")
    assert way in text
