"""The compiled part, beside its twins in Python."""

import os

import pytest

from ogive.native import Native, build, native


@pytest.fixture(scope="session")
def compiled() -> Native:
    """Skips where it was not built, unless this is CI, or it was built and is not used: then it has
    to be built.
    """
    if native is None:
        if os.environ.get("OGIVE_NATIVE") != "0" and (os.environ.get("CI") or "sources" in build):
            pytest.fail(f"ogive is {build}")
        pytest.skip(f"ogive is {build}")
    return native
