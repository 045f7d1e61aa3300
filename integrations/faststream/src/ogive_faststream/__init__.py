"""RocketMQ as a broker of FastStream."""

from ogive_faststream.annotations import RocketMQMessage
from ogive_faststream.broker import RocketMQBroker
from ogive_faststream.publishing import RocketMQPublishCommand, RocketMQResponse
from ogive_faststream.router import RocketMQPublisher, RocketMQRoute, RocketMQRouter
from ogive_faststream.testing import TestRocketMQBroker

__all__ = [
    "RocketMQBroker",
    "RocketMQMessage",
    "RocketMQPublishCommand",
    "RocketMQPublisher",
    "RocketMQResponse",
    "RocketMQRoute",
    "RocketMQRouter",
    "TestRocketMQBroker",
]
