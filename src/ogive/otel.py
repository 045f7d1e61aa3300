"""OpenTelemetry for ogive's clients: spans, context propagation and metrics.

Source: semantic conventions for messaging and RocketMQ, version 1.44. Needs opentelemetry-api
(``pip install 'ogive[otel]'``). The application installs and sets up the SDK and its exporters.

Behaviour

- A message carries the context of its send in properties that the global propagator writes
  (``traceparent``). A message that has a context already keeps it, and the send has a link to it.
- A message of ``send_batch`` carries the context of a "create" span of its own. Each request is a
  "send" span with links to these spans.
- A message whose properties have no room for the context is sent without it. The first one is
  logged.
- A listener's call and a ``process()`` block are "process" spans with links to their messages. With
  one message the span continues the message's trace; in a block it does so only if no span is
  current.
- A call of a pull or simple consumer that returns or acknowledges messages, or fails, is a span
  with links to the messages. A call that finds no message has no span.
- An error of the telemetry is logged, and changes nothing for the messages.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Final, NamedTuple

from ogive.client.consumer.listener_call import ListenerCall, Outcome
from ogive.client.instrumentation import SendEnd, instrumentation, set_instrumentation
from ogive.client.sending.message_builder import message_property_text
from ogive.model import Message, MessageExt, MessageQueue, SendResult
from ogive.version import __version__
from ogive.wire.message import MAX_PROPERTIES_BYTES

try:
    from opentelemetry import context, metrics, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import (
        Link,
        Span,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TracerProvider,
    )
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError(
        f"{exc}: ogive.otel needs pip install 'ogive[otel]'", name=exc.name
    ) from None

__all__ = ["instrument", "process", "uninstrument"]

log = logging.getLogger(__name__)

_SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"
_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

_SPARE_BYTES: Final = 1024
"""Room for the properties that producer, broker and retries add."""

Attributes = dict[str, str | int | Sequence[str]]


def instrument(
    *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Trace and measure producers that are made, and push consumers that are started, from now on.

    Pull and simple consumers are traced from their next call on. The default providers are the
    global ones. Calling this again replaces the providers.
    """
    set_instrumentation(_Telemetry(tracer_provider, meter_provider))


def uninstrument() -> None:
    """Stop tracing new producers and push consumers, and all pull and simple consumers."""
    set_instrumentation(None)


@contextmanager
def process(
    messages: MessageExt | Sequence[MessageExt], *, group: str | None = None
) -> Iterator[None]:
    """Trace the block as a "process" span: the work on messages that were polled or received.

    With one MessageExt the span continues the message's trace, unless there is a current span.
    Does nothing unless ``instrument()`` was called.
    """
    telemetry = instrumentation()
    if not isinstance(telemetry, _Telemetry) or not messages:
        yield
        return
    if isinstance(messages, MessageExt):
        work = telemetry.processing((messages,), group, {}, in_batches=False, inherits=True)
    else:
        work = telemetry.processing(messages, group, {}, in_batches=True, inherits=True)
    with work:
        yield


class _Begun(NamedTuple):
    """Send without an outcome yet. *span* is None for a message of a batch."""

    span: Span | None
    created: SpanContext
    parent: Context
    topic: str
    since_ns: int


class _Telemetry:
    """Instrumentation of all clients of this process."""

    def __init__(
        self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None
    ) -> None:
        self._left_out = False
        self._tracer = trace.get_tracer("ogive", __version__, tracer_provider, _SCHEMA)
        meter = metrics.get_meter("ogive", __version__, meter_provider, _SCHEMA)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages",
            "{message}",
            "Messages that a producer tried to send.",
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            "{message}",
            "Messages that were delivered to the application.",
        )
        self._operations = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of sends, receives and acknowledgements.",
            explicit_bucket_boundaries_advisory=_BUCKETS_S,
        )
        self._processing = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of the processing of messages.",
            explicit_bucket_boundaries_advisory=_BUCKETS_S,
        )

    # --- producers --------------------------------------------------------------------------------

    def send_begins(self, message: Message, *, in_batch: bool) -> tuple[Message, _Begun | None]:
        try:
            return self._begin_send(message, in_batch)
        except Exception:
            # a sampler, processor or propagator of the application must not break the send
            log.exception("no span for a message for %s", message.topic)
            return message, None

    def _begin_send(self, message: Message, in_batch: bool) -> tuple[Message, _Begun]:
        now, parent = time.time_ns(), context.get_current()
        given = _created(message.properties)
        if in_batch and given is not None:
            return message, _Begun(None, given, parent, message.topic, now)
        operation = "create" if in_batch else "send"
        span = self._tracer.start_span(
            f"{operation} {message.topic}",
            parent,
            SpanKind.PRODUCER if given is None else SpanKind.CLIENT,
            {**_operation(operation, operation, message.topic), **_of_message(message)},
            [] if given is None else [Link(given)],
            now,
        )
        if given is None:
            properties = dict(message.properties)
            propagate.inject(properties, trace.set_span_in_context(span, parent))
            if properties != message.properties:
                message = self._carrying(message, properties)
        if in_batch:
            span.end()
        created = given or span.get_span_context()
        return message, _Begun(None if in_batch else span, created, parent, message.topic, now)

    def _carrying(self, message: Message, properties: Mapping[str, str]) -> Message:
        """Return *message* with *properties*; unchanged if they leave too little room."""
        changed = replace(message, properties=properties)
        size = len(message_property_text(changed).encode(errors="surrogatepass"))
        if size + _SPARE_BYTES <= MAX_PROPERTIES_BYTES:
            return changed
        if not self._left_out:
            self._left_out = True
            log.warning(
                "a message for %s is sent without the context of its trace: its properties have "
                "%d bytes with it. Others like it are not logged",
                message.topic,
                size,
            )
        return message

    def send_ended(self, begun: Sequence[_Begun | None], end: SendEnd) -> None:
        try:
            known = [one for one in begun if one is not None]
            if known:
                self._end_send(known, len(begun), end)
        except Exception:
            # as above; and this runs on the producer's event loop
            log.exception("a span of a send could not be ended")

    def _end_send(self, begun: Sequence[_Begun], count: int, end: SendEnd) -> None:
        topic, since_ns = begun[-1].topic, begun[-1].since_ns
        common = {**_operation("send", "send", topic), **_server(end.address)}
        span = begun[0].span
        if span is None:
            links = [Link(one.created) for one in begun]
            span = self._tracer.start_span(
                f"send {topic}", begun[-1].parent, SpanKind.CLIENT, common, links, since_ns
            )
        span.set_attributes({**_server(end.address), "messaging.client.id": end.client_id})
        if end.namespace:
            span.set_attribute("messaging.rocketmq.namespace", end.namespace)
        if end.is_transaction:
            span.set_attribute("messaging.rocketmq.message.type", "transaction")
        if end.is_batch:
            span.set_attribute("messaging.batch.message_count", count)
        if end.results:
            span.set_attribute("messaging.destination.partition.id", _partition(end.results[0]))
            if not end.is_batch:
                span.set_attribute("messaging.message.id", end.results[0].id)
        error = _error_type(end.error)
        _close(span, end.error, error)
        self._sent.add(count, {**common, **error})
        self._operations.record(_seconds_since(since_ns), {**common, **error})

    # --- consumers --------------------------------------------------------------------------------

    def client_operation(
        self,
        operation: str,
        group: str | None,
        topics: Iterable[str],
        messages: Sequence[MessageExt],
        since_ns: int,
        error: Exception | None,
    ) -> None:
        kind = "settle" if operation == "ack" else "receive"
        try:
            names = {message.topic for message in messages} or set(topics)
            common = {
                **_operation(operation, kind, names.pop() if len(names) == 1 else None),
                **_group(group),
            }
            span = self._tracer.start_span(
                _span_name(common),
                None,
                SpanKind.CLIENT,
                {**common, "messaging.batch.message_count": len(messages)},
                _links(messages),
                since_ns,
            )
            failure = _error_type(error)
            _close(span, error, failure)
            self._operations.record(_seconds_since(since_ns), {**common, **failure})
            if kind == "receive" and messages:
                self._consumed.add(len(messages), common)
        except Exception:
            # as above: received messages must not be lost
            log.exception("no span for %s of group %s", operation, group)

    def interceptor(
        self, *, in_batches: bool, broadcast: bool, namespace: str, inherits: bool
    ) -> Callable[[ListenerCall], AbstractContextManager[None]]:
        model = "broadcasting" if broadcast else "clustering"
        more: Attributes = {"messaging.rocketmq.consumption_model": model}
        if namespace:
            more["messaging.rocketmq.namespace"] = namespace

        @contextmanager
        def around(call: ListenerCall) -> Iterator[None]:
            with self.processing(
                call.messages, call.group, more, in_batches=in_batches, inherits=inherits, call=call
            ):
                yield

        return around

    @contextmanager
    def processing(
        self,
        messages: Sequence[MessageExt],
        group: str | None,
        more: Attributes,
        *,
        in_batches: bool,
        inherits: bool,
        call: ListenerCall | None = None,
    ) -> Iterator[None]:
        """Make a "process" span current for the block.

        *more* are further attributes of the span. With *inherits*, the current span is its parent.
        A *call* has the outcome, and its messages count as consumed.
        """
        since_ns = time.time_ns()
        common = {**_operation("process", "process", messages[0].topic), **_group(group)}
        begun = self._begin_processing(messages, {**common, **more}, in_batches, inherits)
        if begun is None:
            yield
            return
        span, inside = begun
        token = context.attach(inside)
        error: BaseException | None = None
        try:
            yield
        except BaseException as exc:
            error = exc
            raise
        finally:
            context.detach(token)
            failure = _error_type(error)
            outcome = None if call is None else call.outcome
            if error is None and outcome is not None and outcome is not Outcome.SUCCESS:
                failure = {"error.type": outcome.name.lower()}
            try:
                _close(span, error, failure)
                self._processing.record(_seconds_since(since_ns), {**common, **failure})
                if call is not None:
                    self._consumed.add(len(messages), common)
            except Exception:
                # as above
                log.exception("a span of %s could not be ended", messages[0].topic)

    def _begin_processing(
        self,
        messages: Sequence[MessageExt],
        attributes: Attributes,
        in_batches: bool,
        inherits: bool,
    ) -> tuple[Span, Context] | None:
        try:
            inside, first = context.get_current(), messages[0]
            if not inherits:
                # the span that was current where the consumer was started is unrelated
                inside = trace.set_span_in_context(trace.INVALID_SPAN, inside)
            if in_batches:
                attributes["messaging.batch.message_count"] = len(messages)
            else:
                attributes.update(_of_delivery(first))
                if not trace.get_current_span(inside).get_span_context().is_valid:
                    inside = propagate.extract(first.properties, inside)
            span = self._tracer.start_span(
                _span_name(attributes), inside, SpanKind.CONSUMER, attributes, _links(messages)
            )
            return span, trace.set_span_in_context(span, inside)
        except Exception:
            # as above: the messages must be processed nevertheless
            log.exception("no span for a message of %s", messages[0].topic)
            return None


# --- attributes -----------------------------------------------------------------------------------


def _operation(name: str, kind: str, topic: str | None) -> Attributes:
    attributes: Attributes = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }
    if topic is not None:
        attributes["messaging.destination.name"] = topic
    return attributes


def _span_name(attributes: Attributes) -> str:
    words = (attributes["messaging.operation.name"], attributes.get("messaging.destination.name"))
    return " ".join([str(word) for word in words if word])


def _group(group: str | None) -> Attributes:
    return {} if group is None else {"messaging.consumer.group.name": group}


def _server(address: str) -> Attributes:
    host, _, port = address.rpartition(":")
    return {"server.address": host.strip("[]"), "server.port": int(port)} if host else {}


def _of_message(message: Message) -> Attributes:
    attributes = _labels(message.tag, message.keys, message.sharding_key)
    if message.delay_level:
        attributes["messaging.rocketmq.message.delay_time_level"] = message.delay_level
    at = None if message.deliver_at is None else message.deliver_at.timestamp()
    if message.delay_s is not None:
        at = time.time() + message.delay_s
    if at is not None:
        attributes["messaging.rocketmq.message.delivery_timestamp"] = round(at * 1000)
    if message.is_delayed:
        attributes["messaging.rocketmq.message.type"] = "delay"
    return attributes


def _of_delivery(message: MessageExt) -> Attributes:
    return {
        **_labels(message.tag, message.keys, message.sharding_key),
        "messaging.message.id": message.id,
        "messaging.destination.partition.id": _partition(message),
    }


def _labels(tag: str | None, keys: Sequence[str], sharding_key: str | None) -> Attributes:
    attributes: Attributes = {
        "messaging.rocketmq.message.type": "normal" if sharding_key is None else "fifo"
    }
    if tag is not None:
        attributes["messaging.rocketmq.message.tag"] = tag
    if keys:
        attributes["messaging.rocketmq.message.keys"] = list(keys)
    if sharding_key is not None:
        attributes["messaging.rocketmq.message.group"] = sharding_key
    return attributes


def _partition(stored: MessageExt | SendResult) -> str:
    """Return broker and queue, which are unique within a topic."""
    queue: MessageQueue = stored.queue
    return f"{queue.broker_name}/{queue.queue_id}"


def _created(properties: Mapping[str, str]) -> SpanContext | None:
    """Return the span context that a message carries, or None."""
    if not properties:
        return None
    found = trace.get_current_span(propagate.extract(properties, Context())).get_span_context()
    return found if found.is_valid else None


def _links(messages: Sequence[MessageExt]) -> list[Link]:
    created = [(_created(message.properties), message.id) for message in messages]
    return [Link(one, {"messaging.message.id": id}) for one, id in created if one is not None]


def _error_type(error: BaseException | None) -> Attributes:
    if error is None:
        return {}
    kind = type(error)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return {"error.type": f"{module}{kind.__qualname__}"}


def _close(span: Span, error: BaseException | None, failure: Attributes) -> None:
    if failure:
        span.set_attributes(failure)
        text = str(failure["error.type"]) if error is None else str(error)
        span.set_status(Status(StatusCode.ERROR, text))
    if error is not None:
        span.record_exception(error)
    span.end()


def _seconds_since(since_ns: int) -> float:
    return max(0, time.time_ns() - since_ns) / 1e9
