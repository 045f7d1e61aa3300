"""Each planted fault is caught by every test that stands for it."""

from pathlib import Path

import pytest

from tests.never import mutations as never
from tests.never.mutations import Mutation, check_ids, environment, run
from tests.planted import PLANTED, check_planted

pytestmark = pytest.mark.rel

MUTATIONS = [mutation for row in PLANTED for mutation in row.mutations]


def test_every_row_fits_the_source() -> None:
    check_planted()
    assert len(PLANTED) >= 14


def test_every_test_of_a_row_is_there_with_its_parameters() -> None:
    check_ids([*MUTATIONS, *never.MUTATIONS])


def test_what_a_broken_copy_measures_gets_into_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("OGIVE_FIGURES", "figures.jsonl")
        patch.setenv("OGIVE_RAN", "ran")
        names = environment(Path("src")).keys()
    assert not {"OGIVE_FIGURES", "OGIVE_RAN"} & names


@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=[f"{one.case}-{one.test.partition('::')[0]}" for one in MUTATIONS])
def test_a_planted_fault_is_caught(mutation: Mutation) -> None:
    caught, said = run(mutation)
    assert caught, f"{mutation.test} passes with the fault:\n{said}"
