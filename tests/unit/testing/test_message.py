"""Messages made for tests read like received ones."""

from collections.abc import Callable
from dataclasses import replace

import pytest

import ogive
from ogive import model
from ogive.model import instant
from ogive.testing import message


def test_a_listener_is_called_with_a_message_made_for_it() -> None:
    @ogive.listener("Orders", group="billing")
    def bill(received: ogive.MessageExt) -> ogive.Reply:
        text = (
            f"{received.topic} {received.text} {received.tag} {received.keys} "
            f"{received.reconsume_times}"
        )
        return ogive.Reply(text.encode())

    made = message(
        "Orders",
        b"4711",
        tag="paid",
        keys=("4711", "x"),
        properties={"size": "XL"},
        queue_offset=7,
        reconsume_times=2,
    )
    assert bill(made) == ogive.Reply(b"Orders 4711 paid ('4711', 'x') 2")
    assert (made.properties["size"], made.queue_offset, made.queue.topic, made.sharding_key) == (
        "XL",
        7,
        "Orders",
        None,
    )
    assert made.born_at == made.stored_at
    assert message("Orders", b"", queue_offset=1).id != message("Orders", b"", queue_offset=2).id


def test_what_a_sender_made_up_can_be_looked_at() -> None:
    """Brokers take any time of birth, and any text as a delay level."""
    made = message("Orders", b"", properties={"DELAY": "9" * 5000})
    late, early = (
        replace(made, born_timestamp_ms=2**63 - 1),
        replace(made, born_timestamp_ms=-(2**63)),
    )
    assert (late.born_at.year, early.born_at.year, made.delay_level) == (9999, 1, 0)
    assert instant(1_700_000_000_123).isoformat() == "2023-11-14T22:13:20.123000+00:00"


@pytest.mark.parametrize("validate", [model.validate_topic, model.validate_group])
def test_a_name_is_checked_once(
    validate: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every send looks at the same few."""
    checked: list[str] = []

    def check(kind: str, name: str, limit: int) -> str:
        checked.append(kind)
        return name

    monkeypatch.setattr(model, "_validate_name", check)
    assert [validate("name-that-is-checked-once"), validate("name-that-is-checked-once")] == [
        "name-that-is-checked-once"
    ] * 2
    assert len(checked) == 1
