"""Helpers for tests: a real broker with its name server (``Broker``, ``RocketMQ``), a scripted one
(``FakeBroker``), and received messages.

Each name is loaded on first use: pytest imports this package in every run, for the fixture.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ogive.testing.broker import Broker
    from ogive.testing.fake_broker import FakeBroker, message
    from ogive.testing.rocketmq import RocketMQ

__all__ = ["Broker", "FakeBroker", "RocketMQ", "message"]

_HOME: Final = {
    "Broker": "broker",
    "FakeBroker": "fake_broker",
    "RocketMQ": "rocketmq",
    "message": "fake_broker",
}


# hidden from type checkers: to them a misspelt name would be of type Any
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'ogive.testing' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"ogive.testing.{_HOME[name]}"), name)
        globals()[name] = value
        return value
