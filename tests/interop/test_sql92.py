"""Random SQL92 expressions, whole and broken, get the same answer from ours and from Apache's
classes.
"""

import json
import random
from pathlib import Path
from typing import Any

from ogive.errors import InvalidExpression
from ogive.sql92 import EvaluationError, compile_expression
from tests.interop import apache

COUNT = 6000
NAMES = ("a", "b", "s", "t", "missing", "$x", "_y", "TAGS", "A")
VALUES = (
    "1",
    "10",
    "-1.5",
    "2.0",
    "1e3",
    "",
    "abc",
    "ABC",
    "x",
    "true",
    "TRUE",
    "false",
    "TagA",
    " 7",
    "007",
    "+4",
    "2147483647",
    "2147483648",
    "-2147483649",
    "9223372036854775807",
    "9223372036854775808",
    "NaN",
    "-Infinity",
    "0x10",
    "0x1p3",
    "1f",
    "1.d",
    "-0",
    "0",
    "0.0",
    "٣",
    "1_0",
    "it's",
    "漢字",
    "1e400",
    ".5",
    "5.",
    "\t9\n",
)
LITERALS = (
    "0",
    "1",
    "10",
    "9",
    "010",
    "1L",
    "2l",
    "0L",
    "2147483647",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "1.0",
    ".5",
    "5.",
    "1e3",
    "2.E-1",
    "1e400",
    "0.0",
    "1e-400",
    "0x10",
    "1.5f",
    "'abc'",
    "'1'",
    "''",
    "'it''s'",
    "'x'",
    "'TagA'",
    "'漢字'",
    "'10'",
    "TRUE",
    "false",
    "NULL",
)
JUNK = (
    ";",
    "!",
    ")",
    "(",
    ",",
    "'",
    '"',
    ".",
    "--",
    "-- c\n",
    "/* c */",
    "/*",
    "*",
    "=",
    "==",
    "<>",
    "<",
    "NOT",
    "AND",
    "OR",
    "IS",
    "IN",
    "BETWEEN",
    "LIKE",
    "CONTAINS",
    "ENDSWITH",
    "1",
    "a",
    "'x'",
    "+",
    "-",
    "NULL",
    "TRUE",
    "漢",
    "#",
)


class Maker:
    """Expressions as people write them, and as nobody should."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one(self) -> str:
        text = self.condition(3)
        if self.random.random() < 0.25:
            words = text.split(" ")
            for _ in range(self.random.randint(1, 2)):
                at = self.random.randrange(len(words) + 1)
                words[at : at + self.random.randint(0, 1)] = [self.random.choice(JUNK)]
            text = " ".join(words)
        return text

    def operand(self, depth: int) -> str:
        kind = self.random.random()
        if kind < 0.45:
            return self.random.choice(NAMES)
        if kind < 0.85 or depth == 0:
            return self.random.choice(LITERALS)
        return (
            self.random.choice(("-", "+", "- ", "NOT ", "-+", "--")) + self.operand(0)
            if kind < 0.93
            else f"({self.condition(depth - 1)})"
        )

    def strings(self) -> str:
        return ", ".join(
            self.random.choice(("'1'", "'abc'", "'x'", "''", "'it''s'", "'10'", "a", "1"))
            for _ in range(self.random.randint(1, 6))
        )

    def word(self, *of: str) -> str:
        word = self.random.choice(of)
        return word if self.random.random() < 0.7 else word.lower()

    def condition(self, depth: int) -> str:
        pick, one = self.random.randrange(14 if depth else 9), self.operand
        if pick < 4:
            return (
                f"{one(depth)} {self.random.choice(('=', '<>', '>', '>=', '<', '<='))} {one(depth)}"
            )
        if pick == 4:
            return (
                f"{one(depth)} {self.word('BETWEEN', 'NOT BETWEEN')} {one(0)} "
                f"{self.word('AND')} {one(0)}"
            )
        if pick == 5:
            return f"{self.operand(0)} {self.word('IN', 'NOT IN')} ({self.strings()})"
        if pick == 6:
            return f"{one(depth)} {self.word('IS NULL', 'IS NOT NULL')}"
        if pick == 7:
            test = self.word(
                "CONTAINS",
                "NOT CONTAINS",
                "STARTSWITH",
                "NOT STARTSWITH",
                "ENDSWITH",
                "NOT ENDSWITH",
            )
            return f"{one(depth)} {test} {self.random.choice(LITERALS[-12:])}"
        if pick == 8:
            return one(depth)
        if pick == 9:
            return f"NOT {self.condition(depth - 1)}"
        if pick == 10:
            return f"({self.condition(depth - 1)})"
        if pick == 11:
            return (
                f"{self.condition(depth - 1)} {self.random.choice(('=', '<>', 'IS'))} "
                f"{self.word('TRUE', 'NULL', 'NOT NULL')}"
            )
        return f"{self.condition(depth - 1)} {self.word('AND', 'OR')} {self.condition(depth - 1)}"

    def properties(self) -> dict[str, str]:
        return {
            name: self.random.choice(VALUES)
            for name in NAMES
            if name != "missing" and self.random.random() < 0.8
        }


def ours(text: str, contexts: list[dict[str, str]]) -> dict[str, Any]:
    try:
        expression = compile_expression(text)
    except InvalidExpression:
        return {"refused": True}
    results: list[Any] = []
    for properties in contexts:
        try:
            results.append(expression(properties))
        except EvaluationError:
            results.append("error")
    return {"results": results}


def test_thousands_of_expressions_get_apaches_answers(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    maker = Maker(seed)
    contexts = [{}, *(maker.properties() for _ in range(15))]
    expressions = [maker.one() for _ in range(COUNT)]
    file = tmp_path / "filters.json"
    file.write_text(
        json.dumps({"contexts": contexts, "expressions": expressions}, ensure_ascii=False),
        encoding="utf-8",
    )
    with apache.JavaClient("Filter", file=file) as java:
        run = java.wait()
    assert run.code == 0, run.other
    assert len(run.lines) == COUNT
    wrong = [
        (text, theirs, mine)
        for text, theirs in zip(expressions, run.lines, strict=True)
        if (mine := ours(text, contexts)) != theirs
    ]
    assert wrong == [], f"seed {seed}: {len(wrong)} of {COUNT} differ, contexts {contexts}"
    refused = sum("refused" in line for line in run.lines)
    assert COUNT / 10 < refused < COUNT * 9 / 10, (
        "the expressions say nothing: nearly all or none is refused"
    )
