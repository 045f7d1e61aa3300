"""native/sends.c beside ogive.wire.sends."""

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ogive.errors import ProtocolError
from ogive.native import Native
from ogive.store.types import NewMessage
from ogive.wire import command as command_module
from ogive.wire.codes import SerializeType
from ogive.wire.command import RemotingCommand, encode_command
from ogive.wire.message import encode_batch
from ogive.wire.sends import (
    CLIENT_FLAGS,
    End,
    Ending,
    Origin,
    Send,
    SendAnswer,
    SendKind,
    Signed,
    read_send,
    read_sends_in_python,
)
from ogive.wire.signing import Credentials

OWN = "MSG_REGION\x01Default\x02TRACE_ON\x01true\x02CLUSTER\x01ü\x02".encode()
HOSTS = bytes([127, 0, 0, 1, 0, 0, 0, 1]), bytes([127, 0, 0, 1, 0, 0, 0, 2])
ORIGIN = Origin(OWN, *HOSTS)
FORMS = (Send, NewMessage, SendAnswer, Signed, End, Ending)
USUAL = {"b": "T", "e": "1", "g": "1700000000000", "i": "UNIQ_KEY\x01AB12\x02"}

odd_numbers = [
    "",
    "-",
    "-0",
    "007",
    "+5",
    " 5",
    "5 ",
    "1_000",
    "٣",
    "5.0",
    "0x1",
    "5\0",
    "9" * 18,
    "9" * 19,
    str(2**63),
    "-" + "9" * 18,
]
numbers = st.one_of(
    st.integers(-3, 9).map(str),
    st.integers(-(2**33), 2**33).map(str),
    st.integers(-(2**65), 2**65).map(str),
    st.sampled_from(odd_numbers),
)
flags = st.one_of(st.integers(0, 0xFFF).map(str), numbers)
words = st.sampled_from(
    [
        "UNIQ_KEY",
        "XUNIQ_KEY",
        "DELAY",
        "XDELAY",
        "TRAN_MSG",
        "TIMER_",
        "TIMER",
        "TIMER_DELAY_MS",
        "POP_CK",
        "1ST_POP_TIME",
        "CLUSTER",
        "INNER_NUM",
        "WAIT",
        "KEYS",
        "\x01",
        "\x02",
        "\x01UNIQ_KEY",
        "\x02UNIQ_KEY\x01",
        "A",
        "ü",
        "",
        "_",
    ]
)
pairs = st.tuples(st.one_of(words, st.just("UNIQ_KEY")), st.one_of(words, st.text(max_size=5)))
texts = st.one_of(
    st.lists(pairs, max_size=4).map(
        lambda found: "".join([f"{name}\x01{value}\x02" for name, value in found])
    ),
    st.lists(words, max_size=8).map("".join),
    st.lists(pairs, min_size=1, max_size=4).map(
        lambda found: "\x02".join([f"{name}\x01{value}" for name, value in found])
    ),
)


@st.composite
def headers(draw: st.DrawFn) -> dict[str, str]:
    fields = {
        "b": draw(st.sampled_from(["T", "T", "%RETRY%g", "", "ü"])),
        "e": draw(numbers),
        "f": draw(flags),
        "g": draw(numbers),
        "h": draw(numbers),
        "i": draw(texts),
        "j": draw(numbers),
        "m": draw(st.sampled_from(["false", "false", "true", "1", "", "True", "0"])),
        "k": "false",
        "n": "broker-a",
    }
    usual = draw(st.sets(st.sampled_from(sorted(USUAL))))
    without = draw(st.sets(st.sampled_from(sorted(fields)), max_size=2))
    return {
        name: USUAL[name] if name in usual else value
        for name, value in fields.items()
        if name not in without
    }


def frame(
    ext: dict[str, str],
    body: bytes = b"body",
    code: int = 310,
    flag: int = 0,
    codec: SerializeType = SerializeType.ROCKETMQ,
    **changed: Any,
) -> bytes:
    return encode_command(
        RemotingCommand(
            code, ext, body, flag=flag, serialize_type=codec, **({"opaque": 7} | changed)
        )
    )[4:]


def json_frame(header: str | bytes, body: bytes = b"body") -> bytes:
    header = header if isinstance(header, bytes) else header.encode()
    return len(header).to_bytes(4) + header + body


def read(
    compiled: Native,
    frames: list[bytes],
    at: int = 0,
    most: int = 99,
    most_bytes: int = 99_999,
    most_body: int = 99,
) -> list[Any]:
    return compiled.read_sends(FORMS, frames, at, most, most_bytes, most_body, ORIGIN)


def read_by_python(
    frames: list[bytes], at: int = 0, most: int = 99, most_bytes: int = 99_999, most_body: int = 99
) -> list[Any]:
    with patch.object(command_module, "native", None):
        return read_sends_in_python(frames, at, most, most_bytes, most_body, ORIGIN)


def check(compiled: Native, sent: bytes) -> bool:
    """Whether the compiled form reads it; then it is what Python reads."""
    found, twin = read(compiled, [sent]), read_by_python([sent])
    if not found:
        return False
    assert found == twin
    (send,), (other,) = found, twin
    assert [type(value) for value in send[2:]] == [type(value) for value in other[2:]]
    assert [type(value) for value in send[2]] == [type(value) for value in other[2]]
    assert type(send) is type(other)
    return True


def is_odd(ext: dict[str, str]) -> bool:
    """Whether a number is written in a way that is left to Python, or a word for a batch."""
    return ext.get("m", "false") not in ("false", "true", "0", "1") or any(
        ext.get(name, "0").removeprefix("-") not in map(str, range(10**6)) for name in "efghj"
    )


@given(
    headers(),
    st.sampled_from([b"", b"body", b"1" * 99, b"1" * 100]),
    st.sampled_from(SerializeType),
    st.sampled_from([310, 320, 10]),
    st.sampled_from([0, 0, 2, 1]),
)
@example(USUAL, b"body", SerializeType.JSON, 310, 0)
@example(USUAL, b"body", SerializeType.ROCKETMQ, 310, 2)
@example(USUAL | {"i": "UNIQ_KEY\x01A-B\x02"}, b"body", SerializeType.ROCKETMQ, 310, 0)
@example(USUAL | {"i": "UNIQ_KEY\x01\x02"}, b"body", SerializeType.ROCKETMQ, 310, 0)
@example(USUAL | {"i": "UNIQ_KEY\x01A"}, b"body", SerializeType.ROCKETMQ, 310, 0)
@example(USUAL | {"i": "KEYS\x01ü\x02UNIQ_KEY\x01ö"}, b"body", SerializeType.JSON, 310, 0)
@example(USUAL | {"i": "UNIQ_KEY\x01A\x01B\x02UNIQ_KEY\x01C\x02"}, b"", SerializeType.JSON, 310, 0)
@example(USUAL | {"i": "XUNIQ_KEY\x01A\x02UNIQ_KEY\x01C\x02"}, b"", SerializeType.JSON, 310, 0)
@example(
    USUAL | {"f": "4", "i": "UNIQ_KEY\x01A\x02TRAN_MSG\x01true\x02"},
    b"",
    SerializeType.JSON,
    310,
    0,
)
@example(USUAL | {"h": ""}, b"body", SerializeType.ROCKETMQ, 310, 0)
@example(USUAL | {"h": ""}, b"body", SerializeType.JSON, 310, 0)
@example(USUAL | {"m": "true"}, b"body", SerializeType.JSON, 320, 0)
def test_sends_are_read_as_by_python(
    compiled: Native, ext: dict[str, str], body: bytes, codec: SerializeType, code: int, flag: int
) -> None:
    sent = frame(ext, body, code, flag, codec)
    if not check(compiled, sent):
        assert not read_by_python([sent]) or is_odd(ext)


@pytest.mark.parametrize("name", "efghj")
def test_each_number_is_read_as_by_python(compiled: Native, name: str) -> None:
    plain = ["0", "-0", "007", "7", "-7", "4", str(0x733)]
    plain += [str(number) for number in (2**31 - 1, 1 - 2**31, -(2**31))]
    for number in [*plain, *odd_numbers, "/", ":", "1/", "1:", "--1", "1-", str(2**31)]:
        assert check(compiled, frame(USUAL | {name: number})) or number not in plain, number


@pytest.mark.parametrize("value", ["true", "1", "false", "0", "", "True", "true ", "11"])
def test_what_says_batch_is_read_as_by_python(compiled: Native, value: str) -> None:
    assert check(compiled, frame(USUAL | {"m": value})) == (
        value in ("true", "1", "false", "0", "")
    )


@pytest.mark.parametrize(
    "name",
    [
        "DELAY",
        "TRAN_MSG",
        "TIMER_",
        "TIMER",
        "TIMER_DELAY_MS",
        "POP_CK",
        "CLUSTER",
        "INNER_NUM",
        "CLUSTER2",
        "_",
    ],
)
def test_names_that_say_more_are_found_wherever_they_stand(compiled: Native, name: str) -> None:
    for before in ("", "X", "KEYS\x01", "KEYS\x01a\x02"):
        for other in (f"{before}{name}\x01v\x02", f"{before}{name}\x02"):
            for text in (
                f"{other}UNIQ_KEY\x01A\x02",
                f"UNIQ_KEY\x01A\x02{other}",
                f"UNIQ_KEY\x01A\x02{other[:-1]}",
                other,
            ):
                assert check(compiled, frame(USUAL | {"i": text})), text


@pytest.mark.parametrize("fields", [{"b": ""}, {"b": "%T"}, {"b": "T%"}, {"b": "ü"}, {"i": ""}])
def test_topics_and_texts_are_read_as_by_python(compiled: Native, fields: dict[str, str]) -> None:
    for codec in SerializeType:
        sent = frame(USUAL | fields, codec=codec)
        assert check(compiled, sent) == bool(read_by_python([sent]))


@pytest.mark.parametrize(
    "size", [32767 - 90, 32767 - len(OWN) - 9, 32767 - len(OWN) - 10, 32767, 40000]
)
def test_properties_over_the_limit_are_not_plain(compiled: Native, size: int) -> None:
    for end in ("", "\x02"):
        assert check(compiled, frame(USUAL | {"i": "UNIQ_KEY\x01" + "A" * size + end}))


def test_flags_of_plain_sends_are_those_of_clients(compiled: Native) -> None:
    plain = [
        flag
        for flag in range(0x1000)
        if read(compiled, [frame(USUAL | {"f": str(flag)})])[0].kind == SendKind.PLAIN
    ]
    assert plain == [flag for flag in range(0x1000) if not flag & ~CLIENT_FLAGS]


def test_a_run_shares_topics_and_queue_ids(compiled: Native) -> None:
    places = [("T", 1), ("T", 1000), ("ü", 1), ("T", 1), ("T", 1000), ("ü", 1), ("ü", 1000)]
    frames = [
        frame(USUAL | {"b": topic, "e": str(queue)}, b"%d" % n, opaque=n - 3)
        for n, (topic, queue) in enumerate(places)
    ]
    messages = [send.message for send in read(compiled, frames)]
    assert [message[:2] for message in messages] == places
    for message, place in zip(messages, places, strict=True):
        first = messages[places.index(place)]
        assert (message[0] is first[0], message[1] is first[1]) == (True, True)
    assert read(compiled, frames) == read_by_python(frames)


PLAIN, BATCH, SPECIAL = (
    frame(USUAL),
    frame(USUAL, encode_batch([(1, b"a", b"K\1v\2")]), code=320),
    frame(USUAL | {"b": "%RETRY%g"}),
)


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ((0, 99, 9999, 99), 1),
        ((1, 99, 9999, 99), 1),
        ((2, 99, 9999, 99), 3),
        ((3, 99, 9999, 99), 2),
        ((2, 2, 9999, 99), 2),
        ((2, 0, 9999, 99), 0),
        ((2, -1, 9999, 99), 0),
        ((2, 99, 2 * len(PLAIN), 99), 2),
        ((2, 99, 0, 99), 1),
        ((2, 99, -1, 99), 1),
        ((2, 99, 9999, 4), 3),
        ((2, 99, 9999, 3), 0),
        ((5, 99, 9999, 99), 2),
        ((7, 99, 9999, 99), 0),
        ((8, 99, 9999, 99), 1),
        ((9, 99, 9999, 99), 0),
        ((99, 99, 9999, 99), 0),
    ],
)
def test_a_run_is_of_one_kind_and_keeps_its_limits(
    compiled: Native, limits: tuple[int, int, int, int], count: int
) -> None:
    frames = [PLAIN, SPECIAL, PLAIN, PLAIN, PLAIN, BATCH, BATCH, b"", PLAIN]
    found = read(compiled, frames, *limits)
    assert len(found) == count
    assert found == read_by_python(frames, *limits)


def test_many_places_are_read(compiled: Native) -> None:
    frames = [frame(USUAL | {"e": str(n), "b": f"T{n % 7}"}) for n in range(300)]
    assert read(compiled, frames, most=999) == read_by_python(frames, 0, 999, 99_999, 99)


@pytest.mark.parametrize(
    "other",
    [
        frame(USUAL, code=10),
        frame(USUAL, code=37),
        frame(USUAL, flag=1),
        frame(USUAL, flag=4),
        frame(USUAL)[:-5],
        frame(USUAL)[:40],
        frame(USUAL).replace(b"AB12", b"AB\xff2"),
        frame(USUAL | {"name": "v"}).replace(b"name", b"\xffame"),
        b"",
        b"\0\0\0\1{",
        b"\1\0\0\x15",
    ],
)
def test_no_other_frame_is_read(compiled: Native, other: bytes) -> None:
    assert not read(compiled, [other, frame(USUAL)])
    assert not read_by_python([other, frame(USUAL)])


@pytest.mark.parametrize(
    "other", [frame(USUAL, remark="r"), frame(USUAL | {f"{n}": "v" for n in range(33)})]
)
def test_an_unusual_header_is_left_to_python(compiled: Native, other: bytes) -> None:
    assert not read(compiled, [other])
    assert read_by_python([other])


FIELDS = '"b":"T","e":"1","g":"1700000000000","i":"UNIQ_KEY\\u0001AB12\\u0002"'
JAVA = (
    f'{{"code":310,"extFields":{{{FIELDS}}},"flag":0,"language":"JAVA","opaque":-7,'
    f'"serializeTypeCurrentRPC":"JSON","version":453}}'
)


@given(st.integers(0, len(JAVA) + 3), st.integers(0, 255))
@example(0, 0)
def test_any_byte_of_a_header_in_json_another(compiled: Native, at: int, byte: int) -> None:
    sent = bytearray(json_frame(JAVA))
    sent[at] = byte
    check(compiled, bytes(sent))


@pytest.mark.parametrize(
    "header",
    [
        JAVA,
        JAVA.replace('"opaque":-7', '"opaque":-0'),
        JAVA.replace('"opaque":-7', '"opaque":2147483647'),
        JAVA.replace('"opaque":-7', '"opaque":-2147483648'),
        JAVA.replace('"opaque":-7', '"opaque":1,"opaque":2'),
        JAVA.replace('"opaque":-7,', "").replace('"flag":0,', "").replace('"language":"JAVA",', ""),
        JAVA.replace("{" + FIELDS, '{"b":"x"},"extFields":{' + FIELDS),
        JAVA.replace('"e":"1"', '"e":"5","e":"1"'),
        JAVA.replace("AB12", "AB12\\"),
        JAVA.replace("AB12", "\\u0041\\u004a\\u006F12"),
        JAVA.replace('"e":"1"', '"x":"\\"\\\\\\/\\b\\f\\n\\r\\t\\u0000\\u007f","e":"1"'),
        JAVA.replace("AB12\\u0002", "AB12\\u0002own\\u0001\\n\\\\ü\\/\\u0002"),
    ],
)
def test_a_header_in_json_is_read_as_by_python(compiled: Native, header: str) -> None:
    assert check(compiled, json_frame(header))


@pytest.mark.parametrize(
    ("part", "other"),
    [
        *[
            ('"flag":0', other)
            for other in (
                '"flag": 0',
                '"flag":0,"remark":null',
                '"flag":00',
                '"flag":0.0',
                '"flag":-',
                '"flag":0e0',
                '"flag":null',
                '"flag":2147483648',
                '"flag":00000000000',
                '"flag":0,"other":0',
                '"fla\\u0067":0',
                '"flag":0,',
                '"flag"',
                '"flag":',
                ',"flag":0',
            )
        ],
        *[('"JAVA"', other) for other in ("0", '"J\\u0041VA"', '"J\nVA"', "null")],
        *[
            ('"e":"1"', other)
            for other in (
                '"e":1',
                '"\\u0065":"1"',
                '"e":null',
                '"e":"1",',
                ',"e":"1"',
                '"e"',
                '"e":',
                "",
                '"e":{}',
            )
        ],
        *[
            ("AB12", other)
            for other in (
                "AB12\\u00e9",
                "AB\\ud83d\\ude00",
                "AB12\\u000",
                "AB12\\x",
                "AB12\\u00g0",
                "AB12\\u000g",
                "AB\x0212",
                '"',
                "AB12\\u0002x\\u0001" + "x" * 8192,
            )
        ],
        *[("{" + FIELDS + "}", other) for other in ("{}", "null", "[]", "{" + FIELDS)],
        ('"e"', '"a":"' + "\\\\" * 4200 + '","x":"\\\\","e"'),
        ('"e"', ",".join([f'"{n}":""' for n in range(40)]) + ',"e"'),
        ('"e"', '"' + "x" * 300_000 + '":"","e"'),
        *[
            (JAVA, other)
            for other in ("", "{}", "{", '{"', "[]", JAVA + " ", " " + JAVA, JAVA[:-1], JAVA + "}")
        ],
    ],
)
def test_another_header_in_json_is_left_to_python(compiled: Native, part: str, other: str) -> None:
    assert not check(compiled, json_frame(JAVA.replace(part, other, 1)))


def test_a_header_in_json_that_is_no_utf8_is_left_to_python(compiled: Native) -> None:
    assert not check(compiled, json_frame(JAVA.encode().replace(b"AB12", b"AB\xff2")))


def test_a_header_in_json_that_is_cut_off_is_left_to_python(compiled: Native) -> None:
    for size in range(len(JAVA)):
        assert not check(compiled, json_frame(JAVA)[: 4 + size])
        assert not check(compiled, json_frame(JAVA[:size]))


def test_the_last_of_a_repeated_field_counts_and_an_empty_one_is_none(compiled: Native) -> None:
    ext = USUAL | {"x": "1", "y": ""}
    for sent, queue in (
        (frame(ext).replace(b"\0\1x", b"\0\1e"), 1),
        (frame(USUAL | {"x": "3"}).replace(b"\0\1x", b"\0\1e"), 3),
        (frame(ext).replace(b"\0\1y", b"\0\1e"), 1),
    ):
        assert check(compiled, sent)
        assert read(compiled, [sent])[0].message.queue_id == queue


# --- signatures -----------------------------------------------------------------------------------

USER = Credentials(access_key="rocketmq2", secret_key="12345678")


@given(
    st.dictionaries(st.text("abcXYZ_9", min_size=1, max_size=3), st.text(max_size=3), max_size=5),
    st.sampled_from(SerializeType),
)
@example({}, SerializeType.JSON)
@example({"a": "1", "aa": "2", "Z": "3", "_": "4"}, SerializeType.ROCKETMQ)
@example({"ü": "1"}, SerializeType.ROCKETMQ)
def test_what_is_signed_is_put_in_order_as_by_python(
    compiled: Native, more: dict[str, str], codec: SerializeType
) -> None:
    ext = USER.sign(more | USUAL, b"body")
    sent = frame(ext, codec=codec)
    if not check(compiled, sent):
        assert is_odd(ext) or not "".join(ext).isascii() or not "".join(ext.values()).isascii()
        return
    signed = read(compiled, [sent])[0].signed
    assert signed is not None
    assert USER.has_made(signed.signature, signed.values, b"body")


@pytest.mark.parametrize(
    "other",
    [
        {"_UNIQUE_KEY_QUERY": "true"},
        {"ü": "1"},
    ],
)
def test_an_unusual_signed_field_is_left_to_python(compiled: Native, other: dict[str, str]) -> None:
    assert not read(compiled, [frame(USER.sign(USUAL | other, b"body"))])
    assert check(compiled, frame(USUAL | other))


def test_a_field_that_is_signed_twice_is_left_to_python(compiled: Native) -> None:
    sent = frame(USER.sign(USUAL | {"x": "1"}, b"body")).replace(b"\0\1x", b"\0\1e")
    assert not read(compiled, [sent])


@pytest.mark.parametrize("name", ["AccessKey", "Signature"])
def test_half_a_signature_is_none(compiled: Native, name: str) -> None:
    for value in ("", "v"):
        for codec in SerializeType:
            sent = frame(USUAL | {name: "v"} | {"Signature": value}, codec=codec)
            assert check(compiled, sent)


# --- arguments ------------------------------------------------------------------------------------


def test_only_the_right_types_are_taken(compiled: Native) -> None:
    right: list[Any] = [FORMS, [frame(USUAL)], 0, 9, 9, 9, ORIGIN]
    wrong: list[tuple[int, Any]] = [
        (0, FORMS[:-1]),
        (0, (*FORMS[:-1], dict)),
        (0, list(FORMS)),
        (1, ()),
        (2, "0"),
        (2, -1),
        (2, 2**64),
        (3, None),
        (4, 0.0),
        (5, 2**64),
        (6, ORIGIN[:-1]),
        (6, (OWN.decode(), *HOSTS)),
    ]
    for at, other in wrong:
        with pytest.raises(TypeError, match=r"read_sends\(forms"):
            compiled.read_sends(*[*right[:at], other, *right[at + 1 :]])
    with pytest.raises(TypeError, match=r"read_sends\(forms"):
        compiled.read_sends(*right[:-1])
    assert compiled.read_sends(*[FORMS, [5], *right[2:]]) == []


def test_the_request_has_the_fields_that_few_sends_need(compiled: Native) -> None:
    long = {"topic": "T", "queueId": "1", "bornTimestamp": "5", "defaultTopic": "TBW102"}
    for send in (
        read(compiled, [frame(USUAL | {"c": "TBW102"})])[0],
        read_send(RemotingCommand(10, long), ORIGIN),
    ):
        assert (send.field("default_topic"), send.field("unit_mode")) == ("TBW102", None)
        assert send.command.ext_fields


def test_a_send_without_a_field_is_refused() -> None:
    for name in "beg":
        with pytest.raises(ProtocolError, match="field missing"):
            read_send(RemotingCommand(310, {n: v for n, v in USUAL.items() if n != name}), ORIGIN)
    with pytest.raises(ProtocolError, match="no integer"):
        read_send(RemotingCommand(310, USUAL | {"e": "x"}), ORIGIN)


# --- transactions ---------------------------------------------------------------------------------

HALF = USUAL | {"f": "4", "i": "UNIQ_KEY\x01AB12\x02TRAN_MSG\x01true\x02PGROUP\x01shop\x02"}
ENDED = {
    "producerGroup": "shop",
    "tranStateTableOffset": "3",
    "commitLogOffset": "4711",
    "commitOrRollback": "8",
    "fromTransactionCheck": "false",
}
half_names = st.sampled_from(
    [
        "UNIQ_KEY",
        "TRAN_MSG",
        "PGROUP",
        "TAGS",
        "DELAY",
        "TIMER_DELAY_MS",
        "XTIMER_",
        "REAL_TOPIC",
        "__transactionId__",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "__CRC32#",
        "MSG_REGION",
        "",
    ]
)
half_values = st.sampled_from(["true", "TRUE", "shop", "", "a\x01b", "ü"])


@given(
    st.lists(st.tuples(half_names, half_values), max_size=6),
    st.sampled_from(["", "\x02", "\x02\x02", "\x02x"]),
    st.sampled_from(["0", "4", "5", "8", "12"]),
    st.sampled_from(["0", "1"]),
    st.sampled_from(["T", "%RETRY%g", "ü"]),
)
@example([("TAGS", "a")], "\x02", "4", "0", "T")
@example([("TAGS", "a"), ("TAGS", "b")], "", "4", "0", "T")
def test_half_messages_are_read_as_by_python(
    compiled: Native,
    more: list[tuple[str, str]],
    end: str,
    flags: str,
    times: str,
    topic: str,
) -> None:
    text = "\x02".join([f"{name}\x01{value}" for name, value in more])
    for properties in (text + end, HALF["i"] + text + end, f"{text}\x02{HALF['i']}"):
        ext = HALF | {"i": properties, "f": flags, "j": times, "b": topic}
        for codec in SerializeType:
            sent = frame(ext, codec=codec)
            assert check(compiled, sent) or not read_by_python([sent])


@pytest.mark.parametrize("count", [29, 30])
def test_a_half_message_has_so_many_properties(compiled: Native, count: int) -> None:
    text = HALF["i"] + "".join([f"N{n}\x01v\x02" for n in range(count)])
    assert check(compiled, frame(HALF | {"i": text}))
    kind = read(compiled, [frame(HALF | {"i": text})])[0].kind
    assert kind == (SendKind.HALF if count == 29 else SendKind.SPECIAL)


@pytest.mark.parametrize(
    ("fields", "is_read"),
    [
        ({}, True),
        ({"commitOrRollback": "12"}, True),
        ({"commitOrRollback": "0"}, False),
        ({"commitOrRollback": "08"}, False),
        ({"commitOrRollback": ""}, False),
        ({"commitLogOffset": "x"}, False),
        ({"commitLogOffset": "-1"}, True),
        ({"tranStateTableOffset": "9" * 18}, True),
        ({"tranStateTableOffset": ""}, False),
        ({"producerGroup": "ü"}, True),
    ],
)
def test_ends_are_read_as_by_python(
    compiled: Native, fields: dict[str, str], is_read: bool
) -> None:
    for codec in SerializeType:
        for flag in (0, 2):
            sent = frame(ENDED | fields, b"", 37, flag, codec)
            assert check(compiled, sent) is is_read
            assert bool(read_by_python([sent])) is is_read


@pytest.mark.parametrize("name", sorted(ENDED.keys() - {"fromTransactionCheck"}))
def test_an_end_without_a_field_is_not_read(compiled: Native, name: str) -> None:
    sent = frame({one: value for one, value in ENDED.items() if one != name}, b"", 37)
    assert not read(compiled, [sent])
    assert not read_by_python([sent])


def test_half_messages_and_ends_are_read_together_and_ends_are_signed(compiled: Native) -> None:
    end = frame(USER.sign(ENDED, b""), b"", 37, 2)
    frames = [frame(HALF), end, end, frame(HALF), frame(USUAL), end]
    found = read(compiled, frames)
    assert [type(one) for one in found] == [Send, End, End, Send]
    assert found == read_by_python(frames)
    signed = found[1].signed
    assert signed is not None
    assert USER.has_made(signed.signature, signed.values, b"")
    assert found[1].command.ext_fields["producerGroup"] == "shop"
