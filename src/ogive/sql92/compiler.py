"""Compile a tree to closures.

Java decides by the classes of two values per message; here all but null is known beforehand.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ogive.sql92.expression import Properties, Test
from ogive.sql92.parser import (
    Between,
    Cast,
    Compared,
    Condition,
    Float,
    In,
    Integer,
    IsNull,
    Joined,
    Negative,
    Node,
    Not,
    Property,
    String,
    TextTested,
    Truth,
    parse,
)
from ogive.sql92.values import Type, compare_as_doubles, comparison

Value = Callable[[Properties], Any]
"""None for null. Raises EvaluationError."""


def test_of(text: str) -> Test:
    """Compile *text*. Raises InvalidExpression."""
    return _test(parse(text))


@dataclass(frozen=True, slots=True)
class _Operand:
    """Operand of a comparison. Every value that is not null has *type*."""

    type: Type
    value: Value


_ORDER: Final[dict[str, Callable[[int, int], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def _test(node: Condition) -> Test:
    match node:
        case Truth(value):
            return lambda _: value
        case Cast(Property(name)):
            # a string is not true, whatever it says
            return lambda properties: None if name not in properties else False
        case Not(of):
            return _not(_test(of))
        case Joined(by, parts):
            return _joined([_test(part) for part in parts], decides=by == "OR")
        case Compared(left, "=", right):
            return _equal(_operand(left), _operand(right))
        case Compared(left, "<>", right):
            return _not(_equal(_operand(left), _operand(right)))
        case Compared(left, sign, right):
            return _ordered(_operand(left), sign, _operand(right))
        case Between(of, low, high, negated):
            return _between(_operand(of), _operand(low), _operand(high), negated=negated)
        case IsNull(of, negated):
            return _is_null(_operand(of).value, negated=negated)
        case In(Property(name), values, negated):
            return _in(name, values, negated=negated)
        case TextTested():
            return _text_test(node)
    raise AssertionError(node)


def _operand(node: Node) -> _Operand:
    match node:
        case Property(name):
            return _Operand(Type.STRING, lambda properties: properties.get(name))
        case Integer(value, wide):
            return _Operand(Type.LONG if wide else Type.INTEGER, lambda _: value)
        case Float(value):
            return _Operand(Type.DOUBLE, lambda _: value)
        case String(text):
            return _Operand(Type.STRING, lambda _: text)
        case Negative(of):
            return _negative(_operand(of))
        case _:
            return _Operand(Type.BOOLEAN, _test(node))


def _negative(of: _Operand) -> _Operand:
    value = of.value
    # evaluated, for it may fail; only numbers have a negative
    if of.type in (Type.STRING, Type.BOOLEAN):

        def nothing(properties: Properties) -> None:
            value(properties)

        return _Operand(of.type, nothing)

    def negative(properties: Properties) -> Any:
        number = value(properties)
        return None if number is None else -number

    return _Operand(of.type, negative)


def _not(test: Test) -> Test:
    def run(properties: Properties) -> bool | None:
        result = test(properties)
        return None if result is None else not result

    return run


def _joined(tests: list[Test], *, decides: bool) -> Test:
    """Compile AND or OR, which end with the first part that *decides*: a false one for AND, a true
    one for OR.

    Later parts are not evaluated, and cannot fail.
    """

    def run(properties: Properties) -> bool | None:
        result: bool | None = not decides
        for test in tests:
            part = test(properties)
            if part is decides:
                return part
            if part is None:
                result = None
        return result

    return run


def _equal(left: _Operand, right: _Operand) -> Test:
    """Compile ``=``, which is not symmetric.

    Null on the left is unknown, null on the right alone is false, and two nulls are equal.
    """
    compare, left_value, right_value = comparison(left.type, right.type), left.value, right.value

    def run(properties: Properties) -> bool | None:
        one, two = left_value(properties), right_value(properties)
        if one is None:
            return True if two is None else None
        return False if two is None else compare(one, two) == 0

    return run


def _ordered(left: _Operand, sign: str, right: _Operand) -> Test:
    compare, left_value, right_value = comparison(left.type, right.type), left.value, right.value
    if left.type is right.type is Type.STRING:
        compare = compare_as_doubles
    is_so = _ORDER[sign]

    def run(properties: Properties) -> bool | None:
        one = left_value(properties)
        if one is None:
            return None
        two = right_value(properties)
        return None if two is None else is_so(compare(one, two), 0)

    return run


def _between(of: _Operand, low: _Operand, high: _Operand, *, negated: bool) -> Test:
    if negated:
        return _joined([_ordered(of, "<", low), _ordered(of, ">", high)], decides=True)
    return _joined([_ordered(of, ">=", low), _ordered(of, "<=", high)], decides=False)


def _is_null(value: Value, *, negated: bool) -> Test:
    return lambda properties: (value(properties) is None) is not negated


def _in(name: str, values: frozenset[str], *, negated: bool) -> Test:
    def run(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else (value in values) is not negated

    return run


def _text_test(node: TextTested) -> Test:
    """Compile a test of text. It is false for a value that is missing, is no string or is
    compared with nothing, negated or not.
    """
    operand, text, negated = _operand(node.of), node.text, node.negated
    value = operand.value
    found: dict[str, Callable[[str, str], bool]] = {
        "CONTAINS": operator.contains,
        "STARTSWITH": str.startswith,
        "ENDSWITH": str.endswith,
    }
    test = found[node.by]
    impossible = operand.type is not Type.STRING

    def run(properties: Properties) -> bool:
        if not text:
            return False
        one = value(properties)
        return False if one is None or impossible else test(one, text) is not negated

    return run
