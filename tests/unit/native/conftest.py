"""The compiled part, beside its twins in Python."""

import os

import pytest

from ogive.native import Native, native


@pytest.fixture(scope="session")
def compiled() -> Native:
    """Skips where it was not built, unless this is CI: there it has to be."""
    if native is None:
        if os.environ.get("CI") and os.environ.get("OGIVE_NATIVE") != "0":
            pytest.fail("the compiled part was not built")
        pytest.skip("the compiled part was not built, or is left out by OGIVE_NATIVE=0")
    return native
