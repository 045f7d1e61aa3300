"""A broker for the tests, and names that no other test uses."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Connection

import ogive_kombu  # noqa: F401
from ogive.testing import Broker

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def url(broker: Broker) -> str:
    return f"rocketmq://{broker.name_server}//"


@pytest.fixture
def name() -> str:
    """The name of a queue."""
    return f"Queue{next(_numbers)}"


@pytest.fixture
def connection(url: str) -> Iterator[Any]:
    with Connection(url) as made:
        yield made
