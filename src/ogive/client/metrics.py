"""Figures of the clients of this process for Prometheus, under the names of RocketMQ's 5.x clients.

Source: HistogramEnum.java, GaugeEnum.java, MetricLabels.java of rocketmq-clients, 5.x (RIP-46).

Behaviour
- A client counts while it runs, and its figures are gone when it is closed.
- A message counts as sent when its outcome is known; one-way sends have none. Messages that travel
  together count one by one, with the time of the slowest.
- The time of a listener's call counts once for each of its messages. Calls that return at once are
  timed together, and each counts with their mean.

Differs from Java
- Figures are shown here, not pushed to an OpenTelemetry collector that a proxy names.
- rocketmq_delivery_latency and rocketmq_await_time are left out: brokers do not say when they hand
  a message out.
- Names that begin with ogive_client_ are our own.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from ogive.transport.monitoring import Histogram, Labels, MetricsText, Values

SEND_MS: Final = (1, 5, 10, 20, 50, 200, 500)
PROCESS_MS: Final = (1, 5, 10, 100, 1_000, 10_000, 60_000)
# topics of one client's sends; further ones share a line
MAX_TOPICS: Final = 1_000
OTHER_TOPICS: Final = "*"


class TopicFigures(NamedTuple):
    """Figures of one topic of one group member. *lag* is None if it is not known."""

    topic: str
    succeeded: Histogram
    failed: Histogram
    pulled_messages: int
    cached_messages: int
    cached_bytes: int
    lag: int | None


class ClientMetrics:
    """Figures of one client, recorded on its loop. *groups*: a function for each member's
    figures.
    """

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.groups: dict[str, Callable[[], Iterable[TopicFigures]]] = {}
        self.sends: dict[tuple[str, str], Values] = {}

    def sent(self, topic: str, seconds: float, count: int, *, stored: bool) -> None:
        """Record the outcome of *count* messages that went together."""
        key = topic, "success" if stored else "failure"
        found = self.sends.get(key)
        if found is None:
            if len(self.sends) >= 2 * MAX_TOPICS:
                key = OTHER_TOPICS, key[1]
            found = self.sends.setdefault(key, Values(SEND_MS))
        found.add(seconds * 1000, count)

    def show(self) -> None:
        """Show the figures from now on, until ``hide``."""
        _shown[self.client_id] = self

    def hide(self) -> None:
        _shown.pop(self.client_id, None)


_shown: Final[weakref.WeakValueDictionary[str, ClientMetrics]] = weakref.WeakValueDictionary()


def metrics() -> str:
    """Return the figures of all running clients of this process, in Prometheus's text format.

    Any thread may call this, for example a web framework that serves it as ``/metrics``, with the
    content type ``text/plain; version=0.0.4``.
    """
    page = MetricsText()
    # valuerefs makes a copy at once: other threads may start clients
    clients = [one for ref in _shown.valuerefs() if (one := ref()) is not None]
    members = list(_members(clients))
    page.histogram(
        "rocketmq_send_cost_time",
        "milliseconds from a send to its outcome",
        [
            (
                {"topic": topic, "client_id": client.client_id, "invocation_status": status},
                values.histogram(),
            )
            for client in clients
            for (topic, status), values in list(client.sends.items())
        ],
    )
    page.histogram(
        "rocketmq_process_time",
        "milliseconds of a listener's call, for each message",
        [
            ({**labels, "invocation_status": status}, histogram)
            for labels, figures in members
            for status, histogram in (("success", figures.succeeded), ("failure", figures.failed))
        ],
    )
    for name, kind, text, figure in (
        ("ogive_client_pulled_messages_total", "counter", "messages pulled", "pulled_messages"),
        (
            "rocketmq_consumer_cached_messages",
            "gauge",
            "messages pulled and not finished",
            "cached_messages",
        ),
        (
            "rocketmq_consumer_cached_bytes",
            "gauge",
            "bytes of messages pulled and not finished",
            "cached_bytes",
        ),
        (
            "ogive_client_lag_messages",
            "gauge",
            "messages of the held queues that are not finished, as of the last pull",
            "lag",
        ),
    ):
        rows = [(labels, getattr(figures, figure)) for labels, figures in members]
        page.add(name, kind, text, [row for row in rows if row[1] is not None])
    return page.text()


def _members(clients: Iterable[ClientMetrics]) -> Iterator[tuple[Labels, TopicFigures]]:
    for client in clients:
        for group, figures in list(client.groups.items()):
            for one in figures():
                labels = {"topic": one.topic, "consumer_group": group}
                yield {**labels, "client_id": client.client_id}, one
