"""A compiled filter as the rest of ogive sees it, and its limits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

MAX_CHARACTERS: Final = 4096
MAX_DEPTH: Final = 64
MAX_NODES: Final = 256

Properties = Mapping[str, str]
Test = Callable[[Properties], bool | None]
"""None for unknown. Raises EvaluationError."""


class EvaluationError(ValueError):
    """Error for an expression that cannot be evaluated, such as a word compared with a number.

    Java throws here too, and the message does not match.
    """


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled filter.

    Calling it returns true, false or None for unknown, and raises EvaluationError where Java's
    throws.
    """

    text: str
    """The filter as it was written."""
    evaluate: Test
    """Function of a message's properties, which calling the object calls."""

    def __call__(self, properties: Properties) -> bool | None:
        return self.evaluate(properties)

    def matches(self, properties: Properties) -> bool:
        """Return True if a message with these properties passes: unknown does not pass."""
        try:
            return self.evaluate(properties) is True
        except EvaluationError:
            return False


def compile_expression(text: str) -> Expression:
    """Compile a filter. Raises InvalidExpression, which says what is wrong and where."""
    # here: most consumers filter by tags, and never load the compiler
    from ogive.sql92.compiler import test_of

    return Expression(text, test_of(text))
