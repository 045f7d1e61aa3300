"""One way to start a name server and a broker, ours or Apache's, for suites that run on both."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

from tests.interop.apache import Apache
from tests.processes import stop, wait_until

Flavour = Literal["ogive", "apache"]

# Levels 1 to 18 with short delays, so that retries and delayed messages take a second; both brokers are started with them.
DELAY_LEVELS = "1s 2s " + " ".join(["1s"] * 16)


class RunningBroker(Protocol):
    """A broker with a name server; addresses are "host:port" and stay the same over kill and start."""

    @property
    def name_server(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def data(self) -> Path:
        """The store: commitlog/, consumequeue/, config/."""

    @property
    def pid(self) -> int:
        """The broker's process."""

    def start(self) -> None:
        """Returns when the broker is in the routes."""

    def stop(self) -> None: ...
    def kill(self) -> None:
        """kill -9 of the broker."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None: ...


def start_broker(flavour: Flavour, directory: Path, delay_levels: str = DELAY_LEVELS) -> RunningBroker:
    """A broker of that kind with its files in *directory*; it runs inside the with block."""
    if flavour == "apache":
        return Apache(directory, {"messageDelayLevel": delay_levels})
    return Ogive(directory, delay_levels=delay_levels)


@dataclass(slots=True)
class Ogive:
    """`ogive up` as a process of its own."""

    directory: Path
    flush: Literal["sync", "async"] = "sync"
    delay_levels: str = DELAY_LEVELS
    environment: Mapping[str, str] = field(default_factory=dict)
    name_server: str = field(default="127.0.0.1:0", init=False)
    address: str = field(default="127.0.0.1:0", init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def data(self) -> Path:
        return self.directory / "store"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        """What the process wrote to standard output and standard error since its last start."""
        return self.directory / "ogive.out"

    def start(self) -> None:
        """Returns when it said that it is ready. The first start takes free ports, a later one the same ports again."""
        self.directory.mkdir(parents=True, exist_ok=True)
        ports = ["--name-server-port", self.name_server.rpartition(":")[2], "--broker-port", self.address.rpartition(":")[2]]
        options = ["--data", str(self.data), *ports, "--flush", self.flush, "--delay-levels", self.delay_levels]
        command = [sys.executable, "-m", "ogive", "up", *options]
        with self.log.open("wb") as out:
            environment = {**os.environ, "PYTHONUNBUFFERED": "1", **self.environment}
            self._process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment)
        wait_until(self._is_ready, self._process, self.log, "ogive up")

    def _is_ready(self) -> bool:
        found = re.search(r"^ready name-server=(\S+) broker=(\S+)$", self.log.read_text("utf-8", "replace"), re.MULTILINE)
        if found:
            self.name_server, self.address = found[1], found[2]
        return found is not None

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            stop(self._process, sign)
            self._process = None

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
