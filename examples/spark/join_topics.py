"""Payments joined with the orders that they pay, from two topics: as tables, by key.

What has no partner shows.
"""

import argparse
import json
from dataclasses import dataclass

from pyspark.sql import SparkSession

import ogive
import ogive.spark
from ogive.spark.parse import parse_json


@dataclass
class Order:
    number: int
    total: float


@dataclass
class Payment:
    order: int
    amount: float


def main(spark: SparkSession, name_server: str) -> None:
    with ogive.Producer(name_server) as producer:
        for number in range(1, 6):
            producer.send(
                "JoinOrders", json.dumps({"number": number, "total": 10.0 * number}).encode()
            )
        for number, amount in ((1, 10.0), (2, 15.0), (4, 40.0), (9, 1.0)):
            producer.send("JoinPayments", json.dumps({"order": number, "amount": amount}).encode())
    orders, _ = parse_json(
        ogive.spark.read("JoinOrders", name_server=name_server, spark=spark), Order
    )
    payments, _ = parse_json(
        ogive.spark.read("JoinPayments", name_server=name_server, spark=spark), Payment
    )
    orders.select("value.*").createOrReplaceTempView("orders")
    payments.select("value.*").createOrReplaceTempView("payments")
    found = spark.sql("""
        SELECT coalesce(number, order) AS number, total, amount,
               CASE WHEN total IS NULL THEN 'no order' WHEN amount IS NULL THEN 'open'
                    WHEN amount < total THEN 'partly' ELSE 'paid' END AS state
        FROM orders FULL OUTER JOIN payments ON number = order ORDER BY 1""")
    for row in found.collect():
        print(f"order {row.number}: {row.state}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    main(ogive.spark.session("example"), parser.parse_args().name_server)
