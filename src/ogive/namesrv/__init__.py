"""The name server: routes of topics to brokers, kept in memory from what brokers register."""

from ogive.namesrv.config import NameServerConfig
from ogive.namesrv.server import NameServer

__all__ = ["NameServer", "NameServerConfig"]
