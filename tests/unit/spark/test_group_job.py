"""The queries of ``ogive run --engine spark`` while they run, against a Spark that is scripted."""

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

pytest.importorskip("pyspark")

from pyspark import SparkContext
from pyspark.errors import StreamingQueryException

import ogive
from ogive.errors import OgiveError
from ogive.spark import cli_session, jobs
from ogive.spark.stopping import Stop
from ogive.testing.fake_broker import FakeBroker

Progress = Mapping[str, Any]


@ogive.listener("Orders", group="billing")
def bill(message: ogive.MessageExt) -> None:
    """Never called."""


def batch(number: int, messages: int, failed: int = 0) -> Progress:
    """What Spark reports of a batch that has consumed *messages*."""
    row = {"messages": messages, "failed": failed}
    return {"batchId": number, "numInputRows": 2, "observedMetrics": {"listeners": row}}


class Query:
    """A query that makes the progress of one more element of *rounds* at each look, and fails with
    *error* after them, or ends.
    """

    def __init__(self, rounds: Sequence[Sequence[Progress]], error: str = "") -> None:
        self._rounds, self._error = list(rounds), error
        self._progress: list[Progress] = []
        self.stopped = False

    @property
    def isActive(self) -> bool:  # noqa: N802
        return bool(self._rounds) and not self.stopped

    @property
    def recentProgress(self) -> list[Progress]:  # noqa: N802
        if self._rounds:
            self._progress += self._rounds.pop(0)
        return self._progress

    def awaitTermination(self) -> None:  # noqa: N802
        if self._error:
            raise StreamingQueryException(self._error)

    def stop(self) -> None:
        self.stopped = True


class Spark:
    """Of a session and its readers and writers what a job calls; starts *queries* in turn."""

    def __init__(self, queries: Sequence[Query]) -> None:
        self.queries = list(queries)
        self.started: list[Query] = []
        self.triggers: list[Mapping[str, Any]] = []
        self.dataSource = self.sparkContext = self.readStream = self.writeStream = self
        self.defaultParallelism = 2
        self._jvm: Any = SimpleNamespace(
            org=SimpleNamespace(
                apache=SimpleNamespace(
                    logging=SimpleNamespace(log4j=SimpleNamespace(LogManager=self))
                )
            )
        )

    def _itself(self, *_: object, **__: object) -> Self:
        return self

    format = option = options = load = observe = queryName = _itself  # noqa: N815
    getRootLogger = getLevel = _itself  # noqa: N815

    def name(self) -> str:
        return "ERROR"

    def setLogLevel(self, level: str) -> None: ...  # noqa: N802

    def register(self, _: type) -> None: ...

    def getConf(self) -> dict[str, str]:  # noqa: N802
        return {}

    def trigger(self, **trigger: Any) -> Self:
        self.triggers.append(trigger)
        return self

    def start(self) -> Query:
        self.started.append(self.queries.pop(0))
        return self.started[-1]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Run the listener on a scripted Spark; return its totals, and what was said."""
    columns = SimpleNamespace(sum=lambda name: SimpleNamespace(alias=lambda name: name))
    monkeypatch.setattr(jobs, "f", columns)
    monkeypatch.setattr(jobs, "LOOK_S", 0.0)
    monkeypatch.setattr(jobs, "RESTART_S", (0.0,))

    async def go(spark: Spark, stop: Stop, said: list[str], *, once: bool) -> jobs.Totals:
        async with FakeBroker({"Orders": 1, "%RETRY%billing": 1}) as broker:
            totals = await asyncio.to_thread(
                partial(
                    jobs.run_listeners,
                    cast(Any, spark),
                    [bill],
                    client=ogive.ClientConfig(name_server=broker.address),
                    checkpoint=tmp_path,
                    stop=stop,
                    say=said.append,
                    once=once,
                    wait_s=0.2,
                )
            )
        return totals["billing"]

    def run(
        spark: Spark, stop: Stop | None = None, *, once: bool = True
    ) -> tuple[jobs.Totals, list[str]]:
        said: list[str] = []
        return asyncio.run(go(spark, stop or Stop(), said, once=once)), said

    return run


def test_each_batch_is_counted_once_and_an_idle_one_not_at_all(run: Callable[..., Any]) -> None:
    idle = {"batchId": 1, "numInputRows": 0, "observedMetrics": {}}
    spark = Spark([Query([[batch(0, 5, 1)], [idle], [batch(2, 3)], []])])
    totals, said = run(spark)
    assert totals == jobs.Totals(messages=8, failed=1, batches=2)
    assert said[0] == "billing: 5 consumed, 1 failed"
    assert said[-1] == "billing: 8 consumed, 1 failed"
    assert len(said) == 2
    assert spark.triggers == [{"availableNow": True}]


def test_a_query_that_fails_starts_again_and_its_new_batches_are_counted(
    run: Callable[..., Any],
) -> None:
    spark = Spark(
        [Query([[batch(0, 5)]], "ogive.errors.NoRoute: no broker"), Query([[batch(0, 7)]])]
    )
    totals, said = run(spark)
    assert totals.messages == 12
    assert len(spark.started) == 2
    assert "billing: no broker; starting again in 0 s" in said


def test_failures_without_a_batch_between_them_end_the_job(run: Callable[..., Any]) -> None:
    error = "ogive.errors.NoRoute: no broker"
    allowed = [Query([[]], error) for _ in range(jobs.MAX_RESTARTS)]
    spark = Spark([*allowed, Query([[]], error)])
    with pytest.raises(OgiveError, match="the job of group billing failed: no broker"):
        run(spark)
    # a batch begins the count anew
    spark = Spark([*allowed[1:], Query([[batch(0, 1)]], error), Query([[]], error), Query([[]])])
    assert run(spark)[0].messages == 1


def test_a_mistake_is_not_tried_again(run: Callable[..., Any]) -> None:
    spark = Spark([Query([[]], "ogive.errors.InvalidOption: no such group")])
    with pytest.raises(OgiveError, match="no such group"):
        run(spark)
    assert len(spark.started) == 1


def test_a_stop_ends_the_query_and_counts_its_last_batch(run: Callable[..., Any]) -> None:
    class StopSoon(Stop):
        def wait(self, timeout_s: float) -> bool:
            self.ask()
            return True

    stop = StopSoon()
    query = Query([[batch(0, 5)], [batch(1, 6)], [], []])
    spark = Spark([query])
    totals, _ = run(spark, stop, once=False)
    assert query.stopped
    assert totals.messages == 11
    assert spark.triggers == [{"processingTime": "0 seconds"}]


@pytest.fixture
def logged() -> Iterator[int]:
    """The level below which nothing is logged, put back at the end."""
    before = logging.root.manager.disable
    yield before
    logging.disable(before)


@pytest.mark.parametrize("asked", [True, False])
def test_a_stop_while_spark_starts_is_an_interrupt_and_any_other_error_stays_itself(
    asked: bool, logged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []
    stops: list[Stop] = []

    class Noted(Stop):
        def __enter__(self) -> Self:
            stops.append(self)
            return super().__enter__()

    def start(_: object) -> None:
        if asked:
            # what a signal's handler does
            signal.raise_signal(signal.SIGTERM)
            assert logging.root.manager.disable >= logging.CRITICAL
        raise ValueError("Java is gone")

    monkeypatch.setattr(cli_session, "Stop", Noted)
    monkeypatch.setattr(cli_session, "prepare", lambda *_, **__: {})
    monkeypatch.setattr(cli_session.Launch, "end", lambda self: ended.append(True))
    monkeypatch.setattr(SparkContext, "getOrCreate", start)
    with (
        pytest.raises(KeyboardInterrupt if asked else ValueError),
        cli_session.own_session("it", master="local", memory="1g", say=print, ready=print),
    ):
        raise AssertionError("the session has started")
    assert not asked or ended
    assert logging.root.manager.disable == logged
