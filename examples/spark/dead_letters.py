"""What a group could not consume, and why, in SQL: its dead-letter topic is a table."""

import argparse
import json
import time

from pyspark.sql import SparkSession

import ogive
import ogive.spark

TOPIC, GROUP = "Cancellations", "refunds"


@ogive.listener(TOPIC, group=GROUP, start="earliest")
def refund(message: ogive.MessageExt) -> ogive.ConsumeResult:
    return None if message.json().get("tail") else ogive.DEAD_LETTER


def main(spark: SparkSession, name_server: str) -> None:
    with ogive.Producer(name_server) as producer:
        for number in range(20):
            body = {
                "origin": ("EWR", "JFK")[number % 2],
                "tail": f"N{number}" if number % 4 else None,
            }
            producer.send(TOPIC, json.dumps(body).encode(), keys=str(number), tag=body["origin"])
    with ogive.PushConsumer(refund, name_server=name_server), ogive.Admin(name_server) as admin:
        while len(admin.dead_letters(GROUP)) < 5:
            time.sleep(0.1)
    letters = ogive.spark.read(f"%DLQ%{GROUP}", name_server=name_server, spark=spark)
    letters.createOrReplaceTempView("letters")
    found = spark.sql("""
        SELECT properties['RETRY_TOPIC'] AS topic, tags AS origin, count(*) AS letters,
               array_join(sort_array(collect_list(keys)), ' ') AS flights
        FROM letters WHERE get_json_object(CAST(body AS STRING), '$.tail') IS NULL
        GROUP BY ALL ORDER BY letters DESC""")
    for row in found.collect():
        print(f"{row.topic} from {row.origin}: {row.letters} without a tail number ({row.flights})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    main(ogive.spark.session("example"), parser.parse_args().name_server)
