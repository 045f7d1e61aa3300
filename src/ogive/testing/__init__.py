"""For tests: a real broker and name server (temporary folder, free ports, gone afterwards), one that follows a script, and messages."""

from ogive.testing.broker import Broker
from ogive.testing.fake_broker import FakeBroker
from ogive.testing.messages import message

__all__ = ["Broker", "FakeBroker", "message"]
