"""The syntax tree of an expression. Parentheses and plus signs leave no trace in it, as in Java."""

from dataclasses import dataclass
from typing import Literal

Operator = Literal["=", "<>", ">", ">=", "<", "<="]
TextTest = Literal["CONTAINS", "STARTSWITH", "ENDSWITH"]


@dataclass(frozen=True, slots=True)
class Property:
    name: str


@dataclass(frozen=True, slots=True)
class Integer:
    """Integer literal. *wide*: one of Java's longs."""

    value: int
    wide: bool


@dataclass(frozen=True, slots=True)
class Float:
    value: float


@dataclass(frozen=True, slots=True)
class String:
    value: str


@dataclass(frozen=True, slots=True)
class Truth:
    """TRUE, FALSE and NULL."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Negative:
    of: "Node"


@dataclass(frozen=True, slots=True)
class Cast:
    """A property that stands where a condition is needed."""

    of: Property


@dataclass(frozen=True, slots=True)
class Not:
    of: "Condition"


@dataclass(frozen=True, slots=True)
class Joined:
    """AND or OR, with its *parts* in the order of the text."""

    by: Literal["AND", "OR"]
    parts: tuple["Condition", ...]


@dataclass(frozen=True, slots=True)
class Compared:
    left: "Node"
    operator: Operator
    right: "Node"


@dataclass(frozen=True, slots=True)
class Between:
    of: "Node"
    low: "Node"
    high: "Node"
    negated: bool


@dataclass(frozen=True, slots=True)
class IsNull:
    of: "Node"
    negated: bool


@dataclass(frozen=True, slots=True)
class In:
    of: Property
    values: frozenset[str]
    negated: bool


@dataclass(frozen=True, slots=True)
class TextTested:
    of: "Node"
    by: TextTest
    text: str
    negated: bool


Literals = Integer | Float | String | Truth
Condition = Truth | Cast | Not | Joined | Compared | Between | IsNull | In | TextTested
"""Condition that is true, false or unknown."""
Node = Property | Literals | Negative | Condition
