"""Inputs worth keeping: for each decoder a text file with an input in base64 on each line."""

import base64
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "corpus"
# of all files together
MAX_BYTES: Final = 100 * 1024


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def load(name: str) -> list[bytes]:
    file = FOLDER / f"{name}.txt"
    return (
        [base64.b64decode(line) for line in file.read_text("ascii").split()]
        if file.exists()
        else []
    )


def save(name: str, inputs: list[bytes]) -> None:
    """The shortest first, each once."""
    lines = sorted(
        {base64.b64encode(one).decode() for one in inputs if one},
        key=lambda line: (len(line), line),
    )
    (FOLDER / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), "ascii")
