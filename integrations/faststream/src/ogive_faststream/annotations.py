"""Annotations for arguments of handlers that FastStream injects."""

from typing import Annotated

from faststream import Context

from ogive_faststream import broker, message

RocketMQMessage = Annotated[message.RocketMQMessage, Context("message")]
RocketMQBroker = Annotated[broker.RocketMQBroker, Context("broker")]
