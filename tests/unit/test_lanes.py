"""The three workers of make test-slow: who gets which test, on workers that only say what they were given."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import lanes
from tests.conftest import Lanes

ROOT = Path(__file__).parents[1]
TESTS = [
    *(f"tests/rel/test_simulation.py::test_stories[{i}]" for i in range(4)),
    *(f"tests/rel/test_spark_kills.py::test_{i}" for i in range(12)),
    *(f"tests/rel/test_broker_kill.py::test_{i}" for i in range(6)),
    *(f"tests/rel/test_mutants.py::test_a_named_mutant[{i}]" for i in range(47)),
]


@dataclass(eq=False)
class Worker:
    """Runs a test once it knows the next one, or that there is none: as those of xdist do."""

    name: str
    waiting: list[int] = field(default_factory=list)
    shutting_down: bool = False
    ends_at: float | None = None

    @property
    def gateway(self) -> Any:
        return SimpleNamespace(id=self.name)

    def send_runtest_some(self, indices: list[int]) -> None:
        self.waiting += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    def may_begin(self) -> bool:
        return self.ends_at is None and bool(self.waiting) and (len(self.waiting) > 1 or self.shutting_down)


def begun(tests: list[str], workers: list[Worker]) -> tuple[Lanes, list[str]]:
    config: Any = SimpleNamespace(getvalue=lambda _: ["popen"] * len(workers), option=SimpleNamespace(loadscopereorder=False))
    scheduler = Lanes(config, None)
    collection = sorted(tests, key=lambda test: -lanes.seconds_of(test))
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, collection)
    scheduler.schedule()
    return scheduler, collection


def carried_out(tests: list[str], workers: list[Worker]) -> Iterator[tuple[float, list[str]]]:
    """(the time, all that runs from now on) each time that something ends."""
    scheduler, collection = begun(tests, workers)
    now = 0.0
    while True:
        for worker in workers:
            if worker.may_begin():
                worker.ends_at = now + lanes.seconds_of(collection[worker.waiting[0]])
        busy = [worker for worker in workers if worker.ends_at is not None]
        yield now, [collection[worker.waiting[0]] for worker in busy]
        if not busy:
            return
        first = min(busy, key=lambda worker: worker.ends_at or 0.0)
        now, first.ends_at = first.ends_at or 0.0, None
        scheduler.mark_test_complete(first, first.waiting.pop(0))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_test_runs_and_none_apart_beside_another_of_them(count: int) -> None:
    ran: set[str] = set()
    for _, running in carried_out(TESTS, [Worker(f"gw{i}") for i in range(count)]):
        ran.update(running)
        assert sum(lanes.lane_of(test) == lanes.APART for test in running) <= 1
    assert ran == set(TESTS)


def test_workers_end_together_and_one_computes() -> None:
    *moments, (end, _) = carried_out(TESTS, [Worker(f"gw{i}") for i in range(3)])
    assert end <= 1.1 * sum(map(lanes.seconds_of, TESTS)) / 3
    computing = [sum(lanes.lane_of(test) == lanes.COMPUTES for test in running) for _, running in moments]
    assert max(computing) == 1


def test_a_worker_that_dies_leaves_its_lane_to_another() -> None:
    workers = [Worker(f"gw{i}") for i in range(3)]
    scheduler, collection = begun(TESTS, workers)
    crashed = workers[1]
    assert lanes.lane_of(collection[crashed.waiting[0]]) == lanes.APART
    scheduler.remove_node(crashed)
    another = Worker("gw3")
    scheduler.add_node(another)
    scheduler.add_node_collection(another, collection)
    scheduler.schedule()
    apart = [worker.name for worker in (*workers, another) if worker is not crashed and scheduler._lane(worker) == lanes.APART]
    assert len(apart) == 1


@pytest.mark.parametrize(
    ("test", "part"),
    [
        ("tests/integration/test_spark_sink.py::test_a", "spark"),
        ("tests/rel/test_pipeline_kills.py::test_a[1]", "spark"),
        ("tests/interop/test_mixed_churn.py::test_a", "interop"),
        ("tests/rel/test_soak.py::test_a", "long"),
        ("tests/unit/spark/test_sink.py::test_a", "long"),
    ],
)
def test_every_test_belongs_to_one_part(test: str, part: str) -> None:
    assert lanes.part_of(test) == part


def test_make_knows_the_same_parts() -> None:
    make = (ROOT.parent / "Makefile").read_text("utf-8")
    assert f"SLOW_PARTS = {' '.join(lanes.PARTS)}\n" in make
    assert f"PART={'|'.join(lanes.PARTS)}:" in make


def test_the_tables_speak_of_tests_that_there_are() -> None:
    files = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in ROOT.rglob("test_*.py")}
    for rows in (*lanes.TAKES.values(), *lanes.PARTS.values()):
        for begins in rows:
            path, _, name = begins.partition("[")[0].partition("::")
            assert any(file.startswith(path) and f"def {name}" in text for file, text in files.items()), begins
