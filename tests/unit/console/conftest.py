"""Consoles with nothing behind them, and with a cluster that follows a script."""

import importlib.util
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from ogive.testing.fake_broker import FakeBroker

# The extra `console` is installed wherever tools/setup was; without it these tests cannot be read.
# In CI that is a failure.
if importlib.util.find_spec("starlette") is None and os.environ.get("CI") != "true":
    collect_ignore_glob = ["test_*.py"]
else:
    from tests.browser import Browser, console_of

    @pytest.fixture(scope="module")
    def alone() -> Iterator[Browser]:
        """No name server answers."""
        with console_of("127.0.0.1:1") as browser:
            yield browser

    @pytest.fixture
    async def fake() -> AsyncIterator[FakeBroker]:
        async with FakeBroker({"Orders": 2}) as broker:
            yield broker
