"""The two engines of `ogive run` beside each other: one listener that does nothing, in this process
and as a Spark job.

    python -m bench.engines    # 100,000 messages of 100 bytes in 4 queues, then 100/s for 10 s
    python -m bench.engines --quick     # a tenth of both: to see that it runs

For each engine, concurrent and orderly: seconds from the command to the first message, messages a
second through a backlog (from the first message to the last, so without the start) and what CPU
each takes, and milliseconds from send to listener afterwards, when nothing waits.
"""

import argparse
import os
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import ogive
from bench.processes import cpu_s
from ogive.native import build
from ogive.testing import Broker

MESSAGES: Final = 100_000
PACED: Final = 1_000
RATE: Final = 100
QUEUES: Final = 4
BODY_BYTES: Final = 100
PATIENCE_S: Final = 600.0
ENGINES: Final = ("local", "spark")
_RECORD: Final = struct.Struct("dd")  # sent, handled

APP: Final = """
import os, struct, time
import ogive

files = {}

def handle(message):
    pid = os.getpid()
    if pid not in files:
        path = os.path.join(os.environ["HANDLED"], str(pid))
        files[pid] = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(files[pid], struct.pack("dd", struct.unpack_from("d", message.body)[0], time.time()))

concurrent = ogive.listener("Concurrent", group="concurrent", start="earliest")(handle)
orderly = ogive.listener("Orderly", group="orderly", start="earliest", orderly=True)(handle)
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.engines",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    parser.add_argument("--only", choices=ENGINES, help="one engine only")
    options = parser.parse_args()
    backlog, paced = (MESSAGES // 10, PACED // 10) if options.quick else (MESSAGES, PACED)
    print(f"ogive {build}", flush=True)
    for engine in [options.only] if options.only else ENGINES:
        for kind in ("concurrent", "orderly"):
            measure(engine, kind, backlog, paced)
    return 0


def measure(engine: str, kind: str, backlog: int, paced: int) -> None:
    """On a broker of its own."""
    folder = Path(tempfile.mkdtemp(prefix="ogive-bench-"))
    topic = kind.capitalize()
    try:
        with Broker(flush="async") as broker, ogive.Producer(broker.name_server) as producer:
            with ogive.Admin(broker.name_server) as admin:
                admin.create_topic(topic, queues=QUEUES)
            for sent in [producer.submit(topic, body()) for _ in range(backlog)]:
                sent.result()
            asked = time.time()
            with running(engine, kind, broker.name_server, folder) as leader:
                early = wait_for(folder, 1)
                begin = session_cpu_s(leader)
                wait_for(folder, backlog)
                cpu_us = 1e6 * (session_cpu_s(leader) - begin) / (backlog - early)
                handled = sorted(at for _, at in records(folder))[:backlog]
                begun = time.monotonic()
                for number in range(paced):
                    time.sleep(max(0.0, begun + number / RATE - time.monotonic()))
                    producer.send(topic, body())
                wait_for(folder, backlog + paced)
                late = sorted(
                    1000 * (at - since) for since, at in records(folder) if since > handled[-1]
                )
        rate = (backlog - 1) / (handled[-1] - handled[0])
        print(
            f"{engine:5} {kind:10}: first message after {handled[0] - asked:.1f} s; {rate:,.0f} "
            f"messages/s, {cpu_us:,.0f} us of CPU each; "
            f"from send to listener p50 {statistics.median(late):,.1f} ms, p99 "
            f"{late[int(0.99 * len(late))]:,.1f} ms",
            flush=True,
        )
    finally:
        shutil.rmtree(folder)


def body() -> bytes:
    return struct.pack("d", time.time()).ljust(BODY_BYTES, b"x")


@contextmanager
def running(engine: str, kind: str, name_server: str, folder: Path) -> Iterator[int]:
    """`ogive run` as a user starts it, ended as by Ctrl-C. The process that leads its session."""
    (folder / "bench_app.py").write_text(APP)
    (folder / "handled").mkdir()
    command = [
        sys.executable,
        "-m",
        "ogive",
        "run",
        f"bench_app:{kind}",
        "--engine",
        engine,
        "-n",
        name_server,
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | {"HANDLED": str(folder / "handled")},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield process.pid
            os.killpg(process.pid, signal.SIGINT)
            process.wait(PATIENCE_S)
        except BaseException:
            print((folder / "log").read_text(), file=sys.stderr)
            raise
        finally:
            process.kill()
            process.wait()


def records(folder: Path) -> list[tuple[float, float]]:
    """(sent, handled) of every message so far."""
    whole = [file.read_bytes() for file in (folder / "handled").iterdir()]
    return [
        _RECORD.unpack_from(data, at)
        for data in whole
        for at in range(0, len(data) - _RECORD.size + 1, _RECORD.size)
    ]


def session_cpu_s(leader: int) -> float:
    """User and system time so far of the processes in the session of *leader*: Python, Java, and
    Spark's workers.
    """
    total = 0.0
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(directory.name)) == leader:
                total += cpu_s(int(directory.name))
        except (ProcessLookupError, FileNotFoundError):
            continue
    return total


def wait_for(folder: Path, count: int) -> int:
    """How many were handled, *count* at least. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE_S
    while (
        handled := sum(file.stat().st_size for file in (folder / "handled").iterdir())
        // _RECORD.size
    ) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{handled:,} of {count:,} messages were handled in {PATIENCE_S:.0f} s"
            )
        time.sleep(0.02)
    return handled


if __name__ == "__main__":
    raise SystemExit(main())
