"""SQL92 filters against what Apache 5.5.0's own classes answered, limits, and errors that point at
the place.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ogive.errors import InvalidExpression
from ogive.sql92 import MAX_CHARACTERS, MAX_DEPTH, MAX_NODES, EvaluationError, compile_expression
from ogive.sql92.values import compare_doubles, parse_double, parse_int, parse_long

*VECTORS, LAST = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "vectors/sql92.jsonl").read_text("utf-8").splitlines()
]
CONTEXTS: list[dict[str, str]] = LAST["contexts"]


def outcomes(text: str) -> list[Any] | str:
    """What the vectors hold: a result for each context, or "refused"."""
    try:
        expression = compile_expression(text)
    except InvalidExpression:
        return "refused"
    found: list[Any] = []
    for properties in CONTEXTS:
        try:
            found.append(expression(properties))
        except EvaluationError:
            found.append("error")
    return found


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["expression"])
def test_every_answer_is_apaches(vector: dict[str, Any]) -> None:
    assert outcomes(vector["expression"]) == (
        "refused" if vector.get("refused") else vector["results"]
    )


@pytest.mark.parametrize(
    ("text", "properties", "result"),
    [
        ("'x' = missing", {}, False),
        ("'x' <> missing", {}, True),
        ("missing = missing", {}, True),
        # only numbers have a negative, and a property is a string
        ("-a = 1", {"a": "1"}, None),
        ("1 = -a", {"a": "1"}, False),
        ("a = 1 = TRUE", {"a": "1"}, True),
        ("1 = TRUE", {}, False),
        ("a > 1 -- a comment\n AND b > 1", {"a": "2", "b": "1"}, False),
        ("a > 1 -- no end of line, so two signs", {"a": "2"}, True),
        ("a IN ('x', 'it''s')", {"a": "it's"}, True),
        ("a < b", {"a": "-0", "b": "0"}, True),
        ("a > 1e300", {"a": "NaN"}, True),
        ("a = 1.5", {"a": " 0x1.8p0f\t"}, True),
        ("a > 0", {"a": "٣"}, True),
        ("a > 0", {"a": "0" * 5000 + "7"}, True),
        ("a = 1 OR b CONTAINS 'x' IS NULL", {"a": "1"}, True),
    ],
)
def test_odd_corners(text: str, properties: dict[str, str], result: bool | None) -> None:
    assert compile_expression(text)(properties) is result


@pytest.mark.parametrize("text", ["a > 1", "TRUE = a", "-(a > 1) IS NULL"])
def test_a_value_that_does_not_fit_is_no_match(text: str) -> None:
    """Java throws there; a broker passes the message over."""
    expression = compile_expression(text)
    with pytest.raises(EvaluationError):
        expression({"a": "word"})
    assert not expression.matches({"a": "word"})


def test_only_true_matches() -> None:
    expression = compile_expression("a = 'x'")
    assert [expression.matches(p) for p in ({"a": "x"}, {"a": "y"}, {})] == [True, False, False]


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("price > 10 AND", 14, "but the expression ends"),
        ("price != 10", 6, "not equal is <>"),
        ("region = NULL", 9, "IS NULL"),
        ("region IN (5)", 11, "a string in single quotes"),
        ("price BETWEEN 9 AND 3", 14, "reversed"),
        ("  'x'", 2, "neither true nor false"),
        ("name >= 'b'", 8, "only numbers"),
        ("a = 'open", 4, "closing quote"),
    ],
)
def test_an_error_points_at_the_place(text: str, at: int, message: str) -> None:
    with pytest.raises(InvalidExpression, match=message) as caught:
        compile_expression(text)
    assert caught.value.at == at
    assert f"at character {at + 1}: " in str(caught.value)


@pytest.mark.parametrize(
    ("fits", "over"),
    [
        (
            "(" * MAX_DEPTH + "a = 1" + ")" * MAX_DEPTH,
            "(" * (MAX_DEPTH + 1) + "a = 1" + ")" * (MAX_DEPTH + 1),
        ),
        ("NOT " * (MAX_DEPTH - 2) + "a", "NOT " * MAX_DEPTH + "a"),
        ("a IS NULL" + " IS NULL" * (MAX_DEPTH - 2), "a IS NULL" + " IS NULL" * MAX_DEPTH),
        (" OR ".join(["a = 1"] * (MAX_NODES // 3)), " OR ".join(["a = 1"] * (MAX_NODES // 3 + 1))),
        ("a = 1" + " " * (MAX_CHARACTERS - 5), "a = 1" + " " * (MAX_CHARACTERS - 4)),
    ],
    ids=["parentheses", "signs", "chains", "parts", "characters"],
)
def test_limits_hold_exactly(fits: str, over: str) -> None:
    compile_expression(fits)({"a": "1"})
    with pytest.raises(InvalidExpression, match=r"deeper than 64|more than 256|limit of 4096"):
        compile_expression(over)


@pytest.mark.parametrize(
    "text", ["", "+", "-", "1.5", "1_0", " 1", "2147483648", "9" * 6000, "x", "𝟗"]
)
def test_what_no_java_integer_is(text: str) -> None:
    with pytest.raises(EvaluationError):
        parse_int(text)


def test_numbers_are_read_as_java_reads_them() -> None:
    assert (parse_int("-2147483648"), parse_long("+9223372036854775807")) == (-(2**31), 2**63 - 1)
    assert [
        parse_double(text)
        for text in ("1d", "1.F", ".5", "-1e400", "0x1p2000", "-Infinity", " 7\n")
    ] == [
        1.0,
        1.0,
        0.5,
        -math.inf,
        math.inf,
        -math.inf,
        7.0,
    ]
    for text in ("", ".", "inf", "nan", "1_0", "0x10", "1e", "1ff", "Infinityf", "٣"):
        with pytest.raises(EvaluationError):
            parse_double(text)


def test_doubles_have_a_total_order() -> None:
    ordered = [-math.inf, -1.0, -0.0, 0.0, 1.0, math.inf, math.nan]
    for i, left in enumerate(ordered):
        for j, right in enumerate(ordered):
            assert (compare_doubles(left, right) > 0, compare_doubles(left, right) < 0) == (
                i > j,
                i < j,
            )


@pytest.mark.parametrize(
    "text",
    ["1" * 300_000 + "x", "0x" + "1" * 300_000, "." + "1" * 300_000 + "x"],
    ids=["decimal", "hexadecimal", "fraction"],
)
def test_a_long_text_that_is_no_number_is_read_once(text: str) -> None:
    """Digits that a pattern can share out in two ways take the square of their number: hours, with
    these.
    """
    with pytest.raises(EvaluationError, match="not a number"):
        parse_double(text)
