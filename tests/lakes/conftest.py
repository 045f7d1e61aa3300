"""A session with the jars of Delta, Iceberg and S3, and a server of S3."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lakes.packages import JARS, PACKAGES
from tests.processes import free_port, stop, wait_until
from tests.topics import Wire

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.peers import RunningBroker

REGION, KEY = "us-east-1", "testing"


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of moto's server, which has the bucket lake."""
    log = tmp_path_factory.mktemp("moto") / "log"
    port = free_port()
    environment = os.environ | {"PYTHONPATH": str(PACKAGES)}
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            env=environment,
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(lambda: _make_bucket(port), server, log, "moto", limit_s=120)
        yield port
    finally:
        stop(server)


def _make_bucket(port: int) -> bool:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("PUT", "/lake")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="session")
def settings(s3: int, warehouse: Path) -> dict[str, str]:
    """Settings of Spark: both formats, the Iceberg catalogs local and cloud, and S3."""
    catalog = "org.apache.iceberg.spark.SparkCatalog"
    return {
        "spark.driver.extraClassPath": str(JARS / "*"),
        "spark.sql.extensions": (
            "io.delta.sql.DeltaSparkSessionExtension,"
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.local": catalog,
        "spark.sql.catalog.local.type": "hadoop",
        "spark.sql.catalog.local.warehouse": str(warehouse / "iceberg"),
        "spark.sql.catalog.cloud": catalog,
        "spark.sql.catalog.cloud.type": "hadoop",
        "spark.sql.catalog.cloud.warehouse": "s3a://lake/iceberg",
        "spark.hadoop.fs.s3a.endpoint": f"http://127.0.0.1:{s3}",
        "spark.hadoop.fs.s3a.endpoint.region": REGION,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": KEY,
        "spark.hadoop.fs.s3a.secret.key": KEY,
        "spark.sql.warehouse.dir": str(warehouse / "spark"),
        # the tables are small, and starts take most of the time
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "1",
    }


@pytest.fixture(scope="session")
def spark(settings: dict[str, str]) -> Iterator["SparkSession"]:
    import ogive.spark

    session = ogive.spark.session("lakes", master="local[2]", memory="1g", config=settings)
    session.sparkContext.setLogLevel("ERROR")
    ogive.spark.register(session)
    yield session
    session.stop()


@pytest.fixture
def wire(broker: "RunningBroker") -> Wire:
    return Wire(broker)


@pytest.fixture
def format_and_place(request: Any, topic: str, tmp_path: Path) -> tuple[str, str]:
    """A format, and a table that does not exist yet; the parameter is "delta", "iceberg", or one of
    them in S3.
    """
    name, _, where = request.param.partition("-")
    table = topic.lower()
    if name == "iceberg":
        return name, f"{'cloud' if where else 'local'}.shop.{table}"
    return name, f"s3a://lake/{table}" if where else str(tmp_path / "table")
