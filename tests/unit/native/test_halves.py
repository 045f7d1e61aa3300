"""native/halves.c beside ogive.broker.transactions.half_messages and the handler of sends."""

from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ogive.broker.replies import Rejected
from ogive.broker.sends import send
from ogive.broker.transactions.transaction_table import Transactions
from ogive.errors import ProtocolError
from ogive.model import HALF_TOPIC
from ogive.native import Native
from ogive.store.types import NewMessage
from ogive.wire import message as wire_message
from ogive.wire.codes import SerializeType
from ogive.wire.command import RemotingCommand, encode_command

OWN = "MSG_REGION\x01Default\x02TRACE_ON\x01true\x02CLUSTER\x01ü\x02"
USUAL = "UNIQ_KEY\x01AB12\x02WAIT\x01true\x02TRAN_MSG\x01true\x02PGROUP\x01group\x02"
FIELDS = {
    "b": "T",
    "e": "1",
    "f": "4",
    "g": "1700000000000",
    "h": "0",
    "i": USUAL,
    "j": "0",
    "m": "false",
}
SPECIAL = [
    "DELAY",
    "POP_CK",
    "INNER_NUM",
    "CLUSTER",
    "MSG_REGION",
    "TRACE_ON",
    "TRANSACTION_CHECK_TIMES",
    "TRAN_PREPARED_QUEUE_OFFSET",
    "CHECK_IMMUNITY_TIME_IN_SECONDS",
    "__transactionId__",
    "REAL_TOPIC",
    "REAL_QID",
    "__CRC32#",
    "TIMER_DELAY_MS",
    "XTIMER_",
    "TIMER",
]

words = st.sampled_from(
    [
        "UNIQ_KEY",
        "TRAN_MSG",
        "PGROUP",
        "WAIT",
        "TAGS",
        "KEYS",
        "true",
        "TRUE",
        "5",
        "ü",
        "\x01",
        "\ud800",
        "",
        *SPECIAL,
    ]
)
pairs = st.tuples(words, st.one_of(words, st.text(max_size=5)))
texts = st.one_of(
    st.lists(pairs, max_size=6).map(
        lambda found: USUAL + "".join([f"{name}\x01{value}\x02" for name, value in found])
    ),
    st.lists(pairs, max_size=6).map(
        lambda found: "\x02".join([f"{name}\x01{value}" for name, value in found])
    ),
    st.permutations(USUAL[:-1].split("\x02")).map("\x02".join),
    st.lists(words, max_size=8).map(lambda found: USUAL + "".join(found)),
)


class Other(Exception):
    """It is no half message."""


def sent(ext: dict[str, str], body: bytes = b"body", **config: Any) -> Any:
    """What the handler puts, and the transaction and the message for consumers that are kept; or
    the error that refuses it.
    """
    put: list[tuple[NewMessage, Any]] = []

    def other(*args: Any, **named: Any) -> NoReturn:
        raise Other

    empty: Any = SimpleNamespace(
        put=other, max_offset=lambda *_: 0, min_offset=lambda *_: 0, check_fits=lambda *_: None
    )
    topic = SimpleNamespace(
        **(
            {
                "name": ext.get("b"),
                "write_queues": 8,
                "read_queues": 8,
                "filter_type": "",
                "attributes": {},
            }
            | config
        )
    )
    ctx: Any = SimpleNamespace(
        sends_waiting=0,
        config=SimpleNamespace(
            max_sends_waiting=9, max_message_bytes=9, enforce_message_types=True
        ),
        topics={topic.name: topic},
        own_properties=OWN,
        born_hosts={None: bytes(8)},
        store_host=b"12345678",
        loop=SimpleNamespace(time=float),
        duplicates=None,
        put=other,
        put_once=other,
        put_now=lambda messages, done: put.append((messages[0], done)),
        transactions=Transactions(empty, int, 9),
        is_saved=lambda _: True,
        levels=None,
    )
    with pytest.MonkeyPatch.context() as patch:
        for name in ("delayed", "put_batch", "_make_topic", "_retries_are_over"):
            patch.setattr(send, name, other)
        try:
            send.handle(ctx, cast(Any, None), RemotingCommand(310, ext, body))
        except (Other, ProtocolError, Rejected, IndexError) as exc:
            return repr(exc)
    [(message, done)] = put
    assert ctx.sends_waiting == 1
    opened, ready, stored = done.args
    assert (type(message), type(ready)) == (NewMessage, NewMessage)
    kept = opened.identity, opened.group, opened.immunity_ms, opened.places
    return message, ready, kept, stored.args[3:], [type(value) for value in (*message, *ready)]


def by_python(ext: dict[str, str], body: bytes = b"body", **config: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for module in (send, wire_message):
            patch.setattr(module, "native", None)
        patch.setattr("secrets.token_hex", lambda _: "ab")
        return sent(ext, body, **config)


@given(
    texts,
    st.sampled_from(["T", "T", "ü", "%RETRY%g", "%DLQ%g", HALF_TOPIC]),
    st.sampled_from(["0", "4", "5", "8", "12"]),
)
@example(USUAL[:-1], "T", "4")
@example(USUAL + "\x02", "T", "4")
@example(USUAL + "KEYS\x01a\x01b\x02", "T", "0")
@example(USUAL + "TIM\x01a\x02ER_\x01b\x02", "T", "0")
@example("", "T", "4")
def test_half_messages_are_what_python_makes_of_them(
    compiled: Native, text: str, topic: str, sys_flag: str
) -> None:
    ext = FIELDS | {"b": topic, "f": sys_flag, "i": text}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secrets.token_hex", lambda _: "ab")
        assert sent(ext) == by_python(ext)


@pytest.mark.parametrize(
    "changes",
    [
        {"e": "-1"},
        {"e": "8"},
        {"e": "x"},
        {"f": "6"},
        {"f": "-4"},
        {"g": "-1"},
        {"g": None},
        {"h": "-7"},
        {"h": str(2**31)},
        {"j": "1"},
        {"m": "true"},
        {"m": "1"},
        {"m": "True"},
        {"m": "0"},
        {"m": None},
        {"b": "OFFSET_MOVED_EVENT"},
        {"b": "other"},
        {"i": None},
    ],
)
def test_fields_of_half_messages_are_taken_as_by_python(
    compiled: Native, changes: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.randrange", lambda _: 3)
    ext = {name: value for name, value in (FIELDS | changes).items() if value is not None}
    assert sent(ext) == by_python(ext)


@pytest.mark.parametrize(
    "config",
    [
        {"write_queues": 1},
        {"filter_type": "MULTI_TAG"},
        {"attributes": {"message.type": "NORMAL"}},
        {"attributes": {"message.type": "TRANSACTION"}},
        {"name": "other"},
    ],
)
def test_topics_take_half_messages_as_in_python(compiled: Native, config: dict[str, Any]) -> None:
    assert sent(FIELDS, **config) == by_python(FIELDS, **config)


def test_a_body_over_the_limit_is_refused_as_by_python(compiled: Native) -> None:
    assert sent(FIELDS, bytes(10)) == by_python(FIELDS, bytes(10))


def test_the_usual_half_message_is_compiled(compiled: Native) -> None:
    stored = "__transactionId__\x01AB12\x02REAL_TOPIC\x01T\x02REAL_QID\x011\x02" + OWN
    expected = (
        "AB12",
        "group",
        (USUAL + stored).encode(),
        (USUAL + "__transactionId__\x01AB12\x02" + OWN).encode(),
    )
    assert (
        compiled.half_properties(USUAL, "T", 1, OWN)
        == compiled.half_properties(USUAL[:-1], "T", 1, OWN)
        == expected
    )
    assert (
        compiled.half_properties(
            USUAL + "".join([f"{number}\x01v\x02" for number in range(28)]), "T", 2**31 - 1, OWN
        )
        is not None
    )


@pytest.mark.parametrize("name", [name for name in SPECIAL if name != "TIMER"])
def test_special_properties_are_left_to_python(compiled: Native, name: str) -> None:
    assert compiled.half_properties(f"{USUAL}{name}\x011\x02", "T", 1, OWN) is None
    assert compiled.half_properties(f"{USUAL}{name[:3]}\x011\x02", "T", 1, OWN) is not None


@pytest.mark.parametrize(
    ("text", "topic", "queue_id"),
    [
        (USUAL, "", 1),
        (USUAL, "%T", 1),
        (USUAL, "\ud800", 1),
        (USUAL, "T", -1),
        (USUAL, "T", 2**31),
        ("", "T", 1),
        (USUAL + "".join([f"{number}\x01v\x02" for number in range(29)]), "T", 1),
        (USUAL + "WAIT\x01true", "T", 1),
        (USUAL + "K\x01" + "v" * 32767, "T", 1),
        (USUAL, "t" * 40000, 1),
        (USUAL.replace("true", "TRUE"), "T", 1),
    ],
)
def test_what_is_not_usual_is_left_to_python(
    compiled: Native, text: str, topic: str, queue_id: int
) -> None:
    assert compiled.half_properties(text, topic, queue_id, OWN) is None


@pytest.mark.parametrize("size", range(32767 - 250, 32767 - 150))
def test_properties_about_as_long_as_they_may_be(compiled: Native, size: int) -> None:
    ext = FIELDS | {"i": USUAL + "K\x01" + "v" * size}
    assert sent(ext) == by_python(ext)


def test_wrong_types_are_refused(compiled: Native) -> None:
    wrong: list[Any] = [
        (USUAL.encode(), "T", 1, OWN),
        (USUAL, b"T", 1, OWN),
        (USUAL, "T", 1, OWN.encode()),
        (USUAL, "T", 1),
    ]
    for arguments in wrong:
        with pytest.raises(TypeError, match="text: str, topic: str"):
            compiled.half_properties(*arguments)
    assert compiled.half_properties(USUAL, "T", cast(Any, "1"), OWN) is None


def frame(
    code: int, fields: dict[str, str], body: bytes = b"body", flag: int = 0, opaque: int = 7
) -> bytes:
    return encode_command(
        RemotingCommand(code, fields, body, opaque, flag, serialize_type=SerializeType.ROCKETMQ)
    )[4:]


def steps(compiled: Native, frames: Any, at: Any = 0, most: Any = 9, most_bytes: Any = 99) -> Any:
    return compiled.transaction_steps(
        frames, at, most, most_bytes, HALF_TOPIC, OWN, bytes(8), b"12345678", NewMessage
    )


END = {
    "producerGroup": "group",
    "tranStateTableOffset": "3",
    "commitLogOffset": "44",
    "commitOrRollback": "8",
    "msgId": "AB12",
}
odd_numbers = [
    "",
    "-",
    "-0",
    "007",
    "+5",
    " 5",
    "1_000",
    "٣",
    "5.0",
    "5\0",
    "9" * 18,
    "9" * 19,
    "-3",
    "2147483648",
]
numbers = st.one_of(st.integers(-3, 9).map(str), st.sampled_from(odd_numbers))


@given(
    texts.filter(lambda text: "\ud800" not in text),
    st.sampled_from(["T", "ü", "%RETRY%g", ""]),
    st.dictionaries(st.sampled_from("efghjmkn"), numbers, max_size=3),
    st.sets(st.sampled_from("efghijm"), max_size=1),
)
@example(USUAL, "T", {}, set())
@example(USUAL, "T", {"f": "5", "m": "1"}, set())
def test_half_messages_in_frames_are_what_python_makes_of_them(
    compiled: Native, text: str, topic: str, changes: dict[str, str], without: set[str]
) -> None:
    ext = {
        name: value
        for name, value in (FIELDS | {"b": topic, "i": text} | changes).items()
        if name not in without
    }
    found = steps(compiled, [frame(310, ext)])
    if found is None:
        return
    [(opaque, group, key, half, ready)] = found
    # the caller looks
    if not 0 <= ready.queue_id < 8:
        return
    message, for_consumers, kept, answered, types = by_python(
        {name: value for name, value in ext.items() if value}
    )
    assert (half, ready, group, [type(value) for value in (*half, *ready)]) == (
        message,
        for_consumers,
        kept[1],
        types,
    )
    assert (opaque, type(half), type(ready), (ready.queue_id, key)) == (
        7,
        NewMessage,
        NewMessage,
        answered[0][0][1:3],
    )


@given(
    st.dictionaries(
        st.sampled_from(list(END)),
        st.one_of(numbers, st.sampled_from(["8", "12", "0", "08", "ü"])),
        max_size=2,
    ),
    st.sets(st.sampled_from(list(END)), max_size=1),
    st.sampled_from([0, 2, 1, 3, 4]),
)
@example({}, set(), 0)
@example({"commitOrRollback": "12"}, set(), 2)
def test_ends_in_frames_are_what_python_makes_of_them(
    compiled: Native, changes: dict[str, str], without: set[str], flag: int
) -> None:
    ext = {name: value for name, value in (END | changes).items() if name not in without}
    found = steps(compiled, [frame(37, ext, b"", flag)])
    if found is not None:
        numbers = (
            int(ext[name])
            for name in ("tranStateTableOffset", "commitLogOffset", "commitOrRollback")
        )
        assert found == [(7 if flag == 0 else None, ext["producerGroup"], *numbers)]
        assert flag in (0, 2)
    elif not changes and without <= {"msgId"}:
        assert flag not in (0, 2)


def test_steps_end_with_what_is_none(compiled: Native) -> None:
    half, end = frame(310, FIELDS), frame(37, END, b"")
    kinds = [
        type(step[2])
        for step in steps(
            compiled, [half, end, end, half, frame(310, FIELDS | {"i": "K\x01v"}), half]
        )
    ]
    assert kinds == [str, int, int, str]
    assert (
        len(steps(compiled, [half, end, half], 1))
        == len(steps(compiled, [half, end, half], 0, 2))
        == 2
    )
    assert len(steps(compiled, [half] * 3, 0, 9, 8)) == 2
    for frames, at, most, most_bytes in (
        ([], 0, 9, 99),
        ([half], 1, 9, 99),
        ([half], 0, 0, 99),
        ([half], 0, -1, 99),
        ([half], 0, 9, 3),
        ([half], 0, 9, -1),
        ([half], -1, 9, 99),
        (["a"], 0, 9, 99),
        ([half], 2**70, 9, 99),
        ([half], 0, 2**70, 99),
        ([half], 0, 9, 2**70),
        ([b""], 0, 9, 99),
    ):
        assert steps(compiled, frames, at, most, most_bytes) is None


@given(st.sampled_from([frame(310, FIELDS), frame(37, END, b"")]), st.data())
def test_cut_and_spoiled_frames_harm_nothing(
    compiled: Native, whole: bytes, data: st.DataObject
) -> None:
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    at = data.draw(st.integers(0, len(whole) - 1))
    spoiled = whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]
    for damaged in (cut, spoiled):
        found = steps(compiled, [damaged])
        assert found is None or compiled.binary_command(damaged) is not None


@pytest.mark.parametrize(
    "wrong",
    [
        ((), 0, 9, 9, "H", OWN, b"", b"", NewMessage),
        ([], 0, 9, 9, b"H", OWN, b"", b"", NewMessage),
        ([], 0, 9, 9, "H", OWN.encode(), b"", b"", NewMessage),
        ([], 0, 9, 9, "H", OWN, "", b"", NewMessage),
        ([], 0, 9, 9, "H", OWN, b"", "", NewMessage),
        ([], 0, 9, 9, "H", OWN, b"", b"", list),
        ([], 0, 9, 9, "H", OWN, b"", b""),
    ],
)
def test_arguments_of_other_types_are_refused(compiled: Native, wrong: Any) -> None:
    with pytest.raises(TypeError, match="frames: list"):
        compiled.transaction_steps(*wrong)
