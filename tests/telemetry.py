"""Telemetry that is exported to memory, for tests of ogive.otel."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import ogive.otel

WAIT_S: Final = 60.0


class Telemetry:
    """What was exported to memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meter_provider = MeterProvider([self._reader])
        self.tracer = self.tracer_provider.get_tracer("test")

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    async def wait(self, name: str, count: int = 1) -> list[ReadableSpan]:
        async with asyncio.timeout(WAIT_S):
            while len(found := self.named(name)) < count:
                await asyncio.sleep(0.01)
        return found

    def metrics(self) -> dict[str, list[Any]]:
        """Return the points of each metric."""
        data = self._reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@contextmanager
def instrumented() -> Iterator[Telemetry]:
    """Instrument the clients that are made in the block."""
    made = Telemetry()
    ogive.otel.instrument(tracer_provider=made.tracer_provider, meter_provider=made.meter_provider)
    try:
        yield made
    finally:
        ogive.otel.uninstrument()
        made.tracer_provider.shutdown()
        made.meter_provider.shutdown()
