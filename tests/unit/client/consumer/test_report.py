"""What a member tells about a queue."""

import ssl as tls
from dataclasses import replace

import pytest

from ogive.client.config import ClientConfig
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.process_queue import ProcessQueue
from ogive.client.consumer.running_info import properties, queue_info
from ogive.client.listener import ListenerConfig
from ogive.wire.bodies.clients import ProcessQueueInfo
from tests.unit.client.consumer.test_process_queue import QUEUE, message


def info(process_queue: ProcessQueue, lease_s: float | None = None) -> ProcessQueueInfo:
    return queue_info(process_queue, 10, lease_s=lease_s, now=100.0, now_ms=1_700_000_000_000)


@pytest.mark.feature(39)
def test_what_is_held_is_what_is_told() -> None:
    process_queue = ProcessQueue(QUEUE, 10)
    process_queue.put([message(offset, bytes(1024 * 1024)) for offset in (10, 12, 15)], 16)
    process_queue.ack([10])
    told = info(process_queue)
    assert (told.commit_offset, told.cached_count, told.cached_mib) == (10, 2, 2)
    assert (told.cached_min_offset, told.cached_max_offset) == (12, 15)
    assert (told.taken_count, told.locked, told.last_lock_ms, told.dropped) == (0, False, 0, False)
    assert told.last_pull_ms == process_queue.pulled_at_ms


@pytest.mark.feature(67)
def test_messages_that_a_listener_works_on_are_told_apart() -> None:
    process_queue = ProcessQueue(QUEUE, 10, leased_until=120.0)
    process_queue.put([message(offset) for offset in (10, 12, 15, 16)], 17)
    process_queue.taken = process_queue.head(2)
    told = info(process_queue, lease_s=30.0)
    assert (told.taken_min_offset, told.taken_max_offset, told.taken_count) == (10, 12, 2)
    assert (told.cached_min_offset, told.cached_max_offset, told.cached_count) == (15, 16, 2)
    process_queue.taken = process_queue.head(4)
    told = info(process_queue, lease_s=30.0)
    assert (
        told.taken_count,
        told.cached_count,
        told.cached_min_offset,
        told.cached_max_offset,
    ) == (4, 0, 0, 0)


@pytest.mark.feature(70)
def test_a_lock_is_told_with_its_age() -> None:
    """Leased for 30 s and good for 20 more: taken ten seconds ago."""
    told = info(ProcessQueue(QUEUE, 10, leased_until=120.0), lease_s=30.0)
    assert (told.locked, told.last_lock_ms) == (True, 1_700_000_000_000 - 10_000)
    told = info(ProcessQueue(QUEUE, 10, leased_until=99.0), lease_s=30.0)
    assert (told.locked, told.last_lock_ms) == (False, 1_700_000_000_000 - 31_000)


def test_an_empty_queue() -> None:
    told = info(ProcessQueue(QUEUE, 10))
    assert (told.cached_count, told.cached_min_offset, told.cached_max_offset, told.cached_mib) == (
        0,
        0,
        0,
        0,
    )


@pytest.mark.parametrize(
    "ssl", [False, True, tls.create_default_context()], ids=["plain", "system", "context"]
)
def test_whether_connections_are_encrypted_is_told(ssl: tls.SSLContext | bool) -> None:
    settings = [ListenerConfig(topic="Orders", group="billing")]
    told = properties(
        settings,
        ConsumerConfig(),
        ClientConfig(ssl=ssl),
        from_where="CONSUME_FROM_LAST_OFFSET",
        started_ms=0,
    )
    assert told["useTLS"] == ("true" if ssl else "false")


def test_a_queue_of_which_nothing_can_be_read_is_told() -> None:
    """What cannot be decompressed is on its way to the dead letters, and no listener will get
    it.
    """
    process_queue = ProcessQueue(QUEUE, 10)
    process_queue.put([replace(message(10), sys_flag=1)], 11)
    assert (info(process_queue).cached_count, info(process_queue).cached_min_offset) == (1, 0)
