"""A broker with a gRPC endpoint for the SDKs: ogive's, or Apache's proxy 5.5.0, in local mode or
before ogive's broker.
"""

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ogive.client import rpc
from ogive.testing import Broker
from ogive.transport.pool import ConnectionPool
from ogive.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from tests.interop.apache import NAME_SERVER_JVM, Apache
from tests.peers import APACHES_CHECKS, OUR_CHECKS, Flavour, RunningBroker
from tests.processes import free_port

# on a busy machine an SDK may end a transaction seconds after its half message; a question before
# that has a message of Apache's broker delivered twice
APACHES_SLOWER_CHECKS = {**APACHES_CHECKS, "transactionTimeOut": "6000"}
OUR_SLOWER_CHECKS = (*OUR_CHECKS, "--transaction-timeout", "6")
RETRIES = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000]}}
"""Messages that a push consumer failed are delivered again after a second."""


@dataclass(slots=True)
class ApacheProxy(Apache):
    """Apache's proxy in local mode, which is its broker in the same process."""

    proxy_settings: Mapping[str, object] = field(default_factory=dict)
    grpc_port: int = field(default_factory=free_port, init=False)
    _remoting_port: int = field(default_factory=free_port, init=False)

    def _start_broker(self) -> subprocess.Popen[bytes]:
        proxy = self.directory / "rmq-proxy.json"
        settings = {
            "rocketMQClusterName": "DefaultCluster",
            "grpcServerPort": self.grpc_port,
            "remotingListenPort": self._remoting_port,
            "namesrvAddr": self.name_server,
            **self.proxy_settings,
        }
        proxy.write_text(json.dumps(settings))
        _, broker = self._configured("broker", self._broker_settings())
        arguments = ["-pm", "LOCAL", "-pc", str(proxy), "-bc", broker]
        return self._spawn(
            "org.apache.rocketmq.proxy.ProxyStartup",
            "proxy",
            [*arguments, "-n", self.name_server],
            self.jvm,
            self._is_ready,
        )

    def _says_it_started(self, name: str) -> bool:
        if name == "broker":
            return (
                b"rocketmq-proxy startup successfully"
                in (self.directory / "proxy.out").read_bytes()
            )
        return Apache._says_it_started(self, name)


@dataclass(slots=True)
class ApacheClusterProxy(Apache):
    """Apache's proxy in cluster mode, before the brokers of *name_server*."""

    with_broker: bool = field(default=False, init=False)
    grpc_port: int = field(default_factory=free_port, init=False)
    _remoting_port: int = field(default_factory=free_port, init=False)

    def start(self) -> None:
        proxy = self.directory / "rmq-proxy.json"
        settings = {
            "rocketMQClusterName": "DefaultCluster",
            "grpcServerPort": self.grpc_port,
            "remotingListenPort": self._remoting_port,
            "namesrvAddr": self.name_server,
            # the proxy acknowledges by BATCH_ACK_MESSAGE as well
            "enableBatchAck": True,
        }
        proxy.write_text(json.dumps(settings))
        self._broker_process = self._spawn(
            "org.apache.rocketmq.proxy.ProxyStartup",
            "proxy",
            ["-pm", "CLUSTER", "-pc", str(proxy), "-n", self.name_server],
            NAME_SERVER_JVM,
            lambda: b"rocketmq-proxy startup successfully" in self._printed().read_bytes(),
        )

    def _printed(self) -> Path:
        return self.directory / "proxy.out"


@dataclass(frozen=True, slots=True)
class Server:
    """A running broker, and where its gRPC endpoint listens."""

    broker: RunningBroker
    endpoints: str
    restart_proxy: Callable[[], None] | None = None
    """Stops and starts the proxy if the endpoint is one."""

    @property
    def name_server(self) -> str:
        return self.broker.name_server

    def topic(self, name: str, message_type: str = "NORMAL", queues: int = 4) -> str:
        """Create a topic for messages of that type."""

        async def create() -> None:
            pool = ConnectionPool()
            try:
                config = TopicConfig(
                    name=name,
                    read_queues=queues,
                    write_queues=queues,
                    attributes={"message.type": message_type},
                )
                await rpc.create_topic(pool, self.broker.address, config)
            finally:
                await pool.close()

        asyncio.run(create())
        return name

    def group(self, name: str, *, fifo: bool = False, max_retries: int = 16) -> str:
        """Create a consumer group; the members of a *fifo* group receive in order."""

        async def create() -> None:
            pool = ConnectionPool()
            try:
                config = SubscriptionGroupConfig(
                    name=name,
                    consume_message_orderly=fifo,
                    retry_max_times=max_retries,
                    retry_policy=RETRIES,
                )
                await rpc.create_group(pool, self.broker.address, config)
            finally:
                await pool.close()

        asyncio.run(create())
        return name


@contextmanager
def start_server(flavour: Flavour, folder: Path, *options: str) -> Iterator[Server]:
    """*options* are for ogive's broker."""
    if flavour == "apache":
        with ApacheProxy(folder, APACHES_SLOWER_CHECKS) as proxy:
            yield Server(proxy, f"127.0.0.1:{proxy.grpc_port}")
        return
    options = (*OUR_SLOWER_CHECKS, *options)
    with Broker(data=folder / "store", grpc_port=0, options=options) as broker:
        yield Server(broker, broker.grpc_endpoint)
