"""What every test against Apache's programs needs: Java and Maven, and Apache's or our broker for a
module's tests.
"""

import os
from collections.abc import Iterator

import pytest

from ogive.testing import Broker
from tests.interop import apache
from tests.peers import DELAY_LEVELS, our_broker


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.interop)


@pytest.fixture(scope="session", autouse=True)
def _peers() -> Iterator[None]:
    """Skip where Java or Maven is missing; fail there in CI, and in a run whose results are written
    down (make test-slow).
    """
    if missing := apache.missing_prerequisite():
        if os.environ.get("CI") == "true" or os.environ.get("OGIVE_FIGURES"):
            pytest.fail(missing)
        pytest.skip(missing)
    apache.class_path()
    yield
    apache.stop_client_servers()


@pytest.fixture(scope="module")
def apache_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apache.Apache]:
    """Apache's name server and broker."""
    with apache.Apache(
        tmp_path_factory.mktemp("apache"), {"messageDelayLevel": DELAY_LEVELS}
    ) as running:
        yield running


@pytest.fixture(scope="module")
def ogive_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Our name server and broker, as `ogive up` starts them."""
    with our_broker(tmp_path_factory.mktemp("ogive")) as running:
        yield running
