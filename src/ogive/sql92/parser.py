"""Text to tokens, and tokens to a tree by recursive descent.

Source: SelectorParser.jj, 5.5, with the checks of the factories that it calls.

or      = and { OR and }
and     = equal { AND equal }
equal   = compare { ( "=" | "<>" ) compare | IS [NOT] NULL }
compare = unary { ( ">" | ">=" | "<" | "<=" ) unary | [NOT] BETWEEN unary AND unary | [NOT] IN "("
string { "," string } ")"
                | [NOT] ( CONTAINS | STARTSWITH | ENDSWITH ) string }
unary   = "+" unary | "-" unary | NOT unary | literal | property | "(" or ")"
"""

import enum
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeVar, cast

from ogive.errors import InvalidExpression
from ogive.sql92.expression import MAX_CHARACTERS, MAX_DEPTH, MAX_NODES
from ogive.sql92.values import MAX_INT, MAX_LONG

# The syntax tree of an expression. Parentheses and plus signs leave no trace in it, as in Java.


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


class Kind(enum.Enum):
    NAME = "a property"
    INTEGER = "an integer"
    FLOAT = "a number"
    STRING = "a string"
    WORD = "a keyword"
    SIGN = "a sign"
    END = "the end"


class Token(NamedTuple):
    """Word of an expression. Keywords have *text* in capitals. *at* counts characters from 0."""

    kind: Kind
    text: str
    at: int


KEYWORDS: Final = frozenset(
    {
        "NOT",
        "AND",
        "OR",
        "BETWEEN",
        "IN",
        "TRUE",
        "FALSE",
        "NULL",
        "IS",
        "CONTAINS",
        "STARTSWITH",
        "ENDSWITH",
    }
)
_SKIPPED: Final = re.compile(r"(?:[ \t\n\r\f]|--[^\n\r]*[\n\r]|/\*.*?\*/)+", re.DOTALL)
_TOKEN: Final = re.compile(
    r"""(?P<FLOAT>[0-9]+\.[0-9]*(?:E[+-]?[0-9]+)?|\.[0-9]+(?:E[+-]?[0-9]+)?|[0-9]+E[+-]?[0-9]+)
    |(?P<INTEGER>0|[1-9][0-9]*L?)
    |(?P<NAME>[A-Z_$][A-Z0-9_$]*)
    |(?P<STRING>'(?:''|[^'])*')
    |(?P<SIGN><>|>=|<=|[=<>(),+-])""",
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_HINTS: Final = {
    "!": "not equal is <>",
    '"': "strings stand in single quotes",
    "`": "names are written without quotes",
    ".": "a property's name has letters, digits, _ and $ only",
    "'": "the string has no closing quote",
    "/": "there is no arithmetic, or the comment does not end",
    "*": "there is no arithmetic",
    "%": "there is no arithmetic",
}


def tokens(text: str) -> Iterator[Token]:
    """Yield each token when it is asked for, and END without end: text behind the expression is
    never looked at, and may be anything.

    Raises InvalidExpression.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidExpression(
            f"{len(text)} characters are over the limit of {MAX_CHARACTERS}", text, MAX_CHARACTERS
        )
    at = 0
    while True:
        if skipped := _SKIPPED.match(text, at):
            at = skipped.end()
        if at == len(text):
            yield Token(Kind.END, "", at)
            continue
        found = _TOKEN.match(text, at)
        if found is None:
            hint = _HINTS.get(text[at])
            raise InvalidExpression(
                f"{text[at]!r} is not part of an expression" + (f" ({hint})" if hint else ""),
                text,
                at,
            )
        kind, word = Kind[str(found.lastgroup)], found[0]
        if kind is Kind.NAME and word.upper() in KEYWORDS:
            kind, word = Kind.WORD, word.upper()
        yield Token(kind, word, at)
        at = found.end()


N = TypeVar("N", bound=Node)

_CONDITIONS: Final = Truth | Cast | Not | Joined | Compared | Between | IsNull | In | TextTested
_TRUTHS: Final = {"TRUE": True, "FALSE": False, "NULL": None}
_TEXT_TESTS: Final = ("CONTAINS", "STARTSWITH", "ENDSWITH")


def parse(text: str) -> Condition:
    """Parse *text*. Raises InvalidExpression, which points at the place."""
    return _Parser(text).expression()


class _Parser:
    """One token ahead, two behind NOT and IS, which is as far as Java's looks: a fault further on
    is never found.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens(text)
        self._next = next(self._tokens)
        self._nesting = 0
        self._nodes = 0
        # of nodes by id(); all of them live in _kept
        self._depths: dict[int, int] = {}
        self._kept: list[Node] = []

    def expression(self) -> Condition:
        at = self._next.at
        return self._condition(self._or(), at)

    # --- grammar ----------------------------------------------------------------------------------

    def _or(self) -> Node:
        return self._joined("OR")

    def _joined(self, by: Literal["AND", "OR"]) -> Node:
        at = self._next.at
        first = self._joined("AND") if by == "OR" else self._equal()
        if not self._at_word(by):
            return first
        parts = [self._condition(first, at)]
        while self._at_word(by):
            self._take()
            at = self._next.at
            parts.append(self._condition(self._joined("AND") if by == "OR" else self._equal(), at))
        return self._node(Joined(by, tuple(parts)), at, *parts)

    def _equal(self) -> Node:
        at = self._next.at
        left = self._compare()
        while True:
            if self._at_sign("=", "<>"):
                operator = cast(Operator, self._take().text)
                right_at = self._next.at
                right = self._compare()
                if (
                    isinstance(left, Truth)
                    and not isinstance(right, Truth)
                    and isinstance(right, Integer | Float | String)
                ):
                    raise self._fault(
                        f"{_shown(left)} is not a value to compare with {_shown(right)}", at
                    )
                for operand, place in ((left, at), (right, right_at)):
                    if operand == Truth(None):
                        raise self._fault(
                            "nothing is equal or unequal to NULL: write IS NULL or IS NOT NULL",
                            place,
                        )
                left = self._node(Compared(left, operator, right), at, left, right)
            elif self._at_word("IS"):
                self._take()
                negated = self._skip_word("NOT")
                self._need_word("NULL", "IS is followed by NULL or NOT NULL")
                left = self._node(IsNull(left, negated), at, left)
            else:
                return left

    def _compare(self) -> Node:
        at = self._next.at
        left = self._unary()
        while True:
            if self._at_sign(">", ">=", "<", "<="):
                operator = cast(Operator, self._take().text)
                self._check_ordered(left, at)
                right = self._ordered()
                left = self._node(Compared(left, operator, right), at, left, right)
            elif self._at_word("NOT", "BETWEEN", "IN", *_TEXT_TESTS):
                left = self._predicate(left, at)
            else:
                return left

    def _predicate(self, left: Node, at: int) -> Condition:
        negated = self._skip_word("NOT")
        if self._skip_word("BETWEEN"):
            return self._between(left, negated, at)
        if self._skip_word("IN"):
            if not isinstance(left, Property):
                raise self._fault(f"IN needs a property on its left, not {_shown(left)}", at)
            return self._node(In(left, self._strings(), negated), at, left)
        if self._at_word(*_TEXT_TESTS):
            by = cast(TextTest, self._take().text)
            return self._node(TextTested(left, by, self._string(), negated), at, left)
        raise self._unexpected("expected BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH after NOT")

    def _between(self, value: Node, negated: bool, at: int) -> Condition:
        self._check_ordered(value, at)
        low_at = self._next.at
        low = self._ordered()
        self._need_word("AND", "BETWEEN needs two numbers joined by AND")
        high = self._ordered()
        if (
            not negated
            and isinstance(low, Integer | Float)
            and isinstance(high, Integer | Float)
            and _above(low, high)
        ):
            raise self._fault(
                f"the bounds of BETWEEN are reversed: {low.value} is above {high.value}", low_at
            )
        return self._node(Between(value, low, high, negated), at, value, low, high)

    def _strings(self) -> frozenset[str]:
        self._need_sign("(")
        values = {self._string()}
        while self._at_sign(","):
            self._take()
            values.add(self._string())
        self._need_sign(")")
        return frozenset(values)

    def _unary(self) -> Node:
        token = self._next
        if not (self._at_sign("+", "-") or self._at_word("NOT")):
            return self._primary()
        self._take()
        self._enter(token)
        at = self._next.at
        of = self._unary()
        self._nesting -= 1
        if token.text == "+":
            return of
        if token.text == "-":
            return self._node(Negative(of), token.at, of)
        condition = self._condition(of, at)
        return self._node(Not(condition), token.at, condition)

    def _primary(self) -> Node:
        token = self._next
        if self._at_sign("("):
            self._take()
            self._enter(token)
            inner = self._or()
            self._nesting -= 1
            self._need_sign(")")
            return inner
        if token.kind is Kind.STRING:
            return self._node(String(self._string()), token.at)
        if token.kind is Kind.NAME:
            return self._node(Property(self._take().text), token.at)
        if token.kind is Kind.INTEGER:
            return self._node(self._integer(self._take()), token.at)
        if token.kind is Kind.FLOAT:
            return self._node(self._float(self._take()), token.at)
        if token.kind is Kind.WORD and token.text in _TRUTHS:
            return self._node(Truth(_TRUTHS[self._take().text]), token.at)
        raise self._unexpected("expected a property, a value or (")

    def _string(self) -> str:
        if self._next.kind is not Kind.STRING:
            raise self._unexpected("expected a string in single quotes")
        return self._take().text[1:-1].replace("''", "'")

    def _integer(self, token: Token) -> Integer:
        digits = token.text.rstrip("lL")
        if len(digits) > 19 or int(digits) > MAX_LONG:
            raise self._fault(f"{_short(digits)} has more than 64 bits", token.at)
        return Integer(int(digits), wide=int(digits) > MAX_INT)

    def _float(self, token: Token) -> Float:
        value = float(token.text)
        if math.isinf(value) or value == 0:
            raise self._fault(
                f"{_short(token.text)} is outside what a double can hold above zero", token.at
            )
        return Float(value)

    # --- what is allowed where --------------------------------------------------------------------

    def _condition(self, node: Node, at: int) -> Condition:
        if isinstance(node, Property):
            return self._node(Cast(node), at, node)
        if isinstance(node, _CONDITIONS):
            return node
        raise self._fault(f"{_shown(node)} is neither true nor false: a condition is needed", at)

    def _ordered(self) -> Node:
        at = self._next.at
        operand = self._unary()
        self._check_ordered(operand, at)
        return operand

    def _check_ordered(self, operand: Node, at: int) -> None:
        if isinstance(operand, String | _CONDITIONS):
            raise self._fault(f"only numbers are greater or less: {_shown(operand)} is none", at)

    def _enter(self, token: Token) -> None:
        self._nesting += 1
        if self._nesting > MAX_DEPTH:
            raise self._fault(f"nested deeper than {MAX_DEPTH}", token.at)

    def _node(self, node: N, at: int, *children: Node) -> N:
        """Return *node*. Raises InvalidExpression beyond the limits."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise self._fault(f"more than {MAX_NODES} parts", at)
        depth = 1 + max((self._depths.get(id(child), 0) for child in children), default=0)
        if depth > MAX_DEPTH:
            raise self._fault(f"nested deeper than {MAX_DEPTH}", at)
        self._depths[id(node)] = depth
        self._kept.append(node)
        return node

    # --- tokens -----------------------------------------------------------------------------------

    def _take(self) -> Token:
        token, self._next = self._next, next(self._tokens)
        return token

    def _at_word(self, *words: str) -> bool:
        return self._next.kind is Kind.WORD and self._next.text in words

    def _at_sign(self, *signs: str) -> bool:
        return self._next.kind is Kind.SIGN and self._next.text in signs

    def _skip_word(self, word: str) -> bool:
        if found := self._at_word(word):
            self._take()
        return found

    def _need_word(self, word: str, why: str) -> None:
        if not self._skip_word(word):
            raise self._unexpected(why)

    def _need_sign(self, sign: str) -> None:
        if not self._at_sign(sign):
            raise self._unexpected(f"expected {sign}")
        self._take()

    def _unexpected(self, why: str) -> InvalidExpression:
        found = (
            "the expression ends"
            if self._next.kind is Kind.END
            else f"found {_short(self._next.text)}"
        )
        return self._fault(f"{why}, but {found}", self._next.at)

    def _fault(self, message: str, at: int) -> InvalidExpression:
        return InvalidExpression(message, self._text, at)


def _above(low: Integer | Float, high: Integer | Float) -> bool:
    if isinstance(low, Integer) and isinstance(high, Integer):
        return low.value > high.value
    return float(low.value) > float(high.value)


def _shown(node: Node) -> str:
    match node:
        case Property(name):
            return name
        case Integer(value) | Float(value):
            return str(value)
        case String(value):
            return f"'{_short(value)}'"
        case Truth(value):
            return "NULL" if value is None else str(value).upper()
        case Negative():
            return "a number with a sign"
    return "a condition"


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
