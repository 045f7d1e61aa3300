"""What a peer's JSON may not be: text that no UTF-8 can hold, which would stop every answer that it
stands in, and too much of it.
"""

import pytest

from ogive.errors import ProtocolError
from ogive.wire import java_json
from ogive.wire.bodies.json_fields import loads_object, loads_table
from ogive.wire.command import RemotingCommand, decode_command, encode_command
from ogive.wire.java_json import (
    MAX_DEPTH,
    MAX_JAVA_VALUES,
    MAX_TABLE_VALUES,
    MAX_VALUES,
    FrozenObject,
    loads,
)

HALVES = [r"\ud800", r"\uDFFF", r"x\uDe00\ud83d", r"\\\ud800", r"\ud83d\\ude00", r"\ud83d \ude00"]
WHOLES = [r"\ud83d\ude00", r"\\ud800", r"\u00fc", "ü"]


@pytest.mark.parametrize("text", HALVES)
@pytest.mark.parametrize("body", ['{"name":"%s"}', '{"%s":1}', '{0:"%s"}'])
def test_half_a_character_in_a_body_is_a_protocol_error(body: str, text: str) -> None:
    with pytest.raises(ProtocolError, match="half a character"):
        java_json.loads(body % text)


@pytest.mark.parametrize("text", WHOLES)
def test_whole_characters_in_a_body_are_read(text: str) -> None:
    assert java_json.loads(f'"{text}"').encode()


def header(text: str) -> bytes:
    """A frame with *text* as it is in its JSON header, without its length word."""
    frame = encode_command(RemotingCommand(105, {"topic": "?"}))[4:]
    raw = frame[4:].replace(b"?", text.encode())
    return len(raw).to_bytes(4) + raw


@pytest.mark.parametrize("text", HALVES)
def test_half_a_character_in_a_header_is_a_protocol_error(text: str) -> None:
    with pytest.raises(ProtocolError, match="half a character"):
        decode_command(header(text))


@pytest.mark.parametrize("text", WHOLES)
def test_whole_characters_in_a_header_are_read(text: str) -> None:
    assert decode_command(header(text)).ext_fields["topic"].encode()


def test_a_reference_stands_for_what_was_written_elsewhere_and_so_do_its_own() -> None:
    assert java_json.loads('{"a":[{"x":1}],"b":{"$ref":"$.a[0]"}}') == {
        "a": [{"x": 1}],
        "b": {"x": 1},
    }
    assert java_json.loads('{"a":{"$ref":"$.b"},"b":[{"$ref":"$.c"}],"c":5}') == {
        "a": [5],
        "b": [5],
        "c": 5,
    }


@pytest.mark.parametrize(
    "body",
    [
        '{"a":{"$ref":"$"}}',
        '{"a":{"$ref":"$.a"}}',
        '{"a":[{"$ref":"$.a"}]}',
        '{"a":{"x":{"$ref":"$.b"}},"b":{"x":{"$ref":"$.a"}}}',
        '{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"}}',
    ],
)
def test_a_reference_into_itself_is_a_protocol_error(body: str) -> None:
    """Whoever walks or writes such an object would never come to an end."""
    with pytest.raises(ProtocolError, match=r"leads into itself|nested too deep"):
        java_json.loads(body)


def test_references_cannot_stand_for_more_than_a_million_values() -> None:
    """Ten to the twelfth, in less than a kilobyte."""
    rows = ['"a0":[1,1,1,1,1,1,1,1,1,1]']
    rows += [f'"a{n}":[{",".join([f"""{{"$ref":"$.a{n - 1}"}}"""] * 10)}]' for n in range(1, 12)]
    with pytest.raises(ProtocolError, match="stand for more than 1000000 values"):
        java_json.loads("{" + ",".join(rows) + "}")


def test_an_object_as_a_key_may_have_keys_of_both_kinds() -> None:
    [(key, value)] = java_json.loads('{{"a":1,{"b":2}:3}:4}').items()
    assert (dict(key), value) == ({"a": 1, java_json.FrozenObject(b=2): 3}, 4)


@pytest.mark.parametrize(
    ("start", "one", "most"),
    [(b"[", b"1,", MAX_VALUES), (b"[", b"[],", MAX_VALUES // 2), (b"{1:[", b"1,", MAX_JAVA_VALUES)],
)
def test_what_a_peer_sends_holds_so_many_values_and_no_more(
    start: bytes, one: bytes, most: int
) -> None:
    """One frame of the largest size kept a broker from everybody else for ten seconds, or took half
    a GiB.
    """
    end = b"1]" + b"}" * start.count(b"{")
    body = start + one * (most - 3) + end
    assert loads(body, bounded=True)
    with pytest.raises(ProtocolError, match="values"):
        loads(start + one * (most + 1) + end, bounded=True)
    # a file of ours may be as large as it is
    assert loads(start + one * (most + 1) + end)


def test_the_body_of_a_request_is_bounded() -> None:
    with pytest.raises(ProtocolError, match="values"):
        loads_object(b"{1:[" + b"1," * MAX_JAVA_VALUES + b"1]}")


def test_a_table_of_all_queues_has_room_for_more() -> None:
    table = b"{1:[" + b"1," * MAX_JAVA_VALUES + b"1]}"
    assert len(loads_table(table)["1"]) == MAX_JAVA_VALUES + 1
    with pytest.raises(ProtocolError, match="values"):
        loads_table(b"{1:[" + b"1," * MAX_TABLE_VALUES + b"1]}")


def test_keys_that_differ_in_the_kind_of_a_value_only_have_hashes_of_their_own() -> None:
    """Else 2 ** n objects of n values could be given one hash, and a table of them takes minutes to
    fill.
    """
    keys = [
        FrozenObject({chr(97 + place): ("1", 1)[number >> place & 1] for place in range(10)})
        for number in range(1024)
    ]
    assert len({hash(key) for key in keys}) > 1000


def test_a_long_reference_is_refused_before_it_is_taken_apart() -> None:
    for path in ("$" + ".a" * 3_000, "$" + ".a" * (MAX_DEPTH + 1)):
        with pytest.raises(ProtocolError, match="is not of the form"):
            loads(f'{{"a":{{"$ref":"{path}"}}}}')


def test_the_steps_of_all_references_are_bounded() -> None:
    deep = '{"a":' * 60 + "1" + "}" * 60
    references = ",".join(['{"$ref":"$.d' + ".a" * 50 + '"}'] * 20_000)
    with pytest.raises(ProtocolError, match="references in the body stand for more than"):
        loads('{"r":[' + references + '],"d":' + deep + "}")


def test_a_body_with_references_has_the_limit_of_the_dialect() -> None:
    text = '{"a":[' + ",".join(['{"":0}'] * 130_000) + '],"b":{"$ref":"$.a[0]"}}'
    with pytest.raises(ProtocolError, match=f"{MAX_JAVA_VALUES} are the limit"):
        loads(text, bounded=True)
