"""The tests of what must never happen fail when the guard that they stand for is taken out."""

import pytest

from tests.never.mutations import MUTATIONS, Mutation, check_rows, run


def test_every_row_fits_the_source_and_every_case_has_one() -> None:
    check_rows()
    assert {mutation.case for mutation in MUTATIONS} >= {str(case) for case in range(1, 26)}


@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=[f"{m.name}-{i}" for i, m in enumerate(MUTATIONS)])
def test_a_mutation_is_caught(mutation: Mutation) -> None:
    caught, said = run(mutation)
    assert caught, f"{mutation.test} passes without {mutation.old!r}:\n{said}"
