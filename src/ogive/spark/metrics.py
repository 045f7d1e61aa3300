"""Lag and rates of streaming queries as Prometheus text under ``/metrics``.

One listener serves all queries of a session. Only the latest progress of a query is kept. Of
queries that ended, the last MAX_ENDED are kept, each until a query of the same name starts:
Prometheus refuses a page with duplicate samples.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from ogive.errors import ConnectError
from ogive.model import MessageQueue
from ogive.spark.compat import reported_lag
from ogive.transport.monitoring import CONTENT_TYPE, MetricsText

MAX_ENDED: Final = 50
_HELP: Final = {
    "ogive_spark_query_active": ("gauge", "1 while the query runs"),
    "ogive_spark_query_failed": ("gauge", "1 when the query ended with an error"),
    "ogive_spark_batch_id": ("gauge", "number of the last batch"),
    "ogive_spark_rows_total": ("counter", "messages read since the listener was added"),
    "ogive_spark_input_rows_per_second": ("gauge", "messages that came, by the last batch"),
    "ogive_spark_processed_rows_per_second": (
        "gauge",
        "messages that could be worked on, by the last batch",
    ),
    "ogive_spark_batch_seconds": ("gauge", "how long the last batch took"),
    "ogive_spark_lag_messages": ("gauge", "messages of the queue that are not in a finished batch"),
}

Sample = tuple[str, dict[str, str], float]


@dataclass(slots=True)
class _Query:
    name: str
    active: bool = True
    failed: bool = False
    rows: int = 0
    progress: Mapping[str, Any] = field(default_factory=dict)


class QueryMetrics(StreamingQueryListener):
    """Server of the metrics of all queries of *spark*: ``with QueryMetrics(spark, port=9404):``.

    Port 0 chooses a free one, see *address*.

    Raises ConnectError if it cannot listen there.
    """

    def __init__(self, spark: SparkSession, *, host: str = "127.0.0.1", port: int = 9404) -> None:
        self._spark = spark
        self._queries: OrderedDict[str, _Query] = OrderedDict()
        # for _queries: Spark calls on its thread, scrapes come on others
        self._lock = threading.Lock()
        try:
            self._server = ThreadingHTTPServer((host, port), self._handler())
        except OSError as exc:
            reason = exc.strerror or str(exc)
            raise ConnectError(
                f"query metrics cannot listen on {host}:{port}: {reason}; choose another port=",
                f"{host}:{port}",
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="query metrics", daemon=True
        )

    @property
    def address(self) -> str:
        """``host:port``"""
        return f"{self._server.server_address[0]!s}:{self._server.server_address[1]}"

    def start(self) -> Self:
        """Start serving."""
        self._thread.start()
        self._spark.streams.addListener(self)
        return self

    def close(self) -> None:
        """Stop serving. Call it once."""
        self._spark.streams.removeListener(self)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- Spark calls these ------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Note a query. Spark calls it."""
        self._add(str(event.runId), event.name or str(event.id))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Note the figures of a batch. Spark calls it."""
        self.progressed(str(event.progress.runId), json.loads(event.progress.json))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Do nothing: an idle query changes no sample. Spark calls it."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Note that a query has ended, or failed. Spark calls it."""
        self.ended(str(event.runId), failed=event.exception is not None)

    # --- what they mean ---------------------------------------------------------------------------

    def _add(self, run: str, name: str) -> _Query:
        with self._lock:
            for key in [
                key for key, one in self._queries.items() if one.name == name and key != run
            ]:
                del self._queries[key]
            query = self._queries.setdefault(run, _Query(name))
            gone = [key for key, one in self._queries.items() if not one.active]
            for key in gone[: max(0, len(gone) - MAX_ENDED)]:
                del self._queries[key]
            return query

    def progressed(self, run: str, progress: Mapping[str, Any]) -> None:
        query = self._add(run, progress.get("name") or str(progress.get("id")))
        query.rows += progress.get("numInputRows", 0)
        query.progress = progress

    def ended(self, run: str, *, failed: bool) -> None:
        with self._lock:
            if run in self._queries:
                self._queries[run].active, self._queries[run].failed = False, failed

    def text(self) -> str:
        """Return all samples in Prometheus's text format."""
        with self._lock:
            samples = [sample for query in self._queries.values() for sample in _samples(query)]
        metrics = MetricsText()
        for name, (kind, help_text) in _HELP.items():
            rows = [(labels, value) for metric, labels, value in samples if metric == name]
            if rows:
                metrics.add(name, kind, help_text, rows)
        return metrics.text()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        metrics = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path.partition("?")[0] == "/metrics"
                body = metrics.text().encode() if found else b"the metrics are at /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Do not log scrapes."""

        return Handler


def _samples(query: _Query) -> Iterator[Sample]:
    labels, progress = {"query": query.name}, query.progress
    yield "ogive_spark_query_active", labels, float(query.active)
    yield "ogive_spark_query_failed", labels, float(query.failed)
    yield "ogive_spark_rows_total", labels, float(query.rows)
    if not progress:
        return
    yield "ogive_spark_batch_id", labels, float(progress["batchId"])
    yield (
        "ogive_spark_input_rows_per_second",
        labels,
        float(progress.get("inputRowsPerSecond") or 0.0),
    )
    yield (
        "ogive_spark_processed_rows_per_second",
        labels,
        float(progress.get("processedRowsPerSecond") or 0.0),
    )
    yield (
        "ogive_spark_batch_seconds",
        labels,
        progress.get("durationMs", {}).get("triggerExecution", 0) / 1000,
    )
    # a topic that is joined with itself is two sources
    lags: dict[MessageQueue, int] = {}
    for source in progress.get("sources", ()):
        for queue, count in reported_lag(source).items():
            lags[queue] = max(count, lags.get(queue, 0))
    for queue, count in lags.items():
        place = {"topic": queue.topic, "broker": queue.broker_name, "queue": str(queue.queue_id)}
        yield "ogive_spark_lag_messages", labels | place, float(count)
