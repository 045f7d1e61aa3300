"""Comparison of two topics, or of a topic and an archive, by key: missing, extra and different
messages.

Many messages may have the same key. Their bodies are compared as a multiset: their order does not
matter, but their number does.
"""

from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ogive.errors import InvalidOption
from ogive.pipelines.archive import SCHEMA
from ogive.pipelines.job import OPEN, Say, Security, Summary, local, writable

EXAMPLES: Final = 5
ARCHIVE: Final = "archive:"


def messages(
    spark: SparkSession,
    place: str,
    *,
    name_server: str,
    security: Security = OPEN,
    other_security: Security = OPEN,
) -> DataFrame:
    """Read *place*: ``archive:FOLDER``, ``archive:FOLDER#TOPIC``, ``TOPIC``, or ``TOPIC@HOST:PORT``
    of another cluster, for which *other_security* is used.
    """
    if place.startswith(ARCHIVE):
        folder, topic = archived(place)
        rows = spark.read.schema(SCHEMA).parquet(folder)
        return rows.where(f.col("topic") == topic) if topic else rows
    options = topic_options(
        place, name_server=name_server, security=security, other_security=other_security
    )
    return spark.read.format("rocketmq").options(**options).load()


def topic_options(
    place: str, *, name_server: str, security: Security, other_security: Security
) -> dict[str, str]:
    """Return the options of the source that reads the topic *place*."""
    topic, _, server = place.partition("@")
    access = (
        {**other_security, "nameServer": server}
        if server
        else {**security, "nameServer": name_server}
    )
    return {**access, "subscribe": topic}


def archived(place: str) -> tuple[str, str]:
    """Return the folder and topic ("" for all) of ``archive:FOLDER#TOPIC``.

    Raises InvalidOption if the folder holds no archive, or not of the topic.
    """
    folder, _, topic = place.removeprefix(ARCHIVE).partition("#")
    folder = str(local(ARCHIVE.rstrip(":"), folder))
    topics = sorted(path.name.removeprefix("topic=") for path in Path(folder).glob("topic=*"))
    if not topics:
        raise InvalidOption(f"{folder} holds no archive; `ogive pipeline archive` makes one")
    if topic and topic not in topics:
        raise InvalidOption(
            f"the archive {folder} has no topic {topic}, only {', '.join(topics[:10])}"
        )
    return folder, topic


def is_archive(place: str) -> bool:
    """Return True if a folder of that name is an archive: ``archive:`` is easily forgotten."""
    return next(Path(place).glob("topic=*"), None) is not None


def reconcile(
    spark: SparkSession,
    *,
    left: str,
    right: str,
    name_server: str,
    say: Say,
    key: str = "keys",
    where: str = "true",
    body: str = "body",
    security: Security = OPEN,
    other_security: Security = OPEN,
    out: Path | None = None,
    dry_run: bool = False,
) -> Summary:
    """Compare *right* with *left*.

    *key*, *where* and *body* are SQL expressions over the columns of a message.

    With *out* every difference is written there as Parquet. Messages without a key cannot be
    compared, and are counted as skipped.
    """
    summary = Summary("reconcile", dry_run=dry_run)
    cluster: dict[str, Any] = {
        "name_server": name_server,
        "security": security,
        "other_security": other_security,
    }

    def side(place: str, name: str) -> DataFrame:
        rows = messages(spark, place, **cluster).where(where)
        # a list leaves nulls out, and a body may be null
        digest = f.coalesce(f.sha2(f.expr(body).cast("binary"), 256), f.lit(""))
        keyed = rows.select(f.expr(key).cast("string").alias("key"), digest.alias("digest"))
        return keyed.groupBy("key").agg(
            f.count("*").alias(name),
            f.sort_array(f.collect_list("digest")).alias(f"{name}_digests"),
        )

    if out is not None:
        out = writable("out", out)
    # Spark checks the expressions now
    sides = {"left": side(left, "left"), "right": side(right, "right")}
    if dry_run:
        summary.read = sum(
            messages(spark, place, **cluster).where(where).count() for place in (left, right)
        )
        summary.notes = [f"would compare {right} with {left} by {key}"]
        return summary
    say("reading both sides")
    both = sides["left"].join(sides["right"], "key", "full_outer").fillna(0, ["left", "right"])
    verdict = (
        f.when(f.col("key").isNull(), "without a key")
        .when(f.col("right") == 0, "missing")
        .when(f.col("left") == 0, "extra")
        .when(f.col("left_digests") != f.col("right_digests"), "different")
        .otherwise("equal")
    )
    compared = (
        both.withColumn("verdict", verdict).select("key", "verdict", "left", "right").persist()
    )
    try:
        by_verdict = compared.groupBy("verdict").agg(
            f.count("*").alias("keys"), f.sum("left").alias("left"), f.sum("right").alias("right")
        )
        rows = {row["verdict"]: row for row in by_verdict.collect()}
        summary.read = sum(row["left"] + row["right"] for row in rows.values())
        unkeyed = rows.get("without a key")
        if unkeyed is not None:
            summary.skipped["without a key"] = unkeyed["left"] + unkeyed["right"]
        counts = {
            name: rows[name]["keys"] if name in rows else 0
            for name in ("equal", "missing", "extra", "different")
        }
        summary.figures |= {
            "keys": counts,
            "same": not any(count for name, count in counts.items() if name != "equal"),
        }
        summary.notes.append(", ".join(f"{count:,} keys {name}" for name, count in counts.items()))
        differences = compared.where(f.col("verdict").isin("missing", "extra", "different"))
        for row in differences.orderBy("verdict", "key").limit(EXAMPLES).collect():
            summary.notes.append(
                f"{row['verdict']}: {row['key']} ({row['left']:,} in {left}, {row['right']:,} in "
                f"{right})"
            )
        if out is not None:
            differences.coalesce(1).write.mode("overwrite").parquet(str(out))
            summary.written = sum(counts.values()) - counts["equal"]
    finally:
        compared.unpersist()
    return summary
