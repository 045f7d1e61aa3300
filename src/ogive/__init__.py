"""Apache RocketMQ for Python, whole: client, durable broker and name server, Spark."""

__version__ = "0.1.0"
