"""The order in which tests run, the records of those that passed and of those that failed, and the
broker that the integration suite runs on.
"""

import gc
import itertools
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from tests import lanes
from tests.interop.apache import VERSION
from tests.peers import Flavour, RunningBroker, start_broker
from tests.processes import QUICK_JAVA

# Some runners of CI set it, and tests compare texts without colours.
os.environ.pop("FORCE_COLOR", None)

# No test asserts a time: neither that of an example, nor that of making one.
_untimed: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
hypothesis.settings.register_profile("ogive", **_untimed)
# where each example takes a multiple of its time: --hypothesis-profile few
hypothesis.settings.register_profile("few", max_examples=15, **_untimed)
hypothesis.settings.load_profile("ogive")

# A long size that only computes takes minutes on a quiet machine, and many times as long on a slow
# one that other work keeps busy.
NIGHTLY_TIMEOUT_S = 3600
# markers of tests that start processes or take long
LAST = ("rel", "spark", "interop")
FIRST = ("first", "alone", "spark", "slow", "rel")
"""Markers of tests that workers begin with where there are several."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--broker",
        choices=("ogive", "apache"),
        default="ogive",
        help="whose broker the integration suite runs on",
    )
    parser.addoption(
        "--apache-version",
        default=VERSION,
        metavar="N.N.N",
        help="of the broker that --broker apache starts",
    )
    parser.addoption(
        "--nightly", action="store_true", help="also run the long sizes, as make test-slow does"
    )
    parser.addoption("--part", choices=lanes.PARTS, help="only tests of one part of make test-slow")
    parser.addoption(
        "--soak-minutes",
        type=int,
        default=5,
        metavar="N",
        help="how long T26 works: 5, and 60 once a week",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let the Java of Spark start soon: by day it lives for seconds, and to optimise what runs so
    short takes more than half of its time. Long sizes have the Java that users have.
    """
    if not config.getoption("--nightly"):
        os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_JAVA)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave what was made until now to itself: it lives until the end, and each collection of
    garbage would look at all of it.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Fast tests first: unit tests, then the others, then whatever is marked as slow.

    On Apache's broker only what asks for a broker.

    Of several workers (``-n 2``) each begins with the long ones, so that none is at one when the
    others have ended.
    """
    if config.getoption("--broker") == "apache":
        _keep(
            config,
            items,
            [item for item in items if "flavour" in getattr(item, "fixturenames", ())],
        )
        version = config.getoption("--apache-version")
        for item in items:
            since = item.get_closest_marker("since")
            if since is not None and _numbers_of(version) < _numbers_of(since.args[0]):
                item.add_marker(
                    pytest.mark.skip(
                        reason=f"Apache's {version} cannot: {since.kwargs['what']}, from "
                        f"{since.args[0]} on"
                    )
                )
    part = config.getoption("--part")
    if part is not None:
        _keep(config, items, [item for item in items if lanes.part_of(item) == part])
    if not config.getoption("--nightly"):
        _keep(config, items, [item for item in items if not item.get_closest_marker("nightly")])
    for item in items:
        if item.get_closest_marker("nightly") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(NIGHTLY_TIMEOUT_S))

    def cost(item: pytest.Item) -> tuple[bool, bool, bool]:
        slow = item.get_closest_marker("slow") is not None
        return (
            slow,
            any(item.get_closest_marker(name) for name in LAST),
            "tests/unit/" not in item.nodeid,
        )

    def rank(item: pytest.Item) -> tuple[bool, ...]:
        unmarked = (item.get_closest_marker(name) is None for name in FIRST)
        return *unmarked, "tests/unit/" in item.nodeid

    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None:
        items.sort(key=cost)
        return
    if config.getoption("--nightly"):
        items.sort(key=lambda item: -lanes.Need.of(item).seconds)
    else:
        items.sort(key=rank)
    lanes.write_units(Path(worker["units"]), {item.nodeid: lanes.Unit.of(item) for item in items})


def _keep(config: pytest.Config, items: list[pytest.Item], kept: list[pytest.Item]) -> None:
    chosen = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = kept


def pytest_configure_node(node: Any) -> None:
    """Give a worker the file that it writes the units of its tests to."""
    folder = tempfile.TemporaryDirectory(prefix="ogive-units-")
    node.config.add_cleanup(folder.cleanup)
    node.workerinput["units"] = str(Path(folder.name, "units.json"))


class OneByOne(LoadScopeScheduling):  # type: ignore[misc]  # xdist ships no types
    """A worker gets one unit after the other, in the order of the tests."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._units: dict[str, lanes.Unit] = {}

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        self._units |= lanes.read_units(Path(node.workerinput["units"]))
        super().add_node_collection(node, collection)

    def _split_scope(self, nodeid: str) -> str:
        return self._units[nodeid].name


class Lanes(OneByOne):
    """Of the tests that wait, a worker gets the first of its own lane, of the rest when there is
    none, and of whatever is left then.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        # the lanes that one worker has to itself
        self._workers: dict[str, Any] = {}

    def _assign_work_unit(self, node: Any) -> None:
        own = self._lane(node)
        order = {lanes.COMPUTES: 0, lanes.WAITS: 1, lanes.APART: 2} | {own: -1}
        first = min(self.workqueue, key=lambda name: order[self._lane_of(name)])
        if self._lane_of(first) == lanes.APART != own and len(self.nodes) > 1:
            # what is left is for the other worker
            node.shutdown()
            return
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)

    def _lane_of(self, unit: str) -> str:
        return self._units[next(iter(self.workqueue[unit]))].lane

    def _lane(self, node: Any) -> str:
        """The next worker that asks takes the place of one that died."""
        for lane in (lanes.COMPUTES, lanes.APART):
            if self._workers.get(lane) not in self.nodes and node not in self._workers.values():
                self._workers[lane] = node
        return next((lane for lane, worker in self._workers.items() if worker is node), lanes.WAITS)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneByOne:
    return Lanes(config, log) if config.getoption("--nightly") else OneByOne(config, log)


def _numbers_of(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


_failed: dict[str, None] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note each test that passed in the file that OGIVE_RAN names, for tools/features.py."""
    if report.failed:
        _failed[report.nodeid] = None
    ran = os.environ.get("OGIVE_RAN")
    if ran and report.when == "call" and report.passed:
        with Path(ran).open("a", encoding="utf-8") as file:
            file.write(report.nodeid + "\n")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the tests that failed to the file that OGIVE_FAILED names, for .ci/run.

    The file is empty if the run was cut short: then others may be missing.
    """
    path = os.environ.get("OGIVE_FAILED")
    if path and not hasattr(session.config, "workerinput"):
        names = _failed if exitstatus == pytest.ExitCode.TESTS_FAILED else ()
        Path(path).write_text("".join(f"{name}\n" for name in names), encoding="utf-8")


@pytest.fixture(scope="session")
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """Return "ogive" or "apache". A test of only one of them skips itself on the other."""
    chosen: Flavour = request.config.getoption("--broker")
    return chosen


@pytest.fixture(scope="session")
def release(request: pytest.FixtureRequest, flavour: Flavour) -> tuple[int, ...]:
    """The release of Apache's whose habits the broker has: (4, 9, 7), say.

    Ours has those of the newest that we know.
    """
    return _numbers_of(
        request.config.getoption("--apache-version") if flavour == "apache" else VERSION
    )


@pytest.fixture(scope="session")
def broker(
    request: pytest.FixtureRequest, flavour: Flavour, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    """A name server and a broker for the whole session, of the kind that --broker names; topics are
    created on first use.
    """
    version: str = request.config.getoption("--apache-version")
    with start_broker(flavour, tmp_path_factory.mktemp("broker"), version=version) as running:
        yield running


_numbers = itertools.count(1)


def unique(request: pytest.FixtureRequest, prefix: str) -> str:
    """Short enough for the columns of mqadmin's tables."""
    return (
        f"{prefix}{os.getpid()}_{next(_numbers)}"
        f"_{re.sub(r'[^a-z]+', '_', request.node.name.removeprefix('test_'))[:32]}"
    )


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses."""
    return unique(request, "T")


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A consumer group name that no other test uses."""
    return unique(request, "G")
