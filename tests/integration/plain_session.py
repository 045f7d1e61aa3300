"""A driver with a SparkSession of its own: reads a topic, and says what it is told where Spark runs
a Python without ogive.

plain_session.py NAME_SERVER TOPIC before|after: when it imports ogive.spark.
"""

import importlib
import sys


def main(name_server: str, topic: str, moment: str) -> None:
    if moment == "before":
        importlib.import_module("ogive.spark")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = (
        builder.config("spark.driver.memory", "512m")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    from ogive.errors import OgiveError
    from ogive.spark import read, register

    try:
        if moment == "before":
            rows = (
                spark.read.format("rocketmq").option("nameServer", name_server).load(topic).count()
            )
            register(spark)
            again = (
                spark.read.format("rocketmq").option("nameServer", name_server).load(topic).count()
            )
            print(rows, again)
            return
        try:
            read(topic, name_server=name_server, spark=spark)
        except OgiveError as exc:
            print(exc)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
