"""Run of the pipeline: a broker, the two groups and Spark as processes beside this one, which sends
the events and keeps the counts.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from examples.demo import names
from examples.demo.children import Child, resident_bytes
from examples.demo.figures import Cancellations, DeadLetters, InOrder, Observed
from examples.demo.flights import KINDS, EventStream
from examples.demo.progress import Progress
from examples.demo.timeline import Timeline
from examples.demo.truth import Figures
from ogive import ProducerConfig, SendHandle, aio
from ogive.client.admin import QueueLag
from ogive.console.charts import Band
from ogive.errors import GroupNotExist, OgiveError
from ogive.model import dlq_topic
from ogive.testing.broker import Ready

_SAMPLE_PERIOD_S: Final = 0.25
_WEIGH_PERIOD_S: Final = 1.0
_TICK_PERIOD_S: Final = 0.5
_STALL_S: Final = 60.0
# a busy machine is no failure
_SEND_TIMEOUT_S: Final = 10.0


class Stalled(OgiveError):
    """Nothing moved for a minute."""


@asynccontextmanager
async def pipeline(folder: Path, show: Progress) -> AsyncIterator["Pipeline"]:
    """Yield a pipeline with its data in *folder*; at the end all of its processes
    are gone.

    Raises ChildFailed when one ends before that.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            run = Pipeline(folder, show, tasks)
            try:
                yield run
            finally:
                await run.stop()
    except ExceptionGroup as group:
        if (ours := group.subgroup(OgiveError)) is not None:
            raise next(_leaves(ours)) from group
        raise


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for exc in group.exceptions:
        if isinstance(exc, BaseExceptionGroup):
            yield from _leaves(exc)
        else:
            yield exc


class Pipeline:
    """The steps of a run, to be called in order: start, send, consume, compute.

    They raise ChildFailed, Stalled or what the client raises.

    ``observed``, ``timeline``, ``phases`` and ``peak_bytes`` hold what happened.
    """

    def __init__(self, folder: Path, show: Progress, tasks: asyncio.TaskGroup) -> None:
        self.observed = Observed()
        self.timeline = Timeline()
        self.phases: list[Band] = []
        self.peak_bytes = 0
        self.children: list[Child] = []
        self._folder = folder
        self._show = show
        self._tasks = tasks
        self._sampling = tasks.create_task(_repeat(self._sample, _SAMPLE_PERIOD_S))
        self._weighing = tasks.create_task(self._weigh())
        self._ticking = tasks.create_task(_repeat(show.tick, _TICK_PERIOD_S))
        self._started = time.time()
        self._name_server = ""
        self._groups: Child | None = None
        self._sent: Counter[str] = Counter()
        # cancellations sent without a tail number
        self._unidentified = 0
        self._failed: BaseException | None = None

    async def start(self, loading: Awaitable[EventStream]) -> EventStream:
        """Start the broker with its topics and the two groups, and load the events meanwhile."""
        with self._phase("start"):
            await self._start_broker()
            await _create_topics(self._name_server)
            await self._start_groups()
            return await loading

    async def send(self, events: EventStream) -> None:
        """Send all events in order, many in flight, while the groups consume; return when the last
        is acknowledged.
        """
        for name in (names.SENT, names.IN_ORDER):
            self._show.expect(name, len(events))
        self._show.expect(names.CANCELLATIONS, events.kinds["cancelled"])
        self._show.say(
            f"sending {len(events):,} events, while an orderly and a concurrent group consume"
        )
        with self._phase("send and consume"):
            await self._send(events)

    async def consume(self) -> None:
        """Wait until both groups have all there is for them, retries included; then they leave."""
        with self._phase("retries"):
            await self._until("the groups have all messages", self._consumed)
            assert self._groups is not None
            self._groups.finish()
        self._sampling.cancel()

    async def compute(self) -> None:
        """Run the Spark job."""
        self._show.expect(names.SPARK, self._sent.total())
        self._show.say("Spark reads the topic as a stream")
        self._show.doing(names.SPARK, "starting Java and the session")
        with self._phase("Spark"):
            await self._run_spark()
        self._show.doing(names.SPARK, "")
        self.observed.lag = await _lags(self._name_server)

    async def stop(self) -> None:
        """End every process, the youngest first."""
        self._sampling.cancel()
        self._weighing.cancel()
        self._ticking.cancel()
        for child in reversed(self.children):
            await child.stop()

    # --- the processes

    async def _start_broker(self) -> None:
        command = [
            "-m",
            "ogive",
            "up",
            "--data",
            str(self._folder / "broker"),
            "--flush",
            "sync",
            "--delay-levels",
            names.DELAY_LEVELS,
        ]
        broker = await self._child(
            "broker", [*command, "--name-server-port", "0", "--broker-port", "0"]
        )
        lines = broker.lines()
        ready = Ready.parse(await anext(lines, ""))
        if ready is None:
            raise broker.failed("did not become ready")
        self._name_server = ready.name_server
        self._show.say(
            f"broker {ready.broker}, name server {self._name_server}, sync flush, data in "
            f"{self._folder}"
        )
        self._tasks.create_task(self._follow_broker(broker, lines))

    async def _follow_broker(self, broker: Child, lines: AsyncIterator[str]) -> None:
        async for _ in lines:
            pass
        if not broker.stopped:
            raise broker.failed("ended early")

    async def _start_groups(self) -> None:
        self._groups = await self._child(
            "consumer groups", ["-m", "examples.demo.groups", self._name_server]
        )
        reports = self._groups.reports()
        first = await anext(reports, None)
        if first is None:
            raise self._groups.failed("ended early")
        self._take_groups(first)
        self._tasks.create_task(self._follow_groups(reports))

    async def _follow_groups(self, reports: AsyncIterator[dict[str, Any]]) -> None:
        async for report in reports:
            self._take_groups(report)

    def _take_groups(self, report: dict[str, Any]) -> None:
        in_order, desk = InOrder(**report["in_order"]), Cancellations(**report["cancellations"])
        # JSON made texts of them
        desk.by_reconsume_times = {
            int(times): count for times, count in desk.by_reconsume_times.items()
        }
        self.observed.in_order, self.observed.cancellations = in_order, desk
        self._count(names.IN_ORDER, in_order.received, report["at"])
        self._count(names.CANCELLATIONS, desk.first_deliveries, report["at"])
        self._count(names.RETRIES, desk.deliveries - desk.first_deliveries, report["at"])

    async def _run_spark(self) -> None:
        folder = self._folder / "spark"
        folder.mkdir()
        spark = await self._child(
            "Spark", ["-m", "examples.demo.onspark", self._name_server, str(folder)]
        )
        result: dict[str, Any] = {}
        async for report in spark.reports():
            # the first batch begins, or a batch has ended
            if "rows" in report and report["rows"] != result.get("rows"):
                self._count(names.SPARK, report["rows"], report["at"])
            if "doing" in report:
                self._show.doing(names.SPARK, report["doing"])
            result |= report
        if "parquet" not in result:
            raise spark.failed("ended without a result")
        self.observed.rows_streamed = result["rows_streamed"]
        self.observed.dead_letters = DeadLetters(**result["dead_letters"])
        self.observed.parquet = _read_hours(Path(result["parquet"]))
        self.observed.topic = _read_hours(Path(result["topic"]))

    async def _child(self, name: str, arguments: list[str]) -> Child:
        child = await Child.start(name, [sys.executable, *arguments], self._folder)
        self.children.append(child)
        return child

    # --- sending

    async def _send(self, events: EventStream) -> None:
        acknowledged = {kind: partial(self._acknowledged, kind) for kind in KINDS}
        async with aio.Producer(
            self._name_server, config=ProducerConfig(send_timeout_s=_SEND_TIMEOUT_S)
        ) as producer:
            for event in events:
                self._unidentified += event.tail is None and event.kind == "cancelled"
                sent = await producer.submit(
                    names.FLIGHTS,
                    event.body,
                    tag=event.kind,
                    keys=event.flight,
                    sharding_key=event.tail,
                )
                sent.add_done_callback(acknowledged[event.kind])
                if self._failed is not None:
                    break
            await producer.flush()
        if self._failed is not None:
            raise self._failed
        self.observed.sent = dict(self._sent)

    def _acknowledged(self, kind: str, sent: SendHandle) -> None:
        if (failure := sent.exception()) is not None:
            self._failed = self._failed or failure
        else:
            self._sent[kind] += 1

    # --- counting and waiting

    def _consumed(self) -> bool:
        in_order, desk = self.observed.in_order, self.observed.cancellations
        return (
            in_order.received >= self._sent.total()
            and desk.first_deliveries >= self._sent["cancelled"]
            and desk.by_reconsume_times.get(names.MAX_RETRIES, 0) >= self._unidentified
        )

    async def _until(self, what: str, done: Callable[[], bool]) -> None:
        """Wait for *done*. Raises Stalled if nothing moves for a minute."""
        before, moved_at = "", time.monotonic()
        while not done():
            state = f"{self.observed.in_order} {self.observed.cancellations}"
            if state != before:
                before, moved_at = state, time.monotonic()
            elif time.monotonic() - moved_at > _STALL_S:
                raise Stalled(
                    f"waited until {what}, but nothing has moved for {_STALL_S:.0f} s: {state}, "
                    f"sent {dict(self._sent)}"
                )
            await asyncio.sleep(_SAMPLE_PERIOD_S)

    def _count(self, name: str, total: int, at: float) -> None:
        self.timeline.record(name, at - self._started, total)
        self._show.update(name, total)

    def _sample(self) -> None:
        now = time.time()
        self._count(names.SENT, self._sent.total(), now)
        self._count(names.SENT_CANCELLATIONS, self._sent["cancelled"], now)
        if self._unidentified:
            self._show.expect(names.RETRIES, names.MAX_RETRIES * self._unidentified)

    async def _weigh(self) -> NoReturn:
        while True:
            sessions = [child.session for child in self.children]
            self.peak_bytes = max(
                self.peak_bytes, await asyncio.to_thread(resident_bytes, sessions)
            )
            await asyncio.sleep(_WEIGH_PERIOD_S)

    @contextmanager
    def _phase(self, label: str) -> Iterator[None]:
        start = time.time() - self._started
        yield
        self.phases.append(Band(label, start, time.time() - self._started))


async def _repeat(job: Callable[[], None], period_s: float) -> NoReturn:
    while True:
        job()
        await asyncio.sleep(period_s)


async def _create_topics(name_server: str) -> None:
    async with aio.Admin(name_server) as admin:
        for topic in (names.FLIGHTS, names.ON_TIME):
            await admin.create_topic(topic, queues=names.QUEUES)
        # a short run may have no dead letter; the table is read anyway
        await admin.create_topic(dlq_topic(names.CANCELLATION_GROUP), queues=1)


async def _lags(name_server: str) -> dict[str, int]:
    """Return the lag of each group as the broker sees it, without groups that it does not know."""
    async with aio.Admin(name_server) as admin:
        rows: dict[str, list[QueueLag]] = {}
        for group in names.UNFILTERED_GROUPS:
            with contextlib.suppress(GroupNotExist):
                rows[group] = await admin.lag(group, members=False)
    return {group: sum(row.lag for row in queues) for group, queues in rows.items() if queues}


def _read_hours(path: Path) -> dict[tuple[str, int], Figures]:
    with path.open(encoding="ascii") as lines:
        rows = (json.loads(line) for line in lines)
        return {(airport, hour): Figures(*figures) for airport, hour, *figures in rows}
