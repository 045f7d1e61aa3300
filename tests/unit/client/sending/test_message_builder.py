"""Properties of a message, as the builder writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogive.client.sending.message_builder import (
    message_property_text,
    property_text,
    with_unique_key,
)
from ogive.errors import MessageIllegal, OgiveError
from ogive.model import Message

texts = st.none() | st.text(max_size=6) | st.sampled_from(["", "a b", "\x01", "x\x02y", "\ud800"])


@given(
    texts,
    st.lists(st.text(max_size=4) | st.sampled_from(["", "a b", "\x01"]), max_size=3).map(tuple),
    texts,
    st.integers(0, 18),
)
def test_the_quick_way_takes_and_refuses_what_a_message_does(
    tag: str | None, keys: tuple[str, ...], sharding_key: str | None, delay_level: int
) -> None:
    try:
        message = Message(
            "Orders", b"", tag=tag, keys=keys, sharding_key=sharding_key, delay_level=delay_level
        )
    except OgiveError as exc:
        with pytest.raises(type(exc)):
            property_text("Orders", b"", tag, keys, sharding_key, delay_level)
    else:
        assert property_text(
            "Orders", b"", tag, keys, sharding_key, delay_level
        ) == message_property_text(message)


@pytest.mark.parametrize("text", ["TAGS\x01\ud800\x02", "long\x01" + "x" * 32_767 + "\x02"])
def test_properties_that_no_broker_takes_are_refused(text: str) -> None:
    with pytest.raises(MessageIllegal):
        with_unique_key("K" * 32, text)
