"""Messages as applications handle them: decoded ones, and ones that were made."""

import copy
import dataclasses
import gc
import pickle
import weakref
from typing import Any

import pytest

from ogive.client.consumer.message_iterator import IncomingMessage
from ogive.model import MessageExt, MessageQueue
from ogive.wire.message import StoredMessage, decode_message, encode_stored

QUEUE = MessageQueue("Orders", "broker-a", 3)
MADE = MessageExt(
    "Orders",
    b"body",
    {"TAGS": "paid", "KEYS": "a b"},
    QUEUE,
    7,
    9,
    2,
    1_000,
    2_000,
    "127.0.0.1:5",
    "10.0.0.1:10911",
    -4,
    8,
    120,
    -1,
)


def decoded() -> MessageExt:
    record = StoredMessage(
        "Orders",
        b"body",
        b"TAGS\x01paid\x02KEYS\x01a b\x02",
        3,
        flag=-4,
        queue_offset=7,
        commitlog_offset=9,
        sys_flag=8,
        born_timestamp_ms=1_000,
        born_host=b"\x7f\0\0\1\0\0\0\5",
        store_timestamp_ms=2_000,
        store_host=b"\x0a\0\0\1\0\0\x2a\x9f",
        reconsume_times=2,
        prepared_transaction_offset=-1,
    )
    return decode_message(encode_stored(record), "broker-a")


def test_a_decoded_message_equals_one_that_was_made() -> None:
    assert decoded() == MADE
    assert decoded() != dataclasses.replace(MADE, flag=0)
    assert repr(decoded()) == repr(MADE)
    assert repr(MADE).startswith("MessageExt(topic='Orders', body=b'body', properties={'TAGS': ")
    assert [field.name for field in dataclasses.fields(MessageExt)] == list(
        MessageExt.__match_args__
    )


def test_the_hash_is_that_of_the_values() -> None:
    class Fixed(dict[str, str]):
        def __hash__(self) -> int:  # type: ignore[override]
            return 1

    one, other = (dataclasses.replace(decoded(), properties=Fixed(a="b")) for _ in range(2))
    assert hash(one) == hash(other)
    assert hash(one) != hash(dataclasses.replace(one, flag=3))


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
@pytest.mark.parametrize("make", [decoded, lambda: MADE])
def test_copies_are_equal(copied: Any, make: Any) -> None:
    again = copied(make())
    assert type(again) is MessageExt
    assert again == MADE
    assert again.tag == "paid"


def test_what_a_release_has_pickled_can_be_read() -> None:
    """The state is the list of the values, in the order of the fields."""
    message = MessageExt.__new__(MessageExt)
    message.__setstate__([getattr(MADE, one.name) for one in dataclasses.fields(MADE)])
    assert message == MADE
    assert MADE.__getstate__()[:2] == ["Orders", b"body"]


def test_replace_changes_what_is_named() -> None:
    changed = dataclasses.replace(decoded(), topic="Refunds", reconsume_times=3)
    assert (changed.topic, changed.reconsume_times) == ("Refunds", 3)
    assert dataclasses.replace(changed, topic="Orders", reconsume_times=2) == MADE
    assert dataclasses.asdict(decoded())["stored_bytes"] == 120


def test_a_message_can_be_matched() -> None:
    match decoded():
        case MessageExt("Orders", body, queue_offset=offset):
            assert (body, offset) == (b"body", 7)
        case _:
            pytest.fail("no match")


@pytest.mark.parametrize("make", [decoded, lambda: MADE])
def test_messages_are_frozen_and_have_no_other_attributes(make: Any) -> None:
    message = make()
    for name in ("body", "queue_offset", "properties", "colour"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(message, name, b"")
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(message, name)
    with pytest.raises(AttributeError):
        object.__setattr__(message, "colour", "red")
    assert not hasattr(message, "__dict__")
    assert message == MADE


def test_a_message_without_values_has_none() -> None:
    empty = MessageExt.__new__(MessageExt)
    for field in dataclasses.fields(MessageExt):
        with pytest.raises(AttributeError):
            getattr(empty, field.name)


def test_the_last_field_may_be_left_out() -> None:
    values = [getattr(MADE, field.name) for field in dataclasses.fields(MADE)]
    assert MessageExt(*values[:-1]).prepared_transaction_offset == 0
    with pytest.raises(TypeError):
        MessageExt(*values[:-2])


def test_values_of_any_type_are_kept() -> None:
    """As annotations are all that a dataclass has: numbers beyond 64 bits, too."""
    odd = dataclasses.replace(MADE, queue_offset=2**70, born_host=None)  # type: ignore[arg-type]
    assert odd.queue_offset == 2**70
    assert odd.born_host is None


def test_a_class_below_may_add_slots() -> None:
    calls: list[Any] = []
    incoming = IncomingMessage.of(decoded(), lambda *verdict: calls.append(verdict))
    incoming.done()
    assert calls == [(None, "")]
    assert [getattr(incoming, one.name) for one in dataclasses.fields(MADE)] == [
        getattr(MADE, one.name) for one in dataclasses.fields(MADE)
    ]


def test_a_message_in_a_circle_is_collected() -> None:
    class Circle(dict[str, Any]):
        pass

    circle = Circle()
    circle["message"] = dataclasses.replace(decoded(), properties=circle)
    gone = weakref.ref(circle)
    del circle
    gc.collect()
    assert gone() is None
