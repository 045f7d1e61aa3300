"""Text to tokens, one at a time: what follows the expression is never looked at, and may be
anything.
"""

import enum
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from ogive.errors import InvalidExpression
from ogive.sql92.expression import MAX_CHARACTERS


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
    """Yield each token when it is asked for, and END without end.

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
