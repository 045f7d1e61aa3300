"""``ogive up`` in a separate process, as a context manager."""

import contextlib
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import deque
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Literal, NamedTuple, Self

from ogive.errors import IllegalStateError
from ogive.keywords import explains

_LINE: Final = re.compile(r"ready name-server=(\S+) broker=(\S+)(?: grpc=(\S+).*| grpc: .*)?\s*")


class Ready(NamedTuple):
    """Addresses of a running broker, ``host:port`` each."""

    name_server: str
    broker: str
    grpc: str = ""
    """Empty if no gRPC port is served."""

    @classmethod
    def parse(cls, line: str) -> "Ready | None":
        """Return the addresses of the ready line; None for any other line."""
        found = _LINE.fullmatch(line)
        return cls(found[1], found[2], found[3] or "") if found else None


START_S: Final = 60.0
STOP_S: Final = 60.0
LAST_LINES: Final = 30
_LINE_CHARS: Final = 2000


@explains
class Broker:
    """A durable broker with its name server: ``with Broker() as broker``.

    Without *data* the store is in a temporary folder, removed at the end.

    After ``kill`` (kill -9) ``start`` recovers from the same folder on the same ports. Raises
    IllegalStateError, with the last lines of the process's standard error, if it does not become
    ready, ends by itself, or does not stop cleanly; if the ``with`` block raised already, this
    becomes a note on that exception.

    *grpc_port* serves clients of RocketMQ 5, at ``grpc_endpoint``; 0 is a free port.
    """

    def __init__(
        self,
        *,
        data: Path | None = None,
        flush: Literal["sync", "async"] = "sync",
        name_server_port: int = 0,
        broker_port: int = 0,
        grpc_port: int | None = None,
        options: tuple[str, ...] = (),
    ) -> None:
        self.name_server = ""
        self.address = ""
        self._given_data = data
        self.data = data or Path()
        self._flush = flush
        self._ports = (name_server_port, broker_port)
        self._grpc_port = grpc_port
        self._grpc_endpoint = ""
        self._held: list[socket.socket] = []
        weakref.finalize(self, _release, self._held)
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self._errors: _LastLines | None = None

    @property
    def pid(self) -> int:
        """Id of the process. Raises IllegalStateError before ``start`` and after ``stop``."""
        if self._process is None:
            raise IllegalStateError(
                "this broker does not run: start it, or use it in a `with` block"
            )
        return self._process.pid

    @property
    def grpc_endpoint(self) -> str:
        """Address for clients of RocketMQ 5, ``host:port``. Raises IllegalStateError without
        *grpc_port*, and before ``start``.
        """
        if not self._grpc_endpoint:
            raise IllegalStateError(
                "this broker has no gRPC port: start it with Broker(grpc_port=0)"
            )
        return self._grpc_endpoint

    def start(self) -> Self:
        """Start, and return when it accepts requests."""
        if self._process is not None:
            raise IllegalStateError("this broker runs already")
        if self._given_data is None and not self.data.name:
            self.data = Path(tempfile.mkdtemp(prefix="ogive-"))
        if sys.platform == "linux":
            self._ports = (self._ports[0] or self._hold_port(), self._ports[1] or self._hold_port())
            if self._grpc_port == 0:
                self._grpc_port = self._hold_port()
        name_server_port, broker_port = self._ports
        command = [
            sys.executable,
            "-m",
            "ogive",
            "up",
            "--data",
            str(self.data),
            "--flush",
            self._flush,
        ]
        command += [
            "--name-server-port",
            str(name_server_port),
            "--broker-port",
            str(broker_port),
            *(["--no-grpc"] if self._grpc_port is None else ["--grpc-port", str(self._grpc_port)]),
            *self._options,
        ]
        # the command is ours, and a list
        self._process = subprocess.Popen(  # noqa: S603
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
        assert self._process.stderr is not None
        self._errors = _LastLines(self._process.stderr)
        line = self._first_line()
        ready = Ready.parse(line)
        if ready is None:
            self.kill()
            raise IllegalStateError(
                "the broker did not become ready: "
                f"{self._errors.text() or line or 'it said nothing'}"
            )
        self.name_server, self.address, self._grpc_endpoint = ready
        self._ports = (_port(self.name_server), _port(self.address))
        return self

    def _hold_port(self) -> int:
        """Return a port that no other process gets, even while the broker is down: it stays bound
        here, and nothing listens on it here.

        On Linux the broker's process can bind it as well, because both set SO_REUSEADDR.
        """
        holder = socket.socket()
        self._held.append(holder)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        return port

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
        """Stop cleanly (SIGTERM), and remove a temporary folder.

        Does nothing if it is not running.
        """
        problem = self._end(signal.SIGTERM)
        if self._given_data is None and self.data.name:
            shutil.rmtree(self.data, ignore_errors=True)
            self.data = Path()
        if problem is not None:
            raise IllegalStateError(problem)

    def kill(self) -> None:
        """Crash the process (SIGKILL). The folder stays for the next ``start``."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> str | None:
        """End the process. Return what went wrong, None after a clean end."""
        process, self._process = self._process, None
        if process is None:
            return None
        in_time = True
        process.send_signal(number)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            in_time = False
            process.kill()
            process.wait()
        assert self._errors is not None
        self._errors.close()
        if process.stdout is not None:
            process.stdout.close()
        if number == signal.SIGKILL or (in_time and process.returncode == 0):
            return None
        problem = (
            f"the broker ended with code {process.returncode}"
            if in_time
            else f"the broker did not stop within {STOP_S:g} s"
        )
        said = self._errors.text()
        return f"{problem}; its last words:\n{said}" if said else problem

    def __enter__(self) -> Self:
        try:
            return self.start() if self._process is None else self
        except BaseException:
            # the original error says more
            with contextlib.suppress(IllegalStateError):
                self.stop()
            _release(self._held)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        except IllegalStateError as exc:
            if value is None:
                raise
            value.add_note(str(exc))
        finally:
            _release(self._held)


class _LastLines:
    """Read a pipe to its end, so that the process never blocks on it, and keep the last lines."""

    def __init__(self, pipe: IO[str]) -> None:
        self._pipe = pipe
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        self._lines.extend(
            line.rstrip("\n") for line in iter(partial(self._pipe.readline, _LINE_CHARS), "")
        )

    def close(self) -> None:
        """Close the pipe; call it when the process has ended."""
        self._thread.join()
        self._pipe.close()

    def text(self) -> str:
        return "\n".join(self._lines)


def _release(held: list[socket.socket]) -> None:
    while held:
        held.pop().close()


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
