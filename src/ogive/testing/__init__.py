"""A real broker and name server for tests and demonstrations: temporary folder, free ports, gone afterwards."""

from ogive.testing.broker import Broker

__all__ = ["Broker"]
