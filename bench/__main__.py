"""Start Apache's broker and ours in turn, put the same loads on both, print the figures and their
ratios.
"""

import argparse
import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, get_args

from bench import sdk
from bench import workloads as load
from bench.brokers import PEERS, Flush, running
from bench.processes import resident_mib
from ogive.native import build

Figures = dict[str, float]

TOPICS = (
    *("Theirs", "Small", "Single", "Batches", "Transactions", "Ours", "OursSmall"),
    *("Backlog", "SmallBacklog", "Sends", "Listener", "Paced", "Timed"),
)

# Rows of the second table: what is done on one broker, by their client and by ours.
CLIENTS = (
    (
        "sends in flight, 1 KiB",
        "their Producer, 64 threads, 1 KiB",
        "our pipelined producer, 1 KiB",
    ),
    (
        "sends in flight, 128 B",
        "their Producer, 64 threads, 128 B",
        "our pipelined producer, 128 B",
    ),
    (
        "one send after another, 1 KiB",
        "their Producer, 1 thread, 1 KiB",
        "our synchronous sends, 1 KiB",
    ),
    ("backlog, 1 KiB", "their consumer, backlog of 1 KiB", "our consumer, backlog of 1 KiB"),
    ("backlog, 128 B", "their consumer, backlog of 128 B", "our consumer, backlog of 128 B"),
)


@dataclass(slots=True)
class Run:
    """One freshly started broker and what was measured on it."""

    peer: str
    flush: Flush
    scale: int
    name_server: str
    pid: int
    figures: Figures = field(repr=False)

    def note(self, name: str, value: float) -> None:
        self.figures[f"{name}, {self.flush} flush"] = value
        print(f"{self.peer:7} {self.flush:5} {name}: {value:,.2f}", flush=True)

    def note_rate(self, name: str, rate: load.Rate) -> None:
        self.note(f"{name} (messages/s)", rate.per_s)
        self.note(f"{name}, broker CPU a message (us)", rate.broker_cpu_us)


def main() -> int:
    """0 when every load ran; the figures judge nothing."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a tenth of every load: to see that it runs, not to quote",
    )
    parser.add_argument("--only", choices=PEERS, help="one broker only, for profiling")
    parser.add_argument("--flush", choices=get_args(Flush), help="one flush mode only")
    parser.add_argument("--load", choices=(*LOADS, FLUSHES, SDK), help="one kind of load only")
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    figures: dict[str, Figures] = {}
    if options.load == FLUSHES:
        compare_flushes(scale)
        return 0
    if options.load == SDK:
        sdk.compare(scale)
        sdk.compare_ports(scale)
        return 0
    for peer in [options.only] if options.only else PEERS:
        figures[peer] = {}
        for flush in [options.flush] if options.flush else get_args(Flush):
            measure(peer, flush, scale, options.load, figures[peer])
    if options.load is None:
        figures.setdefault("ogive", {})["import ogive (ms)"] = load.import_ms()
    print(f"\nogive {build}")
    print_table(figures)
    print_clients(figures)
    if options.load is None and options.flush is None and options.only != "apache":
        compare_flushes(scale)
        if options.only is None:
            sdk.compare(scale)
            sdk.compare_ports(scale)
    return 0


def measure(peer: str, flush: Flush, scale: int, only: str | None, out: Figures) -> None:
    """Every load, or *only* one kind, on one freshly started broker."""
    directory = Path(tempfile.mkdtemp(prefix="ogive-bench-"))
    try:
        with running(peer, directory, flush) as (broker, ready_s):
            run = Run(peer, flush, scale, broker.name_server, broker.pid, out)
            run.note("time to ready (s)", ready_s)
            run.note("resident when idle (MiB)", resident_mib(run.pid))
            for topic in TOPICS:
                load.create_topic(run.name_server, topic, 8)
            for name in LOADS if only is None else [only]:
                LOADS[name](run)
            run.note("resident after load (MiB)", resident_mib(run.pid))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _sends(run: Run) -> None:
    seconds = max(3, 15 // run.scale)

    def theirs(topic: str, program: str, *options: str) -> load.Rate:
        return load.their_sends(
            run.name_server,
            run.pid,
            topic,
            program,
            *options,
            warm_up_s=10 if run.scale == 1 else 4,
            seconds=seconds,
        )

    first = theirs("Theirs", "Producer", "-w", "64", "-s", "1024")
    run.note_rate("their Producer, 64 threads, 1 KiB", first)
    run.note("their Producer, failed sends", first.failed)
    run.note_rate(
        "their Producer, 64 threads, 128 B", theirs("Small", "Producer", "-w", "64", "-s", "128")
    )
    run.note_rate(
        "their BatchProducer, 10 threads, 16 of 1 KiB",
        theirs("Batches", "BatchProducer", "-w", "10", "-s", "1024", "-b", "16"),
    )
    run.note_rate(
        "their TransactionProducer, 32 threads, 1 KiB",
        theirs("Transactions", "TransactionProducer", "-w", "32", "-s", "1024"),
    )
    run.note_rate(
        "our pipelined producer, 1 KiB",
        load.our_producer(run.name_server, run.pid, "Ours", count=300_000 // run.scale),
    )
    small = load.our_producer(
        run.name_server, run.pid, "OursSmall", count=300_000 // run.scale, body=load.SMALL
    )
    run.note_rate("our pipelined producer, 128 B", small)


def _singles(run: Run) -> None:
    warm_up_s, rounds, seconds = (10, 9, 1.5) if run.scale == 1 else (4, 3, 0.5)
    singles = load.one_by_one(
        run.name_server,
        run.pid,
        "Single",
        "Sends",
        warm_up_s=warm_up_s,
        rounds=rounds,
        seconds=seconds,
    )
    run.note_rate("their Producer, 1 thread, 1 KiB", singles.theirs)
    run.note("our synchronous sends, 1 KiB (messages/s)", singles.ours_per_s)
    run.note("one synchronous send, p50 (ms)", singles.ours_p50_ms)
    run.note("one synchronous send, p99 (ms)", singles.ours_p99_ms)


def _latencies(run: Run) -> None:
    p50, p99 = load.latency_ms(run.name_server, "Listener", "listener", count=2_000 // run.scale)
    run.note("send to listener, p50 (ms)", p50)
    run.note("send to listener, p99 (ms)", p99)
    p50, p99 = load.paced_latency_ms(
        run.name_server, "Paced", "paced", per_s=1000, count=20_000 // run.scale
    )
    run.note("send to listener at 1,000 messages/s, p50 (ms)", p50)
    run.note("send to listener at 1,000 messages/s, p99 (ms)", p99)
    burst = load.timed_burst(
        run.name_server, "Timed", "timed", count=5_000 // run.scale, ahead_s=15.0
    )
    run.note(
        "5,000 timed messages due in one second, the earliest is late by (ms)", burst.earliest_ms
    )
    run.note("5,000 timed messages due in one second, half are late by at most (ms)", burst.p50_ms)
    run.note("5,000 timed messages due in one second, the last is late by (ms)", burst.latest_ms)


def _backlogs(run: Run) -> None:
    # what is read back was written before
    if run.flush != "async":
        return
    count = 1_000_000 // run.scale
    for topic, size, body in (
        ("Backlog", "1 KiB", load.BODY),
        ("SmallBacklog", "128 B", load.SMALL),
    ):
        load.our_producer(run.name_server, run.pid, topic, count=count - 1, body=body)
        rate = load.their_consumer(
            run.name_server, run.pid, topic, "theirs", count=count, limit_s=120.0
        )
        run.note_rate(f"their consumer, backlog of {size}", rate)
        rate = load.our_consumer(
            run.name_server, run.pid, topic, "ours", count=count, limit_s=120.0
        )
        run.note_rate(f"our consumer, backlog of {size}", rate)
    rate = load.our_consumer(
        run.name_server,
        run.pid,
        "SmallBacklog",
        "orderly",
        count=count,
        limit_s=120.0,
        orderly=True,
    )
    run.note_rate("our orderly consumer, backlog of 128 B", rate)
    percent = load.idle_cpu_percent(run.name_server, seconds=max(2, 20 // run.scale))
    run.note("our consumer, idle with 64 queues (% of a core)", percent)


LOADS: Final = {
    "sends": _sends,
    "singles": _singles,
    "latencies": _latencies,
    "backlogs": _backlogs,
}
# loads for two brokers at once
FLUSHES: Final = "flushes"
SDK: Final = "sdk"


def compare_flushes(scale: int) -> None:
    """Print what it costs our pipelined producer that each send is on the disk before it is
    answered.
    """
    directories = [Path(tempfile.mkdtemp(prefix="ogive-bench-")) for _ in get_args(Flush)]
    try:
        with ExitStack() as stack:
            brokers = [
                stack.enter_context(running("ogive", directory, flush))[0]
                for directory, flush in zip(directories, get_args(Flush), strict=True)
            ]
            for broker in brokers:
                load.create_topic(broker.name_server, "Ours", 8)
            rates = load.our_producer_in_turns(
                [broker.name_server for broker in brokers],
                [broker.pid for broker in brokers],
                "Ours",
                rounds=15 // (1 if scale == 1 else 5),
                seconds=2.0 if scale == 1 else 0.5,
            )
    finally:
        for directory in directories:
            shutil.rmtree(directory, ignore_errors=True)
    sync, asynchronous = rates
    print(
        "\n| our pipelined producer, 1 KiB, on both in turns | sync flush | async flush | ratio "
        "|\n|---|---|---|---|"
    )
    for what, one, other in (
        ("messages/s", sync.per_s, asynchronous.per_s),
        ("broker CPU a message (us)", sync.broker_cpu_us, asynchronous.broker_cpu_us),
    ):
        print(f"| {what} | {one:,.2f} | {other:,.2f} | {one / other:.2f} |")


def print_table(figures: dict[str, Figures]) -> None:
    """A Markdown table; the ratio is ogive's figure divided by Apache's."""
    names = list(dict.fromkeys(name for peer in figures.values() for name in peer))
    print("\n| what | " + " | ".join(figures) + " | ratio |\n|---|" + "---|" * (len(figures) + 1))
    for name in names:
        values = [peer.get(name) for peer in figures.values()]
        ratio = (
            f"{values[1] / values[0]:.2f}"
            if len(values) == 2 and values[0] and values[1] is not None
            else ""
        )
        print(
            f"| {name} | "
            + " | ".join("" if value is None else f"{value:,.2f}" for value in values)
            + f" | {ratio} |"
        )


def print_clients(figures: dict[str, Figures]) -> None:
    """A second table: our client's figure divided by that of theirs on the same broker."""
    print(
        "\n| messages/s, on the same broker | broker | their client | our client | ratio "
        "|\n|---|---|---|---|---|"
    )
    for peer, found in figures.items():
        for what, theirs, ours in CLIENTS:
            for flush in get_args(Flush):
                pair = [found.get(f"{name} (messages/s), {flush} flush") for name in (theirs, ours)]
                if pair[0] and pair[1]:
                    print(
                        f"| {what}, {flush} flush | {peer} | {pair[0]:,.0f} | {pair[1]:,.0f} | "
                        f"{pair[1] / pair[0]:.2f} |"
                    )


if __name__ == "__main__":
    sys.exit(main())
