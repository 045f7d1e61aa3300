"""Runs of sends: native/sends.c and native/records.c beside ogive.broker.sends.send and
ogive.store.appender.
"""

import re
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ogive.broker.replies import Rejected
from ogive.broker.sends.checks import CLIENT_FLAGS
from ogive.broker.sends.send import _SHORT, _numbers
from ogive.broker.sends.send_batch import BARRED_STARTS, _check_items
from ogive.errors import ProtocolError
from ogive.native import Native
from ogive.store.types import NewMessage
from ogive.wire import command as command_module
from ogive.wire import message as message_module
from ogive.wire.codes import LanguageCode, SerializeType
from ogive.wire.command import RemotingCommand, decode_command, encode_command
from ogive.wire.message import decode_batch, decode_properties, encode_batch
from ogive.wire.sends import SendAnswer
from tests.unit.native.test_sends import OWN, USUAL, by_python, headers

# --- sends ----------------------------------------------------------------------------------------

HOSTS = bytes([127, 0, 0, 1, 0, 0, 0, 1]), bytes([127, 0, 0, 1, 0, 0, 0, 2])


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


def run(
    compiled: Native,
    frames: list[bytes],
    at: int = 0,
    most: int = 99,
    most_bytes: int = 9,
    queues: int = 8,
) -> Any:
    return compiled.plain_sends(
        frames, at, most, most_bytes, lambda topic: queues, OWN, *HOSTS, NewMessage, SendAnswer
    )


def is_encodable(ext: dict[str, str]) -> bool:
    return "\ud800" not in "".join(ext.values())


@given(
    headers().filter(is_encodable),
    st.sampled_from([b"", b"body", b"123456789", b"1234567890"]),
    st.sampled_from(SerializeType),
)
@example(USUAL, b"body", SerializeType.JSON)
@example(USUAL, b"body", SerializeType.ROCKETMQ)
@example(USUAL | {"e": "8"}, b"body", SerializeType.ROCKETMQ)
@example(USUAL | {"i": "UNIQ_KEY\x01A-B\x02"}, b"body", SerializeType.ROCKETMQ)
@example(USUAL | {"h": ""}, b"body", SerializeType.ROCKETMQ)
@example(USUAL | {"h": ""}, b"body", SerializeType.JSON)
def test_plain_sends_are_what_python_stores(
    compiled: Native, ext: dict[str, str], body: bytes, codec: SerializeType
) -> None:
    check(compiled, frame(ext, body, codec=codec))


def check(compiled: Native, sent: bytes) -> bool:
    """Whether it is plain; then it is what Python makes of it, and else not what usual_send()
    takes.
    """
    found = run(compiled, [sent])
    with patch.object(command_module, "native", None):
        try:
            command = decode_command(sent)
        except ProtocolError:
            assert found is None
            return False
    body = command.body
    twin = (
        by_python(command.ext_fields, _SHORT) if command.code == 310 and not command.flag else None
    )
    if found is None:
        usual = twin is not None and len(body) <= 9 and 0 <= twin[1] < 8
        assert (
            not usual
            or command.serialize_type == SerializeType.JSON
            or not by_c(compiled, command.ext_fields)
        )
        return False
    assert twin is not None
    assert len(body) <= 9
    topic, queue_id, sys_flag, born_ms, flag, times, properties, key = twin
    message = NewMessage(topic, queue_id, body, properties, sys_flag, flag, born_ms, *HOSTS, times)
    answer = SendAnswer(command.opaque, queue_id, key)
    assert found == ([message], [answer])
    assert type(found[1][0]) is SendAnswer
    assert [type(value) for value in found[0][0]] == [type(value) for value in message]
    assert type(found[0][0]) is NewMessage
    return True


def by_c(compiled: Native, ext: dict[str, str]) -> bool:
    return compiled.usual_send(ext, _SHORT, OWN) is not None


def test_a_run_shares_topics_and_queue_ids(compiled: Native) -> None:
    places = [("T", 1), ("T", 1000), ("ü", 1), ("T", 1), ("T", 1000), ("ü", 1), ("ü", 1000)]
    frames = [
        frame(USUAL | {"b": topic, "e": str(queue)}, b"%d" % n, opaque=n - 3)
        for n, (topic, queue) in enumerate(places)
    ]
    asked: list[str] = []

    def queues_of(topic: str) -> int:
        asked.append(topic)
        return 1001

    found = compiled.plain_sends(frames, 0, 99, 9, queues_of, OWN, *HOSTS, NewMessage, SendAnswer)
    assert found is not None
    messages, answers = found
    assert [message[:2] for message in messages] == places
    for message, place in zip(messages, places, strict=True):
        first = messages[places.index(place)]
        assert (message[0] is first[0], message[1] is first[1]) == (True, True)
    assert [message[2] for message in messages] == [b"%d" % n for n in range(7)]
    assert answers == [SendAnswer(n - 3, queue, "AB12") for n, (_, queue) in enumerate(places)]
    assert asked == ["T", "ü"]


def test_a_run_begins_and_ends_where_it_has_to(compiled: Native) -> None:
    plain, other = frame(USUAL), frame(USUAL | {"b": "%RETRY%g"})
    frames = [plain, other, plain, plain, plain, other, plain]
    taken = [
        0 if (found := run(compiled, frames, at)) is None else len(found[0]) for at in range(9)
    ]
    assert taken == [1, 0, 3, 2, 1, 0, 1, 0, 0]
    assert len(run(compiled, frames, 2, most=2)[0]) == 2
    for nothing in (
        {"at": -1},
        {"most": 0},
        {"most": -5},
        {"most_bytes": 3},
        {"most_bytes": -1},
        {"queues": 1},
        {"queues": 0},
        {"queues": -9},
    ):
        assert run(compiled, frames, **({"at": 2} | nothing)) is None
    # different places
    assert (
        len(run(compiled, [frame(USUAL | {"e": str(n)}) for n in range(100)], queues=100)[0]) == 64
    )


@pytest.mark.parametrize(
    "other",
    [
        frame(USUAL, code=10),
        frame(USUAL, code=320),
        frame(USUAL, flag=2),
        frame(USUAL, flag=1),
        frame(USUAL, remark="r"),
        frame(USUAL | {f"{n}": "v" for n in range(33)}),
        frame(USUAL)[:-5],
        frame(USUAL)[:40],
        frame(USUAL).replace(b"AB12", b"AB\xff2"),
        frame(USUAL | {"name": "v"}).replace(b"name", b"\xffame"),
        b"",
    ],
)
def test_no_run_takes_other_frames(compiled: Native, other: bytes) -> None:
    assert run(compiled, [other, frame(USUAL)]) is None


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
                '"flag":2',
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
    assert run(compiled, [frame(ext).replace(b"\0\1x", b"\0\1e")])[0][0].queue_id == 1
    assert (
        run(compiled, [frame(USUAL | {"x": "3"}).replace(b"\0\1x", b"\0\1e")])[0][0].queue_id == 3
    )
    assert run(compiled, [frame(ext).replace(b"\0\1y", b"\0\1e")])[0][0].queue_id == 1


def test_what_says_how_many_queues_there_are_may_fail_and_may_change_the_frames(
    compiled: Native,
) -> None:
    def fail(topic: str) -> int:
        raise KeyError(topic)

    with pytest.raises(KeyError, match="T"):
        compiled.plain_sends([frame(USUAL)], 0, 9, 9, fail, OWN, *HOSTS, NewMessage, SendAnswer)
    frames = [frame(USUAL), frame(USUAL)]

    def clear(topic: str) -> int:
        frames.clear()
        return 8

    found = compiled.plain_sends(frames, 0, 9, 9, clear, OWN, *HOSTS, NewMessage, SendAnswer)
    assert found is not None
    assert len(found[0]) == 1
    wrong: Any = lambda topic: "8"  # noqa: E731
    assert (
        compiled.plain_sends([frame(USUAL)], 0, 9, 9, wrong, OWN, *HOSTS, NewMessage, SendAnswer)
        is None
    )
    frames = [frame(USUAL), 5]  # type: ignore[list-item]
    arguments = (frames, 0, 9, 9, len, OWN, *HOSTS, NewMessage, SendAnswer)
    assert compiled.plain_sends(*arguments) is None


def changed(arguments: list[Any], at: int, other: Any) -> list[Any]:
    return [*arguments[:at], other, *arguments[at + 1 :]]


def test_a_run_is_asked_for_with_the_right_types(compiled: Native) -> None:
    right: list[Any] = [[frame(USUAL)], 0, 9, 9, len, OWN, *HOSTS, NewMessage, SendAnswer]
    wrong: list[tuple[int, Any]] = [
        (0, ()),
        (1, "0"),
        (2, None),
        (3, 0.0),
        (5, b""),
        (6, ""),
        (7, None),
        (8, dict),
        (9, dict),
    ]
    for at, other in wrong:
        with pytest.raises(TypeError, match=r"plain_sends\(frames"):
            compiled.plain_sends(*changed(right, at, other))
    with pytest.raises(TypeError, match=r"plain_sends\(frames"):
        compiled.plain_sends(*right[:-1])
    for at in (1, 2, 3):
        assert compiled.plain_sends(*changed(right, at, 2**64)) is None
    assert (
        compiled.plain_sends(*[OWN + "\ud800" if value is OWN else value for value in right])
        is None
    )


# --- batches --------------------------------------------------------------------------------------

BODY = encode_batch([(1, b"a", b"K\1v\2"), (-1, b"", b""), (0, b"b" * 9, b"TAGS\1t")])


def batch_run(
    compiled: Native,
    frames: list[bytes],
    at: int = 0,
    most: int = 99,
    most_bytes: int = 999,
    items: int = 9,
) -> Any:
    return compiled.plain_batches(
        frames, at, most, most_bytes, lambda topic: 8, BARRED_STARTS, items, *HOSTS, NewMessage
    )


def batch_by_python(sent: bytes, most_items: int) -> Any:
    """What is stored of a batch that nothing speaks against; None for any other request."""
    with patch.object(command_module, "native", None), patch.object(message_module, "native", None):
        try:
            command = decode_command(sent)
            if (
                command.code != 320
                or command.flag
                or command.ext_fields.get("b", "")[:1] in ("", "%")
            ):
                return None
            topic, queue_id, sys_flag, born_ms, flag, times, *_ = _numbers(
                command.ext_fields, _SHORT
            )
            items = decode_batch(command.body, most_items)
            _check_items(items)
            own = decode_properties(command.ext_fields.get("i", "").encode())
        except (ProtocolError, Rejected, UnicodeEncodeError, ValueError):
            return None
    if "DELAY" in own or "TRAN_MSG" in own or not items:
        return None
    shared = NewMessage(topic, queue_id, b"", b"", sys_flag, flag, born_ms, *HOSTS, times)
    return shared, len(sent) - len(command.body), len(items), own.get("UNIQ_KEY"), command.opaque


PLAIN_KEY = re.compile("(^|\x02)UNIQ_KEY\x01[^\x02]+(\x02|$)")


def is_as_clients_write(sent: bytes) -> bool:
    """Whether its header is binary, with plain numbers and properties that say nothing special."""
    with patch.object(command_module, "native", None):
        command = decode_command(sent)
    ext, text = command.ext_fields, command.ext_fields.get("i", "")
    names = ("DELAY", "TRAN_MSG", "TIMER", "POP_CK", "CLUSTER", "INNER_NUM")
    return (
        command.serialize_type == SerializeType.ROCKETMQ
        # a language that nobody knows is left to Python
        and sent[6] <= max(LanguageCode)
        and command.remark is None
        and all(re.fullmatch("-?[0-9]{1,18}", ext[name]) for name in "efghj" if name in ext)
        and int(ext.get("f", "0")) & ~CLIENT_FLAGS == 0
        and not any(name in text for name in names)
        and len(text.encode()) <= 32767
        and (
            "UNIQ_KEY" not in text
            or (text.count("UNIQ_KEY") == 1 and PLAIN_KEY.search(text) is not None)
        )
    )


def check_batch(compiled: Native, sent: bytes, most_items: int = 9) -> bool:
    """Whether it is plain; then it is what Python makes of it, and else Python refuses it, or its
    header is not as clients write it.
    """
    found, twin = batch_run(compiled, [sent], items=most_items), batch_by_python(sent, most_items)
    if found is None:
        assert twin is None or not 0 <= twin[0].queue_id < 8 or not is_as_clients_write(sent)
        return False
    assert found == [twin]
    shared = found[0][0]
    assert [type(value) for value in (shared, *shared)] == [
        NewMessage,
        *[NewMessage.__annotations__[name] for name in NewMessage._fields],
    ]
    assert 0 <= shared.queue_id < 8
    return True


@given(
    headers().filter(is_encodable),
    st.sampled_from([BODY, BODY, BODY[:-1], b"", b"x" * 30]),
    st.sampled_from(SerializeType),
)
@example(USUAL, BODY, SerializeType.JSON)
@example(USUAL | {"i": "WAIT\x01true\x02"}, BODY, SerializeType.ROCKETMQ)
@example(USUAL | {"i": "UNIQ_KEY\x01A\x02UNIQ_KEY\x01B\x02"}, BODY, SerializeType.ROCKETMQ)
@example(USUAL | {"h": ""}, BODY, SerializeType.JSON)
def test_plain_batches_are_what_python_stores(
    compiled: Native, ext: dict[str, str], body: bytes, codec: SerializeType
) -> None:
    check_batch(compiled, frame(ext, body, code=320, codec=codec))


@given(st.sampled_from(SerializeType), st.data())
def test_a_batch_with_another_byte_or_cut_off_is_what_python_stores(
    compiled: Native, codec: SerializeType, data: st.DataObject
) -> None:
    sent = bytearray(frame(USUAL, BODY, code=320, codec=codec))
    sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    check_batch(compiled, bytes(sent))
    check_batch(compiled, bytes(sent[: data.draw(st.integers(0, len(sent)))]))


@pytest.mark.parametrize(
    ("ext", "plain"),
    [
        ({}, True),
        ({"m": "true"}, True),
        ({"m": "false"}, True),
        ({"i": "WAIT\x01true"}, True),
        ({"i": ""}, True),
        ({"f": "1"}, True),
        ({"j": "3"}, True),
        ({"e": "7"}, True),
        ({"e": "8"}, False),
        ({"e": "-1"}, False),
        ({"b": "%RETRY%g"}, False),
        ({"b": ""}, False),
        ({"g": "x"}, False),
        ({"f": "8"}, False),
        ({"f": "4"}, False),
        ({"j": "-1"}, False),
        ({"h": str(2**31)}, False),
        ({"i": "UNIQ_KEY\x01A\x02UNIQ_KEY\x01B"}, False),
        ({"i": "UNIQ_KEY\x01A-B\x02"}, True),
        ({"i": "UNIQ_KEY\x01\x02"}, False),
        ({"i": "DELAY\x013\x02"}, False),
        ({"i": "TRAN_MSG\x01true"}, False),
        ({"i": "TIMER_DELAY_MS\x013"}, False),
        ({"i": "INNER_NUM\x013"}, False),
        ({"i": "A\x01" + "v" * 32766}, False),
    ],
)
def test_which_batches_are_plain(compiled: Native, ext: dict[str, str], plain: bool) -> None:
    for codec in SerializeType:
        assert check_batch(compiled, frame(USUAL | ext, BODY, code=320, codec=codec)) is plain


def test_a_run_of_batches_begins_and_ends_where_it_has_to(compiled: Native) -> None:
    plain, single, cut = (
        frame(USUAL, BODY, code=320),
        frame(USUAL),
        frame(USUAL, BODY[:-1], code=320),
    )
    frames = [plain, single, plain, plain, plain, cut, plain, frame(USUAL, BODY, code=320, flag=2)]
    taken = [
        0 if (found := batch_run(compiled, frames, at)) is None else len(found) for at in range(10)
    ]
    assert taken == [1, 0, 3, 2, 1, 0, 1, 0, 0, 0]
    assert len(batch_run(compiled, frames, 2, most=2)) == 2
    assert len(batch_run(compiled, frames, 2, most_bytes=len(BODY), items=3)) == 3
    for nothing in (
        {"at": -1},
        {"most": 0},
        {"most": -5},
        {"most_bytes": len(BODY) - 1},
        {"most_bytes": -1},
        {"items": 2},
        {"items": -1},
    ):
        assert batch_run(compiled, frames, **({"at": 2} | nothing)) is None
    shared = [batch[0] for batch in batch_run(compiled, frames, 2)]
    assert shared[0][0] is shared[1][0] is shared[2][0]
    with_delay = encode_batch([(0, b"", b""), (0, b"", b"DELAY\x013\x02")])
    assert batch_run(compiled, [frame(USUAL, with_delay, code=320)]) is None


def test_a_run_of_batches_is_asked_for_with_the_right_types(compiled: Native) -> None:
    right: list[Any] = [
        [frame(USUAL, BODY, code=320)],
        0,
        9,
        999,
        lambda topic: 8,
        BARRED_STARTS,
        9,
        *HOSTS,
        NewMessage,
    ]
    assert compiled.plain_batches(*right) is not None
    wrong: list[tuple[int, Any]] = [
        (0, ()),
        (1, "0"),
        (2, None),
        (3, 0.0),
        (5, [b"A"]),
        (5, ("A",)),
        (6, ""),
        (7, ""),
        (8, None),
        (9, dict),
    ]
    for at, other in wrong:
        with pytest.raises(TypeError, match=r"plain_batches\(frames"):
            compiled.plain_batches(*changed(right, at, other))
    with pytest.raises(TypeError, match=r"plain_batches\(frames"):
        compiled.plain_batches(*right[:-1])
    for at in (1, 2, 3, 6):
        assert compiled.plain_batches(*changed(right, at, 2**64)) is None
    assert compiled.plain_batches(*changed(right, 0, [5])) is None
    with pytest.raises(ZeroDivisionError):
        compiled.plain_batches(*changed(right, 4, lambda topic: 1 // 0))
