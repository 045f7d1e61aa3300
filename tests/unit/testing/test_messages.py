"""Messages made for tests read like received ones."""

import ogive
from ogive.testing import message


def test_a_listener_is_called_with_a_message_made_for_it() -> None:
    @ogive.listener("Orders", group="billing")
    def bill(received: ogive.MessageExt) -> str:
        return f"{received.topic} {received.text} {received.tag} {received.keys} {received.reconsume_times}"

    made = message("Orders", b"4711", tag="paid", keys=("4711", "x"), properties={"size": "XL"}, queue_offset=7, reconsume_times=2)
    assert bill(made) == "Orders 4711 paid ('4711', 'x') 2"
    assert (made.properties["size"], made.queue_offset, made.queue.topic, made.sharding_key) == ("XL", 7, "Orders", None)
    assert made.born_at == made.stored_at
    assert message("Orders", b"", queue_offset=1).id != message("Orders", b"", queue_offset=2).id
