"""Latencies from the message trace topic: of sends by topic, of deliveries and of listeners by
group, topic and queue.

Spark's own functions parse the records; their fields are those of Apache's TraceDataEncoder. A
trace does not name the queue of a message, so it is joined with the topics by the unique key, as
far as they still have the message.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ogive.model import TRACE_TOPIC, PropertyName
from ogive.pipelines.job import OPEN, Say, Security, Summary, writable

LEVELS: Final = (0.5, 0.95, 0.99)
LAST_MS: Final = 253402214399999
"""A day before the end of the year 9999: a client may write traces in other units, and Spark has no
later times.
"""
PLACE: Final = "topic STRING, brokerName STRING, queueId INT, properties MAP<STRING,STRING>"


def trace_report(
    spark: SparkSession,
    *,
    name_server: str,
    to: Path,
    say: Say,
    trace_topic: str = TRACE_TOPIC,
    since: datetime | None = None,
    security: Security = OPEN,
    bucket: str = "1 minute",
    dry_run: bool = False,
) -> Summary:
    """Write a self-contained HTML page to *to*. *bucket* is the step of its time axis."""
    summary = Summary("trace-report", dry_run=dry_run)
    options = {**security, "nameServer": name_server}
    stored = spark.read.format("rocketmq").options(**options).load(trace_topic)
    stored = stored.where(f.col("storeTimestamp") >= f.lit(since)) if since else stored
    to = writable("to", to.parent) / to.name
    if dry_run:
        # Spark checks the words now
        stored.select(f.window("storeTimestamp", bucket))
        summary.read = stored.count()
        summary.notes.append(f"{summary.read:,} trace messages would be read; nothing is written")
        return summary
    say("reading traces")
    records = parse(stored).persist()
    try:
        steps = {row["step"]: row["count"] for row in records.groupBy("step").count().collect()}
        known = {"Pub", "SubBefore", "SubAfter"}
        summary.read = sum(steps.values())
        for step in sorted(steps.keys() - known):
            summary.skipped[f"step {step[:40]}"] = steps[step]
        deliveries = delivered(records, places(spark, records, options, summary)).persist()
        sent = records.where("step = 'Pub'")
        figures = {
            "Sends by topic": rows(sent, ["topic"], f.col("cost"), failed="success = 'false'"),
            "Delivery by group and topic": rows(
                deliveries, ["group", "topic"], f.col("late"), failed="success = 'false'"
            ),
            "Listener by group and topic": rows(
                deliveries, ["group", "topic"], f.col("cost"), failed="success = 'false'"
            ),
            "Delivery by group and queue": rows(
                deliveries, ["group", "queue"], f.col("late"), failed="success = 'false'"
            ),
        }
        when = f.window(f.timestamp_millis("at"), bucket)["start"]
        over_time = (
            deliveries.groupBy("group", f.unix_millis(when).alias("at"))
            .agg(*quantiles(f.col("late")))
            .orderBy("at")
            .collect()
        )
        series: dict[str, list[tuple[int, float]]] = {}
        for row in over_time:
            if row["quantiles"] is not None:
                series.setdefault(row["group"], []).append((row["at"], row["quantiles"][1]))
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(page(figures, series, read=summary.read, bucket=bucket), encoding="utf-8")
        deliveries.unpersist()
    finally:
        records.unpersist()
    summary.written = 1
    summary.figures["report"] = {
        name: [_plain(row) for row in table] for name, table in figures.items()
    }
    summary.notes.append(f"the report is {to}")
    return summary


def parse(stored: DataFrame) -> DataFrame:
    """Return a row for each record: step, at, group, topic, id, request, cost, retries, success.

    Times are in milliseconds, and null if Spark cannot represent them.
    """
    body = f.try_validate_utf8(f.col("body").cast("string"))
    text = f.explode(f.split(body, "\u0002")).alias("record")
    fields = (
        stored.select(text).where("record <> ''").select(f.split("record", "\u0001").alias("f"))
    )

    def field(**by_step: int) -> Column:
        found = f.lit(None).cast("string")
        for step, place in by_step.items():
            found = f.when(f.get("f", f.lit(0)) == step, f.get("f", f.lit(place))).otherwise(found)
        return f.nullif(found, f.lit("null"))

    at = field(Pub=1, SubBefore=1, SubAfter=7).try_cast("bigint")
    return fields.select(
        f.get("f", f.lit(0)).alias("step"),
        f.when(at.between(0, LAST_MS), at).alias("at"),
        field(Pub=3, SubBefore=3, SubAfter=8).alias("group"),
        field(Pub=4).alias("topic"),
        field(Pub=5, SubBefore=5, SubAfter=2).alias("id"),
        field(SubBefore=4, SubAfter=1).alias("request"),
        field(Pub=10, SubAfter=3).try_cast("bigint").alias("cost"),
        field(SubBefore=6).try_cast("int").alias("retries"),
        field(Pub=13, SubAfter=4).alias("success"),
    )


def places(
    spark: SparkSession, records: DataFrame, options: Mapping[str, str], summary: Summary
) -> DataFrame:
    """Map ids to queues, for the topics in the traces that can be read."""
    found = spark.createDataFrame([], "id STRING, queue STRING")
    for row in (
        records.where("step = 'Pub' and topic is not null").select("topic").distinct().collect()
    ):
        table = spark.read.format("rocketmq").options(**options).schema(PLACE).load(row["topic"])
        queue = f.concat_ws("/", "topic", "brokerName", "queueId").alias("queue")
        try:
            table.limit(1).count()
            found = found.union(
                table.select(f.col("properties")[PropertyName.UNIQ_KEY].alias("id"), queue)
            )
        except PySparkException:
            summary.notes.append(
                f"the queues of {row['topic']} are not known: the topic cannot be read"
            )
    return found.dropDuplicates(["id"])


def delivered(records: DataFrame, queues: DataFrame) -> DataFrame:
    """Return a row for each delivery: group, topic, queue, at, late (first delivery after the
    send), cost and success of its listener.
    """
    sent = (
        records.where("step = 'Pub'")
        .groupBy("id")
        .agg(f.first("topic").alias("topic"), f.min("at").alias("sent_at"))
    )
    before = records.where("step = 'SubBefore'").select("group", "id", "request", "at", "retries")
    after = records.where("step = 'SubAfter'").select("id", "request", "cost", "success")
    late = f.when(
        (f.col("retries") == 0) | f.col("retries").isNull(),
        f.greatest(f.col("at") - f.col("sent_at"), f.lit(0)),
    )
    whole = (
        before.join(after, ["id", "request"], "left")
        .join(sent, "id", "left")
        .join(queues, "id", "left")
    )
    return whole.withColumn("late", late).fillna("unknown", ["group", "topic", "queue"])


def quantiles(value: Column) -> list[Column]:
    levels = f.array(*map(f.lit, LEVELS))
    return [
        f.percentile_approx(value, levels).alias("quantiles"),
        f.count(value).alias("count"),
        f.max(value).alias("most"),
    ]


def rows(
    records: DataFrame, by: list[str], value: Column, *, failed: str
) -> list[Mapping[str, Any]]:
    """Return by group: name, count, failed, quantiles (LEVELS) and the largest, in milliseconds."""
    grouped = records.groupBy(f.concat_ws(" · ", *by).alias("name")).agg(
        *quantiles(value), f.count_if(f.expr(failed)).alias("failed")
    )
    return [row.asDict() for row in grouped.orderBy("name").collect() if row["count"]]


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if name == "quantiles" else value for name, value in row.items()}


# Report of traces as one HTML file: tables with bars, and a curve over time.
#
# The page has no script, and loads nothing from other servers.

Row = Mapping[str, Any]

_WIDTH: Final = 900
_HEIGHT: Final = 260
_LEFT: Final = 76
_BOTTOM: Final = 28
_COLOURS: Final = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#718096")
_NAMES: Final = ("p50", "p95", "p99")
_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1a202c;--paper:#fff;--soft:#718096;--line:#e2e8f0}
@media(prefers-color-scheme:dark){
:root{--ink:#e2e8f0;--paper:#171923;--soft:#a0aec0;--line:#2d3748}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);
max-width:960px;margin:2rem auto;padding:0 1rem}
h2{margin-top:2.2rem;font-size:1.15rem}p{color:var(--soft)}
table{border-collapse:collapse;width:100%}
th,td{text-align:right;padding:.3rem .6rem;border-bottom:1px solid var(--line);
font-variant-numeric:tabular-nums}
th:first-child,td:first-child{text-align:left;overflow-wrap:anywhere}
th{font-weight:600;color:var(--soft)}
svg{width:100%;height:auto}svg text{fill:var(--soft);font-size:12px}.grid{stroke:var(--line)}
.p50{fill:#2b6cb0}.p95{fill:#63a4e0}.p99{fill:#c6dcf2}
.key i{display:inline-block;width:.8em;height:.8em;margin:0 .35em 0 1em;border-radius:2px}
"""


def page(
    figures: Mapping[str, Sequence[Mapping[str, Any]]],
    series: Mapping[str, Sequence[tuple[int, float]]],
    *,
    read: int,
    bucket: str,
) -> str:
    parts = [
        f"<p>From {read:,} trace records, in milliseconds. A delivery is from the send to the "
        "first call of a listener, a listener's time "
        "that of each call.</p>"
    ]
    for title, rows in figures.items():
        parts += [
            f"<h2>{escape(title)}</h2>",
            _table(rows) if rows else "<p>Nothing was traced.</p>",
        ]
    if series:
        parts += [
            f"<h2>Delivery over time: 95th percentile in steps of {escape(bucket)}</h2>",
            _curves(series),
            _key(series),
        ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>Message traces</title><style>{_STYLE}</style>'
    )
    return (
        f'<!doctype html><html lang="en"><head>{head}</head><body><h1>Message '
        f"traces</h1>{''.join(parts)}</body></html>\n"
    )


def _table(rows: Sequence[Row]) -> str:
    most = max(row["quantiles"][2] for row in rows) or 1
    lines = []
    for row in rows:
        values = [row["count"], row["failed"], *row["quantiles"], row["most"]]
        cells = "".join(f"<td>{value:,.0f}</td>" for value in values)
        lines.append(
            f"<tr><td>{escape(row['name'])}</td>{cells}<td>{_bar(row['quantiles'], most)}</td></tr>"
        )
    heads = "".join(
        f"<th>{name}</th>" for name in ("name", "count", "failed", *_NAMES, "max", "p50 p95 p99")
    )
    return f"<table><tr>{heads}</tr>{''.join(lines)}</table>"


def _bar(quantiles: Sequence[float], most: float) -> str:
    """Draw a bar, the longest part first, so that the shorter ones are on top of it."""
    bars = "".join(
        f'<rect class="{name}" width="{max(1.0, 160 * value / most):.1f}" height="14" '
        f'rx="2"><title>{name} {value:,.0f} ms</title></rect>'
        for name, value in reversed(list(zip(_NAMES, quantiles, strict=True)))
    )
    return f'<svg viewBox="0 0 160 14" style="width:160px" role="img">{bars}</svg>'


def _curves(series: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    points = [point for curve in series.values() for point in curve]
    first, last = min(at for at, _ in points), max(at for at, _ in points)
    top = _round(max(value for _, value in points) or 1.0)

    def x(at: int) -> float:
        return _LEFT + (at - first) / max(1, last - first) * (_WIDTH - _LEFT - 8)

    def y(value: float) -> float:
        return 12 + (1 - value / top) * (_HEIGHT - _BOTTOM - 12)

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        height = y(share * top)
        parts.append(f'<path class="grid" d="M{_LEFT} {height:.1f}H{_WIDTH - 8}"/>')
        parts.append(
            f'<text x="{_LEFT - 8}" y="{height + 4:.1f}" '
            f'text-anchor="end">{share * top:,.4g}{" ms" * (share == 1)}</text>'
        )
    for at, anchor in ((first, "start"), (last, "end")):
        text = datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        parts.append(
            f'<text x="{x(at):.1f}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{text}</text>'
        )
        if first == last:
            break
    for (name, curve), colour in zip(series.items(), _COLOURS * len(series), strict=False):
        line = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in curve)
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" '
            f'stroke-width="2"><title>{escape(name)}</title></polyline>'
        )
        parts += [
            f'<circle cx="{x(at):.1f}" cy="{y(value):.1f}" r="3" fill="{colour}"/>'
            for at, value in curve
        ]
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="latency over '
        f'time">{"".join(parts)}</svg>'
    )


def _round(value: float) -> float:
    """Return the next number whose quarters are easy to read."""
    step = 10.0 ** math.floor(math.log10(value))
    return next(step * factor for factor in (1, 2, 4, 8, 10) if step * factor >= value)


def _key(series: Mapping[str, Any]) -> str:
    names = zip(series, _COLOURS * len(series), strict=False)
    return (
        '<p class="key">'
        + "".join(f'<i style="background:{colour}"></i>{escape(name)}' for name, colour in names)
        + "</p>"
    )
