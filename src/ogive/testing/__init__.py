"""For tests: a real broker and name server (temporary folder, free ports, gone afterwards), and messages without one."""

from ogive.testing.broker import Broker
from ogive.testing.messages import message

__all__ = ["Broker", "message"]
