"""The reads of a large Spark job against real brokers, without Spark: what they ask each broker.

    python -m bench.spark_scale               # 10 brokers of 16 queues, 100 workers, 15 seconds
    python -m bench.spark_scale --brokers 4 --workers 12 --seconds 5

The driver's part plans batches of a stream over a topic with a backlog, as Spark's driver does. Its
tasks go to processes that read with the connector's own code and decode nothing; each reads its
ranges again and again, which stands for queues of that length. For each whole second between the
last start and the first end, and for each broker, the mean number of pulls in flight is measured.
Prints the time that planning takes, the requests of driver and workers, and the least and the
greatest share of a broker. The exit status is 1 if a share is not between 0.9 and 1.1 of the mean,
or if a worker has more than 60 MiB of memory of its own.
"""

import argparse
import multiprocessing
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Final
from unittest import mock

import ogive
from ogive.model import MessageQueue
from ogive.spark.cluster import Cluster, cluster
from ogive.spark.patience import Patience
from ogive.spark.ranges import Pace, QueueRange
from ogive.testing import Broker
from ogive.transport.pool import ConnectionPool
from ogive.wire.codes import RequestCode

TOPIC: Final = "Orders"
QUEUES: Final = 16
PLANS: Final = 20
# of a task, as one long read
REPEATS: Final = 10_000
LEAST_SHARE, MOST_SHARE = 0.9, 1.1
MOST_MIB: Final = 60.0

Task = tuple[tuple[QueueRange, ...], Pace]


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run measured."""

    plans_ms: Sequence[float]
    tasks: int
    requests: Counter[str]
    """Requests of the driver for one plan, by their name."""
    pulls: int
    bytes_read: int
    shares: Sequence[Sequence[float]]
    """For each second and broker: pulls in flight, as a share of the mean of all brokers."""
    in_flight: float
    """Pulls in flight at one broker, on average."""
    worker_mib: float

    def faults(self) -> list[str]:
        worst = [share for second in self.shares for share in second]
        found = []
        if not worst or not LEAST_SHARE <= min(worst) <= max(worst) <= MOST_SHARE:
            found.append(f"a broker's share is not between {LEAST_SHARE} and {MOST_SHARE}")
        if self.worker_mib > MOST_MIB:
            found.append(f"a worker has {self.worker_mib:.0f} MiB, more than {MOST_MIB:.0f}")
        return found


# --- workers --------------------------------------------------------------------------------------


class InFlight:
    """Pulls in flight over time, by whole second and broker."""

    def __init__(self) -> None:
        self.seconds: Counter[tuple[int, str]] = Counter()
        self.pulls = 0
        self._now: Counter[str] = Counter()
        self._since = time.monotonic()

    def change(self, broker_name: str, by: int) -> None:
        at, until = self._since, time.monotonic()
        while at < until:
            end = min(until, int(at) + 1.0)
            for name, count in self._now.items():
                self.seconds[int(at), name] += count * (end - at)  # type: ignore[assignment]
            at = end
        self._since = until
        self._now[broker_name] += by
        self.pulls += by > 0


def work(pipe: Connection) -> None:
    """Read the task that comes through *pipe* until its time is over, and send what was counted."""
    try:
        name_server, (ranges, pace), until = pipe.recv()
    except EOFError:
        # there are fewer tasks than workers
        return
    in_flight, size = InFlight(), 0
    pull = Cluster.pull

    async def counted(self: Cluster, group: str, part: QueueRange, *more: Any) -> Any:
        in_flight.change(part.queue.broker_name, 1)
        try:
            return await pull(self, group, part, *more)
        finally:
            in_flight.change(part.queue.broker_name, -1)

    with mock.patch.object(Cluster, "pull", counted):
        ours = cluster((name_server,))
        began = time.monotonic()
        patience = Patience(settled=True)
        for _, body in ours.read(ranges * REPEATS, pace=pace, patience=patience):
            size += len(body)
            if time.monotonic() > until:
                break
        ended = time.monotonic()
    pipe.send((began, ended, in_flight.seconds, in_flight.pulls, size, private_mib()))


def private_mib() -> float:
    """Return the memory of this process that it does not share with others."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def start_workers(context: ForkServerContext, count: int) -> Iterator[Connection]:
    for _ in range(count):
        ours, theirs = context.Pipe()
        context.Process(target=work, args=(theirs,), daemon=True).start()
        theirs.close()
        yield ours


# --- driver ---------------------------------------------------------------------------------------


def plan(name_server: str, cores: int, rows: int) -> tuple[list[float], list[Task], Counter[str]]:
    """Plan batches of a stream. Return the time of each plan, the tasks of the last one, and the
    requests that one plan needs.
    """
    # here: workers are without Spark
    from ogive.spark.compat import ReadMaxRows
    from ogive.spark.options import SourceOptions
    from ogive.spark.reader import StreamReader
    from ogive.spark.schema import MESSAGE_COLUMNS

    options = {"nameServer": name_server, "subscribe": TOPIC, "startingOffsets": "earliest"}
    reader = StreamReader(SourceOptions.parse(options), MESSAGE_COLUMNS, cores)
    begin = reader.initialOffset()
    asked: Counter[str] = Counter()
    call = ConnectionPool.call

    async def counted(self: ConnectionPool, address: str, command: Any, timeout_s: float) -> Any:
        asked[RequestCode(command.code).name] += 1
        return await call(self, address, command, timeout_s)

    times, partitions = [], []
    with mock.patch.object(ConnectionPool, "call", counted):
        for _ in range(PLANS):
            asked.clear()
            started = time.perf_counter()
            partitions = reader.partitions(begin, reader.latestOffset(begin, ReadMaxRows(rows)))
            times.append(1000 * (time.perf_counter() - started))
    return times, [(part.value, part.pace) for part in partitions], asked


def fill(name_server: str, brokers: Sequence[str], rows: int, size: int) -> None:
    """Store *rows* messages in each queue."""
    with ogive.Producer(name_server) as producer:
        for broker_name in brokers:
            for number in range(QUEUES):
                queue = MessageQueue(TOPIC, broker_name, number)
                producer.send_batch(TOPIC, (bytes(size) for _ in range(rows)), queue=queue)


def run(*, brokers: int, workers: int, seconds: float, rows: int, size: int) -> Figures:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ogive.spark.cluster", "ogive.testing"])
    names = [f"broker-{number:02}" for number in range(brokers)]
    with ExitStack() as stack:
        pipes = list(start_workers(context, workers))
        first = stack.enter_context(Broker(flush="async", options=("--broker-name", names[0])))
        for name in names[1:]:
            register = ("--broker-name", name, "--name-servers", first.name_server)
            stack.enter_context(Broker(flush="async", options=register))
        with ogive.Admin(first.name_server) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)
        fill(first.name_server, names, rows, size)
        times, tasks, requests = plan(first.name_server, workers, rows * QUEUES * brokers)
        until = time.monotonic() + seconds
        for pipe, task in zip(pipes, tasks, strict=False):
            pipe.send((first.name_server, task, until))
        results = [pipe.recv() for pipe, _ in zip(pipes, tasks, strict=False)]
        for pipe in pipes:
            pipe.close()
    begun, ended, counted, pulls, sizes, memory = zip(*results, strict=True)
    together: Counter[tuple[int, str]] = sum(counted, Counter())
    steady = range(int(max(begun)) + 1, int(min(ended)))
    means = [statistics.fmean(together[second, name] for name in names) for second in steady]
    return Figures(
        plans_ms=times,
        tasks=len(tasks),
        requests=requests,
        pulls=sum(pulls),
        bytes_read=sum(sizes),
        shares=[
            [together[second, name] / mean for name in names]
            for second, mean in zip(steady, means, strict=True)
        ],
        in_flight=statistics.fmean(means) if means else 0.0,
        worker_mib=max(memory),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m bench.spark_scale", description=(__doc__ or "").partition("\n\n")[0]
    )
    for name, default, text in (
        ("brokers", 10, "each with 16 queues of the topic"),
        ("workers", 100, "processes, and cores of the cluster"),
        ("seconds", 15, "time for which the workers read"),
        ("rows", 4000, "messages in each queue"),
        ("size", 256, "bytes of a body"),
    ):
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"{text} (default: {default})"
        )
    figures = run(**vars(parser.parse_args(arguments)))
    print(
        f"planning: {statistics.median(figures.plans_ms):.0f} ms for {figures.tasks} tasks, "
        f"at most {max(figures.plans_ms):.0f} ms"
    )
    asked = ", ".join(f"{count} {name}" for name, count in sorted(figures.requests.items()))
    print(f"requests of the driver for one plan: {asked}")
    print(f"requests of the workers: {figures.pulls} pulls, {figures.bytes_read >> 20} MiB")
    worst = [share for second in figures.shares for share in second]
    print(
        f"pulls in flight at one broker: {figures.in_flight:.1f}; its share in "
        f"{len(figures.shares)} seconds: {min(worst, default=0):.3f} to {max(worst, default=0):.3f}"
    )
    print(f"memory of a worker: {figures.worker_mib:.0f} MiB")
    for fault in figures.faults():
        print(f"fault: {fault}")
    return int(bool(figures.faults()))


if __name__ == "__main__":
    sys.exit(main())
