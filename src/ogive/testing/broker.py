"""``ogive up`` as a context manager, in a process of its own."""

import contextlib
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Literal, Self

from ogive.errors import IllegalStateError

READY: Final = "ready name-server="
START_S: Final = 60.0
STOP_S: Final = 15.0


class Broker:
    """A durable broker with its name server. *data* None: a temporary folder that goes with it.

    ``kill`` is kill -9, after which ``start`` recovers from the same folder on the same ports. Raises IllegalStateError, with what the
    process wrote, when it does not become ready.
    """

    def __init__(
        self,
        *,
        data: Path | None = None,
        flush: Literal["sync", "async"] = "sync",
        name_server_port: int = 0,
        broker_port: int = 0,
        options: tuple[str, ...] = (),
    ) -> None:
        self.name_server = ""
        self.address = ""
        self._given_data = data
        self.data = data or Path()
        self._flush = flush
        self._ports = (name_server_port, broker_port)
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None

    @property
    def pid(self) -> int:
        """The process. Raises IllegalStateError before ``start`` and after ``stop``."""
        if self._process is None:
            raise IllegalStateError("this broker does not run: start it, or use it in a `with` block")
        return self._process.pid

    def start(self) -> Self:
        """Start, and return when it serves."""
        if self._process is not None:
            raise IllegalStateError("this broker runs already")
        if self._given_data is None and not self.data.name:
            self.data = Path(tempfile.mkdtemp(prefix="ogive-"))
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # lives as long as the process
        name_server_port, broker_port = self._ports
        command = [sys.executable, "-m", "ogive", "up", "--data", str(self.data), "--flush", self._flush]
        command += ["--name-server-port", str(name_server_port), "--broker-port", str(broker_port), *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._errors, stdin=subprocess.DEVNULL, text=True)
        line = self._first_line()
        if not line.startswith(READY):
            self._errors.seek(0)
            problem = self._errors.read().strip()
            self.kill()
            raise IllegalStateError(f"the broker did not become ready: {problem or line or 'it said nothing'}")
        self.name_server, self.address = (word.partition("=")[2] for word in line.split()[1:])
        self._ports = (_port(self.name_server), _port(self.address))
        return self

    def _first_line(self) -> str:
        assert self._process is not None
        stdout = self._process.stdout
        assert stdout is not None
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
        with contextlib.suppress(queue.Empty):
            return lines.get(timeout=START_S)
        return ""

    def stop(self) -> None:
        """Stop cleanly (SIGTERM) and remove the folder if it was a temporary one. Nothing happens when it does not run."""
        self._end(signal.SIGTERM)
        if self._given_data is None and self.data.name:
            shutil.rmtree(self.data, ignore_errors=True)
            self.data = Path()

    def kill(self) -> None:
        """End the process as a crash would (SIGKILL); the folder stays for the next ``start``."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        try:
            return self.start() if self._process is None else self
        except BaseException:
            self.stop()
            raise

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
