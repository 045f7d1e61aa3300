"""Positions in checkpoints and options: one canonical text, refused where it belongs to another
query, exact about what is missing.
"""

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from ogive.errors import InvalidOption
from ogive.model import MessageQueue
from ogive.spark.offsets import (
    AtTime,
    AtTimes,
    Behind,
    fingerprint,
    from_offset,
    resolve,
    times_wanted,
    to_offset,
)
from ogive.wire.bodies.stats import TopicOffset

A0, A1, B0 = (
    MessageQueue("Orders", "broker-a", 0),
    MessageQueue("Orders", "broker-a", 1),
    MessageQueue("Orders", "broker-b", 0),
)
OWNER = fingerprint("Orders", "*")


def span(first: int, following: int) -> TopicOffset:
    return TopicOffset(min_offset=first, max_offset=following, last_update_timestamp=0)


SPANS = {A0: span(5, 100), A1: span(0, 50)}

queues = st.builds(
    MessageQueue,
    st.sampled_from(["Orders", "%DLQ%g"]),
    st.sampled_from(["broker-a", "broker-b"]),
    st.integers(0, 20),
)


@given(st.dictionaries(queues, st.integers(0, 2**62)))
def test_positions_survive_the_checkpoint(positions: dict[MessageQueue, int]) -> None:
    assert from_offset(json.loads(json.dumps(to_offset(positions, OWNER))), OWNER) == positions


@given(st.dictionaries(queues, st.integers(0, 2**62)), st.randoms())
def test_equal_positions_are_equal_text(positions: dict[MessageQueue, int], random: Random) -> None:
    """Spark compares offsets as text: another order would look like new data."""
    shuffled = list(positions.items())
    random.shuffle(shuffled)
    assert json.dumps(to_offset(dict(shuffled), OWNER)) == json.dumps(to_offset(positions, OWNER))


def test_a_checkpoint_of_other_topics_or_tags_is_refused() -> None:
    offset = to_offset({A0: 1}, OWNER)
    for other in (
        fingerprint("Payments", "*"),
        fingerprint("Orders", "paid"),
        fingerprint("Orders\0Payments", "*"),
    ):
        with pytest.raises(InvalidOption, match="Orders"):
            from_offset(offset, other)


def test_a_checkpoint_of_a_later_release_is_refused() -> None:
    with pytest.raises(InvalidOption, match="version 2"):
        from_offset({**to_offset({A0: 1}, OWNER), "v": 2}, OWNER)


def test_words() -> None:
    assert resolve("startingOffsets", "earliest", SPANS, {}) == {A0: 5, A1: 0}
    assert resolve("startingOffsets", "latest", SPANS, {}) == {A0: 100, A1: 50}


def test_a_group_starts_where_it_stands_and_else_with_the_first_message() -> None:
    assert resolve("startingOffsets", "group", SPANS, {A0: 42}) == {A0: 42, A1: 0}


def test_json_offsets_name_every_queue() -> None:
    assert resolve("startingOffsets", {"Orders": {"broker-a": {0: 7, 1: -1}}}, SPANS, {}) == {
        A0: 7,
        A1: 50,
    }
    with pytest.raises(InvalidOption, match="Orders/broker-a/1"):
        resolve("startingOffsets", {"Orders": {"broker-a": {0: 7}}}, SPANS, {})


def test_json_offsets_of_unknown_queues_are_refused() -> None:
    with pytest.raises(InvalidOption, match="Orders/broker-a/2"):
        resolve("startingOffsets", {"Orders": {"broker-a": {0: 7, 1: 1, 2: 1}}}, SPANS, {})


def test_json_offsets_behind_the_end_are_refused() -> None:
    with pytest.raises(InvalidOption, match="ends at 50"):
        resolve("endingOffsets", {"Orders": {"broker-a": {0: 7, 1: 51}}}, SPANS, {})


def test_the_broker_may_be_left_out_where_there_is_one() -> None:
    assert resolve("startingOffsets", {"Orders": {"": {0: 7, 1: -2}}}, SPANS, {}) == {A0: 7, A1: 0}
    with pytest.raises(InvalidOption, match="2: broker-a, broker-b"):
        resolve("startingOffsets", {"Orders": {"": {0: 7}}}, {A0: span(0, 9), B0: span(0, 9)}, {})


def test_an_end_may_lie_ahead_of_a_stream() -> None:
    assert resolve(
        "endingOffsets", {"Orders": {"broker-a": {0: 7, 1: 51}}}, SPANS, {}, beyond=True
    ) == {A0: 7, A1: 51}


def test_so_many_messages_before_the_end() -> None:
    assert resolve("startingOffsets", Behind(10), SPANS, {}) == {A0: 90, A1: 40}
    assert resolve("startingOffsets", Behind(1000), SPANS, {}) == {A0: 5, A1: 0}


def test_times_are_looked_up_and_kept_within_the_queue() -> None:
    assert times_wanted("startingTimestamp", AtTime(7), SPANS) == {A0: 7, A1: 7}
    assert times_wanted(
        "startingOffsetsByTimestamp", AtTimes({"Orders": {"": {0: 1, 1: 2}}}), SPANS
    ) == {A0: 1, A1: 2}
    assert times_wanted("startingOffsets", "latest", SPANS) == {}
    assert resolve("startingTimestamp", AtTime(7), SPANS, {}, {A0: 3, A1: 51}) == {A0: 5, A1: 50}


def test_times_name_every_queue() -> None:
    with pytest.raises(
        InvalidOption, match="startingOffsetsByTimestamp says nothing about queue Orders/broker-a/1"
    ):
        times_wanted("startingOffsetsByTimestamp", AtTimes({"Orders": {"": {0: 1}}}), SPANS)
