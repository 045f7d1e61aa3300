"""``ogive spark``: the Spark of this environment."""

import argparse
from tempfile import TemporaryDirectory

import ogive
from ogive.cli.output import say
from ogive.errors import InvalidOption
from ogive.testing import Broker

try:
    from ogive.spark.java import write_archive
    from ogive.spark.session import NO_BAR, quiet, session
except ModuleNotFoundError as exc:
    raise InvalidOption(
        f"this needs Spark, and {exc.name} is not installed: pip install 'ogive[spark]'"
    ) from None


def warm(_: argparse.Namespace) -> int:
    quiet()
    path = write_archive(_read_and_write, say)
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB")
    return 0


def _read_and_write() -> None:
    """Read a table and run a stream from topic to topic, at a broker for this."""
    with (
        TemporaryDirectory(prefix="ogive-") as checkpoint,
        Broker(flush="async") as broker,
        ogive.Producer(broker.name_server) as producer,
    ):
        producer.send_batch("Orders", (b'{"number": %d}' % number for number in range(1000)))
        say("starting Spark")
        spark = session("warm", master="local[2]", ui=False, config=NO_BAR)
        spark.sparkContext.setLogLevel("ERROR")
        say("reading and writing")
        options = {"nameServer": broker.name_server}
        table = spark.read.format("rocketmq").options(**options).load("Orders")
        table.groupBy("tags").count().collect()
        stream = spark.readStream.format("rocketmq").options(**options, startingOffsets="earliest")
        query = (
            stream.load("Orders")
            .selectExpr("'Copies' AS topic", "body")
            .writeStream.format("rocketmq")
            .options(**options, checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        spark.stop()
