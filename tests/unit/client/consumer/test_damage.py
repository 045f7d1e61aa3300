"""When a damaged message is believed to be stored like that, and where a queue goes on then."""

from ogive.client.consumer.damage import READINGS, Readings, passed_over
from ogive.model import MessageQueue
from ogive.wire.message import DamagedMessage, StoredMessage, decode_messages, encode_stored


def reading(
    offset: int = 7, crc: int = 123, *, next_offset: int = 8, broker_id: int = 0, intact: int = 0, alone: bool = True
) -> DamagedMessage:
    before = [message for i in range(intact) for message in decode_messages(encode_stored(StoredMessage("T", b"x", queue_offset=i)))]
    damaged = DamagedMessage(StoredMessage("T", queue_offset=offset, commitlog_offset=100 * offset), crc, before, alone=alone)
    damaged.next_offset, damaged.broker_id = next_offset, broker_id
    return damaged


def test_the_same_bytes_in_every_reading_are_what_is_stored() -> None:
    """The first one asked for more, and does not count."""
    readings = Readings()
    assert [readings.go_on_at(7, reading()) for _ in range(READINGS + 1)] == [None] * READINGS + [8]


def test_the_broker_says_where_the_queue_goes_on_and_not_the_damaged_record() -> None:
    readings = Readings()
    assert [readings.go_on_at(12, reading(28, next_offset=13)) for _ in range(READINGS + 1)][-1] == 13


def test_readings_that_differ_show_nothing_however_many_there_are() -> None:
    readings = Readings()
    assert not any(readings.go_on_at(7, reading(crc=i % (READINGS - 1))) for i in range(100))
    assert not any(readings.go_on_at(7, reading(7 + i % (READINGS - 1))) for i in range(100))


def test_readings_of_two_messages_do_not_add_up() -> None:
    """Their bodies may well be alike."""
    readings = Readings()
    for asked in (7, 8):
        assert not any(readings.go_on_at(asked, reading(asked, next_offset=asked + 1)) for _ in range(READINGS - 1))


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
    assert passed_over(queue, 5, reading(7), "billing").startswith("T/broker-a/0/7 is damaged")  # 5 and 6 are not for us
    assert passed_over(queue, 12, reading(28, next_offset=13), "billing").startswith("T/broker-a/0/12 is damaged")
