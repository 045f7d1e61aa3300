"""Metrics of streaming queries, without Spark: progress in, text out, over HTTP."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from ogive.errors import ConnectError
from ogive.spark.compat import ADMISSION_CONTROL
from ogive.spark.metrics import MAX_ENDED, QueryMetrics


class Streams:
    def addListener(self, listener: Any) -> None: ...  # noqa: N802
    def removeListener(self, listener: Any) -> None: ...  # noqa: N802


class Session:
    streams = Streams()


@pytest.fixture
def metrics() -> Iterator[QueryMetrics]:
    with QueryMetrics(cast(SparkSession, Session()), port=0) as started:
        yield started


def progress(name: str = "revenue", **more: Any) -> dict[str, Any]:
    offset = {"q": {"Orders": {"broker-a": {"0": 10, "1": 7}}}}
    latest = {"q": {"Orders": {"broker-a": {"0": 15, "1": 7}}}}
    return {
        "name": name,
        "batchId": 3,
        "numInputRows": 17,
        "inputRowsPerSecond": 2.5,
        "processedRowsPerSecond": 40.0,
        "durationMs": {"triggerExecution": 250},
        "sources": [{"endOffset": json.dumps(offset), "latestOffset": json.dumps(latest)}],
    } | more


def scrape(metrics: QueryMetrics) -> str:
    with urllib.request.urlopen(f"http://{metrics.address}/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


@pytest.mark.skipif(not ADMISSION_CONTROL, reason="this Spark does not report ends")
def test_a_scrape_shows_rates_and_lag_of_each_queue(metrics: QueryMetrics) -> None:
    metrics.progressed("run-1", progress())
    metrics.progressed("run-1", progress(batchId=4, numInputRows=3))
    lines = scrape(metrics).splitlines()
    assert (
        'ogive_spark_lag_messages{query="revenue",topic="Orders",broker="broker-a",queue="0"} 5'
        in lines
    )
    assert (
        'ogive_spark_lag_messages{query="revenue",topic="Orders",broker="broker-a",queue="1"} 0'
        in lines
    )
    assert 'ogive_spark_rows_total{query="revenue"} 20' in lines
    assert 'ogive_spark_batch_id{query="revenue"} 4' in lines
    assert 'ogive_spark_batch_seconds{query="revenue"} 0.25' in lines
    assert 'ogive_spark_input_rows_per_second{query="revenue"} 2.5' in lines
    assert 'ogive_spark_processed_rows_per_second{query="revenue"} 40' in lines
    assert "# TYPE ogive_spark_rows_total counter" in lines


def test_rates_that_spark_does_not_know_are_0(metrics: QueryMetrics) -> None:
    metrics.progressed(
        "run-1", progress(inputRowsPerSecond=None, processedRowsPerSecond=None, durationMs={})
    )
    lines = scrape(metrics).splitlines()
    for name in ("input_rows_per_second", "processed_rows_per_second", "batch_seconds"):
        assert f'ogive_spark_{name}{{query="revenue"}} 0' in lines


def test_the_end_of_a_query_shows(metrics: QueryMetrics) -> None:
    metrics.progressed("run-1", progress())
    metrics.ended("run-1", failed=True)
    text = scrape(metrics)
    assert 'ogive_spark_query_active{query="revenue"} 0' in text
    assert 'ogive_spark_query_failed{query="revenue"} 1' in text


def test_a_source_of_another_kind_has_no_lag_and_names_are_escaped(metrics: QueryMetrics) -> None:
    metrics.progressed(
        "run-1", progress('a "b"\\c', sources=[{"endOffset": "7", "latestOffset": None}])
    )
    text = scrape(metrics)
    assert "lag" not in text
    assert r'query="a \"b\"\\c"' in text


def test_ended_queries_are_forgotten_in_the_end(metrics: QueryMetrics) -> None:
    for number in range(MAX_ENDED + 10):
        metrics.progressed(f"run-{number}", progress(f"q{number}"))
        metrics.ended(f"run-{number}", failed=False)
    assert metrics.text().count("query_active{") <= MAX_ENDED + 1


def test_another_path_is_not_found(metrics: QueryMetrics) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404") as missed:
        urllib.request.urlopen(f"http://{metrics.address}/")
    missed.value.close()


def test_no_sample_is_there_twice(metrics: QueryMetrics) -> None:
    """Prometheus refuses such a page: a query that was started again has the name of its last run,
    a self-join has its topic twice.
    """
    metrics.progressed("run-1", progress())
    metrics.ended("run-1", failed=True)
    metrics.progressed("run-2", progress(sources=[*progress()["sources"], *progress()["sources"]]))
    samples = [
        line.rpartition(" ")[0] for line in scrape(metrics).splitlines() if not line.startswith("#")
    ]
    assert len(samples) == len(set(samples))
    assert 'ogive_spark_query_active{query="revenue"} 1' in scrape(metrics)


def test_a_port_in_use_is_named(metrics: QueryMetrics) -> None:
    port = int(metrics.address.rpartition(":")[2])
    with pytest.raises(
        ConnectError,
        match=f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another port=",
    ):
        QueryMetrics(cast(SparkSession, Session()), port=port)
