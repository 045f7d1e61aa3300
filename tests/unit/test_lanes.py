"""The three workers of make test-slow: who gets which test, on workers that only say what they were
given.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from tests import lanes
from tests.conftest import Lanes

ROOT: Final = Path(__file__).parents[2]
NEEDS: Final = {
    **{f"simulation[{i}]": lanes.Need(lanes.COMPUTES, 250) for i in range(4)},
    **{f"broker_kill[{i}]": lanes.Need(lanes.WAITS, 130) for i in range(6)},
    **{f"spark_kill[{i}]": lanes.Need(lanes.APART, 90) for i in range(12)},
    **{f"mutant[{i}]": lanes.Need(lanes.WAITS, 25) for i in range(47)},
}
"""By test, the long ones first, as workers sort them."""
TESTS: Final = list(NEEDS)


@dataclass(eq=False)
class Worker:
    """Runs a test once it knows the next one, or that there is none: as those of xdist do."""

    name: str
    folder: Path
    waiting: list[int] = field(default_factory=list)
    shutting_down: bool = False
    ends_at: float | None = None

    @property
    def gateway(self) -> Any:
        return SimpleNamespace(id=self.name)

    @property
    def workerinput(self) -> dict[str, str]:
        return {"units": str(self.folder / self.name)}

    def collect(self) -> list[str]:
        units = {test: lanes.Unit(test, need.lane) for test, need in NEEDS.items()}
        lanes.write_units(self.folder / self.name, units)
        return TESTS

    def send_runtest_some(self, indices: list[int]) -> None:
        self.waiting += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    def may_begin(self) -> bool:
        return (
            self.ends_at is None
            and bool(self.waiting)
            and (len(self.waiting) > 1 or self.shutting_down)
        )


def make_workers(count: int, folder: Path) -> list[Worker]:
    return [Worker(f"gw{i}", folder) for i in range(count)]


def begun(workers: list[Worker]) -> Lanes:
    config: Any = SimpleNamespace(
        getvalue=lambda _: ["popen"] * len(workers), option=SimpleNamespace(loadscopereorder=False)
    )
    scheduler = Lanes(config, None)
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, worker.collect())
    scheduler.schedule()
    return scheduler


def carried_out(workers: list[Worker]) -> Iterator[tuple[float, list[str]]]:
    """(the time, all that runs from now on) each time that something ends."""
    scheduler = begun(workers)
    now = 0.0
    while True:
        for worker in workers:
            if worker.may_begin():
                worker.ends_at = now + NEEDS[TESTS[worker.waiting[0]]].seconds
        busy = [worker for worker in workers if worker.ends_at is not None]
        yield now, [TESTS[worker.waiting[0]] for worker in busy]
        if not busy:
            return
        first = min(busy, key=lambda worker: worker.ends_at or 0.0)
        now, first.ends_at = first.ends_at or 0.0, None
        scheduler.mark_test_complete(first, first.waiting.pop(0))


def count_in(lane: str, tests: list[str]) -> int:
    return sum(NEEDS[test].lane == lane for test in tests)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_test_runs_and_none_apart_beside_another_of_them(count: int, tmp_path: Path) -> None:
    ran: set[str] = set()
    for _, running in carried_out(make_workers(count, tmp_path)):
        ran.update(running)
        assert count_in(lanes.APART, running) <= 1
    assert ran == set(TESTS)


def test_workers_end_together_and_one_computes(tmp_path: Path) -> None:
    *moments, (end, _) = carried_out(make_workers(3, tmp_path))
    assert end <= 1.1 * sum(need.seconds for need in NEEDS.values()) / 3
    assert max(count_in(lanes.COMPUTES, running) for _, running in moments) == 1


def test_a_worker_that_dies_leaves_its_lane_to_another(tmp_path: Path) -> None:
    first, crashed, third, another = make_workers(4, tmp_path)
    scheduler = begun([first, crashed, third])
    assert NEEDS[TESTS[crashed.waiting[0]]].lane == lanes.APART
    scheduler.remove_node(crashed)
    scheduler.add_node(another)
    scheduler.add_node_collection(another, another.collect())
    scheduler.schedule()
    waiting = [[TESTS[i] for i in worker.waiting] for worker in (first, third, another)]
    assert sum(count_in(lanes.APART, tests) > 0 for tests in waiting) == 1


class Sample(pytest.Item):
    """A test. Lanes look at its id and its markers only."""

    def runtest(self) -> None:
        raise NotImplementedError


class SampleModule(pytest.Collector):
    """A module, whose markers its tests have too."""

    def collect(self) -> list[pytest.Item]:
        raise NotImplementedError


def sample(
    above: pytest.Collector,
    *markers: pytest.MarkDecorator,
    test: str = "sample",
) -> Sample:
    made = Sample.from_parent(above, name="sample", nodeid=test)
    for marker in markers:
        made.add_marker(marker)
    return made


def test_a_test_needs_what_the_closest_marker_says(request: pytest.FixtureRequest) -> None:
    module = SampleModule.from_parent(request.session, name="module")
    module.add_marker(pytest.mark.computes(20))
    own = sample(module, pytest.mark.nightly, pytest.mark.waits(45))
    assert lanes.Need.of(sample(module, pytest.mark.rel)) == ("computes", 20)
    assert lanes.Need.of(own) == ("waits", 45)


def test_a_test_without_a_marker_is_short_and_waits_or_starts_spark(
    request: pytest.FixtureRequest,
) -> None:
    assert lanes.Need.of(sample(request.session)) == ("waits", 5)
    assert lanes.Need.of(sample(request.session, pytest.mark.spark)) == ("apart", 20)
    with pytest.raises(TypeError, match="seconds"):
        lanes.Need.of(sample(request.session, pytest.mark.apart()))


@pytest.mark.parametrize(
    ("markers", "part"),
    [
        ([pytest.mark.spark], "spark"),
        ([pytest.mark.bridge, pytest.mark.rel], "spark"),
        ([pytest.mark.interop], "interop"),
        ([pytest.mark.spark, pytest.mark.interop], "interop"),
        ([pytest.mark.interop, pytest.mark.sdk], "sdk"),
        ([pytest.mark.spark, pytest.mark.lakes], "lakes"),
        ([pytest.mark.rel, pytest.mark.simulation], "simulation"),
        ([pytest.mark.rel], "long"),
        ([], "long"),
    ],
)
def test_every_test_belongs_to_one_part(
    markers: list[pytest.MarkDecorator],
    part: str,
    request: pytest.FixtureRequest,
) -> None:
    assert lanes.part_of(sample(request.session, *markers)) == part


def test_a_worker_runs_all_of_a_file_whose_peers_its_tests_share(
    request: pytest.FixtureRequest,
) -> None:
    file = "tests/interop/test_sample.py"
    test = f"{file}::test_b[1]"
    shared = sample(request.session, pytest.mark.interop, test=test)
    alone = sample(request.session, pytest.mark.interop, pytest.mark.alone, test=test)
    other = sample(request.session, test=test)
    grouped = pytest.mark.xdist_group("java")
    of_group = sample(request.session, pytest.mark.interop, grouped, test=test)
    assert lanes.Unit.of(shared).name == file
    assert lanes.Unit.of(of_group).name == "java"
    assert lanes.Unit.of(alone).name == lanes.Unit.of(other).name == test


def test_make_knows_the_same_parts() -> None:
    make = (ROOT / "Makefile").read_text("utf-8")
    assert f"SLOW_PARTS = {' '.join(lanes.PARTS)}\n" in make
    assert f"PART={'|'.join(lanes.PARTS)}:" in make
