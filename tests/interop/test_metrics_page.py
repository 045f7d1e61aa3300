"""Our page for Prometheus beside that of Apache's broker, after the same traffic of Apache's
clients.
"""

import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from ogive.testing import Broker
from tests.interop import apache
from tests.interop.apache import Apache
from tests.peers import APACHES_CHECKS, DELAY_LEVELS, OUR_CHECKS
from tests.processes import free_port

OMITTED: Final = {
    "rocketmq_pop_": "about the revive topic; ours count leases in the journal",
    "rocketmq_timer_message_snapshot": "a table of all waiting messages by their time; "
    "timing_messages says how many wait",
    "rocketmq_topic_create_execution_time_milliseconds": "one write of a table; nobody waits for "
    "anything else",
    "rocketmq_consumer_group_create_execution_time_milliseconds": "the same",
    "otel_scope_info": "about the library that Apache's broker counts with",
    "target_info": "the same",
}
"""Families of theirs that ours does not have, by the beginning of their names."""
# the name of that library, on every line
LABELS_OMITTED: Final = {"otel_scope_name"}
# ours counts by group alone
TOPICS_OMITTED: Final = {"rocketmq_send_to_dlq_messages_total": {"topic"}}
EXPECTED: Final = {
    "rocketmq_message_size",
    "rocketmq_rpc_latency_milliseconds",
    "rocketmq_half_messages",
    "rocketmq_commit_messages_total",
    "rocketmq_rollback_messages_total",
    "rocketmq_finish_message_latency_milliseconds",
    "rocketmq_timing_messages",
    "rocketmq_timer_enqueue_total",
    "rocketmq_timer_dequeue_total",
    "rocketmq_delay_message_latency_seconds",
    "rocketmq_consumer_lag_messages",
    "rocketmq_consumer_lag_latency_milliseconds",
    "rocketmq_consumer_connections",
    "rocketmq_producer_connections",
    "rocketmq_messages_out_total",
    "rocketmq_storage_size_bytes",
}
"""What the traffic shows on both pages: without it the comparison would be of little."""


class Family(NamedTuple):
    kind: str
    labels: set[frozenset[str]]
    """The keys of each of its lines, without le."""


def families(text: str) -> dict[str, Family]:
    found = {
        name: Family(kind, set())
        for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    }
    for line in text.splitlines():
        if line and not line.startswith("#"):
            match = re.match(r"(\w+)(?:\{(.*)\})? ", line)
            assert match, line
            name = match[1] if match[1] in found else re.sub(r"_(bucket|sum|count)$", "", match[1])
            keys = re.findall(r'(\w+)="(?:[^"\\]|\\.)*"', match[2] or "")
            found[name].labels.add(frozenset(keys) - {"le"} - LABELS_OMITTED)
    return {name: family for name, family in found.items() if family.labels}


def rows(text: str, name: str, label: str) -> set[str]:
    """What *label* says on the lines of *name*."""
    return set(re.findall(rf'^{name}\{{.*\b{label}="([^"]*)"', text, re.MULTILINE))


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Address of the name server, and of the page."""
    port = free_port()
    exporter = {
        "metricsExporterType": "PROM",
        "metricsPromExporterPort": str(port),
        "metricsPromExporterHost": "127.0.0.1",
    }
    with Apache(
        tmp_path / "apache", {"messageDelayLevel": DELAY_LEVELS, **APACHES_CHECKS, **exporter}
    ) as running:
        yield running.name_server, f"http://127.0.0.1:{port}/metrics"


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[tuple[str, str]]:
    port = free_port()
    options = ("--delay-levels", DELAY_LEVELS, *OUR_CHECKS, "--metrics-port", str(port))
    with Broker(data=tmp_path / "ogive", options=options) as running:
        yield running.name_server, f"http://127.0.0.1:{port}/metrics"


def page_after_traffic(name_server: str, url: str, topic: str) -> str:
    """The page while a producer of transactions and a consumer are connected."""
    apache.send(name_server, topic, 3)
    apache.send(name_server, topic, 2, mode="batch")
    apache.send(name_server, topic, 1, delayMs=1000)
    apache.send(name_server, topic, 1, delayMs=600_000)
    transactions = {
        "topic": f"{topic}-tx",
        "group": f"P-{topic}",
        "plans": "commit,rollback,check-commit",
    }
    with (
        apache.JavaClient(
            "Transact", system=None, nameServer=name_server, count=3, hang="true", **transactions
        ) as producer,
        apache.JavaClient(
            "Consume", nameServer=name_server, topic=topic, group=f"G-{topic}", deliveries=1000
        ) as consumer,
    ):
        producer.wait_for("hanging")
        consumer.wait_for("body")
        return once(lambda: read(url), lambda text: families(text).keys() >= EXPECTED)


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def once(look: Callable[[], str], good: Callable[[str], bool]) -> str:
    """What *look* finds once it is *good*, or at the end of a minute."""
    ends_at = time.monotonic() + 60
    while not good(found := look()) and time.monotonic() < ends_at:
        time.sleep(1.0)
    return found


def test_families_of_theirs_have_the_same_name_type_and_labels_here(
    theirs: tuple[str, str], ours: tuple[str, str], topic: str
) -> None:
    their_text, our_text = page_after_traffic(*theirs, topic), page_after_traffic(*ours, topic)
    expected, found = families(their_text), families(our_text)
    assert (EXPECTED - expected.keys(), EXPECTED - found.keys()) == (set(), set())
    claimed = {
        name: family for name, family in expected.items() if not name.startswith(tuple(OMITTED))
    }
    assert claimed.keys() - found.keys() == set()
    for name, (kind, labels) in claimed.items():
        without = TOPICS_OMITTED.get(name, set())
        assert found[name] == (kind, {keys - without for keys in labels}), name
    assert rows(our_text, "rocketmq_rpc_latency_milliseconds_count", "request_code") >= {
        "send_message_v2",
        "send_batch_message",
        "pull_message",
    }
    assert rows(our_text, "rocketmq_messages_in_total", "message_type") == rows(
        their_text, "rocketmq_messages_in_total", "message_type"
    )
