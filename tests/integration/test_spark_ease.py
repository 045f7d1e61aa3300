"""Helpers, examples and the tutorial of Spark, in the session of the suite, on a broker of their
own.
"""

import importlib.util
import inspect
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyspark
from pyspark.sql import SparkSession

import ogive
import ogive.spark
from ogive.spark.metrics import QueryMetrics
from tests.peers import RunningBroker, our_broker
from tests.topics import eventually, wait_until_shown

pytestmark = [pytest.mark.spark, pytest.mark.bridge, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]


def test_each_read_sees_what_came_meanwhile(
    spark: SparkSession, broker: RunningBroker, topic: str
) -> None:
    ogive.spark.register(spark)
    with ogive.Producer(broker.name_server) as producer:
        producer.send(topic, b"one", tag="a")
        wait_until_shown(broker.name_server, topic, 1)
        before = ogive.spark.read(topic, name_server=broker.name_server, spark=spark)
        assert before.count() == 1
        producer.send(topic, b"two", tag="b")
        wait_until_shown(broker.name_server, topic, 2)
    # the snapshot of its first action; Spark 4.0 looks again
    assert before.count() == (2 if pyspark.__version__.startswith("4.0.") else 1)
    assert ogive.spark.read(topic, name_server=broker.name_server, spark=spark).count() == 2
    tagged = ogive.spark.read(
        topic, name_server=broker.name_server, spark=spark, schema="body binary", tags="b"
    )
    assert [bytes(row.body) for row in tagged.collect()] == [b"two"]


def test_workers_import_the_pyspark_that_is_installed(spark: SparkSession) -> None:
    """And not the zip of sources that Spark puts before it, which each Python process would compile
    anew.
    """

    def where(_: int) -> str:
        import pyspark

        return pyspark.__file__

    assert spark.sparkContext.parallelize([0], 1).map(where).collect() == [pyspark.__file__]


@pytest.mark.releases
def test_metrics_of_a_running_query(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path, admission: bool
) -> None:
    with ogive.Producer(broker.name_server) as producer:
        for i in range(30):
            producer.send(topic, b"%d" % i)
    wait_until_shown(broker.name_server, topic, 30)
    with QueryMetrics(spark, port=0) as metrics:
        stream = (
            spark.readStream.format("rocketmq")
            .options(nameServer=broker.name_server, startingOffsets="earliest")
            .load(topic)
        )
        writer = (
            stream.writeStream.format("noop")
            .queryName(topic)
            .option("checkpointLocation", str(tmp_path))
        )
        writer.trigger(availableNow=True).start().awaitTermination()

        def ended() -> list[str] | None:
            """Events come after the end of a query."""
            with urllib.request.urlopen(f"http://{metrics.address}/metrics") as answer:
                lines = answer.read().decode().splitlines()
            return lines if f'ogive_spark_query_active{{query="{topic}"}} 0' in lines else None

        lines = eventually(ended)
        assert lines is not None
    assert f'ogive_spark_rows_total{{query="{topic}"}} 30' in lines
    lags = [line for line in lines if line.startswith(f'ogive_spark_lag_messages{{query="{topic}"')]
    assert bool(lags) is admission
    assert all(line.endswith(" 0") for line in lags)


# --- examples and tutorial: topics have plain names, so a broker of their own ---------------------


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with our_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running.name_server


SHOWN = {
    "archive_to_parquet": ["100 orders in the archive, 50 paid"] * 2,
    "windowed_counts": [
        json.dumps(
            {"origin": origin, "hour": f"2013-01-01T0{hour}:00:00.000Z", "count": 4},
            separators=(",", ":"),
        )
        for origin in ("EWR", "JFK", "LGA")
        for hour in (5, 6, 7)
    ],
    "join_topics": [
        "order 1: paid",
        "order 2: partly",
        "order 3: open",
        "order 4: paid",
        "order 5: open",
        "order 9: no order",
    ],
    "dedupe": [f"payment-{number}: payment {number}" for number in (1, 2, 3, 4)],
    "dead_letters": [
        "Cancellations from EWR: 5 without a tail number (0 12 16 4 8)",
    ],
    "flights_pipelines": [
        "archive: 2,000 read, 2,000 written",
        "reconcile: 4,000 read, 0 written",
        "replay: 1,224 read, 1,224 written",
        "1,224 keys equal, 0 keys missing, 0 keys extra, 0 keys different",
        "redrive: 3 read, 3 would be written",
        "redrive: 3 read, 3 written",
        "mirror: 2,003 read, 2,003 written",
        "cancellations · FLIGHTS: 3 calls, 3 failed",
    ],
}


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_here() -> None:
    # that with PostgreSQL runs in test_spark_jobs.py
    shown = {*SHOWN, "upsert_postgres"}
    assert {path.stem for path in (ROOT / "examples" / "spark").glob("*.py")} == shown


def test_the_page_of_pipelines_shows_what_its_example_prints() -> None:
    assert "\n".join(["```text", *SHOWN["flights_pipelines"], "```"]) in (
        ROOT / "docs" / "pipelines.md"
    ).read_text("utf-8")


@pytest.mark.parametrize("name", [name for name in SHOWN if name != "flights_pipelines"])
def test_an_example_shows_what_it_says(
    name: str,
    spark: SparkSession,
    name_server: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    admission: bool,
) -> None:
    main = load(ROOT / "examples" / "spark" / f"{name}.py").main
    main(*[spark, name_server, tmp_path][: len(inspect.signature(main).parameters)])
    # windows that close with the last batch come with the next run where Spark runs only one
    shown = [] if name == "windowed_counts" and not admission else SHOWN[name]
    assert capsys.readouterr().out.splitlines() == shown


@pytest.mark.nightly
def test_the_example_of_pipelines_shows_what_it_says_without_warnings_and_bars_of_spark(
    name_server: str,
) -> None:
    command = [
        sys.executable,
        "-m",
        "examples.spark.flights_pipelines",
        "--name-server",
        name_server,
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stdout.splitlines() == SHOWN["flights_pipelines"]
    assert done.returncode == 0
    assert "WARN " not in done.stderr
    assert "[Stage" not in done.stderr


def test_the_tutorial_runs_as_it_stands(
    spark: SparkSession,
    name_server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    admission: bool,
) -> None:
    """Cell by cell; what a cell prints is what stands below it, but for the lag where the last
    batch is left to the next run.
    """
    text = (
        (ROOT / "docs" / "tutorial-spark.md")
        .read_text("utf-8")
        .replace("127.0.0.1:9876", name_server)
    )
    cells = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", text, re.DOTALL)
    assert len(cells) > 5
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "tutorial"}
    for code, shown in cells:
        exec(compile(code, "docs/tutorial-spark.md", "exec"), names)
        printed = capsys.readouterr().out
        assert printed.split() == shown.split() or ("admin.lag(" in code and not admission), code
