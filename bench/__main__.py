"""Start Apache's broker and ours in turn, put the same loads on both, print the figures and their ratio."""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import get_args

from bench import workloads as load
from bench.peers import PEERS, Flush, running
from bench.processes import resident_mib

Figures = dict[str, float]


def main() -> int:
    """0 when every load ran; the figures judge nothing."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of every load: to see that it runs, not to quote")
    parser.add_argument("--only", choices=PEERS, help="one broker only, for profiling")
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    figures: dict[str, Figures] = {}
    for peer in [options.only] if options.only else PEERS:
        figures[peer] = {}
        for flush in get_args(Flush):
            measure(peer, flush, scale, figures[peer])
    print_table(figures)
    return 0


def measure(peer: str, flush: Flush, scale: int, out: Figures) -> None:
    """Every load on one freshly started broker."""
    directory = Path(tempfile.mkdtemp(prefix="ogive-bench-"))
    try:
        with running(peer, directory, flush) as (broker, ready_s):
            server, pid = broker.name_server, broker.pid

            def note(name: str, value: float) -> None:
                out[f"{name}, {flush} flush"] = value
                print(f"{peer:7} {flush:5} {name}: {value:,.2f}", flush=True)

            note("time to ready (s)", ready_s)
            note("resident when idle (MiB)", resident_mib(pid))
            for topic in ("Theirs", "Ours", "Backlog", "Sends", "Listener"):
                load.create_topic(server, topic, 8)
            rate = load.their_producer(server, pid, "Theirs", threads=64, size=1024, seconds=max(15, 25 // scale))
            note("their Producer, 64 threads, 1 KiB (messages/s)", rate.per_s)
            note("their Producer, broker CPU a message (us)", rate.broker_cpu_us)
            note("their Producer, failed sends", rate.failed)
            rate = load.our_producer(server, pid, "Ours", count=300_000 // scale)
            note("our pipelined producer, 1 KiB (messages/s)", rate.per_s)
            note("our pipelined producer, broker CPU a message (us)", rate.broker_cpu_us)
            p50, p99 = load.send_latency_ms(server, "Sends", count=2_000 // scale)
            note("one synchronous send, p50 (ms)", p50)
            note("one synchronous send, p99 (ms)", p99)
            p50, p99 = load.latency_ms(server, "Listener", "listener", count=2_000 // scale)
            note("send to listener, p50 (ms)", p50)
            note("send to listener, p99 (ms)", p99)
            if flush == "async":
                _backlog(server, pid, 1_000_000 // scale, note)
            note("resident after load (MiB)", resident_mib(pid))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _backlog(server: str, pid: int, count: int, note: load.Note) -> None:
    load.our_producer(server, pid, "Backlog", count=count - 1)
    rate = load.their_consumer(server, pid, "Backlog", "theirs", count=count, limit_s=120.0)
    note("their consumer over a backlog (messages/s)", rate.per_s)
    rate = load.our_consumer(server, pid, "Backlog", "ours", count=count, limit_s=120.0)
    note("our consumer over a backlog (messages/s)", rate.per_s)
    note("our consumer, broker CPU a message (us)", rate.broker_cpu_us)


def print_table(figures: dict[str, Figures]) -> None:
    """A Markdown table; the ratio is ogive's figure divided by Apache's."""
    names = list(dict.fromkeys(name for peer in figures.values() for name in peer))
    print("\n| what | " + " | ".join(figures) + " | ratio |\n|---|" + "---|" * (len(figures) + 1))
    for name in names:
        values = [peer.get(name, float("nan")) for peer in figures.values()]
        ratio = f"{values[1] / values[0]:.2f}" if len(values) == 2 and values[0] else ""
        print(f"| {name} | " + " | ".join(f"{value:,.2f}" for value in values) + f" | {ratio} |")


if __name__ == "__main__":
    sys.exit(main())
