"""RocketMQ as a broker of Celery and kombu: importing this package registers ``rocketmq://``."""

from kombu.transport import TRANSPORT_ALIASES

from ogive_kombu.transport import Channel, Transport

__all__ = ["Channel", "Transport"]

TRANSPORT_ALIASES["rocketmq"] = "ogive_kombu:Transport"
