"""A receiver of OTLP over HTTP, for tests of what applications export."""

import gzip
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

# what applications in a process of their own do at the beginning of their module; ogive's part is
# the last line
SET_UP = """
import os
from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
import ogive.otel

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=200))
trace.set_tracer_provider(provider)
reader = PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=200)
metrics.set_meter_provider(MeterProvider([reader]))
ogive.otel.instrument()
"""


class Receiver:
    """What was received, by the name of the service."""

    def __init__(self, address: str) -> None:
        self.endpoint = f"http://{address}"
        self.changed = threading.Condition()
        self._spans: list[tuple[str, Span]] = []
        # the newest value of each point, by service, metric and attributes: exports are cumulative
        self._points: dict[tuple[str, str, tuple[tuple[str, str], ...]], float] = {}

    def spans(self, service: str, name: str) -> list[Span]:
        with self.changed:
            return [span for one, span in self._spans if (one, span.name) == (service, name)]

    def wait(self, service: str, name: str, count: int = 1, timeout_s: float = 120.0) -> list[Span]:
        with self.changed:
            assert self.changed.wait_for(
                lambda: len(self.spans(service, name)) >= count, timeout_s
            ), self.names()
        return self.spans(service, name)

    def names(self) -> set[tuple[str, str]]:
        with self.changed:
            return {(service, span.name) for service, span in self._spans}

    def total(self, service: str, metric: str) -> float:
        """The sum of the values of a metric's points, of a histogram their counts."""
        with self.changed:
            return sum(
                value
                for (one, name, _), value in self._points.items()
                if (one, name) == (service, metric)
            )

    def environment(self, service: str) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint, "OTEL_SERVICE_NAME": service}

    def take(self, path: str, body: bytes) -> bytes:
        """Take over a request, and return the answer."""
        with self.changed:
            if path == "/v1/traces":
                for service, resource in _services(ExportTraceServiceRequest.FromString(body)):
                    for scope in resource.scope_spans:
                        self._spans += [(service, span) for span in scope.spans]
                answer: Any = ExportTraceServiceResponse()
            else:
                assert path == "/v1/metrics"
                for service, resource in _services(ExportMetricsServiceRequest.FromString(body)):
                    for scope in resource.scope_metrics:
                        for metric in scope.metrics:
                            self._take_metric(service, metric)
                answer = ExportMetricsServiceResponse()
            self.changed.notify_all()
        encoded: bytes = answer.SerializeToString()
        return encoded

    def _take_metric(self, service: str, metric: Any) -> None:
        kind = metric.WhichOneof("data")
        for point in getattr(metric, kind).data_points:
            value = point.count if kind == "histogram" else point.as_int or point.as_double
            places = tuple(sorted((one.key, str(one.value)) for one in point.attributes))
            self._points[service, metric.name, places] = value


def attributes(span: Span) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def links(spans: Sequence[Span]) -> set[bytes]:
    return {link.span_id for span in spans for link in span.links}


def _services(request: Any) -> Iterator[tuple[str, Any]]:
    resources = getattr(request, "resource_spans", None) or request.resource_metrics
    for one in resources:
        names = [
            pair.value.string_value
            for pair in one.resource.attributes
            if pair.key == "service.name"
        ]
        yield names[0], one


@contextmanager
def receiving() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.headers["Content-Type"] == "application/x-protobuf"
            answer = receiver.take(self.path, body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        receiver = Receiver(f"127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
