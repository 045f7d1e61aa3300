"""The parts of the cluster, each on a node of its own, and how they start, stop and die."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from ogive.broker.config import BrokerConfig
from ogive.broker.server import Broker
from ogive.broker.startup import Machine
from ogive.client.config import ClientConfig
from ogive.namesrv.config import NameServerConfig
from ogive.namesrv.server import NameServer
from tests.chaos.recorder import MemoryFs
from tests.simulation.disk import LiveFs, VirtualWriter
from tests.simulation.loop import Node, VirtualLoop
from tests.simulation.network import Network

NAME_SERVER: Final = "127.0.0.1:9876"
DELAYS_S: Final = (1.0, 2.0, 3.0, 5.0)
CLIENT: Final = ClientConfig(name_server=NAME_SERVER, heartbeat_period_s=5.0, route_period_s=5.0)

_BROKER: Final[dict[str, Any]] = {
    "name_servers": (NAME_SERVER,),
    "segment_bytes": 64 * 1024,
    "delay_levels": " ".join(f"{delay:g}s" for delay in DELAYS_S),
    "default_topic_queues": 4,
    "transaction_timeout_s": 3.0,
    "transaction_check_interval_s": 5.0,
    "transaction_check_max": 10_000,
    "client_expiry_s": 30.0,
    "register_period_s": 5.0,
}
_SIZES: Final = {
    "consume_queue_file_bytes": 20 * 64,
    "ahead_bytes": 16 * 1024,
    "hot_log_bytes": 32 * 1024,
    "checksum_block_bytes": 2 * 1024,
    "hot_entries": 256,
    "flush_bytes": 16 * 1024,
    "checkpoint_bytes": 32 * 1024,
    "max_group_bytes": 16 * 1024,
    "max_open_files": 16,
}


class Cluster:
    """One name server, one broker, and nodes for clients. Restarts keep addresses and files."""

    def __init__(self, loop: VirtualLoop, flush: Literal["sync", "async"]) -> None:
        self.loop = loop
        self.network = Network(loop)
        self.flush = flush
        self.broker: Broker | None = None
        # of the broker that is not running
        self._files: MemoryFs | None = None
        self._fs: LiveFs | None = None
        self.boots = 1
        self._broker_node = self._name_server_node = Node("none", dead=True)
        self._name_server: NameServer | None = None

    # --- any node ---------------------------------------------------------------------------------

    async def on(self, node: Node, work: Callable[[], Awaitable[Any]]) -> Any:
        """*work* called and awaited on *node*; None if the node dies meanwhile."""

        async def run() -> Any:
            return await work()

        task = self.loop.spawn(node, run())
        while not task.done() and not node.dead:
            await asyncio.wait([task], timeout=0.05)
        return task.result() if task.done() else None

    def kill(self, node: Node) -> None:
        node.dead = True
        node.held.clear()
        self.network.node_died(node)

    # --- name server ------------------------------------------------------------------------------

    async def start_name_server(self) -> None:
        node = self._name_server_node = Node("name server")

        async def start() -> None:
            self._name_server = NameServer(NameServerConfig(port=9876))
            await self._name_server.start()

        await self.on(node, start)

    async def restart_name_server(self, away_s: float) -> None:
        self.kill(self._name_server_node)
        await asyncio.sleep(away_s)
        await self.start_name_server()

    # --- broker -----------------------------------------------------------------------------------

    async def start_broker(self) -> None:
        node = self._broker_node = Node("broker")
        self._fs = LiveFs(self._files, node, f"boot-{self.boots}")
        machine = Machine(fs=self._fs, writer=partial(VirtualWriter, self.loop), store=_SIZES)

        async def start() -> None:
            self.broker = Broker(
                BrokerConfig(data=Path("/store"), flush=self.flush, **_BROKER), machine
            )
            await self.broker.start()

        await self.on(node, start)

    async def stop_broker(self) -> None:
        """As SIGTERM does it."""
        broker, node = self.broker, self._broker_node
        if broker is not None and not node.dead:
            await self.on(node, broker.stop)
            self._remember(power_cut=False)

    def kill_broker(self, *, power_cut: bool) -> None:
        if not self._broker_node.dead:
            self._remember(power_cut=power_cut)

    def _remember(self, *, power_cut: bool) -> None:
        assert self._fs is not None
        self.boots += power_cut
        self._files = (
            self._fs.after_power_cut(self.loop.rng) if power_cut else self._fs.after_kill()
        )
        self.kill(self._broker_node)
        self.broker = None

    def break_disk(self) -> None:
        """Every write and sync fails from now on."""
        if self._fs is not None:
            self._fs.failing = True

    def fill_disk(self, *, full: bool) -> None:
        """No file of the broker that runs grows, and none is made."""
        if self._fs is not None:
            self._fs.full = full

    def flip_bit(self, body: bytes) -> bool:
        """One bit of the *body* of the first of the log's records that have it; only while the
        broker is down. False where none does.
        """
        assert self.broker is None
        assert self._files is not None
        # "000390" alone also stands in "000039000039"
        field = len(body).to_bytes(4) + body
        for path, inode in sorted(self._files.names.items()):
            if path.parent.name == "commitlog" and (at := inode.data.find(field)) >= 0:
                inode.data[at + 4 + self.loop.rng.randrange(len(body))] ^= (
                    1 << self.loop.rng.randrange(8)
                )
                return True
        return False

    @property
    def broker_failed(self) -> bool:
        return self.broker is not None and self.broker.failed.done()

    @property
    def nodes(self) -> tuple[Node, Node]:
        return self._name_server_node, self._broker_node
