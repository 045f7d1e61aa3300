"""Secrets among the options: Spark shows them in no plan, no progress and no event log."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ogive
from tests.peers import RunningBroker

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

SECRETS = {"secretKey": "hidden-secret", "securityToken": "hidden-token", "accessKey": "hidden-key"}
JOB = """
import sys

import ogive.spark

name_server, folder = sys.argv[1:3]
secrets = {"secretKey": "hidden-secret", "securityToken": "hidden-token", "accessKey": "hidden-key"}
options = {"nameServer": name_server, **secrets}
logged = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{folder}/log"}
logged["spark.eventLog.compress"] = "false"
spark = ogive.spark.session(master="local[1]", config=logged)
table = spark.read.format("rocketmq").options(**options).load("Orders")
table.explain(True)
print(table.count(), "read")
table.select("body").write.format("rocketmq").options(**options).mode("append").save("Copies")
texts = ", ".join(f"{name} '{text}'" for name, text in (options | {"subscribe": "Orders"}).items())
spark.sql(f"CREATE TEMPORARY VIEW orders USING rocketmq OPTIONS ({texts})")
spark.sql("SELECT * FROM orders").explain("formatted")
stream = spark.readStream.format("rocketmq").options(**options, startingOffsets="earliest")
query = (
    stream.load("Orders")
    .select("body")
    .writeStream.format("rocketmq")
    .options(**options, topic="Copies", checkpointLocation=f"{folder}/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
query.explain(True)
print(query.lastProgress.json)
spark.stop()
"""


def test_secrets_are_shown_nowhere(broker: RunningBroker, tmp_path: Path) -> None:
    with ogive.Producer(broker.name_server) as producer:
        producer.send("Orders", b"paid")
    (tmp_path / "log").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", JOB, broker.name_server, str(tmp_path)],
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "BatchScan rocketmq" in done.stdout
    events = [file.read_text() for file in tmp_path.glob("log/**/events*")]
    assert any("SparkListenerSQLExecutionStart" in text for text in events)
    for secret in SECRETS.values():
        assert not any(secret in text for text in [done.stdout, done.stderr, *events])
