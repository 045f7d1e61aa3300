"""The tests of this folder are of the Spark bridge."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.bridge)
