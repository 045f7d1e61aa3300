"""The gRPC endpoint for the official RocketMQ 5 SDKs (``apache.rocketmq.v2``)."""
