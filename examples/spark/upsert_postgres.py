"""Keep a table of PostgreSQL up to date with the newest message of each key.

A batch that Spark repeats, or a task that it runs twice, changes nothing: a row of the table has
the offset of its message, and only a later message replaces it. So all messages of a key must be in
one queue: send them with that key as sharding_key.

    pip install 'ogive[spark]' 'psycopg[binary]'
    python -m examples.spark.upsert_postgres NAME_SERVER TOPIC postgresql://USER@HOST/DB CHECKPOINT
"""

import sys
from collections.abc import Iterator

import psycopg
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

import ogive.spark

TABLE = """
CREATE TABLE IF NOT EXISTS orders (key text PRIMARY KEY, body text, queue_offset bigint NOT NULL)
"""
UPSERT = """
INSERT INTO orders (key, body, queue_offset) VALUES (%s, %s, %s)
ON CONFLICT (key) DO UPDATE SET body = excluded.body, queue_offset = excluded.queue_offset
WHERE orders.queue_offset < excluded.queue_offset
"""


def run(name_server: str, topic: str, database: str, checkpoint: str) -> None:
    """Apply the messages that there are now. Progress is in *checkpoint*."""
    with psycopg.connect(database) as connection:
        connection.execute(TABLE)

    def upsert(rows: Iterator[Row]) -> None:
        with psycopg.connect(database) as connection, connection.cursor() as cursor:
            cursor.executemany(UPSERT, [(row.key, row.body, row.queueOffset) for row in rows])

    def write(batch: DataFrame, _: int) -> None:
        # one row a key: tasks that changed the same rows could block each other
        text = f.col("body").cast("string").alias("body")
        newest = batch.groupBy(f.col("keys").alias("key")).agg(
            f.max_by(f.struct(text, "queueOffset"), "queueOffset").alias("newest")
        )
        newest.select("key", "newest.*").where("key IS NOT NULL").foreachPartition(upsert)

    spark = ogive.spark.session("upsert")
    stream = spark.readStream.format("rocketmq").option("nameServer", name_server)
    query = (
        stream.option("startingOffsets", "earliest")
        .load(topic)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    run(*sys.argv[1:5])
