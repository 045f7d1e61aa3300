"""``ogive pipeline NAME --explain``: what a pipeline would read and write, without Spark."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark import java_gateway

import ogive
from ogive.cli.main import main
from ogive.model import dlq_topic
from ogive.pipelines import explain_stream
from ogive.pipelines.job import source_options
from ogive.spark.compat import ADMISSION_CONTROL
from ogive.spark.source import schema, stream_reader
from tests.peers import RunningBroker
from tests.topics import Wire

pytestmark = [pytest.mark.spark, pytest.mark.bridge, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(java_gateway, "launch_gateway", refuse)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def filled(wire: Wire, topic: str) -> str:
    """A topic of three queues: 6,000 messages, 4,000 and none."""
    wire.create(topic, 3)
    wire.send(topic, 0, [b"x"] * 6000)
    wire.send(topic, 1, [b"x"] * 4000)
    return topic


def explained(
    capsys: pytest.CaptureFixture[str], broker: RunningBroker, *words: str
) -> dict[str, Any]:
    command = ["pipeline", *words, "-n", broker.name_server, "--explain", "--master", "local[2]"]
    assert main([*command, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert main(command) == 0
    text = capsys.readouterr().out
    assert f"{words[0]} would do this:" in text
    assert f"  writes {found['writes']}\n" in text
    return found


def test_an_archive_names_queues_offsets_brokers_batches_and_tasks(
    broker: RunningBroker, filled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = tmp_path / "lake"
    words = ("archive", "--topic", filled, "--to", str(lake), "--group", f"{filled}_G")
    found = explained(capsys, broker, *words, "--max-rows", "4000")
    with ogive.Admin(broker.name_server) as admin:
        route = admin.route(filled)
        assert not admin.lag(f"{filled}_G")
    name, address = route.brokers[0].broker_name, route.brokers[0].addresses[0]
    shared = {"topic": filled, "broker": name, "address": address, "start": 0}
    assert found["reads"] == [
        {**shared, "queue": 0, "end": 6000, "messages": 6000},
        {**shared, "queue": 1, "end": 4000, "messages": 4000},
    ]
    # older releases of Spark read everything in one batch
    assert (found["batches"], found["tasks"]) == ((3, 1) if ADMISSION_CONTROL else (1, 2))
    assert found["writes"] == f"Parquet files in {lake}"
    assert not lake.exists()


def test_a_pipeline_that_goes_on_reads_from_its_checkpoint(
    broker: RunningBroker, filled: str, tmp_path: Path
) -> None:
    """A batch that was begun and not finished is named: it comes first."""
    options = source_options(broker.name_server, [filled], None, {}, 10**6, False)
    reader = stream_reader(options, schema(options))
    offset = reader.initialOffset()
    (broker_name,) = offset["q"][filled]
    offset["q"][filled][broker_name]["0"] = 5990
    checkpoint = tmp_path / "checkpoint"
    for folder, batch in (("offsets", 0), ("commits", 0), ("offsets", 1)):
        file = checkpoint / folder / str(batch)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"v1\n{{}}\n{json.dumps(offset)}", "utf-8")
    read, notes = explain_stream(options, checkpoint, 2)
    assert [(one.queue.queue_id, one.start, one.end) for one in read.ranges] == [
        (0, 5990, 6000),
        (1, 0, 4000),
    ]
    assert (read.rows, read.batches, read.tasks) == (4010, 1, 1)
    assert notes == ["batch 1 was begun by an earlier run, and comes first"]


def test_messages_that_were_deleted_are_not_counted(
    broker: RunningBroker, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = source_options(broker.name_server, [filled], None, {}, 10**6, True)
    reader = stream_reader(options, schema(options))
    offset = reader.initialOffset()
    (broker_name,) = offset["q"][filled]
    # longer than the queue, as after a topic was deleted and created again
    offset["q"][filled][broker_name]["2"] = 7
    checkpoint = tmp_path / "checkpoint"
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True)
        (checkpoint / folder / "0").write_text(f"v1\n{{}}\n{json.dumps(offset)}", "utf-8")
    monkeypatch.setattr("ogive.spark.reader.SETTLE_S", 0.0)
    read, _ = explain_stream(options, checkpoint, 2)
    assert read.rows == 10_000


def test_the_other_pipelines_name_what_they_read_and_write(
    broker: RunningBroker, filled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = str(tmp_path / "state")
    server = broker.name_server
    found = explained(
        capsys, broker, "mirror", "--topic", filled, "--target", server, "--prefix", "M_",
        "--state", state,
    )  # fmt: skip
    assert (found["tasks"], found["writes"]) == (2, f"M_{filled} at {server}")
    found = explained(
        capsys, broker, "replay", "--from", filled, "--to", "AGAIN", "--state", state,
        "--where", "tags = 'x'",
    )  # fmt: skip
    assert sum(one["messages"] for one in found["reads"]) == 10_000
    assert (found["tasks"], found["writes"]) == (2, f"AGAIN at {server}")
    assert found["notes"] == ["--where: applied by Spark after reading"]
    (tmp_path / "lake" / f"topic={filled}").mkdir(parents=True)
    place = f"archive:{tmp_path}/lake"
    found = explained(capsys, broker, "reconcile", filled, place)
    assert sum(one["messages"] for one in found["reads"]) == 10_000
    assert (found["writes"], found["notes"]) == ("nothing", [f"reads all files of {place}"])
    found = explained(
        capsys, broker, "trace-report", "--to", f"{state}/page.html", "--trace-topic", filled
    )
    assert found["tasks"] == 2
    letters = dlq_topic(filled)
    with ogive.Admin(server) as admin:
        admin.create_topic(letters, queues=1)
    found = explained(capsys, broker, "redrive", filled, "--state", state)
    assert found["writes"] == f"the topic that each message came from at {server}"
    assert not Path(state).exists()
