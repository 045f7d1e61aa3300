"""Allocation: every queue goes to exactly one member, whoever they are."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogive.client.consumer.allocate import STRATEGIES
from ogive.model import MessageQueue

queues = st.lists(
    st.builds(
        MessageQueue,
        st.just("Orders"),
        st.sampled_from(["broker-a", "broker-b"]),
        st.integers(0, 63),
    ),
    unique=True,
    max_size=64,
).map(sorted)
members = st.lists(st.text(min_size=1, max_size=8), unique=True, min_size=1, max_size=9).map(sorted)


@pytest.mark.feature(168)
@pytest.mark.parametrize("name", STRATEGIES)
@given(queues=queues, members=members)
def test_the_members_share_all_queues_without_overlap(
    name: str, queues: list[MessageQueue], members: list[str]
) -> None:
    strategy = STRATEGIES[name]
    shares = {member: strategy(queues, members, member) for member in members}
    taken = Counter(queue for share in shares.values() for queue in share)
    assert taken == Counter(queues)


@pytest.mark.feature(169, 170)
@pytest.mark.parametrize("name", ["AVG", "AVG_BY_CIRCLE"])
@given(queues=queues, members=members)
def test_averages_differ_by_one_at_most(
    name: str, queues: list[MessageQueue], members: list[str]
) -> None:
    sizes = [len(STRATEGIES[name](queues, members, member)) for member in members]
    assert max(sizes) - min(sizes) <= 1
