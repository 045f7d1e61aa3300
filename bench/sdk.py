"""The official Java SDK of RocketMQ 5 on ogive's gRPC port, and on Apache's proxy in local mode."""

import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from bench.brokers import JVM
from bench.processes import measured, resident_mib
from ogive.testing import Broker
from tests.interop.sdk.sdks import java_classes
from tests.interop.sdk.servers import ApacheProxy, Server

PEERS: Final = ("apache", "ogive")
TOPIC: Final = "Sdk"
FIGURES: Final = ("messages/s", "server CPU a message (us)", "p50 (ms)", "p99 (ms)")
LOADS: Final = {
    "sync": "sends by 32 threads, 1 KiB",
    "async": "sends in flight, 1 KiB",
    "receive": "receive and acknowledge by 32 threads, 1 KiB",
}


class Turn(NamedTuple):
    """One load of some seconds on one server."""

    per_s: float
    cpu_us: float
    p50_ms: float
    p99_ms: float


@dataclass
class Client:
    """A process that loads one server."""

    server: Server
    process: "subprocess.Popen[str]"
    turns: dict[str, list[Turn]] = field(default_factory=dict)

    def turn(self, load: str, seconds: float) -> Turn:
        assert self.process.stdin is not None
        with measured(self.server.broker.pid) as use:
            self.process.stdin.write(f"{load} {round(1000 * seconds)}\n")
            self.process.stdin.flush()
            count, took_s, p50_ms, p99_ms = map(float, self.said().split())
        if not count:
            raise RuntimeError(f"no message in {took_s:.1f} s of {load}")
        return Turn(count / took_s, use.cpu_s / count * 1e6, p50_ms, p99_ms)

    def said(self) -> str:
        """Return the next line. Raises RuntimeError if the process has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the SDK's process has ended, see its error above")
        return line


@contextmanager
def serving(peer: str, directory: Path) -> Iterator[Server]:
    """A broker with a gRPC port. Each send is on the disk before it is answered."""
    if peer == "apache":
        with ApacheProxy(directory, {"flushDiskType": "SYNC_FLUSH"}, jvm=JVM) as proxy:
            yield Server(proxy, f"127.0.0.1:{proxy.grpc_port}")
        return
    with Broker(data=directory / "store", grpc_port=0) as broker:
        yield Server(broker, broker.grpc_endpoint)


@contextmanager
def loading(server: Server, command: list[str]) -> Iterator[Client]:
    process = subprocess.Popen(
        [*command, server.endpoints, TOPIC, "sdk"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    client = Client(server, process)
    try:
        while client.said() != "ready\n":
            pass
        yield client
    finally:
        process.kill()
        process.communicate()


def compare(scale: int) -> None:
    """Print rates, processor time of the server, and times of one call, on both servers in turns;
    medians of five.
    """
    seconds, turns = (5.0, 5) if scale == 1 else (1.0, 1)
    classes = java_classes("load", [Path(__file__).parent / "java" / "Load.java"])
    command = [*classes, "Load"]
    directory = Path(tempfile.mkdtemp(prefix="ogive-bench-"))
    try:
        with ExitStack() as stack:
            clients = {}
            for peer in PEERS:
                server = stack.enter_context(serving(peer, directory / peer))
                server.topic(TOPIC, queues=8)
                server.group("sdk")
                clients[peer] = stack.enter_context(loading(server, command))
                for load in LOADS:
                    # as a warm-up
                    clients[peer].turn(load, 2 * seconds)
            for _ in range(turns):
                for load in LOADS:
                    for client in clients.values():
                        client.turns.setdefault(load, []).append(client.turn(load, seconds))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print("\n| Java SDK 5.2.0, sync flush, in turns | apache | ogive | ratio |\n|---|---|---|---|")
    for load, title in LOADS.items():
        # a receive is many calls
        for index, unit in enumerate(FIGURES[:2] if load == "receive" else FIGURES):
            theirs, ours = (
                statistics.median(turn[index] for turn in clients[peer].turns[load])
                for peer in PEERS
            )
            print(f"| {title}, {unit} | {theirs:,.2f} | {ours:,.2f} | {ours / theirs:.2f} |")


def compare_ports(scale: int) -> None:
    """Print what the port costs a broker that nobody uses: memory, and time to ready."""
    rows: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for _ in range(5 if scale == 1 else 1):
        for has_port, found in rows.items():
            began = time.perf_counter()
            with Broker(grpc_port=0 if has_port else None) as broker:
                ready_s = time.perf_counter() - began
                found.append((resident_mib(broker.pid), ready_s))
    print("\n| ogive, idle | without the gRPC port | with it | more |\n|---|---|---|---|")
    for index, unit in enumerate(("resident (MiB)", "time to ready (s)")):
        without, having = (statistics.median(one[index] for one in rows[it]) for it in rows)
        print(f"| {unit} | {without:,.2f} | {having:,.2f} | {having - without:,.2f} |")
