"""The broker: one event loop that owns all state, in front of a store with one writer."""

from ogive.broker.config import BrokerConfig
from ogive.broker.server import Broker

__all__ = ["Broker", "BrokerConfig"]
