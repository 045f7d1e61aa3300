"""Apache RocketMQ for Python: client, durable broker with name server, and Spark source and sink.

Importing ogive is cheap: each name is loaded on first use.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

from ogive.version import __version__ as __version__

if TYPE_CHECKING:
    from ogive import aio, errors
    from ogive.client.config import ClientConfig, ProducerConfig
    from ogive.client.consumer.config import ConsumerConfig
    from ogive.client.consumer.listener_call import ListenerCall
    from ogive.client.consumer.push_consumer import run
    from ogive.client.instrumentation import SendHook
    from ogive.client.listener import (
        COMMIT,
        DEAD_LETTER,
        LATER,
        ROLLBACK,
        ConsumeResult,
        Listener,
        Reply,
        later,
        listener,
        suspend,
    )
    from ogive.client.metrics import metrics
    from ogive.client.sending.handle import SendHandle
    from ogive.client.serialize import to_json
    from ogive.client.sync.admin import Admin
    from ogive.client.sync.consumers import PullConsumer, PushConsumer, SimpleConsumer
    from ogive.client.sync.producer import Producer, Transaction
    from ogive.errors import (
        BodyUnreadable,
        BrokerError,
        ConnectError,
        GroupNotExist,
        IllegalStateError,
        InvalidOption,
        LeaseEnded,
        MessageIllegal,
        NoNameServer,
        NoPermission,
        NoRoute,
        OgiveError,
        ReplyTimeout,
        RequestTimeout,
        SendFailed,
        SendTimeout,
        TopicNotExist,
        TransportError,
    )
    from ogive.model import (
        Message,
        MessageExt,
        MessageQueue,
        PullResult,
        PullStatus,
        RecallResult,
        SendResult,
        SendStatus,
    )
    from ogive.wire.signing import Credentials

__all__ = [
    "COMMIT",
    "DEAD_LETTER",
    "LATER",
    "ROLLBACK",
    "Admin",
    "BodyUnreadable",
    "BrokerError",
    "ClientConfig",
    "ConnectError",
    "ConsumeResult",
    "ConsumerConfig",
    "Credentials",
    "GroupNotExist",
    "IllegalStateError",
    "InvalidOption",
    "LeaseEnded",
    "Listener",
    "ListenerCall",
    "Message",
    "MessageExt",
    "MessageIllegal",
    "MessageQueue",
    "NoNameServer",
    "NoPermission",
    "NoRoute",
    "OgiveError",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "RecallResult",
    "Reply",
    "ReplyTimeout",
    "RequestTimeout",
    "SendFailed",
    "SendHandle",
    "SendHook",
    "SendResult",
    "SendStatus",
    "SendTimeout",
    "SimpleConsumer",
    "TopicNotExist",
    "Transaction",
    "TransportError",
    "aio",
    "errors",
    "later",
    "listener",
    "metrics",
    "run",
    "suspend",
    "to_json",
]

_HOME: Final = {
    "COMMIT": "ogive.client.listener",
    "DEAD_LETTER": "ogive.client.listener",
    "LATER": "ogive.client.listener",
    "ROLLBACK": "ogive.client.listener",
    "Admin": "ogive.client.sync.admin",
    "BodyUnreadable": "ogive.errors",
    "BrokerError": "ogive.errors",
    "ClientConfig": "ogive.client.config",
    "ConnectError": "ogive.errors",
    "ConsumeResult": "ogive.client.listener",
    "ConsumerConfig": "ogive.client.consumer.config",
    "Credentials": "ogive.wire.signing",
    "GroupNotExist": "ogive.errors",
    "IllegalStateError": "ogive.errors",
    "InvalidOption": "ogive.errors",
    "LeaseEnded": "ogive.errors",
    "Listener": "ogive.client.listener",
    "ListenerCall": "ogive.client.consumer.listener_call",
    "Message": "ogive.model",
    "MessageExt": "ogive.model",
    "MessageIllegal": "ogive.errors",
    "MessageQueue": "ogive.model",
    "NoNameServer": "ogive.errors",
    "NoPermission": "ogive.errors",
    "NoRoute": "ogive.errors",
    "OgiveError": "ogive.errors",
    "Producer": "ogive.client.sync.producer",
    "ProducerConfig": "ogive.client.config",
    "PullConsumer": "ogive.client.sync.consumers",
    "PullResult": "ogive.model",
    "PullStatus": "ogive.model",
    "PushConsumer": "ogive.client.sync.consumers",
    "RecallResult": "ogive.model",
    "Reply": "ogive.client.listener",
    "ReplyTimeout": "ogive.errors",
    "RequestTimeout": "ogive.errors",
    "SendFailed": "ogive.errors",
    "SendHandle": "ogive.client.sending.handle",
    "SendHook": "ogive.client.instrumentation",
    "SendResult": "ogive.model",
    "SendStatus": "ogive.model",
    "SendTimeout": "ogive.errors",
    "SimpleConsumer": "ogive.client.sync.consumers",
    "TopicNotExist": "ogive.errors",
    "Transaction": "ogive.client.sync.producer",
    "TransportError": "ogive.errors",
    "later": "ogive.client.listener",
    "listener": "ogive.client.listener",
    "metrics": "ogive.client.metrics",
    "run": "ogive.client.consumer.push_consumer",
    "suspend": "ogive.client.listener",
    "to_json": "ogive.client.serialize",
}
# the last two are no part of the face: one needs an extra, the other stands above the client
_SUBMODULES: Final = frozenset({"aio", "errors", "otel", "testing"})


# hidden from type checkers: to them a misspelt name would be of type Any
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _SUBMODULES:
            return importlib.import_module(f"ogive.{name}")
        if name not in _HOME:
            rarer = getattr(importlib.import_module("ogive.errors"), name, None)
            where = f": use ogive.errors.{name}" if isinstance(rarer, type) else ""
            # with these two a traceback suggests the nearest name
            raise AttributeError(
                f"module 'ogive' has no attribute {name!r}{where}",
                name=name,
                obj=sys.modules[__name__],
            )
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
