"""A half message as producers send it is stored as any other is, without taking it apart."""

from hypothesis import given
from hypothesis import strategies as st

from ogive.broker.transactions.half_messages import for_consumers, half_as_sent, redirect_half
from ogive.wire.command import RemotingCommand
from ogive.wire.message import decode_properties
from ogive.wire.sends import Origin, SendKind, read_send

OWN = "MSG_REGION\x01Default\x02TRACE_ON\x01true\x02CLUSTER\x01ü\x02".encode()
letters = st.sampled_from("aB1ü._ ")
words = st.text(letters, min_size=1, max_size=6)
# a value may hold the separator of names and values
values = st.text(st.one_of(letters, st.just("\x01")), min_size=1, max_size=6)
names = st.one_of(words, st.sampled_from(["TAGS", "KEYS", "WAIT", "REAL"]))


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, str]:
    """The unique key, and the properties of a half message as producers send it."""
    own = draw(st.dictionaries(names, values, max_size=4))
    usual = {"UNIQ_KEY": draw(words), "TRAN_MSG": "true", "PGROUP": draw(values)}
    pairs = draw(st.permutations(list((own | usual).items())))
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs)
    return usual["UNIQ_KEY"], text + draw(st.sampled_from(["", "\x02"]))


@given(
    topic=words, queue_id=st.integers(0, 7), sys_flag=st.sampled_from([0, 1, 4, 5]), sent=texts()
)
def test_it_has_the_properties_that_it_would_have_one_by_one(
    topic: str, queue_id: int, sys_flag: int, sent: tuple[str, str]
) -> None:
    key, text = sent
    fields = {"b": topic, "e": str(queue_id), "f": str(sys_flag), "g": "5", "h": "-7", "i": text}
    send = read_send(RemotingCommand(310, fields, b"body"), Origin(OWN, b"born", b"store"))
    assert send.kind == SendKind.HALF
    assert send.answer.key == key
    half, ready = half_as_sent(send.message, key, OWN)
    properties = decode_properties(text.encode())
    place = redirect_half(properties, topic, queue_id)
    stored = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    flags = sys_flag & ~4
    assert half == send.message._replace(
        topic=place[0], queue_id=place[1], properties=stored.encode() + OWN, sys_flag=flags
    )
    assert ready == for_consumers(half, properties)
