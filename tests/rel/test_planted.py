"""Each planted fault is caught by the test that stands for it."""

import pytest

from tests.never.mutations import Mutation, run
from tests.planted import PLANTED, check_planted

pytestmark = pytest.mark.rel


def test_every_row_fits_the_source() -> None:
    check_planted()
    assert len(PLANTED) >= 14


@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize("row", PLANTED, ids=[row.case for row in PLANTED])
def test_a_planted_fault_is_caught(row: Mutation) -> None:
    caught, said = run(row)
    assert caught, f"{row.test} passes with the fault:\n{said}"
