"""Which offsets a trigger reads and how they become partitions: nothing twice, nothing left out,
queues whole and few tasks.
"""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogive.model import MessageQueue
from ogive.spark.ranges import (
    ROWS_PER_PARTITION,
    Chunks,
    Pace,
    QueueRange,
    admit,
    admit_bytes,
    pack,
    share,
    spread_partitions,
)

QUEUES = [
    MessageQueue("Orders", broker, number)
    for broker in ("broker-a", "broker-b")
    for number in range(4)
]
queues = st.sampled_from(QUEUES)
ranges = st.dictionaries(queues, st.tuples(st.integers(0, 10**6), st.integers(0, 10**6))).map(
    lambda spans: [
        QueueRange(queue, start, start + length) for queue, (start, length) in spans.items()
    ]
)


def whole(pieces: list[QueueRange]) -> list[QueueRange]:
    """Adjacent pieces joined again."""
    joined: list[QueueRange] = []
    for piece in sorted(pieces):
        if joined and joined[-1].queue == piece.queue and joined[-1].end == piece.start:
            joined[-1] = QueueRange(piece.queue, joined[-1].start, piece.end)
        else:
            joined.append(piece)
    return joined


# --- partitions -----------------------------------------------------------------------------------


@given(ranges, st.integers(1, 9), st.booleans())
def test_partitions_hold_every_offset_once(
    wanted: list[QueueRange], most: int, preserve_order: bool
) -> None:
    groups = pack(wanted, most, preserve_order=preserve_order)
    assert len(groups) <= most
    assert all(groups)
    assert whole([piece for group in groups for piece in group]) == sorted(
        item for item in wanted if len(item)
    )


@given(ranges, st.integers(1, 9))
def test_a_queue_stays_in_one_partition_where_order_counts(
    wanted: list[QueueRange], most: int
) -> None:
    pieces = [piece for group in pack(wanted, most, preserve_order=True) for piece in group]
    assert sorted(pieces) == sorted(item for item in wanted if len(item))


def test_small_work_takes_one_partition() -> None:
    """64 nearly empty queues as 64 tasks take 22 times as long as one."""
    wanted = [QueueRange(MessageQueue("Orders", "broker-a", number), 0, 10) for number in range(64)]
    assert [len(group) for group in pack(wanted, 8, preserve_order=True)] == [64]


def test_large_work_is_spread_evenly() -> None:
    wanted = [QueueRange(queue, 0, ROWS_PER_PARTITION) for queue in QUEUES]
    assert [len(group) for group in pack(wanted, 4, preserve_order=True)] == [2, 2, 2, 2]


def test_one_long_queue_is_split_where_order_does_not_count() -> None:
    wanted = [QueueRange(QUEUES[0], 0, 4 * ROWS_PER_PARTITION)]
    assert len(pack(wanted, 4, preserve_order=True)) == 1
    assert len(pack(wanted, 4, preserve_order=False)) == 4


@given(ranges, st.integers(1, 9), st.integers(1, 9), st.integers(1000, 10**6))
def test_partitions_may_be_many_and_small(
    wanted: list[QueueRange], least: int, most: int, rows: int
) -> None:
    groups = pack(wanted, most, preserve_order=False, min_partitions=least, max_rows=rows)
    sizes = [sum(map(len, group)) for group in groups]
    assert len(groups) >= min(least, sum(map(len, wanted)))
    assert max(sizes, default=0) <= rows
    assert max(sizes, default=0) - min(sizes, default=0) <= 1
    assert whole([piece for group in groups for piece in group]) == sorted(
        item for item in wanted if len(item)
    )


@given(st.dictionaries(queues, st.integers(0, 10**6), min_size=1), st.integers(1, 10**9))
def test_bytes_are_shared_by_backlog(ahead: dict[MessageQueue, int], most: int) -> None:
    end = admit_bytes(dict.fromkeys(ahead, 0), ahead, dict.fromkeys(ahead, 100.0), most)
    assert all(0 <= end[queue] <= ahead[queue] for queue in ahead)
    # one message is read, however long it is
    assert 100 * sum(end.values()) <= max(most, 100)
    assert any(end.values()) == any(ahead.values())


@pytest.mark.parametrize("most", [40, 100, 160, 500])
def test_tasks_that_start_together_meet_at_no_broker(most: int) -> None:
    """By broker and queue, the first 16 tasks would all begin at the first of ten brokers."""
    wanted = [
        QueueRange(MessageQueue("Orders", f"broker-{name}", number), 0, ROWS_PER_PARTITION + number)
        for name in "abcdefghij"
        for number in range(16)
    ]
    groups = pack(wanted, most, preserve_order=True)
    assert len(groups) == min(most, 160)
    for wave in (groups[:10], groups):
        first = Counter(group[0].queue.broker_name for group in wave)
        assert max(first.values()) - min(first.values()) <= 1


def test_tasks_share_the_limits_of_their_query() -> None:
    groups = [[QueueRange(queue, 0, 10)] for queue in QUEUES]
    assert share(groups, 8, 10, 800) == [Pace(2, 100.0)] * 8
    # three run at a time, all of them perhaps at one broker
    assert share(groups, 3, 10, 900) == [Pace(3, 300.0)] * 8
    assert share(groups, 8, 1, None) == [Pace(1)] * 8


def test_more_tasks_than_the_driver_has_cores_are_for_many_rows_only() -> None:
    assert [spread_partitions(rows, 4) for rows in (10, 400_000, 2_000_000)] == [4, 4, 20]


def test_nothing_to_read_is_no_partition() -> None:
    assert (
        pack([QueueRange(QUEUES[0], 7, 7), QueueRange(QUEUES[1], 7, 3)], 4, preserve_order=True)
        == []
    )


# --- admission ------------------------------------------------------------------------------------

positions = st.dictionaries(queues, st.integers(0, 10**6))


@given(positions, st.dictionaries(queues, st.integers(0, 10**6), min_size=1), st.integers(1, 10**6))
def test_a_trigger_reads_at_most_its_limit_and_never_goes_back(
    start: dict[MessageQueue, int], ahead: dict[MessageQueue, int], limit: int
) -> None:
    latest = {queue: start.get(queue, 0) + rows for queue, rows in ahead.items()}
    end = admit(start, latest, limit)
    assert end.keys() == latest.keys()
    assert all(start.get(queue, 0) <= end[queue] <= latest[queue] for queue in latest)
    assert sum(end[queue] - start.get(queue, 0) for queue in latest) <= limit


@given(st.dictionaries(queues, st.integers(0, 200), min_size=1), st.integers(1, 100))
def test_triggers_reach_the_end(latest: dict[MessageQueue, int], limit: int) -> None:
    """Every trigger with a backlog reads something, so a stream always catches up."""
    at = dict.fromkeys(latest, 0)
    while at != latest:
        before, at = at, admit(at, latest, limit)
        assert at != before


def test_a_short_queue_beside_a_long_one_is_not_starved() -> None:
    end = admit({}, {QUEUES[0]: 1_000_000, QUEUES[1]: 1}, 1000)
    assert end[QUEUES[1]] == 1
    assert end[QUEUES[0]] == 999


@given(
    st.dictionaries(queues, st.integers(0, 3), min_size=1),
    st.integers(1, 12),
    st.lists(st.dictionaries(queues, st.integers(0, 3)), max_size=20),
)
def test_every_queue_advances_while_all_get_new_messages(
    first: dict[MessageQueue, int], limit: int, news: list[dict[MessageQueue, int]]
) -> None:
    """However few rows a trigger reads: within one round of triggers each queue with a backlog is
    read.
    """
    at, latest = dict.fromkeys(QUEUES, 0), dict.fromkeys(QUEUES, 1000) | first
    served: dict[MessageQueue, int] = {}
    waiting = dict.fromkeys(QUEUES, 0)
    for trigger, more in enumerate(news * 3, 1):
        latest = {queue: end + more.get(queue, 0) for queue, end in latest.items()}
        end = admit(at, latest, limit, served)
        for queue in QUEUES:
            read = end[queue] > at[queue] or latest[queue] == at[queue]
            waiting[queue] = 0 if read else waiting[queue] + 1
            if end[queue] > at[queue]:
                served[queue] = trigger
        at = end
        assert max(waiting.values()) <= -(-len(QUEUES) // limit)


def test_a_restart_at_each_trigger_starves_no_queue() -> None:
    at, latest = dict.fromkeys(QUEUES, 0), dict.fromkeys(QUEUES, 100)
    for _ in QUEUES:
        at = admit(at, latest, 1)
    assert at == dict.fromkeys(QUEUES, 1)


def test_a_long_queue_beside_many_is_read_with_each_trigger() -> None:
    """As many rows as queues, and two long queues: the shorter of these takes no more than its
    share.
    """
    end = admit({}, dict.fromkeys(QUEUES[:6], 1) | {QUEUES[6]: 500, QUEUES[7]: 1000}, 8)
    assert end == dict.fromkeys(QUEUES, 1)


def test_no_limit_reads_everything() -> None:
    assert admit({}, {QUEUES[0]: 10**9}, None) == {QUEUES[0]: 10**9}


# --- chunks ---------------------------------------------------------------------------------------


spans = st.builds(
    lambda queue, start, length: QueueRange(queue, start, start + length),
    queues,
    st.integers(0, 99),
    st.integers(1, 3000),
)


@given(st.lists(spans, max_size=4), st.integers(1, 5000))
def test_chunks_cover_ranges_in_order_whatever_the_broker_answers(
    wanted: list[QueueRange], answered: int
) -> None:
    chunks = Chunks(wanted)
    pieces = []
    for chunk in chunks:
        pieces.append(chunk)
        chunks.learn(len(chunk), min(answered, len(chunk)), 100 * min(answered, len(chunk)))
    cuts = iter(pieces)
    for item in wanted:
        at = item.start
        while at < item.end:
            chunk = next(cuts)
            assert (chunk.queue, chunk.start) == (item.queue, at)
            assert len(chunk) > 0
            at = chunk.end
        assert at == item.end


def test_chunks_shrink_to_what_the_broker_gives() -> None:
    """Apache's broker answers 32 messages at most: chunks of 32 are one pull each."""
    chunks = Chunks([QueueRange(QUEUES[0], 0, 10**6)])
    for _ in range(20):
        chunk = next(chunks)
        chunks.learn(len(chunk), min(32, len(chunk)), 3200)
    assert len(next(chunks)) == 32


def test_one_short_answer_changes_nothing() -> None:
    """An answer may also be short because a file of the log ends."""
    chunks = Chunks([QueueRange(QUEUES[0], 0, 10**6)])
    for _ in range(10):
        chunk = next(chunks)
        chunks.learn(len(chunk), len(chunk), 100 * len(chunk))
    chunks.learn(len(next(chunks)), 17, 1700)
    assert len(next(chunks)) == 4096


@pytest.mark.parametrize(("record_bytes", "messages"), [(1, 4096), (1024, 1536), (1024 * 1024, 8)])
def test_chunks_of_long_messages_are_shorter(record_bytes: int, messages: int) -> None:
    """An answer of 2 MiB at most: so many of them are on their way that longer ones would be more
    than a broker keeps for a client.
    """
    chunks = Chunks([QueueRange(QUEUES[0], 0, 10**6)])
    for _ in range(10):
        chunk = next(chunks)
        chunks.learn(len(chunk), len(chunk), record_bytes * len(chunk))
    assert len(next(chunks)) == messages
