"""Numbers are read as Java's parsers read them.

The expected values come from Long.parseLong and Integer.parseInt of Java 17.
"""

import pytest

from ogive.wire.command import parse_int, parse_long

MAX_LONG, MAX_INT = 2**63 - 1, 2**31 - 1


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("+100", 100),
        ("-5", -5),
        ("-0", 0),
        ("0" * 30 + "100", 100),
        ("-" + "0" * 40, 0),
        ("٣", 3),
        ("1٣", 13),
        ("１２", 12),
        (str(MAX_LONG), MAX_LONG),
        (str(-MAX_LONG - 1), -MAX_LONG - 1),
        ("0" + str(MAX_LONG), MAX_LONG),
    ],
)
def test_a_long_is_what_java_takes_for_one(text: str, number: int) -> None:
    assert parse_long(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "",
        "+",
        "-",
        "+-1",
        " 100",
        "100 ",
        "1_000",
        "1.0",
        "1e3",
        "0x10",
        "²",
        "①",
        "\U0001d7d9",
        "\n1",
        "1\x00",
        str(MAX_LONG + 1),
        "9" * 5000,
    ],
)
def test_what_java_does_not_take_for_a_long_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a number"):
        parse_long(text)


def test_an_int_has_32_bits() -> None:
    assert (parse_int(str(MAX_INT)), parse_int(str(-MAX_INT - 1)), parse_int("0" * 30 + "7")) == (
        MAX_INT,
        -MAX_INT - 1,
        7,
    )
    for text in (str(MAX_INT + 1), str(-MAX_INT - 2), "9" * 19):
        with pytest.raises(ValueError, match="32 bits"):
            parse_int(text)
