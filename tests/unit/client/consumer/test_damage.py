"""When a damaged message is believed to be stored like that."""

from ogive.client.consumer.damage import READINGS, Readings


def test_the_same_bytes_in_every_reading_are_what_is_stored() -> None:
    readings = Readings()
    assert [readings.show_what_is_stored(7, 123) for _ in range(READINGS)] == [False] * (READINGS - 1) + [True]


def test_readings_that_differ_show_nothing_however_many_there_are() -> None:
    readings = Readings()
    assert not any(readings.show_what_is_stored(7, i % (READINGS - 1)) for i in range(100))


def test_readings_of_two_messages_do_not_add_up() -> None:
    """Their bodies may well be alike."""
    readings = Readings()
    assert not any(readings.show_what_is_stored(7 + i // (READINGS - 1), 123) for i in range(2 * READINGS - 2))


def test_only_the_first_reading_of_a_message_is_news() -> None:
    readings = Readings()
    news = []
    for offset, crc in ((7, 1), (7, 1), (7, 2), (8, 2), (8, 3)):
        readings.show_what_is_stored(offset, crc)
        news.append(readings.is_news)
    assert news == [True, False, False, True, False]
