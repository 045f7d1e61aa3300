"""The pytest plugin: the fixture ``rocketmq``.

Found by its entry point; importing it costs next to nothing.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ogive.testing.rocketmq import RocketMQ


@pytest.fixture(scope="session")
def rocketmq() -> "Iterator[RocketMQ]":
    """A real broker with its name server for the whole session: ``.name_server``, ``.send``,
    ``.messages``, ``.wait_consumed``.

    Retries take a second each. Tests stay independent by using topics and groups of their own.
    """
    from ogive.testing.rocketmq import RocketMQ

    with RocketMQ() as running:
        yield running
