"""A half message as producers send it is stored as any other is, without taking it apart."""

import pytest

from ogive.broker.transactions.half_messages import for_consumers, half_as_sent, redirect_half
from ogive.wire.command import RemotingCommand
from ogive.wire.message import decode_properties
from ogive.wire.sends import Origin, SendKind, read_send

OWN = "MSG_REGION\x01Default\x02TRACE_ON\x01true\x02CLUSTER\x01ü\x02".encode()
USUAL = "UNIQ_KEY\x01AB12\x02TRAN_MSG\x01true\x02PGROUP\x01shop"


@pytest.mark.parametrize("topic", ["T", "ü"])
@pytest.mark.parametrize("sys_flag", ["0", "1", "4", "5"])
@pytest.mark.parametrize(
    "text",
    [
        USUAL,
        f"{USUAL}\x02",
        f"TAGS\x01a\x02{USUAL}\x02",
        f"{USUAL}\x02KEYS\x01a b\x02WAIT\x01true\x02",
        f"{USUAL}ü\x02own\x01a\x01b\x02",
        f"REAL\x01REAL_TOPIC\x02{USUAL}",
    ],
)
def test_it_has_the_properties_that_it_would_have_one_by_one(
    topic: str, sys_flag: str, text: str
) -> None:
    fields = {"b": topic, "e": "3", "f": sys_flag, "g": "5", "h": "-7", "i": text}
    send = read_send(RemotingCommand(310, fields, b"body"), Origin(OWN, b"born", b"store"))
    assert send.kind == SendKind.HALF
    assert send.answer.key == "AB12"
    half, ready = half_as_sent(send.message, "AB12", OWN)
    properties = decode_properties(text.encode())
    place = redirect_half(properties, topic, 3)
    stored = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    flags = int(sys_flag) & ~4
    assert half == send.message._replace(
        topic=place[0], queue_id=place[1], properties=stored.encode() + OWN, sys_flag=flags
    )
    assert ready == for_consumers(half, properties)
