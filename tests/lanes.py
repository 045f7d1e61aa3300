"""Lanes and parts of make test-slow: three tests at a time on two cores, and the time of each.

One worker *computes*: long sizes that keep a core busy and that no clock judges. One takes what
runs *apart*: what starts Spark, what measures, and what holds leases against pauses, so that no two
of those run beside each other. The third takes the rest, most of which *waits*: for deadlines, for
members that come and go, for processes that start. Long ones come first, so that the workers end
together. A worker helps with the rest once its own lane is empty.

A marker on a test or its module names the lane, and about how many seconds the long size takes on
two quiet cores: ``@pytest.mark.computes(250)``. Of several markers the closest to the test counts.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self

import pytest

COMPUTES, APART, WAITS = "computes", "apart", "waits"

PARTS: Final = ("spark", "releases", "lakes", "frameworks", "interop", "sdk", "simulation", "long")
"""Parts of make test-slow. Split one that takes over 55 minutes on two quiet cores.

The part *releases* has no long sizes: it runs the Spark bridge on the other releases of Spark. The
part *lakes* runs on Spark 4.0, with the jars of table formats. The part *frameworks* has the
tests of integrations, which are not below tests.
"""


class Need(NamedTuple):
    """The lane of a test, and about how many seconds it takes."""

    lane: str
    seconds: int

    @classmethod
    def of(cls, test: pytest.Item) -> Self:
        """Raises TypeError for a marker without the seconds."""
        for marker in test.iter_markers():
            if marker.name in (COMPUTES, APART, WAITS):
                return cls(marker.name, *marker.args)
        return cls(APART, 20) if part_of(test) == "spark" else cls(WAITS, 5)


def part_of(test: pytest.Item) -> str:
    if test.get_closest_marker("sdk"):
        return "sdk"
    if test.get_closest_marker("lakes"):
        return "lakes"
    if test.get_closest_marker("interop"):
        return "interop"
    if test.get_closest_marker("spark") or test.get_closest_marker("bridge"):
        return "spark"
    if test.get_closest_marker("simulation"):
        return "simulation"
    return "long"


class Unit(NamedTuple):
    """What one worker runs as a whole: a test, or all tests of a file."""

    name: str
    lane: str

    @classmethod
    def of(cls, test: pytest.Item) -> Self:
        """Tests of a file of tests/interop share peers, which would else start in each worker;
        of a file for several peers, those of the same xdist_group do.
        """
        if group := test.get_closest_marker("xdist_group"):
            return cls(group.args[0], Need.of(test).lane)
        shared = test.get_closest_marker("interop") and not test.get_closest_marker("alone")
        name = test.nodeid.partition("::")[0] if shared else test.nodeid
        return cls(name, Need.of(test).lane)


def write_units(file: Path, units: Mapping[str, Unit]) -> None:
    """Tell the scheduler, which runs in another process and collects no tests itself."""
    file.write_text(json.dumps(units), "utf-8")


def read_units(file: Path) -> dict[str, Unit]:
    return {test: Unit(*unit) for test, unit in json.loads(file.read_text("utf-8")).items()}
