"""Draw Mermaid's sequence diagrams as SVG, without Mermaid: GitHub shows the same text itself.

Known are participants, arrows, notes over one participant, and the blocks alt and par. Anything
else fails the build.
"""

import re
import textwrap
from dataclasses import dataclass, field
from html import escape
from typing import Final

GAP: Final = 164
"""Between the lines of two participants."""
LETTER: Final = 7.2
LINE: Final = 17
HEAD: Final = 30
PARTICIPANT: Final = re.compile(r"participant (\w+) as (.+)")
ARROW: Final = re.compile(r"(\w+)(--?)>>(\w+): (.+)")
NOTE: Final = re.compile(r"Note over (\w+): (.+)")
BLOCK: Final = re.compile(r"(alt|par|else|and)\b ?(.*)")


class NotASequence(ValueError):
    """The text has a line that is not known here."""


@dataclass(slots=True)
class _Drawing:
    """What is drawn so far. *y*: where the next thing begins."""

    columns: dict[str, float] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    shapes: list[str] = field(default_factory=list)
    left: float = 0.0
    right: float = 0.0
    y: float = HEAD + 14
    blocks: list[float] = field(default_factory=list)

    def text(self, x: float, y: float, lines: list[str], anchor: str = "middle") -> None:
        for at, line in enumerate(lines):
            place = f'x="{x:g}" y="{y + LINE * at:g}" text-anchor="{anchor}"'
            self.shapes.append(f"<text {place}>{escape(line)}</text>")

    def column(self, name: str) -> float:
        if name not in self.columns:
            raise NotASequence(f"{name} is no participant")
        return self.columns[name]

    def box(self, kind: str, x: float, y: float, width: float, height: float) -> None:
        self.shapes.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            'rx="4"/>'
        )
        self.left, self.right = min(self.left, x), max(self.right, x + width)


def svg(text: str) -> str:
    """Return the diagram. Raises NotASequence."""
    lines = [line.strip() for line in text.strip().splitlines()]
    if not lines or lines[0] != "sequenceDiagram":
        raise NotASequence("only sequenceDiagram is known")
    drawing = _Drawing()
    for line in lines[1:]:
        _draw(drawing, line)
    return _whole(drawing)


def _draw(drawing: _Drawing, line: str) -> None:
    if found := PARTICIPANT.fullmatch(line):
        drawing.columns[found[1]] = GAP * len(drawing.columns)
        drawing.heads[found[1]] = found[2]
    elif found := ARROW.fullmatch(line):
        _arrow(drawing, *found.groups())
    elif found := NOTE.fullmatch(line):
        _note(drawing, drawing.column(found[1]), found[2].split("<br/>"))
    elif line == "end":
        _end(drawing)
    elif found := BLOCK.fullmatch(line):
        _block(drawing, *found.groups())
    else:
        raise NotASequence(f"not known: {line}")


def _arrow(drawing: _Drawing, start: str, dashes: str, end: str, label: str) -> None:
    x, to = drawing.column(start), drawing.column(end)
    most = int((abs(to - x) - 14) / LETTER)
    lines = textwrap.wrap(label, max(most, 12))
    drawing.text((x + to) / 2, drawing.y + 12, lines)
    drawing.y += LINE * len(lines) + 4
    tip = -7 if to > x else 7
    kind = "answer" if dashes == "--" else "call"
    drawing.shapes.append(
        f'<path class="{kind}" d="M{x:g} {drawing.y:g}H{to + tip:g}"/>'
        f'<path class="tip" d="M{to:g} {drawing.y:g}l{tip} -4v8z"/>'
    )
    drawing.y += 12


def _note(drawing: _Drawing, x: float, lines: list[str]) -> None:
    width = max(map(len, lines)) * LETTER + 18
    height = LINE * len(lines) + 8
    drawing.box("note", x - width / 2, drawing.y, width, height)
    drawing.text(x, drawing.y + 16, lines)
    drawing.y += height + 10


def _block(drawing: _Drawing, word: str, label: str) -> None:
    """Begin a block, or its next part: a line with the word at the left."""
    if word in ("alt", "par"):
        drawing.blocks.append(drawing.y)
    elif not drawing.blocks:
        raise NotASequence(f"{word} outside a block")
    drawing.shapes.append(f'<path class="part" d="MLEFT {drawing.y:g}HRIGHT"/>')
    shown = f"{word}: {label}" if label else word
    drawing.shapes.append(
        f'<text class="word" x="WORD" y="{drawing.y + 14:g}">{escape(shown)}</text>'
    )
    drawing.y += 24


def _end(drawing: _Drawing) -> None:
    if not drawing.blocks:
        raise NotASequence("end outside a block")
    drawing.blocks.pop()
    drawing.shapes.append(f'<path class="part" d="MLEFT {drawing.y:g}HRIGHT"/>')
    drawing.y += 12


def _whole(drawing: _Drawing) -> str:
    """Return all of it, with the participants and their lines below everything else."""
    if drawing.blocks:
        raise NotASequence("a block has no end")
    bottom = drawing.y + 4
    shapes, drawing.shapes = drawing.shapes, []
    for name, x in drawing.columns.items():
        drawing.shapes.append(f'<path class="life" d="M{x:g} {HEAD}V{bottom:g}"/>')
        width = len(drawing.heads[name]) * LETTER + 20
        drawing.box("head", x - width / 2, 0, width, HEAD)
        drawing.text(x, 20, [drawing.heads[name]])
    left, right = drawing.left - 14, drawing.right + 14
    body = "".join([*drawing.shapes, *shapes])
    body = body.replace("MLEFT", f"M{left + 2:g}").replace("HRIGHT", f"H{right - 2:g}")
    body = body.replace('"WORD"', f'"{left + 6:g}"')
    return (
        f'<svg class="sequence" xmlns="http://www.w3.org/2000/svg" role="img" '
        f'viewBox="{left:g} -4 {right - left:g} {bottom + 8:g}" '
        f'width="{right - left:g}">{body}</svg>'
    )
