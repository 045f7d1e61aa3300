"""Ports for servers of other programs: nobody gets one that another process of the same run is
about to bind.
"""

import itertools
import random

import pytest

from tests import processes


def blocks_of(worker: int, workers: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{worker}")
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", str(workers))
    return list(itertools.islice(processes._blocks(), 10_000 // processes.BLOCK // workers))


def test_workers_share_no_block_and_get_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [port for worker in range(3) for port in blocks_of(worker, 3, monkeypatch)]
    assert len(given) == len(set(given)) > 1_200
    assert all(port >= 20_000 and port + processes.BLOCK <= 30_000 for port in given)


def test_ports_of_a_server_and_its_neighbours_overlap_with_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "is_free", lambda port: True)
    given: list[int] = []
    for _ in range(100):
        # as Hypothesis does in every worker
        random.seed(1)
        broker = processes.free_port((-2, 0, 1))
        given += [processes.free_port(), broker - 2, broker, broker + 1]
    assert len(given) == len(set(given))


def test_a_neighbour_that_is_taken_costs_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_next_blocks", itertools.cycle([20_000, 20_008]))
    monkeypatch.setattr(processes, "is_free", lambda port: port != 20_003)
    assert processes.free_port((-2, 0, 1)) == 20_010


def test_where_nothing_is_free_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "is_free", lambda port: False)
    with pytest.raises(processes.StartFailed, match="no free port"):
        processes.free_port()
