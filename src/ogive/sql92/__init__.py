"""SQL92 message filters: text to a function of a message's properties, with Apache's answers to the
letter.

    wanted = compile_expression("amount > 100 AND region IN ('eu', 'us')")
    wanted.matches({"amount": "250", "region": "eu"})     # True
    wanted({"region": "eu"})                              # None: nobody knows

Source: the grammar and the expression classes of rocketmq-filter, 5.5. What surprises there, and is
the same here:

- Reading stops after the longest expression: ``a > 1, b > 1`` is ``a > 1``. Only the token that
  follows must be one.
- A property is a string. Beside an integer it must be one (``1.5`` is an error), and fit 32 bits if
  the literal does.
- ``missing = 'x'`` is unknown, ``'x' = missing`` is false. NOT binds tighter than ``=``.
- ``<`` and its like compare numbers only; ``!=`` and LIKE do not exist.

Differs from Java: at most MAX_CHARACTERS, MAX_DEPTH and MAX_NODES, so that one expression cannot
hold up a broker. An evaluation visits each node at most once, so MAX_NODES also limits its steps.
"""

from ogive.sql92.expression import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_NODES,
    EvaluationError,
    Expression,
    Properties,
    compile_expression,
)

__all__ = [
    "MAX_CHARACTERS",
    "MAX_DEPTH",
    "MAX_NODES",
    "EvaluationError",
    "Expression",
    "Properties",
    "compile_expression",
]
