"""The stored lists, and what is wrong where today's surface does not keep them."""

import contextlib
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
LISTS: Final = HERE / "lists"
CHANGES: Final = HERE / "changes.toml"

ADVICE: Final = """\
Programs, scripts and dashboards of users rely on these lines. There are two ways out:
- Put the old form back. Beside a better form it stays for one release, with a warning: a
  DeprecationWarning in Python, a line on standard error in commands.
- Add an entry to tests/surface/changes.toml: the line that was, the line that is, the reason, and
  the test that shows that the old form works, or why it cannot.
A line that never was on main may be removed from tests/surface/lists by hand.
`.venv/bin/python -m tests.surface` compares again, and adds new lines with --write."""

Lines = Callable[[], set[str]]
"""Return the lines of one list as they are today."""


@dataclass(frozen=True, slots=True)
class Change:
    """An entry of changes.toml."""

    was: str
    now: str
    """The line that stands for it today; empty if nothing does."""
    reason: str
    test: str
    """The test that shows that the old form works with a warning; empty if the old form is gone."""
    gone_because: str
    """Why the old form cannot work any more; empty if it works."""


def load_changes(file: Path = CHANGES) -> list[Change]:
    """Return the entries. Raises KeyError and TypeError for one that is not complete."""
    entries = tomllib.loads(file.read_text("utf-8")).get("change", [])
    return [Change(**{"now": "", "test": "", "gone_because": ""} | entry) for entry in entries]


def stored(part: str, folder: Path = LISTS) -> list[str]:
    """Return the stored lines of a list."""
    file = folder / f"{part}.txt"
    return file.read_text("utf-8").splitlines() if file.exists() else []


def write(part: str, today: set[str], folder: Path = LISTS) -> set[str]:
    """Add the new lines of *today* to the stored list, and return them. None is ever removed.

    Not for a list with faults: its new lines may be what broke it.
    """
    old = set(stored(part, folder))
    folder.mkdir(exist_ok=True)
    text = "".join(f"{line}\n" for line in sorted(old | today))
    (folder / f"{part}.txt").write_text(text, "utf-8")
    return today - old


def is_demand(line: str) -> bool:
    """Return True for what users must do. A new demand breaks programs, a dropped one does not."""
    return " needs " in line or " forbids " in line


def faults(before: Sequence[str], today: set[str], changes: Sequence[Change]) -> list[str]:
    """Return what of the lines *before* is not kept today, each with the line that replaces it."""
    explained = {change.was for change in changes} | {change.now for change in changes}
    known = set(before)
    found = []
    for line in before:
        if line not in today and not is_demand(line) and line not in explained:
            others = {new for new in today - known if not is_demand(new)}
            instead = sorted(new for new in others if _name(new) == _name(line))
            found.append(f"{line}\n    today: {' | '.join(instead) or 'nothing'}")
    for line in sorted(today - known - explained):
        owner = re.split(" needs | forbids ", line)[0]
        if is_demand(line) and any(_belongs(one, owner) for one in known):
            found.append(f"{line}\n    before: no such condition")
    return found


def _name(line: str) -> str:
    """Return the part of a line that names the thing, without its type or value."""
    return re.split(r": | -> | = ", line, maxsplit=1)[0]


def _belongs(line: str, owner: str) -> bool:
    return line == owner or line.startswith((f"{owner}(", f"{owner} ", f"{owner}:"))


def check(part: str, today: set[str]) -> None:
    """Fail the test that calls this if a stored line is not kept."""
    if found := faults(stored(part), today, load_changes()):
        pytest.fail(sentence(part, found), pytrace=False)


def sentence(part: str, found: Collection[str]) -> str:
    """Return what the test says about the *found* faults."""
    listed = "\n".join(f"  {fault}" for fault in found)
    return f"tests/surface/lists/{part}.txt is not kept:\n{listed}\n{ADVICE}"


@contextlib.contextmanager
def plain_environment(**set_to: str) -> Iterator[None]:
    """Run the block without the settings of whoever runs it, and with those given."""
    before = dict(os.environ)
    for name in [name for name in before if name.startswith("OGIVE_") or name == "NAMESRV_ADDR"]:
        if name != "OGIVE_NATIVE":
            del os.environ[name]
    os.environ.update(set_to)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
