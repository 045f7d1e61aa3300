"""Debezium's changes, merged into tables of Delta and Iceberg."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from ogive.spark.parse import merge_changes, parse_debezium

pytestmark = [
    pytest.mark.lakes,
    pytest.mark.spark,
    pytest.mark.nightly,
    pytest.mark.apart(30),
    pytest.mark.timeout(900),
]


@dataclass
class Customer:
    id: int
    name: str | None


@pytest.mark.parametrize("format_and_place", ["delta", "iceberg"], indirect=True)
def test_the_newest_change_of_each_key_is_in_the_table(
    spark: SparkSession, format_and_place: tuple[str, str]
) -> None:
    kind, place = format_and_place
    name = f"delta.`{place}`" if kind == "delta" else place
    if kind == "iceberg":
        spark.sql("CREATE NAMESPACE IF NOT EXISTS local.shop")
    spark.sql(f"CREATE TABLE {name} (id BIGINT, name STRING) USING {kind}")

    def merge(*changes: tuple[str, int, str | None]) -> dict[int, str]:
        rows = []
        for offset, (op, key, text) in enumerate(changes):
            image: dict[str, Any] = {"id": key, "name": text}
            side = "before" if op == "d" else "after"
            rows.append((offset, json.dumps({"op": op, side: image}).encode()))
        messages = spark.createDataFrame(rows, "queueOffset bigint, body binary")
        good, bad = parse_debezium(messages, Customer)
        assert bad.isEmpty()
        merge_changes(good, name, ["id"])
        return {row.id: row.name for row in spark.table(name).collect()}

    assert merge(("r", 1, "a"), ("c", 2, "b")) == {1: "a", 2: "b"}
    later = (("u", 1, "x"), ("u", 1, "c"), ("d", 2, None), ("c", 3, "d"), ("d", 3, None))
    assert merge(*later) == {1: "c"}
    # Spark repeats a batch after a crash
    assert merge(*later) == {1: "c"}
