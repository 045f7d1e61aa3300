"""The durable store of the broker, in Apache's byte layout: an acknowledged message is durable."""

from ogive.store.fs import Fs, OsFs
from ogive.store.message_store import MessageStore
from ogive.store.tables import JsonTable
from ogive.store.types import (
    Entry,
    GetResult,
    GetStatus,
    NewBatch,
    NewMessage,
    PutDone,
    PutResult,
    QueueKey,
    StoreConfig,
    StoreStats,
)

__all__ = [
    "Entry",
    "Fs",
    "GetResult",
    "GetStatus",
    "JsonTable",
    "MessageStore",
    "NewBatch",
    "NewMessage",
    "OsFs",
    "PutDone",
    "PutResult",
    "QueueKey",
    "StoreConfig",
    "StoreStats",
]
